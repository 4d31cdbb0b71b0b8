"""Sparse twins: post-training that closes a model's attention gates while it goes on behaving like its dense original.

    from circuits.sparsify import Settings, measure_sparsity, sparsify

    sparsify("mini", "runs/mini-sparse")
    print(measure_sparsity("runs/mini-sparse"))

On the command line: `python -m circuits.sparsify mini -o runs/mini-sparse`.
Names are looked up when they are first used, so that importing this imports neither torch nor a model library.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity, measure_sparsity
    from circuits.sparsify.settings import Settings, settings_for
    from circuits.sparsify.sparsify import sparsify

_ROOM_OF = {
    "Settings": "settings",
    "Sparsity": "measure",
    "measure_sparsity": "measure",
    "settings_for": "settings",
    "sparsify": "twin",
}
__all__ = ["Settings", "Sparsity", "measure_sparsity", "settings_for", "sparsify"]


def __getattr__(name: str) -> Any:
    if name not in _ROOM_OF:
        raise AttributeError(f"circuits.sparsify has no {name!r}; it has {', '.join(__all__)}")
    return getattr(import_module(f"circuits.sparsify.{_ROOM_OF[name]}"), name)
