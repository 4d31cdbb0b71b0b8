"""The notebooks, run from top to bottom: `python scripts/run_notebooks.py [NAME …]` keeps what they say.

What a run leaves in a notebook depends on nothing but its cells: times and versions are taken out again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat import NotebookNode

FOLDER = Path(__file__).parent.parent / "docs" / "notebooks"
_LONGEST = 600  # seconds for one cell


def run(path: Path) -> NotebookNode:
    """The notebook with the outputs of a fresh run."""
    notebook = nbformat.read(path, as_version=4)
    resources = {"metadata": {"path": str(path.parent)}}
    NotebookClient(
        notebook, timeout=_LONGEST, kernel_name="python3", resources=resources
    ).execute()
    notebook.metadata.language_info = {"name": "python"}
    for cell in notebook.cells:
        cell.metadata = NotebookNode()
        if cell.cell_type == "code":  # what libraries warn of depends on the machine
            cell.outputs = [output for output in cell.outputs if output.get("name") != "stderr"]
    return notebook


def said(notebook: NotebookNode) -> list[tuple[str, list[str]]]:
    """Every output as its text and the forms in which it is shown."""
    shown = []
    for cell in notebook.cells:
        if cell.cell_type != "code":
            continue
        for output in cell.outputs:
            data = output.get("data", {})
            text = output.get("text") or data.get("text/plain", "")
            shown.append((text, sorted(data)))
    return shown


def main() -> None:
    for path in [FOLDER / f"{name}.ipynb" for name in sys.argv[1:]] or sorted(
        FOLDER.glob("*.ipynb")
    ):
        nbformat.write(run(path), path)
        print(path.name)


if __name__ == "__main__":
    main()
