"""Where everything of a circuit stands on the page, at every share and with every gap opened or closed.

The page's script adds up widths and looks up heights; every decision is made here.

1. Across, a token's column has a fixed width, and all else is placed relative to columns: names by a position
   and an offset from it. A gap's column stands for all positions in it. Places are chosen with all gaps
   closed. Opening a gap only moves things apart, so what did not touch still does not.
2. Down, the arrow of a mapping in a layer keeps its lane at every share; the lane has space for all heads of
   the path. Lanes that nothing stands in are closed, so rows differ between shares: a stage is the rows of
   the shares with the same carriers.
3. Lengths are pixels; `page_sizes` measures texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from circuits.components import Head
from circuits.show import OUTPUT, Scene
from circuits.show.arrows import Interval, PlacedItem, in_lanes, place_arrow
from circuits.show.graph import Ends
from circuits.show.layout import (
    Lanes,
    Named,
    groups_under,
    layers_text,
    shown_spans,
    stack_layers,
    taken_by,
)
from circuits.show.page_sizes import (
    MOST_NAMES,
    PAGE,
    PILL_GAP,
    pill_width,
    pills_width,
    text_width,
)

if TYPE_CHECKING:
    from circuits.tracing import Mapping

Gap = tuple[int, int]  # the first and the last position that it hides

_NARROWEST: Final = 38  # the least width of a column, and the width of a gap
# Of the picture without its axis, so that names have space after an arrow.
_LEAST_WIDTH: Final = 360
_HALF_BOX: Final = 18.0  # half the largest width of a box
_LONGEST_NAME: Final = 10  # letters of a head's name
_SENTENCE: Final = 70  # the height of the words, with what stands above and below each
_GROUP: Final = 18  # the height of a line of groups under the sentence
_LEAST_CAPTION: Final = 60.0
# Font sizes as in page.css.
_WORD: Final = 15.0
_CAPTION: Final = 12.5
_NOTE: Final = 11.5
_TITLE: Final = 13.0


@dataclass(frozen=True, slots=True)
class Track:
    """A mapping's arrow in one layer: with the first of its heads, the first two, and so on."""

    ends: Ends
    layer: int
    heads: tuple[str, ...]  # in the order of the path
    steps: tuple[int, ...]  # the number of each head on the path; the first step is 1
    arrows: tuple[PlacedItem, ...]

    @property
    def left(self) -> float:
        return min(arrow.left for arrow in self.arrows)

    @property
    def right(self) -> float:
        return max(arrow.right for arrow in self.arrows)

    def arrow_at(self, carriers: int) -> PlacedItem | None:
        """The arrow when so many first heads of the path carry the mapping; None if none stands here."""
        count = sum(step <= carriers for step in self.steps)
        return self.arrows[count - 1] if count else None


def lay_out_page(
    scene: Scene,
    shown: Sequence[int | None],
    labels: Sequence[str],
    carriers: dict[Ends, list[int]],
) -> dict[str, Any]:
    """All places, as the page's script reads them.

    `shown` are the positions that the page opens with, None for a gap; `labels` the words of all positions.
    `carriers` says of each mapping, by key and query, how many heads of its path carry it at every percentage
    from 1 to 100.
    """
    widths = [max(_NARROWEST, text_width(label, _WORD, bold=True) + 18) for label in labels]
    columns = _with_gaps(shown, len(labels))
    centres, right = _centres(columns, widths)
    spans = shown_spans(scene, scene.drawn, others=len(scene.boxes))
    width = max(right, PAGE.axis + _LEAST_WIDTH)
    ground = Ground(spans, centres, _halves(columns, widths), width)
    mappings = scene.circuit.mappings
    tracks = [_tracks(mapping, ground) for mapping in mappings]
    lanes = _lanes(scene, tracks)
    for of_mapping in tracks:
        width = max([width, *(track.right for track in of_mapping)])
    groups = in_lanes(groups_under(scene, spans, centres.__getitem__, right, _note_width))
    last = centres[len(labels) - 1]  # of the last token, over which the output stands
    output_width, output_offset = _place_output(scene, last, right)
    output_left = last + output_offset - output_width / 2
    caption_space = output_left - PAGE.axis - 12
    stages, stage_at = _stages(scene, lanes, spans, carriers)
    firsts = [_positions_in(column)[0] for column in columns]
    starts = {position: centres[position] for position in firsts}
    return {
        "axis": PAGE.axis,
        "top": PAGE.top,
        "columns": columns,
        "widths": widths,
        "halves": [_short(_half_box(each)) for each in widths],  # of boxes
        "gap": _NARROWEST,
        "beyond": width - right + 8,  # the width of the picture after its last column
        "held": _held(scene),
        "pill_widths": [pill_width(length) for length in range(_LONGEST_NAME + 1)],
        "pill_gap": PILL_GAP,
        "arrows": [[_pack_track(track, lanes, starts) for track in each] for each in tracks],
        "captions": [_names_in_caption(mapping, caption_space) for mapping in mappings],
        "stages": stages,
        "stage_at": stage_at,
        "groups": _pack_groups(scene, groups),
        "below": _SENTENCE + _GROUP * len(groups),  # the height under the first layer
        "output": {
            "width": output_width,
            "height": 12 + 16 * len(scene.graph.nodes[OUTPUT]["lines"]),
            "offset": output_offset,
            "y": 2,
        },
    }


# Across


def _with_gaps(shown: Sequence[int | None], length: int) -> list[int | Gap]:
    """The positions that are shown, and each gap as the first and last position in it."""
    columns: list[int | Gap] = []
    for index, position in enumerate(shown):
        if position is not None:
            columns.append(position)
            continue
        before = shown[index - 1] if index else -1
        after = shown[index + 1] if index + 1 < len(shown) else length
        assert before is not None and after is not None  # no gap stands beside another
        columns.append((before + 1, after - 1))
    return columns


def _centres(
    columns: Sequence[int | Gap], widths: Sequence[float]
) -> tuple[dict[int, float], float]:
    """The centre of every position's column, and the right end of the last one."""
    centres = {}
    right = PAGE.axis
    for column in columns:
        positions = _positions_in(column)
        width = widths[positions[0]] if len(positions) == 1 else _NARROWEST
        for position in positions:
            centres[position] = right + width / 2
        right += width
    return centres, right


def _positions_in(column: int | Gap) -> range:
    """The positions that a column stands for."""
    first, last = column if isinstance(column, tuple) else (column, column)
    return range(first, last + 1)


def _halves(columns: Sequence[int | Gap], widths: Sequence[float]) -> list[float]:
    """Half the width of the box of each position; in a closed gap, half the width of the gap."""
    halves = [_half_box(width) for width in widths]
    for column in columns:
        if isinstance(column, tuple):
            for position in _positions_in(column):
                halves[position] = _NARROWEST / 2
    return halves


def _place_output(scene: Scene, last: float, right: float) -> tuple[float, float]:
    """The width of the output's box, and how far from the centre of the last token it must stand."""
    title, *facts = scene.graph.nodes[OUTPUT]["lines"]
    texts = [text_width(title, _TITLE, bold=True), *map(_note_width, facts)]
    width = max(texts) + 24
    centre = min(max(last, PAGE.axis + width / 2), right - width / 2)
    return width, centre - last


def _note_width(text: str) -> float:
    return text_width(text, _NOTE)


def _held(scene: Scene) -> list[str]:
    """Of every position, the layers in which a span holds it: `0–21`; empty where none does."""
    held: list[list[str]] = [[] for _ in scene.words]
    for _, node in scene.boxes:
        layers = layers_text([node["layers"]])
        if node["kind"] == "span" and layers:
            for position in node["positions"]:
                held[position].append(layers)
    return [", ".join(dict.fromkeys(layers)) for layers in held]


def _pack_groups(scene: Scene, lanes: list[list[PlacedItem]]) -> list[dict[str, Any]]:
    """The names under the sentence, each between the columns of its first and last position."""
    packed = []
    for lane, groups in enumerate(lanes):
        down = _SENTENCE + 8 + _GROUP * lane  # from the first layer
        for group in groups:
            positions = scene.graph.nodes[group.node]["positions"]
            ends = [min(positions), max(positions)]
            offset = group.text_x - (group.start + group.end) / 2
            packed.append({"text": group.text, "ends": ends, "offset": offset, "down": down})
    return packed


# Arrows


@dataclass(frozen=True, slots=True)
class Ground:
    """What names must not stand on: the boxes of spans, with all gaps closed."""

    spans: list[Named]
    centres: dict[int, float]
    halves: Sequence[float]  # half the width of the box of each position
    width: float

    def taken(self, layer: int) -> list[Interval]:
        return taken_by(self.spans, layer, self.centres.__getitem__, self.halves.__getitem__)


def _half_box(width: float) -> float:
    """Half the width of a box in a column of this width."""
    return min(0.3 * width, _HALF_BOX)


def _tracks(mapping: Mapping, ground: Ground) -> list[Track]:
    """A mapping's arrows, one in each layer that has heads of its path."""
    layers: dict[int, list[tuple[int, Head, float]]] = {}
    before = 0.0
    for number, step in enumerate(mapping.path, start=1):
        gain = step.joint - before
        layers.setdefault(step.head.layer, []).append((number, step.head, gain))
        before = step.joint
    ends = (ground.centres[mapping.key], ground.centres[mapping.query])
    across = (PAGE.axis, ground.width)
    tracks = []
    for layer, steps in layers.items():
        heads = [str(head) for _, head, _ in steps]
        taken = ground.taken(layer)
        arrows = []
        effect = 0.0
        for count, (_, _, gain) in enumerate(steps, start=1):
            effect += gain
            named = heads[:count]
            arrow = place_arrow(
                layer, named, ends, effect, across=across, taken=taken, sizes=PAGE
            )
            arrows.append(arrow)
        numbers = tuple(number for number, _, _ in steps)
        tracks.append(Track(mapping.ends, layer, tuple(heads), numbers, tuple(arrows)))
    return tracks


def _lanes(scene: Scene, tracks: Sequence[Sequence[Track]]) -> dict[int, list[list[Track]]]:
    """The lanes of each layer. Mappings that are not drawn unless they are in front share one lane, as only
    one of them is in front."""
    drawn = list(scene.drawn)
    lanes = {}
    for layer in range(scene.depth):
        own = [track for each in tracks for track in each if track.layer == layer]
        always = [track for track in own if track.ends in drawn]
        always.sort(key=lambda track: drawn.index(track.ends))
        lanes[layer] = in_lanes(always)
        sometimes = [track for track in own if track.ends not in drawn]
        if sometimes:
            lanes[layer].append(sometimes)
    return lanes


def _pack_track(
    track: Track, lanes: dict[int, list[list[Track]]], starts: dict[int, float]
) -> list[Any]:
    """[layer, lane, steps, places, effects] of a mapping's arrow in one layer.

    For each number of heads there is a place, [names, position, from its centre to the left end of the names,
    whether they are led out], and what the heads add to the joint effect. Beyond the most names on an arrow the
    place stays the same.
    """
    (lane,) = [number for number, each in enumerate(lanes[track.layer]) if track in each]
    places = []
    for arrow in track.arrows[: MOST_NAMES + 1]:
        named = sum(name in track.heads for name in arrow.names)
        before = [position for position, x in starts.items() if x <= arrow.text_x]
        position = before[-1] if before else next(iter(starts))
        left = arrow.text_x - pills_width(arrow.names) / 2 - starts[position]
        places.append([named, position, _short(left), int(arrow.led)])
    effects = [round(arrow.effect, 3) for arrow in track.arrows]
    return [track.layer, lane, track.steps, places, effects]


def _names_in_caption(mapping: Mapping, space: float) -> tuple[int, int] | None:
    """How many names fit into the space of the caption: alone, and before `and 99 more`; None if none does."""
    if space < _LEAST_CAPTION:
        return None
    names = [str(step.head) for step in mapping.path]
    alone = _fitting(names, space)
    return alone, _fitting(names, space - text_width(" and 99 more", _CAPTION))


def _fitting(names: Sequence[str], space: float) -> int:
    count = 0
    while count < len(names):
        if text_width(" ".join(names[: count + 1]), _CAPTION) > space:
            break
        count += 1
    return count


# Down


def _stages(
    scene: Scene,
    lanes: dict[int, list[list[Track]]],
    spans: list[Named],
    carriers: dict[Ends, list[int]],
) -> tuple[list[Any], list[int]]:
    """The rows of every stage, and the number of the stage of every percentage from 1 to 100.

    A row is [first layer, last layer, top, bottom, the height y of each lane]; a closed lane has none.
    """
    stages: list[Any] = []
    stage_at = []
    stage_of: dict[tuple[int, ...], int] = {}  # by the number of carriers of each mapping
    for percent in range(100):
        at_share = {ends: counts[percent] for ends, counts in carriers.items()}
        counts = tuple(at_share.values())
        if counts not in stage_of:
            rows = _rows(scene.depth, lanes, spans, at_share)
            if rows not in stages:
                stages.append(rows)
            stage_of[counts] = stages.index(rows)
        stage_at.append(stage_of[counts])
    return stages, stage_at


def _rows(
    depth: int,
    lanes: dict[int, list[list[Track]]],
    spans: list[Named],
    carriers: dict[Ends, int],
) -> list[Any]:
    """The rows when this many heads carry each mapping; lanes without an arrow are closed."""
    drawn: Lanes = {}
    for layer, tracks_in_lanes in lanes.items():
        drawn[layer] = []
        for tracks in tracks_in_lanes:
            arrows = [track.arrow_at(carriers[track.ends]) for track in tracks]
            drawn[layer].append([arrow for arrow in arrows if arrow is not None])
    open_lanes = {layer: [lane for lane in each if lane] for layer, each in drawn.items()}
    rows, height_of = stack_layers(depth, open_lanes, spans, PAGE)
    packed = []
    for (first, last), (top, bottom) in rows.items():
        heights = [_short(height_of[lane[0]]) if lane else None for lane in drawn[first]]
        packed.append([first, last, top, bottom, heights])
    return packed


def _short(length: float) -> float:
    """A length that is short in JSON: 12 instead of 12.0."""
    return int(length) if length == int(length) else round(length, 2)
