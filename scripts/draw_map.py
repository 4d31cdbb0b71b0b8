"""Draw the map of the package from its real imports: `make map` writes docs/architecture.dot and
docs/architecture.svg.

1. Imports at the top of a module count, also those under TYPE_CHECKING. Imports inside a function do not:
   a method of a record may import what draws or measures it.
2. `from circuits import x` is an import of the module that x is, or that has x.
3. The names that `circuits/__init__.pyi` lists are imported when they are first used, so they do not count.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import graphviz

ROOT = Path(__file__).parents[1]
ORDER = ("errors", "components", "files", "results", "zoo", "models", "prompts", "engine", "tracing", "tasks")
ORDER = (*ORDER, "show", "sweeps", "sparsify", "live", "cli")
FRONT = ("circuits", "circuits.__main__")
ABOUT = {
    "errors": "one line for every mistake",
    "components": "names of heads, edges, wires",
    "results": "what every result can do",
    "files": "read with care, written whole",
    "zoo": "little languages, planted models",
    "models": "names, load, hooks, gate",
    "prompts": "positions, pairs, metrics",
    "engine": "rows in, exact effects out",
    "tracing": "trace, circuit, records",
    "tasks": "rank, compare, patterns",
    "show": "scene, figures, page, tables",
    "sweeps": "thousands of prompts",
    "sparsify": "train a sparse twin",
    "live": "explore: the page, live",
    "cli": "every command",
}


def import_graph(package: Path = ROOT / "circuits") -> dict[str, set[str]]:
    """Every module of the package with the modules that it imports."""
    files = {_module_of(file, package): file for file in sorted(package.rglob("*.py"))}
    homes = _homes(package / "__init__.pyi")
    return {module: _imports(module, file, files, homes) for module, file in files.items()}


def _module_of(file: Path, package: Path) -> str:
    parts = ("circuits", *file.relative_to(package).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _homes(stub: Path) -> dict[str, str]:
    """Public names with the modules that have them."""
    homes: dict[str, str] = {}
    for node in ast.parse(stub.read_text()).body:
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                homes[alias.name] = f"circuits.{node.module}"
    return homes


def _imports(module: str, file: Path, files: dict[str, Path], homes: dict[str, str]) -> set[str]:
    found: set[str] = set()
    for node in _at_the_top(ast.parse(file.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names if alias.name.split(".")[0] == "circuits"}
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "circuits":
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                named = inner if inner in files else node.module
                found.add(homes.get(alias.name, named) if named == "circuits" else named)
    return found - {module}


def _at_the_top(tree: ast.Module) -> list[ast.stmt]:
    """The statements of a module, and those inside an `if` such as `if TYPE_CHECKING`."""
    statements = list(tree.body)
    for node in tree.body:
        if isinstance(node, ast.If):
            statements += node.body
    return statements


def package_of(module: str) -> str:
    """`circuits.engine.fast` stands in `engine`; the front door in `circuits`."""
    return module.split(".")[1] if "." in module else module


def package_imports(imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    """(importer, imported) between packages; the front door is left out."""
    inside = {module: names for module, names in imports.items() if module not in FRONT}
    pairs = {(package_of(module), package_of(name)) for module, names in inside.items() for name in names}
    return {
        (importer, imported)
        for importer, imported in pairs
        if importer != imported and imported != "circuits"
    }


def upward_imports(imports: dict[str, set[str]]) -> list[str]:
    """Imports of a package that does not stand before the importer's own."""
    return sorted(
        f"{module} imports {name}"
        for module, names in imports.items()
        if module not in FRONT
        for name in names
        if name not in FRONT and package_of(name) != package_of(module)
        if ORDER.index(package_of(name)) >= ORDER.index(package_of(module))
    )


def to_dot(imports: dict[str, set[str]]) -> graphviz.Digraph:
    """Packages from the bottom up, each with its modules and lines; an arrow points at what is imported."""
    graph = graphviz.Digraph(
        "architecture", graph_attr={"rankdir": "TB", "nodesep": "0.25", "ranksep": "0.35"}
    )
    graph.attr(
        "node",
        shape="box",
        style="rounded,filled",
        fillcolor="#f5f7fa",
        color="#647080",
        fontname="Helvetica",
    )
    graph.attr("edge", color="#647080", arrowsize="0.6")
    for package in reversed(ORDER):
        modules = sorted(module.split(".")[-1] for module in imports if package_of(module) == package)
        names = [name for name in modules if name not in ("__init__", package)]
        lines = [
            f"<B>{package}</B>",
            f'<FONT COLOR="#647080">{ABOUT[package]}</FONT>',
            *(", ".join(names[at : at + 4]) for at in range(0, len(names), 4)),
        ]
        cells = "".join(
            f'<TR><TD><FONT POINT-SIZE="{13 - 3 * (n > 0)}">{line}</FONT></TD></TR>'
            for n, line in enumerate(lines)
        )
        graph.node(package, f'<<TABLE BORDER="0" CELLPADDING="0" CELLSPACING="1">{cells}</TABLE>>')
    for importer, imported in sorted(_reduced(package_imports(imports))):
        graph.edge(importer, imported)
    return graph


def _reduced(pairs: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Without the arrows that a longer way says already."""
    import networkx as nx

    return set(nx.transitive_reduction(nx.DiGraph(sorted(pairs))).edges)


def main() -> None:
    from circuits.show.dot import draw

    source = to_dot(import_graph()).source
    (ROOT / "docs" / "architecture.dot").write_text(source)
    draw(source, ROOT / "docs" / "architecture.svg")
    print(f"{len(import_graph())} modules, {len(re.findall('->', source))} arrows: docs/architecture.svg")


if __name__ == "__main__":
    main()
