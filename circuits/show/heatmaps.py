"""Maps of numbers on named axes: patched sites, paths and readings, as heat maps and as text.

1. The second axis runs to the right. Layers run up, so that layer 0 is at the bottom as in every figure; another
   first axis runs down. A third axis (positions of heads) is drawn for the heads with the strongest cells, a row
   each.
2. Effects are drawn on a scale centred at 0, blue for the answer and orange with a minus against it. A cell that
   was not measured is grey.
3. `effect_map` draws the effect of every head on one mapping, layer by head.
4. Each drawing function takes `ax=None` and returns the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from circuits.components import Head
from circuits.errors import PromptError
from circuits.instruments.grids import Axis, Patching, Paths
from circuits.instruments.reading_records import (
    READING,
    HeadScores,
    LogitAttribution,
    LogitLens,
)
from circuits.show.canvas import (
    COLUMN,
    EFFECT,
    INK,
    LINE,
    NAME,
    PAPER,
    RED,
    SMALL,
    WIDTH,
    Stops,
    colormap,
    figure_around,
    looks,
    width_of,
)
from circuits.show.plots import add_scale, axes_for
from circuits.show.scene import to_scene
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import asked_rows, model_words
from circuits.show.words import plural, question_words, spell, verdict_lines, verdict_words

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

MapOnAxes = Patching | Paths | LogitAttribution | LogitLens | HeadScores

_MOST_HEADS: Final = 24  # rows of a map of heads by position
_MOST_CELLS: Final = 12  # rows of a table of the strongest cells
_MOST_LABELS: Final = 40  # along an axis; of a longer one every so many are named
_MOST_STAGES: Final = 3  # of positions on the way up that a title names
_FAINT: Final = 0.1  # of the scale
_CELL: Final = 0.17  # inches, the height of a cell
_LABEL: Final = 10  # characters of a token along an axis
_UNMEASURED: Final = "#dfe3e8"  # the colour of a cell without a number
SMALLEST_SCALE: Final = 0.05  # on a smaller scale, what does nothing would look strong


# Figures


def grid_figure(
    result: MapOnAxes, *, title: str | None = None, ax: Axes | None = None
) -> Figure:
    """The map of any result on axes, drawn into `ax` or on a figure of its own, one column wide.

    >>> patched = circuits.patch(model, TEXT, "mlp", swap={"large": "hot"})
    >>> show.grid_figure(patched).axes[0].get_ylabel()
    'layer'
    """
    values, rows, columns = _two_axes(result)
    finding, question = grid_words(result)
    is_effect = result.MEASURE == "effect"
    with looks():
        ax = axes_for(ax, _size(rows, columns), title or finding, question)
        least = SMALLEST_SCALE if is_effect else 0.0
        draw_map(ax, values, rows, columns, least=least)
        add_scale(ax, "effect (share of the gap)" if is_effect else result.MEASURE)
    return figure_around(ax)


def effect_map(
    effects: Circuit | np.ndarray,
    *,
    share: float | None = None,
    carriers: Sequence[str | Head] = (),
    title: str = "",
    ax: Axes | None = None,
) -> Figure:
    """What every head does, (layer, head), on a scale centred at 0; of a circuit, on the mapping in front.

    Framed are the carriers: those given, else of a circuit the carriers of `share`, by default the circuit's.
    The title of a circuit's map is by default what was found; below it stands what was asked.

        >>> axes = show.effect_map(found).axes[0]
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('head', 'layer')
    """
    framed = [Head.parse(head) for head in carriers]
    question = ""
    if isinstance(effects, np.ndarray):
        values = effects
    else:
        scene = to_scene(effects, share)
        values = _effects_of(effects)
        title = title or scene.finding
        question = scene.question()
        framed = framed or [Head.parse(head) for head in scene.carriers]
    if values.ndim != 2:
        raise PromptError(
            f"a map of effects is layer by head, so it has 2 axes, not {values.ndim}"
        )
    rows, columns = numbered("layer", values.shape[0]), numbered("head", values.shape[1])
    side = min(0.2, 5.0 / max(values.shape))  # inches, of a cell
    size = (max(len(columns) * side + 1.2, 2.6), len(rows) * side + 0.5)
    with looks():
        ax = axes_for(ax, size, title, question, notes="framed: carriers" if framed else "")
        draw_map(ax, values, rows, columns, least=SMALLEST_SCALE)
        ax.set_aspect("equal")
        for head in framed:
            _frame_cell(ax, head, RED, line=1.2)
            # A white line inside the red one, for readers to whom red is as dark as a strong effect.
            _frame_cell(ax, head, PAPER, line=0.6, inset=0.09)
        add_scale(ax, "effect (share of the gap)")
    return figure_around(ax)


def _frame_cell(ax: Axes, head: Head, colour: str, *, line: float, inset: float = 0.0) -> None:
    """Frame a head's cell, which is 1 wide; `inset` is how far inside the frame lies."""
    corner = (head.index - 0.5 + inset, head.layer - 0.5 + inset)
    side = 1 - 2 * inset
    frame = Rectangle(corner, side, side, fill=False, edgecolor=colour, linewidth=line)
    ax.add_patch(frame).set(zorder=3, clip_on=False)


def _effects_of(circuit: Circuit) -> np.ndarray:
    """The effects (layer, head) of all heads on the mapping in front; NaN where none was measured."""
    effects = np.full((circuit.source.layers, circuit.source.heads), np.nan)
    if circuit.front is not None:
        for each in circuit.front.heads:
            effects[each.head.layer, each.head.index] = each.effect
    return effects


def numbered(name: str, size: int) -> Axis:
    """An axis whose places are counted from 0."""
    return Axis(name, tuple(map(str, range(size))))


def _two_axes(result: MapOnAxes) -> tuple[np.ndarray, Axis, Axis]:
    """The values of a map with its two axes; of three axes the first two are joined, strongest rows kept."""
    if len(result.axes) == 2:
        return result.values, *result.axes
    layers, heads, columns = result.axes
    flat = result.values.reshape(-1, len(columns))
    names = [f"L{layer}H{head}" for layer in layers.labels for head in heads.labels]
    strength = np.nan_to_num(np.abs(flat)).max(1)
    kept = sorted(np.argsort(-strength, kind="stable")[:_MOST_HEADS].tolist())
    return flat[kept], Axis("head", tuple(names[row] for row in kept)), columns


def _size(rows: Axis, columns: Axis) -> tuple[float, float]:
    """The figure's width and height in inches."""
    width = max(COLUMN, min(WIDTH, 1.2 + 0.1 * len(columns)))
    names = [spell(label, longest=_LABEL) for label in columns.labels]
    below = max(width_of(name, NAME) for name in names) / 72
    cell = min(_CELL, 6.0 / len(rows))
    return width, 0.4 + below + max(0.9, cell * len(rows))


def draw_map(
    ax: Axes,
    values: np.ndarray,
    rows: Axis,
    columns: Axis,
    *,
    stops: Stops = EFFECT,
    limits: tuple[float, float] | None = None,
    least: float = 0.0,
) -> None:
    """Draw values (row, column) with the names of their axes and places; NaN is grey.

    The scale has these limits, else it reaches to the strongest value, and no less far than `least`.
    """
    strongest = float(np.nan_to_num(np.abs(values)).max(initial=least)) or 1.0
    low, high = (-strongest, strongest) if limits is None else limits
    scale = colormap(stops).with_extremes(bad=_UNMEASURED)
    origin = "lower" if rows.name.endswith("layer") else "upper"
    ax.imshow(
        values,
        cmap=scale,
        vmin=low,
        vmax=high,
        interpolation="none",
        aspect="auto",
        origin=origin,
    )
    if low < 0:
        _mark_negative(ax, values, low)
    _name_places(ax, rows, columns)
    ax.set_xticks(np.arange(0.5, len(columns) - 1), minor=True)
    ax.set_yticks(np.arange(0.5, len(rows) - 1), minor=True)
    ax.grid(which="minor", color=LINE, linewidth=0.25)
    ax.tick_params(which="both", length=0, pad=2, labelsize=SMALL)


def _mark_negative(ax: Axes, values: np.ndarray, low: float) -> None:
    """Write a minus into the cells against the answer, for readers who see no hue; faint cells have none."""
    for row, column in np.argwhere(values <= _FAINT * low):
        colour = PAPER if values[row, column] < 0.75 * low else INK
        ax.text(column, row, "−", ha="center", va="center", fontsize=SMALL, color=colour)


def _name_places(ax: Axes, rows: Axis, columns: Axis) -> None:
    """Write the names of axes and places; names that are longer than a number stand upright below."""
    ax.set_xlabel(columns.name)
    ax.set_ylabel(rows.name)
    for drawn, axis in ((ax.xaxis, columns), (ax.yaxis, rows)):
        every = -(-len(axis) // _MOST_LABELS)
        ticks = range(0, len(axis), every)
        drawn.set_ticks(ticks, [_shortened(axis.labels[tick]) for tick in ticks])
    if max(map(len, columns.labels)) > 2:
        ax.tick_params(axis="x", rotation=90)


def _shortened(label: str) -> str:
    """A label with its position whole and its word cut: `opposit…(2)`."""
    word, bracket, position = label.rpartition("(")
    if not bracket or not position.endswith(")"):
        return spell(label, longest=2 * _LABEL)
    return f"{spell(word, longest=_LABEL)}({position}" if word else label


def grid_words(result: MapOnAxes) -> tuple[str, str]:
    """What a map shows and where it is strongest, and what was asked of which model."""
    if isinstance(result, Patching | Paths):
        question = question_words(result, result.source.name)
        if len(result.pairs) > 1:
            question += (
                f"; mean of {plural(len(result.pairs), 'pair')}, of which this is the first"
            )
    else:
        question = f"{spell(result.model, longest=30)}; {READING}"
    what = _what_is_shown(result)
    strongest = result.strongest(1)
    if not strongest:
        return what, question
    if isinstance(result, Patching) and result.sites == "residual":
        way = _way_up(result)
        if len(way) <= _MOST_STAGES:
            return f"{what}: strongest at {', then '.join(way)}", question
    place, value = strongest[0]
    return f"{what}: strongest at {_place_words(result.axes, place)}, {value:z.2f}", question


def _place_words(axes: Sequence[Axis], place: Sequence[str]) -> str:
    """Where a cell lies: `layer 3, to(14)`, `L5H1`, `sender M0, receiver M2`."""
    names = [axis.name for axis in axes]
    if names[:2] == ["layer", "head"]:
        return ", ".join((f"L{place[0]}H{place[1]}", *place[2:]))
    where = []
    for name, label in zip(names, place, strict=True):
        where.append(label if name == "position" else f"{name} {label}")
    return ", ".join(where)


def _way_up(result: Patching) -> list[str]:
    """Where the residual stream has its strongest effect on the way up: `large(5) in layers 0–3`."""
    layers, positions = result.axes
    stages: list[
        tuple[str, int, int]
    ] = []  # a position, and the layers in which it is the strongest
    for layer, effects in enumerate(np.nan_to_num(result.values)):
        position = positions.labels[int(effects.argmax())]
        first = layer
        if stages and stages[-1][0] == position:
            first = stages.pop()[1]
        stages.append((position, first, layer))
    words = []
    for position, first, last in stages:
        where = f"layer {layers.labels[first]}"
        if first < last:
            where = f"layers {layers.labels[first]}–{layers.labels[last]}"
        words.append(f"{position} in {where}")
    return words


def _what_is_shown(result: MapOnAxes) -> str:
    if isinstance(result, LogitAttribution):
        return "direct logit attribution"
    if isinstance(result, LogitLens):
        return "logit lens"
    if isinstance(result, HeadScores):
        return "scores of heads"
    if isinstance(result, Paths):
        return f"paths, {result.ablation.kind}"
    where = ""
    if result.sites not in ("residual", "attention", "mlp") and len(result.axes) == 2:
        all_of_them = len(result.positions) == len(result.prompt)
        where = " at all positions" if all_of_them else f" at {_listed(result.positions)}"
    return f"{result.sites}{where}, {result.ablation.kind}"


def _listed(positions: Sequence[int]) -> str:
    shown = ", ".join(map(str, positions[:6]))
    return f"{shown}, …" if len(positions) > 6 else shown


# Text


def grid_text(result: Patching | Paths) -> str:
    """The question and the strongest cells as plain text, 100 columns wide."""
    return plain(grid_sections(result))


def grid_sections(result: Patching | Paths) -> list[Section]:
    """The question with its verdict, and the strongest cells."""
    return [_asked_section(result), _strongest_section(result)]


def _asked_section(result: Patching | Paths) -> Section:
    """The model, the verdict on the question, and what was compared."""
    verdict = verdict_words(result) or "a clear question"
    _, *notes = verdict_lines(result)
    rows = asked_rows(result)
    if len(result.pairs) > 1:
        left_out = f", {result.weak} left out as weak" if result.weak else ""
        rows.insert(0, ("pairs", f"{len(result.pairs)}{left_out}; the first is"))
    return Section(model_words(result.source), [f"Verdict: {verdict}", *notes], rows=rows)


def _strongest_section(result: Patching | Paths) -> Section:
    """The cells with the largest numbers."""
    cells = result.strongest()
    names = [axis.name for axis in result.axes]
    is_of_heads = names[:2] == ["layer", "head"]
    shown = ["head", *names[2:]] if is_of_heads else names
    columns = [Column(spell(name, longest=40)) for name in shown]
    columns.append(Column(result.MEASURE, "z.3f"))
    rows = []
    for place, value in cells[:_MOST_CELLS]:
        if is_of_heads:
            layer, head, *others = place
            place = (f"L{layer}H{head}", *others)
        rows.append((*(spell(name, longest=40) for name in place), value))
    title, _ = grid_words(result)
    if len(cells) > _MOST_CELLS:
        title += f"; the strongest {_MOST_CELLS} of {len(cells):,}"
    return Section(title, (), columns, rows)
