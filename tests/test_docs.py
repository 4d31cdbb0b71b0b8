"""What the repository says of itself: dead links and wrong words are found, one version stands everywhere."""

from __future__ import annotations

import re
import tomllib
from datetime import date
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import agent_transcript
import check_dist
import check_links
import check_spelling
import draw_frontier
import parameters
import pytest
import write_llms
import yaml
from alike import alike
from packaging.requirements import Requirement

import circuits
from circuits import show

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


# Links


def test_the_pages_that_a_reader_meets_are_checked() -> None:
    """`make check` checks them."""
    named = {page.relative_to(ROOT).as_posix() for page in check_links.pages()}
    assert named >= {
        "README.md",
        "docs/index.md",
        "case_studies/README.md",
        "docs/cards/mini.md",
    }


def test_dead_links_are_found_and_live_ones_are_not(tmp_path: Path) -> None:
    (tmp_path / "other.md").write_text("# A *word*, `x` and more\n\n## Twice\n\n## Twice\n")
    page = tmp_path / "page.md"
    page.write_text(
        "# Here\n[1](other.md) [2](other.md#a-word-x-and-more) [3](#here) [4](https://example.org/none) "
        "[5](other.md#twice-1) `[6](none.md)`\n```\n[7](none.md)\n```\n"
        "[8](none.md)\n![9](none.png) [10](other.md#twice-2)\n[11](#there)\n"
    )
    dead = [line.removeprefix(f"{page}:") for line in check_links.dead_links(page)]
    assert dead == [
        "6: none.md leads to no file",
        "7: none.png leads to no file",
        "7: other.md#twice-2 leads to no heading of other.md",
        "8: #there leads to no heading of page.md",
    ]


# What is written from other files


@pytest.mark.long
def test_the_transcript_for_agents_is_what_the_tools_answer() -> None:
    """`make transcript` writes it again."""
    now = agent_transcript.written().splitlines()
    kept = agent_transcript.PAGE.read_text().splitlines()
    wiring = next(number for number, line in enumerate(kept) if line.startswith("→ wiring"))
    assert now[:wiring] == kept[:wiring]
    assert len(now) == len(kept)
    assert all(alike(*lines) for lines in zip(now, kept, strict=True))


def test_the_index_for_language_models_is_that_of_the_docs() -> None:
    """`python scripts/write_llms.py` writes it again."""
    assert write_llms.FILE.read_text() == write_llms.llms_text()


def test_every_parameter_of_a_public_function_has_a_sentence() -> None:
    """scripts/parameters.py has them."""
    missing = []
    for package in (circuits, show):
        for name, function in parameters.functions_of(package):
            for parameter in parameters.parameters_of(function):
                if parameters.sentence_for(name, parameter) is None:
                    missing.append(f"{name}.{parameter}")
    assert missing == []


def test_no_public_property_has_the_docstring_of_another_library() -> None:
    for package in (circuits, show):
        for name in package.__all__:
            offered = getattr(package, name)
            for member, value in vars(offered).items() if isinstance(offered, type) else ():
                if isinstance(value, property) and not member.startswith("_"):
                    assert "callable object" not in (value.__doc__ or ""), f"{name}.{member}"


def test_the_hooks_before_a_commit_run_what_make_check_runs() -> None:
    makefile = (ROOT / "Makefile").read_text()
    check = re.search(r"^check:.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert check is not None
    commands = [line.strip().replace("$(BIN)", ".venv/bin") for line in check[1].splitlines()]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]["hooks"]
    assert [hook["entry"] for hook in hooks] == commands


# Spelling


def test_a_misspelled_word_is_found_and_code_is_left_alone() -> None:
    text = "Every haed carries `teh` message of [its](teh.md) model's L5H1, as `Runs.efects` says; recieve it."
    used = check_spelling.first_uses(iter([(Path("page.md"), text)]))
    assert set(check_spelling.unknown(used)) == {"haed", "recieve"}


# Version


def test_one_version_stands_everywhere() -> None:
    """`circuits.__version__` is the place; the package's metadata is read from there."""
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    sections = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    newest = next(name for name in sections if name != "Unreleased")
    assert cited["version"] == newest == circuits.__version__
    assert "version" in PROJECT["dynamic"] and re.fullmatch(
        r"\d+\.\d+\.\d+", circuits.__version__
    )


def test_the_citation_has_what_a_reader_needs() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert cited["cff-version"] == "1.2.0" and cited["type"] == "software" and cited["message"]
    assert cited["license"] == PROJECT["license"] and set(cited["keywords"]) <= set(
        PROJECT["keywords"]
    )
    assert date.fromisoformat(cited["date-released"]) <= date.today()
    assert cited["abstract"] and all(author["name"] for author in cited["authors"])
    assert cited["title"] in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_files_that_a_newcomer_is_sent_to_are_there(page: str) -> None:
    named = set(re.findall(r"`([\w./-]+(?:\.py|/))`", (ROOT / page).read_text()))
    places = (ROOT, ROOT / "circuits")
    missing = [path for path in named if not any((place / path).exists() for place in places)]
    assert len(named) > 10 and missing == []


def test_what_the_upgrade_notes_name_as_new_is_there_and_as_old_is_not() -> None:
    page = (ROOT / "docs" / "upgrade.md").read_text()
    rows = re.findall(r"^\| (`circuits\..*?) \| (`circuits\..*?) \|$", page, re.MULTILINE)
    module = re.compile(r"`(circuits(?:\.[a-z_]+)+)`")
    assert len(rows) > 5
    for old, new in rows:
        for name in module.findall(new):
            assert find_spec(name) is not None, name
        for name in module.findall(old) if "(" not in old else ():
            assert find_spec(name) is None, name


# What is released


def test_every_dependency_has_an_oldest_and_a_newest_version() -> None:
    for requirement in map(Requirement, PROJECT["dependencies"]):
        assert {each.operator for each in requirement.specifier} == {">=", "<"}, requirement
        assert requirement.specifier.contains(version(requirement.name), prereleases=True), (
            requirement
        )
    names = [re.split("==", pin)[0] for pin in check_dist.oldest()]
    assert names == [
        Requirement(each).name
        for each in PROJECT["dependencies"]
        if not each.startswith("torch>")
    ]


def test_a_python_that_is_not_here_is_skipped_aloud() -> None:
    (line,) = check_dist.lines("3.99", [], cuda=False)
    assert line == "python 3.99: SKIPPED, there is no python3.99 here"


def test_a_command_that_fails_says_what_it_said() -> None:
    with pytest.raises(check_dist.Failed, match="no such command"):
        check_dist.run("python3", "-c", "import sys; sys.exit('no such command')")


# Tables


def test_the_table_of_trainings_is_what_its_script_prints() -> None:
    """`python scripts/draw_frontier.py` prints it again."""
    points = draw_frontier.read_points()
    table = draw_frontier.points_table(points)
    assert table in (ROOT / "docs" / "twins.md").read_text()
    for point in points:
        # Rows of 128 tokens: the share follows from the edges of a query.
        assert point.share * (draw_frontier.LENGTH + 1) / 2 == pytest.approx(
            point.edges, abs=0.005
        )
