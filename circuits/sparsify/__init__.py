"""Sparse twins: post-training that closes attention gates while a model behaves as its dense original does.

    from circuits.sparsify import measure_sparsity, sparsify

    sparsify("mini", "runs/mini-sparse")
    print(measure_sparsity("runs/mini-sparse"))

On the command line: `circuits sparsify mini -o runs/mini-sparse`. Read the modules in this order: `twin` (the
verb `sparsify`), `settings` (what decides a twin's weights), `training` (one step, and the loop), `attention`
(the gate), `text` and `sampling` (the rows of each step), `processes` (several of them), `checkpoint`, `measure`
(what came of it) and `card`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from circuits.results import offer
from circuits.sparsify.settings import LITTLE_LANGUAGE, SHORT_ROWS, Settings, default_in_words, settings_for

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity, measure_sparsity
    from circuits.sparsify.twin import sparsify

# A module called `sparsify` would take the function's place in this package: it is called `twin`.
_HOMES = {"measure": ("Sparsity", "measure_sparsity"), "twin": ("sparsify",)}
_OWN = ("LITTLE_LANGUAGE", "SHORT_ROWS", "Settings", "default_in_words", "settings_for")
__all__, __getattr__, __dir__ = offer(__name__, _HOMES, own=_OWN)
