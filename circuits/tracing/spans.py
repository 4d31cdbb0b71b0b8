"""Where in depth a token's information lives: the layers that hold it, and the layers that build it.

1. At the token (or a group of positions) the residual stream at the input of layer 0…L is replaced by the
   counterfactual's. A layer holds the token's information if replacing what stands there after it has at
   least τ of the largest effect; the span is the contiguous range of such layers. So if layer 22 is the last
   to read a token, its span ends at 21, and at the query that reads it a span begins at 22. What only the
   embedding holds counts as layer 0.
2. What each block writes there is replaced likewise, everything above recomputed: the layers with at least τ
   of the largest effect have built it.
3. Every effect is in units of one gap, the pair's, also where a token has a counterfactual of its own (a
   text, or noise on its embedding). `moves` says how far that counterfactual moves the metric in this unit; a
   token that it moves by less than 0.05 does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float

from circuits.engine import Row, Runs, prepare
from circuits.engine.prepare import bytes_of_run, gaps_of_noise
from circuits.links import Progress, silent
from circuits.prompts import NOISE_DRAWS, Noise, Pair, Wording, to_prompt, to_question
from circuits.tracing import CARRIES, SHORT
from circuits.tracing.records import Span

THRESHOLD: Final = 0.1  # τ
MOST_NOISED: Final = 256  # tokens of a prompt each of which is tried with noise
NOISED_TOGETHER: Final = 16
ROWS_OF_LONG: Final = 8  # of a long prompt that are measured between two words on progress
_MEMORY: Final = 2**30  # bytes of noisy runs at once


def span_of(
    runs: Runs,
    *positions: int,
    label: str | None = None,
    text: str | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Span:
    """A span from the pair itself where its difference is or passes, else from a counterfactual of its own:
    `text`, or without it noise on the embedding there."""
    pair, model = runs.pairs[0], runs.model
    word = pair.clean.words[positions[0]]
    name = (word.strip() or repr(word)) if label is None else label
    if text is None:
        passing = measure_span(runs, name, positions, progress=progress)
        if passing.effect >= CARRIES or set(pair.differs_at) == set(positions):
            return passing
        draws = _MEMORY // (2 * bytes_of_run(model, runs.length))
        if draws == 0:  # not even one fits: the span is what passes through
            return passing
        own = _noisy(pair, positions, min(draws, NOISE_DRAWS), seed)
    elif pair.metric.kind == "logit_diff":  # a text has a prediction, and so a foil, of its own
        own = to_question(model, pair.clean.text, Wording(text))
    else:
        other = to_prompt(model, text).followed_by(model, pair.metric.sequence[:-1])
        own = Pair(pair.clean, other, pair.metric)
    unit = float(runs.gap[0])
    noisy = prepare(model, [own], smallest_gap=0.0)
    return measure_span(noisy, name, positions, unit=unit, progress=progress)


def measure_span(
    runs: Runs,
    label: str,
    positions: Sequence[int],
    *,
    unit: float | None = None,
    progress: Progress = silent,
) -> Span:
    """Span and built layers of some positions, from the pairs of `runs`; effects are in units of their own
    gap, or of `unit`."""
    layers = runs.model.n_layers
    rows = [Row.of_residual(layer, positions) for layer in range(layers + 1)]
    rows += [Row.of_writes(layer, positions) for layer in range(layers)]
    gap = runs.gap.double()
    scale = gap / (gap if unit is None else unit)
    values = runs.mean_over_draws(_measured(runs, [Row(()), *rows], progress)).double()
    change = values[:, :1] - values[:, 1:]
    effects = (change / (gap if unit is None else torch.full_like(gap, unit))[:, None]).mean(0).tolist()
    residual, writes = effects[: layers + 1], effects[layers + 1 :]
    return Span(
        label=label,
        positions=tuple(positions),
        layers=held(residual),
        built=ranges(writes),
        effect=max(residual),
        residual=tuple(residual),
        writes=tuple(writes),
        counterfactual=counterfactual_text(runs.pairs[0]),
        moves=float(scale.mean()),
    )


def _measured(runs: Runs, rows: Sequence[Row], progress: Progress) -> Float[torch.Tensor, "input row"]:
    """The metric of every row; of a long prompt in parts, so that it is soon known how long all will take."""
    if runs.length <= SHORT:
        return runs.measure(rows)
    progress("spans", 0, len(rows))
    parts: list[torch.Tensor] = []
    for first in range(0, len(rows), ROWS_OF_LONG):
        parts.append(runs.measure(rows[first : first + ROWS_OF_LONG]))
        progress("spans", first + parts[-1].shape[1], len(rows))
    return torch.cat(parts, 1)


def held(effects: Sequence[float]) -> tuple[int, int] | None:
    """The layers that hold it, by the effects of replacing the input of layer 0…L, which l-1 leaves to l."""
    largest = max(effects)
    if largest <= 0:
        return None
    first = last = effects.index(largest)
    while first > 0 and effects[first - 1] >= THRESHOLD * largest:
        first -= 1
    while last + 1 < len(effects) and effects[last + 1] >= THRESHOLD * largest:
        last += 1
    return max(0, first - 1), max(0, last - 1)


def ranges(effects: Sequence[float]) -> tuple[tuple[int, int], ...]:
    """All ranges of layers whose effect is at least τ of the largest."""
    largest = max(effects)
    listed: list[tuple[int, int]] = []
    for layer, effect in enumerate(effects):
        if largest <= 0 or effect < THRESHOLD * largest:
            continue
        if listed and listed[-1][1] == layer - 1:
            listed[-1] = (listed[-1][0], layer)
        else:
            listed.append((layer, layer))
    return tuple(listed)


def tokens_that_matter(
    runs: Runs, positions: Sequence[int], *, seed: int, progress: Progress = silent
) -> list[int]:
    """The positions where noise moves the metric by a share of the pair's gap that is worth a box. One draw
    decides in a long prompt; in a very long one the answer is none, since each costs a run of its own."""
    if runs.length > MOST_NOISED:
        return []
    draws = NOISE_DRAWS if runs.length <= SHORT else 1
    step, least, matter = NOISED_TOGETHER, CARRIES * abs(float(runs.gap[0])), []
    for first in range(0, len(positions), step):
        part = positions[first : first + step]
        moved = gaps_of_noise(runs, part, draws=draws, seed=seed)
        matter += [position for position, gap in zip(part, moved, strict=True) if abs(gap) >= least]
        progress("tokens", first + len(part), len(positions))
    return matter


def counterfactual_text(pair: Pair) -> str:
    return str(pair.counterfactual) if isinstance(pair.counterfactual, Noise) else pair.counterfactual.text


def _noisy(pair: Pair, positions: Sequence[int], draws: int, seed: int) -> Pair:
    """Noise on these positions, read by the pair's own metric."""
    return Pair(pair.clean, Noise(tuple(positions), draws=draws, seed=seed), pair.metric)
