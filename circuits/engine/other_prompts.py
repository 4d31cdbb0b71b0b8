"""Other words, or noise, in a prompt that was run: rows on top of its clean run.

A prompt that differs from a clean prompt at a few positions is a row whose residual stream at the input of
layer 0 is another there. So a hundred such prompts cost one batch of rows, and nothing before the first
position is computed again.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float, Int

from circuits.engine.batches import run_rows
from circuits.engine.cache import Replacement
from circuits.engine.memory import streams_at_once
from circuits.engine.plain import copy_bytes
from circuits.engine.prepare import noise_draws
from circuits.engine.rows import Given, Row
from circuits.engine.runs import Runs
from circuits.prompts import Noise


@torch.inference_mode()
def values_of_others(
    runs: Runs, tokens: Int[torch.Tensor, "pair other pos"], positions: Sequence[int]
) -> Float[torch.Tensor, "pair other"]:
    """Each pair's metric on prompts that differ from its clean prompt at these positions alone."""
    first = runs.first_of_each_pair()
    if first.layout is not None:
        rows, given = _rows(first, tokens, positions)
        return first.measure(rows, direction="swap", given=given)
    values = []
    for number, others in enumerate(tokens):
        one = first.only([number])
        for part in _parts(one, others):
            logits = one.model.logits(part)[None, :, -one.metric.positions_read :]
            values.append(one.read_logits(logits)[0])
    return torch.cat(values).view(len(tokens), -1)


@torch.inference_mode()
def predictions_of_others(
    runs: Runs, tokens: Int[torch.Tensor, "other pos"], positions: Sequence[int]
) -> Float[torch.Tensor, "other vocab"]:
    """The logits at the last position of prompts that differ at these positions alone."""
    one = runs.first_input()
    if one.layout is None:
        return torch.cat([runs.model.logits(part)[:, -1] for part in _parts(runs, tokens)])
    rows, given = _rows(one, tokens[None], positions)
    new = Replacement(one.clean.cache, given=given)
    top = run_rows(one.layout, one.clean.cache, new, rows, budget=one.budget)
    return one.layout.logits(top[0, :, -1])


def _rows(
    runs: Runs, tokens: Int[torch.Tensor, "input other pos"], positions: Sequence[int]
) -> tuple[list[Row], Given]:
    """A row for each other prompt, and the embeddings that it puts at the positions of each input."""
    assert runs.layout is not None
    inputs, others, _ = tokens.shape
    embedded = runs.layout.embed(tokens.flatten(0, 1).to(runs.model.device))
    count = len(positions)
    rows = [Row.of_given(0, positions, "residual", first=n * count) for n in range(others)]
    new = embedded[:, list(positions)].unflatten(0, (inputs, others))
    values = new.flatten(1, 2)  # (input, other and position, d_model)
    return rows, {"residual": values}


def _parts(runs: Runs, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As many whole prompts at a time as the budget holds, for the model's own forward."""
    step = streams_at_once(runs.budget, copy_bytes(runs.model, runs.length))
    return tokens.to(runs.model.device).split(step)


@torch.inference_mode()
def gaps_of_noise(
    runs: Runs, positions: Sequence[int], *, draws: int, seed: int
) -> Float[torch.Tensor, "pair position"]:
    """How far noise at each of these positions alone moves each pair's metric: the mean of its draws. Every
    position gets the same draws."""
    first = runs.first_of_each_pair()
    embedded = first.clean.cache.layers[0].pre  # (pair, pos, d_model)
    drawn = noise_draws(runs.model, Noise((0,), draws=draws, seed=seed))
    noise = drawn[:, 0]  # (draw, d_model)
    rows = [Row(())]
    values = []
    for position in positions:
        for draw in range(draws):
            rows.append(Row.of_given(0, [position], "residual", first=len(values)))
            values.append(embedded[:, position] + noise[draw])
    given: Given = {"residual": torch.stack(values, 1)}
    measured = first.measure(rows, direction="swap", given=given).double()  # (pair, row)
    means = measured[:, 1:].unflatten(1, (len(positions), draws)).mean(2)
    return measured[:, :1] - means
