"""The packages stand in one order, the map shows it, and the front door is light."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import draw_map
import networkx as nx
import pytest

import circuits
from circuits import results

PACKAGE = Path(circuits.__file__).parent
HELP = "from click.testing import CliRunner; from circuits.cli import main; CliRunner()"
HEAVY = ("torch", "transformer_lens", "transformers", "matplotlib", "pandas")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return draw_map.import_graph(PACKAGE)


def test_every_module_belongs_to_a_package_that_has_its_place(imports: dict[str, set[str]]) -> None:
    assert {draw_map.package_of(module) for module in imports} - {"circuits", "__main__"} == set(
        draw_map.ORDER
    )


def test_a_module_imports_only_from_packages_before_its_own(imports: dict[str, set[str]]) -> None:
    assert draw_map.upward_imports(imports) == []


def test_there_is_no_cycle_between_packages_nor_between_modules(imports: dict[str, set[str]]) -> None:
    assert nx.is_directed_acyclic_graph(nx.DiGraph(sorted(draw_map.package_imports(imports))))
    inside = {
        module: names - set(imports[module] & {"circuits"})
        for module, names in imports.items()
        if module != "circuits"
    }
    edges = [(module, name) for module, names in inside.items() for name in names if name != "circuits"]
    parents = [
        (module, name) for module, name in edges if not module.startswith(f"{name}.")
    ]  # a package's own __init__
    assert list(nx.simple_cycles(nx.DiGraph(parents))) == []


UPWARDS = {  # module -> a line that it must not have
    "block": "def late():\n    from circuits.show.tables import to_text\n",
    "fast": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circuits.sweeps import BATCH\n",
    "joint": "def late():\n    import circuits.cli\n",
    "plain": "def late():\n    from circuits import trace\n",
    "wires": "def late():\n    from circuits import sweeps\n",
}


def test_an_import_upwards_is_found_wherever_it_stands(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("*.safetensors", "web", "__pycache__")
    copy = Path(shutil.copytree(PACKAGE, tmp_path / "circuits", ignore=left_out))
    for module, line in UPWARDS.items():
        file = copy / "engine" / f"{module}.py"
        file.write_text(file.read_text() + "\n\n" + line)
    wrong = draw_map.upward_imports(draw_map.import_graph(copy))
    assert [each.split()[0] for each in wrong] == [f"circuits.engine.{module}" for module in UPWARDS]


def test_the_map_is_that_of_the_package(imports: dict[str, set[str]]) -> None:
    """`make map` draws it again."""
    assert (PACKAGE.parent / "docs" / "architecture.dot").read_text() == draw_map.to_dot(imports).source


def test_every_link_leads_upwards_to_a_function() -> None:
    for name in results.ABOVE:
        assert results.above(name).__name__ == name


def test_only_models_import_transformer_lens() -> None:
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if "from transformer_lens" in path.read_text()
    }
    assert users == {"models"}


@pytest.mark.parametrize(
    "code",
    ["import circuits", f"{HELP}.invoke(main, ['--help'])", f"{HELP}.invoke(main, ['sweep', '--help'])"],
    ids=["package", "help", "help of a command"],
)
def test_importing_the_package_and_asking_for_help_import_nothing_heavy(code: str) -> None:
    report = f"{code}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    assert ran.stdout.strip().splitlines()[-1] == "[]", ran.stdout


@pytest.mark.long
def test_a_trace_with_its_files_passes_few_modules(tmp_path: Path) -> None:
    """A reader follows one call through the package in one sitting."""
    call = ["trace", 'The opposite of "large" is "', "--key", "large", "--swap", "large=hot"]
    call += ["-o", str(tmp_path / "out")]
    report = (
        f"import sys; sys.argv[1:] = {call!r}; from circuits.cli import main; main(standalone_mode=False); "
    )
    report += "print(sorted(name for name in sys.modules if name.split('.')[0] == 'circuits'))"
    ran = subprocess.run([sys.executable, "-c", report], capture_output=True, text=True, check=True)
    passed = eval(ran.stdout.strip().splitlines()[-1])
    assert len(passed) <= 34, passed
    assert [name for name in passed if name.startswith("circuits.cli")] == [
        "circuits.cli",
        "circuits.cli.options",
    ]
    assert not [
        name for name in passed if name.startswith(("circuits.sweeps", "circuits.sparsify", "circuits.tasks"))
    ]
    drawing = {name.removeprefix("circuits.show.") for name in passed if name.startswith("circuits.show.")}
    assert drawing == {"canvas", "diagram", "dot", "figure", "layout", "page", "tables"}


def test_no_two_classes_have_one_name() -> None:
    named = re.compile(r"^class (\w+)", re.MULTILINE)
    count = Counter(name for file in PACKAGE.rglob("*.py") for name in named.findall(file.read_text()))
    assert [name for name, times in count.items() if times > 1] == []


def test_every_public_module_is_reached_from_the_package_and_completed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    private = {"results", "files", "cli"}
    modules = {*draw_map.ORDER} - private
    assert {*dir(circuits)} == {*circuits.__all__, *modules}
    code = f"import circuits; print([getattr(circuits, name).__name__ for name in {sorted(modules)!r}])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert eval(ran.stdout) == [f"circuits.{name}" for name in sorted(modules)]


def test_every_public_name_can_be_had_and_an_unknown_one_says_which_there_are() -> None:
    for name in circuits.__all__:
        offered = getattr(circuits, name)
        assert getattr(offered, "__name__", name) == name  # a constant has no name of its own
    with pytest.raises(AttributeError, match="trace"):
        circuits.tracer  # type: ignore[attr-defined]  # noqa: B018
