"""Sparse twins: post-training that closes attention gates while a model behaves as its dense original does.

    from circuits.sparsify import measure_sparsity, sparsify

    sparsify("mini", "runs/mini-sparse")
    print(measure_sparsity("runs/mini-sparse"))

On the command line: `circuits sparsify mini -o runs/mini-sparse`. Read the modules in this order: `twin` (the
verb `sparsify`), `settings` (what decides a twin's weights), `training` (one step, and the loop), `attention`
(the gate), `text`, `sampling` and `small_vocabulary` (the rows of each step), `processes` (several of them),
`checkpoint`, `measure` (what came of it) and `card`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import lazy_loader

from circuits.sparsify.settings import (
    LITTLE_LANGUAGE,
    SHORT_ROWS,
    Settings,
    default_in_words,
    settings_for,
)

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity, measure_sparsity
    from circuits.sparsify.twin import sparsify

# These are imported when they are first used, so that importing the package imports no model library. (A
# module called `sparsify` would take the function's place in this package: it is called `twin`.)
_LAZY = {"measure": ["Sparsity", "measure_sparsity"], "twin": ["sparsify"]}
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submod_attrs=_LAZY)
__all__ += ["LITTLE_LANGUAGE", "SHORT_ROWS", "Settings", "default_in_words", "settings_for"]
