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

PACKAGE = Path(circuits.__file__).parent
HELP = "from click.testing import CliRunner; from circuits.cli import main; CliRunner()"
HEAVY = ("torch", "transformer_lens", "transformers", "matplotlib", "pandas")


@pytest.fixture(scope="module")
def imports() -> dict[str, set[str]]:
    return draw_map.import_graph(PACKAGE)


def test_every_module_belongs_to_a_package_that_has_its_place(
    imports: dict[str, set[str]],
) -> None:
    packages = {draw_map.package_of(module) for module in imports}
    assert packages - {"circuits", "__main__"} == set(draw_map.ORDER)


def test_a_module_imports_at_its_top_only_from_packages_before_its_own(
    imports: dict[str, set[str]],
) -> None:
    assert draw_map.upward_imports(imports) == []


def test_there_is_no_cycle_between_packages_nor_between_modules(
    imports: dict[str, set[str]],
) -> None:
    assert nx.is_directed_acyclic_graph(nx.DiGraph(sorted(draw_map.package_imports(imports))))
    between_modules = nx.DiGraph()
    for module, names in imports.items():
        for name in names:
            # A module may import its package's __init__.
            own_package = module.startswith(f"{name}.")
            if module != "circuits" and name != "circuits" and not own_package:
                between_modules.add_edge(module, name)
    assert list(nx.simple_cycles(between_modules)) == []


UPWARDS = {  # a module of the engine, and a line that must not stand at its top
    "block": "from circuits.show.tables import to_text\n",
    "forward": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from circuits.sweeps import BATCH\n",
    "kept": "import circuits.cli\n",
    "plain": "from circuits import trace\n",
    "wires": "from circuits import sweeps\n",
}


def test_an_import_upwards_is_found_unless_it_stands_in_a_function(tmp_path: Path) -> None:
    left_out = shutil.ignore_patterns("*.safetensors", "web", "__pycache__")
    copy = Path(shutil.copytree(PACKAGE, tmp_path / "circuits", ignore=left_out))
    for module, line in UPWARDS.items():
        (copy / "engine" / f"{module}.py").write_text(line)
    (copy / "engine" / "late.py").write_text(
        "def late():\n    from circuits.show.tables import to_text\n"
    )
    wrong = draw_map.upward_imports(draw_map.import_graph(copy))
    assert [each.split()[0] for each in wrong] == [
        f"circuits.engine.{module}" for module in UPWARDS
    ]


def test_the_map_is_that_of_the_package(imports: dict[str, set[str]]) -> None:
    """`make map` draws it again."""
    assert (PACKAGE.parent / "docs" / "architecture.dot").read_text() == draw_map.to_dot(
        imports
    ).source


def test_only_models_import_transformer_lens() -> None:
    users = {
        path.relative_to(PACKAGE).parts[0]
        for path in PACKAGE.rglob("*.py")
        if "from transformer_lens" in path.read_text()
    }
    assert users == {"models"}


@pytest.mark.parametrize(
    "code",
    [
        "import circuits",
        f"{HELP}.invoke(main, ['--help'])",
        f"{HELP}.invoke(main, ['sweep', '--help'])",
    ],
    ids=["package", "help", "help of a command"],
)
def test_importing_the_package_and_asking_for_help_import_nothing_heavy(code: str) -> None:
    report = f"{code}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", report], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip().splitlines()[-1] == "[]", ran.stdout


def test_no_two_classes_have_one_name() -> None:
    named = re.compile(r"^class (\w+)", re.MULTILINE)
    count = Counter(
        name for file in PACKAGE.rglob("*.py") for name in named.findall(file.read_text())
    )
    assert [name for name, times in count.items() if times > 1] == []


def test_every_public_name_and_module_is_listed_and_can_be_had() -> None:
    assert {*dir(circuits)} == {*circuits.__all__}
    for name in circuits.__all__:
        offered = getattr(circuits, name)
        known_as = getattr(offered, "__name__", name)  # a constant has no name of its own
        assert known_as in (name, f"circuits.{name}")


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(AttributeError, match="tracer"):
        circuits.tracer  # type: ignore[attr-defined]  # noqa: B018
