"""The door of the live page's server: connections wait there until they show the address's token.

1. A connection that has sent no request with the token after some seconds is dropped: half a request, a header
   that drips in, nothing at all.
2. Only so many may wait. Where one more comes, the one that waits longest is dropped, so that strangers never
   keep out who has the token.
"""

from __future__ import annotations

import asyncio
from typing import Any, Final

from uvicorn.protocols.http.h11_impl import H11Protocol

PATIENCE: Final = 5.0  # seconds that a connection may wait
MOST_WAITING: Final = 64
Client = tuple[str, int] | None  # address and port of the other end


class Door:
    """The connections that have not shown the token yet."""

    def __init__(self, *, patience: float = PATIENCE, most: int = MOST_WAITING) -> None:
        self.patience = patience
        self.most = most
        # By the other end, in the order in which they came.
        self._waiting: dict[Client, asyncio.Transport] = {}

    def enter(self, client: Client, transport: asyncio.Transport) -> None:
        """A connection was made."""
        if len(self._waiting) >= self.most:
            self._drop(next(iter(self._waiting)))
        self._waiting[client] = transport
        loop = asyncio.get_running_loop()
        # By way of `call_soon`: a loop that was itself held up for so long first reads what has arrived.
        loop.call_later(self.patience, loop.call_soon, self._drop_if, client, transport)

    def let_in(self, client: Client) -> None:
        """A request on this connection had the token, or the connection is closed."""
        self._waiting.pop(client, None)

    def _drop_if(self, client: Client, transport: asyncio.Transport) -> None:
        """Drop a connection if it still waits. A later one may come from the same port."""
        if self._waiting.get(client) is transport:
            self._drop(client)

    def _drop(self, client: Client) -> None:
        # Not `close`, which waits until everything is sent, and so for ever where nobody reads.
        self._waiting.pop(client).abort()

    def protocol(self, **options: Any) -> asyncio.Protocol:
        """What uvicorn calls for every connection, with its own options."""
        return DoorProtocol(self, **options)


class DoorProtocol(H11Protocol):
    """HTTP as uvicorn speaks it; the door knows of the connection."""

    def __init__(self, door: Door, **options: Any) -> None:
        super().__init__(**options)
        self.door = door

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.door.enter(self.client, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.door.let_in(self.client)
        super().connection_lost(exc)
