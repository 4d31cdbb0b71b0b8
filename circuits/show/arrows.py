"""Where the arrow of a mapping stands in a layer, and the names of its heads.

1. Names never stand on a box. They stand on the arrow as they are or shortened (`L5: 1 0 3`), else beside it,
   else in the margin.
2. Arrows of a layer that would touch stand in lanes above each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from circuits.show.canvas import HEADING_SMALL, width_of

_SHORT_MOST: Final = 6  # heads in a shortened name

Interval = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Sizes:
    """The lengths of a picture: points (1/72 inch) in print, pixels on the page."""

    axis: float  # the width of the axis of layers
    top: float  # the height above the last layer, where the output stands
    lane: float  # the height of a lane
    thin: float  # the height of a row without items
    folded: float  # the height of a row that stands for several layers
    margin: float  # of a row with lanes, half of it above them and half below
    visible: float  # of an arrow, beside the names on it
    beside: float  # from an arrow to the names after it
    widest_led: float  # names in the margin
    names_width: Callable[[Sequence[str]], float]
    forms: Callable[[Sequence[str]], list[list[str]]]  # the ways to name heads, the best first


def printed_forms(heads: Sequence[str]) -> list[list[str]]:
    """`L5H1 L5H3 L5H0`, `L5: 1 3 0`, `L5: 1 3 +1`, `L5: 1 +2`: ways to name heads of a layer, each shorter."""
    # Of more than three heads, the numbers say more than the first two names would.
    forms = [list(heads)] if len(heads) <= 3 else []
    if len(heads) > 1:
        layer, _, _ = heads[0].partition("H")
        numbers = [head.rpartition("H")[2] for head in heads]
        for count in range(min(len(heads), _SHORT_MOST), 0, -1):
            more = [f"+{len(heads) - count}"] if count < len(heads) else []
            forms.append([f"{layer}:", *numbers[:count], *more])
    return forms


PRINT: Final = Sizes(
    axis=30.0,
    top=33.0,
    lane=10.5,
    thin=9.0,
    folded=11.0,
    margin=4.0,
    visible=12.0,
    beside=5.0,
    widest_led=60.0,
    names_width=lambda names: width_of(" ".join(names), HEADING_SMALL) + 8,
    forms=printed_forms,
)


@dataclass(frozen=True, slots=True)
class PlacedItem:
    """What stands in a layer between `left` and `right`: an arrow with the names of its heads."""

    layer: int
    names: tuple[str, ...]  # of heads, and how many more there are
    start: float
    end: float  # of the arrow
    text_x: float  # the centre of the names
    left: float
    right: float
    effect: float = 0.0
    front: bool = False
    opening: bool = False  # its heads attend to the key in the counterfactual alone
    led: bool = False  # the names stand in the margin, with a line to the arrow
    node: str = ""  # of a group: its name in the graph

    @property
    def text(self) -> str:
        return " ".join(self.names)


def place_arrow(
    layer: int,
    heads: Sequence[str],
    ends: Interval,
    effect: float,
    *,
    across: Interval,
    taken: Sequence[Interval],
    sizes: Sizes,
    front: bool = False,
    opening: bool = False,
) -> PlacedItem:
    """An arrow from the first to the second of `ends`, with the names of its heads where no box is.

    `across` is where the columns begin and end, and `taken` what boxes take of it. Names stand on the arrow as
    they are or shortened, else after it or before it, else beyond the columns.
    """
    spaces = free_spaces(across, taken)
    start, end = ends
    names, centre, led = _place_names(heads, ends, spaces, across[1], sizes)
    half = sizes.names_width(names) / 2
    return PlacedItem(
        layer=layer,
        names=tuple(names),
        start=start,
        end=end,
        text_x=centre,
        left=min(start, centre - half) - 2,
        right=max(end, centre + half) + 2,
        effect=effect,
        front=front,
        opening=opening,
        led=led,
    )


def free_spaces(across: Interval, taken: Sequence[Interval]) -> list[Interval]:
    """What `taken` leaves of `across`, from left to right."""
    left, right = across
    spaces = []
    for start, end in taken:
        if start > left:
            spaces.append((left, start))
        left = max(left, end)
    if right > left:
        spaces.append((left, right))
    return spaces


def _place_names(
    heads: Sequence[str], ends: Interval, spaces: Sequence[Interval], right: float, sizes: Sizes
) -> tuple[list[str], float, bool]:
    """The names in the best form that has a place, the centre of that place, and whether it is the margin."""
    forms = sizes.forms(heads)
    for place in (_on_arrow, _after_arrow, _before_arrow):
        for names in forms:
            centre = place(ends, spaces, sizes.names_width(names), sizes)
            if centre is not None:
                return names, centre, False
    narrow = [names for names in forms if sizes.names_width(names) <= sizes.widest_led]
    names = narrow[0] if narrow else forms[-1]
    return names, right + sizes.beside + sizes.names_width(names) / 2, True


def _on_arrow(
    ends: Interval, spaces: Sequence[Interval], width: float, sizes: Sizes
) -> float | None:
    """The place nearest to the middle of the arrow, if enough of the arrow is left to be seen."""
    start, end = ends
    if end - start < width + sizes.visible:
        return None
    middle = (start + end) / 2
    places = []
    for space in spaces:
        left, right = max(space[0], start), min(space[1], end)
        if right - left >= width:
            places.append(min(max(middle, left + width / 2), right - width / 2))
    return min(places, key=lambda place: abs(place - middle), default=None)


def _after_arrow(
    ends: Interval, spaces: Sequence[Interval], width: float, sizes: Sizes
) -> float | None:
    """Directly after the box in which the arrow ends."""
    for left, right in spaces:
        if right > ends[1] + sizes.beside:
            start = max(left + 2, ends[1] + sizes.beside)
            is_next = left <= ends[1] + 3 * sizes.beside
            return start + width / 2 if is_next and right - start >= width else None
    return None


def _before_arrow(
    ends: Interval, spaces: Sequence[Interval], width: float, sizes: Sizes
) -> float | None:
    """Directly before the box in which the arrow starts: after it in a mirror."""
    mirrored = [(-right, -left) for left, right in reversed(spaces)]
    centre = _after_arrow((-ends[1], -ends[0]), mirrored, width, sizes)
    return None if centre is None else -centre


# Lanes


class Extended(Protocol):
    """What reaches from `left` to `right`."""

    @property
    def left(self) -> float: ...
    @property
    def right(self) -> float: ...


E = TypeVar("E", bound=Extended)


def in_lanes(items: Iterable[E]) -> list[list[E]]:
    """Items in as few lanes as keep them apart; each takes the first lane in which it touches nothing."""
    lanes: list[list[E]] = []
    for item in items:
        for lane in lanes:
            if all(item.right < other.left or other.right < item.left for other in lane):
                lane.append(item)
                break
        else:
            lanes.append([item])
    return lanes
