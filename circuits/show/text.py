"""A block of words, and the two ways in which it is shown: in a terminal and as HTML.

1. A block is a title, lines and a table of plain text. It holds no markup, so no token can become any.
2. Whoever fills a block spells its words so that they can be seen: `visible` leaves nothing that a terminal would obey.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from circuits.show import scene

if TYPE_CHECKING:
    from rich.console import Group, RenderableType

WIDTH: Final = 100  # columns of plain text
_LEFT: Final = frozenset(  # columns of words; all others hold numbers
    {
        "",
        "head",
        "mapping",
        "carriers",
        "token",
        "held in",
        "built in",
        "counterfactual",
        "model",
        "overlap",
        "gate",
        "licence",
        "source",
        "task",
        "units",
        "protocol",
        "share",
        "edge",
        "map",
    }
)


@dataclass(frozen=True, slots=True)
class Block:
    """A title, lines and a table; each of them may be missing. The first `marked` rows stand out from the rest."""

    title: str = ""
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # a table without column names is a list of facts: name, text
    rows: tuple[tuple[str, ...], ...] = ()
    marked: int = 0

    def __str__(self) -> str:
        return plain([self])


def visible(text: str, *, longest: int = 80) -> str:
    """Text without anything that a terminal would obey; control characters become escapes."""
    return scene.spell(text, longest=longest)


def plain(blocks: Iterable[Block]) -> str:
    """Blocks as text, 100 columns wide, without colour."""
    from rich.console import Console

    paper = Console(
        file=io.StringIO(),
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
    )
    with paper.capture() as taken:
        paper.print(shown(blocks))
    return "\n".join(line.rstrip() for line in taken.get().rstrip().split("\n"))


def shown(blocks: Iterable[Block]) -> Group:
    """Blocks as rich renderables, an empty line between them."""
    from rich.console import Group
    from rich.text import Text

    parts: list[RenderableType] = []
    for number, block in enumerate(blocks):
        parts += [Text("")] * (number > 0) + [Text(block.title, style="bold")] * bool(block.title)
        parts += [Text(line) for line in block.lines]
        parts += [_rich_table(block)] if block.rows else []
    return Group(*parts)


def _rich_table(block: Block) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=box.SIMPLE_HEAD if block.columns else None, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False
    )
    table.show_header = bool(block.columns)
    short = max(len(row[0]) for row in block.rows) <= WIDTH // 4  # then what a row is about is not broken
    for number, name in enumerate(block.columns or ("",) * len(block.rows[0])):
        whole = number == 0 and (not block.columns or short)
        table.add_column(
            Text(name), justify="left" if name in _LEFT else "right", overflow="fold", no_wrap=whole
        )
    for number, row in enumerate(block.rows):
        table.add_row(
            *map(Text, row),
            style="bold" if number < block.marked else None,
            end_section=number + 1 == block.marked,
        )
    return table


def to_html(block: Block) -> str:
    """A block as escaped HTML."""
    parts = [
        f"<h4>{html.escape(block.title)}</h4>" if block.title else "",
        *(f"<p>{html.escape(line)}</p>" for line in block.lines),
    ]
    if block.rows:
        head = (
            f"<thead><tr>{''.join(f'<th>{html.escape(name)}</th>' for name in block.columns)}</tr></thead>"
            if block.columns
            else ""
        )
        aligned = [
            "left" if name in _LEFT else "right" for name in block.columns or ("",) * len(block.rows[0])
        ]
        lines = [
            "".join(
                f'<td style="text-align:{side}">{html.escape(cell)}</td>'
                for side, cell in zip(aligned, row, strict=True)
            )
            for row in block.rows
        ]
        parts.append(f"<table>{head}<tbody>{''.join(f'<tr>{line}</tr>' for line in lines)}</tbody></table>")
    return "".join(parts)
