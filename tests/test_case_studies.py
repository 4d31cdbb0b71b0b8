"""A case study runs, prints what its docstring found, and writes the same files as are kept beside it."""

from __future__ import annotations

import re
import runpy
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import refresh_pages

STUDIES = Path(__file__).parents[1] / "case_studies"
# Modules without a `main` measure for a study that imports them.
SCRIPTS = [path for path in sorted(STUDIES.glob("*.py")) if "def main(" in path.read_text()]
FOUND = {  # what `planted` finds is claimed in test_discover
    "opposite_of_large": ("mini-sparse: L5H1 L4H0 L1H1 L5H3 L4H5", "53 of 6480"),
    "indirect_object": (
        "Modulated at 82% by L0H10, L0H5, L0H11, L1H11, L2H3",
        "Modulated at 85% by L0H5, L0H10, L0H11, L5H7",
    ),
    "indirect_object_circuit": (
        "first writer L4H4@13 in 12",
        "first writer M3@9 in 12",
        "query side               0.897",
    ),
    # Which of many nearly equal edges the search keeps depends on how a processor rounds.
    "names_circuit": (
        r"3\d of 2,188 component edges keep 8\d% of the gap",
        r"held out  0\.[89]\d+ of the gap, mean of 4 pairs \(worst 0\.[5-9]",
        "L4H4 → L5H1 → logits",
    ),
    "greater_than": (
        "Modulated at 80% by",
        "Modulated at 91% by",
        "13104 of 13104         40 of 13104",
    ),
    "stories": (
        "modulation                       92%                 88%",
        "271 of 3780",
        "heads for 90%: 4 of 6 are in both: L1H2 L1H3 L4H4 L5H1",
    ),
    "addition": (
        "addition-sparse  tens                          1.37      0.85        +0.52   100.00% right",
        "shared: L1H3",
        "11 of 576",
    ),
    "induction": (
        "B → END: mini-sparse, 32 pairs, 4→9: total 0.71",
        "437 of 7920",
    ),
}
# Those of the dense model take longest.
ARGUMENTS = {"induction": {"families": ("mini-sparse",)}}
REAL = (
    "indirect_object_circuit",
    "names_circuit",
    "stories",
)  # the weights of a real language model are needed
SLOW = (
    "opposite_of_large",
    "indirect_object",
    "greater_than",
    "induction",
    "stories",
    "addition",
)


def marks_of(name: str) -> list[pytest.MarkDecorator]:
    return [pytest.mark.real] * (name in REAL) + [pytest.mark.studies] * (name in SLOW)


def printed_by(script: Path, arguments: dict[str, Any]) -> str:
    """What a study prints, run as a user runs it: the shape checks of the tests slow a search down by far."""
    main = f"runpy.run_path({str(script)!r})['main'](**{arguments!r})"
    command = [sys.executable, "-c", f"import runpy; {main}"]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return done.stdout


@pytest.mark.parametrize("name", [pytest.param(name, marks=marks_of(name)) for name in FOUND])
def test_a_case_study_finds_what_it_says(name: str, tmp_path: Path) -> None:
    script = Path(shutil.copy(STUDIES / f"{name}.py", tmp_path))
    (tmp_path / name).mkdir()
    for prompts in (STUDIES / name).glob("*.jsonl"):  # what a study reads
        shutil.copy(prompts, tmp_path / name)
    said = printed_by(script, ARGUMENTS.get(name, {}))
    for words in FOUND[name]:
        assert words in said or re.search(words, said)
    assert {file.name for file in (tmp_path / name).iterdir()} == {
        file.name for file in (STUDIES / name).iterdir()
    }
    page = Path(name) / "page.html"
    if (STUDIES / page).exists():
        written, kept = (
            (folder / page).read_text().splitlines() for folder in (tmp_path, STUDIES)
        )
        assert written[:20] == kept[:20]


@pytest.mark.parametrize("page", refresh_pages.pages(), ids=lambda page: page.name)
def test_a_page_that_is_kept_has_the_style_and_script_of_today(page: Path) -> None:
    """And so a policy that lets them run: it names their hashes."""
    kept = page.read_text(encoding="utf-8")
    assert kept == refresh_pages.refreshed(kept), "run scripts/refresh_pages.py"


@pytest.mark.studies
def test_the_comparison_of_tasks_prints_its_table_and_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Path(shutil.copy(STUDIES / "dense_against_sparse.py", tmp_path))
    runpy.run_path(str(script))["main"](tasks=("greater_than",), count=2)
    assert "greater_than" in capsys.readouterr().out
    drawn = {file.name for file in (tmp_path / "dense_against_sparse").iterdir()}
    assert drawn == {file.name for file in (STUDIES / "dense_against_sparse").iterdir()}


@pytest.mark.studies
def test_the_published_mappings_can_be_asked_of_any_model(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(STUDIES / "published_circuits.py"))["main"]("mini", count=4)
    assert "of 11 published heads among" in capsys.readouterr().out


@pytest.mark.studies
def test_the_claims_about_sums_are_printed_as_they_are_quoted(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    main = runpy.run_path(str(STUDIES / "published_claims.py"))["main"]
    for _ in range(2):  # measured, and read from the file
        main(["addition-sparse"], tmp_path / "kept.jsonl")
        said = capsys.readouterr().out.splitlines()
        quoted = (STUDIES.parent / "docs" / "claims.md").read_text().splitlines()
        assert len(said) > 8
        assert set(said) <= set(quoted)


@pytest.mark.studies
def test_the_circuit_of_sums_is_not_the_same_in_both_models(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    script = Path(shutil.copy(STUDIES / "same_circuit.py", tmp_path))
    shutil.copytree(STUDIES / "addition", tmp_path / "addition")
    runpy.run_path(str(script))["main"](["addition-sparse"])
    assert "heads for 90%: in both 3 of 7 and 4 (random: 1.8, p 0.2)" in capsys.readouterr().out
    assert (tmp_path / "same_circuit" / "same_circuit.svg").exists()


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_case_study_is_short_and_states_its_finding(script: Path) -> None:
    text = script.read_text()
    assert len(text.splitlines()) < 80
    assert "\nFinding: " in text
