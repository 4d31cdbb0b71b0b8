"""`path`: the effect of single paths, from named senders to named receivers.

1. A path is a wire (`engine.wires`): in one run the receiver alone sees what the sender writes in the other
   run, and everything above the receiver is computed anew. This is path patching with direct paths: nothing
   between sender and receiver changes.
2. All paths of a call are measured together. The answer is a matrix of senders × receivers.
3. In a family of several lengths a position is found in each prompt, by its role, token or index.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from circuits.engine import Direction, Runs, to_ablation
from circuits.engine.wires import DIRECTIONS_OF_WIRES, check_wires, wire_effects
from circuits.errors import EdgeError, as_listed, names_its_keywords
from circuits.instruments.grids import Axis, Paths, values_on
from circuits.instruments.patch import measured_pairs
from circuits.instruments.path_names import Path, parse_paths
from circuits.models.load import as_model
from circuits.prompts import (
    Answer,
    MetricFunction,
    MetricKind,
    ProbeMetric,
    QuestionSpec,
    Swap,
)
from circuits.results import Progress, sha256_of, silent
from circuits.tracing.asked import Asked
from circuits.tracing.inputs import run_asked, to_asked
from circuits.tracing.measure import tells_sides
from circuits.tracing.parts import Position


@names_its_keywords
def path(
    model: Any,
    text: Any,
    paths: str | Sequence[str],
    *,
    swap: Swap | None = None,
    counterfactual: str | Sequence[str] | None = None,
    noise_at: Sequence[Position] | None = None,
    roles: Mapping[str, Position] | None = None,
    answer: Answer | None = None,
    foil: Answer | None = None,
    metric: MetricKind | MetricFunction | ProbeMetric | None = None,
    ablation: Direction = "swap",
    reference: Sequence[str] | None = None,
    seed: int = 0,
    progress: Progress = silent,
) -> Paths:
    """The effect of each path from a sender to a receiver: `"L4H4@13 → L5H1.query@13"`.

    Several senders and receivers, divided by commas, make a matrix; so does a list of paths. Names of
    TransformerLens (`blocks.4.attn.hook_z[4]`) and of EAP (`a4.h4`, `a5.h1<q>`, `m3`) are read, too. Without
    positions a path is that of all positions together. `text`, `roles`, `ablation` and `reference` are what
    `patch` takes; positions are indices, tokens or roles.

        >>> paths = circuits.path(model, TEXT, "M0@5 → L5H1.value@8", swap={"large": "hot"})
        >>> f"{paths.effect():.3f}"
        '0.052'
    """
    model = as_model(model)
    spec = QuestionSpec(swap=swap, answer=answer, foil=foil, metric=metric, seed=seed)
    asked = to_asked(
        model, text, spec, counterfactual=counterfactual, noise_at=noise_at, roles=roles
    )
    listed = as_listed(paths)
    if not listed:
        raise EdgeError("there is no path; write one as L4H4@13 → L5H1.query@13")
    for each in listed:  # refuses a misspelt name before anything runs
        parse_paths(each, layers=model.n_layers, position_of=asked[0].position)
    chosen = to_ablation(model, ablation, reference, allowed=DIRECTIONS_OF_WIRES, of="a path")
    batches = run_asked(model, asked, ablation=chosen)
    found = measure_paths(batches, listed, seed=seed, progress=progress)
    return replace(found, weak=len(asked) - len(found.pairs))


def measure_paths(
    batches: Sequence[tuple[Runs, Asked]],
    listed: Sequence[str],
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Paths:
    """Every path that these texts name, on runs that were already made, each with a question that names their
    positions; of several paths in a text those that cannot be are left out. Labels are those of the first."""
    runs = batches[0][0]
    if not tells_sides(runs):
        raise EdgeError(f"paths cannot be patched on the plain path: {runs.model.no_scores}")
    named: list[Path] = []  # of the first batch
    effects: list[np.ndarray] = []  # of each batch, (path, pair)

    def report(done: int, total: int) -> None:
        progress("paths", done, total)

    for some, asked in batches:
        own = _paths_in(some, asked, listed)
        named = named or own
        if len(own) != len(named):
            raise EdgeError("a path is possible in some of these prompts and not in others")
        measured, _ = wire_effects(some, [each.wire for each in own], progress=report)
        effects.append(measured.numpy())
    axes, cells = _matrix(named, np.concatenate(effects, axis=1))
    arrays = {"values": values_on(axes, cells)}
    return Paths(
        **vars(measured_pairs([some for some, _ in batches])),
        wires=tuple(str(each.wire) for each in named),
        axes=axes,
        weak=0,
        seed=seed,
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


def _paths_in(runs: Runs, asked: Asked, listed: Sequence[str]) -> list[Path]:
    """The paths that these texts name, with the positions that the names have in these prompts."""
    named = []
    for text in listed:
        group = parse_paths(text, layers=runs.model.n_layers, position_of=asked.position)
        named += _possible(runs, group)
    return named


def _possible(runs: Runs, group: Sequence[Path]) -> list[Path]:
    """The paths that there can be in this model and prompt; an error where there is none."""
    kept: list[Path] = []
    first_error: EdgeError | None = None
    for each in group:
        try:
            check_wires(runs, [each.wire], runs.ablation.kind)
        except EdgeError as error:
            first_error = first_error or error
        else:
            kept.append(each)
    if not kept and first_error is not None:
        raise first_error
    return kept


def _matrix(paths: Sequence[Path], effects: np.ndarray) -> tuple[tuple[Axis, ...], np.ndarray]:
    """The axes sender and receiver, and the effects (cell, pair); NaN where there is no path."""
    senders = tuple(dict.fromkeys(str(each.sender) for each in paths))
    receivers = tuple(dict.fromkeys(str(each.receiver) for each in paths))
    cells = np.full((len(senders) * len(receivers), effects.shape[1]), np.nan)
    for each, effect in zip(paths, effects, strict=True):
        row = senders.index(str(each.sender))
        column = receivers.index(str(each.receiver))
        cells[row * len(receivers) + column] = effect
    return (Axis("sender", senders), Axis("receiver", receivers)), cells
