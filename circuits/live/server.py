"""The server of the live page: the page itself, questions in, events out, and a guard at the door.

1. Questions come as JSON and are answered with a job's name; the events of that job are streamed as they
   happen. No file of this machine is served: the page is made from the package, all else from memory.
2. The path begins with a random token, so that no other page or user of the machine can guess it.
3. `Host` must be this server's (no other name that points at this machine), and `Origin`, which browsers send
   with every request that another page makes, must be its own. A request that changes something must have
   one. A refusal is one line.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from circuits.errors import CircuitsError, EdgeError
from circuits.live import answers
from circuits.live.answers import (
    LARGEST_BODY,
    Answer,
    Asking,
    Explaining,
    Malformed,
    Naming,
    Proposing,
    Reading,
    Shelf,
    parse,
)
from circuits.live.desk import Desk, Job
from circuits.show.page import fill_page
from circuits.tracing import SHARE

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}


@dataclass(frozen=True, slots=True)
class Guard:
    """Passes on to `app` only what this server's own page sends."""

    app: ASGIApp
    token: str
    port: int

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
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
        headers = Headers(scope=scope)
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


@dataclass(frozen=True, slots=True)
class Site:
    """What each path of the server answers, and from what."""

    shelf: Shelf
    desk: Desk
    folder: Path  # where answers are saved

    async def page(self, request: Request) -> Response:
        data = {"circuits": [], "share": SHARE, "models": self.shelf.names, "model": self.shelf.first.name}
        return HTMLResponse(fill_page(data, "Explore", live=True), headers=HEADERS)

    async def tokens(self, request: Request) -> Any:
        reading = parse(Reading, await _body(request))
        return await run_in_threadpool(answers.read_tokens, self.shelf, reading)

    async def next(self, request: Request) -> Any:
        reading = parse(Reading, await _body(request))
        return self._take("next words", partial(answers.say_next, self.shelf, reading), quick=True)

    async def propose(self, request: Request) -> Any:
        proposing = parse(Proposing, await _body(request))
        return self._take("other words", partial(answers.say_proposals, self.shelf, proposing), quick=True)

    async def ask(self, request: Request) -> Any:
        question = parse(Asking, await _body(request))
        self.shelf.checked(question.model)
        return self._take(question.prompt, partial(answers.measure, self.shelf, question))

    async def why(self, request: Request) -> Any:
        question = parse(Explaining, await _body(request))
        work = partial(answers.explain, self.shelf, self._answer(question.job), question)
        return self._take(f"why {question.head}", work, quick=True)

    async def cancel(self, request: Request) -> Any:
        self.desk.cancel(parse(Naming, await _body(request)).job)
        return {}

    async def save(self, request: Request) -> Any:
        answer = self._answer(parse(Naming, await _body(request)).job)
        folder = await run_in_threadpool(answers.save, answer, self.folder)
        return {"folder": str(folder)}

    async def history(self, request: Request) -> Any:
        return [answers.packed(job.answer, job.id) for job in self.desk.answered()]

    async def events(self, request: Request) -> Response:
        job = self.desk.find(request.path_params["job"])
        return EventSourceResponse(_events(job), headers=HEADERS, ping=15)

    def _take(self, title: str, work: Callable[[Job], Any], *, quick: bool = False) -> dict[str, str]:
        return {"job": self.desk.take(Job(title, work, quick=quick)).id}

    def _answer(self, name: str) -> Answer:
        answer = self.desk.find(name).answer
        if not isinstance(answer, Answer):
            raise EdgeError("this question has no answer yet; wait for it, or ask it again")
        return answer


def to_app(site: Site, *, token: str, port: int) -> Guard:
    """The whole server, behind its guard."""
    routes = [Route("/{token}/", site.page), Route("/{token}/jobs/{job}", _in_one_line(site.events))]
    routes.append(Route("/{token}/history", _in_one_line(site.history)))
    for name in ("tokens", "next", "propose", "ask", "why", "cancel", "save"):
        routes.append(Route(f"/{{token}}/{name}", _in_one_line(getattr(site, name)), methods=["POST"]))
    refusals = {404: _refusal, 405: _refusal, 500: _refusal}
    return Guard(Starlette(routes=routes, exception_handlers=refusals), token, port)


def _in_one_line(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """An error that the user can mend is an answer of one line, unless the request itself was malformed."""

    async def answered(request: Request) -> Response:
        try:
            value = await answer(request)
        except CircuitsError as why:
            status = 400 if isinstance(why, Malformed) else 200
            return JSONResponse({"error": str(why)}, status, headers=HEADERS)
        return value if isinstance(value, Response) else JSONResponse(value, headers=HEADERS)

    return answered


async def _refusal(request: Request, why: Exception) -> Response:
    lines = {404: "nothing is here", 405: "this path does not take that method"}
    status = getattr(why, "status_code", 500)
    line = lines.get(status, "this request broke off; please report it")
    return PlainTextResponse(f"{line}\n", status, headers=HEADERS)


async def _body(request: Request) -> bytes:
    """The body, read no further than the largest that is allowed."""
    read = b""
    async for part in request.stream():
        read += part
        if len(read) > LARGEST_BODY:
            raise Malformed(f"too large: a request has at most {LARGEST_BODY} bytes")
    return read


async def _events(job: Job) -> AsyncIterator[dict[str, str]]:
    """Every event of a job, past and future, up to the last."""
    loop, change = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(change.set)

    job.listeners.append(wake)
    try:
        sent = 0
        while True:
            change.clear()
            while sent < len(job.events):
                name, value = job.events[sent]
                sent += 1
                yield {"event": name, "data": json.dumps(value)}
            if job.over and sent == len(job.events):
                return
            await change.wait()
    finally:
        job.listeners.remove(wake)
