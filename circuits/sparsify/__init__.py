"""Sparse twins: post-training that closes attention gates while a model behaves as its dense original does.

    from circuits.sparsify import measure_sparsity, sparsify

    sparsify("mini", "runs/mini-sparse")
    print(measure_sparsity("runs/mini-sparse"))

On the command line: `circuits sparsify mini -o runs/mini-sparse`.
Names are looked up on first use, so that importing this package imports neither torch nor a model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity, measure_sparsity
    from circuits.sparsify.settings import Settings, settings_for
    from circuits.sparsify.twin import sparsify

_MODULE_OF = {
    "Settings": "settings",
    "Sparsity": "measure",
    "measure_sparsity": "measure",
    "settings_for": "settings",
    "sparsify": "twin",  # a module called `sparsify` would take the function's place in this package
}
__all__ = ["Settings", "Sparsity", "measure_sparsity", "settings_for", "sparsify"]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"circuits.sparsify has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"circuits.sparsify.{_MODULE_OF[name]}"), name)
