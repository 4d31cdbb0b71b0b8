"""Figure A, the map of effects and figure B: what stands on the sheet and where, not which pixels."""

from __future__ import annotations

import random
import re
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, PathPatch
from matplotlib.text import Text
from render_samples import (
    CARRIERS,
    HOSTILE,
    WORDS,
    circuit_of,
    deep,
    dense,
    empty,
    hostile,
    long,
    mapping_of,
    planted,
    span_of,
)

from circuits.errors import EdgeError, FileError, PromptError
from circuits.heads import Head
from circuits.show import canvas
from circuits.show.canvas import save_figure
from circuits.show.figure import circuit_figure, mapping_figure, scene_figure
from circuits.show.grids import Panel, effect_map, head_grid, to_panel
from circuits.show.scene import Scene
from circuits.tracing.records import Circuit


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.axes[0].texts if text.get_text()]


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


def panel(count: int, length: int = 12) -> Panel:
    maps = np.random.default_rng(0).dirichlet(np.ones(length), (count, length)) * np.tril(
        np.ones((length, length))
    )
    return Panel("GPT2", tuple(Head(at // 12, at % 12) for at in range(count)), tuple(maps))


# Figure A


def test_a_grid_has_one_image_per_panel_and_one_for_the_scale() -> None:
    figure = head_grid([panel(61), panel(9)])
    assert len(figure.axes) == 1
    assert len(figure.axes[0].images) == 3


def test_tiles_stand_nine_to_a_row_with_their_names_at_the_lower_right() -> None:
    figure = head_grid(panel(61))
    names = [text for text in texts(figure) if text.get_text().startswith("L")]
    assert [text.get_text() for text in names] == [f"L{at // 12}H{at % 12}" for at in range(61)]
    assert len({round(text.get_position()[0], 3) for text in names}) == 9
    assert len({round(text.get_position()[1], 3) for text in names}) == 7
    assert {(text.get_horizontalalignment(), text.get_verticalalignment()) for text in names} == {
        ("right", "baseline")
    }


def test_titles_stand_at_the_top_left_of_their_panels() -> None:
    figure = head_grid([panel(9), Panel("Sparse GPT2", (), ())])
    titles = {text.get_text(): text.get_position() for text in texts(figure)}
    assert titles["GPT2"][0] == titles["Sparse GPT2"][0] < 20
    assert titles["GPT2"][1] < titles["Sparse GPT2"][1]


def test_the_query_runs_up_the_triangle_below_is_white_and_a_weight_of_one_is_dark_blue() -> None:
    maps = np.eye(4)
    image = head_grid(Panel("one", (Head(0, 0),), (maps,))).axes[0].images[0].get_array()
    assert image is not None
    side = len(image)
    pixels = np.asarray(image)[..., :3]
    for row, column in ((side - 3, side - 3), (2, 2)):
        assert pixels[row, column].tolist() == [255, 255, 255]
    for row, column in ((side - 3, 2), (2, side - 3)):  # query 0 and key 0 are in the lower left corner
        assert "#" + bytes(pixels[row, column].tolist()).hex() == canvas.BLUE


def test_nothing_is_smaller_than_six_points_in_a_grid_of_nine() -> None:
    assert min(float(text.get_fontsize()) for text in texts(head_grid(panel(30)))) >= 6


def test_a_thousand_heads_are_drawn_each_with_its_name() -> None:
    assert len(words(head_grid(panel(1000, 24), per_row=20))) >= 1000


def test_a_long_map_is_pooled_so_that_a_single_weight_stays_visible() -> None:
    maps = np.zeros((600, 600))
    maps[500, 3] = 1.0
    image = np.asarray(head_grid(Panel("long", (Head(0, 0),), (maps,))).axes[0].images[0].get_array())
    assert (image[..., 0] < 40).any()


def test_a_panel_needs_a_map_for_each_head() -> None:
    with pytest.raises(EdgeError, match="1 heads but 0 maps"):
        Panel("bad", (Head(0, 0),), ())
    with pytest.raises(PromptError, match="at least one panel"):
        head_grid([])


def test_a_circuit_gives_the_panel_of_its_carriers() -> None:
    assert to_panel(planted()).heads == CARRIERS
    assert to_panel(planted(), ["L0H3"], title="x").heads == (Head(0, 3),)
    assert to_panel(empty()).heads == ()


# Effects


def test_the_map_of_effects_is_centred_at_zero_and_frames_the_carriers() -> None:
    axes = effect_map(planted())
    image = axes.images[0]
    low, high = image.get_clim()
    assert low == -high and high == pytest.approx(0.30)
    assert np.shape(np.asarray(image.get_array())) == (12, 12)
    framed = {(round(patch.get_y() + 0.5), round(patch.get_x() + 0.5)) for patch in axes.patches}  # type: ignore[attr-defined]
    assert framed == {(head.layer, head.index) for head in CARRIERS}
    assert {to_hex(patch.get_edgecolor()) for patch in axes.patches} == {canvas.RED}


def test_effects_are_drawn_from_an_array_and_on_the_axes_given() -> None:
    axes = Figure().add_subplot()
    assert effect_map(np.array([[0.1, -0.4], [0.0, 0.2]]), carriers=["L0H0"], ax=axes) is axes
    assert axes.images[0].get_clim() == (-0.4, 0.4)
    assert effect_map(empty()).images
    with pytest.raises(PromptError, match="2 axes"):
        effect_map(np.zeros(3))


def test_effects_of_thirty_layers_keep_their_shape() -> None:
    assert np.shape(np.asarray(effect_map(deep()).images[0].get_array())) == (30, 9)


# Figure B


def test_figure_b_says_what_the_published_figure_says() -> None:
    said = words(mapping_figure(dense(), planted()))
    caption = "These 5 of 144 heads map key 5 to query 8"
    assert {"GPT-2", "Sparse GPT-2", caption, "Modulated at 80% by", "Q", "K"} <= set(said)
    assert {*map(str, CARRIERS), "L11H7 L10H1 L9H7 L9H1 L8H6", "L9H7 L9H1"} <= set(said)
    assert {"opposite", "large", "brackets", "small", "layer 12 · p = 0.93", "layer", "12"} <= set(said)
    assert "43 of 144 heads carry 80%" in said and "5 of 144 heads carry 80%" in said
    assert [word for word in said if word.isdigit()][-9:] == [str(at) for at in range(9)]  # with BOS
    assert "attention 0" in said  # the scale of the maps


def test_the_caption_and_the_key_are_red() -> None:
    red = {
        text.get_text()
        for text in texts(mapping_figure(dense(), planted()))
        if to_hex(str(text.get_color())) == canvas.RED
    }
    assert red == {"These 5 of 144 heads map key 5 to query 8", "large", "5"}


def test_every_map_has_a_red_frame_around_its_cell_and_the_weight_is_seen_in_it() -> None:
    figure = mapping_figure(planted())
    polygons = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    groups = {to_hex(tuple(np.ravel(group.get_edgecolor())[:3])): group for group in polygons}
    assert all(
        to_hex(tuple(np.ravel(group.get_facecolor())) or "none", keep_alpha=True) == "#00000000"
        for group in polygons
    )
    cells, frames = (
        [np.asarray(path.vertices) for path in groups[colour].get_paths()]
        for colour in (canvas.RED, canvas.LINE)
    )
    assert len(cells) == 5
    for cell, frame in zip(cells, frames, strict=True):
        (left, top), side = frame.min(axis=0), np.ptp(frame[:, 0])
        middle = (cell.min(axis=0) + cell.max(axis=0)) / 2
        assert int((middle[0] - left) / side * 9) == 5
        assert 8 - int((middle[1] - top) / side * 9) == 8


def random_circuit(seed: int) -> Circuit:
    """Any number of tokens (hostile ones among them), layers, heads, mappings and spans."""
    draw = random.Random(seed)
    layers, heads, length = draw.randint(2, 30), draw.randint(1, 12), draw.randint(2, 45)
    pool = [*HOSTILE, *WORDS, " the", "a", " extraordinarily", " of", "."]
    tokens = tuple(draw.choice(pool) for _ in range(length))
    every = [Head(layer, head) for layer in range(layers) for head in range(heads)]
    ends = {tuple(sorted(draw.choices(range(length), k=2))) for _ in range(draw.randint(0, 12))}
    mappings = []
    for key, query in sorted(ends):
        chosen = draw.sample(every, min(len(every), draw.randint(1, 14)))
        path = [(head, 0.9 * (number + 1) / len(chosen)) for number, head in enumerate(chosen)]
        mappings.append(mapping_of(key, query, path, total=draw.choice([0.9, 0.3, 0.06]), controls=False))
    spans = []
    for position in draw.sample(range(length), draw.randint(0, min(length, 8))):
        first, last = sorted(draw.choices(range(layers), k=2))
        group = tuple(sorted({position, draw.randrange(length)})) if draw.random() < 0.3 else (position,)
        name = (
            tokens[position]
            if len(group) == 1
            else draw.choice(["brackets", "a rather long name of a group"])
        )
        spans.append(span_of(name, group, (first, last), ((first, first),), layers))
    options: Any = {"layers": layers, "heads": heads, "bos": draw.random() < 0.5, "token": draw.choice(pool)}
    return circuit_of(tokens, tuple(mappings), name="random", spans=tuple(spans), **options)


def assert_that_no_text_is_cut_or_overlaps(figure: Figure) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    width, height = figure.get_size_inches() * figure.dpi
    assert min(float(text.get_fontsize()) for text in texts(figure)) >= 6
    for word, box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, word
    for at, (word, box) in enumerate(boxes):
        for other, beside in boxes[at + 1 :]:
            across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            assert min(across, min(box.y1, beside.y1) - max(box.y0, beside.y0)) <= 3, (word, other)


@pytest.mark.parametrize("seed", range(6))
def test_no_text_of_a_random_circuit_is_cut_or_overlaps_another(seed: int) -> None:
    circuit = random_circuit(seed)
    assert_that_no_text_is_cut_or_overlaps(circuit_figure(circuit))
    assert_that_no_text_is_cut_or_overlaps(mapping_figure(circuit))


@pytest.mark.studies
def test_no_text_of_two_hundred_random_circuits_is_cut_or_overlaps_another() -> None:
    for seed in range(6, 206):
        circuit = random_circuit(seed)
        assert_that_no_text_is_cut_or_overlaps(circuit_figure(circuit))
        assert_that_no_text_is_cut_or_overlaps(mapping_figure(circuit))


def test_the_circuit_figure_draws_every_mapping_or_counts_it() -> None:
    said = " ".join(words(circuit_figure(planted())))
    assert "Both mappings with a total of 0.05 or more." in said and "L7H2" in said
    many = [mapping_of(0, query, [(Head(3, 4), 0.4)], total=0.4, controls=False) for query in range(1, 45)]
    crowd = circuit_of(tuple(f"w{at}" for at in range(45)), tuple(many), name="many", bos=False)
    assert re.search(r"\d+ of 44 mappings with a total", " ".join(words(circuit_figure(crowd))))


def test_layers_in_which_nothing_happens_fold_and_the_figure_says_so() -> None:
    said = words(circuit_figure(deep()))
    assert {"1–9", "13–19", "23–28", "22", "29"} <= set(said)
    assert "folded" in " ".join(said) and "folded" not in " ".join(words(circuit_figure(planted())))


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (dense, planted),
        (planted, dense),
        (planted, None),
        (dense, None),
        (deep, None),
        (long, None),
        (empty, None),
        (planted, hostile),
    ],
)
def test_no_text_is_cut_off_overlaps_another_or_is_too_small(left, right) -> None:
    assert_that_no_text_is_cut_or_overlaps(mapping_figure(left(), right() if right else None))
    assert_that_no_text_is_cut_or_overlaps(circuit_figure(left()))


def test_two_circuits_fill_a_page_of_two_columns_and_one_fills_its_right_half() -> None:
    assert mapping_figure(dense(), planted()).get_size_inches()[0] == pytest.approx(7.0, abs=0.02)
    assert mapping_figure(planted()).get_size_inches()[0] < 4.2


def test_a_position_that_reads_itself_has_no_arrow_and_is_drawn() -> None:
    own = mapping_of(5, 5, [(Head(3, 4), 0.4)], total=0.4)
    figure = circuit_figure(replace(planted(), mappings=(own,), focus=(5, 5)))
    assert "L3H4" in words(figure)
    assert not [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


def components() -> nx.MultiDiGraph:
    """What `wiring` gives: components at positions, and wires between them."""
    graph = nx.MultiDiGraph(model="tiny", words=["a", "b", "c"], layers=2, reads_bos=False, anchors=[2, 0])
    look = {"effect": 0.5, "lines": ["x"], "box": False}
    graph.add_node("embed@0", kind="embed", label="embed", positions=[0], layer=-1, **look)
    graph.add_node("M0@0", kind="mlp", label="M0", positions=[0], layer=0, **look)
    graph.add_node("L1H0@2", kind="head", label="L1H0", positions=[2], layer=1, front=True, **look)
    graph.add_node(
        "output",
        kind="output",
        label="d",
        positions=[2],
        layer=2,
        effect=1.0,
        lines=["d", "layer 2"],
        box=True,
    )
    for start, end, side in (
        ("embed@0", "M0@0", ""),
        ("M0@0", "L1H0@2", "value"),
        ("M0@0", "L1H0@2", "key"),
        ("L1H0@2", "output", ""),
    ):
        graph.add_edge(start, end, kind="wire", side=side, effect=0.5)
    return graph


def test_components_and_wires_are_drawn_at_their_place_and_sides_differ_by_their_dashes() -> None:
    figure = scene_figure(Scene(planted(), components()), "tiny")
    assert {"M0", "L1H0", "a", "b", "c"} <= set(words(figure))
    wires = [patch for patch in figure.axes[0].patches if type(patch) is PathPatch]
    assert len(wires) == 4 and len({str(wire.get_linestyle()) for wire in wires}) == 3


def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(mapping_figure(dense(), planted()), tmp_path / name)
    for form in ("svg", "png", "pdf"):
        assert (tmp_path / "one" / f"figure.{form}").read_bytes() == (
            tmp_path / "two" / f"figure.{form}"
        ).read_bytes()


def test_unknown_formats_and_unwritable_folders_are_refused(tmp_path: Path) -> None:
    figure = head_grid(panel(2))
    with pytest.raises(FileError, match="svg, png, pdf"):
        save_figure(figure, tmp_path, ("gif",))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="another folder"):
        save_figure(figure, tmp_path / "file", ("svg",))


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=20))
def test_any_tokens_can_be_drawn(tokens: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert words(mapping_figure(hostile(tuple(tokens))))


def test_hostile_tokens_are_drawn_and_saved_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(mapping_figure(hostile(HOSTILE)), tmp_path)
        save_figure(mapping_figure(hostile(("$\\frac$", "$x$ $", "%"))), tmp_path)
