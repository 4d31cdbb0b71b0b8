"""A case study runs, prints what its docstring found, and writes the same files as are kept beside it."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[1] / "case_studies"
FOUND = {"opposite_of_large": "L5H1, L4H0, L5H0, L5H3, L4H5, L3H11", "planted": "L11H7 L10H1 L9H7 L9H1 L8H6 at 80%"}


@pytest.mark.parametrize("name", FOUND)
def test_a_case_study_finds_what_it_says(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(shutil.copy(STUDIES / f"{name}.py", tmp_path))
    assert len(script.read_text().splitlines()) < 60
    runpy.run_path(str(script), run_name="__main__")
    assert FOUND[name] in capsys.readouterr().out
    written, kept = (folder / name / "page.html" for folder in (tmp_path, STUDIES))
    assert written.read_text().splitlines()[:20] == kept.read_text().splitlines()[:20]
