"""Maps of numbers on named axes: patched sites, paths and readings, as heat maps and as text.

1. The first axis runs down, the second to the right. A third axis (positions of heads) is drawn for the heads
   with the strongest cells, a row each.
2. Effects are drawn on a scale centred at 0, blue for the answer and orange against it. A cell that was not
   measured is grey.
3. Each drawing function takes `ax=None` and returns the figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.show.canvas import (
    COLUMN,
    EFFECT,
    LINE,
    MUTED,
    SMALL,
    WIDTH,
    Font,
    Stops,
    colormap,
    figure_around,
    looks,
    new_axes,
    width_of,
)
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import asked_rows, model_words, note_line
from circuits.show.words import plural, spell, verdict_words

if TYPE_CHECKING:
    from circuits.instruments.grids import OnAxes, Patching, Paths

_MOST_HEADS: Final = 24  # rows of a map of heads by position
_MOST_CELLS: Final = 12  # rows of a table of the strongest cells
_MOST_LABELS: Final = 40  # along an axis; of a longer one every so many are named
_CELL: Final = 0.17  # inches, the height of a cell
_LABEL: Final = 10  # characters of a token along an axis
_UNMEASURED: Final = "#dfe3e8"  # the colour of a cell without a number
_NAME: Final = Font(SMALL)


# Figures


def grid_figure(result: OnAxes, *, title: str | None = None, ax: Axes | None = None) -> Figure:
    """The map of any result on axes, drawn into `ax` or on a figure of its own, one column wide.

    >>> patched = circuits.patch(model, TEXT, "mlp", swap={"large": "hot"})
    >>> show.grid_figure(patched).axes[0].get_ylabel()
    'layer'
    """
    values, rows, columns = _two_axes(result)
    if title is None:
        title = grid_title(result)
    label = (
        f"{result.MEASURE} (share of the gap)" if result.MEASURE == "effect" else result.MEASURE
    )
    with looks():
        if ax is None:
            ax = new_axes(*_size(rows[1], columns[1]))
        draw_map(ax, values, rows, columns, label=label)
        ax.set_title(title, fontsize=SMALL, wrap=True)
    return figure_around(ax)


def _two_axes(
    result: OnAxes,
) -> tuple[np.ndarray, tuple[str, Sequence[str]], tuple[str, Sequence[str]]]:
    """The values of a map with its two axes; of three axes the first two are joined, strongest rows kept."""
    values = result.values
    named = [(axis.name, axis.labels) for axis in result.axes]
    if len(named) == 2:
        return values, named[0], named[1]
    (_, layers), (_, heads), columns = named
    flat = values.reshape(-1, values.shape[-1])
    names = [f"L{layer}H{head}" for layer in layers for head in heads]
    strength = np.nan_to_num(np.abs(flat)).max(1)
    kept = sorted(np.argsort(-strength, kind="stable")[:_MOST_HEADS].tolist())
    return flat[kept], ("head", [names[row] for row in kept]), columns


def _size(rows: Sequence[str], columns: Sequence[str]) -> tuple[float, float]:
    """The figure's width and height in inches."""
    width = max(COLUMN, min(WIDTH, 1.2 + 0.1 * len(columns)))
    below = max(width_of(spell(name, longest=_LABEL), _NAME) for name in columns) / 72
    cell = min(_CELL, 6.0 / len(rows))
    return width, 0.75 + below + max(0.9, cell * len(rows))


def draw_map(
    ax: Axes,
    values: np.ndarray,
    rows: tuple[str, Sequence[str]],
    columns: tuple[str, Sequence[str]],
    *,
    label: str,
    stops: Stops = EFFECT,
    limits: tuple[float, float] | None = None,
    bar: bool = True,
) -> None:
    """Draw values (row, column) with the names of their axes and places; NaN is grey."""
    strongest = float(np.nan_to_num(np.abs(values)).max(initial=0.0)) or 1.0
    low, high = (-strongest, strongest) if limits is None else limits
    scale = colormap(stops).with_extremes(bad=_UNMEASURED)
    look: dict[str, Any] = {"cmap": scale, "vmin": low, "vmax": high, "interpolation": "none"}
    image = ax.imshow(values, aspect="auto", **look)
    _name_places(ax, rows, columns)
    ax.set_xticks(np.arange(0.5, len(columns[1]) - 1), minor=True)
    ax.set_yticks(np.arange(0.5, len(rows[1]) - 1), minor=True)
    ax.grid(which="minor", color=LINE, linewidth=0.25)
    ax.tick_params(which="both", length=0, pad=2, labelsize=SMALL)
    if not bar:
        return
    scale_bar = ax.figure.colorbar(image, ax=ax, fraction=0.05, pad=0.02, aspect=25)
    scale_bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    scale_bar.ax.tick_params(length=0, labelsize=SMALL, color=MUTED)
    scale_bar.set_label(label, fontsize=SMALL, labelpad=3)


def _name_places(
    ax: Axes, rows: tuple[str, Sequence[str]], columns: tuple[str, Sequence[str]]
) -> None:
    """Write the names of axes and places; names that are longer than a number stand upright below."""
    ax.set_xlabel(columns[0], fontsize=SMALL)
    ax.set_ylabel(rows[0], fontsize=SMALL)
    for axis, labels in ((ax.xaxis, columns[1]), (ax.yaxis, rows[1])):
        every = -(-len(labels) // _MOST_LABELS)
        ticks = list(range(0, len(labels), every))
        axis.set_ticks(ticks, [_shortened(labels[tick]) for tick in ticks])
    if max(map(len, columns[1])) > 2:
        ax.tick_params(axis="x", rotation=90)


def _shortened(label: str) -> str:
    """A label with its position whole and its word cut: `opposit…(2)`."""
    word, bracket, position = label.rpartition("(")
    if not bracket or not position.endswith(")"):
        return spell(label, longest=2 * _LABEL)
    return f"{spell(word, longest=_LABEL)}({position}" if word else label


def grid_title(result: OnAxes) -> str:
    """What a map shows, in one or two lines."""
    words = _WHAT[type(result).__name__](result)
    name = result.model if hasattr(result, "model") else result.source.name  # type: ignore[attr-defined]
    return f"{spell(name, longest=30)}: {words}"


def _patched_words(result: Any) -> str:
    pairs = f", {plural(len(result.pairs), 'pair')}" if len(result.pairs) > 1 else ""
    where = ""
    if result.sites not in ("residual", "attention", "mlp") and len(result.axes) == 2:
        all_of_them = len(result.positions) == len(result.prompt)
        where = " at all positions" if all_of_them else f" at {_listed(result.positions)}"
    return f"{result.sites}{where}, {result.ablation.kind}{pairs}"


def _listed(positions: Sequence[int]) -> str:
    shown = ", ".join(map(str, positions[:6]))
    return f"{shown}, …" if len(positions) > 6 else shown


_WHAT: Final[dict[str, Any]] = {
    "Patching": _patched_words,
    "Paths": lambda result: f"paths, {result.ablation.kind}",
    "LogitAttribution": lambda _: "direct logit attribution",
    "LogitLens": lambda _: "logit lens",
    "HeadScores": lambda _: "scores of heads",
}


# Text


def grid_text(result: Patching | Paths) -> str:
    """The question and the strongest cells as plain text, 100 columns wide."""
    return plain(grid_sections(result))


def grid_sections(result: Patching | Paths, *, most: int = _MOST_CELLS) -> list[Section]:
    """The question with its verdict, and the strongest cells."""
    return [asked_section(result), strongest_section(result, most=most)]


def asked_section(result: Any) -> Section:
    """The model, the verdict on the question, and what was compared."""
    verdict = verdict_words(result)
    lines = [f"Verdict: {verdict or 'a clear question'}"]
    for note in result.notes:
        if note not in result.question.reasons:  # the verdict has named its reasons
            lines.append(note_line(note))
    rows = [*asked_rows(result)]
    if len(result.pairs) > 1:
        left_out = f", {result.weak} left out as weak" if result.weak else ""
        rows.insert(0, ("pairs", f"{len(result.pairs)}{left_out}; the first is"))
    return Section(model_words(result.source), lines, rows=rows)


def strongest_section(result: OnAxes, *, most: int = _MOST_CELLS) -> Section:
    """The cells with the largest numbers."""
    cells = result.strongest()
    columns = [
        *(Column(spell(axis.name, longest=40)) for axis in result.axes),
        Column(result.MEASURE, "z.3f"),
    ]
    rows = []
    for place, value in cells[:most]:
        rows.append((*(spell(name, longest=40) for name in place), value))
    title = grid_title(result)
    if len(cells) > most:
        title += f"; the strongest {most} of {len(cells):,}"
    return Section(title, (), columns, rows)
