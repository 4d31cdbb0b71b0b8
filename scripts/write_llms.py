"""Write llms.txt, the index of the docs for language models: `python scripts/write_llms.py`.

1. The sections are those of docs/index.md, in its order; every page of them is one line.
2. A line has the page's title, its address, and the first sentence of its first paragraph.
3. A test fails if the file is stale. scripts/write_reference.py writes it, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
FILE = ROOT / "llms.txt"
WHAT = (
    "> Which attention heads carry the mapping from one position of a prompt to another, why do they look "
    "there, and what circuit are they part of? A Python package and a command line that answer it by exact "
    "activation patching, with controls and a verdict on every question."
)
# The gallery is written when the docs are built; this is what it begins with.
GALLERY = ("drawn/index", ROOT / "docs" / "gallery" / "GALLERY_HEADER.rst")
_TREE = re.compile(r"```\{toctree\}\n(.*?)```", re.DOTALL)


def sections() -> Iterator[tuple[str, list[str]]]:
    """The captions of docs/index.md with their pages."""
    for tree in _TREE.findall((ROOT / "docs" / "index.md").read_text()):
        caption = re.search(r":caption: (.*)", tree)
        pages = [line for line in tree.splitlines() if line and not line.startswith(":")]
        yield caption[1] if caption else "Pages", pages


def source_of(page: str) -> Path:
    """The file of a page."""
    if page == GALLERY[0]:
        return GALLERY[1]
    file = ROOT / "docs" / f"{page}.md"
    return file if file.exists() else file.with_suffix(".ipynb")


def text_of(file: Path) -> str:
    """The Markdown of a page, or of the file that it includes; of a notebook that of its cells of text."""
    text = file.read_text()
    if file.suffix == ".ipynb":
        cells = json.loads(text)["cells"]
        return "\n\n".join(
            "".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown"
        )
    if file.suffix == ".rst":
        title, _, *rest = text.splitlines()
        return "\n".join([f"# {title}", *rest])
    included = re.search(r"```\{include\} (\S+)", text)
    return (file.parent / included[1]).read_text() if included else text


def line_of(page: str) -> str:
    """`- [title](address): first sentence`."""
    file = source_of(page)
    text = text_of(file)
    title = re.search(r"^# (.*)", text, re.MULTILINE)
    body = text[title.end() :] if title else text
    body = re.sub(r"^```.*?^```", "", body, flags=re.DOTALL | re.MULTILINE)
    prose = [part for part in re.split(r"\n\n+", body) if re.match(r"\n?[A-Z`\[*]", part)]
    first = " ".join(prose[0].split()) if prose else ""
    sentence = re.match(r".*?[.?!](?= |$)", first)
    said = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", sentence[0] if sentence else first)
    address = file.relative_to(ROOT).as_posix()
    return f"- [{title[1] if title else page}]({address}): {said.strip()}"


def llms_text() -> str:
    """The whole file."""
    lines = ["# circuits", "", WHAT, ""]
    lines += [
        "The first page is [README.md](README.md). Agents call the tools of [docs/agents.md](docs/agents.md)."
    ]
    for caption, pages in sections():
        lines += ["", f"## {caption}", "", *(line_of(page) for page in pages)]
    return "\n".join(lines) + "\n"


def main() -> None:
    FILE.write_text(llms_text())


if __name__ == "__main__":
    main()
