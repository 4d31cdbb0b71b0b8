"""Sparse twins: post-training that closes attention gates while a model behaves as its dense original does.

    from circuits.sparsify import measure_sparsity, sparsify

    sparsify("mini", "runs/mini-sparse")
    print(measure_sparsity("runs/mini-sparse"))

On the command line: `circuits sparsify mini -o runs/mini-sparse`.
"""

from typing import TYPE_CHECKING

from circuits.links import offer

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity, measure_sparsity
    from circuits.sparsify.settings import Settings, settings_for
    from circuits.sparsify.twin import sparsify

# A module called `sparsify` would take the function's place in this package: it is called `twin`.
_HOMES = {
    "measure": ("Sparsity", "measure_sparsity"),
    "settings": ("Settings", "settings_for"),
    "twin": ("sparsify",),
}
__all__, __getattr__, __dir__ = offer(__name__, _HOMES)
