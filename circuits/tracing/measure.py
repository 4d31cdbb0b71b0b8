"""Measuring a circuit: which heads carry key → query, and in which layers a token's information lives.

1. The total of a mapping is the effect of all L·H edges of it in one run, by the ablation of the runs (`swap`
   unless the user chose another). Each head alone is measured so, and by `restore`; its loading stands beside
   it.
2. Carriers are found by greedy forward selection (`engine.selection`) until all of the total is reached or no
   further head helps. The whole path is kept, so the carriers of any share can be read off it.
3. The effect of a carrier's query, key or value side: that side alone is computed from the counterfactual
   stream. The query side changes the head's whole row at the query; key and value are those of the one key.
   The effect of its pattern: the message with the counterfactual's attention weight and the clean value.
4. Controls: as many random heads that are no carriers, every other key, keeping the carriers only, and clean
   patched into clean.
5. Spans: at a token (or a group of positions) the residual stream at the input of layer 0…L is replaced by
   the counterfactual's. A layer holds the token's information if replacing the stream after it has at least
   τ of the largest effect. The span is the contiguous range of such layers around the largest effect. So if
   layer 22 is the last to read a token, its span ends at 21, and the span of the query that reads it begins
   at 22. What only the embedding holds counts as layer 0. Then what each block writes there is replaced,
   everything above recomputed: the layers with at least τ of the largest effect have built it. Spans are
   measured by the counterfactual whatever the ablation: that says what the token's own information is.
6. Every effect is a share of the pair's gap, also where a token has a counterfactual of its own (a text, or
   noise on its embedding). `moves` says how far that counterfactual moves the metric in this unit. A token
   that it moves by less than 0.05 does not matter.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import astuple, replace
from typing import Final, TypeVar

import torch
from jaxtyping import Float

from circuits.components import ALL, ROUNDING, SIDES, Head, Reader, Side, Wire
from circuits.engine import Row, Runs, gaps_of_noise, prepare
from circuits.engine.loadings import loadings_of
from circuits.engine.memory import run_bytes
from circuits.engine.rows import Change
from circuits.engine.selection import Mapped, effects_over, mapping_row, select_over
from circuits.engine.wires import DIRECTIONS_OF_WIRES, wire_effects
from circuits.errors import PromptError
from circuits.prompts import (
    NOISE_DRAWS,
    Noise,
    Pair,
    Question,
    QuestionSpec,
    to_prompt,
    to_question,
)
from circuits.results import Progress, Watch, silent, unwatched
from circuits.tracing.parts import (
    CARRIES,
    SHARE,
    SHORT,
    Controls,
    HeadEffect,
    Mapping,
    MeasuredModel,
    SideEffects,
    Span,
    Step,
)

T = TypeVar("T")
DRAWS: Final = 100  # random sets of heads
THRESHOLD: Final = 0.1  # τ
MOST_NOISED: Final = 256  # in prompts up to this length every token is tried with noise
ROWS_AT_ONCE: Final = 64  # rows measured between two reports of progress
ROWS_OF_LONG: Final = 8  # the same in a long prompt
FIRST_ROWS_OF_LONG: Final = 4  # its first rows, so that the remaining time is soon known
NOISED_AT_ONCE: Final = 16  # tokens whose noise is measured between two reports of progress
_MEMORY: Final = 2**30  # bytes of noisy runs at once


def finite(value: float) -> float:
    """The value, or an error where it is infinite or not a number: JSON cannot hold that."""
    if not math.isfinite(value):
        raise PromptError(
            "the model gave a value that is not a finite number; check its weights and dtype"
        )
    return value


def both_values(runs: Runs) -> tuple[float, float]:
    """The metric of the first pair, clean and counterfactual."""
    clean = float(runs.values(runs.clean)[0])
    counterfactual = float(runs.values(runs.counterfactual)[0])
    return finite(clean), finite(counterfactual)


def measured_model(runs: Runs) -> MeasuredModel:
    """The model of these runs, and how many of its edges are open on the first clean prompt."""
    model, length = runs.model, runs.length
    layers = runs.first_input().clean.cache.layers
    opened = sum(int((layer.pattern()[0] > 0).sum()) for layer in layers)
    return MeasuredModel(
        name=model.name,
        fingerprint=model.fingerprint,
        layers=model.n_layers,
        heads=model.n_heads,
        gated=model.gated,
        reads_bos=model.reads_bos,
        width=model.d_model,
        parallel=runs.layout is not None and runs.layout.parallel,
        open_edges=opened,
        edges=model.n_layers * model.n_heads * length * (length + 1) // 2,
        dtype=str(model.dtype).removeprefix("torch."),
    )


def counterfactual_text(pair: Pair) -> str:
    return (
        str(pair.counterfactual)
        if isinstance(pair.counterfactual, Noise)
        else pair.counterfactual.text
    )


def _means(effects: Float[torch.Tensor, "row pair"]) -> list[float]:
    """The mean effect of each row over the pairs."""
    return effects.double().mean(1).tolist()


# Mappings


def totals(
    runs: Runs, ends: Sequence[tuple[int, int]], *, progress: Progress = silent
) -> list[float]:
    """The total of each (key, query)."""

    def all_heads(end: tuple[int, int]) -> Row:
        return mapping_row(runs.heads, *end)

    return measured_in_parts(runs, ends, all_heads, "totals", progress)


def measured_in_parts(
    runs: Runs, things: Sequence[T], to_row: Callable[[T], Row], stage: str, progress: Progress
) -> list[float]:
    """The effect of the row of each thing, averaged over the pairs; progress is reported after every part."""
    measured: list[float] = []
    size = ROWS_AT_ONCE if runs.length <= SHORT else FIRST_ROWS_OF_LONG
    while len(measured) < len(things):
        part = things[len(measured) : len(measured) + size]
        measured += _means(runs.effects([to_row(each) for each in part]))
        progress(stage, len(measured), len(things))
        size = ROWS_AT_ONCE
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
    """Everything about one mapping, averaged over the pairs of `runs`.

    `watch` is called with the mapping as far as it is measured: with its total, then with its heads.
    """
    return measure_mapping_over(
        [Mapped(runs, key, query)],
        share=share,
        controls=controls,
        seed=seed,
        progress=progress,
        watch=watch,
    )


def measure_mapping_over(
    parts: Sequence[Mapped],
    *,
    share: float = SHARE,
    controls: bool = True,
    seed: int = 0,
    progress: Progress = silent,
    watch: Watch[Mapping] = unwatched,
) -> Mapping:
    """The same over pairs of several lengths. Key and query of the record are those of the first part, and the
    control of other keys is measured there."""
    key, query = parts[0].key, parts[0].query
    heads = parts[0].runs.heads
    sets = [*([head] for head in heads), heads]  # each head alone, and last all of them
    measured = effects_over(parts, sets)
    restore = effects_over(parts, sets, direction="restore")
    *effects, total = _means(measured)
    *restored, total_restored = _means(restore)
    watch(Mapping(key, query, total, total_restored))

    def report(reached: float) -> None:
        progress("carriers", min(99, int(100 * reached)), 100)

    path = select_over(parts, effects=measured[:-1], totals=measured[-1], progress=report)
    mapping = Mapping(
        key=key,
        query=query,
        total=total,
        restore=total_restored,
        heads=_head_effects(parts, effects, restored),
        path=tuple(Step(head, joint) for head, joint in path),
    )
    if not controls:
        return mapping
    watch(mapping)
    return replace(
        mapping,
        controls=_controls(parts, mapping, share, seed),
        sides=_sides_over(parts, mapping.carriers(share)),
    )


def _head_effects(
    parts: Sequence[Mapped], effects: Sequence[float], restored: Sequence[float]
) -> tuple[HeadEffect, ...]:
    """The record of each head, given its effects in both directions; strongest first."""
    heads = parts[0].runs.heads
    loadings: Sequence[float | None] = [None] * len(effects)
    if parts[0].runs.layout is not None and parts[0].runs.metric.kind != "probe":
        by_part = [loadings_of(part.runs, part.key, part.query).flatten() for part in parts]
        loadings = _mean_over_parts(parts, by_part).tolist()
    weights: list[list[float]] = []  # of every head on the edge, clean and counterfactual
    for side in ("clean", "counterfactual"):
        by_part = []
        for part in parts:
            layers = getattr(part.runs, side).cache.layers
            # Each (head,)
            by_layer = [
                layer.pattern_at(part.query)[:, :, part.key].mean(0) for layer in layers
            ]
            by_part.append(torch.cat(by_layer))
        weights.append(_mean_over_parts(parts, by_part).tolist())
    columns = zip(heads, effects, restored, loadings, *weights, strict=True)
    records = [HeadEffect(*column) for column in columns]
    return tuple(sorted(records, key=lambda each: (-round(each.effect, 5), each.head)))


def _mean_over_parts(
    parts: Sequence[Mapped], values: Sequence[Float[torch.Tensor, " thing"]]
) -> Float[torch.Tensor, " thing"]:
    """The mean over the pairs of all parts, given the mean of each part."""
    if len(parts) == 1:
        return values[0]
    counts = [len(part.runs.pairs) for part in parts]
    return sum(count * value for count, value in zip(counts, values, strict=True)) / sum(counts)  # type: ignore[return-value]


def _controls(parts: Sequence[Mapped], mapping: Mapping, share: float, seed: int) -> Controls:
    query = mapping.query
    runs = parts[0].runs
    carriers = mapping.carriers(share)
    others = [head for head in runs.heads if head not in carriers]
    size = min(len(carriers), len(others))
    draws = DRAWS if size else 0
    draw = random.Random(f"random heads/{seed}")
    sets = [draw.sample(others, size) for _ in range(draws)]
    *of_random, of_others = _means(effects_over(parts, [*sets, others]))
    of_random.sort()
    of_keys = [mapping_row(runs.heads, other_key, query) for other_key in range(query + 1)]
    return Controls(
        random_mean=sum(of_random) / draws if draws else 0.0,
        random_p95=of_random[int(0.95 * (draws - 1))] if draws else 0.0,
        random_draws=draws,
        key_totals=tuple(_means(runs.effects(of_keys))),
        sufficiency=1 - of_others / mapping.total if carriers else 0.0,
        identity=max(part.runs.identity(part.row(runs.heads)) for part in parts),
        share=share,
        random_pool=len(others),
        random_size=size,
    )


# Sides of heads


def tells_sides(runs: Runs) -> bool:
    """Whether query, key and value can be patched separately: always on the fast path, on the plain path
    where edits of attention reach the logits."""
    return runs.layout is not None or runs.model.edits_attention


def side_wire(side: Side, head: Head, key: int | None, query: int) -> Wire:
    """The whole of one side, as a wire from everything below; without a key, all keys of the query."""
    reader = Reader(head.layer, side, head.index)
    return Wire(ALL, reader, query) if side == "query" else Wire(ALL, reader, key, query)


def _sides_over(parts: Sequence[Mapped], heads: Sequence[Head]) -> tuple[SideEffects, ...]:
    """The sides of each head, averaged over the pairs of all parts. Knockout shuts an edge, of which there are
    no sides; nor are they measured without some heads."""
    runs = parts[0].runs
    if runs.absent or runs.ablation.kind not in DIRECTIONS_OF_WIRES:
        return ()
    measured = [side_effects(part.runs, heads, part.key, part.query) for part in parts]
    if len(parts) == 1 or not measured[0]:
        return measured[0]
    sides = []
    for of_head in zip(*measured, strict=True):
        numbers = [torch.tensor(astuple(side)[1:], dtype=torch.float64) for side in of_head]
        sides.append(SideEffects(of_head[0].head, *_mean_over_parts(parts, numbers).tolist()))
    return tuple(sides)


def side_effects(
    runs: Runs, heads: Sequence[Head], key: int, query: int
) -> tuple[SideEffects, ...]:
    """The sides of each head on the edge key → query, averaged over the pairs."""
    if not heads or not tells_sides(runs):
        return ()
    wires = [side_wire(side, head, key, query) for head in heads for side in SIDES]
    effects, weights = wire_effects(runs, wires, watch=(key, query))  # both (wire, pair)
    effects_of = effects.mean(1).unflatten(0, (-1, 3)).tolist()  # (head, side)
    weights_of = weights.mean(1).unflatten(0, (-1, 3)).tolist()
    patterns = pattern_effects(runs, heads, key, query)
    sides = []
    for number, head in enumerate(heads):
        of_query, of_key, of_value = effects_of[number]
        with_query, with_key, _ = weights_of[number]
        sides.append(
            SideEffects(
                head, of_query, of_key, of_value, patterns[number], with_query, with_key
            )
        )
    return tuple(sides)


@torch.inference_mode()
def pattern_effects(runs: Runs, heads: Sequence[Head], key: int, query: int) -> list[float]:
    """The effect of each head's weight on the edge being ablated (of `swap`: the counterfactual's), its value
    being that of the run in which it is measured."""
    base = runs.base(runs.ablation.kind).cache
    new = runs.replacement(runs.ablation.kind)
    outputs, rows = [], []
    for number, head in enumerate(heads):
        own = base.layers[head.layer]
        weight = own.pattern_at(query)[:, head.index, key]  # (input,)
        other = new.run.layers[head.layer].pattern_at(query)[:, head.index, key]
        # (input, d_head)
        moved = (new.reduce(other) - weight)[:, None] * own.value[:, head.index, key]
        outputs.append(own.z[:, query, head.index] + moved)
        rows.append(Row((Change(head.layer, query, "head", head.index, given=number),)))
    return _means(runs.effects(rows, given={"head": torch.stack(outputs, 1)}))


# Spans


def span_of(
    runs: Runs,
    *positions: int,
    label: str | None = None,
    text: str | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Span:
    """The span of some positions, from the pair itself where its difference is or passes there, else from a
    counterfactual of its own: `text`, or without it noise on the embedding there."""
    pair = runs.pairs[0]
    if label is None:
        word = pair.clean.words[positions[0]]
        label = word.strip() or repr(word)
    if text is not None:
        own = _pair_with_text(runs, text)
    else:
        from_pair = measure_span(runs, label, positions, progress=progress)
        if from_pair.effect >= CARRIES or set(pair.differs_at) == set(positions):
            return from_pair
        draws = _MEMORY // (2 * run_bytes(runs.model, runs.length))
        if draws == 0:  # not even one noisy run fits into memory
            return from_pair
        own = Pair(
            pair.clean, Noise(positions, draws=min(draws, NOISE_DRAWS), seed=seed), pair.metric
        )
    own_runs = prepare(runs.model, [own], smallest_gap=0.0)
    return measure_span(own_runs, label, positions, unit=float(runs.gap[0]), progress=progress)


def _pair_with_text(runs: Runs, text: str) -> Pair | Question:
    """The clean prompt with another text as its counterfactual."""
    pair = runs.pairs[0]
    if pair.metric.kind == "logit_diff":  # the text has a prediction, and so a foil, of its own
        return to_question(runs.model, pair.clean.text, QuestionSpec(text))
    other = to_prompt(runs.model, text).followed_by(runs.model, pair.metric.sequence[:-1])
    return Pair(pair.clean, other, pair.metric)


def measure_span(
    runs: Runs,
    label: str,
    positions: Sequence[int],
    *,
    unit: float | None = None,
    progress: Progress = silent,
) -> Span:
    """The layers that hold and build some positions, from the pairs of `runs`. Effects are shares of their
    own gap, or of `unit`."""
    layers = runs.model.n_layers
    rows = [Row(())]  # nothing is replaced
    rows += [Row.of_residual(layer, positions) for layer in range(layers + 1)]
    rows += [Row.of_writes(layer, positions) for layer in range(layers)]
    at_once = len(rows) if runs.length <= SHORT else ROWS_OF_LONG
    measured = measure_rows(runs, rows, at_once=at_once, progress=progress)
    values = runs.mean_over_draws(measured).double()  # (pair, row)
    gap = runs.gap.double()
    units = gap if unit is None else torch.full_like(gap, unit)
    change = values[:, :1] - values[:, 1:]
    effects = (change / units[:, None]).mean(0).tolist()
    residual = effects[: layers + 1]
    writes = effects[layers + 1 :]
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
    runs: Runs, positions: Sequence[int], *, seed: int, progress: Progress = silent
) -> list[int]:
    """The positions where noise moves the metric by at least 0.05 of the pair's gap.

    A long prompt gets one draw of noise for each token. In a very long one no token is tried, since each
    costs a run of its own.
    """
    if runs.length > MOST_NOISED:
        return []
    draws = NOISE_DRAWS if runs.length <= SHORT else 1
    smallest = CARRIES * abs(float(runs.gap[0]))
    matter: list[int] = []
    for first in range(0, len(positions), NOISED_AT_ONCE):
        part = positions[first : first + NOISED_AT_ONCE]
        gaps = gaps_of_noise(runs, part, draws=draws, seed=seed)
        matter += [
            position for position, gap in zip(part, gaps, strict=True) if abs(gap) >= smallest
        ]
        progress("tokens", first + len(part), len(positions))
    return matter
