"""Why a head looks where it looks, and who wrote what it moves: an answer of `why` as text and as a picture.

It shows the three sides of the head (query, key, value), the strongest writers of each side, and the QK
attribution of the attention score.
"""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle

from circuits.components import Side
from circuits.show import canvas, counterfactual_words, metric_words, spell
from circuits.show.plots import draw_bars, framed, with_minus
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import SMALL, token, visible
from circuits.show.words import question_words, verdict_lines, verdict_words

if TYPE_CHECKING:
    from circuits.tracing.why_record import QKAttribution, SideWriters, Why

_SIDES: Final[dict[Side, str]] = {
    "query": "query (what it asks for)",
    "key": "key (what it finds)",
    "value": "value (what it moves)",
}
_MOST_WRITERS: Final = 8  # writers of a side, and parts of a score
_LONGEST_VERDICT: Final = 200  # characters of a verdict above the picture
_FEWEST_ROWS: Final = 6  # of bars, so that the map beside them is not too small
_LEAST_SIDE: Final = 0.05  # of the strongest side; one with less is a line, not a panel
# Tokens along an attention map; of a longer prompt only key and query are named.
_MOST_TICKS: Final = 16


def why_text(why: Why) -> str:
    """The answer as plain text, 100 columns wide."""
    return plain(why_sections(why))


def why_sections(why: Why) -> list[Section]:
    """The head and its sides, the writers of each side, and the QK attribution of its score."""
    sections = [_head(why)]
    for side in why.sides:
        sections.append(_side(side))
    if why.qk_attribution is not None:
        sections.append(_qk_attribution(why.qk_attribution))
    return sections


def _ends(why: Why) -> str:
    """`Ben(9) → to(13)`."""
    key = "every key" if why.every_key else token(why, why.key)
    return f"{key} → {token(why, why.query)}"


def _head(why: Why) -> Section:
    """What was asked, and a row for each side of the head."""
    lines = [
        *verdict_lines(why),
        f"{metric_words(why, longest=80)}, gap {why.gap:z.2g}",
        f"counterfactual {counterfactual_words(why, longest=80)}",
        f"ablation {why.ablation}",
        *(
            [f"means over {len(why.pairs)} pairs, of which this is the first"]
            if why.pairs
            else []
        ),
        f"attention {why.weight:.2f} (clean run) and {why.counterfactual_weight:.2f} (counterfactual run)",
        f"effect {why.effect:z.3f}, of its attention weight alone {why.pattern:z.3f}",
    ]
    columns = (
        Column("side"),
        Column("effect", "z.3f"),
        Column("attention then", ".2f"),
        Column("first writers together", ">"),
    )
    rows = []
    for side in why.sides:
        together = (
            f"{side.together:z.3f} by {side.leading}" if side.leading else "no writer below"
        )
        rows.append((_SIDES[side.side], side.effect, side.weight, together))
    return Section(
        f"{visible(why.source.name)}: why {why.head} reads {_ends(why)}", lines, columns, rows
    )


def _side(side: SideWriters) -> Section:
    writers = [each for each in side.writers if abs(each.effect) >= SMALL]
    title = f"Who wrote its {side.side}"
    if not writers:
        return Section(title, ["no writer has an effect there"])
    rows = [(each, each.effect, each.weight) for each in writers[:_MOST_WRITERS]]
    columns = (Column("writer"), Column("effect", "z.3f"), Column("attention then", ".2f"))
    return Section(title, (), columns, rows)


def _qk_attribution(attribution: QKAttribution) -> Section:
    """The largest parts of the clean score, each by one writer of the query and one of the key."""
    shown = attribution.parts[:_MOST_WRITERS]
    left = attribution.rest + sum(each.part for each in attribution.parts[_MOST_WRITERS:])
    line = f"the score is {attribution.score:z.2f}; the parts below and {left:z.2f} of all others add up to it"
    rows = [(each.query_writer, each.key_writer, each.part) for each in shown]
    columns = (Column("query writer"), Column("key writer"), Column("part", "z.2f"))
    return Section("QK attribution of the clean score", [line], columns, rows)


# The picture


def why_figure(why: Why, *, figure: Figure | None = None) -> Figure:
    """The attention map with the edge framed, and a column of bars for each side that has an effect.

    The first bar of a column is the whole side, the others are its strongest writers. All columns have one
    scale. A side with hardly any effect is named in the line below.
    """
    sides = _drawn_sides(why)
    columns = [_bars(side) for side in sides]
    most_bars = max(map(len, columns), default=1)
    effects = [effect for bars in columns for _, effect in bars] or [1.0]
    low, high = min(0.0, *effects), max(0.0, *effects)
    room = 0.28 * (high - low or 1.0)  # for the number beside a bar
    left = low - room if low < 0 else low
    with canvas.looks():
        width = canvas.WIDTH if len(sides) > 1 else 0.72 * canvas.WIDTH
        # Words along the map need less space than bars.
        rows = max(most_bars, _FEWEST_ROWS, 0.8 * min(len(why.prompt), _MOST_TICKS))
        size = (width, 0.7 + 0.16 * rows)
        figure = framed(figure, size, *_words_above(why), notes=_explained(why, sides))
        axes = figure.subplots(1, 1 + len(sides), width_ratios=(1.15, *map(_width, columns)))
        axes = [axes] if isinstance(axes, Axes) else list(axes)
        _draw_map(axes[0], why)
        for axis, side, bars in zip(axes[1:], sides, columns, strict=True):
            axis.set_title(_SIDES[side.side].replace(" (", "\n("), fontsize=canvas.SMALL)
            names, effects = zip(*bars, strict=True)
            draw_bars(axis, names, effects)
            axis.set_xlabel("effect (share of the gap)")
            axis.set_xlim(left, high + room)
            # So that the bars of all sides stand in the same rows.
            axis.set_ylim(most_bars - 0.5, -0.5)
    return figure


def _words_above(why: Why) -> tuple[str, str]:
    """What was found, and what was asked with a verdict that is not clear."""
    strongest = max(why.sides, key=lambda side: abs(side.effect))
    finding = f"{why.head} reads {_ends(why)} mostly because of its {strongest.side}"
    if abs(strongest.effect) < SMALL:
        finding = f"No side of {why.head} at {_ends(why)} has an effect"
    question = question_words(why, why.source.name)
    verdict = textwrap.shorten(verdict_words(why), _LONGEST_VERDICT, placeholder=" …")
    return finding, f"{question}; {verdict}" if verdict else question


def _drawn_sides(why: Why) -> list[SideWriters]:
    """The sides with an effect that is something beside that of the strongest side."""
    strongest = max(abs(side.effect) for side in why.sides)
    least = max(SMALL, _LEAST_SIDE * strongest)
    return [side for side in why.sides if abs(side.effect) >= least]


def _explained(why: Why, drawn: Sequence[SideWriters]) -> str:
    """The sides that are not drawn, and what names and numbers of the picture mean."""
    parts = []
    for side in why.sides:
        name = f"{side.side.capitalize()} side"
        if abs(side.effect) < SMALL:
            parts.append(f"{name}: no effect ({side.effect:z.3f}).")
        elif side not in drawn:
            parts.append(f"{name}: hardly any effect ({with_minus(f'{side.effect:z.3f}')}).")
    parts.append(
        f"The head's message swapped has an effect of {with_minus(f'{why.effect:z.2f}')}. Whole side: what the "
        "head reads there comes from the counterfactual run alone. Below it its writers, each swapped for this "
        f"head alone{_names_explained(drawn)}. Effects do not add up."
    )
    return " ".join(parts)


def _names_explained(drawn: Sequence[SideWriters]) -> str:
    """What names of writers mean, by the first of each kind: `: M4@13 is the MLP of layer 4 at position 13`."""
    meanings = {}
    for side in drawn:
        for each in side.writers[:_MOST_WRITERS]:
            where = "every position" if each.position is None else f"position {each.position}"
            layer, kind = each.writer.layer, each.writer.kind
            if kind == "mlp" and abs(each.effect) >= SMALL:
                meanings.setdefault(kind, f"{each} is the MLP of layer {layer} at {where}")
            if kind == "head" and abs(each.effect) >= SMALL:
                meanings.setdefault(kind, f"{each} is a head of layer {layer} at {where}")
    return f": {', '.join(meanings.values())}" if meanings else ""


def fill_with_why(folder: Path, why: Why) -> None:
    """Write the answer and its picture into a folder."""
    why.save(folder)
    canvas.save_figure(why_figure(why), folder, name="why")


def _bars(side: SideWriters) -> list[tuple[str, float]]:
    """The name and the effect of each bar of a side."""
    bars = [("whole side", side.effect)]
    for each in side.writers:
        if abs(each.effect) >= SMALL:
            bars.append((str(each), each.effect))
    return bars[: _MOST_WRITERS + 1]


def _width(bars: Sequence[tuple[str, float]]) -> float:
    """The width of a side's column, relative to one with writers."""
    return 1.0 if len(bars) > 1 else 0.6


def _draw_map(axis: Axes, why: Why) -> None:
    """The attention map, (query, key), with the edge framed."""
    length = len(why.prompt)
    axis.set(title="attention", xlabel="key", ylabel="query")
    if why.attention is None:
        axis.text(
            0.5, 0.5, f"{length} tokens", ha="center", va="center", transform=axis.transAxes
        )
        axis.set(xticks=[], yticks=[])
        return
    axis.imshow(
        why.attention, cmap=canvas.colormap(), vmin=0, vmax=1, origin="lower", aspect="equal"
    )
    corner = (why.key - 0.5, why.query - 0.5)
    axis.add_patch(Rectangle(corner, 1, 1, fill=False, edgecolor=canvas.RED, linewidth=1.2))
    if length <= _MOST_TICKS:
        ticks = list(range(length))
        names = [spell(word, longest=9) for word in why.prompt.words]
        axis.tick_params(length=0, pad=1)
        axis.tick_params(axis="x", rotation=90)
    else:
        ticks = sorted({0, why.key, why.query})
        names = [str(tick) for tick in ticks]
    axis.set_xticks(ticks, names)
    axis.set_yticks(ticks, names)
