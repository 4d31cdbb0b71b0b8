"""Every public name has a docstring with an example, and every example says what it prints."""

from __future__ import annotations

import doctest
from inspect import ismodule
from typing import Any

import pytest
import write_reference

import circuits
from circuits import show

CONSTANTS = {"SIDES"}  # a tuple has no docstring
PUBLIC = [name for name in circuits.__all__ if not ismodule(getattr(circuits, name))]
NAMES = [f"circuits.{name}" for name in PUBLIC if name not in CONSTANTS]
NAMES += [f"circuits.show.{name}" for name in show.__all__]


def offered(name: str) -> Any:
    package = show if name.startswith("circuits.show.") else circuits
    return getattr(package, name.rpartition(".")[2])


def test_every_public_name_has_an_example() -> None:
    without = [name for name in NAMES if ">>> " not in (offered(name).__doc__ or "")]
    assert NAMES and without == []


def test_every_public_name_is_in_the_reference() -> None:
    listed = {name for names in write_reference.GROUPS.values() for name in names}
    assert listed == set(PUBLIC)


@pytest.fixture(scope="module")
def setup() -> dict[str, Any]:
    """The names with which every example begins."""
    names: dict[str, Any] = {}
    exec(write_reference.SETUP, names)
    return names


@pytest.mark.studies
@pytest.mark.parametrize("name", NAMES)
def test_an_example_prints_what_it_says(name: str, setup: dict[str, Any]) -> None:
    finder = doctest.DocTestFinder(recurse=False)
    (test,) = finder.find(offered(name), name, module=False, globs=dict(setup))  # type: ignore[arg-type]
    runner = doctest.DocTestRunner(verbose=False)
    report: list[str] = []
    runner.run(test, out=report.append)
    assert runner.failures == 0, "".join(report)
    assert runner.tries > 0


def test_the_pages_of_the_reference_are_those_of_the_code() -> None:
    """`python scripts/write_reference.py` writes them again."""
    pages = write_reference.pages()
    kept = {path: (write_reference.FOLDER / path).read_text() for path in pages}
    assert kept == pages
    in_folder = {f"api/{file.name}" for file in (write_reference.FOLDER / "api").glob("*.md")}
    assert in_folder == {path for path in pages if path.startswith("api/")}
