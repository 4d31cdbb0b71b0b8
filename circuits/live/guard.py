"""Who may speak to the server: whoever has its address, from its own page, in small requests.

1. The path begins with a random token, so that no other page or user of the machine can guess it.
2. `Host` must be this server's (no other name that was pointed at this machine), and `Origin`, which browsers
   send with every request that another page makes, must be its own. A request that changes something must
   have one.
3. Whatever is refused is refused in one line.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.responses import PlainTextResponse

from circuits.live.requests import LARGEST_BODY

Scope = dict[str, Any]
App = Callable[[Any, Any, Any], Awaitable[None]]

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """Lets through what belongs here, to `app`."""

    app: App
    token: str
    port: int

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        refused = self._refuse(scope)
        if refused is None:
            await self.app(scope, receive, send)
        else:
            status, line = refused
            headers = HEADERS | {"Connection": "close"}
            await PlainTextResponse(f"{line}\n", status, headers=headers)(scope, receive, send)

    @property
    def hosts(self) -> tuple[str, str]:
        return f"127.0.0.1:{self.port}", f"localhost:{self.port}"

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the line with which a request is refused; None if it may pass."""
        headers: dict[str, str] = {}
        for name, value in scope["headers"]:
            headers[name.decode("latin-1")] = value.decode("latin-1")
        if headers.get("host") not in self.hosts:
            return 421, "wrong Host: use the address that circuits explore printed"
        given = scope["path"].split("/")[1]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return 404, "wrong address: use the one that circuits explore printed"
        origin, writes = headers.get("origin"), scope["method"] not in ("GET", "HEAD")
        if (origin is None and writes) or origin not in (None, *(f"http://{host}" for host in self.hosts)):
            return 403, "wrong Origin: only the page itself may ask"
        length = headers.get("content-length", "0")
        if not length.isdigit() or int(length) > LARGEST_BODY:
            return 413, f"too large: a request has at most {LARGEST_BODY} bytes"
        return None
