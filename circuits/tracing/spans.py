"""Spans: in which layers a token's information lives.

1. At a token (or a group of positions) the residual stream at the input of layer 0…L is replaced by the
   counterfactual's. A layer holds the token's information if replacing the stream after it has at least τ of
   the largest effect. The span is the contiguous range of such layers around the largest effect. So if layer
   22 is the last to read a token, its span ends at 21, and the span of the query that reads it begins at 22.
   What only the embedding holds counts as layer 0.
2. Then what each block writes there is replaced, everything above recomputed: the layers with at least τ of
   the largest effect have built it. Spans are measured by the counterfactual whatever the ablation: that says
   what the token's own information is.
3. Every effect is a share of the pair's gap, also where a token has a counterfactual of its own (a text, or
   noise on its embedding). `moves` says how far that counterfactual moves the metric in this unit. A token
   that it moves by less than 0.05 does not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float

from circuits.components import ROUNDING
from circuits.engine import Row, Runs, gaps_of_noise, prepare
from circuits.engine.memory import plan_memory
from circuits.prompts import (
    NOISE_DRAWS,
    Noise,
    Pair,
    Prompt,
    Question,
    QuestionSpec,
    to_prompt,
    to_question,
)
from circuits.results import Progress, silent
from circuits.tracing.aligned import Aligned
from circuits.tracing.parts import CARRIES, SHORT, Span

THRESHOLD: Final = 0.1  # τ
MOST_NOISED: Final = 256  # in prompts up to this length every token is tried with noise
ROWS_OF_LONG: Final = 8  # rows of a long prompt between two reports of progress
NOISED_AT_ONCE: Final = 16  # tokens whose noise is measured between two reports of progress
_MEMORY: Final = 2**30  # bytes of noisy runs at once


def span_of(
    parts: Sequence[Aligned],
    *shared: int,
    label: str | None = None,
    text: str | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Span:
    """The span of some shared positions, from the pairs themselves where their difference is or passes there,
    else from counterfactuals of their own: `text` (of one pair), or without it noise on the embedding there."""
    runs = parts[0].runs
    if label is None:
        label = label_of(runs.pairs[0].clean, parts[0].places[shared[0]])
    if text is not None:
        own = [prepare(runs.model, [_pair_with_text(runs, text)], smallest_gap=0.0)]
    else:
        from_pairs = measure_span(parts, label, shared, progress=progress)
        if from_pairs.effect >= CARRIES or _differ_alone(parts, shared):
            return from_pairs
        own = _noised(parts, shared, seed)
        if own is None:  # not even one noisy run fits into memory
            return from_pairs
    return measure_span(parts, label, shared, own=own, progress=progress)


def label_of(prompt: Prompt, position: int) -> str:
    """The label of a single token: its word, in quotes where that is space alone."""
    word = prompt.words[position]
    return word.strip() or repr(word)


def counterfactual_text(pair: Pair) -> str:
    """What a pair is compared with: a text, or the name of its noise."""
    other = pair.counterfactual
    return str(other) if isinstance(other, Noise) else other.text


def _differ_alone(parts: Sequence[Aligned], shared: Sequence[int]) -> bool:
    """Whether every pair differs at these positions and nowhere else."""
    for part in parts:
        places = set(part.at(shared))
        if any(set(pair.differs_at) != places for pair in part.runs.pairs):
            return False
    return True


def _noised(parts: Sequence[Aligned], shared: Sequence[int], seed: int) -> list[Runs] | None:
    """The runs of the same prompts with noise at these positions; None where they do not fit into memory."""
    own = []
    for part in parts:
        runs = part.runs
        one_draw = plan_memory(runs.model, length=runs.length, inputs=len(runs.pairs))
        draws = min(NOISE_DRAWS, _MEMORY // one_draw.runs)
        if draws == 0:
            return None
        noise = Noise(part.at(shared), draws=draws, seed=seed)
        noisy = [Pair(pair.clean, noise, pair.metric) for pair in runs.pairs]
        own.append(prepare(runs.model, noisy, smallest_gap=0.0))
    return own


def _pair_with_text(runs: Runs, text: str) -> Pair | Question:
    """The clean prompt with another text as its counterfactual."""
    pair = runs.pairs[0]
    if pair.metric.kind == "logit_diff":  # the text has a prediction, and so a foil, of its own
        return to_question(runs.model, pair.clean.text, QuestionSpec(text))
    other = to_prompt(runs.model, text).followed_by(runs.model, pair.metric.sequence[:-1])
    return Pair(pair.clean, other, pair.metric)


def measure_span(
    parts: Sequence[Aligned],
    label: str,
    shared: Sequence[int],
    *,
    own: Sequence[Runs] | None = None,
    progress: Progress = silent,
) -> Span:
    """The layers that hold and build some shared positions, from the pairs of all parts, or from other runs of
    the same prompts (`own`). Effects are shares of the gaps of `parts`."""
    ran = [part.runs for part in parts] if own is None else own
    layers = ran[0].model.n_layers
    effects = []  # of each part, (pair, row)
    moves = []
    for part, runs in zip(parts, ran, strict=True):
        places = part.at(shared)
        rows = [Row(())]  # nothing is replaced
        rows += [Row.of_residual(layer, places) for layer in range(layers + 1)]
        rows += [Row.of_writes(layer, places) for layer in range(layers)]
        at_once = len(rows) if runs.length <= SHORT else ROWS_OF_LONG
        measured = measure_rows(runs, rows, at_once=at_once, progress=progress)
        values = runs.mean_over_draws(measured).double()  # (pair, row)
        unit = part.runs.gap.double()
        effects.append((values[:, :1] - values[:, 1:]) / unit[:, None])
        moves.append(runs.gap.double() / unit)
    means = torch.cat(effects).mean(0).tolist()
    residual = means[: layers + 1]
    writes = means[layers + 1 :]
    return Span(
        label=label,
        positions=parts[0].at(shared),
        layers=held(residual),
        built=ranges(writes),
        effect=max(residual),
        residual=tuple(residual),
        writes=tuple(writes),
        counterfactual=counterfactual_text(ran[0].pairs[0]),
        moves=float(torch.cat(moves).mean()),
    )


def measure_rows(
    runs: Runs, rows: Sequence[Row], *, at_once: int, progress: Progress = silent
) -> Float[torch.Tensor, "input row"]:
    """The metric of every row with the counterfactual's values in the clean run, some rows at once, with a
    report of progress after each part."""
    if at_once >= len(rows):
        return runs.measure(rows, direction="swap")
    progress("spans", 0, len(rows))
    parts: list[torch.Tensor] = []
    for first in range(0, len(rows), at_once):
        part = rows[first : first + at_once]
        parts.append(runs.measure(part, direction="swap"))
        progress("spans", first + len(part), len(rows))
    return torch.cat(parts, 1)


def held(effects: Sequence[float]) -> tuple[int, int] | None:
    """The layers that hold a token, given the effects of replacing the input of layer 0…L.

    The input of layer l is what layer l-1 leaves, so an effect at l counts for layer l-1.
    """
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
    """All ranges of layers whose effect is at least τ of the largest; none where the largest is rounding."""
    largest = max(effects)
    if largest <= ROUNDING:
        return ()
    listed: list[tuple[int, int]] = []
    for layer, effect in enumerate(effects):
        if effect < THRESHOLD * largest:
            continue
        if listed and listed[-1][1] == layer - 1:
            listed[-1] = (listed[-1][0], layer)
        else:
            listed.append((layer, layer))
    return tuple(listed)


def tokens_that_matter(
    parts: Sequence[Aligned],
    shared: Sequence[int],
    *,
    seed: int,
    progress: Progress = silent,
) -> list[int]:
    """The shared positions where noise moves the metric by at least 0.05 of the gap, on the mean of all pairs.

    A long prompt gets one draw of noise for each token. In a very long one no token is tried, since each
    costs a run of its own.
    """
    longest = max(part.runs.length for part in parts)
    if longest > MOST_NOISED:
        return []
    draws = NOISE_DRAWS if longest <= SHORT else 1
    matter: list[int] = []
    for first in range(0, len(shared), NOISED_AT_ONCE):
        some = shared[first : first + NOISED_AT_ONCE]
        moved = []  # of each part, (pair, position)
        for part in parts:
            gaps = gaps_of_noise(part.runs, part.at(some), draws=draws, seed=seed)
            moved.append(gaps / part.runs.gap.double()[:, None])
        means = torch.cat(moved).mean(0).tolist()
        matter += [
            number for number, mean in zip(some, means, strict=True) if abs(mean) >= CARRIES
        ]
        progress("tokens", first + len(some), len(shared))
    return matter
