"""Figure B and the circuit on a scale of layers: what stands on the sheet and where, not which pixels."""

from __future__ import annotations

import functools
import random
import re
import warnings
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import render_samples as samples
from hypothesis import given, settings
from hypothesis import strategies as st
from matplotlib.backends.backend_agg import RendererAgg
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_hex, to_rgba_array
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.text import Text
from matplotlib.transforms import Bbox

from circuits import compare
from circuits.components import Head
from circuits.errors import PromptError
from circuits.show import canvas
from circuits.show.arrows import PRINT
from circuits.show.canvas import save_figure, width_of
from circuits.show.dark import darkened
from circuits.show.diagram import circuit_figure, ticks_of
from circuits.show.figure import mapping_figure
from circuits.show.graph import gains
from circuits.show.layout import lay_out
from circuits.show.legend import FINDING, balanced, wrapped
from circuits.show.scene import to_scene
from circuits.tracing import CARRIES, QuestionControl
from circuits.tracing.records import Circuit


def texts(figure: Figure) -> list[Text]:
    return [text for text in figure.axes[0].texts if text.get_text()]


def every_text(figure: Figure) -> Iterator[Text]:
    """What is written anywhere on a figure: titles, legends and the ticks in view as well."""
    legends = [axes.get_legend() for axes in figure.axes]
    children = [child for parent in (figure, *figure.axes) for child in parent.get_children()]
    children += [text for legend in legends if legend for text in legend.get_texts()]
    yield from (child for child in children if isinstance(child, Text) and child.get_text())
    for axis in (
        axis for axes in figure.axes if axes.axison for axis in (axes.xaxis, axes.yaxis)
    ):
        low, high = sorted(axis.get_view_interval())
        ticks = [tick for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high]
        yield from (
            text for text in (axis.label, *(tick.label1 for tick in ticks)) if text.get_text()
        )


def words(figure: Figure) -> list[str]:
    return [text.get_text() for text in texts(figure)]


# Figure B


def test_figure_b_says_what_the_published_figure_says() -> None:
    said = words(mapping_figure(samples.dense(), samples.planted()))
    caption = "All 5 heads map key 5 to query 8"
    assert {"GPT-2", "Sparse GPT-2", caption, "Modulated at 80% by", "Q", "K"} <= set(said)
    assert {*map(str, samples.CARRIERS), "L9: 7 1"} <= set(said)
    assert {"opposite", "large", "small", "layer 12 · p = 0.93", "layer", "12"} <= set(said)
    assert "brackets: layers 0–10, built 0–10" in said
    assert "43 of 144 heads carry 80%" in said and "5 of 144 heads carry 80%" in said
    # As published: without BOS, which no mapping uses.
    assert [word for word in said if word.isdigit()][-8:] == [str(at) for at in range(1, 9)]


@pytest.mark.parametrize("draw", [mapping_figure, circuit_figure])
def test_a_figure_says_its_finding_then_its_question_and_has_a_legend(draw: Any) -> None:
    said = words(draw(samples.planted()))
    assert said[0] == '5 of 144 heads carry 80% of large(5) → "(8)'
    question = " ".join(said[1:4])
    for part in (
        "noise at 5",
        "logit(small) − logit(cold)",
        "Sparse GPT-2",
        "total 1.00 of the",
    ):
        assert part in question
    assert {"layers that hold a token", "that build it"} <= set(said)
    assert any(word.startswith("width: ") for word in said)


def test_a_heading_of_two_lines_leaves_no_word_alone() -> None:
    finding = "29 of 123,211 component edges keep 81% of the gap"
    width = width_of(finding, FINDING) - 1
    assert wrapped(finding, FINDING, width)[-1] == "gap"
    first, second = balanced(finding, FINDING, width)
    assert f"{first} {second}" == finding
    assert abs(width_of(first, FINDING) - width_of(second, FINDING)) < width / 4


def test_the_caption_the_label_and_the_key_are_red() -> None:
    red = {
        text.get_text()
        for text in texts(mapping_figure(samples.dense(), samples.planted()))
        if to_hex(str(text.get_color())) == canvas.RED
    }
    caption = "All 5 heads map key 5 to query 8"
    assert red == {caption, "Modulated at 80% by", "large", "5"}


def test_every_map_has_a_red_frame_around_its_cell_and_the_weight_is_seen_in_it() -> None:
    figure = mapping_figure(samples.planted())
    polygons = [c for c in figure.axes[0].collections if isinstance(c, PolyCollection)]
    groups = {to_hex(tuple(np.ravel(group.get_edgecolor())[:3])): group for group in polygons}
    fills = [
        to_hex(tuple(colour)) for colour in np.atleast_2d(groups[canvas.RED].get_facecolor())
    ]
    weights = [samples.planted().pattern(head)[8, 5] for head in samples.CARRIERS]
    assert fills == [canvas.shade(float(weight)) for weight in weights]
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
    pool = [*samples.HOSTILE, *samples.WORDS, " the", "a", " extraordinarily", " of", "."]
    tokens = tuple(draw.choice(pool) for _ in range(length))
    every = [Head(layer, head) for layer in range(layers) for head in range(heads)]
    ends = {tuple(sorted(draw.choices(range(length), k=2))) for _ in range(draw.randint(0, 12))}
    mappings = []
    for key, query in sorted(ends):
        chosen = draw.sample(every, min(len(every), draw.randint(1, 14)))
        path = [(head, 0.9 * (number + 1) / len(chosen)) for number, head in enumerate(chosen)]
        mappings.append(
            samples.mapping_of(
                key, query, path, total=draw.choice([0.9, 0.3, 0.06]), controls=False
            )
        )
    spans = []
    for position in draw.sample(range(length), draw.randint(0, min(length, 8))):
        first, last = sorted(draw.choices(range(layers), k=2))
        group = (
            tuple(sorted({position, draw.randrange(length)}))
            if draw.random() < 0.3
            else (position,)
        )
        name = (
            tokens[position]
            if len(group) == 1
            else draw.choice(["brackets", "a rather long name of a group"])
        )
        spans.append(samples.span_of(name, group, (first, last), ((first, first),), layers))
    options: Any = {
        "layers": layers,
        "heads": heads,
        "bos": draw.random() < 0.5,
        "token": draw.choice(pool),
    }
    return samples.circuit_of(
        tokens, tuple(mappings), name="random", spans=tuple(spans), **options
    )


@functools.cache
def text_metrics(dpi: float) -> RendererAgg:
    """What measures text as a PNG has it; it needs no pixels, and one serves all figures of a resolution."""
    return RendererAgg(1, 1, dpi)


def assert_that_no_text_is_cut_or_overlaps(figure: Figure) -> None:
    metrics = text_metrics(figure.dpi)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        boxes = [
            (text.get_text(), text.get_window_extent(metrics)) for text in every_text(figure)
        ]
    width, height = figure.get_size_inches() * figure.dpi
    assert min(float(text.get_fontsize()) for text in every_text(figure)) >= 6
    for word, box in boxes:
        assert box.x0 >= -1 and box.y0 >= -1 and box.x1 <= width + 1 and box.y1 <= height + 1, (
            word
        )
    for at, (word, box) in enumerate(boxes):
        for other, beside in boxes[at + 1 :]:
            across = min(box.x1, beside.x1) - max(box.x0, beside.x0)
            assert min(across, min(box.y1, beside.y1) - max(box.y0, beside.y0)) <= 3, (
                word,
                other,
            )


@pytest.mark.parametrize("seed", range(6))
def test_no_text_of_a_random_circuit_is_cut_or_overlaps_another(seed: int) -> None:
    circuit = random_circuit(seed)
    assert_that_no_text_is_cut_or_overlaps(circuit_figure(circuit))
    assert_that_no_text_is_cut_or_overlaps(mapping_figure(circuit))


@pytest.mark.studies
@pytest.mark.parametrize("first", range(6, 206, 50))
def test_no_text_of_two_hundred_random_circuits_is_cut_or_overlaps_another(first: int) -> None:
    for seed in range(first, first + 50):
        circuit = random_circuit(seed)
        assert_that_no_text_is_cut_or_overlaps(circuit_figure(circuit))
        assert_that_no_text_is_cut_or_overlaps(mapping_figure(circuit))


def test_the_circuit_figure_draws_every_mapping_or_counts_it() -> None:
    said = " ".join(words(circuit_figure(samples.planted())))
    assert "Both mappings with a total of 0.05 or more." in said and "L7H2" in said
    many = [
        samples.mapping_of(0, query, [(Head(3, 4), 0.4)], total=0.4, controls=False)
        for query in range(1, 45)
    ]
    crowd = samples.circuit_of(
        tuple(f"w{at}" for at in range(45)), tuple(many), name="many", bos=False
    )
    assert re.search(r"\d+ of 44 mappings with a total", " ".join(words(circuit_figure(crowd))))


@pytest.mark.parametrize("seed", range(24))
def test_the_caption_of_a_random_circuit_counts_what_is_drawn_and_what_is_not(
    seed: int,
) -> None:
    circuit = random_circuit(seed)
    figure = circuit_figure(circuit)
    width = figure.get_size_inches()[0] * 72
    drawn = lay_out(to_scene(circuit), width - 18).mappings
    carrying = {mapping.ends for mapping in circuit.mappings if abs(mapping.total) >= CARRIES}
    caption, shown = " ".join(words(figure)), len(drawn & carrying)
    every = {0: "No mapping", 1: "The only mapping", 2: "Both mappings"}
    whole = every.get(len(carrying), f"All {len(carrying)} mappings")
    counted = whole if shown == len(carrying) else f"{shown} of {len(carrying)} mappings"
    assert f"{counted} with a total of 0.05 or more." in caption


def test_the_arrows_of_a_mapping_add_up_to_its_joint_effect() -> None:
    scene = to_scene(samples.planted())
    assert scene.front is not None and sum(gains(scene.front).values()) == pytest.approx(0.8)
    items = [item for item in lay_out(scene, 480).lanes if item.front]
    assert {item.layer: round(item.effect, 2) for item in items} == {
        11: 0.3,
        10: 0.18,
        9: 0.23,
        8: 0.09,
    }


def test_names_that_do_not_fit_on_their_arrow_are_shortened_or_stand_beside_it() -> None:
    heads = [Head(5, 1), Head(5, 10), Head(5, 3)]
    path = [(head, 0.3 * (number + 1)) for number, head in enumerate(heads)]
    spoken = {}
    for key in (1, 6, 7):  # the boxes of brackets leave less space than the arrow is long
        mapping = samples.mapping_of(key, 8, path, total=0.9, controls=False)
        circuit = replace(samples.planted(), mappings=(mapping,), focus=(key, 8))
        (item,) = lay_out(to_scene(circuit), 200).lanes
        spoken[key] = item.text
        assert key != 7 or not item.start < item.text_x < item.end
    assert spoken[1] == "L5: 1 10 3" and spoken[6].startswith("L5: 1")


def boxes_and_pills(figure: Figure) -> tuple[list[Bbox], list[tuple[str, Bbox]]]:
    """The boxes of spans and the pills of names, with their places on the sheet."""
    boxes, pills = [], []
    for patch in figure.axes[0].patches:
        name = str(patch.get_gid() or "")
        if name.startswith("span "):
            boxes.append(patch.get_path().get_extents(patch.get_patch_transform()))
        if name.startswith("pill "):
            pills.append((name, patch.get_path().get_extents(patch.get_patch_transform())))
    return boxes, pills


def assert_that_no_pill_touches_a_box(figure: Figure) -> None:
    boxes, pills = boxes_and_pills(figure)
    for name, pill in pills:
        for box in boxes:
            across = min(pill.x1, box.x1) - max(pill.x0, box.x0)
            down = min(pill.y1, box.y1) - max(pill.y0, box.y0)
            assert min(across, down) <= 0.01, (name, pill, box)


@pytest.mark.long
def test_no_name_of_two_hundred_random_circuits_is_placed_on_a_box() -> None:
    counted = 0
    for seed in range(200):
        scene = to_scene(random_circuit(seed))
        for layout in (lay_out(scene, 226, only_front=True, most=24), lay_out(scene, 486)):
            for item in layout.lanes:
                half = PRINT.names_width(item.names) / 2 - 1
                for left, right in layout.taken(item.layer):
                    assert item.text_x + half <= left + 1 or right - 1 <= item.text_x - half
                counted += 1
    assert counted > 1000


@pytest.mark.parametrize("seed", range(8))
def test_no_pill_of_a_random_circuit_lies_on_a_box(seed: int) -> None:
    assert_that_no_pill_touches_a_box(mapping_figure(random_circuit(seed)))
    assert_that_no_pill_touches_a_box(circuit_figure(random_circuit(seed)))


@pytest.mark.studies
def test_no_pill_of_two_hundred_random_circuits_lies_on_a_box() -> None:
    for seed in range(200):
        assert_that_no_pill_touches_a_box(mapping_figure(random_circuit(seed)))
        assert_that_no_pill_touches_a_box(circuit_figure(random_circuit(seed)))


def test_spans_are_shown_where_mappings_end_where_they_are_named_and_the_three_strongest() -> (
    None
):
    spans = [samples.span_of(samples.WORDS[at], (at,), (0, 2)) for at in range(9)]
    for number, span in enumerate(spans):
        spans[number] = replace(span, effect=0.1 * number)
    circuit = replace(samples.planted(), spans=(*spans, samples.SPANS[2]))
    few = lay_out(to_scene(circuit), 480, only_front=True)
    assert {name for name, _ in few.boxes} == {"5", "8", "7", "6", "4", "4+6"}
    assert len(lay_out(to_scene(circuit), 480, all_spans=True).boxes) == 10
    assert "weaker spans not drawn" in " ".join(words(circuit_figure(circuit)))


def test_layers_that_write_where_nothing_is_held_are_ticks() -> None:
    span = samples.span_of("large", (5,), (0, 1), ((0, 1), (7, 8)))
    circuit = replace(samples.planted(), spans=(span,))
    assert ticks_of(lay_out(to_scene(circuit), 480).boxes[0][1]) == [7, 8]
    assert "writes where nothing is held" in words(circuit_figure(circuit))
    assert "writes where nothing is held" not in words(circuit_figure(samples.planted()))


def test_words_stand_along_the_maps_where_they_fit_and_else_the_two_positions() -> None:
    few = samples.planted()
    one = replace(few, mappings=(replace(few.mappings[0], path=few.mappings[0].path[:3]),))
    turned = [
        text.get_text() for text in texts(mapping_figure(one)) if text.get_rotation() == 90
    ]
    words_below = ["<|endoft…", "The", "opposite", "of", '"', "large", '"', "is", '"']
    assert turned[: 3 * 9] == words_below * 3
    many = words(mapping_figure(samples.long(60)))
    # The sentence, and two maps in a row.
    assert many.count("40") == 1 + 2 and many.count("59") == 1 + 1


def test_a_question_that_is_not_clear_says_so_before_all_else() -> None:
    why = "the model hardly says 'small' (probability 0.01)"
    question = QuestionControl("weak", (why,), (), 0.01, ("small", "cold"))
    weak = replace(samples.planted(), question=question)
    caption = next(word for word in words(circuit_figure(weak)) if "question" in word)
    assert caption.startswith(f"A weak question: {why}. Both mappings")
    figure = mapping_figure(weak)
    assert f"A weak question: {why} All 5 heads map" in " ".join(words(figure))
    assert_that_no_text_is_cut_or_overlaps(figure)


def test_a_reason_for_doubt_is_said_whole() -> None:
    doubt = "as many random heads reach 0.99 (95th percentile) where these reach 1.00"
    doubted = replace(samples.planted().mappings[0], doubts=(doubt,))
    figure = mapping_figure(replace(samples.planted(), mappings=(doubted,)))
    assert f'large(5) → "(8): modulation withheld, {doubt}' in " ".join(words(figure))
    assert_that_no_text_is_cut_or_overlaps(figure)


def test_layers_in_which_nothing_happens_fold_and_the_figure_says_so() -> None:
    said = words(circuit_figure(samples.deep()))
    assert {"1–11", "13–19", "23–28", "22", "29"} <= set(said)
    assert "Folded" in " ".join(said) and "Folded" not in " ".join(
        words(circuit_figure(samples.planted()))
    )


@pytest.mark.parametrize(
    ("left", "right"),
    [
        (samples.dense, samples.planted),
        (samples.planted, samples.dense),
        (samples.planted, None),
        (samples.dense, None),
        (samples.deep, None),
        (samples.long, None),
        (samples.empty, None),
        (samples.planted, samples.hostile),
    ],
)
def test_no_text_is_cut_off_overlaps_another_or_is_too_small(left, right) -> None:
    assert_that_no_text_is_cut_or_overlaps(mapping_figure(left(), right() if right else None))
    assert_that_no_text_is_cut_or_overlaps(circuit_figure(left()))


def test_two_circuits_fill_a_page_of_two_columns_and_one_fills_its_right_half() -> None:
    assert mapping_figure(samples.dense(), samples.planted()).get_size_inches()[
        0
    ] == pytest.approx(7.0, abs=0.02)
    assert mapping_figure(samples.planted()).get_size_inches()[0] < 4.2


def test_a_position_that_reads_itself_has_no_arrow_and_is_drawn() -> None:
    own = samples.mapping_of(5, 5, [(Head(3, 4), 0.4)], total=0.4)
    figure = circuit_figure(replace(samples.planted(), mappings=(own,), focus=(5, 5)))
    assert "L3H4" in words(figure)
    assert not [patch for patch in figure.axes[0].patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.long
def test_the_same_figure_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(mapping_figure(samples.dense(), samples.planted()), tmp_path / name)
    for form in ("svg", "png", "pdf"):
        assert (tmp_path / "one" / f"figure.{form}").read_bytes() == (
            tmp_path / "two" / f"figure.{form}"
        ).read_bytes()


@settings(max_examples=15, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=20))
def test_any_tokens_can_be_drawn(tokens: list[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert words(mapping_figure(samples.hostile(tuple(tokens))))


def test_hostile_tokens_are_drawn_and_saved_without_a_warning(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        save_figure(mapping_figure(samples.hostile(samples.HOSTILE)), tmp_path)
        save_figure(mapping_figure(samples.hostile(("$\\frac$", "$x$ $", "%"))), tmp_path)


def test_open_circles_stay_open_in_a_dark_figure(tmp_path: Path) -> None:
    figure = compare(samples.planted(), samples.planted()).figure()
    open_circles = [
        line for line in figure.axes[0].get_lines() if line.get_markerfacecolor() == "none"
    ]
    assert open_circles
    (saved,) = save_figure(figure, tmp_path, ["svg"], theme="dark")
    assert saved.stat().st_size
    assert all(line.get_markerfacecolor() == "none" for line in open_circles)


def test_a_dark_figure_has_light_letters_and_afterwards_its_own_colours(tmp_path: Path) -> None:
    figure = circuit_figure(samples.planted())
    before = [to_hex(str(text.get_color())) for text in texts(figure)]
    (saved,) = save_figure(figure, tmp_path, ["svg"], theme="dark")
    assert saved.name == "figure-dark.svg"
    written = set(re.findall(r"fill: (#[0-9a-f]{6})", saved.read_text()))
    assert canvas.INK not in written and canvas.PAPER not in written
    assert [to_hex(str(text.get_color())) for text in texts(figure)] == before
    with pytest.raises(PromptError, match="light or dark"):
        save_figure(figure, tmp_path, theme="sepia")  # type: ignore[arg-type]


def test_dark_colours_keep_their_hue_and_the_order_of_their_lightness() -> None:
    ramp = canvas.colormap()(np.linspace(0, 1, 20))[:, :3]
    light = darkened(ramp) @ [0.2126, 0.7152, 0.0722]
    assert (np.diff(light) > 0).all()  # more attention is lighter, where on paper it is darker
    red = darkened(to_rgba_array(canvas.RED))[0]
    assert red[0] > max(red[1:3]) and red[3] == 1
