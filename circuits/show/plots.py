"""What plots on axes have in common: the finding and the question above, bars with numbers, a scale of colours.

A figure of our own has its heading in a strip above the plots and its notes in one below. On axes that are given,
the heading is the title of the axes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.show.canvas import (
    BODY,
    INK,
    LINE,
    MUTED,
    NOTE,
    SMALL,
    Font,
    ShownFigure,
    effect_colour,
    figure_around,
)
from circuits.show.legend import LINE_HEIGHT, balanced, to_heading, wrapped

_EDGE: Final = 4.0  # points from the edges of the figure to its texts


def axes_for(
    ax: Axes | None,
    size: tuple[float, float],
    finding: str,
    question: str,
    *,
    notes: str = "",
) -> Axes:
    """The given axes with a title, or axes of this size (inches) on a new figure, below a heading."""
    if ax is None:
        return framed(None, size, finding, question, notes=notes).add_subplot()
    width = ax.get_window_extent().width / figure_around(ax).dpi * 72
    lines = balanced(finding, Font(BODY, bold=True), width) + balanced(question, NOTE, width)
    ax.set_title("\n".join(lines), fontsize=SMALL)
    return ax


def framed(
    figure: Figure | None,
    size: tuple[float, float],
    finding: str,
    question: str,
    *,
    notes: str = "",
) -> Figure:
    """A figure (new, unless it is given) with this much space for plots, in inches, between heading and notes."""
    if figure is None:
        figure = ShownFigure(dpi=300)
    width, height = size
    # Letters on a screen are up to 3% wider than in print.
    inner = 0.97 * (72 * width - 2 * _EDGE)
    heading = to_heading(finding, question, inner)
    below = wrapped(notes, NOTE, inner)
    top = heading.height + _EDGE
    bottom = LINE_HEIGHT * len(below)
    whole = 72 * height + top + bottom
    figure.set_size_inches(width, whole / 72)
    figure.set_layout_engine(
        "constrained", rect=(0, bottom / whole, 1, 1 - (top + bottom) / whole)
    )
    for y, line, font in heading.lines:
        _write(figure, line, font, 1 - (_EDGE / 2 + y) / whole)
    for number, line in enumerate(below, 1):
        _write(figure, line, NOTE, 1 - (whole - bottom + LINE_HEIGHT * number - 3) / whole)
    return figure


def _write(figure: Figure, text: str, font: Font, y: float) -> None:
    x = _EDGE / 72 / float(figure.get_size_inches()[0])
    figure.text(x, y, text, fontsize=font.size, color=font.colour, fontweight=font.weight)


def draw_bars(
    ax: Axes,
    names: Sequence[str],
    effects: Sequence[float],
    *,
    whole: int = 1,
    notes: Sequence[str] | None = None,
) -> None:
    """Bars from the top, each with its number (and a note) behind it; the first `whole` are dark, as they are
    made of the others."""
    colours = [INK] * whole + [effect_colour(effect) for effect in effects[whole:]]
    ax.barh(range(len(effects)), effects, color=colours, height=0.7)
    ax.set_yticks(range(len(effects)), names)
    for row, effect in enumerate(effects):
        text = with_minus(f"{effect:z.3f}")
        if notes is not None:
            text = f"{text}  {notes[row]}".rstrip()
        write_beside(ax, max(effect, 0.0), row, text)
    ax.axvline(0, color=LINE, linewidth=0.6)
    ax.spines[["top", "right", "left"]].set_visible(False)
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", color=MUTED)


def with_minus(number: str) -> str:
    """A written number with a minus where it has a hyphen, as the numbers of axes have."""
    return number.replace("-", "−")


def write_beside(
    ax: Axes, x: float, y: float, text: str, *, gap: float = 2.0, colour: str = INK
) -> None:
    """Write small letters `gap` points to the right of a point."""
    ax.annotate(
        text,
        (x, y),
        (gap, 0),
        textcoords="offset points",
        va="center",
        fontsize=SMALL,
        color=colour,
    )


def add_scale(axes: Axes | Sequence[Axes], label: str) -> None:
    """The scale of the colours of the first image of the axes, at their right."""
    first = axes if isinstance(axes, Axes) else axes[0]
    bar = figure_around(first).colorbar(
        first.get_images()[0], ax=axes, fraction=0.05, pad=0.02, aspect=25
    )
    bar.outline.set_linewidth(0.4)  # type: ignore[operator]
    bar.ax.tick_params(length=0, labelsize=SMALL, color=MUTED)
    bar.set_label(label, labelpad=3)
