"""Figure A and the map of effects: what stands on the sheet and where, not which pixels."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from matplotlib.text import Text
from render_samples import CARRIERS, deep, empty, planted

from circuits.components import Head
from circuits.errors import EdgeError, FileError, PromptError
from circuits.show import canvas
from circuits.show.canvas import save_figure
from circuits.show.grids import Panel, head_grid, to_panel
from circuits.show.heatmaps import effect_map


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


def test_tiles_stand_nine_to_a_row_with_their_names_at_the_upper_right() -> None:
    figure = head_grid(panel(61))
    names = [text for text in texts(figure) if text.get_text().startswith("L")]
    assert [text.get_text() for text in names] == [f"L{at // 12}H{at % 12}" for at in range(61)]
    assert len({round(text.get_position()[0], 3) for text in names}) == 9
    assert len({round(text.get_position()[1], 3) for text in names}) == 7
    assert {
        (text.get_horizontalalignment(), text.get_verticalalignment()) for text in names
    } == {("right", "baseline")}


def test_titles_stand_at_the_top_left_of_their_panels() -> None:
    figure = head_grid([panel(9), Panel("Sparse GPT2", (), ())])
    titles = {text.get_text(): text.get_position() for text in texts(figure)}
    assert titles["GPT2"][0] == titles["Sparse GPT2"][0] < 20
    assert titles["GPT2"][1] < titles["Sparse GPT2"][1]


@pytest.mark.parametrize("query_up", [False, True])
def test_the_query_runs_down_or_up_and_a_weight_of_one_is_dark_blue(query_up: bool) -> None:
    panel_of_one = Panel("one", (Head(0, 0),), (np.eye(4),))
    image = head_grid(panel_of_one, query_up=query_up).axes[0].images[0].get_array()
    assert image is not None
    pixels = np.asarray(image)[..., :3]
    last = len(pixels) - 3
    falling, rising = ((2, 2), (last, last)), ((last, 2), (2, last))
    if query_up:
        falling, rising = rising, falling
    for row, column in rising:
        assert pixels[row, column].tolist() == [255, 255, 255]
    for row, column in falling:
        assert "#" + bytes(pixels[row, column].tolist()).hex() == canvas.BLUE


def test_heads_with_shut_gates_are_counted_and_an_effect_of_nothing_is_not_written() -> None:
    maps = (np.eye(3), np.zeros((3, 3)), np.eye(3), np.zeros((3, 3)))
    heads = tuple(Head(0, at) for at in range(4))
    given = Panel("x", heads, maps, effects=(0.3, 0.2, 0.001, 0.0), needed=1)
    said = words(head_grid(given))
    assert {"L0H0", "L0H1", "L0H2"} <= set(said) and "L0H3" not in said
    assert any("1 head with all gates shut" in word for word in said)
    assert ".30" in said and ".00" not in said
    assert "1: 90%" in said


def test_what_maps_show_stands_beside_them_and_tokens_where_there_is_room() -> None:
    facts = (("mean peak", "0.97"),)
    figure = head_grid(
        Panel("x", (Head(0, 0),), (np.eye(3),), facts=facts, words=("a", "b", "c"))
    )
    places = {text.get_text(): text.get_position() for text in texts(figure)}
    assert places["0.97"][0] > places["L0H0"][0] and places["a"][0] < places["L0H0"][0]
    assert places["a"][1] < places["b"][1] < places["c"][1]  # queries run down


def test_columns_of_models_with_long_names_are_told_apart() -> None:
    facts = (("mean peak", "0.97"),)

    def heads_of_columns(*titles: str) -> list[str]:
        panels = [Panel(name, (Head(0, 0),), (np.eye(3),), facts=facts) for name in titles]
        return words(head_grid(panels))

    said = heads_of_columns("stories15m", "stories15m-sparse")
    assert {"stories15m", "stories15m-", "sparse"} <= set(said)
    said = heads_of_columns("modelwithoutspaces", "modelwithoutspacessparse")
    assert "modelw…" in said and "…sparse" in said


def test_nothing_is_smaller_than_six_points_in_a_grid_of_nine() -> None:
    assert min(float(text.get_fontsize()) for text in texts(head_grid(panel(30)))) >= 6


def test_a_thousand_heads_are_drawn_each_with_its_name() -> None:
    assert len(words(head_grid(panel(1000, 24), per_row=20))) >= 1000


def test_a_long_map_is_pooled_so_that_a_single_weight_stays_visible() -> None:
    maps = np.zeros((600, 600))
    maps[500, 3] = 1.0
    image = np.asarray(
        head_grid(Panel("long", (Head(0, 0),), (maps,))).axes[0].images[0].get_array()
    )
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
    axes = effect_map(planted()).axes[0]
    image = axes.images[0]
    low, high = image.get_clim()
    assert low == -high and high == pytest.approx(0.30)
    assert np.shape(np.asarray(image.get_array())) == (12, 12)
    bottom, top = axes.get_ylim()
    assert bottom < top  # layer 0 is at the bottom
    framed = set()
    for patch in axes.patches:
        assert isinstance(patch, Rectangle)
        if to_hex(patch.get_edgecolor()) == canvas.RED:
            framed.add((round(patch.get_y() + 0.5), round(patch.get_x() + 0.5)))
    assert framed == {(head.layer, head.index) for head in CARRIERS}


def test_a_cell_against_the_answer_has_a_minus_for_readers_who_see_no_hue() -> None:
    figure = effect_map(np.array([[0.1, -0.4], [-0.001, 0.2]]))
    places = {text.get_position() for text in figure.axes[0].texts if text.get_text() == "−"}
    assert places == {(1, 0)}


def test_effects_are_drawn_from_an_array_and_on_the_axes_given() -> None:
    axes = Figure().add_subplot()
    assert (
        effect_map(np.array([[0.1, -0.4], [0.0, 0.2]]), carriers=["L0H0"], ax=axes)
        is axes.figure
    )
    assert axes.images[0].get_clim() == (-0.4, 0.4)
    assert effect_map(empty()).axes[0].images
    with pytest.raises(PromptError, match="2 axes"):
        effect_map(np.zeros(3))


def test_effects_of_thirty_layers_keep_their_shape() -> None:
    assert np.shape(np.asarray(effect_map(deep()).axes[0].images[0].get_array())) == (30, 9)


# Files


def test_unknown_formats_and_unwritable_folders_are_refused(tmp_path: Path) -> None:
    figure = head_grid(panel(2))
    with pytest.raises(FileError, match="svg, png, pdf"):
        save_figure(figure, tmp_path, ("gif",))
    (tmp_path / "file").write_text("")
    with pytest.raises(FileError, match="another folder"):
        save_figure(figure, tmp_path / "file", ("svg",))
