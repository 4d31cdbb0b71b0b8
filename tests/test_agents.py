"""`circuits mcp`: an agent's own client lists the tools, asks, cancels, and is refused in one line."""

from __future__ import annotations

import base64
import os
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from mcp import Client, StdioServerParameters, stdio_client
from mcp.types import CallToolResult

import circuits
from circuits.errors import FileError, ModelError
from circuits.mcp.folder import GivenFolder
from circuits.mcp.server import AgentServer

ROOT = Path(__file__).parents[1]
TOOLS = ["load", "tokens", "trace", "circuit", "why", "wiring", "patch", "rank"]
TOOLS += ["verify", "render"]
PROMPT = 'The opposite of "large" is "'
ASKED = {"prompt": PROMPT, "swap": {"large": "hot"}}
NAMED = {
    **ASKED,
    "model": "tiny",
    "answer": "small",
    "foil": "cold",
}  # a random model says anything
ANSWER = ["verdict", "reasons", "withheld", "controls", "does_not_show", "result", "numbers"]


@pytest.fixture
def folder(tmp_path: Path, directories: dict[str, Path]) -> Path:
    """A folder that holds one small random model."""
    own = tmp_path / "given"
    own.mkdir()
    for file in directories["gpt2"].iterdir():
        (own / "tiny").mkdir(exist_ok=True)
        (own / "tiny" / file.name).write_bytes(file.read_bytes())
    return own


def in_memory(folder: Path, ask: Callable[[Client], Awaitable[Any]]) -> Any:
    """What a client asks of a server in this process."""

    async def run() -> Any:
        agent = AgentServer(GivenFolder.of(folder))
        async with Client(agent.to_server()) as client:
            answer = await ask(client)
        agent.jobs.stop(patience=1.0)
        return answer

    return anyio.run(run)


def over_stdio(folder: Path, ask: Callable[[Client], Awaitable[Any]]) -> Any:
    """What a client asks of a server in a process of its own."""

    async def run() -> Any:
        command = ["-m", "circuits", "mcp", "--folder", str(folder)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        server = StdioServerParameters(
            command=sys.executable, args=command, env=environment, cwd=folder
        )
        async with Client(stdio_client(server)) as client:
            return await ask(client)

    return anyio.run(run)


def said(result: CallToolResult) -> str:
    """The one text of a result."""
    (text,) = [each.text for each in result.content if each.type == "text"]
    return text


def answered(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, said(result)
    assert result.structured_content is not None
    return result.structured_content


def refused(result: CallToolResult) -> str:
    """The line of a refusal."""
    assert result.is_error and result.structured_content is None
    (line,) = said(result).splitlines()
    return line


# The protocol


async def list_tools_and_call_them_wrongly(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert [tool.name for tool in tools] == TOOLS
    for tool in tools:
        fields = tool.input_schema["properties"]
        assert all(field.get("description") for field in fields.values()), tool.name
        assert tool.description and list((tool.output_schema or {})["properties"]) == ANSWER
    bad_calls: list[tuple[str, dict[str, Any], str]] = [
        ("trace", {"prompt": 3, "key": 1}, "prompt"),
        ("trace", {"prompt": PROMPT}, "key"),
        ("trace", {**ASKED, "key": 1, "layers": 2}, "layers"),
        ("patch", {**ASKED, "sites": "neurons"}, "sites"),
        ("train", {}, "no tool 'train'"),
    ]
    for tool, arguments, wrong in bad_calls:
        assert wrong in refused(await client.call_tool(tool, arguments))


def test_tools_are_listed_with_types_and_bad_calls_are_refused_in_one_line(
    tmp_path: Path,
) -> None:
    in_memory(tmp_path, list_tools_and_call_them_wrongly)


@pytest.mark.long
def test_every_answer_has_a_verdict_controls_and_what_it_does_not_show(folder: Path) -> None:
    async def ask(client: Client) -> dict[str, dict[str, Any]]:
        answers = {}
        for tool, arguments in {
            "load": {"model": "tiny"},
            "tokens": {"model": "tiny", "prompt": PROMPT},
            "trace": {**NAMED, "key": "large"},
            "circuit": NAMED,
            "why": {"result": "trace", "head": "L1H2"},
            "patch": NAMED,
            "verify": {"result": "trace"},
            "render": {"result": "patch"},
        }.items():
            answers[tool] = answered(await client.call_tool(tool, arguments))
        return answers

    answers = in_memory(folder, ask)
    assert answers["tokens"]["numbers"]["tokens"][5] == "large"
    model = circuits.load(folder / "tiny")
    by_hand = circuits.trace(
        model, PROMPT, key="large", swap={"large": "hot"}, answer="small", foil="cold"
    )
    assert circuits.open_result(folder / "trace").mappings == by_hand.mappings
    total = answers["trace"]["numbers"]["mappings"][0]["total"]
    assert total == pytest.approx(by_hand.mapping().total)
    assert answers["verify"]["numbers"]["holds"]
    for tool in ("trace", "circuit", "why", "patch"):
        assert by_hand.question is not None
        assert answers[tool]["verdict"] == by_hand.question.verdict, tool
        assert answers[tool]["controls"] and answers[tool]["result"] == tool
    assert all(answer["does_not_show"] for answer in answers.values())


def test_results_of_one_tool_get_names_of_their_own(folder: Path) -> None:
    async def ask(client: Client) -> list[str]:
        calls = [await client.call_tool("patch", NAMED) for _ in range(2)]
        return [answered(call)["result"] for call in calls]

    assert in_memory(folder, ask) == ["patch", "patch-2"]


def test_a_call_that_is_cancelled_ends_and_the_next_one_is_answered(folder: Path) -> None:
    reports: list[str] = []

    async def ask(client: Client) -> None:
        with anyio.CancelScope() as scope:

            async def heard(progress: float, total: float | None, message: str | None) -> None:
                reports.append(message or "")
                scope.cancel()

            await client.call_tool(
                "wiring", {**ASKED, "model": "tiny"}, progress_callback=heard
            )
            pytest.fail("it was not cancelled")
        answered(await client.call_tool("tokens", {"model": "tiny", "prompt": PROMPT}))

    in_memory(folder, ask)
    assert reports and not (folder / "wiring").exists()


def test_an_error_of_a_tool_is_one_line_that_says_what_to_do(folder: Path) -> None:
    async def ask(client: Client) -> None:
        called = client.call_tool
        assert "larg" in refused(await called("trace", {**NAMED, "key": "larg"}))
        missing = refused(await called("why", {"result": "tiny", "head": "L99H1"}))
        assert "circuit.json" in missing
        assert "mini" in refused(await called("trace", {**ASKED, "model": "minni", "key": 5}))
        assert "nothing" in refused(await called("render", {"result": "nothing"}))
        ignored = {"prompt": "opposites", "swap": {"large": "hot"}}
        assert "swap and counterfactual" in refused(await called("wiring", ignored))

    in_memory(folder, ask)


# The folder


@pytest.mark.parametrize(
    "name", ["../other", "/etc/passwd", "tiny/../../other", "link", "a\0b"]
)
def test_a_path_outside_the_given_folder_is_refused(folder: Path, name: str) -> None:
    (folder.parent / "other").mkdir()
    (folder / "link").symlink_to(folder.parent / "other")

    async def ask(client: Client) -> list[str]:
        calls = [("render", {"result": name}), ("verify", {"result": name})]
        calls += [("load", {"model": name}), ("rank", {"task": f"{name}.jsonl"})]
        return [refused(await client.call_tool(*call)) for call in calls]

    for line in in_memory(folder, ask)[:3]:
        assert any(word in line for word in ("outside", "not a model", "null")), line


def test_a_file_that_a_link_brings_in_is_refused(folder: Path) -> None:
    (folder.parent / "config.json").write_text("{}")
    (folder / "tiny" / "config.json").unlink()
    (folder / "tiny" / "config.json").symlink_to(folder.parent / "config.json")
    with pytest.raises(FileError, match="outside"):
        GivenFolder.of(folder).model_name("tiny")


def test_an_adapter_whose_base_lies_outside_is_refused(folder: Path) -> None:
    (folder.parent / "base").mkdir()
    (folder / "adapter").mkdir()
    config = '{"peft_type": "LORA", "base_model_name_or_path": "%s"}'
    written = config % (folder.parent / "base")
    (folder / "adapter" / "adapter_config.json").write_text(written)
    with pytest.raises(FileError, match="outside"):
        GivenFolder.of(folder).model_name("adapter")


def test_a_folder_beside_the_server_is_no_model_though_load_would_find_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`circuits.load` takes paths relative to where it runs; an agent has the given folder alone."""
    (folder.parent / "elsewhere").mkdir()
    monkeypatch.chdir(folder.parent)
    given = GivenFolder.of(folder)
    with pytest.raises(ModelError, match="inside the given folder"):
        given.model_name("elsewhere")
    assert given.model_name("mini") == "mini"
    assert given.model_name("somebody/model") == "somebody/model"
    assert given.model_name("tiny") == str(folder.resolve() / "tiny")


def test_a_result_that_names_a_model_elsewhere_is_not_measured_on_it(folder: Path) -> None:
    """The file says on which model it was measured; that name is checked as the agent's own would be."""

    async def ask(client: Client) -> None:
        answered(await client.call_tool("trace", {**NAMED, "key": "large"}))
        file = folder / "trace" / "circuit.json"
        edited = file.read_text().replace(str(folder / "tiny"), str(folder.parent / "other"))
        file.write_text(edited)
        for tool in ("verify", "why"):
            arguments = {"result": "trace"} | ({"head": "L1H1"} if tool == "why" else {})
            assert "inside the given folder" in refused(await client.call_tool(tool, arguments))

    with pytest.warns(UserWarning, match="edited"):
        in_memory(folder, ask)


def test_a_folder_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="make it first"):
        GivenFolder.of(tmp_path / "none")


# The whole way, as an agent goes it


@pytest.mark.long
def test_from_a_prompt_to_a_verified_circuit_over_stdio(tmp_path: Path) -> None:
    reports: list[float] = []

    async def heard(progress: float, total: float | None, message: str | None) -> None:
        reports.append(progress)

    async def ask(client: Client) -> None:
        await list_tools_and_call_them_wrongly(client)
        call = client.call_tool
        traced = answered(
            await call("trace", {**ASKED, "key": "large"}, progress_callback=heard)
        )
        assert traced["verdict"] == "clear"
        (mapping,) = traced["numbers"]["mappings"]
        assert mapping["total"] == pytest.approx(1, abs=0.01)
        assert reports == sorted(set(reports)) and len(reports) > 2
        head = next(iter(mapping["carriers"]))
        why = answered(await call("why", {"result": traced["result"], "head": head}))
        value = why["numbers"]["sides"]["value"]
        assert value["effect"] == pytest.approx(why["numbers"]["effect"], abs=0.01)
        found = answered(await call("wiring", {**ASKED}))
        assert found["numbers"]["enough"]
        ranked = answered(await call("rank", {"count": 2}))
        assert ranked["numbers"]["pairs"] == 2
        for name in (traced["result"], why["result"], found["result"]):
            assert answered(await call("verify", {"result": name}))["numbers"]["holds"]
        drawn = await call("render", {"result": traced["result"]})
        (picture,) = [each.data for each in drawn.content if each.type == "image"]
        bits = base64.b64decode(picture)
        assert (
            bits.startswith(b"\x89PNG")
            and bits == (tmp_path / "trace/circuit.png").read_bytes()
        )
        with anyio.move_on_after(2) as scope:
            await call("wiring", {"prompt": "opposites"})
        assert scope.cancelled_caught
        assert "outside" in refused(await call("verify", {"result": "../away"}))
        answered(await call("tokens", {"prompt": PROMPT}))

    over_stdio(tmp_path, ask)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "rank",
        "trace",
        "why",
        "wiring",
    ]
