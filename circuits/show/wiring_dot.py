"""A wiring as a Graphviz diagram: layers upwards, nodes of a place above one another, wires as in the figure.

The text has no coordinates: Graphviz places the nodes. Wires keep the widths, colours and dashes of
`wiring_figure`; those of negative value end in a bar, new ones have a plus at their beginning.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from graphviz import Digraph

from circuits.components import SIDES
from circuits.show.canvas import INK, MUTED, PAPER, RED
from circuits.show.dot import BOX, box_label, new_page
from circuits.show.wiring import headline, strongest_path
from circuits.show.wiring_grid import Strand, kind_of, to_grid
from circuits.show.wiring_marks import AGAINST, OTHER_COLOUR, SIDE_COLOURS
from circuits.show.wiring_words import caption, checked_names, place_token, subtitle
from circuits.show.words import spell
from circuits.wires.parts import LOGITS, Node

if TYPE_CHECKING:
    from circuits.components import Component
    from circuits.wires.record import Wiring

_STYLES: Final = {"key": "dashed", "value": "dotted"}


def wiring_dot(wiring: Wiring, *, names: Mapping[str, str] | None = None) -> Digraph:
    """The circuit as a diagram; `.source` is its text. `names` are written below the names of heads and MLPs.

    Red boxes and lines without transparency are the strongest path.
    """
    given = checked_names(wiring, names or {})
    title = box_label([headline(wiring), subtitle(wiring), caption(wiring)], INK)
    page = new_page(label=title, labelloc="t", nodesep="0.2", ranksep="0.35")
    path = strongest_path(wiring)
    front = {node for start, end, _ in path for node in (start, end)}
    grid = to_grid(wiring)
    for row in grid.rows:
        for node in row:
            look = _look(wiring, node, given, filled=node in front)
            page.node(str(node), group=str(grid.column[node]), **look)
    for strand in grid.strands:
        # So that Graphviz puts every node into the row that the figure has it in.
        rows = grid.row[strand.end] - grid.row[strand.start]
        on_path = (strand.start, strand.end, strand.each.wire) in path
        look = _wire_look(strand, on_path=on_path)
        page.edge(str(strand.start), str(strand.end), minlen=str(rows), **look)
    return page


def _look(
    wiring: Wiring, node: Node, names: Mapping[Component, str], *, filled: bool
) -> dict[str, Any]:
    """Heads are rounded boxes, MLPs hexagons; below the name stand the place and its token."""
    lines = [spell(wiring.output.token)] if node == LOGITS and len(wiring.pairs) == 1 else []
    if node.component is not None and node.component in names:
        lines.append(spell(names[node.component], longest=48))
    if node.component is not None and node.place is not None:
        token = place_token(wiring, node.place)
        place = spell(wiring.places[node.place])
        lines.append(f"{place} {spell(token)}" if token else place)
    kind = kind_of(node)
    inside = PAPER if filled else INK
    return BOX | {
        "margin": "0.02,0.01" if kind == "mlp" else BOX["margin"],
        "label": box_label(
            [str(node.component or "logits"), *lines], inside, inside if filled else MUTED
        ),
        "shape": "hexagon" if kind == "mlp" else "box",
        "style": BOX["style"] if kind == "head" else "filled",
        "color": RED if filled else MUTED,
        "fillcolor": RED if filled else PAPER,
    }


def _wire_look(strand: Strand, *, on_path: bool) -> dict[str, str]:
    """Colour, dashes and width of a wire, and what stands at its ends."""
    colour = SIDE_COLOURS.get(strand.side, OTHER_COLOUR)
    if strand.each.value < 0:
        colour = AGAINST
    look = {
        "color": colour if on_path else f"{colour}a0",
        "style": _STYLES.get(strand.side, "solid"),
        "penwidth": f"{strand.line + (1.0 if on_path else 0.3):.2f}",
        "arrowhead": "tee" if strand.each.value < 0 else "normal",
        "arrowsize": f"{0.4 + 0.1 * strand.line:.2f}",
        "tooltip": f"{strand.each.wire} {strand.each.value:z.3f}",
    }
    if strand.side in SIDES:
        look |= {"headlabel": strand.side[0], "fontcolor": colour, "labeldistance": "0.9"}
    if strand.each.new:
        look |= {"taillabel": "+", "fontcolor": INK}
    return look
