"""The notebooks run from top to bottom, and what is kept in them is what they say."""

from __future__ import annotations

import nbformat
import pytest
from run_notebooks import FOLDER, run, said

MARKS = {
    "first_circuit": pytest.mark.studies,
    "dense_and_sparse": pytest.mark.studies,
    "indirect_objects": pytest.mark.real,  # the weights of a real language model are needed
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=mark) for name, mark in MARKS.items()]
)
def test_a_notebook_says_what_is_kept_in_it(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    assert said(run(path)) == said(nbformat.read(path, as_version=4))


def test_every_notebook_is_run_and_shows_pictures_and_no_error() -> None:
    assert {path.stem for path in FOLDER.glob("*.ipynb")} == set(MARKS)
    for path in FOLDER.glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
        assert [cell.execution_count for cell in cells] == [*range(1, len(cells) + 1)]
        kinds = {output.output_type for cell in cells for output in cell.outputs}
        assert (
            "error" not in kinds
            and sum("image/png" in forms for _, forms in said(notebook)) >= 2
        )
