"""The server of `circuits mcp`: it lists the tools, runs one call at a time, reports progress and cancels.

1. A call becomes a job of the queue that the live page uses, too. Its progress is sent as it comes.
2. A call that the client cancels ends where the measurement next reports its progress.
3. Whatever goes wrong is one line, in an answer that is marked as an error; the server goes on.
"""

from __future__ import annotations

import base64
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import anyio
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.session import ServerSession
from mcp.server.stdio import stdio_server
from mcp.types import (
    CallToolRequestParams,
    CallToolResult,
    ImageContent,
    ListToolsResult,
    PaginatedRequestParams,
    TextContent,
    Tool,
    ToolAnnotations,
)

from circuits import __version__
from circuits.errors import CircuitsError
from circuits.live.jobs import Job, JobQueue, changes
from circuits.mcp.calls import CALLS, ToolCall, read_call
from circuits.mcp.folder import GivenFolder
from circuits.mcp.reply import Reply, ToolAnswer

if TYPE_CHECKING:
    from circuits.mcp.tools import Tools

INSTRUCTIONS: Final = (
    "Find which attention heads of a transformer carry information from one position to another, and what "
    "circuit they form. Usual order: tokens, trace, why, circuit or wiring, verify, render. A question needs a "
    "counterfactual of as many tokens that changes the answer. Read the verdict before the numbers: if it is "
    "weak or none, change the question. Results are saved in the folder of the server and named in the answer."
)


def tool_list() -> list[Tool]:
    """Every tool with the schemas of its arguments and of its answer."""
    answer = ToolAnswer.model_json_schema()
    tools = []
    for name, call in CALLS.items():
        tools.append(
            Tool(
                name=name,
                description=call.ABOUT,
                input_schema=call.model_json_schema(),
                output_schema=answer,
                annotations=ToolAnnotations(destructive_hint=False),
            )
        )
    return tools


class AgentServer:
    """Answers the requests of one client."""

    def __init__(self, folder: GivenFolder, *, device: str = "cpu") -> None:
        self.folder = folder
        self.device = device
        self.jobs = JobQueue()
        self._tools: Tools | None = None

    def run(self, call: ToolCall, job: Job) -> Reply:
        """Do what a call asks for, in the thread that measures."""
        # Imports the model libraries, which takes seconds: with the first call, not with the start.
        from circuits.mcp.tools import Tools

        if self._tools is None:
            self._tools = Tools(self.folder, device=self.device)
        return self._tools.run(call, job)

    async def list_tools(
        self, ctx: ServerRequestContext[Any], params: PaginatedRequestParams | None
    ) -> ListToolsResult:
        return ListToolsResult(tools=tool_list())

    async def call_tool(
        self, ctx: ServerRequestContext[Any], params: CallToolRequestParams
    ) -> CallToolResult:
        try:
            call = read_call(params.name, params.arguments or {})
            job = self.jobs.add(Job(partial(self.run, call)))
        except CircuitsError as error:
            return _refusal(str(error))
        try:
            await _wait_for(job, ctx.session)
        finally:
            if not job.is_over:  # the client has cancelled the call, or is gone
                self.jobs.cancel(job.id)
        name, value = job.events[-1]
        if name == "done":
            return _to_result(job.answer)
        return _refusal(value.get("error", "cancelled"))

    def to_server(self) -> Server:
        """The server of the SDK that these methods answer for."""
        return Server(
            "circuits",
            version=__version__,
            instructions=INSTRUCTIONS,
            on_list_tools=self.list_tools,
            on_call_tool=self.call_tool,
        )


def serve(folder: GivenFolder, *, device: str = "cpu") -> None:
    """Serve one client over the standard streams, until it closes them."""
    agent = AgentServer(folder, device=device)
    server = agent.to_server()

    async def run() -> None:
        async with stdio_server() as (incoming, outgoing):
            await server.run(incoming, outgoing, server.create_initialization_options())

    try:
        anyio.run(run)
    finally:
        agent.jobs.stop(patience=1.0)


async def _wait_for(job: Job, session: ServerSession) -> None:
    """Wait for the end of a job. Its newest progress is sent whenever there is some."""
    sent = 0
    with changes(job) as changed:
        while not job.is_over:
            changed.clear()
            reports = [value for name, value in list(job.events) if name == "progress"]
            if len(reports) > sent:
                sent = len(reports)
                newest = reports[-1]
                stage = f"{newest['stage']}: {newest['done']} of {newest['total']}"
                # The protocol wants a number that grows; stages begin again at zero.
                await session.report_progress(sent, message=stage)
            elif not job.is_over:
                await changed.wait()


def _to_result(reply: Reply) -> CallToolResult:
    content: list[Any] = [TextContent(text=reply.text)]
    if reply.picture is not None:
        picture = base64.b64encode(reply.picture).decode()
        content.append(ImageContent(data=picture, mime_type="image/png"))
    return CallToolResult(content=content, structured_content=reply.answer.model_dump())


def _refusal(line: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(text=line)], is_error=True)
