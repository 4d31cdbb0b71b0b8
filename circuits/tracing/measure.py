"""Measuring a circuit: which heads carry key → query, and where in depth a token's information lives.

1. The total of a mapping is the effect of all L·H edges of it in one run. Each head alone is measured in both
   directions, `swap` and `restore`; its loading stands beside it.
2. Carriers are found by greedy forward selection (`engine.search`) until all of the total is reached or no
   further head helps. The whole path is kept, so any share can be read off it.
3. The three sides of every carrier: the effect of a side is that of it alone read from the counterfactual
   stream, the other two staying clean. The query side changes the head's whole row at the query; key and
   value are those of the one key. Beside them the pattern alone: the message with the counterfactual's weight
   and the clean value.
4. Controls: as many random heads, every other key, keeping the carriers only, and clean patched into clean.
5. Spans: at a token (or a group of positions) the residual stream at the input of layer 0…L is replaced by
   the counterfactual's. A layer holds the token's information if replacing what stands there after it has at
   least τ of the largest effect; the span is the contiguous range of such layers. So if layer 22 is the last
   to read a token, its span ends at 21, and at the query that reads it a span begins at 22. What only the
   embedding holds counts as layer 0. What each block writes there is replaced likewise, everything above
   recomputed: the layers with at least τ of the largest effect have built it.
6. Every effect is in units of one gap, the pair's, also where a token has a counterfactual of its own (a
   text, or noise on its embedding). `moves` says how far that counterfactual moves the metric in this unit; a
   token that it moves by less than 0.05 does not matter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Final, TypeVar

import torch
from jaxtyping import Float

from circuits.components import ALL, SIDES, Head, Reader, Side, Wire
from circuits.engine import Direction, Row, Runs, bytes_of_run, gaps_of_noise, prepare
from circuits.engine.search import loadings_of, mapping_row, mapping_rows, select
from circuits.engine.streams import Change, Given
from circuits.engine.wires import wire_effects
from circuits.errors import PromptError
from circuits.prompts import NOISE_DRAWS, Noise, Pair, Wording, to_prompt, to_question
from circuits.results import Progress, Watch, silent, unwatched
from circuits.tracing import CARRIES, SHARE, SHORT, Controls, HeadEffect, Mapping, SideEffects, Span, Step

T = TypeVar("T")
DRAWS: Final = 100
ROWS: Final = 64  # that are measured between two words on progress
FIRST_ROWS: Final = 4  # of a long prompt, so that it is soon known how long all will take
_BOTH: Final[tuple[Direction, Direction]] = ("swap", "restore")
THRESHOLD: Final = 0.1  # τ
MOST_NOISED: Final = 256  # tokens of a prompt each of which is tried with noise
NOISED_TOGETHER: Final = 16
ROWS_OF_LONG: Final = 8  # of a long prompt that are measured between two words on progress
_MEMORY: Final = 2**30  # bytes of noisy runs at once


def finite(value: float) -> float:
    """A number that JSON can hold, or an error that says that the measurement broke down."""
    if not math.isfinite(value):
        raise PromptError("the model gave a value that is not a finite number; check its weights and dtype")
    return value


def both_values(runs: Runs) -> tuple[float, float]:
    """The metric of the first pair, clean and counterfactual."""
    return finite(float(runs.values(runs.clean)[0])), finite(float(runs.values(runs.counterfactual)[0]))


def totals(runs: Runs, ends: Sequence[tuple[int, int]], *, progress: Progress = silent) -> list[float]:
    """The total of each (key, query)."""
    return measured_in_parts(runs, ends, lambda end: mapping_row(runs.heads, *end), "totals", progress)


def measured_in_parts(
    runs: Runs, things: Sequence[T], to_row: Callable[[T], Row], stage: str, progress: Progress
) -> list[float]:
    """The effect of the row of each thing, averaged over the pairs; progress is reported after every part."""
    measured: list[float] = []
    step = ROWS if runs.length <= SHORT else FIRST_ROWS
    while len(measured) < len(things):
        part = things[len(measured) : len(measured) + step]
        measured += _means(runs.effects([to_row(each) for each in part]))
        progress(stage, len(measured), len(things))
        step = ROWS
    return measured


def measure_mapping(
    runs: Runs,
    key: int,
    query: int,
    *,
    share: float = SHARE,
    controls: bool = True,
    seed: int = 0,
    progress: Progress = silent,
    watch: Watch[Mapping] = unwatched,
) -> Mapping:
    """Everything about one mapping, averaged over the pairs of `runs`; `watch` is shown it as it grows."""
    rows = mapping_rows(runs.heads, key, query)
    swap, restore = (runs.effects(rows, direction=direction) for direction in _BOTH)
    *singles, (total, restored) = zip(_means(swap), _means(restore), strict=True)
    watch(Mapping(key, query, total, restored))

    def note(reached: float) -> None:
        progress("carriers", min(99, int(100 * reached)), 100)

    (path,) = select(runs, key, query, effects=swap[:-1], totals=swap[-1], together=True, progress=note)
    heads, steps = _head_effects(runs, singles, key, query), tuple(Step(*step) for step in path)
    mapping = Mapping(key, query, total, restored, heads, steps)
    if not controls:
        return mapping
    watch(mapping)
    sides = () if runs.absent else side_effects(runs, mapping.carriers(share), key, query)
    return replace(mapping, controls=_controls(runs, mapping, share, seed), sides=sides)


def _means(effects: Float[torch.Tensor, "row pair"]) -> list[float]:
    return effects.double().mean(1).tolist()


def _head_effects(
    runs: Runs, singles: Sequence[tuple[float, float]], key: int, query: int
) -> tuple[HeadEffect, ...]:
    """What each head does, given its effects in both directions; strongest first."""
    linear_shares: list[float] | list[None] = [None] * len(singles)
    if runs.layout is not None:
        linear_shares = loadings_of(runs, key, query).flatten().tolist()
    layers = [side.cache.layers for side in (runs.clean, runs.counterfactual)]
    weights = [torch.cat([layer.pattern[:, :, query, key].mean(0) for layer in side]) for side in layers]
    each = zip(runs.heads, singles, linear_shares, *(side.tolist() for side in weights), strict=True)
    effects = [HeadEffect(head, *both, *rest) for head, both, *rest in each]  # loading, then both weights
    return tuple(sorted(effects, key=lambda effect: (-round(effect.effect, 5), effect.head)))


def _controls(runs: Runs, mapping: Mapping, share: float, seed: int) -> Controls:
    heads, carriers, ends = runs.heads, mapping.carriers(share), (mapping.key, mapping.query)
    draw = random.Random(f"random heads/{seed}")
    draws = DRAWS if carriers else 0
    rows = [mapping_row(draw.sample(heads, len(carriers)), *ends) for _ in range(draws)]
    rows.append(mapping_row([head for head in heads if head not in carriers], *ends))
    rows += [mapping_row(heads, key, mapping.query) for key in range(mapping.query + 1)]
    effects = _means(runs.effects(rows))
    chance, rest, key_totals = sorted(effects[:draws]), effects[draws], effects[draws + 1 :]
    return Controls(
        random_mean=sum(chance) / draws if draws else 0.0,
        random_p95=chance[int(0.95 * (draws - 1))] if draws else 0.0,
        random_draws=draws,
        key_totals=tuple(key_totals),
        sufficiency=1 - rest / mapping.total if carriers else 0.0,
        identity=runs.identity(mapping_row(heads, *ends)),
        share=share,
    )


# Sides


def tells_sides(runs: Runs) -> bool:
    """Whether the sides of a head can be told apart: always on the fast path, on the plain one where edits of
    attention reach the logits."""
    return runs.layout is not None or runs.model.edits_attention


def side_wire(side: Side, head: Head, key: int | None, query: int) -> Wire:
    """The whole of one side, as a wire from everything below; without a key, all keys of the query."""
    reader = Reader(head.layer, side, head.index)
    return Wire(ALL, reader, query) if side == "query" else Wire(ALL, reader, key, query)


def side_effects(runs: Runs, heads: Sequence[Head], key: int, query: int) -> tuple[SideEffects, ...]:
    """The sides of each head on the edge key → query, averaged over the pairs."""
    if not heads or not tells_sides(runs):
        return ()
    wires = [side_wire(side, head, key, query) for head in heads for side in SIDES]
    effects, weights = wire_effects(runs, wires, watch=(key, query))
    by_side, looks = (values.mean(1).unflatten(0, (-1, 3)).T.tolist() for values in (effects, weights))
    patterns = pattern_effects(runs, heads, key, query)
    return tuple(map(SideEffects, heads, *by_side, patterns, *looks[:2]))


@torch.inference_mode()
def pattern_effects(runs: Runs, heads: Sequence[Head], key: int, query: int) -> list[float]:
    """The effect of each head's weight on the edge being the counterfactual's, its value being clean."""
    values, rows = [], []
    for number, head in enumerate(heads):
        clean, other = (side.cache.layers[head.layer] for side in (runs.clean, runs.counterfactual))
        before, after = (side.pattern[:, head.index, query, key, None] for side in (clean, other))
        values.append(clean.z[:, query, head.index] + (after - before) * clean.value[:, head.index, key])
        rows.append(Row((Change(head.layer, query, "head", head.index, given=number),)))
    given: Given = {"head": torch.stack(values, 1)}
    return _means(runs.effects(rows, given=given))


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
        noise = Noise(positions, draws=min(draws, NOISE_DRAWS), seed=seed)
        own = Pair(pair.clean, noise, pair.metric)
    elif pair.metric.kind == "logit_diff":  # a text has a prediction, and so a foil, of its own
        own = to_question(model, pair.clean.text, Wording(text))
    else:
        other = to_prompt(model, text).followed_by(model, pair.metric.sequence[:-1])
        own = Pair(pair.clean, other, pair.metric)
    others = prepare(model, [own], smallest_gap=0.0)
    return measure_span(others, name, positions, unit=float(runs.gap[0]), progress=progress)


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
    units = gap if unit is None else torch.full_like(gap, unit)
    values = runs.mean_over_draws(_measured(runs, [Row(()), *rows], progress)).double()
    change = values[:, :1] - values[:, 1:]
    effects = (change / units[:, None]).mean(0).tolist()
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
        moves=float((gap / units).mean()),
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
