"""A case study runs, prints what its docstring found, and writes the same files as are kept beside it."""

from __future__ import annotations

import runpy
import shutil
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[1] / "case_studies"
FOUND = {"opposite_of_large": "L5H1, L4H0, L5H0, L5H3, L4H5, L3H11"}  # what `planted` finds is claimed in test_discover


@pytest.mark.parametrize("name", FOUND)
def test_a_case_study_finds_what_it_says(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = Path(shutil.copy(STUDIES / f"{name}.py", tmp_path))
    runpy.run_path(str(script), run_name="__main__")
    assert FOUND[name] in capsys.readouterr().out
    written, kept = (folder / name / "page.html" for folder in (tmp_path, STUDIES))
    assert written.read_text().splitlines()[:20] == kept.read_text().splitlines()[:20]


@pytest.mark.parametrize("script", sorted(STUDIES.glob("*.py")), ids=lambda path: path.stem)
def test_a_case_study_is_short_and_states_its_finding(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) < 60
    assert "\nFinding: " in text
