"""Draw the map of the package from its real imports: `make map` writes docs/architecture.dot and
docs/architecture.svg.

1. The imports of a module are those at its top level, also under TYPE_CHECKING. An import inside a function
   runs when the function is called; `import_graph(inside_functions=True)` counts these too.
2. Each box lists all packages that a package imports at the top level, and those that it imports only inside
   functions. So that the arrows can be followed by eye, one that a longer way implies is not drawn.
3. `from circuits import trace` is an import of the module that defines `trace`. The list of public names in
   `circuits/__init__.py` is for users and is not drawn.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import graphviz
import networkx as nx

ROOT = Path(__file__).parents[1]
ABOUT = {  # every package, in the order of the pipeline: a package imports only from those before it
    "errors": "one line for every mistake",
    "components": "names of heads, edges, wires",
    "files": "read with care, written whole",
    "results": "what every result can do",
    "zoo": "little languages, planted models",
    "models": "names, load, hooks, gate",
    "executors": "workers: local, Ray, SLURM",
    "prompts": "positions, pairs, metrics",
    "engine": "rows in, exact effects out",
    "tracing": "trace, circuit, why, records",
    "wires": "circuits of wires that keep",
    "instruments": "patching maps, paths, readings",
    "checks": "verify: asked again, compared",
    "tasks": "rank, compare, patterns",
    "show": "scene, figures, page, tables",
    "sweeps": "thousands of prompts",
    "sparsify": "train a sparse twin",
    "live": "explore: the page, live",
    "mcp": "tools for agents",
    "cli": "every command",
}
ORDER = tuple(ABOUT)
FRONT = ("circuits", "circuits.__main__")
GREY = "#647080"
Imports = dict[str, set[str]]  # every module with the modules that it imports


def import_graph(
    package: Path = ROOT / "circuits", *, inside_functions: bool = False
) -> Imports:
    """Every module of the package with the modules of the package that it imports."""
    modules = {_module_of(file, package): file for file in sorted(package.rglob("*.py"))}
    public = _public_names(package)
    graph: Imports = {}
    for module, file in modules.items():
        graph[module] = set()
        for statement in _imports_of(
            ast.parse(file.read_text()), inside_functions=inside_functions
        ):
            for name in _names_in(statement):
                graph[module].add(_defining_module(public.get(name, name), modules))
        graph[module] -= {module, ""}
    return graph


def _module_of(file: Path, package: Path) -> str:
    parts = ("circuits", *file.relative_to(package).with_suffix("").parts)
    return ".".join(parts).removesuffix(".__init__")


def _imports_of(
    node: ast.AST, *, inside_functions: bool
) -> Iterator[ast.Import | ast.ImportFrom]:
    """Every import statement below a node of the syntax tree."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif inside_functions or not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _imports_of(child, inside_functions=inside_functions)


def _names_in(statement: ast.Import | ast.ImportFrom) -> list[str]:
    """What a statement imports, each with the module that it is imported from: `circuits.files.read_text`."""
    names = [alias.name for alias in statement.names]
    if isinstance(statement, ast.Import):
        return names
    module = statement.module
    if (
        statement.level
    ):  # `from . import x` and `from .files import x` stand in the package's own stub
        module = f"circuits.{module}" if module else "circuits"
    return [f"{module}.{name}" for name in names]


def _public_names(package: Path) -> dict[str, str]:
    """`circuits.trace` → `circuits.tracing.trace.trace`, for all names that the package offers."""
    stub = package / "__init__.pyi"
    file = stub if stub.exists() else package / "__init__.py"
    public = {}
    for statement in _imports_of(ast.parse(file.read_text()), inside_functions=False):
        for name in _names_in(statement):
            public[f"circuits.{name.split('.')[-1]}"] = name
    return public


def _defining_module(name: str, modules: dict[str, Path]) -> str:
    """The module of the package that a name is, or is defined in; empty for a name of another library."""
    if name in modules:
        return name
    parent = name.rpartition(".")[0]
    return parent if parent in modules else ""


def package_of(module: str) -> str:
    """`circuits.engine.fast` stands in `engine`; `circuits/__init__.py` in `circuits`."""
    return module.split(".")[1] if "." in module else module


def package_imports(imports: Imports) -> set[tuple[str, str]]:
    """(importer, imported) for every package that imports another."""
    pairs = set()
    for module, names in imports.items():
        for name in names:
            pair = (package_of(module), package_of(name))
            if module not in FRONT and name not in FRONT and pair[0] != pair[1]:
                pairs.add(pair)
    return pairs


def upward_imports(imports: Imports) -> list[str]:
    """The imports of a package that does not stand before the importer's own."""
    upward = []
    for module, names in imports.items():
        for name in names:
            importer, imported = package_of(module), package_of(name)
            if module in FRONT or name in FRONT or importer == imported:
                continue
            if ORDER.index(imported) >= ORDER.index(importer):
                upward.append(f"{module} imports {name}")
    return sorted(upward)


def to_dot(imports: Imports) -> graphviz.Digraph:
    """Packages from the bottom up, each with its modules and imports; an arrow points at what is imported."""
    spaces = {"rankdir": "TB", "nodesep": "0.25", "ranksep": "0.35"}
    box = {"shape": "box", "style": "rounded,filled", "fillcolor": "#f5f7fa"}
    graph = graphviz.Digraph("architecture", graph_attr=spaces)
    graph.attr("node", color=GREY, fontname="Helvetica", **box)
    graph.attr("edge", color=GREY, arrowsize="0.6")
    pairs = package_imports(imports)
    later = package_imports(import_graph(inside_functions=True)) - pairs
    for package in reversed(ORDER):
        modules = sorted(
            module.split(".")[-1] for module in imports if package_of(module) == package
        )
        lines = [f'<FONT COLOR="{GREY}">{ABOUT[package]}</FONT>']
        lines += _rows([name for name in modules if name != package])
        lines += _said("imports", package, pairs) + _said("inside functions", package, later)
        rows = "".join(
            f'<TR><TD><FONT POINT-SIZE="10">{line}</FONT></TD></TR>' for line in lines
        )
        title = f'<TR><TD><FONT POINT-SIZE="13"><B>{package}</B></FONT></TD></TR>'
        graph.node(
            package,
            f'<<TABLE BORDER="0" CELLPADDING="0" CELLSPACING="1">{title}{rows}</TABLE>>',
        )
    for importer, imported in sorted(nx.transitive_reduction(nx.DiGraph(sorted(pairs))).edges):
        graph.edge(importer, imported)
    return graph


def _said(what: str, package: str, pairs: set[tuple[str, str]]) -> list[str]:
    """What a package imports, in the order of the pipeline; nothing if it imports nothing."""
    imported = [name for name in ORDER if (package, name) in pairs]
    return [f'<FONT COLOR="{GREY}">{row}</FONT>' for row in _rows(imported, f"{what}: ")]


def _rows(names: list[str], start: str = "") -> list[str]:
    """Names with commas, four on a row."""
    rows = [", ".join(names[first : first + 4]) for first in range(0, len(names), 4)]
    return [start + rows[0], *rows[1:]] if rows else []


def main() -> None:
    from circuits.show.dot import draw

    imports = import_graph()
    source = to_dot(imports).source
    (ROOT / "docs" / "architecture.dot").write_text(source)
    draw(source, ROOT / "docs" / "architecture.svg")
    print(
        f"{len(imports)} modules, {len(package_imports(imports))} imports: docs/architecture.svg"
    )


if __name__ == "__main__":
    main()
