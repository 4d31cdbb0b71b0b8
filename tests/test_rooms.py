"""The rooms of the package stand in one order, and the front door is light."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import circuits

PACKAGE = Path(circuits.__file__).parent
ORDER = (
    "errors",
    "strict",
    "edges",
    "gate",
    "checkpoints",
    "hooks",
    "zoo",
    "sources",
    "models",
    "prompts",
    "tasks",
    "records",
    "engine",
    "mapping",
    "spans",
    "family",
    "result",
    "discover",
    "comparison",
    "graph",
    "patterns",
    "ranking",
    "sweeps",
    "contrasts",
    "sparsify",
    "render",
    "console",
    "tables",
    "task_tables",
    "cli",
)
FRONT = {"__init__", "__main__"}
HEAVY = ("torch", "transformer_lens", "transformers", "matplotlib", "pandas")


def imports_of(file: Path) -> set[str]:
    """The rooms that a file imports when it is itself imported (not those that a function opens when it is called)."""
    body = ast.parse(file.read_text()).body
    named = {node.module for node in body if isinstance(node, ast.ImportFrom) and node.module}
    named |= {alias.name for node in body if isinstance(node, ast.Import) for alias in node.names}
    return {name.split(".")[1] for name in named if name.startswith("circuits.")}


def room_of(file: Path) -> str:
    return file.relative_to(PACKAGE).parts[0].removesuffix(".py")


def test_every_file_belongs_to_a_room_that_has_its_place() -> None:
    found = {room_of(file) for file in PACKAGE.rglob("*.py")} - FRONT
    assert found <= set(ORDER)


def test_a_room_imports_only_from_rooms_above_it() -> None:
    wrong = [
        f"{file.relative_to(PACKAGE)} imports {room}"
        for file in PACKAGE.rglob("*.py")
        if room_of(file) not in FRONT
        for room in imports_of(file)
        if room != room_of(file) and ORDER.index(room) >= ORDER.index(room_of(file))
    ]
    assert not wrong


def test_only_models_imports_transformer_lens() -> None:
    users = {
        file.relative_to(PACKAGE).as_posix()
        for file in PACKAGE.rglob("*.py")
        if "transformer_lens" in _imported(file)
    }
    assert users <= {"models.py", "sources/state_dict.py"}


def _imported(file: Path) -> set[str]:
    nodes = ast.walk(ast.parse(file.read_text()))
    return {
        node.module.split(".")[0]
        for node in nodes
        if isinstance(node, ast.ImportFrom) and node.module and node.level == 0
    }


def test_importing_the_package_and_asking_for_help_import_nothing_heavy() -> None:
    for code in (
        "import circuits",
        "from click.testing import CliRunner; from circuits.cli import main; CliRunner().invoke(main, ['--help'])",
    ):
        report = subprocess.run(
            [
                sys.executable,
                "-c",
                f"{code}; import sys; print([name for name in {HEAVY!r} if name in sys.modules])",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert report.stdout.strip().splitlines()[-1] == "[]", report.stdout


def test_every_public_name_can_be_had_and_an_unknown_one_says_which_there_are() -> None:
    for name in circuits.__all__:
        assert getattr(circuits, name).__name__ == name
    try:
        circuits.tracer  # noqa: B018
    except AttributeError as wrong:
        assert "trace" in str(wrong)
    else:
        raise AssertionError("an unknown name was answered")
