"""Every kind of result has a figure, a page, a diagram and files of them, and shows itself in a notebook."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import graphviz
import pytest
from conftest import PROMPT
from matplotlib.figure import Figure
from test_render_figures import assert_that_no_text_is_cut_or_overlaps

import circuits
from circuits.errors import PromptError
from circuits.links import Pictured
from circuits.models.model import Model

SWAPS: tuple[dict[str, str], ...] = tuple({"large": other} for other in ("hot", "rich", "old", "wet"))
ONE_PANEL = ("mapping", "family", "comparison", "ranking", "sweep", "mean", "stability")
KINDS = (*ONE_PANEL, "circuit", "traced", "tasks", "why", "wiring")


@pytest.fixture(scope="module")
def results(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """One of each, measured on a random model where that will do."""
    model, room = models["gpt2"], tmp_path_factory.mktemp("results")
    named: dict[str, Any] = {"answer": "small", "foil": "cold"}
    asked = {"swap": SWAPS[0], **named}
    traced, other = (circuits.trace(model, PROMPT, key="large", swap=swap, **named) for swap in SWAPS[:2])
    both = circuits.load("mini"), circuits.load("mini-sparse")  # a task takes a model that can do it
    pairs = [circuits.to_pair(model, PROMPT, swap=swap, **named) for swap in SWAPS]
    lines = [{"prompt": PROMPT, "key": 5, **asked, "swap": swap} for swap in SWAPS]
    (room / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    swept = circuits.sweep(model, room / "in.jsonl", room / "out")
    return {
        "circuit": circuits.circuit(model, PROMPT, **asked),
        "traced": traced,
        "mapping": traced.mapping(),
        "family": circuits.trace_family(model, pairs, key=5),
        "comparison": circuits.compare(traced, other),
        "ranking": circuits.rank(both[0], "opposites", count=2),
        "tasks": circuits.compare(*both, task="opposites", count=2, units=("heads",)),
        "sweep": swept,
        "mean": swept.mean(),
        "why": circuits.why(traced, traced.mapping().heads[0].head, model=model),
        "wiring": circuits.wiring(model, PROMPT, least=0.2, most=6, **asked),
        "stability": circuits.stability(model, PROMPT, key="large", n=3, **asked),
    }


def test_no_kind_of_result_is_without_pictures(results: dict[str, Any]) -> None:
    kinds = {type(result).__name__ for result in results.values()}
    assert set(results) == set(KINDS) and kinds == {kind.__name__ for kind in Pictured.__subclasses__()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_result_has_a_figure_a_page_a_diagram_and_files(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    result = results[kind]
    assert isinstance(result.figure(), Figure) and isinstance(result.to_dot(), graphviz.Digraph)
    assert result.page().startswith("<!doctype html>") and "<svg" in result._repr_html_()
    for ending in (".svg", ".html", ".dot"):
        first, second = (result.save(tmp_path / f"{name}{ending}") for name in ("first", "second"))
        assert first.read_bytes() == second.read_bytes() != b""
    assert "<text" in (tmp_path / "first.svg").read_text()  # text stays text
    for ending, start in ((".png", b"\x89PNG"), (".pdf", b"%PDF")):  # as files they are drawn like an SVG
        assert result.save(tmp_path / f"first{ending}").read_bytes().startswith(start)


@pytest.mark.parametrize("kind", KINDS)
def test_no_text_of_a_figure_is_cut_or_overlaps_another(kind: str, results: dict[str, Any]) -> None:
    figure = results[kind].figure()
    figure.draw_without_rendering()
    assert_that_no_text_is_cut_or_overlaps(figure)


@pytest.mark.parametrize("kind", KINDS)
def test_a_single_panel_is_drawn_on_axes_that_are_given_and_several_are_refused(
    kind: str, results: dict[str, Any]
) -> None:
    axes = Figure().add_subplot()
    if kind in ONE_PANEL:
        assert results[kind].figure(ax=axes) is axes.get_figure() and axes.lines
    else:
        with pytest.raises(PromptError, match="more than one panel"):
            results[kind].figure(ax=axes)


def test_heads_stand_in_a_diagram_with_what_they_do(results: dict[str, Any]) -> None:
    family = results["family"]
    source = family.to_dot().source
    for head, effect in family.heads[:5]:
        assert str(head) in source and f"{effect.mean:z.2f}" in source
