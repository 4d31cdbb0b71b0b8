"""Measuring one mapping: which heads carry key → query, their sides, and the controls.

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
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch
from jaxtyping import Float

from circuits.components import ALL, SIDES, Head, Reader, Side, Wire
from circuits.engine import Direction, Row, Runs
from circuits.engine.loadings import loadings_of
from circuits.engine.rows import Change
from circuits.engine.selection import Mapped, effects_over, mapping_row, select_over
from circuits.engine.wires import DIRECTIONS_OF_WIRES, wire_effects
from circuits.errors import PromptError
from circuits.results import Progress, Watch, silent, unwatched
from circuits.tracing.batches import mean_over
from circuits.tracing.parts import (
    SHARE,
    Controls,
    HeadEffect,
    Mapping,
    MeasuredModel,
    SideEffects,
    Step,
)

DRAWS: Final = 100  # random sets of heads


def finite(value: float) -> float:
    """The value, or an error where it is infinite or not a number: JSON cannot hold that."""
    if not math.isfinite(value):
        raise PromptError(
            "the model gave a value that is not a finite number; check its weights and dtype"
        )
    return value


def both_values(batches: Sequence[Runs]) -> tuple[float, float]:
    """The mean metric of the pairs of all batches, clean and counterfactual."""
    clean = torch.cat([runs.values(runs.clean) for runs in batches])
    other = torch.cat([runs.values(runs.counterfactual) for runs in batches])
    return finite(float(clean.mean())), finite(float(other.mean()))


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


def _means(effects: Float[torch.Tensor, "row pair"]) -> list[float]:
    """The mean effect of each row over the pairs."""
    return effects.double().mean(1).tolist()


# Mappings


def effects_of_heads(
    parts: Sequence[Mapped], *, direction: Direction | None = None
) -> Float[torch.Tensor, "head_or_all pair"]:
    """The effect of each head on the mapping by itself, and last of all heads together."""
    heads = parts[0].runs.heads
    sets = [*([head] for head in heads), heads]
    return effects_over(parts, sets, direction=direction)


def measure_mapping(
    parts: Sequence[Mapped],
    *,
    share: float = SHARE,
    effects: Float[torch.Tensor, "head_or_all pair"] | None = None,
    controls: bool = True,
    seed: int = 0,
    progress: Progress = silent,
    watch: Watch[Mapping] = unwatched,
) -> Mapping:
    """Everything about one mapping, averaged over the pairs of all parts. Key and query of the record are those
    of the first part, and the control of other keys is measured there.

    `effects` are those of `effects_of_heads`, where the caller has them. `watch` is called with the mapping as
    far as it is measured: with its total, then with its heads.
    """
    key, query = parts[0].key, parts[0].query
    measured = effects_of_heads(parts) if effects is None else effects
    *singles, total = _means(measured)
    *restored, total_restored = _means(effects_of_heads(parts, direction="restore"))
    watch(Mapping(key, query, total, total_restored))

    def report(reached: float) -> None:
        progress("carriers", min(99, int(100 * reached)), 100)

    path = select_over(parts, effects=measured[:-1], totals=measured[-1], progress=report)
    mapping = Mapping(
        key=key,
        query=query,
        total=total,
        restore=total_restored,
        heads=_head_effects(parts, singles, restored),
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
        loadings = mean_over(parts, by_part).tolist()
    clean, other = [], []  # attention weights on the edge, (head,) in each part
    for part in parts:
        runs = part.runs
        clean.append(runs.clean.cache.weights_on_edge(part.key, part.query).mean(0))
        other.append(runs.counterfactual.cache.weights_on_edge(part.key, part.query).mean(0))
    clean_weights = mean_over(parts, clean).tolist()
    other_weights = mean_over(parts, other).tolist()
    records = []
    for number, head in enumerate(heads):
        records.append(
            HeadEffect(
                head=head,
                effect=effects[number],
                restore=restored[number],
                loading=loadings[number],
                weight=clean_weights[number],
                counterfactual_weight=other_weights[number],
            )
        )
    # Effects that are equal but for rounding are in the order of the heads.
    return tuple(sorted(records, key=lambda each: (-round(each.effect, 5), each.head)))


def _controls(parts: Sequence[Mapped], mapping: Mapping, share: float, seed: int) -> Controls:
    """Measure the controls of a mapping whose carriers are those that reach `share` of its total."""
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
    """The sides of each head, averaged over the pairs of all parts. They are left out for knockout, which shuts
    edges and has no sides, and in a model without some of its heads."""
    runs = parts[0].runs
    if runs.absent or runs.ablation.kind not in DIRECTIONS_OF_WIRES:
        return ()
    measured = [side_effects(part.runs, heads, part.key, part.query) for part in parts]
    if len(parts) == 1 or not measured[0]:
        return measured[0]
    sides = []
    for of_parts in zip(*measured, strict=True):  # one head's sides in each part
        means: dict[str, float] = {}
        for name in ("query", "key", "value", "pattern", "query_weight", "key_weight"):
            numbers = [
                torch.tensor(getattr(side, name), dtype=torch.float64) for side in of_parts
            ]
            means[name] = float(mean_over(parts, numbers))
        sides.append(SideEffects(of_parts[0].head, **means))
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
