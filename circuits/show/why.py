"""Why a head looks where it looks, as text and as a picture: its three sides and who wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from circuits.components import Side
from circuits.show.canvas import (
    BODY,
    EFFECT,
    INK,
    LINE,
    MUTED,
    RED,
    SMALL,
    WIDTH,
    colormap,
    looks,
    save_figure,
    shade,
)
from circuits.show.scene import counterfactual_words, metric_words, spell
from circuits.show.tables import Section, plain, visible
from circuits.tracing.why_record import SideWriters, WriterEffect

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from circuits.tracing.why_record import Ledger, Why

Bars = tuple["SideWriters", *tuple["WriterEffect", ...]]  # a whole side, and its leading writers

_MOST: Final = 8  # writers and parts that are printed
_BARS: Final = 9  # of one side: the whole of it and its leading writers
_NARROW: Final = 0.5  # the width of a side that no writer fills, beside one that some do
_IDLE: Final = 0.3  # and of one that does nothing
_WORDS: Final = 16  # tokens whose words stand along the map
_SMALL: Final = 0.0005  # effects below this are not listed
_SAYS: Final[dict[Side, str]] = {
    "query": "query (what it asks for)",
    "key": "key (what it finds)",
    "value": "value (what it moves)",
}


def why_text(why: Why) -> str:
    """The answer as plain text, 100 columns wide."""
    return plain(why_sections(why))


def why_sections(why: Why) -> list[Section]:
    """The head and its sides, the writers of each side, and the ledger of its score."""
    sections = [_head(why), *(_side(side) for side in why.sides)]
    return sections if why.ledger is None else [*sections, _ledger(why.ledger)]


def ends(why: Why) -> str:
    """`Ben(9) → to(13)`."""
    words = why.prompt.words
    key = "every key" if why.every_key else f"{visible(words[why.key])}({why.key})"
    return f"{key} → {visible(words[why.query])}({why.query})"


def _head(why: Why) -> Section:
    title = f"{visible(why.source.name)}: why {why.head} reads {ends(why)}"
    look = f"attention {why.weight:.2f} in the clean run, {why.counterfactual_weight:.2f} in the other"
    parts = f"effect {why.effect:z.3f}; its weight alone {why.pattern:z.3f}"
    rows = tuple(
        (_SAYS[each.side], f"{each.effect:z.3f}", f"{each.weight:.2f}", _together(each)) for each in why.sides
    )
    columns = ("side", "effect", "attention then", "first writers together")
    asked = f"{metric_words(why, longest=80)}, counterfactual {counterfactual_words(why, longest=80)}"
    return Section(title, (asked, f"{look}; {parts}"), columns, rows)


def _together(side: SideWriters) -> str:
    return f"{side.together:z.3f} by {side.leading}" if side.leading else "nothing is below"


def _side(side: SideWriters) -> Section:
    shown = [each for each in side.writers if abs(each.effect) >= _SMALL][:_MOST]
    rows = tuple((str(each), f"{each.effect:z.3f}", f"{each.weight:.2f}") for each in shown)
    if not rows:
        return Section(f"Who wrote its {side.side}", ("no writer has an effect there",))
    return Section(f"Who wrote its {side.side}", (), ("writer", "effect", "attention then"), rows)


def _ledger(ledger: Ledger) -> Section:
    rows = tuple((each.query_writer, each.key_writer, f"{each.part:z.2f}") for each in ledger.parts[:_MOST])
    left = ledger.rest + sum(each.part for each in ledger.parts[_MOST:])
    lines = (f"the score is {ledger.score:z.2f}; the parts below and {left:z.2f} of all others add up to it",)
    return Section("Ledger of the clean score", lines, ("query writer", "key writer", "part"), rows)


def why_figure(why: Why, *, figure: Figure | None = None) -> Figure:
    """The head's map with the edge framed, and three columns of bars on one scale: each whole side, and below
    it its leading writers."""
    from matplotlib.figure import Figure

    shown = [_bars(side) for side in why.sides]
    with looks():
        figure = Figure() if figure is None else figure
        figure.set_size_inches(WIDTH, 0.9 + 0.16 * max(map(len, shown)))
        figure.set_layout_engine("constrained")
        axes = figure.subplots(1, 4, width_ratios=(1.15, *map(_width, shown)))
        _draw_map(axes[0], why)
        effects = [each.effect for bars in shown for each in bars]
        limits = min(0.0, *effects), max(0.0, *effects)
        room = 0.28 * (limits[1] - limits[0] or 1.0)
        for axis, bars in zip(axes[1:], shown, strict=True):
            if _width(bars) == _IDLE:
                _draw_idle(axis, bars[0])
                continue
            _draw_bars(axis, bars)
            axis.set_xlim(limits[0] - room * (limits[0] < 0), limits[1] + room)
            axis.set_ylim(max(map(len, shown)) - 0.5, -0.5)  # bars of all sides stand in the same rows
        words = f"{spell(why.source.name, longest=40)}: {why.head}, {ends(why)}"
        figure.suptitle(f"{words}; effect {why.effect:z.2f}", fontsize=BODY, ha="left", x=0.01)
    return figure


def fill_with_why(folder: Path, why: Why) -> None:
    """Write the answer and its picture into a folder."""
    why.save(folder)
    save_figure(why_figure(why), folder, name="why")


def _draw_map(axis: Axes, why: Why) -> None:
    """The attention map, query upwards, with the edge framed."""
    from matplotlib.patches import Rectangle

    length = len(why.prompt)
    axis.set_title("attention")
    axis.set_xlabel("key")
    axis.set_ylabel("query")
    if why.attention is None:
        axis.text(0.5, 0.5, f"{length} tokens", ha="center", va="center", transform=axis.transAxes)
        axis.set_xticks([])
        axis.set_yticks([])
        return
    axis.imshow(why.attention, cmap=colormap(), vmin=0, vmax=1, origin="lower", aspect="equal")
    frame = {"fill": False, "edgecolor": RED, "linewidth": 1.2}
    axis.add_patch(Rectangle((why.key - 0.5, why.query - 0.5), 1, 1, **frame))
    ticks, names = sorted({0, why.key, why.query}), [*map(str, range(length))]
    if length <= _WORDS:
        ticks, names = [*range(length)], [spell(word, longest=9) for word in why.prompt.words]
        axis.tick_params(length=0, pad=1)
        axis.tick_params(axis="x", rotation=90)
    axis.set_xticks(ticks, [names[tick] for tick in ticks])
    axis.set_yticks(ticks, [names[tick] for tick in ticks])


def _bars(side: SideWriters) -> Bars:
    leading = [each for each in side.writers if abs(each.effect) >= _SMALL]
    return side, *leading[: _BARS - 1]


def _width(bars: Bars) -> float:
    """Of a side's column, beside the others."""
    if len(bars) > 1:
        return 1.0
    return _NARROW if abs(bars[0].effect) >= _SMALL else _IDLE


def _draw_idle(axis: Axes, side: SideWriters) -> None:
    """A side through which the counterfactual changes nothing: its number, and no empty plot."""
    axis.set_title(f"{side.side} side")
    axis.set_axis_off()
    text = f"no effect\n({side.effect:z.3f})"
    axis.text(0.0, 1.0, text, fontsize=SMALL, color=MUTED, va="top", transform=axis.transAxes)


def _draw_bars(axis: Axes, bars: Bars) -> None:
    side = bars[0]
    names = ["whole side", *map(str, bars[1:])]
    effects = [each.effect for each in bars]
    colours = [INK, *(shade(0.75) if effect >= 0 else shade(-0.7, EFFECT) for effect in effects[1:])]
    axis.barh(range(len(bars)), effects, color=colours, height=0.7)
    axis.set_yticks(range(len(bars)), names)
    axis.axvline(0, color=LINE, linewidth=0.6)
    axis.set_title(f"{side.side} side")
    axis.set_xlabel("effect (share of the gap)", fontsize=SMALL)
    axis.spines[["top", "right", "left"]].set_visible(False)
    axis.tick_params(axis="y", length=0)
    for number, effect in enumerate(effects):
        label = {"xytext": (2, 0), "textcoords": "offset points", "va": "center", "fontsize": SMALL}
        axis.annotate(f"{effect:z.3f}", (max(effect, 0.0), number), **label)
