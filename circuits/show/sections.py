"""Tables, made one way for all results: a section has a title, lines of text and a table.

1. `Column` says how the cells of a column are written and to which side they are aligned.
2. `plain` prints sections for files and pipes, `rich_text` for a terminal, `section_html` for a notebook.
3. Cells and lines are never read as markup, so a token such as `[bold]` or `<script>` stays text; what is not
   printable is escaped, so that no terminal obeys it.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from circuits.errors import escaped

WIDTH: Final = 100  # columns of plain text


@dataclass(frozen=True, slots=True)
class Column:
    """The heading of a column, and the format of its cells.

    Words have no format and are aligned to the left. Numbers have a format such as `.3f`. The format `>` is
    for text that is aligned to the right, as numbers are.
    """

    name: str = ""
    form: str = ""

    @property
    def side(self) -> Literal["left", "right"]:
        return "right" if self.form else "left"

    def cell(self, value: Any) -> str:
        """The text of a cell: empty for None, and unchanged for what is text already."""
        if value is None:
            return ""
        if isinstance(value, str):
            return value
        return format(value, self.form)


@dataclass(frozen=True, slots=True)
class Section:
    """A title, lines and a table; each may be missing.

    A table without columns is a list of facts: each row is a name and a text. The first `marked` rows are
    bold, and a blank line separates them from the others.
    """

    title: str = ""
    lines: Sequence[str] = ()
    columns: Sequence[Column] = ()
    rows: Sequence[Sequence[Any]] = ()
    marked: int = 0

    def __str__(self) -> str:
        return plain([self])

    @property
    def table(self) -> tuple[Sequence[Column], list[list[str]]]:
        """The columns, and the text of every cell."""
        columns = self.columns or (Column(), Column())
        cells = []
        for row in self.rows:
            texts = [column.cell(value) for column, value in zip(columns, row, strict=True)]
            cells.append([escaped(text) for text in texts])
        return columns, cells


def plain(sections: Iterable[Section]) -> str:
    """Sections as text, 100 columns wide, without colour."""
    file = io.StringIO()
    console = Console(
        file=file,
        width=WIDTH,
        color_system=None,
        force_terminal=False,
        force_jupyter=False,
        highlight=False,
    )
    console.print(rich_text(sections))
    lines = file.getvalue().rstrip().split("\n")
    return "\n".join(line.rstrip() for line in lines)


def rich_text(sections: Iterable[Section]) -> Group:
    """Sections as rich prints them on a terminal, with an empty line between two."""
    parts: list[RenderableType] = []
    for section in sections:
        if parts:
            parts.append(Text(""))
        if section.title:
            parts.append(Text(escaped(section.title), style="bold"))
        for line in section.lines:
            parts.append(Text(escaped(line)))
        if section.rows:
            parts.append(_rich_table(section))
    return Group(*parts)


def _rich_table(section: Section) -> Table:
    columns, cells = section.table
    has_header = bool(section.columns)
    table = Table(
        box=SIMPLE_HEAD if has_header else None,
        padding=(0, 2, 0, 0),
        pad_edge=False,
        show_edge=False,
        show_header=has_header,
    )
    # The first column names the row. It is kept on one line, unless long names would squeeze the numbers.
    longest_name = max(len(row[0]) for row in cells)
    for number, column in enumerate(columns):
        keep_whole = number == 0 and (not has_header or longest_name <= WIDTH // 4)
        table.add_column(
            Text(column.name), justify=column.side, overflow="fold", no_wrap=keep_whole
        )
    for number, row in enumerate(cells, 1):
        style = "bold" if number <= section.marked else None
        table.add_row(*map(Text, row), style=style, end_section=number == section.marked)
    return table


def section_html(section: Section) -> str:
    """A section as HTML, with all text escaped."""
    parts = []
    if section.title:
        parts.append(f"<h4>{html.escape(section.title)}</h4>")
    for line in section.lines:
        parts.append(f"<p>{html.escape(line)}</p>")
    if section.rows:
        parts.append(_html_table(section))
    return "".join(parts)


def _html_table(section: Section) -> str:
    columns, cells = section.table
    parts = ["<table>"]
    if section.columns:
        names = "".join(f"<th>{html.escape(column.name)}</th>" for column in columns)
        parts.append(f"<thead><tr>{names}</tr></thead>")
    parts.append("<tbody>")
    for row in cells:
        parts.append("<tr>")
        for column, text in zip(columns, row, strict=True):
            parts.append(f'<td style="text-align:{column.side}">{html.escape(text)}</td>')
        parts.append("</tr>")
    parts.append("</tbody></table>")
    return "".join(parts)
