"""What the metric would be if other words stood in some places of a prompt: rows on top of the clean run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any

import torch
from jaxtyping import Float, Int

from circuits.engine.fast import carry
from circuits.engine.rows import Cache, NewValues, Row
from circuits.engine.runs import Runs
from circuits.prompts import Noise, Pair


@torch.inference_mode()
def values_of_others(
    runs: Runs, tokens: Int[torch.Tensor, "other pos"], positions: Sequence[int]
) -> Float[torch.Tensor, " other"]:
    """The first pair's metric on prompts that differ from its clean prompt at these positions alone."""
    numbers = runs.length * (16 * runs.model.d_model + 3 * runs.model.n_heads * runs.length)
    numbers += 0 if runs.layout is not None else runs.length * runs.model.vocab_size
    step = max(1, runs.budget // (4 * numbers))
    parts = tokens.to(runs.model.device).split(step)
    return torch.cat([_values(runs, part, tuple(positions)) for part in parts])


def _values(runs: Runs, tokens: torch.Tensor, positions: tuple[int, ...]) -> torch.Tensor:
    """A pair may have several inputs, one a draw of noise; here each other prompt is one."""
    pair = Pair(runs.pairs[0].clean, Noise(positions, draws=len(tokens)), runs.metric)
    clean = _expanded(runs.clean, len(tokens))
    several = replace(runs, pairs=(pair,), clean=clean, counterfactual=clean, family=None, early=None)
    if runs.layout is None:
        return several.read(runs.model.logits(tokens)[:, None, -runs.metric.tail :])[:, 0]
    new, row = NewValues(Cache((), runs.layout.embed(tokens))), Row.of_residual(0, positions)
    top = carry(runs.layout, clean.cache, new, [row], budget=runs.budget, tail=runs.metric.tail)
    return several.read_stream(top)[:, 0]


def _expanded(stored: Any, count: int) -> Any:
    """A record of tensors whose first axis is the input: the first, seen so many times, without a copy."""
    if isinstance(stored, torch.Tensor):
        return stored[:1].expand(count, *stored.shape[1:])
    if isinstance(stored, tuple):
        return tuple(_expanded(part, count) for part in stored)
    if is_dataclass(stored) and not isinstance(stored, type):
        return replace(stored, **{f.name: _expanded(getattr(stored, f.name), count) for f in fields(stored)})
    return stored
