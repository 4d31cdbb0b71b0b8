"""Graphviz diagrams, as DOT text and as pictures: of a circuit and of heads (`wiring_dot` has the wires).

1. In the diagram of a circuit the boxes stand above the sentence, tied to their tokens, with the output on
   top. Arrows are as wide as their totals. The carriers' attention maps are tables of coloured cells.
2. `draw` calls the `dot` of the system or, where there is none, the Graphviz inside the pygraphviz wheel.
"""

from __future__ import annotations

import html
import re
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
from graphviz import Digraph

from circuits.errors import CircuitsError, FileError
from circuits.files import SIGNATURE
from circuits.results import DRAWN_AS
from circuits.show.canvas import INK, LINE, MUTED, PAPER, RED, SVG_FONT, WASH, shade, write_file
from circuits.show.graph import OUTPUT, Attributes, Ends, gains, kept_positions
from circuits.show.scene import Scene, to_scene
from circuits.show.words import name_rows, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

_WHEEL: Final = """
import sys
try:
    import pygraphviz
except ImportError:
    sys.exit(3)
try:
    graph = pygraphviz.AGraph(string=sys.stdin.buffer.read().decode())
    picture = graph.draw(format=sys.argv[1], prog="dot", args=sys.argv[2])
except (pygraphviz.DotError, ValueError, OSError) as why:
    sys.exit(str(why))
sys.stdout.buffer.write(picture)
"""
_MISSING: Final = 3  # the exit code of this program where there is no pygraphviz
_MOST_MAPS: Final = 12
_MOST_NAMES: Final = 12
_LONGEST_MAP: Final = 16  # rows and columns of a map that is shown whole
_MAP_SIZE: Final = 112  # points
_DOTS_PER_INCH: Final = 192  # of a PNG; SVG and PDF have the size of print

_PAGE: Final = {
    "nodesep": "0.3",
    "ranksep": "0.42",
    "pad": "0.15",
    "rankdir": "BT",
    "bgcolor": PAPER,
    "fontname": SVG_FONT,
}
_NODE: Final = {"shape": "plain", "fontname": SVG_FONT, "fontsize": "11", "fontcolor": INK}
_EDGE: Final = {
    "fontname": SVG_FONT,
    "fontsize": "9",
    "fontcolor": INK,
    "color": LINE,
    "arrowsize": "0.7",
}
BOX: Final = {"shape": "box", "style": "rounded,filled", "margin": "0.12,0.07"}
_TIE: Final = {"style": "dashed", "arrowhead": "none", "penwidth": "0.8", "weight": "4"}
_STREAM: Final = {"style": "solid", "arrowhead": "none", "penwidth": "1.4", "weight": "1"}


def to_dot(
    circuit: Circuit | Scene, *, share: float | None = None, maps: bool = True
) -> Digraph:
    """The diagram, by default at the circuit's share, with carriers' maps as nodes; `.source` is its text.

    The same circuit gives the same text.

        >>> diagram = show.to_dot(found)
        >>> diagram.graph_attr["bgcolor"] = "transparent"
        >>> type(diagram).__name__
        'Diagram'
    """
    scene = to_scene(circuit, share)
    has_maps = maps and bool(scene.mapped(1))
    shown = scene.shown(bos=maps)  # the maps have a column for BOS
    page = new_page()
    _add_sentence(page, scene, shown)
    _add_boxes(page, scene, shown)
    _add_output(page, scene)
    for start, end, mapping in scene.arrows:
        start, end = _port(scene, start), _port(scene, end)
        if has_maps and mapping is scene.front:
            _add_heads(page, start, end, scene)
        else:
            _add_arrow(page, start, end, mapping)
    beside = Digraph(graph_attr={"rank": "same"})
    beside.node("caption", f"<{_caption(scene, has_maps=has_maps)}>")
    beside.edge("caption", OUTPUT, style="invis")  # so that it stands left of the output
    page.subgraph(beside)
    return page


@dataclass(frozen=True, slots=True)
class HeadGroup:
    """Heads (or other units) with their effects under one title, and which of them are needed."""

    title: str
    effects: Sequence[tuple[str, float]]
    needed: Collection[str]


def heads_to_dot(groups: Sequence[HeadGroup]) -> Digraph:
    """Heads with their effects, a column for each group; those that are needed are red."""
    page = new_page(rankdir="LR")
    for number, group in enumerate(groups):
        title = f"title {number}"
        page.node(title, box_label([group.title], INK), color=INK, fillcolor=PAPER, **BOX)
        for head, effect in group.effects:
            name = f"{number} {head}"
            needed = head in group.needed
            label = box_label([head, f"{effect:z.2f}"], RED if needed else INK)
            page.node(name, label, color=RED if needed else LINE, fillcolor=WASH, **BOX)
            page.edge(name, title, color=RED if needed else shade(0.7), penwidth=_width(effect))
    return page


# Pictures


def draw(dot: str | Digraph, to: str | Path) -> Path | bytes:
    """Render a diagram to a .svg, .png or .pdf file (its path is returned), or to the bytes of a format.

    >>> show.draw(found.to_dot(), folder / "circuit.svg").name
    'circuit.svg'
    """
    source = dot if isinstance(dot, str) else dot.source
    if isinstance(to, str) and to in DRAWN_AS:
        return _rendered(source, to)
    path = Path(to)
    form = path.suffix[1:]
    if form not in DRAWN_AS:
        raise FileError(
            f"cannot draw {str(to)!r}: the diagram is drawn as {', '.join(DRAWN_AS)}"
        )
    return write_file(path, _rendered(source, form))


def _rendered(source: str, form: str) -> bytes:
    """The picture; Graphviz runs in its own process, so that its messages do not reach the terminal."""
    program = shutil.which("dot")
    resolution = f"-Gdpi={_DOTS_PER_INCH if form == 'png' else 72}"
    command = [sys.executable, "-P", "-c", _WHEEL, form, resolution]
    if program:
        command = [program, f"-T{form}", resolution]
    ran = subprocess.run(command, input=source.encode(), capture_output=True, check=False)
    if ran.returncode == _MISSING and not program:
        raise CircuitsError(
            "no Graphviz to draw with: pip install pygraphviz, or install Graphviz"
        )
    if ran.returncode:
        reason = " ".join(ran.stderr.decode(errors="replace").split()) or "no reason given"
        raise CircuitsError(f"Graphviz refused the diagram: {reason}")
    # A fixed date of creation: the same diagram gives the same PDF.
    return re.sub(rb"/CreationDate \(D:\d{14}", b"/CreationDate (D:20000101000000", ran.stdout)


# The parts of a circuit's diagram


class Diagram(Digraph):
    """A diagram that a notebook shows also where there is no `dot` on the system."""

    def _repr_image_svg_xml(self) -> str:
        return _rendered(self.source, "svg").decode()

    def _repr_image_png(self) -> bytes:
        return _rendered(self.source, "png")


def new_page(**look: str) -> Diagram:
    """An empty diagram in the looks of all diagrams."""
    page = Diagram("circuit", comment=SIGNATURE, graph_attr=_PAGE | look)
    page.node_attr.update(_NODE)
    page.edge_attr.update(_EDGE)
    return page


def _add_sentence(page: Digraph, scene: Scene, shown: Sequence[int | None]) -> None:
    """A node for each token, in a row; boxes of a token's group stand straight above it."""
    row = Digraph(graph_attr={"rank": "min"})
    names = []
    for number, position in enumerate(shown):
        if position is None:
            name, word, count = f"gap {number}", "…", ""
        else:
            name, word, count = _token(position), spell(scene.words[position]), str(position)
        red = scene.is_key(position)
        above = _cell(_font(word, RED if red else INK, 13, bold=red))
        below = _cell(_font(count, RED if red else MUTED, 8), 'CELLPADDING="0"')
        row.node(name, f"<{_table([[above], [below]])}>", group=_group(position))
        names.append(name)
    for start, end in pairwise(names):
        row.edge(start, end, style="invis")
    page.subgraph(row)


def _add_boxes(page: Digraph, scene: Scene, shown: Sequence[int | None]) -> None:
    """The boxes of spans and tokens, tied to their tokens; those that no arrow lifts stand in one row."""
    for name, node in scene.boxes:
        is_key = scene.ends is not None and name == scene.ends[0]
        colour = RED if is_key else MUTED
        page.node(
            name,
            box_label(node["lines"] + _own_lines(scene, node), RED if is_key else INK),
            fillcolor=WASH,
            group=_group(node["positions"][-1]),
            color=colour,
            penwidth="1.8" if is_key else "1.1",
            **BOX,
        )
        for position in node["positions"]:
            if position in shown:
                page.edge(f"{_token(position)}:n", f"{name}:s", color=colour, **_TIE)
    targets = {end for _, end, _ in scene.arrows}
    row = Digraph(graph_attr={"rank": "same"})
    for start, end in pairwise(name for name, _ in scene.boxes if name not in targets):
        row.edge(start, end, style="invis")
    page.subgraph(row)


def _own_lines(scene: Scene, node: Attributes) -> list[str]:
    """The heads by which a box's positions read one another, or themselves, where that carries something."""
    lines = []
    for mapping in node.get("self_attention", ()):
        if mapping in scene.own_arrows:
            names = name_rows(list(mapping["heads"]), most=3)
            lines += [f"reads itself: {row}" for row in names[:1]]
    return lines


def _add_output(page: Digraph, scene: Scene) -> None:
    """The output's box, and the residual stream of the last token below it."""
    label = box_label(scene.graph.nodes[OUTPUT]["lines"], INK)
    column = _group(len(scene.words) - 1)
    page.node(OUTPUT, label, color=INK, fillcolor=PAPER, penwidth="1.6", group=column, **BOX)
    (last,) = scene.graph.predecessors(OUTPUT)
    start = last if scene.graph.nodes[last]["box"] else f"{_token(len(scene.words) - 1)}:n"
    page.edge(start, OUTPUT, color=LINE, **_STREAM)


def _port(scene: Scene, name: str) -> str:
    """Where an arrow meets a node: at its box, else (the last token) at the output, else at its token."""
    node = scene.graph.nodes[name]
    if node["box"]:
        return name
    position = node["positions"][0]
    return OUTPUT if position == len(scene.words) - 1 else f"{_token(position)}:n"


def _add_arrow(page: Digraph, start: str, end: str, mapping: Attributes) -> None:
    """A mapping as one arrow that names its heads."""
    front = mapping["arrow"] == 0
    ink = INK if front else MUTED
    lines = [_font(mapping["label"], ink, 9, bold=front)]
    lines += [_font(row, ink, 9) for row in name_rows(list(mapping["heads"]), most=_MOST_NAMES)]
    margin = _cell(look='WIDTH="8"')
    page.edge(
        start,
        end,
        label=f"<{_table([[margin, _cell(line), margin] for line in lines])}>",
        color=RED if front else shade(0.7),
        penwidth=_width(mapping["total"]),
        weight="3" if front else "1",
    )


def _add_heads(page: Digraph, start: str, end: str, scene: Scene) -> None:
    """The mapping in front through its carriers, each a node with its map, as wide as what it does."""
    assert scene.front is not None and scene.cell is not None
    kept = kept_positions(len(scene.words), (*scene.cell, 0), most=_LONGEST_MAP, reach=2)
    for head in scene.mapped(_MOST_MAPS):
        name = f"head {head}"
        page.node(name, f"<{_map_table(scene.circuit.pattern(head), head, kept, scene.cell)}>")
        look = {"color": RED, "penwidth": _width(gains(scene.front)[head])}
        page.edge(start, f"{name}:s", arrowhead="none", weight="3", **look)
        page.edge(f"{name}:n", end, weight="3", **look)


def _caption(scene: Scene, *, has_maps: bool) -> str:
    """What was found and what was asked, how the maps are to be read, and whose maps they are."""
    whole_row = 'COLSPAN="2"' if has_maps else ""
    rows = []
    for line in textwrap.wrap(scene.verdict, 60):
        rows.append([_cell(_font(line, INK, 9, bold=True), whole_row)])
    rows.append([_cell(_font(scene.finding, RED, 11, bold=True), whole_row)])
    asked = textwrap.wrap(scene.question(), 76)
    asked_lines = [[_cell(_font(line, MUTED, 9))] for line in asked]
    rows.append([_cell(_table(asked_lines), whole_row)])
    if has_maps:
        assert scene.front is not None
        names = [_font(scene.front["label"], INK, 9, bold=True)]
        names += [_font(row, INK, 9) for row in name_rows(scene.carriers, most=_MOST_NAMES)]
        rows.append([_cell(_cross()), _cell(_table([[_cell(line)] for line in names]))])
    more = scene.more(_MOST_MAPS) if has_maps else ""
    for note in (more, scene.counted(scene.drawn)):
        if note:
            rows.append([_cell(_font(note, MUTED, 9), whole_row)])
    return _table(rows, padding=4)


def _token(position: int) -> str:
    """The name of a token's node."""
    return f"token {position}"


def _group(position: int | None) -> str:
    """Nodes of one group stand above one another."""
    return "" if position is None else f"column {position}"


def _width(effect: float) -> str:
    """How wide an arrow of this effect is, in points."""
    return f"{0.8 + 4 * min(abs(effect), 1.2):.2f}"


# Labels, in Graphviz's HTML


def _map_table(pattern: np.ndarray, name: str, kept: Sequence[int | None], cell: Ends) -> str:
    """One head's map (query, key) with its name below; a gap between positions is a thin line."""
    side = max(2, min(9, _MAP_SIZE // len(kept)))
    sizes = {position: 1 if position is None else side for position in kept}
    rows = []
    for query in reversed(kept):
        row = []
        for key in kept:
            look = f'WIDTH="{sizes[key]}" HEIGHT="{sizes[query]}"'
            colour = LINE
            if query is not None and key is not None:
                colour = shade(round(float(pattern[query, key]) * 64) / 64)
            if colour != PAPER:
                look += f' BGCOLOR="{colour}"'
            if (key, query) == cell:
                look += f' BORDER="2" COLOR="{RED}"'
            row.append(_cell(look=look))
        rows.append(row)
    length = sum(sizes[position] for position in kept) + 2
    grid = _table(rows, border=1, padding=0, look=f'COLOR="{LINE}" {_fixed(length)}')
    return _table([[_cell(grid)], [_cell(_font(name, INK, 9))]])


def _cross() -> str:
    """How maps are to be read, as a small corner with its letters: queries run up, keys to the right."""
    query = _cell(_font("Q", MUTED, 9), _fixed(12))
    key = _cell(_font("K", MUTED, 9), _fixed(12))
    corner = _cell(look=f'{_fixed(16)} BORDER="1" COLOR="{MUTED}" SIDES="LB"')
    empty = _cell()
    rows = [[query, empty, empty], [empty, corner, empty], [empty, empty, key]]
    return _table(rows, padding=0, look=_fixed(40))


def box_label(lines: Sequence[str], colour: str, below: str = MUTED) -> str:
    """A bold title and lines below it, muted unless they are given a colour."""
    title, *rest = lines
    rows = [[_cell(_font(title, colour, 11, bold=True))]]
    rows += [[_cell(_font(line, below, 9))] for line in rest]
    return f"<{_table(rows)}>"


def _table(rows: list[list[str]], *, border: int = 0, padding: int = 1, look: str = "") -> str:
    """Cells in rows."""
    lines = "".join(f"<TR>{''.join(row)}</TR>" for row in rows)
    look = f'BORDER="{border}" CELLBORDER="0" CELLSPACING="0" CELLPADDING="{padding}" {look}'.rstrip()
    return f"<TABLE {look}>{lines}</TABLE>"


def _cell(content: str = "", look: str = "") -> str:
    return f"<TD {look}>{content}</TD>" if look else f"<TD>{content}</TD>"


def _fixed(side: int) -> str:
    """The look of a cell or table that keeps its size."""
    return f'FIXEDSIZE="TRUE" WIDTH="{side}" HEIGHT="{side}"'


def _font(text: str, colour: str, size: int, *, bold: bool = False) -> str:
    if not text:
        return ""
    # Graphviz reads \N, \G and the like in its tables, too.
    safe = html.escape(text).replace("\\", "\\\\")
    if bold:
        safe = f"<B>{safe}</B>"
    return f'<FONT COLOR="{colour}" POINT-SIZE="{size}">{safe}</FONT>'
