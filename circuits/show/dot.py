"""The Graphviz diagram of a circuit, as DOT text and as a picture: sentence, boxes, output, arrows and maps.

Boxes stand above the sentence, tied to their tokens, the output on top; arrows are as wide as their totals.
The carriers' maps are tables of coloured cells. `draw` calls the `dot` of the system or, where there is
none, the Graphviz inside the pygraphviz wheel.
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
from typing import TYPE_CHECKING, Any, Final

import graphviz
import networkx as nx
import numpy as np

from circuits.errors import CircuitsError, FileError
from circuits.files import SIGNATURE
from circuits.results import DRAWN_AS
from circuits.show.canvas import INK, LINE, MUTED, PAPER, RED, SVG_FONT, WASH, shade, write_file
from circuits.show.scene import OUTPUT, Scene, gains, kept_positions, to_scene
from circuits.show.words import name_rows, spell

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

Edge = dict[str, Any]  # the attributes of a mapping's edge
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
_MISSING: Final = 3  # the exit code of the above without pygraphviz
_MOST_MAPS: Final = 12
_MOST_NAMES: Final = 12
_LONGEST_MAP: Final = 16  # rows and columns of a map that is shown whole
_MAP_SIZE: Final = 112  # points
_DOTS_PER_INCH: Final = 192  # of a PNG; SVG and PDF have the size of print

_FRAME: Final = 2  # points: the red frame around the mapping's cell
_SPACES: Final = {"nodesep": "0.3", "ranksep": "0.42", "pad": "0.15"}
_PAGE: Final = _SPACES | {"rankdir": "BT", "bgcolor": PAPER, "fontname": SVG_FONT}
_NODE: Final = {"shape": "plain", "fontname": SVG_FONT, "fontsize": "11", "fontcolor": INK}
_EDGE: Final = {"fontname": SVG_FONT, "fontsize": "9", "fontcolor": INK, "color": LINE, "arrowsize": "0.7"}
_BOX: Final = {"shape": "box", "style": "rounded,filled", "margin": "0.12,0.07"}
_TIE: Final = {"style": "dashed", "arrowhead": "none", "penwidth": "0.8", "weight": "4"}
_STREAM: Final = {"style": "solid", "arrowhead": "none", "penwidth": "1.4", "weight": "1"}


def to_dot(circuit: Circuit, *, share: float | None = None, maps: bool = True) -> graphviz.Digraph:
    """The diagram, by default at the circuit's share, with carriers' maps as nodes; `.source` is its text.

    The same circuit gives the same text.

        >>> diagram = show.to_dot(found)
        >>> diagram.graph_attr["bgcolor"] = "transparent"
        >>> type(diagram).__name__
        'Digraph'
    """
    scene, page = to_scene(circuit, share), _new_page()
    shown = scene.shown(bos=maps)  # the maps have a column for it
    _add_sentence(page, scene, shown)
    _add_boxes(page, scene, shown)
    for start, end, mapping in scene.arrows:
        ports = _port(scene, start), _port(scene, end)
        if maps and mapping is scene.front and scene.mapped(1):
            _add_heads(page, *ports, scene)
        else:
            _add_arrow(page, *ports, mapping)
    if maps and scene.mapped(1):
        beside = graphviz.Digraph(graph_attr={"rank": "same"})
        beside.node("caption", f"<{_caption(scene)}>")
        beside.edge("caption", OUTPUT, style="invis")  # it stands left of the output
        page.subgraph(beside)
    return page


@dataclass(frozen=True, slots=True)
class HeadGroup:
    """Heads (or other units) with their effects under one title, and which of them are needed."""

    title: str
    effects: Sequence[tuple[str, float]]
    needed: Collection[str]


def heads_to_dot(groups: Sequence[HeadGroup]) -> graphviz.Digraph:
    """Heads with their effects, a column for each group; those that are needed are red."""
    page = _new_page(rankdir="LR")
    for number, group in enumerate(groups):
        page.node(f"title {number}", f"<{_lines([group.title], INK)}>", color=INK, fillcolor=PAPER, **_BOX)
        for name, effect in group.effects:
            needed = name in group.needed
            label = f"<{_lines([name, f'{effect:z.2f}'], RED if needed else INK)}>"
            page.node(f"{number} {name}", label, color=RED if needed else LINE, fillcolor=WASH, **_BOX)
            colour = RED if needed else shade(0.7)
            page.edge(f"{number} {name}", f"title {number}", color=colour, penwidth=_width(effect))
    return page


def graph_to_dot(graph: nx.MultiDiGraph) -> graphviz.Digraph:
    """A graph of components and wires: nodes by position and layer, wires dashed by the side they enter."""
    page = _new_page()
    for name, node in graph.nodes.items():
        label = f"<{_lines([str(line) for line in node.get('lines', [node['label']])], INK)}>"
        page.node(name, label, color=RED if node.get("front") else MUTED, fillcolor=WASH, **_BOX)
    for start, end, wire in graph.edges(data=True):
        side = wire.get("side", "")
        style = {"key": "dashed", "value": "dotted"}.get(side, "solid")
        colour = RED if wire.get("front") else shade(0.7)
        look = {"style": style, "color": colour, "penwidth": _width(wire.get("effect", 0.0))}
        page.edge(start, end, label=f" {side}" if side else "", **look)
    return page


def _width(effect: float) -> str:
    """How wide an arrow of this effect is, in points."""
    return f"{0.8 + 4 * min(abs(effect), 1.2):.2f}"


def _new_page(**look: str) -> graphviz.Digraph:
    page = graphviz.Digraph("circuit", comment=SIGNATURE, graph_attr=_PAGE | look)
    page.node_attr.update(_NODE)
    page.edge_attr.update(_EDGE)
    return page


def draw(dot: str | graphviz.Digraph, to: str | Path) -> Path | bytes:
    """Render a diagram to a .svg, .png or .pdf file (its path is returned), or to the bytes of a format.

    >>> show.draw(found.to_dot(), folder / "circuit.svg").name
    'circuit.svg'
    """
    dot = dot if isinstance(dot, str) else dot.source
    if isinstance(to, str) and to in DRAWN_AS:
        return _rendered(dot, to)
    path = Path(to)
    if path.suffix[1:] not in DRAWN_AS:
        raise FileError(f"cannot draw {str(to)!r}: the diagram is drawn as {', '.join(DRAWN_AS)}")
    return write_file(path, _rendered(dot, path.suffix[1:]))


def _add_boxes(page: graphviz.Digraph, scene: Scene, shown: Sequence[int | None]) -> None:
    for name, node in scene.boxes:
        is_key = scene.ends is not None and name == scene.ends[0]
        colour = RED if is_key else MUTED
        label = f"<{_lines([*node['lines'], *_own_lines(scene, node)], RED if is_key else INK)}>"
        look = {"color": colour, "penwidth": "1.8" if is_key else "1.1"}
        page.node(name, label, fillcolor=WASH, group=_group(node["positions"][-1]), **look, **_BOX)
        for position in node["positions"]:
            if position in shown:
                page.edge(f"{_token(position)}:n", f"{name}:s", color=colour, **_TIE)
    targets = {end for _, end, _ in scene.arrows}
    row = graphviz.Digraph(graph_attr={"rank": "same"})  # the boxes that no arrow lifts, from left to right
    for start, end in pairwise(name for name, _ in scene.boxes if name not in targets):
        row.edge(start, end, style="invis")
    page.subgraph(row)
    label = f"<{_lines(scene.graph.nodes[OUTPUT]['lines'], INK)}>"
    last = _group(len(scene.words) - 1)
    page.node(OUTPUT, label, color=INK, fillcolor=PAPER, penwidth="1.6", group=last, **_BOX)
    (start,) = scene.graph.predecessors(OUTPUT)
    page.edge(_port(scene, start, sentence=True), OUTPUT, color=LINE, **_STREAM)


def _own_lines(scene: Scene, node: dict[str, Any]) -> list[str]:
    """The heads by which a box's positions read one another, or themselves, where that carries something."""
    own = [data for data in node.get("self_attention", ()) if data in scene.own_arrows]
    return [f"reads itself: {row}" for data in own for row in name_rows(list(data["heads"]), most=3)[:1]]


def _port(scene: Scene, name: str, *, sentence: bool = False) -> str:
    """Where an edge meets a node: at its box, else (the last token) at the output, else at its token."""
    node = scene.graph.nodes[name]
    if node["box"]:
        return name
    position, last = node["positions"][0], len(scene.circuit.prompt) - 1
    return OUTPUT if position == last and not sentence else f"{_token(position)}:n"


def _add_arrow(page: graphviz.Digraph, start: str, end: str, mapping: Edge) -> None:
    front = mapping["arrow"] == 0
    ink, colour = (INK, RED) if front else (MUTED, shade(0.7))
    names = name_rows(list(mapping["heads"]), most=_MOST_NAMES)
    lines = [_font(mapping["label"], ink, 9, bold=front), *(_font(row, ink, 9) for row in names)]
    margin = _cell(look='WIDTH="8"')
    label = _table([[margin, _cell(line), margin] for line in lines])
    look = {"color": colour, "penwidth": _width(mapping["total"]), "weight": "3" if front else "1"}
    page.edge(start, end, label=f"<{label}>", **look)


def _add_heads(page: graphviz.Digraph, start: str, end: str, scene: Scene) -> None:
    """The mapping in front through its carriers, each a node with its map, as wide as what it does."""
    assert scene.front is not None and scene.cell is not None
    kept = kept_positions(len(scene.words), (*scene.cell, 0), most=_LONGEST_MAP, reach=2)
    for head in scene.mapped(_MOST_MAPS):
        page.node(f"head {head}", f"<{_tile(scene.circuit.pattern(head), head, kept, scene.cell)}>")
        look = {"color": RED, "penwidth": _width(gains(scene.front)[head])}
        page.edge(start, f"head {head}:s", arrowhead="none", weight="3", **look)
        page.edge(f"head {head}:n", end, weight="3", **look)


def _add_sentence(page: graphviz.Digraph, scene: Scene, shown: Sequence[int | None]) -> None:
    """A node for each token, in a row; boxes of a token's group stand straight above it."""
    row, names = graphviz.Digraph(graph_attr={"rank": "min"}), []
    for number, position in enumerate(shown):
        name, word, count, red = f"gap {number}", "…", "", scene.is_key(position)
        if position is not None:
            name, word, count = _token(position), spell(scene.words[position]), str(position)
        names.append(name)
        above = _cell(_font(word, RED if red else INK, 13, bold=red))
        below = _cell(_font(count, RED if red else MUTED, 8), 'CELLPADDING="0"')
        label = _table([[above], [below]])
        row.node(name, f"<{label}>", group=_group(position))
    for start, end in pairwise(names):
        row.edge(start, end, style="invis")
    page.subgraph(row)


def _token(position: int) -> str:
    return f"token {position}"


def _group(position: int | None) -> str:
    return "" if position is None else f"column {position}"


def _caption(scene: Scene) -> str:
    """What the maps are, how they are to be read, and how much of the mapping their heads carry."""
    assert scene.front is not None
    lines = [_font(scene.front["label"], INK, 9, bold=True)]
    lines += [_font(row, INK, 9) for row in name_rows(scene.carriers, most=_MOST_NAMES)]
    verdict = [_font(line, INK, 9, bold=True) for line in textwrap.wrap(scene.verdict, 60)]
    above = [*verdict, _font(scene.caption, RED, 11, bold=True)]
    rows = [[_cell(line, 'COLSPAN="2"')] for line in above]
    rows.append([_cell(_cross()), _cell(_table([[_cell(line)] for line in lines]))])
    for note in filter(None, (scene.more(_MOST_MAPS), scene.counted(scene.drawn))):
        rows.append([_cell(_font(note, MUTED, 9), 'COLSPAN="2"')])
    return _table(rows, padding=4)


def _tile(pattern: np.ndarray, name: str, kept: Sequence[int | None], cell: tuple[int, int]) -> str:
    """One head's map with its name below; a gap between positions is a thin line."""
    side = max(2, min(9, _MAP_SIZE // len(kept)))
    sizes, rows = {position: 1 if position is None else side for position in kept}, []
    for query in reversed(kept):
        row = []
        for key in kept:
            colour = LINE
            if query is not None and key is not None:
                colour = shade(round(float(pattern[query, key]) * 64) / 64)
            fill = "" if colour == PAPER else f' BGCOLOR="{colour}"'
            fill += f' BORDER="{_FRAME}" COLOR="{RED}"' if (key, query) == cell else ""
            row.append(_cell(look=f'WIDTH="{sizes[key]}" HEIGHT="{sizes[query]}"{fill}'))
        rows.append(row)
    length = sum(sizes[position] for position in kept) + 2
    grid = _table(rows, border=1, padding=0, look=f'COLOR="{LINE}" {_fixed(length)}')
    return _table([[_cell(grid)], [_cell(_font(name, INK, 9))]])


def _cross() -> str:
    """How maps are to be read, as a small corner with its letters: queries run up, keys to the right."""
    query, key = (_cell(_font(letter, MUTED, 9), _fixed(12)) for letter in "QK")
    corner, empty = _cell(look=f'{_fixed(16)} BORDER="1" COLOR="{MUTED}" SIDES="LB"'), _cell()
    rows = [[query, empty, empty], [empty, corner, empty], [empty, empty, key]]
    return _table(rows, padding=0, look=_fixed(40))


def _lines(lines: Sequence[str], colour: str) -> str:
    title, *rest = lines
    fonts = [_font(title, colour, 11, bold=True), *(_font(line, MUTED, 9) for line in rest)]
    return _table([[_cell(line)] for line in fonts])


def _table(rows: list[list[str]], *, border: int = 0, padding: int = 1, look: str = "") -> str:
    """Cells in rows, as Graphviz's HTML."""
    lines = "".join(f"<TR>{''.join(row)}</TR>" for row in rows)
    look = f'BORDER="{border}" CELLBORDER="0" CELLSPACING="0" CELLPADDING="{padding}" {look}'.rstrip()
    return f"<TABLE {look}>{lines}</TABLE>"


def _cell(content: str = "", look: str = "") -> str:
    return f"<TD {look}>{content}</TD>" if look else f"<TD>{content}</TD>"


def _fixed(side: int) -> str:
    return f'FIXEDSIZE="TRUE" WIDTH="{side}" HEIGHT="{side}"'


def _font(text: str, colour: str, size: int, *, bold: bool = False) -> str:
    if not text:
        return ""
    safe = html.escape(text).replace("\\", "\\\\")  # Graphviz reads \N, \G and the like in its tables, too
    return f'<FONT COLOR="{colour}" POINT-SIZE="{size}">{f"<B>{safe}</B>" if bold else safe}</FONT>'


def _rendered(dot: str, form: str) -> bytes:
    """The picture; Graphviz runs in its own process, so that its messages do not reach the terminal."""
    own_dot = shutil.which("dot")
    fine = f"-Gdpi={_DOTS_PER_INCH if form == 'png' else 72}"
    command = [own_dot, f"-T{form}", fine] if own_dot else [sys.executable, "-P", "-c", _WHEEL, form, fine]
    ran = subprocess.run(command, input=dot.encode(), capture_output=True, check=False)
    if ran.returncode == _MISSING and not own_dot:
        raise CircuitsError("no Graphviz to draw with: pip install pygraphviz, or install Graphviz")
    if ran.returncode:
        reason = " ".join(ran.stderr.decode(errors="replace").split()) or "no reason given"
        raise CircuitsError(f"Graphviz refused the diagram: {reason}")
    # A PDF's date of creation never changes, so that the same diagram gives the same bytes.
    return re.sub(rb"/CreationDate \(D:\d{14}", b"/CreationDate (D:20000101000000", ran.stdout)
