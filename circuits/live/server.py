"""The server of the live page: the page itself, requests in, events out, and a guard in front.

1. Requests are JSON. What needs the model becomes a job: the answer is the job's id, and the job's events are
   streamed as they happen. No file of this machine is served: the page is made from the package, all else
   from memory.
2. The path begins with a random token, so that no other page or user of the machine can guess it.
3. `Host` must be this server's own, so that no other name that points at this machine works. `Origin`, which
   browsers send with every request that another page makes, must be its own; a request that changes something
   must have one. A refusal is one line.
"""

from __future__ import annotations

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
from circuits.live.answers import (
    Answer,
    Models,
    explain,
    measure,
    measure_without,
    read_tokens,
    send_next_words,
    send_proposals,
)
from circuits.live.door import Door
from circuits.live.jobs import Job, JobQueue, changes
from circuits.live.requests import (
    LARGEST_BODY,
    JobRequest,
    MalformedRequest,
    PromptRequest,
    ProposalRequest,
    T,
    TraceRequest,
    WhyRequest,
    parse,
)
from circuits.show.page import fill_page
from circuits.tracing import SHARE
from circuits.tracing.records import Circuit

HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cross-Origin-Resource-Policy": "same-origin",
}
TOO_LARGE = f"too large: a request has at most {LARGEST_BODY} bytes"


@dataclass(frozen=True, slots=True)
class Guard:
    """Passes on to `app` only what this server's own page sends."""

    app: ASGIApp
    token: str
    port: int
    door: Door

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        refused = self._refuse(scope)
        if refused is None:
            self.door.let_in(scope["client"])
            await self.app(scope, receive, send)
            return
        status, line = refused
        response = PlainTextResponse(
            f"{line}\n", status, headers=HEADERS | {"Connection": "close"}
        )
        await response(scope, receive, send)

    def _refuse(self, scope: Scope) -> tuple[int, str] | None:
        """The status and the line with which a request is refused; None if it may pass."""
        headers = Headers(scope=scope)
        hosts = (f"127.0.0.1:{self.port}", f"localhost:{self.port}")
        if headers.get("host") not in hosts:
            return 421, "wrong Host: use the address that circuits explore printed"
        # `*`, nothing and host:port are paths, too: those of OPTIONS, GET ? and CONNECT.
        _, _, rest = scope["path"].partition("/")
        given = rest.partition("/")[0]
        if not secrets.compare_digest(given.encode(), self.token.encode()):
            return 404, "wrong address: use the one that circuits explore printed"
        origin = headers.get("origin")
        may_lack_origin = scope["method"] in ("GET", "HEAD")
        own_origins = [f"http://{host}" for host in hosts]
        if origin not in own_origins and not (origin is None and may_lack_origin):
            return 403, "wrong Origin: only the page itself may ask"
        length = headers.get("content-length", "0")
        is_number = length.isascii() and length.isdigit() and len(length) < 10
        if not is_number or int(length) > LARGEST_BODY:
            return 413, TOO_LARGE
        return None


@dataclass(frozen=True, slots=True)
class Endpoints:
    """What each path of the server answers."""

    models: Models
    jobs: JobQueue
    folder: Path  # where answers are saved

    def page(self, request: Request) -> Response:
        data = {
            "circuits": [],
            "share": SHARE,
            "models": self.models.names,
            "model": self.models.first.name,
        }
        return HTMLResponse(fill_page(data, "Explore", live=True), headers=HEADERS)

    def history(self, request: Request) -> Response:
        answers = [job.answer.to_page_data(job.id) for job in self.jobs.answered()]
        return JSONResponse(answers, headers=HEADERS)

    async def events(self, request: Request) -> Response:
        try:
            job = self.jobs.find(request.path_params["job"])
        except EdgeError as why:
            return _error(why)
        return EventSourceResponse(_events(job), headers=HEADERS, ping=15)

    def tokens(self, sent: PromptRequest) -> dict[str, Any]:
        return read_tokens(self.models, sent)

    def next(self, sent: PromptRequest) -> dict[str, Any]:
        return self._start(partial(send_next_words, self.models, sent), quick=True)

    def propose(self, sent: ProposalRequest) -> dict[str, Any]:
        return self._start(partial(send_proposals, self.models, sent), quick=True)

    def ask(self, sent: TraceRequest) -> dict[str, Any]:
        self.models.check(sent.model)
        if not sent.without:
            return self._start(partial(measure, self.models, sent))
        known = self._with_all_heads(sent)
        return self._start(partial(measure_without, self.models, sent, known))

    def why(self, sent: WhyRequest) -> dict[str, Any]:
        return self._start(
            partial(explain, self.models, self._answer(sent.job), sent), quick=True
        )

    def cancel(self, sent: JobRequest) -> dict[str, Any]:
        self.jobs.cancel(sent.job)
        return {}

    def save(self, sent: JobRequest) -> dict[str, Any]:
        return {"folder": str(self._answer(sent.job).save(self.folder))}

    def _start(self, work: Callable[[Job], Any], *, quick: bool = False) -> dict[str, Any]:
        return {"job": self.jobs.add(Job(work, quick=quick)).id}

    def _with_all_heads(self, question: TraceRequest) -> Circuit | None:
        """The answer to the same question with all heads, if it was asked before."""
        wanted = question.model_copy(update={"without": ()})
        for job in self.jobs.answered():
            if isinstance(job.answer, Answer) and job.answer.question == wanted:
                return job.answer.circuit
        return None

    def _answer(self, job_id: str) -> Answer:
        answer = self.jobs.find(job_id).answer
        if not isinstance(answer, Answer):
            raise EdgeError("this question has no answer yet; wait for it, or ask it again")
        return answer


def to_app(endpoints: Endpoints, *, token: str, port: int, door: Door) -> Guard:
    """The whole server, behind its guard, which tells the door who has shown the token."""
    routes = [
        Route("/{token}/", endpoints.page),
        Route("/{token}/history", endpoints.history),
        Route("/{token}/jobs/{job}", endpoints.events),
        _post("tokens", PromptRequest, endpoints.tokens),
        _post("next", PromptRequest, endpoints.next),
        _post("propose", ProposalRequest, endpoints.propose),
        _post("ask", TraceRequest, endpoints.ask),
        _post("why", WhyRequest, endpoints.why),
        _post("cancel", JobRequest, endpoints.cancel),
        _post("save", JobRequest, endpoints.save),
    ]
    refusals = {404: _refusal, 405: _refusal, 500: _refusal}
    app = Starlette(routes=routes, exception_handlers=refusals)
    return Guard(app, token, port, door)


def _post(path: str, kind: type[T], endpoint: Callable[[T], dict[str, Any]]) -> Route:
    """A route that reads a request of this kind from the body and sends what the endpoint gives as JSON."""

    async def respond(request: Request) -> Response:
        try:
            sent = parse(kind, await _body(request))
            value = await run_in_threadpool(endpoint, sent)
        except CircuitsError as why:
            return _error(why)
        return JSONResponse(value, headers=HEADERS)

    return Route(f"/{{token}}/{path}", respond, methods=["POST"])


def _error(why: CircuitsError) -> Response:
    """The line of an error. Only a malformed request has a bad status, which browsers log as a fault."""
    status = 400 if isinstance(why, MalformedRequest) else 200
    return JSONResponse({"error": str(why)}, status, headers=HEADERS)


async def _refusal(request: Request, why: Exception) -> Response:
    lines = {404: "nothing is here", 405: "this path does not take that method"}
    status = getattr(why, "status_code", 500)
    line = lines.get(status, "this request broke off; please report it")
    return PlainTextResponse(f"{line}\n", status, headers=HEADERS)


async def _body(request: Request) -> bytes:
    """The body, read no further than the largest that is allowed."""
    body = b""
    async for part in request.stream():
        body += part
        if len(body) > LARGEST_BODY:
            raise MalformedRequest(TOO_LARGE)
    return body


async def _events(job: Job) -> AsyncIterator[dict[str, str]]:
    """Every event of a job, past and future, up to the last."""
    sent = 0
    with changes(job) as changed:
        while True:
            changed.clear()
            while sent < len(job.events):
                name, value = job.events[sent]
                sent += 1
                yield {"event": name, "data": json.dumps(value)}
            if job.is_over and sent == len(job.events):
                return
            await changed.wait()
