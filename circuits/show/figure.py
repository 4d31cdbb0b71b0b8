"""Figure B: which heads carry a mapping in one model and in another, and the diagram of the second.

1. Left, one circuit's carriers as small maps, the mapping's cell red, other attention blue.
2. Right, the other circuit's carriers under a red caption and beside a small axis cross; beneath them its diagram.
3. Of one circuit alone the right half is drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from circuits.show import scene, style
from circuits.show.canvas import Tiles, draw_box, draw_tiles, looks, new_sheet, save_figure, width_of, write
from circuits.show.diagram import Area, draw_diagram, least_height
from circuits.tracing.records import SHARE

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from circuits.heads import Head
    from circuits.tracing.records import Circuit

__all__ = ["mapping_figure", "save_figure"]

_PAD: Final = 9.0
_TITLE_ROOM: Final = 22.0
_NAME_ROOM: Final = 11.0
_CROSS: Final = 26.0
_MOST_LEFT: Final = 80
_MOST_RIGHT: Final = 12
_LEFT_SHARE: Final = 0.43  # of the width


def mapping_figure(
    left: Circuit,
    right: Circuit | None = None,
    *,
    share: float = SHARE,
    query_up: bool = True,
    titles: Sequence[str] | None = None,
    figure: Figure | None = None,
) -> Figure:
    """Figure B of two circuits; of one, its carriers and its diagram. `titles` are one for each, by default the models' names."""
    told, other = (left, None) if right is None else (right, left)
    full = style.WIDTH * 72
    split = 0.0 if other is None else full * _LEFT_SHARE
    half = Area(split + (6.0 if split else 0.0) + 0.5, 0.5, full * (1 - _LEFT_SHARE) - 7, 0.0)
    names = titles or [circuit.source.name for circuit in (left, right) if circuit is not None]
    needed = _told_height(told, share, half.width)
    tiles = None if other is None else _balanced(other, share, split - 1, needed)
    height = max(
        needed,
        0.0
        if other is None or tiles is None
        else _TITLE_ROOM + 2 + tiles.height(len(_shown(other, share, _MOST_LEFT))) + 10,
    )
    sheet = new_sheet(half.right + 0.5, height + 1, figure)
    with looks():
        if other is not None and tiles is not None:
            _draw_many(
                sheet, other, share, names[0], Area(0.5, 0.5, split - 1, height), tiles, query_up=query_up
            )
        _draw_told(sheet, told, share, names[-1], Area(half.left, 0.5, half.width, height), query_up=query_up)
    return sheet.get_figure(root=True)  # type: ignore[return-value]


def _shown(circuit: Circuit, share: float, most: int) -> tuple[Head, ...]:
    front = scene.front(circuit)
    return front.carriers(share)[:most] if front else ()


def _count(circuit: Circuit, share: float) -> int:
    front = scene.front(circuit)
    return len(front.carriers(share)) if front else 0


# The left half


def _balanced(circuit: Circuit, share: float, width: float, height: float) -> Tiles:
    """The tiles of the left half: as many to a row as bring it nearest to the height of the right half; one or two, one below the other."""
    count = len(_shown(circuit, share, _MOST_LEFT))
    room = width - 2 * _PAD
    if 1 <= count <= 2:
        side = min(0.75 * room, (height - _TITLE_ROOM - 12) / count - _NAME_ROOM)
        return Tiles(_PAD + (room - side) / 2, _TITLE_ROOM + 2, side, 1, 5.0, _NAME_ROOM)
    longest = max(
        (width_of(_name(head), style.SMALL) for head in _shown(circuit, share, _MOST_LEFT)), default=0.0
    )
    most = max(3, int((room + 5.0) // (longest + 4.0)))
    choices = [
        Tiles(_PAD, _TITLE_ROOM + 2, (room - 5.0 * (across - 1)) / across, across, 5.0, _NAME_ROOM)
        for across in range(2, min(most, 9) + 1)
    ]
    return min(
        choices, key=lambda tiles: (abs(_TITLE_ROOM + 12 + tiles.height(count) - height), tiles.across)
    )


def _draw_many(
    sheet: Axes, circuit: Circuit, share: float, title: str, area: Area, tiles: Tiles, *, query_up: bool
) -> None:
    heads = _shown(circuit, share, _MOST_LEFT)
    _draw_frame(sheet, circuit, share, title, area)
    _draw_maps(sheet, circuit, heads, tiles, query_up=query_up)
    if _count(circuit, share) > len(heads):
        more = f"and {_count(circuit, share) - len(heads)} more heads"
        write(
            sheet, area.right - _PAD, area.bottom - 5, more, size=style.SMALL, colour=style.MUTED, ha="right"
        )


# The right half


def _told_tiles(circuit: Circuit, share: float, area: Area) -> Tiles:
    count = len(_shown(circuit, share, _MOST_RIGHT))
    across = count if count <= 6 else -(-count // 2)
    room = area.width - 2 * _PAD - _CROSS - 4
    side = min(46.0, (room - 6.0 * (across - 1)) / across) if across else 0.0
    start = area.left + _PAD + _CROSS + max(0.0, (room - across * (side + 6.0) + 6.0) / 2 - _CROSS / 2)
    return Tiles(start, area.top + _TITLE_ROOM + 18, side, max(across, 1), 6.0, _NAME_ROOM)


def _told_height(circuit: Circuit, share: float, width: float) -> float:
    tiles = _told_tiles(circuit, share, Area(0, 0, width, 0))
    count = len(_shown(circuit, share, _MOST_RIGHT))
    more = 9.0 if _count(circuit, share) > count else 0.0
    return tiles.y + tiles.height(count) + more + 14 + least_height(circuit) + _PAD


def _draw_told(
    sheet: Axes, circuit: Circuit, share: float, title: str, area: Area, *, query_up: bool
) -> None:
    front = scene.front(circuit)
    heads = _shown(circuit, share, _MOST_RIGHT)
    tiles = _told_tiles(circuit, share, area)
    _draw_frame(sheet, circuit, share, title, area)
    said = (
        "No mapping of this prompt carries anything"
        if front is None
        else scene.caption(front, _count(circuit, share))
    )
    write(
        sheet,
        area.left + area.width / 2,
        area.top + _TITLE_ROOM + 9,
        said,
        colour=style.RED,
        bold=True,
        ha="center",
    )
    bottom = tiles.y + tiles.height(len(heads))
    if heads:
        _draw_cross(sheet, tiles.x - _CROSS + 2, tiles.y + tiles.side / 2 + 8, query_up=query_up)
        _draw_maps(sheet, circuit, heads, tiles, query_up=query_up)
    if _count(circuit, share) > len(heads):
        write(
            sheet,
            area.left + area.width / 2,
            bottom + 6,
            f"and {_count(circuit, share) - len(heads)} more heads",
            size=style.SMALL,
            colour=style.MUTED,
            ha="center",
        )
        bottom += 9
    free = area.bottom - bottom - 14 - _PAD
    height = min(free, least_height(circuit) + 30)
    draw_diagram(
        sheet,
        circuit,
        share,
        Area(area.left + _PAD, bottom + 14 + (free - height) / 2, area.width - 2 * _PAD, height),
    )


# Shared by both


def _draw_frame(sheet: Axes, circuit: Circuit, share: float, title: str, area: Area) -> None:
    draw_box(sheet, area.left, area.top, area.width, area.height, edge=style.LINE, fill=style.PAPER, depth=0)
    name = scene.spell(title, longest=28)
    write(sheet, area.left + _PAD, area.top + 15, name, size=style.TITLE, bold=True)
    front = scene.front(circuit)
    total = circuit.source.layers * circuit.source.heads
    if front is not None and front.carriers(share):
        count = _count(circuit, share)
        note = f"{count} of {total} heads carr{'ies' if count == 1 else 'y'} {front.modulation(share):.0%}"
        if width_of(name, style.TITLE, bold=True) + width_of(note, style.SMALL) + 2 * _PAD + 8 < area.width:
            write(
                sheet,
                area.right - _PAD,
                area.top + 15,
                note,
                size=style.SMALL,
                colour=style.MUTED,
                ha="right",
            )


def _draw_maps(
    sheet: Axes, circuit: Circuit, heads: tuple[Head, ...], tiles: Tiles, *, query_up: bool
) -> None:
    front = scene.front(circuit)
    draw_tiles(
        sheet,
        tiles,
        [circuit.pattern(head) for head in heads],
        query_up=query_up,
        cell=(front.key, front.query) if front else None,
    )
    for number, head in enumerate(heads):
        x, y = tiles.corner(number)
        write(sheet, x + tiles.side / 2, y + tiles.side + 7.2, _name(head), size=style.SMALL, ha="center")


def _name(head: Head) -> str:
    return f"L{head.layer}-H{head.index}"


def _draw_cross(sheet: Axes, x: float, y: float, *, query_up: bool) -> None:
    """Keys run to the right, queries up or down."""
    arrow = {
        "arrowstyle": "-|>,head_width=0.15,head_length=0.25",
        "color": style.MUTED,
        "linewidth": 0.7,
        "shrinkA": 0,
        "shrinkB": 0,
    }
    rise = -13 if query_up else 13
    origin = y if query_up else y - 13
    sheet.annotate("", (x + 13, origin), (x, origin), arrowprops=arrow)
    sheet.annotate("", (x, origin + rise), (x, origin), arrowprops=arrow)
    write(sheet, x + 14, origin, "K", size=style.SMALL, colour=style.MUTED, va="center")
    write(
        sheet,
        x,
        origin + rise + (-1.5 if query_up else 6.5),
        "Q",
        size=style.SMALL,
        colour=style.MUTED,
        ha="center",
    )
