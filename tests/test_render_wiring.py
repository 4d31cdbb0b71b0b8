"""The picture of a wiring: every node and wire is there, nothing overlaps, and the strongest path is right."""

from __future__ import annotations

import re
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import render_samples as samples
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Patch, Polygon
from test_render_figures import assert_that_no_text_is_cut_or_overlaps, text_metrics

from circuits.errors import CircuitsError, PromptError
from circuits.show import draw
from circuits.show.canvas import RED, save_figure
from circuits.show.wiring import headline, strongest_path
from circuits.show.wiring_dot import wiring_dot
from circuits.show.wiring_figure import wiring_figure
from circuits.wires.parts import Node
from circuits.wires.record import Wiring

PLACES = ("P0", "IO", "S1", "P3", "S2", "END")
NAMES = (
    ("embed@4→M0", 0.65),
    ("M0@4→L1H2.query", 0.42),
    ("embed@2→L1H2.key", 0.2),
    ("embed@4→L1H2.query", 0.17),
    ("L1H2@4→M2", 0.08),
    ("L1H2@4→L4H4.value", 0.15),
    ("M2@4→L4H4.value", 0.05),
    ("L4H4@5→L5H1.query", 0.53),
    ("L4H4@5→M4", -0.21),
    ("M4@5→L5H1.query", 0.1),
    ("embed@1→L5H1.value", 0.3),
    ("L5H1@5→logits", 0.72),
    ("L4H4@5→logits", 0.07),
)


@pytest.fixture
def names() -> Wiring:
    return samples.wiring_of(NAMES, PLACES)


def by_gid(figure: Figure) -> dict[str, Patch]:
    return {str(patch.get_gid()): patch for patch in figure.axes[0].patches if patch.get_gid()}


def extent(patch: Patch) -> np.ndarray:
    """Left, low, right, high in points."""
    return np.array(patch.get_path().get_extents().extents)


def boxes_of(figure: Figure, wiring: Wiring) -> dict[str, np.ndarray]:
    patches = by_gid(figure)
    return {str(node): extent(patches[str(node)]) for node in wiring.nodes}


def points_of(patch: Patch) -> np.ndarray:
    """Points along a wire, (point, xy), each less than half a point from the next."""
    (corners,) = patch.get_path().to_polygons(closed_only=False)
    steps = []
    for start, end in pairwise(np.asarray(corners)):
        count = int(np.abs(end - start).max() / 0.4) + 2
        steps.append(np.linspace(start, end, count))
    return np.concatenate(steps)


def said(figure: Figure) -> list[str]:
    return [text.get_text() for text in figure.axes[0].texts]


def assert_that_the_picture_is_whole(wiring: Wiring) -> Figure:
    """Every node and wire is drawn, no wire touches a box of others, no text overlaps a text or a box."""
    figure = wiring_figure(wiring)
    patches = by_gid(figure)
    boxes = boxes_of(figure, wiring)
    for name, (left, low, right, high) in boxes.items():
        for other, (left_too, low_too, right_too, high_too) in boxes.items():
            apart = left >= right_too or right <= left_too or low >= high_too or high <= low_too
            assert name == other or apart, (name, other)
    for each in wiring.wires:
        start = str(Node.written(each.wire))
        ends = [str(end) for end in wiring.readers_of(each.wire)]
        assert ends
        for end in ends:
            wire = patches[f"{each.wire} {end}"]
            assert_that_a_wire_keeps_clear(wire, boxes, start, end)
    assert_that_no_text_is_cut_or_overlaps(figure)
    assert_that_texts_keep_to_their_boxes(figure, boxes)
    return figure


def assert_that_a_wire_keeps_clear(
    wire: Patch, boxes: dict[str, np.ndarray], start: str, end: str
) -> None:
    points = points_of(wire)
    half = wire.get_linewidth() / 2
    assert (np.diff(points[:, 1]) <= 1e-6).all(), "it runs up the sheet all the way"
    for name, (left, low, right, high) in boxes.items():
        across = (points[:, 0] > left - half) & (points[:, 0] < right + half)
        inside = across & (points[:, 1] > low) & (points[:, 1] < high)
        assert name in (start, end) or not inside.any(), (wire.get_gid(), name)
    first, last = points[0], points[-1]
    assert boxes[start][0] <= first[0] <= boxes[start][2] and first[1] == boxes[start][1]
    assert boxes[end][0] <= last[0] <= boxes[end][2] and 0 < last[1] - boxes[end][3] < 6


def assert_that_texts_keep_to_their_boxes(figure: Figure, boxes: dict[str, np.ndarray]) -> None:
    """A text lies within a box or touches none."""
    metrics = text_metrics(figure.dpi)
    to_points = figure.axes[0].transData.inverted()
    for text in figure.axes[0].texts:
        corners = to_points.transform(text.get_window_extent(metrics).get_points())
        (left, low), (right, high) = corners.min(axis=0), corners.max(axis=0)
        for name, (box_left, box_low, box_right, box_high) in boxes.items():
            within = box_left <= left and right <= box_right
            within = within and box_low - 0.5 <= low and high <= box_high + 0.5
            apart = left >= box_right or right <= box_left or low >= box_high or high <= box_low
            assert within or apart, (text.get_text(), name)


def test_every_node_and_wire_is_drawn_and_nothing_overlaps(names: Wiring) -> None:
    figure = assert_that_the_picture_is_whole(names)
    assert figure.get_size_inches()[0] == pytest.approx(3.3)
    everything = set(said(figure))
    assert headline(names) in everything
    assert {"IO", "S1", "S2", "END", "L5H1", "M4", "embed", "logits", "…"} <= everything
    assert "P3" not in everything, "places that are not used are folded"


def test_nodes_stand_in_the_column_of_their_place_and_higher_layers_higher(
    names: Wiring,
) -> None:
    boxes = boxes_of(wiring_figure(names), names)
    middles = {name: (box[0] + box[2]) / 2 for name, box in boxes.items()}
    assert middles["embed@4"] == pytest.approx(middles["M0@4"])
    assert middles["embed@1"] < middles["embed@2"] < middles["embed@4"] < middles["L4H4@5"]
    heights = [boxes[str(node)][1] for node in names.nodes]
    assert heights == sorted(heights, reverse=True)


@pytest.mark.parametrize("seed", range(4))
def test_nothing_overlaps_in_a_random_circuit(seed: int) -> None:
    assert_that_the_picture_is_whole(samples.random_wiring(seed))


@pytest.mark.studies
@pytest.mark.parametrize("first", range(0, 50, 10))
def test_nothing_overlaps_in_fifty_random_circuits(first: int) -> None:
    for seed in range(first, first + 10):
        assert_that_the_picture_is_whole(samples.random_wiring(seed))


def test_component_edges_stand_in_one_column_and_the_caption_has_held_out_pairs() -> None:
    wires = [(re.sub(r"@\d", "", name), value) for name, value in NAMES]
    wires = list(dict(wires).items())
    figure = assert_that_the_picture_is_whole(samples.wiring_of(wires))
    words = " ".join(said(figure))
    assert "component edges" in words and "…" not in words
    assert "held out: mean 0.65, worst 0.60 of 2" in words


def test_the_strongest_path_is_the_best_of_all_paths() -> None:
    with_paths = 0
    for seed in range(0, 40, 2):  # without places, so that a part of the wires is a circuit too
        whole = samples.random_wiring(seed)
        wiring = replace(whole, wires=whole.wires[:30])
        graph: Any = wiring.to_graph()
        paths: list[list[float]] = []
        embeds = [name for name, node in graph.nodes.items() if node["kind"] == "embed"]
        for name in embeds if "logits" in graph else []:
            for path in nx.all_simple_edge_paths(graph, name, "logits"):
                paths.append([*sorted(graph.edges[edge]["value"] for edge in path), np.inf])
        found = {str(each.wire): each.value for each in wiring.wires}
        values = sorted(found[str(wire)] for _, _, wire in strongest_path(wiring))
        assert ([*values, np.inf] if values else []) == max(paths, default=[])
        with_paths += len(paths) > 1
    assert with_paths > 2, "else nothing was to be chosen"


def test_the_strongest_path_lies_on_a_band_and_its_boxes_are_filled(names: Wiring) -> None:
    path = [str(wire) for _, _, wire in strongest_path(names)]
    assert path == ["embed@1→L5H1.value", "L5H1@5→logits"]
    patches = by_gid(wiring_figure(names))
    bands = {name.split()[1] for name in patches if name.startswith("band ")}
    assert bands == set(path)
    filled = set()
    for node in names.nodes:
        if to_hex(patches[str(node)].get_facecolor()) == RED:
            filled.add(str(node))
    assert filled == {"embed@1", "L5H1@5", "logits"}


def test_wires_are_as_wide_as_their_values_and_sides_differ_by_colour_and_dashes(
    names: Wiring,
) -> None:
    patches = by_gid(wiring_figure(names))
    looks: dict[str, set[Any]] = {}
    widths = []
    for each in names.wires:
        (end,) = names.readers_of(each.wire)
        patch = patches[f"{each.wire} {end}"]
        widths.append((abs(each.value), patch.get_linewidth()))
        if each.value > 0:
            dashes = patch.get_linestyle() == "-"
            looks.setdefault(each.wire.reader.kind, set()).add((patch.get_edgecolor(), dashes))
    ordered = [width for _, width in sorted(widths)]
    assert ordered == sorted(ordered) and len(set(ordered)) == len(ordered)
    assert [len(looks[side]) for side in ("query", "key", "value")] == [1, 1, 1]
    assert len({next(iter(looks[side])) for side in ("query", "key", "value")}) == 3
    assert next(iter(looks["query"]))[1] and not next(iter(looks["value"]))[1]


def test_a_negative_wire_has_another_colour_and_ends_in_a_bar(names: Wiring) -> None:
    figure = wiring_figure(names)
    against = by_gid(figure)["L4H4@5→M4 M4@5"].get_edgecolor()
    ends = [
        patch
        for patch in figure.axes[0].patches
        if isinstance(patch, Polygon) and patch.get_facecolor() == against
    ]
    assert ends and all(len(patch.get_xy()) == 5 for patch in ends)  # closed: four corners
    assert "negative value" in said(figure)


def test_new_wires_are_marked(names: Wiring) -> None:
    new = samples.wiring_of(NAMES, PLACES, new=["M4@5→L5H1.query", "L4H4@5→M4"])
    marks = len(by_gid(wiring_figure(new))) - len(by_gid(wiring_figure(names)))
    assert marks == 2
    assert "new" in said(wiring_figure(new)) and "new" not in said(wiring_figure(names))
    assert wiring_dot(new).source.count('taillabel="+"') == 2


def test_heads_are_named_in_their_boxes(names: Wiring) -> None:
    figure = names.figure(names={"L5H1": "name mover", "L1H2": "duplicate token"})
    assert {"name mover", "duplicate", "token"} <= set(said(figure))
    assert_that_no_text_is_cut_or_overlaps(figure)
    assert "name mover" in names.to_dot(names={"L5H1": "name mover"}).source
    with pytest.raises(PromptError, match="L3H3"):
        names.figure(names={"L3H3": "name mover"})


def test_a_width_is_kept_to_or_refused(names: Wiring) -> None:
    assert wiring_figure(names, width=7).get_size_inches()[0] == pytest.approx(7)
    with pytest.raises(CircuitsError, match="too narrow"):
        wiring_figure(names, width=1.5)


def test_a_wiring_without_wires_is_drawn() -> None:
    empty = samples.wiring_of([], PLACES)
    assert "logits" in said(wiring_figure(empty)) and wiring_dot(empty).source


def test_hostile_tokens_and_names_are_drawn(tmp_path: Path, names: Wiring) -> None:
    hostile = replace(names, places=("<b>", "$x$", "\n", "a&b", "שלום", "</svg>"))
    figure = wiring_figure(hostile, names={"L5H1": "<i> & $\\frac$"})
    save_figure(figure, tmp_path)
    assert draw(wiring_dot(hostile), "svg")


@pytest.mark.long
def test_the_same_wiring_gives_the_same_bytes(tmp_path: Path, names: Wiring) -> None:
    for form in ("svg", "png", "pdf", "html", "dot"):
        first = names.save(tmp_path / f"one.{form}").read_bytes()
        assert first == names.save(tmp_path / f"two.{form}").read_bytes()


def test_the_page_has_the_figure_and_the_tables_and_needs_no_network(names: Wiring) -> None:
    page = names.page()
    assert "<svg" in page and "<table" in page and "L5H1@END" in page
    assert headline(names) in page.partition("</title>")[0]
    assert not re.search(r"(src|href)\s*=\s*\"(https?:)?//", page)


def test_the_diagram_has_every_node_and_wire_and_is_drawn_without_dot(
    names: Wiring, monkeypatch: pytest.MonkeyPatch
) -> None:
    diagram = names.to_dot()
    assert diagram.source.count("->") == len(names.wires)
    monkeypatch.setenv("PATH", "")
    svg = draw(diagram, "svg")
    assert isinstance(svg, bytes)
    text = svg.decode()
    assert text.count('class="edge"') == len(names.wires)
    assert text.count('class="node"') == len(names.nodes)
    heights = {}
    for title, y in re.findall(
        r"<title>([^<&]+)</title>.*?<text[^>]* y=\"([-\d.]+)\"", text, re.S
    ):
        heights[title] = float(y)
    assert heights["embed@4"] > heights["M0@4"] > heights["L1H2@4"] > heights["L4H4@5"]
    assert heights["L4H4@5"] > heights["L5H1@5"] > heights["logits"]
