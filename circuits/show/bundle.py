"""The page's script: the ES modules of `web/` joined into one, so that the page is one file.

1. Modules are put in the order of their imports, each after all that it imports.
2. Each becomes a function of its own that returns what it exports. What is not exported stays inside.
3. Only two forms are understood, which is all that the modules use: `import { a, b } from "./module.js";`
   and `export` before a function or a constant.
"""

from __future__ import annotations

import re
from functools import cache
from importlib.resources import files
from typing import Final

_IMPORT: Final = re.compile(r'^import \{([^}]*)\} from "\./(\w+)\.js";\n', re.MULTILINE)
_EXPORT: Final = re.compile(
    r"^export (?=(?:async function|function|const) (\w+))", re.MULTILINE
)


def web_file(name: str) -> str:
    """The text of a file of `web/`."""
    return (files("circuits.show") / "web" / name).read_text(encoding="utf-8")


@cache
def bundle(entry: str) -> str:
    """The module `entry` and all that it imports, as one script."""
    modules: dict[str, str] = {}
    _add_module(modules, entry)
    return '"use strict";\n(() => {\n' + "\n".join(modules.values()) + "})();\n"


def _add_module(modules: dict[str, str], name: str) -> None:
    """Add a module after the modules that it imports."""
    source = web_file(f"{name}.js")
    for _, imported in _IMPORT.findall(source):
        if imported not in modules:
            _add_module(modules, imported)
    exports = ", ".join(_EXPORT.findall(source))
    body = _IMPORT.sub(r"const {\1} = module_\2;\n", source)
    body = _EXPORT.sub("", body)
    modules[name] = f"const module_{name} = (() => {{\n{body}return {{ {exports} }};\n}})();\n"
