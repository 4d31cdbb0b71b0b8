"""Many heads at a glance: the grid of attention maps in order (figure A).

1. `head_grid` draws titled panels of maps, by default nine in a row, with the query downwards and the key to
   the right, as in the paper. The name of a large map stands in its upper right corner, where no weight can be.
   A bracket says with which head 90% is reached; heads that do nothing on the prompt are counted in a line.
2. `comparison_grid` draws the heads that a task takes in two models, in ranked order, a panel for each model,
   and beside them a table of what the maps show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from matplotlib.figure import Figure

from circuits.components import Head
from circuits.errors import EdgeError, PromptError
from circuits.show.canvas import (
    HEADING_SMALL,
    INK,
    LINE,
    MUTED,
    NAME,
    NOTE,
    PAPER,
    RED,
    SMALL,
    WIDTH,
    Area,
    Font,
    Sheet,
    figure_around,
    looks,
    new_sheet,
    width_of,
)
from circuits.show.curves import count_words
from circuits.show.legend import (
    LINE_HEIGHT,
    Key,
    to_heading,
    to_legend,
    wrapped,
    write_lines,
)
from circuits.show.maps import Tiles, draw_cross, draw_ramp, draw_tiles
from circuits.show.plots import with_minus
from circuits.show.task_tables import panel_facts
from circuits.show.words import (
    pair_words,
    plural,
    question_words,
    spell,
    task_words,
    verdict_in_short,
)

if TYPE_CHECKING:
    from circuits.prompts import Pair, Prompt
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.patterns import PanelFigures
    from circuits.tasks.ranking import Ranking
    from circuits.tracing.records import Circuit

# Lengths are in points.
_SHEET: Final = WIDTH * 72  # the width of the sheet
_PAD: Final = 8.0
_TITLE: Final = 22.0  # the height of a panel's title
_TABLE: Final = 136.0  # the width of the table beside the panels
_ROW: Final = 8.5  # the height of its rows
_COLUMN: Final = 34.0  # the width of its columns of values
_LARGE: Final = 30.0  # the side of a map that has space for a name
_LARGEST: Final = 84.0  # the side of a map
_CELL: Final = 6.4  # the side of a cell that a word fits beside
_MOST_NINE: Final = 144  # heads of a panel that stand nine to a row
_LONGEST_HEAD: Final = 7  # characters at the head of a column
_LONGEST_PROMPT: Final = 70  # characters of a prompt that is quoted
_NOTHING: Final = 0.005  # an effect that would be written as 0.00


@dataclass(frozen=True, slots=True)
class Panel:
    """A titled group of heads in order, each with its attention map (query, key).

    >>> panel = show.to_panel(found, ["L5H1", "L4H0"], title="Two heads")
    >>> len(panel.maps), panel.maps[0].shape
    (2, (9, 9))
    """

    title: str
    heads: tuple[Head, ...]
    maps: tuple[np.ndarray, ...]
    note: str = ""  # at the panel's top right
    effects: tuple[float, ...] = ()  # of each head alone, if they are known
    needed: int | None = None  # how many of the heads, in order, are enough
    facts: tuple[tuple[str, str], ...] = ()  # what the maps of the panel show: names and values
    question: str = ""  # what was asked, below the title
    words: tuple[str, ...] = ()  # the tokens along a map, if all maps are of one prompt

    def __post_init__(self) -> None:
        heads, maps = len(self.heads), len(self.maps)
        if heads != maps:
            raise EdgeError(
                f"panel {self.title!r} has {heads} heads but {maps} maps; give one map per head"
            )


def to_panel(
    circuit: Circuit,
    heads: Sequence[str | Head] | None = None,
    *,
    title: str | None = None,
    note: str = "",
) -> Panel:
    """A panel of a circuit's heads: those given, else the carriers of the mapping in front.

    >>> print(*show.to_panel(found).heads)
    L5H1 L4H0 L5H0 L5H3 L4H5 L3H11
    """
    if heads is None:
        carriers = circuit.front.carriers(circuit.share) if circuit.front else ()
        heads = [head for head in carriers if circuit.has_map(head)]
    chosen = tuple(Head.parse(head) for head in heads)
    # The effect of a head on the mapping on which it does most.
    strongest = dict.fromkeys(chosen, 0.0)
    for mapping in circuit.mappings:
        for each in mapping.heads:
            if each.head in strongest:
                strongest[each.head] = max(strongest[each.head], each.effect, key=abs)
    name = circuit.source.name if title is None else title
    prompt = spell(circuit.prompt.text, longest=_LONGEST_PROMPT)
    return Panel(
        title=name,
        heads=chosen,
        maps=tuple(circuit.pattern(head) for head in chosen),
        note=note,
        effects=tuple(strongest[head] for head in chosen),
        question=f"{prompt}; {question_words(circuit, name)}",
        words=tuple(circuit.prompt.words),
    )


def ranking_panel(
    ranking: Ranking,
    heads: Sequence[Head],
    maps: Sequence[np.ndarray],
    *,
    prompt: Prompt,
    pair: Pair | None = None,
    title: str | None = None,
    figures: PanelFigures | None = None,
) -> Panel:
    """A panel of heads with their maps (query, key) on a prompt; its note says how many heads the task takes.

    The line below the title names the task and the prompt and, where its `pair` is known, what was swapped.
    """
    effect_of = {each.unit: each.effect for each in ranking.ranked}
    all_ranked = all(head in effect_of for head in heads)
    example = spell(prompt.text, longest=_LONGEST_PROMPT)
    if pair is not None:
        example += f"; {pair_words(pair)}"
    return Panel(
        title=ranking.model if title is None else title,
        heads=tuple(heads),
        maps=tuple(maps),
        note=f"{count_words(ranking)}{verdict_in_short(ranking)}",
        effects=tuple(effect_of[head] for head in heads) if all_ranked else (),
        needed=ranking.count()[0] if all_ranked else None,
        facts=() if figures is None else tuple(panel_facts(figures).items()),
        question=f"{task_words(ranking.task)}, {plural(ranking.pairs, 'pair')}; maps of: {example}",
        words=tuple(prompt.words),
    )


# Figure A


def comparison_grid(
    comparison: TaskComparison,
    *,
    titles: Sequence[str] | None = None,
    per_row: int | None = None,
    all_heads: bool = False,
    query_up: bool = False,
    figure: Figure | None = None,
) -> Figure:
    """Both models' heads for 90%, or all of them, the first above the second; `titles` are by default the
    models' names.

        >>> sparse = circuits.load("mini-sparse")
        >>> both = circuits.compare(model, sparse, task="greater_than", count=4, units=("heads",))
        >>> figure = show.comparison_grid(both)
    """
    names = comparison.models if titles is None else titles
    panels = []
    counts = []
    for number, ranking in enumerate(comparison.rankings[0]):
        shown = comparison.panels[number] if all_heads else comparison.needed[number]
        heads = comparison.order(number)
        if not all_heads:
            heads = heads[: len(shown.heads)]
        maps = comparison.maps[number][: len(heads)]
        prompt = comparison.prompts[number]
        pair = None if comparison.examples is None else comparison.examples[number]
        panel = ranking_panel(
            ranking, heads, maps, prompt=prompt, pair=pair, title=names[number], figures=shown
        )
        panels.append(panel)
        needed, _, _ = ranking.count()
        count = "more than all" if needed is None else needed
        counts.append(f"{count} in {spell(names[number])}")
    title = f"Heads that explain 90% of {task_words(comparison.task)}: {', '.join(counts)}"
    return head_grid(panels, per_row=per_row, title=title, query_up=query_up, figure=figure)


def head_grid(
    panels: Panel | Sequence[Panel],
    *,
    per_row: int | None = None,
    title: str = "",
    query_up: bool = False,
    figure: Figure | None = None,
) -> Figure:
    """Figure A: the maps of each panel's heads in order, one image per panel however many heads there are.

    Nine stand in a row, or 17 where a panel has more than 144. Queries run downwards, or with `query_up`
    upwards as in the other figures.

        >>> figure = show.head_grid(show.to_panel(found))
    """
    panels = [panels] if isinstance(panels, Panel) else panels
    shown = [_without_shut(panel) for panel in panels]
    most = max((len(panel.heads) for panel in shown), default=0)
    if per_row is None:
        per_row = 9 if most <= _MOST_NINE else 17
    if not panels or per_row < 1:
        raise PromptError("a head grid needs at least one panel and one tile to a row")
    tables = any(panel.facts for panel in panels)
    width = _SHEET - _TABLE - _PAD if tables else _SHEET
    tiles = _to_tiles(shown, width, per_row, query_up=query_up)
    heading = to_heading(title, "", _SHEET - 2 * _PAD)
    heights = [_panel_height(panel, tiles, width) for panel in shown]
    maps_height = sum(heights) + (_PAD + 1) * (len(heights) - 1)
    rows = max((len(panel.facts) for panel in panels), default=0)
    body = max(maps_height, _TITLE + _ROW * rows + 4 if tables else 0.0)
    top = heading.height + 6 if title else 1.0
    legend = to_legend(_grid_keys(shown, tiles), _SHEET - 2 * _PAD - 40)
    sheet = new_sheet(_SHEET, top + body + max(legend.height, 20) + 14, figure)
    with looks():
        heading.draw(sheet, _PAD, 2)
        y = top
        for panel, height in zip(shown, heights, strict=True):
            _draw_panel(sheet.moved(0, y), panel, tiles, Area(0.5, 0, width - 1, height))
            y += height + 1 + _PAD
        if tables:
            _draw_table(sheet.moved(width + _PAD - 0.5, top), panels)
        y = top + body + 8
        draw_cross(sheet, _PAD + 6, y + (14 if query_up else 3), arm=10.0, query_up=query_up)
        legend.draw(sheet, _PAD + 34, y + 2)
    return figure_around(sheet.axes)


def _to_tiles(panels: Sequence[Panel], width: float, per_row: int, *, query_up: bool) -> Tiles:
    """Maps as large as the width lets so many stand in a row; words stand before them where a cell is high
    enough."""
    most = max((len(panel.heads) for panel in panels), default=1)
    across = max(1, min(per_row, most))
    gap = 5.0 if per_row <= 9 else 4.0
    label = max(map(_label_width, panels), default=0.0)
    longest = max((len(panel.words) for panel in panels), default=0)
    side = min((width - 2 * _PAD - label - gap * (across - 1)) / across, _LARGEST)
    if not label or side < _CELL * longest:
        label = 0.0
        side = min((width - 2 * _PAD - gap * (across - 1)) / across, _LARGEST)
    has_effects = any(panel.effects for panel in panels)
    below = gap + 7.0 if has_effects or side < _LARGE else gap
    return Tiles(_PAD + label, 0.0, side, across, gap, below, query_up)


def _label_width(panel: Panel) -> float:
    """The width of the words before a map; 0 where there are none."""
    words = [spell(word, longest=9) for word in panel.words]
    return max((width_of(word, NOTE) + 4 for word in words), default=0.0)


def _without_shut(panel: Panel) -> Panel:
    """The panel without heads that attend to nothing on this prompt and do nothing; a line counts them."""
    kept = []
    for number, weights in enumerate(panel.maps):
        is_needed = panel.needed is None or number < panel.needed
        effect = panel.effects[number] if panel.effects else 0.0
        if is_needed or np.any(weights) or abs(effect) >= _NOTHING:
            kept.append(number)
    shut = len(panel.heads) - len(kept)
    if not shut:
        return panel
    line = f"not drawn: {plural(shut, 'head')} with all gates shut on this prompt"
    return replace(
        panel,
        heads=tuple(panel.heads[number] for number in kept),
        maps=tuple(panel.maps[number] for number in kept),
        effects=tuple(panel.effects[number] for number in kept) if panel.effects else (),
        question=f"{panel.question}; {line}" if panel.question else line,
    )


def _grid_keys(panels: Sequence[Panel], tiles: Tiles) -> list[Key]:
    keys = [Key("attention, 0 to 1", draw_ramp, sample=30)]
    if any(panel.effects for panel in panels):
        where = "below each map: its rank and" if tiles.side >= _LARGE else "in each map:"
        keys.append(
            Key(f"{where} the effect of the head alone, share of the gap, if 0.005 or more")
        )
    if any(panel.needed for panel in panels):
        keys.append(Key("with this head 90% is explained", _bracket_sample, sample=4))
    return keys


def _bracket_sample(sheet: Sheet, width: float) -> None:
    _draw_bracket(sheet, width, -4, 4)


def _draw_bracket(sheet: Sheet, x: float, top: float, bottom: float) -> None:
    sheet.line((x - 3, x, x, x - 3), (top, top, bottom, bottom), RED, width=1.1, depth=4.6)


def _panel_lines(panel: Panel, width: float) -> list[str]:
    # Letters on a screen are up to 3% wider than in print.
    return wrapped(panel.question, NOTE, 0.96 * (width - 2 * _PAD))


def _panel_height(panel: Panel, tiles: Tiles, width: float) -> float:
    rows = -(-len(panel.heads) // tiles.across)
    maps = max(rows * (tiles.side + tiles.below), 20.0)
    return _TITLE + LINE_HEIGHT * len(_panel_lines(panel, width)) + maps + 2


def _draw_panel(sheet: Sheet, panel: Panel, tiles: Tiles, area: Area) -> None:
    """Frame, title, note and question of a panel, then its maps, each with its name, effect and rank."""
    sheet.box(area, LINE, PAPER, depth=0)
    sheet.title(_PAD, area.right - _PAD, 14.5, spell(panel.title), panel.note)
    lines = _panel_lines(panel, area.width + 1)
    write_lines(sheet, _PAD, _TITLE - 4, lines)
    sheet = sheet.moved(0, _TITLE + LINE_HEIGHT * len(lines))
    draw_tiles(sheet, tiles, panel.maps)
    for number in range(len(panel.heads)):
        _draw_head(sheet.moved(*tiles.corner(number)), panel, number, tiles)
    if tiles.x > _PAD:
        _draw_words(sheet, panel, tiles)


def _draw_words(sheet: Sheet, panel: Panel, tiles: Tiles) -> None:
    """The tokens before the first map of each row."""
    step = tiles.side / max(len(panel.words), 1)
    for number in range(0, len(panel.heads), tiles.across):
        x, y = tiles.corner(number)
        for position, word in enumerate(panel.words):
            row = len(panel.words) - 1 - position if tiles.query_up else position
            middle = y + (row + 0.5) * step
            sheet.write(x - 2.5, middle, spell(word, longest=9), NOTE, ha="right", va="center")


def _draw_head(sheet: Sheet, panel: Panel, number: int, tiles: Tiles) -> None:
    """A head's name and effect, one in the corner of its map and the other below; a bracket after the last
    that is needed."""
    side = tiles.side
    large = side >= _LARGE  # then the name is in the map, else the effect
    is_last = number + 1 == panel.needed
    inside = (side - 1.5, side - 2.5 if tiles.query_up else 6.5)
    below = (side, side + 6.5)
    name_at, effect_at = (inside, below) if large else (below, inside)
    needed = panel.needed is None or number < panel.needed
    font = Font(SMALL, INK if needed else MUTED)
    sheet.write(*name_at, str(panel.heads[number]), font, ha="right", zorder=5)
    if is_last:
        _draw_bracket(sheet, side + tiles.gap / 2, -1, side + 1)
    if not panel.effects:
        return
    effect = ""
    if abs(panel.effects[number]) >= _NOTHING:
        effect = _short_number(panel.effects[number])
        sheet.write(*effect_at, effect, NOTE, ha="right", zorder=5)
    if large:
        _write_rank(sheet, number + 1, side, width_of(effect, NOTE), is_last=is_last)


def _write_rank(sheet: Sheet, rank: int, side: float, taken: float, *, is_last: bool) -> None:
    """A head's rank at the left below its map, where the effect takes space at the right; with the last that is
    needed stands `90%`, if there is space."""
    font = Font(SMALL, RED, bold=True) if is_last else NOTE
    text = f"{rank}: 90%" if is_last else f"{rank}"
    if width_of(text, font) + taken + 2 > side:
        text = f"{rank}"
    sheet.write(0, side + 6.5, text, font)


def _draw_table(sheet: Sheet, panels: Sequence[Panel]) -> None:
    """What the maps of each panel show, a column for each panel."""
    names = dict.fromkeys(name for panel in panels for name, _ in panel.facts)
    area = Area(0, 0, _TABLE, _TITLE + _ROW * len(names) + 2)
    sheet.box(area, LINE, PAPER, depth=0)
    x = _TABLE - 5 - _COLUMN * (len(panels) - 1)  # the right end of the first column of values
    heads = _column_heads([spell(panel.title) for panel in panels])
    for panel, lines in zip(panels, heads, strict=True):
        facts = dict(panel.facts)
        for above, line in enumerate(reversed(lines)):
            sheet.write(x, 14.5 - 7 * above, line, HEADING_SMALL, ha="right")
        for row, name in enumerate(names):
            y = _TITLE + _ROW * row + 2
            sheet.write(x, y, facts.get(name, ""), NAME, ha="right")
        x += _COLUMN
    for row, name in enumerate(names):
        sheet.write(5, _TITLE + _ROW * row + 2, name, NOTE)


def _column_heads(titles: Sequence[str]) -> list[list[str]]:
    """The heads of columns in one line or two; shortened where two of them would touch."""
    heads = [_in_two_lines(title) for title in titles]
    for left, right in pairwise(heads):
        beside = right[-len(left) :]  # the lines that have a neighbour at their left
        if any(width_of(line, HEADING_SMALL) > _COLUMN - 3 for line in beside):
            return [[title] for title in _short(titles)]
    # The first column may be as wide as the names of the rows and itself.
    space = _TABLE - 10 - _COLUMN * (len(titles) - 1)
    for number, lines in enumerate(heads):
        if any(width_of(line, HEADING_SMALL) > space + _COLUMN * number for line in lines):
            return [[title] for title in _short(titles)]
    return heads


def _in_two_lines(title: str) -> list[str]:
    """A title, broken at a hyphen or a space if it is wider than a column."""
    ends = [at + 1 for at, letter in enumerate(title[:-1]) if letter in "- "]
    if not ends or width_of(title, HEADING_SMALL) <= _COLUMN - 3:
        return [title]
    halves = [[title[:at].strip(), title[at:]] for at in ends]
    return min(halves, key=lambda lines: max(width_of(line, HEADING_SMALL) for line in lines))


def _short(titles: Sequence[str]) -> list[str]:
    """Titles as heads of columns. Of a long one that begins as all others do, the rest is what tells it apart:
    `stories15m-sparse` beside `stories15m` is `…sparse`."""
    alike = 0
    for letters in zip(*titles, strict=False):
        if len(set(letters)) > 1:
            break
        alike += 1
    short = []
    for title in titles:
        rest = title[alike:].strip("-, ")
        if len(title) <= _LONGEST_HEAD or not rest or not alike:
            short.append(spell(title, longest=_LONGEST_HEAD))
        else:
            short.append("…" + spell(rest, longest=_LONGEST_HEAD - 1))
    return short


def _short_number(value: float) -> str:
    """`.32`, `−.05`, `1.02`: an effect in as few letters as say it."""
    text = f"{value:z.2f}"
    short = text.replace("0.", ".", 1) if abs(value) < 0.995 else text
    return with_minus(short)
