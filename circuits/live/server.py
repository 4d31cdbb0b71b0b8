"""The server of the live page: the page itself, questions in, events out.

Questions come as JSON and get a job's name back; what is measured is streamed as server-sent events of that
job. No file of this machine is served: the page is made from the package, everything else from memory.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from sse_starlette import EventSourceResponse
from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from circuits.errors import CircuitsError, EdgeError
from circuits.live import answers
from circuits.live.answers import Answer, Shelf
from circuits.live.desk import Desk, Job
from circuits.live.guard import HEADERS, Guard
from circuits.live.requests import (
    LARGEST_BODY,
    Asking,
    Explaining,
    Malformed,
    Naming,
    Proposing,
    Reading,
    parse,
)
from circuits.show.page import fill_page
from circuits.tracing import SHARE

TITLE = "Explore"


@dataclass(frozen=True, slots=True)
class Site:
    """What the server's answers are made from."""

    shelf: Shelf
    desk: Desk
    folder: Path  # where answers are saved

    async def page(self, request: Request) -> Response:
        data = {"circuits": [], "share": SHARE, "models": self.shelf.names, "model": self.shelf.first.name}
        return HTMLResponse(fill_page(data, TITLE, live=True), headers=HEADERS)

    async def tokens(self, request: Request) -> Any:
        asked = parse(Reading, await _body(request))
        return await run_in_threadpool(answers.read_tokens, self.shelf, asked)

    async def next(self, request: Request) -> Any:
        asked = parse(Reading, await _body(request))
        return self._take("next words", partial(answers.say_next, self.shelf, asked), quick=True)

    async def propose(self, request: Request) -> Any:
        asked = parse(Proposing, await _body(request))
        return self._take("other words", partial(answers.say_proposals, self.shelf, asked), quick=True)

    async def ask(self, request: Request) -> Any:
        asked = parse(Asking, await _body(request))
        self.shelf.checked(asked.model)
        return self._take(asked.prompt, partial(answers.measure, self.shelf, asked))

    async def why(self, request: Request) -> Any:
        asked = parse(Explaining, await _body(request))
        found = self._answer(asked.job)
        work = partial(answers.explain, self.shelf, found, asked)
        return self._take(f"why {asked.head}", work, quick=True)

    async def cancel(self, request: Request) -> Any:
        self.desk.cancel(parse(Naming, await _body(request)).job)
        return {}

    async def save(self, request: Request) -> Any:
        found = self._answer(parse(Naming, await _body(request)).job)
        folder = await run_in_threadpool(answers.save, found, self.folder)
        return {"folder": str(folder)}

    async def history(self, request: Request) -> Any:
        return [answers.packed(job.answer, job.id) for job in self.desk.answered()]

    async def events(self, request: Request) -> Response:
        job = self.desk.find(request.path_params["job"])
        return EventSourceResponse(_events(job), headers=HEADERS, ping=15)

    def _take(self, title: str, work: Callable[[Job], Any], *, quick: bool = False) -> dict[str, str]:
        return {"job": self.desk.take(Job(title, work, quick=quick)).id}

    def _answer(self, name: str) -> Answer:
        found = self.desk.find(name).answer
        if not isinstance(found, Answer):
            raise EdgeError("this question has no answer yet; wait for it, or ask it again")
        return found


def to_app(site: Site, *, token: str, port: int) -> Guard:
    """The whole server, behind its guard."""
    routes = [Route("/{token}/", site.page), Route("/{token}/jobs/{job}", _in_one_line(site.events))]
    routes.append(Route("/{token}/history", _in_one_line(site.history)))
    for name in ("tokens", "next", "propose", "ask", "why", "cancel", "save"):
        routes.append(Route(f"/{{token}}/{name}", _in_one_line(getattr(site, name)), methods=["POST"]))
    refusals = {404: _refusal, 405: _refusal, 500: _refusal}
    return Guard(Starlette(routes=routes, exception_handlers=refusals), token, port)


def _in_one_line(answer: Callable[[Request], Any]) -> Callable[[Request], Any]:
    """Whatever is the user's to mend is one line of the page: an answer, unless the request was none."""

    async def answered(request: Request) -> Response:
        try:
            value = await answer(request)
        except CircuitsError as why:
            status = 400 if isinstance(why, Malformed) else 200
            return JSONResponse({"error": str(why)}, status, headers=HEADERS)
        return value if isinstance(value, Response) else JSONResponse(value, headers=HEADERS)

    return answered


async def _refusal(request: Request, why: Exception) -> Response:
    lines = {404: "nothing is here", 405: "not to be asked in this way"}
    status = getattr(why, "status_code", 500)
    line = lines.get(status, "this request broke off; please report it")
    return PlainTextResponse(f"{line}\n", status, headers=HEADERS)


async def _body(request: Request) -> bytes:
    """The body, read no further than it may be long."""
    read = b""
    async for part in request.stream():
        read += part
        if len(read) > LARGEST_BODY:
            raise Malformed(f"too large: a request has at most {LARGEST_BODY} bytes")
    return read


async def _events(job: Job) -> AsyncIterator[dict[str, str]]:
    """Everything that was and will be said of a job, up to its last word."""
    loop, change = asyncio.get_running_loop(), asyncio.Event()

    def wake() -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(change.set)

    job.listeners.append(wake)
    try:
        told = 0
        while True:
            change.clear()
            while told < len(job.events):
                name, value = job.events[told]
                told += 1
                yield {"event": name, "data": json.dumps(value)}
            if job.over and told == len(job.events):
                return
            await change.wait()
    finally:
        job.listeners.remove(wake)
