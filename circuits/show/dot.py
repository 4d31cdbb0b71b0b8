"""The Graphviz diagram of a circuit, as DOT text and as a picture: sentence, spans, output, arrows with their carriers, and maps.

1. The sentence is one table, a column per token with its position beneath; span boxes stand above, tied to their tokens; the output on top.
2. A mapping is an arrow from the box of its key to the box of its query, as wide as its total, labelled with its carriers.
3. The carriers' attention maps are tables of coloured cells; of a long prompt only the positions around the mapping are shown.
4. `draw` asks the `dot` of the system or, where there is none, the Graphviz inside the pygraphviz wheel.
"""

from __future__ import annotations

import html
import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from circuits.errors import CircuitsError, FileError
from circuits.show import scene, style
from circuits.tracing.records import SHARE

if TYPE_CHECKING:
    import graphviz

    from circuits.heads import Head
    from circuits.tracing.records import Circuit, Mapping

FORMATS: Final = ("svg", "png", "pdf")
_MOST_MAPS: Final = 12
_MAPS_IN_A_ROW: Final = 6
_MOST_NAMES: Final = 12
_LONGEST_MAP: Final = 16  # rows and columns of a map that is shown whole
_MAP_SIZE: Final = 66  # points


def to_dot(circuit: Circuit, *, share: float = SHARE, query_up: bool = False, maps: bool = True) -> str:
    """The diagram as DOT text; the same circuit gives the same text."""
    import graphviz

    graph = graphviz.Digraph(
        "circuit",
        graph_attr={
            "rankdir": "BT",
            "bgcolor": style.PAPER,
            "nodesep": "0.3",
            "ranksep": "0.42",
            "pad": "0.15",
            "dpi": "192",
            "fontname": style.SVG_FONT,
        },
        node_attr={"shape": "plain", "fontname": style.SVG_FONT, "fontsize": "11", "fontcolor": style.INK},
        edge_attr={
            "fontname": style.SVG_FONT,
            "fontsize": "9",
            "fontcolor": style.INK,
            "color": style.LINE,
            "arrowsize": "0.7",
        },
    )
    front = scene.front(circuit)
    shown = scene.shown_positions(circuit)
    graph.node("sentence", _html(_sentence(circuit, shown, front)))
    _add_boxes(graph, circuit, shown, front)
    for mapping in scene.drawn_mappings(circuit):
        _add_arrow(graph, circuit, mapping, share=share, front=mapping is front)
    if maps and front is not None and front.carriers(share):
        graph.node("maps", _html(_maps(circuit, front, front.carriers(share), query_up=query_up)))
        graph.edge("output", "maps", style="invis")
    return graph.source


def draw(dot: str, to: str | Path) -> Path | bytes:
    """Render DOT text: to a file whose name ends in .svg, .png or .pdf (its path is returned), or to the bytes of a format."""
    wanted = str(to)
    if isinstance(to, str) and to in FORMATS:
        return _rendered(dot, to)
    path = Path(to)
    if path.suffix[1:] not in FORMATS:
        raise FileError(f"cannot draw {wanted!r}: the diagram is drawn as {', '.join(FORMATS)}")
    data = _rendered(dot, path.suffix[1:])
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    except OSError as why:
        raise FileError(f"cannot write {path}: {why.strerror or why}; choose another place") from why
    return path


# Boxes and arrows


def _add_boxes(
    graph: graphviz.Digraph, circuit: Circuit, shown: tuple[int | None, ...], front: Mapping | None
) -> None:
    box = {
        "shape": "box",
        "style": "rounded,filled",
        "fillcolor": style.WASH,
        "penwidth": "1.1",
        "margin": "0.12,0.07",
    }
    tie = {"style": "dashed", "arrowhead": "none", "color": style.MUTED, "penwidth": "0.8", "weight": "4"}
    for number, span in enumerate(circuit.spans):
        key = front is not None and front.key in span.positions
        colour = style.RED if key else style.MUTED
        graph.node(
            f"span{number}",
            _html(_lines(scene.span_lines(span), style.RED if key else style.INK)),
            color=colour,
            **box,
        )
        for at in span.positions:
            if at in shown:
                graph.edge(f"sentence:p{at}:n", f"span{number}:s", **tie | {"color": colour})
    graph.node(
        "output",
        _html(_lines(scene.output_lines(circuit), style.INK)),
        color=style.INK,
        **box | {"penwidth": "1.6", "fillcolor": style.PAPER},
    )
    graph.edge(
        _place(circuit, len(circuit.prompt) - 1, sentence=True),
        "output",
        **tie | {"style": "solid", "color": style.LINE, "penwidth": "1.4", "weight": "1"},
    )


def _place(circuit: Circuit, position: int, *, sentence: bool = False) -> str:
    """The node in which a position stands (the output is skipped where `sentence` is asked for)."""
    span = scene.span_at(circuit, position)
    if span is not None:
        return f"span{circuit.spans.index(span)}"
    return "output" if position == len(circuit.prompt) - 1 and not sentence else f"sentence:p{position}:n"


def _add_arrow(
    graph: graphviz.Digraph, circuit: Circuit, mapping: Mapping, *, share: float, front: bool
) -> None:
    start, end = _place(circuit, mapping.key), _place(circuit, mapping.query)
    if start == end:
        return
    colour = style.RED if front else style.shade(0.7)
    width = f"{0.8 + 4 * min(abs(mapping.total), 1.2):.2f}"
    label = _html(_arrow_label(mapping, share, front=front))
    graph.edge(start, end, label=label, color=colour, penwidth=width, weight="3" if front else "1")


def _arrow_label(mapping: Mapping, share: float, *, front: bool) -> str:
    carriers = mapping.carriers(share)
    rows = scene.name_rows(carriers, most=_MOST_NAMES)
    head = _font(
        scene.modulated(mapping, share), colour=style.INK if front else style.MUTED, size=9, bold=front
    )
    lines = [head, *(_font(row, colour=style.INK if front else style.MUTED, size=9) for row in rows)]
    return _table(
        [f'<TR><TD WIDTH="8"></TD><TD>{line}</TD><TD WIDTH="8"></TD></TR>' for line in lines], padding=1
    )


# Tables


def _sentence(circuit: Circuit, shown: tuple[int | None, ...], front: Mapping | None) -> str:
    words, numbers = [], []
    for at in shown:
        key = front is not None and at == front.key
        text = "…" if at is None else scene.spell(circuit.prompt.words[at])
        port = "" if at is None else f' PORT="p{at}"'
        words.append(f"<TD{port}>{_font(text, colour=style.RED if key else style.INK, size=13)}</TD>")
        numbers.append(
            f'<TD CELLPADDING="0">{_font("" if at is None else str(at), colour=style.RED if key else style.MUTED, size=8)}</TD>'
        )
    return _table([f"<TR>{''.join(words)}</TR>", f"<TR>{''.join(numbers)}</TR>"], padding=5)


def _maps(circuit: Circuit, mapping: Mapping, carriers: tuple[Head, ...], *, query_up: bool) -> str:
    """The caption, the axis cross and the carriers' maps, a few to a row."""
    kept = scene.kept_positions(
        len(circuit.prompt), (mapping.key, mapping.query, 0), most=_LONGEST_MAP, reach=2
    )
    tiles = [
        _tile(circuit.pattern(head), str(head), kept, mapping, query_up=query_up)
        for head in carriers[:_MOST_MAPS]
    ]
    rows = [tiles[at : at + _MAPS_IN_A_ROW] for at in range(0, len(tiles), _MAPS_IN_A_ROW)]
    span = min(len(tiles), _MAPS_IN_A_ROW) + 1
    more = len(carriers) - len(tiles)
    caption = _font(scene.caption(mapping, len(carriers)), colour=style.RED, size=11, bold=True)
    lines = [f'<TR><TD COLSPAN="{span}">{caption}</TD></TR>']
    for number, row in enumerate(rows):
        corner = _cross(query_up=query_up) if number == 0 else ""
        lines.append(
            "<TR>"
            + "".join(f"<TD>{cell}</TD>" for cell in [corner, *row])
            + "<TD></TD>" * (span - 1 - len(row))
            + "</TR>"
        )
    if more:
        lines.append(
            f'<TR><TD COLSPAN="{span}">{_font(f"and {more} more heads", colour=style.MUTED, size=9)}</TD></TR>'
        )
    return _table(lines, padding=4)


def _tile(
    pattern: np.ndarray, name: str, kept: tuple[int | None, ...], mapping: Mapping, *, query_up: bool
) -> str:
    """One head's map with its name beneath; a gap between positions is a thin line."""
    side = max(2, min(9, _MAP_SIZE // len(kept)))
    rows = []
    for query in reversed(kept) if query_up else kept:
        cells = []
        for key in kept:
            size = f'WIDTH="{side if key is not None else 1}" HEIGHT="{side if query is not None else 1}"'
            cells.append(f"<TD {size}{_fill(pattern, query, key, mapping)}></TD>")
        rows.append(f"<TR>{''.join(cells)}</TR>")
    length = sum(side if at is not None else 1 for at in kept) + 2
    fixed = f'FIXEDSIZE="TRUE" WIDTH="{length}" HEIGHT="{length}"'
    grid = f'<TABLE BORDER="1" COLOR="{style.LINE}" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" {fixed}>{"".join(rows)}</TABLE>'
    return _table([_row(grid), _row(_font(name, colour=style.INK, size=9))], padding=1)


def _fill(pattern: np.ndarray, query: int | None, key: int | None, mapping: Mapping) -> str:
    if query is None or key is None:
        return f' BGCOLOR="{style.LINE}"'
    if (key, query) == (mapping.key, mapping.query):
        return f' BGCOLOR="{style.RED}"'
    colour = style.shade(round(float(pattern[query, key]) * 64) / 64)
    return "" if colour == style.PAPER else f' BGCOLOR="{colour}"'


def _cross(*, query_up: bool) -> str:
    """Which way keys and queries run, as a small corner with its letters."""
    corner = f'<TD FIXEDSIZE="TRUE" WIDTH="16" HEIGHT="16" BORDER="1" COLOR="{style.MUTED}" SIDES="{"LB" if query_up else "LT"}"></TD>'
    query, key = (
        f'<TD FIXEDSIZE="TRUE" WIDTH="12" HEIGHT="12">{_font(letter, colour=style.MUTED, size=9)}</TD>'
        for letter in "QK"
    )
    axis = '<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="0" FIXEDSIZE="TRUE" WIDTH="40" HEIGHT="40">'
    if query_up:
        return f"{axis}<TR>{query}<TD></TD><TD></TD></TR><TR><TD></TD>{corner}<TD></TD></TR><TR><TD></TD><TD></TD>{key}</TR></TABLE>"
    return f"{axis}<TR><TD></TD><TD></TD>{key}</TR><TR><TD></TD>{corner}<TD></TD></TR><TR>{query}<TD></TD><TD></TD></TR></TABLE>"


def _lines(lines: tuple[str, ...], colour: str) -> str:
    title, *rest = lines
    return _table(
        [
            _row(_font(title, colour=colour, size=11, bold=True)),
            *(_row(_font(line, colour=style.MUTED, size=9)) for line in rest),
        ],
        padding=1,
    )


def _table(rows: list[str], *, padding: int) -> str:
    return f'<TABLE BORDER="0" CELLBORDER="0" CELLSPACING="0" CELLPADDING="{padding}">{"".join(rows)}</TABLE>'


def _row(cell: str) -> str:
    return f"<TR><TD>{cell}</TD></TR>"


def _font(text: str, *, colour: str, size: int, bold: bool = False) -> str:
    if not text:
        return ""
    safe = html.escape(text).replace(
        "\\", "\\\\"
    )  # Graphviz reads \N, \G and the like inside its tables, too
    return f'<FONT COLOR="{colour}" POINT-SIZE="{size}">{f"<B>{safe}</B>" if bold else safe}</FONT>'


def _html(label: str) -> str:
    return f"<{label}>"


# Pictures


def _rendered(dot: str, form: str) -> bytes:
    import graphviz

    if shutil.which("dot"):
        try:
            return _undated(graphviz.pipe("dot", form, dot.encode()))
        except graphviz.CalledProcessError as why:
            raise CircuitsError(f"Graphviz refused the diagram: {why}") from why
    import pygraphviz

    with _native_messages() as said:
        try:
            data = pygraphviz.AGraph(string=dot).draw(format=form, prog="dot")
        except (pygraphviz.DotError, OSError) as why:
            raise CircuitsError(f"Graphviz refused the diagram: {said()}") from why
    assert isinstance(data, bytes)
    return _undated(data)


def _undated(data: bytes) -> bytes:
    """The same bytes for the same diagram: a PDF's date of creation is set to one that never changes."""
    return re.sub(rb"/CreationDate \(D:\d{14}", b"/CreationDate (D:20000101000000", data)


@contextmanager
def _native_messages() -> Iterator[Callable[[], str]]:
    """Keep what the C library writes to the standard error away from the terminal, to be read if drawing fails."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as kept:
        saved = os.dup(2)
        os.dup2(kept.fileno(), 2)

        def said() -> str:
            kept.seek(0)
            return " ".join(kept.read().decode(errors="replace").split()) or "no reason given"

        try:
            yield said
        finally:
            os.dup2(saved, 2)
            os.close(saved)
