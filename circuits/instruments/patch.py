"""`patch`: what every layer and position, or every head, is worth, one site at a time.

1. One pair, or several of equal length, are run clean and counterfactual.
2. A row for each place changes one site there (`engine.sites`). All rows are measured in one batch.
3. The answer is a map with named axes: layer × position for the residual stream and for what attention and
   MLPs write; layer × head for heads, their queries, keys, values and patterns.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from circuits.engine import Ablation, Direction, Runs, to_ablation
from circuits.engine.runs import Way
from circuits.engine.sites import (
    ABLATIONS,
    BY_POSITION,
    PATCH_SITES,
    PatchSite,
    computed_rows,
    head_rows,
    layer_rows,
)
from circuits.errors import EdgeError, PromptError, as_listed, names_its_keywords, shortened
from circuits.instruments.grids import Axis, Patching, position_labels, values_on
from circuits.models.load import as_model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    Pair,
    ProbeMetric,
    QuestionSpec,
    Swap,
)
from circuits.results import Progress, sha256_of, silent
from circuits.tracing.asked import Asked
from circuits.tracing.inputs import run_asked, to_asked
from circuits.tracing.judge import judge_each, together
from circuits.tracing.measure import measured_model, tells_sides
from circuits.tracing.parts import FamilyControl, MeasuredModel, Position, QuestionControl
from circuits.tracing.trace import package_versions
from circuits.tracing.trust import notes_on


@names_its_keywords
def patch(
    model: Any,
    text: Any,
    sites: PatchSite = "residual",
    *,
    swap: Swap | None = None,
    counterfactual: str | Sequence[str] | None = None,
    noise_at: Sequence[Position] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    positions: Sequence[Position] | None = None,
    roles: Mapping[str, Position] | None = None,
    each_position: bool = False,
    ablation: Direction = "swap",
    reference: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Patching:
    """The effect of patching one kind of site at every place.

    `residual` (the stream at the input of each layer, and above the last), `attention` and `mlp` (what they
    write) are maps of layer × position. `head`, `query`, `key`, `value` and `pattern` are maps of layer ×
    head, patched at all `positions` together, or with `each_position` at each of them.

    `text` is a prompt, a pair, `(text, counterfactual)`, or a family (a list of these, a pandas table, a task);
    effects are then means, and `per_pair` has those of every pair. Prompts of different lengths share the
    positions that `roles` names (`{"END": -1}`, or the roles of each line). `ablation` is that of `trace`, but
    for "knockout": "restore" puts clean values into the counterfactual run, as TransformerLens does.
    `noise_at` makes noise on these tokens the counterfactual.

        >>> patched = circuits.patch(model, TEXT, "head", swap={"large": "hot"})
        >>> patched.strongest(1)[0][0]
        ('5', '1')
        >>> patched.figure().axes[0].get_xlabel()
        'head'
    """
    if not isinstance(sites, str) or sites not in PATCH_SITES:
        raise PromptError(f"no sites {shortened(sites)}; there are {', '.join(PATCH_SITES)}")
    if each_position and sites in BY_POSITION:
        raise PromptError(
            f"each {sites} site is at a position already; leave each_position out"
        )
    model = as_model(model)
    spec = QuestionSpec(swap=swap, answer=answer, foil=foil, metric=metric, seed=seed)
    asked = to_asked(
        model, text, spec, counterfactual=counterfactual, noise_at=noise_at, roles=roles
    )
    chosen = to_ablation(model, ablation, reference, allowed=ABLATIONS, of=f"{sites} sites")
    progress("patching", 0, 1)
    batches = run_asked(model, asked, ablation=chosen)
    names = positions
    if len(batches) > 1 and names is None and (each_position or sites in BY_POSITION):
        names = _shared_roles(asked)
    placed = []
    for runs, first in batches:
        own = positions_of(runs, names, dict(first.roles))
        if len(batches) == 1:
            own = tuple(sorted(set(own)))
        placed.append((runs, own))  # of several batches the order is that of the names
    patched = patch_batches(placed, sites, names, each_position=each_position, seed=seed)
    progress("patching", 1, 1)
    return replace(patched, weak=len(asked) - len(patched.pairs))


def _shared_roles(asked: Sequence[Asked]) -> list[str]:
    """The names of positions that all prompts have, in the order of the first."""
    shared = [name for name, _ in asked[0].roles]
    for each in asked:
        own = dict(each.roles)
        shared = [name for name in shared if name in own]
    if not shared:
        lengths = sorted({len(each) for each in asked})
        differ = f"these prompts have {', '.join(map(str, lengths))} tokens"
        raise PromptError(
            f"{differ} and no positions in common; name some by roles=, such as "
            "{'END': -1}, or map heads"
        )
    return shared


def patch_runs(
    runs: Runs,
    sites: PatchSite,
    positions: tuple[int, ...],
    *,
    each_position: bool = False,
    seed: int = 0,
) -> Patching:
    """The map of runs that were already made, by their ablation."""
    batches = [(runs, positions)]
    return patch_batches(batches, sites, None, each_position=each_position, seed=seed)


def patch_batches(
    batches: Sequence[tuple[Runs, tuple[int, ...]]],
    sites: PatchSite,
    names: Sequence[Position] | None,
    *,
    each_position: bool = False,
    seed: int = 0,
) -> Patching:
    """The map over pairs of one length or of several, each batch with its positions. In several the positions
    are called by their `names`."""
    values = []
    axes: tuple[Axis, ...] = ()
    for runs, positions in batches:
        axes, effects = measure(runs, sites, positions, each_position=each_position)
        values.append(values_on(axes, effects))
    if len(batches) > 1:
        axes = tuple(_named(axis, names) for axis in axes)
    arrays = {"values": np.concatenate(values)}
    return Patching(
        **vars(measured_pairs([runs for runs, _ in batches])),
        sites=sites,
        positions=batches[0][1],
        axes=axes,
        weak=0,
        seed=seed,
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


@dataclass(frozen=True)
class MeasuredPairs:
    """The fields of a `Patching`, and of a `Paths`, that depend on its runs alone, by their names there."""

    source: MeasuredModel
    pairs: tuple[Pair, ...]
    ablation: Ablation
    clean_values: tuple[float, ...]
    counterfactual_values: tuple[float, ...]
    question: FamilyControl
    notes: tuple[str, ...]
    engine: Way
    versions: tuple[tuple[str, str], ...]


def measured_pairs(batches: Sequence[Runs]) -> MeasuredPairs:
    """The pairs of all batches, the metric on both sides of each, and the verdict on their question."""
    pairs: list[Pair] = []
    clean: list[float] = []
    other: list[float] = []
    judged: list[QuestionControl] = []
    for runs in batches:
        pairs += runs.pairs
        clean += runs.values(runs.clean).tolist()
        other += runs.values(runs.counterfactual).tolist()
        judged += judge_each(runs)
    question = together(judged)
    first = batches[0]
    return MeasuredPairs(
        source=measured_model(first),
        pairs=tuple(pairs),
        ablation=first.ablation,
        clean_values=tuple(clean),
        counterfactual_values=tuple(other),
        question=question,
        notes=notes_on(first, question),
        engine=first.path,
        versions=package_versions(),
    )


def _named(axis: Axis, names: Sequence[Position] | None) -> Axis:
    """An axis of positions with the names that prompts of all lengths share."""
    if axis.name != "position" or names is None:
        return axis
    return Axis(axis.name, tuple(map(str, names)))


def positions_of(
    runs: Runs, names: Sequence[Position] | None, roles: dict[str, int] | None = None
) -> tuple[int, ...]:
    """The positions of these names, which are roles, tokens or indices, in the first prompt; by default all."""
    if names is None:
        return tuple(range(runs.length))
    listed: list[Position] = as_listed(names)
    if not listed:
        raise PromptError("positions is a list of indices or tokens, such as [5, -1]")
    prompt = runs.pairs[0].clean
    return tuple(prompt.position(name, roles) for name in listed)


def measure(
    runs: Runs,
    sites: PatchSite,
    positions: tuple[int, ...],
    *,
    each_position: bool,
) -> tuple[tuple[Axis, ...], torch.Tensor]:
    """The axes of the map, and its effects (cell, pair)."""
    direction = runs.ablation.kind
    layers = runs.model.n_layers
    prompts = [pair.clean for pair in runs.pairs]
    at = Axis("position", position_labels(prompts, positions))
    if sites in BY_POSITION:
        rows = layer_rows(runs, sites, positions, direction)  # type: ignore[arg-type]
        names = tuple(map(str, range(len(rows) // len(positions))))
        return (Axis("layer", names), at), _cells(runs.effects(rows))
    heads = Axis("head", tuple(map(str, range(runs.model.n_heads))))
    axes = (Axis("layer", tuple(map(str, range(layers)))), heads)
    groups = [(position,) for position in positions] if each_position else [positions]
    if each_position:
        axes = (*axes, at)
    if sites == "head":
        rows = head_rows(runs, groups)
        return axes, _cells(runs.effects(rows))
    if sites != "pattern" and not tells_sides(runs):
        raise EdgeError(
            f"queries, keys and values cannot be patched on the plain path: {runs.model.no_scores}"
        )
    # All layers in one batch; but where each position is patched by itself, a layer at a time, as its heads'
    # new outputs are values that are kept until the batch has run.
    batches = [range(layers)]
    if each_position:
        batches = [range(layer, layer + 1) for layer in range(layers)]
    parts = []
    for some in batches:
        computed = computed_rows(runs, sites, groups, direction, some)
        parts.append(runs.effects(computed.rows, given=computed.given))
    return axes, _cells(torch.cat(parts))


def _cells(effects: torch.Tensor) -> torch.Tensor:
    return effects.double().cpu()
