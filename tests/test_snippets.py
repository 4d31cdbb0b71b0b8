"""Every Python snippet of the README and the docs runs, page by page, and prints what the page shows."""

from __future__ import annotations

import contextlib
import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
from click.testing import CliRunner

import circuits
from circuits.cli import main as commands
from circuits.models.model import Model

ROOT = Path(__file__).parents[1]
MARKS = {
    "README.md": pytest.mark.long,
    "docs/index.md": pytest.mark.long,
    "docs/tour.md": pytest.mark.long,
    "docs/questions.md": pytest.mark.long,
    "docs/instruments.md": pytest.mark.studies,
    "docs/transformerlens.md": pytest.mark.studies,
    "docs/sweeps.md": pytest.mark.long,
    "docs/explore.md": pytest.mark.long,
    "docs/twins.md": pytest.mark.long,
    "docs/models.md": pytest.mark.long,
    "docs/why.md": pytest.mark.real,  # these two are about stories15m
    "docs/circuits.md": pytest.mark.real,
}
# docs/api.md shows what its examples begin with, which tests/test_examples.py runs.
ELSEWHERE = {"docs/api.md"}
LEFT_OUT = "…"  # stands for lines that a page leaves out
_FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_OUTPUT = re.compile(r"^( *)```text\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)


def blocks(page: Path, language: str) -> list[str]:
    """What stands in the fenced blocks of a page that name this language."""
    found = _FENCED.findall(page.read_text())
    return [dedent(body) for _, named, body in found if named == language]


def snippets(page: Path) -> Iterator[tuple[str, list[str]]]:
    """Each Python snippet of a page, with the output that follows it before any other code or heading."""
    text = page.read_text()
    for block in _FENCED.finditer(text):
        if block[2] == "python":
            output = _OUTPUT.search(text, block.end())
            between = text[block.end() : output.start()] if output else "#"
            follows = output is not None and not re.search(r"```|^#", between, re.MULTILINE)
            said = dedent(output[2]).splitlines() if output and follows else []
            yield dedent(block[3]), said


def check_printed(printed: str, said: list[str]) -> None:
    """What is shown was printed, line by line; only where a line of `…` stands may lines be missing."""
    lines = [line.rstrip() for line in printed.splitlines()]
    shown = [line.rstrip() for line in said]
    if LEFT_OUT not in shown:
        assert lines == shown
        return
    rest = iter(lines)
    for line in shown:
        assert line == LEFT_OUT or line in rest, f"not printed here: {line}"


# What a page takes for granted


def small_questions() -> list[dict[str, Any]]:
    """Questions to a random model, which says anything: answer and foil are named."""
    asked = {"prompt": 'The opposite of "large" is "', "key": "large", "swap": {"large": "hot"}}
    return [{**asked, "answer": "small", "foil": "cold", "kind": "size"}]


def with_a_sweep_as_shown(models: dict[str, Model]) -> dict[str, Any]:
    """The sweep of docs/sweeps.md, whose command prints what the page shows."""
    import duckdb
    import pandas
    import polars
    import pyarrow.dataset

    lines, printed, *_ = blocks(ROOT / "docs" / "sweeps.md", "text")
    Path("prompts.jsonl").write_text(lines)
    arguments = ["sweep", "prompts.jsonl", "--model", "mini", "-o", "out"]
    said = CliRunner().invoke(commands, arguments)
    check_printed(said.stdout, printed.splitlines())
    return {"pandas": pandas, "polars": polars, "duckdb": duckdb, "pyarrow": pyarrow}


def with_a_small_sweep(models: dict[str, Model]) -> dict[str, Any]:
    lines = "".join(json.dumps(line) + "\n" for line in small_questions())
    Path("prompts.jsonl").write_text(lines)
    circuits.sweep(models["gpt2"], "prompts.jsonl", "out")
    return {"model": models["gpt2"], "Path": Path}


def with_a_table_of_edges(models: dict[str, Model]) -> dict[str, Any]:
    from circuits.tasks.edges import write_edges
    from circuits.tasks.task import Item, Task

    text, swap = 'The opposite of "large" is "', {"large": "hot"}
    pair = circuits.to_pair(models["gpt2"], text, swap=swap, answer="small", foil="cold")
    task = Task("by hand", (Item(pair, ()),))
    write_edges(circuits.edge_effects(models["gpt2"], task), Path("edges.parquet"))
    return {}


def with_a_folder(models: dict[str, Model]) -> dict[str, Any]:
    from transformers import AutoModelForCausalLM

    return {
        "AutoModelForCausalLM": AutoModelForCausalLM,
        "name": models["gpt2"].name,
        "tokenizer": models["gpt2"].tokenizer,
    }


PREPARED: dict[str, Callable[[dict[str, Model]], dict[str, Any]]] = {
    "docs/sweeps.md": with_a_sweep_as_shown,
    "docs/explore.md": with_a_small_sweep,
    "docs/twins.md": with_a_table_of_edges,
    "docs/models.md": with_a_folder,
}


# Tests


def test_every_page_with_a_snippet_is_run() -> None:
    pages = [ROOT / "README.md", *(ROOT / "docs").glob("*.md"), *ROOT.glob("c*/README.md")]
    pages += [ROOT / "CONTRIBUTING.md", ROOT / "benchmarks" / "README.md"]
    with_code = {page.relative_to(ROOT).as_posix() for page in pages if blocks(page, "python")}
    assert with_code == set(MARKS) | ELSEWHERE


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=mark) for name, mark in MARKS.items()]
)
def test_every_snippet_prints_what_the_page_shows(
    name: str, models: dict[str, Model], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"circuits": circuits}
    if name in PREPARED:
        names |= PREPARED[name](models)
    for code, said in snippets(ROOT / name):
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(code, names)
        if said:
            check_printed(printed.getvalue(), said)
    if "page" in names:
        names["page"].stop()


def test_a_line_that_is_shown_and_not_printed_is_found() -> None:
    check_printed("one\ntwo\nthree\n", ["one", LEFT_OUT, "three"])
    for said in (["one", "three"], ["three", LEFT_OUT, "one"], ["four", LEFT_OUT]):
        with pytest.raises(AssertionError):
            check_printed("one\ntwo\nthree\n", said)
