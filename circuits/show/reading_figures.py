"""Readings as pictures and as text: direct logit attribution, the logit lens, and the scores of heads.

Each says that it is a reading, not an effect.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.instruments.grids import Axis
from circuits.instruments.reading_records import NAMED, READING
from circuits.show.canvas import (
    ATTENTION,
    COLUMN,
    INK,
    NAME,
    PAPER,
    SMALL,
    WIDTH,
    figure_around,
    looks,
    width_of,
)
from circuits.show.heatmaps import draw_map, numbered
from circuits.show.plots import add_scale, axes_for, framed
from circuits.show.sections import Column, Section, plain
from circuits.show.words import plural, spell

if TYPE_CHECKING:
    from circuits.instruments.reading_records import HeadScores, LogitAttribution, LogitLens

_CELL: Final = 0.17  # inches, the height of a cell
_WORD: Final = 0.34  # inches, the width of a cell with a word in it
_MOST_PARTS: Final = 12  # rows of the table of parts
_MOST_TICKS: Final = 8  # along an axis of a map of scores
_DARK: Final = 0.55  # of the scale: words on darker cells are white


# Direct logit attribution


def attribution_figure(read: LogitAttribution, *, ax: Axes | None = None) -> Figure:
    """The part of every head and MLP, layer by layer; embedding and biases are named below.

    >>> read = circuits.logit_attribution(model, TEXT, answer="small", foil="cold")
    >>> axes = show.attribution_figure(read).axes[0]
    >>> axes.get_xticklabels()[-1].get_text()
    'MLP'
    """
    values = read.values[1:-1].reshape(read.layers, read.heads + 1)
    columns = Axis("head", (*map(str, range(read.heads)), "MLP"))
    with looks():
        height = 0.75 + max(0.9, min(_CELL, 6.0 / read.layers) * read.layers)
        (name,), part = read.strongest(1)[0]
        finding = f"{name} writes most directly to the answer: {part:z.2f} logits"
        ax = axes_for(ax, (COLUMN, height), finding, _attribution_title(read))
        draw_map(ax, values, numbered("layer", read.layers), columns)
        add_scale(ax, "logits")
        ax.tick_params(axis="x", rotation=0 if read.heads <= 12 else 90)
        others = f"embedding {read.part('embed'):z.2f}, biases {read.part('biases'):z.2f}"
        ax.set_xlabel(f"head, and the MLP last\n{others}; {READING}")
    return figure_around(ax)


def _attribution_title(read: LogitAttribution) -> str:
    answer, foil = read.answers[0], read.foils[0]
    difference = f"logit({spell(answer)}) − " + (
        f"logit({spell(foil)})" if foil else "mean logit"
    )
    if len(read.prompts) > 1:
        difference = f"logit(answer) − logit(foil), {plural(len(read.prompts), 'prompt')}"
    total = sum(read.totals) / len(read.totals)
    return f"{spell(read.model, longest=30)}: {difference} = {total:z.2f}"


def attribution_text(read: LogitAttribution) -> str:
    """The largest parts as plain text, 100 columns wide."""
    return plain(attribution_sections(read))


def attribution_sections(read: LogitAttribution) -> list[Section]:
    """The largest parts, and what all others add up to."""
    cells = read.strongest()
    rows = [(name, value) for (name,), value in cells[:_MOST_PARTS]]
    rest = sum(value for _, value in cells[_MOST_PARTS:])
    rows.append((f"{len(cells) - len(rows)} others", rest))
    lines = [f"direct logit attribution: {READING}; the parts add up to the difference"]
    columns = (Column("component"), Column("logits", "z.3f"))
    return [Section(_attribution_title(read), lines, columns, rows)]


# Logit lens


def lens_figure(lens: LogitLens, *, ax: Axes | None = None) -> Figure:
    """The word that each layer would say at each position; the colour is the answer's probability.

    >>> axes = show.lens_figure(circuits.logit_lens(model, TEXT)).axes[0]
    >>> axes.texts[-1].get_text()
    'small'
    """
    layers, positions = lens.shape
    with looks():
        width = max(COLUMN, min(WIDTH, 1.1 + _WORD * positions))
        size = (width, 0.85 + min(_CELL, 7.0 / layers) * layers)
        ax = axes_for(
            ax, size, first_words(lens), f"logit lens; {spell(lens.model, longest=30)}"
        )
        draw_map(ax, lens.values, *lens.axes, stops=ATTENTION, limits=(0.0, 1.0))
        add_scale(ax, f"probability of {spell(lens.answer)}")
        room = 0.72 * 72 * float(figure_around(ax).get_size_inches()[0]) / positions
        for layer in range(layers):
            for position in range(positions):
                _write_word(ax, lens, layer, position, room)
        ax.set_xlabel(f"position; {READING}")
    return figure_around(ax)


def first_words(lens: LogitLens) -> str:
    """From which layer on the answer is first at the last position."""
    settled = (
        "never first" if lens.first_layer is None else f"first from layer {lens.first_layer} on"
    )
    return f"At the last position {spell(lens.answer)} is {settled}"


def _write_word(ax: Axes, lens: LogitLens, layer: int, position: int, room: float) -> None:
    """The word of a cell, cut to the room that there is, in points; none where two letters do not fit."""
    word = spell(lens.top[layer][position], longest=12)
    while len(word) > 1 and width_of(word, NAME) > room:
        word = word.removesuffix("…")[:-1] + "…"
    if width_of(word, NAME) > room:
        return
    dark = lens.values[layer, position] > _DARK
    style = {"ha": "center", "va": "center", "fontsize": SMALL, "color": PAPER if dark else INK}
    ax.text(position, layer, word, **style)


def lens_text(lens: LogitLens) -> str:
    """What every layer would say at the end, as plain text, 100 columns wide."""
    return plain(lens_sections(lens))


def lens_sections(lens: LogitLens) -> list[Section]:
    """For every layer the word at the last position, and where the answer stands."""
    rows = []
    for layer, words in enumerate(lens.top):
        top = float(lens.arrays["top"][layer, -1])
        own, rank = float(lens.values[layer, -1]), int(lens.ranks[layer, -1]) + 1
        rows.append((lens.axes[0].labels[layer], spell(words[-1]), top, own, rank))
    answer = spell(lens.answer)
    columns = (
        Column("input of layer", ">"),
        Column("would say"),
        Column("probability", ".3f"),
        Column(f"of {answer}", ".3f"),
        Column("rank", ">"),
    )
    lines = [f"logit lens: {READING}. {first_words(lens)}"]
    last = spell(lens.axes[1].labels[-1])
    title = f"{spell(lens.model, longest=30)}: what each layer would say after {last}"
    return [Section(title, lines, columns, rows)]


# Scores of heads


def scores_figure(scores: HeadScores, *, figure: Figure | None = None) -> Figure:
    """A map of layer × head for each score, all on one scale from 0 to 1.

    >>> figure = show.scores_figure(circuits.head_scores(circuits.load("planted-induction")))
    >>> [axes.get_title("left") for axes in figure.axes[:3]]
    ['induction', 'previous token', 'duplicate token']
    """
    names = scores.axes[0].labels
    layers = scores.shape[1]
    down = -(-len(names) // 2)
    each = 0.5 + max(0.5, min(0.1, 2.5 / layers) * layers)  # inches
    with looks():
        question = f"{spell(scores.model, longest=30)}; {_random_words(scores)}"
        figure = framed(figure, (COLUMN, 0.2 + down * each), strongest_words(scores), question)
        panels = figure.subplots(down, 2, squeeze=False).flatten()
        for panel, name in zip(panels, names, strict=False):
            _draw_score(panel, scores, name)
        for empty in panels[len(names) :]:
            empty.set_axis_off()
        add_scale(list(panels), f"score ({READING})")
    return figure


def strongest_words(scores: HeadScores) -> str:
    """The head with the highest score."""
    (name, layer, index), score = scores.strongest(1)[0]
    return f"L{layer}H{index} scores highest: {name} {score:z.2f}"


def _random_words(scores: HeadScores) -> str:
    return f"{plural(scores.sequences, 'sequence')} of {scores.length} random tokens, repeated"


def _draw_score(panel: Axes, scores: HeadScores, name: str) -> None:
    _, layers, heads = scores.shape
    axes = (numbered("layer", layers), numbered("head", heads))
    draw_map(panel, scores.score(name), *axes, stops=ATTENTION, limits=(0.0, 1.0))
    panel.set_yticks(range(0, layers, -(-layers // _MOST_TICKS)))
    panel.set_xticks(range(0, heads, -(-heads // _MOST_TICKS)))
    panel.tick_params(axis="x", rotation=0)
    panel.set_title(name, fontsize=SMALL)


def scores_text(scores: HeadScores) -> str:
    """The heads that have a name by their scores, as plain text, 100 columns wide."""
    return plain(scores_sections(scores))


def scores_sections(scores: HeadScores) -> list[Section]:
    """The strongest head of each score, and every head that has a score of 0.5 or more."""
    names = scores.axes[0].labels
    _, layers, heads = scores.shape
    rows = []
    for layer in range(layers):
        for index in range(heads):
            name = f"L{layer}H{index}"
            own = scores.of_head(name)
            if max(own.values()) >= NAMED:
                rows.append((name, *own.values(), scores.name(name)))
    how = _random_words(scores)
    if scores.words:
        how += f"; copying of {scores.words} tokens"
    if scores.successions:
        how += f"; {scores.successions} successions such as 7 and 8"
    elif "successor" not in names:
        how += "; no series of successors in this vocabulary"
    lines = [f"scores of heads: {READING}", how]
    if not rows:
        lines.append(f"no head scores {NAMED} or more")
    short = [name.removesuffix(" token") for name in names]
    columns = [Column("head"), *(Column(name, ".2f") for name in short), Column("so it does")]
    return [Section(f"{spell(scores.model, longest=30)}: what heads do", lines, columns, rows)]
