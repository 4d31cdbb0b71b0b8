"""The notebooks run from top to bottom, and what is kept in them is what they say."""

from __future__ import annotations

from pathlib import Path

import nbformat
import pytest
from alike import alike
from nbformat.v4 import new_code_cell, new_notebook
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
    now, kept = said(run(path)), said(nbformat.read(path, as_version=4))
    assert [forms for _, forms in now] == [forms for _, forms in kept]
    for (text, _), (before, _) in zip(now, kept, strict=True):
        assert text == before or ("wires keep" in before and alike(text, before))


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


BARE = """
import circuits
model = circuits.load("planted-sparse")
TEXT = 'The opposite of "large" is "'
found = circuits.trace(model, TEXT, key="large", swap={"large": "hot"})
""".strip()
RESULTS = (
    "found",
    "found.figure()",
    "found.mapping()",
    'circuits.patch(model, TEXT, "head", swap={"large": "hot"})',
    "circuits.logit_lens(model, TEXT)",
)


@pytest.mark.long
def test_a_bare_result_in_a_cell_shows_a_picture_without_magic_and_without_graphviz(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The path has no `dot`, and no cell has a magic: what shows the picture is the result itself."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path / "ipython"))
    cells = [new_code_cell(BARE), *map(new_code_cell, RESULTS)]
    file = tmp_path / "bare.ipynb"
    nbformat.write(new_notebook(cells=cells), file)
    shown = run(file)
    assert shown.cells[0].outputs == []
    for cell in shown.cells[1:]:
        forms: dict[str, str] = {}
        for output in cell.outputs:
            assert output.output_type in ("execute_result", "display_data"), output
            forms |= output.data
        assert "image/png" in forms or "<svg" in forms["text/html"], cell.source
        assert "<Figure size" not in forms.get("text/html", "")
