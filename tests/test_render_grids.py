"""Figure A, the map of effects and figure B: what stands on the sheet and where, not which pixels."""

from __future__ import annotations

import re
import warnings
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch, PathPatch
from matplotlib.text import Text
from render_samples import CARRIERS, HOSTILE, deep, dense, empty, hostile, long, mapping_of, planted, span_of

from circuits.errors import EdgeError, FileError, PromptError
from circuits.heads import Head
from circuits.show import canvas
from circuits.show.canvas import save_figure
from circuits.show.figure import mapping_figure
from circuits.show.grids import Panel, effect_map, head_grid, to_panel
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
    assert {
        "GPT-2",
        "Sparse GPT-2",
        "These 5 of 144 heads map key 5 to query 8",
        "Modulated at 80% by",
        "Q",
        "K",
    } <= set(said)
    assert {*map(str, CARRIERS), "L11H7 L10H1 L9H7", "L9H1 L8H6"} <= set(said)
    assert {
        "opposite",
        "layer 0-1",
        "large",
        "layer 0-3",
        "brackets",
        "layer 0-10",
        "small",
        "layer 12",
    } <= set(said)
    assert "43 of 144 heads carry 80%" in said and "5 of 144 heads carry 80%" in said
    assert [word for word in said if word.isdigit()] == [str(at) for at in range(1, 9)]
    assert sum(re.fullmatch(r"L\d+H\d+", word) is not None for word in said) == 43 + 5


def test_the_caption_and_the_key_are_red() -> None:
    red = {
        text.get_text()
        for text in texts(mapping_figure(dense(), planted()))
        if to_hex(str(text.get_color())) == canvas.RED
    }
    assert red == {"These 5 of 144 heads map key 5 to query 8", "large", "5"}


def test_every_map_has_its_red_cell_in_the_row_of_the_query_counted_from_below() -> None:
    figure = mapping_figure(planted())
    groups = {
        to_hex(tuple(np.ravel(c.get_facecolor())) or "none", keep_alpha=True): c
        for c in figure.axes[0].collections
        if isinstance(c, PolyCollection)
    }
    cells, frames = (
        [np.asarray(path.vertices) for path in groups[colour].get_paths()]
        for colour in (f"{canvas.RED}ff", "#00000000")
    )
    assert len(cells) == 5
    for cell, frame in zip(cells, frames, strict=True):
        (left, top), side = frame.min(axis=0), np.ptp(frame[:, 0])
        middle = (cell.min(axis=0) + cell.max(axis=0)) / 2
        assert int((middle[0] - left) / side * 9) == 5
        assert 8 - int((middle[1] - top) / side * 9) == 8


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
    figure = mapping_figure(left(), right() if right else None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boxes = [(text.get_text(), text.get_window_extent()) for text in texts(figure)]
    width, height = figure.get_size_inches() * figure.dpi
    assert min(float(text.get_fontsize()) for text in texts(figure)) >= 6
    for word, box in boxes:
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, word
    for at, (word, box) in enumerate(boxes):
        for other, beside in boxes[at + 1 :]:
            over = (
                min(box.x1, beside.x1) - max(box.x0, beside.x0),
                min(box.y1, beside.y1) - max(box.y0, beside.y0),
            )
            assert min(over) <= 3, (word, other)


def test_two_circuits_fill_a_page_of_two_columns_and_one_fills_its_right_half() -> None:
    assert mapping_figure(dense(), planted()).get_size_inches()[0] == pytest.approx(7.0, abs=0.02)
    assert mapping_figure(planted()).get_size_inches()[0] < 4.2


def test_a_key_without_a_span_and_a_query_in_the_middle_have_boxes_of_their_own() -> None:
    inner = mapping_of(2, 5, [(Head(3, 4), 0.4)], total=0.4, controls=False)
    said = words(mapping_figure(replace(planted(), mappings=(inner,), focus=(2, 5), spans=())))
    assert {"pos 2", "pos 5", "One of 144 heads maps key 2 to query 5"} <= set(said)


def crowded(key: int, query: int) -> Circuit:
    """Boxes at every token but the query's, of two heights."""
    spans = [
        span_of(str(at), (at,), (0, 3 - at % 2), ((0, 0),) if at % 2 else ())
        for at in range(1, 9)
        if at != query
    ]
    ends = [span_of("query", (query,), (2, 11), ((2, 3),))]
    mapping = mapping_of(key, query, [(head, 0.2) for head in CARRIERS], total=1.0)
    return replace(planted(), mappings=(mapping,), focus=(key, query), spans=(*spans, *ends))


@pytest.mark.parametrize(("key", "query"), [(5, 8), (1, 8), (7, 8), (1, 4), (3, 5)])
def test_the_querys_line_and_the_carriers_names_keep_clear_of_the_boxes(key: int, query: int) -> None:
    sheet = mapping_figure(crowded(key, query)).axes[0]
    boxes = [
        patch for patch in sheet.patches if isinstance(patch, FancyBboxPatch) and patch.get_width() < 100
    ]
    frames = [
        (box.get_x(), box.get_y(), box.get_x() + box.get_width(), box.get_y() + box.get_height())
        for box in boxes
    ]
    ties = [patch for patch in sheet.patches if type(patch) is PathPatch and patch.get_linestyle() != "solid"]
    assert len(ties) >= 4 and len(frames) >= 5
    places = [np.asarray(points) for tie in ties for points in tie.get_path().to_polygons(closed_only=False)]
    x, y = np.concatenate(
        [np.linspace(one, other, 9) for points in places for one, other in pairwise(points)]
    ).T
    for left, top, right, bottom in frames:
        assert not ((x > left + 1) & (x < right - 1) & (y > top + 1) & (y < bottom - 1)).any()
    figure = sheet.get_figure()
    assert isinstance(figure, Figure)
    names = [text for text in texts(figure) if text.get_text().startswith(("Modulated", "L"))]
    for text in names:
        corners = sheet.transData.inverted().transform(text.get_window_extent())
        (left, low), (right, high) = corners.min(0), corners.max(0)
        assert not any(
            left < frame[2] and frame[0] < right and low < frame[3] and frame[1] < high for frame in frames
        ), text.get_text()


def test_a_position_that_reads_itself_has_no_arrow_and_is_drawn() -> None:
    own = mapping_of(5, 5, [(Head(3, 4), 0.4)], total=0.4)
    assert "Modulated at 100% by" not in words(
        mapping_figure(replace(planted(), mappings=(own,), focus=(5, 5)))
    )


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
