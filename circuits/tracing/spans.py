"""Where in depth a token's information lives: the layers that hold it, and the layers that build it.

1. At the token (or a group of positions) the residual stream at the input of layer 0…L is replaced by the
   counterfactual's. A layer holds the token's information if replacing what stands there after it has at
   least τ of the largest effect; the span is the contiguous range of such layers. So if layer 22 is the last
   to read a token, its span ends at 21, and at the query that reads it a span begins at 22. What only the
   embedding holds counts as layer 0.
2. What each block writes there is replaced likewise, everything above recomputed: the layers with at least τ
   of the largest effect have built it.
3. The tokens that matter are listed by effect: noise on each token's embedding in turn, and how much the
   answer suffers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from circuits.engine import Row, Runs, prepare
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair, Wording, to_question
from circuits.tracing import CARRIES
from circuits.tracing.records import Span

THRESHOLD: Final = 0.1  # τ


def span_of(
    runs: Runs, *positions: int, label: str | None = None, text: str | None = None, seed: int = 0
) -> Span:
    """A span from the pair itself where its difference is or passes, else from a counterfactual of its own:
    `text`, or without it noise on the embedding there."""
    pair, model = runs.pairs[0], runs.model
    word = pair.clean.words[positions[0]]
    name = (word.strip() or repr(word)) if label is None else label
    if text is not None:
        metric = pair.metric
        wording = (
            Wording(text, answer=metric.answer_text, metric="logprob") if metric.sequence else Wording(text)
        )
        own = prepare(model, [to_question(model, pair.clean.text, wording)])
        return measure_span(own, name, positions)
    passing = measure_span(runs, name, positions)
    if passing.effect >= CARRIES:
        return passing
    itself = set(pair.differs_at) == set(positions)
    try:
        own = prepare(model, [pair if itself else _noisy(pair, positions, seed)])
    except PromptError:  # noise there changes nothing to divide by: what passes is all there is
        return passing
    return measure_span(own, name, positions)


def measure_span(runs: Runs, label: str, positions: Sequence[int]) -> Span:
    """Span and built layers of some positions, from the pairs of `runs`."""
    layers = runs.model.n_layers
    rows = [Row.of_residual(layer, positions) for layer in range(layers + 1)]
    rows += [Row.of_writes(layer, positions) for layer in range(layers)]
    effects = runs.effects(rows).double().mean(1).tolist()
    residual, writes = effects[: layers + 1], effects[layers + 1 :]
    lives = (held(residual), ranges(writes), max(residual))
    other = counterfactual_text(runs.pairs[0])
    return Span(label, tuple(positions), *lives, tuple(residual), tuple(writes), other)


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


def tokens_that_matter(model: Model, pair: Pair, positions: Sequence[int], *, seed: int) -> list[int]:
    """The positions where noise costs the answer at least τ of what it costs at the most important one."""
    losses = []
    for position in positions:
        runs = prepare(model, [_noisy(pair, (position,), seed)], smallest_gap=0.0)
        losses.append(float(runs.gap[0]))
    least = max(THRESHOLD * max(losses, default=0.0), 1e-2)
    return [position for position, loss in zip(positions, losses, strict=True) if loss >= least]


def counterfactual_text(pair: Pair) -> str:
    return str(pair.counterfactual) if isinstance(pair.counterfactual, Noise) else pair.counterfactual.text


def _noisy(pair: Pair, positions: Sequence[int], seed: int) -> Pair:
    """Noise on these positions, read by the log-probability of the answer."""
    metric = replace(pair.metric, kind="logprob", foil=None, foil_text=None, foils=(), function=None)
    return Pair(pair.clean, Noise(tuple(positions), seed=seed), metric)
