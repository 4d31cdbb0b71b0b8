"""Run the model with some of its messages changed, and read the metric: exact, and cheaper than a gradient.

1. `prepare` runs a batch of pairs of equal length once clean and once counterfactual, and keeps both runs.
   They climb together with the family's and with the first rows that will be asked for. The layout of a
   model is read once and verified: a whole run of ours must give the model's own logits.
2. `Runs.effects` takes rows (sets of changes) and a direction, and measures all of them together: by the fast
   path where the model's layout is known, else by the plain path. `Runs.path` says which.
3. `search` looks among all of them: `select` adds heads one after the other, greedily; `scan` measures every
   edge; `loadings` is the linear reading of all edges.
4. `values_of_others`, `predictions_of_others` and `gaps_of_noise` put other words or noise into a prompt that
   was run: rows on top of its clean run.
5. A row that changes nothing (its gates are shut in both runs, or it lies before the first difference) costs
   nothing: exactly 0. How much memory runs take follows from their shapes, how long from the run that
   verified the layout; where that is much of what is free, or more than a minute, a warning says so.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int

from circuits.engine.fast import carry
from circuits.engine.layout import Layout, read_layout
from circuits.engine.runs import Early, Run, Runs, Way, draws_of, first_difference
from circuits.engine.streams import (
    DIRECTIONS,
    MOST_PATTERNS,
    Cache,
    Change,
    Direction,
    Given,
    NewValues,
    Row,
    WholeRun,
    check_rows,
    climb,
)
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair, Question

__all__ = ["DIRECTIONS", "Change", "Direction", "Row", "Runs", "prepare"]


BUDGET: Final = 32 * 2**20  # bytes of rows under way at once: a processor's cache, enough for tall products
SMALLEST_GAP: Final = 1e-3
_TOLERANCE: Final = 1e-3  # of the largest logit, between a whole run on the fast path and the model's own
_MUCH: Final = 2**30  # bytes that are worth a warning
_ROUNDINGS: Final = 4  # as many of the dtype's are allowed for, where that is more (fp16, bf16)
_LONG: Final = 60.0  # seconds that are worth a warning
_layouts: WeakKeyDictionary[Model, tuple[int, Layout | None, float]] = (
    WeakKeyDictionary()
)  # -> (longest prompt verified, layout, seconds that its run took)


def prepare(
    model: Model,
    pairs: Sequence[Pair | Question],
    *,
    rows: Sequence[Row] = (),
    family: Sequence[Pair] | None = None,
    path: Way | None = None,
    budget: int = BUDGET,
    smallest_gap: float = SMALLEST_GAP,
) -> Runs:
    """Run the pairs clean and counterfactual; `path` forces the fast or the plain path.

    A question is settled by what the model predicts in these runs: answer and foil, where the user named
    none. `rows` that will be asked for first climb behind the runs, which costs them no pass of their own.

        >>> runs = circuits.prepare(model, [pair])
        >>> row = circuits.Row.of_edges([circuits.Edge.parse("L5H1:5→8")])
        >>> f"{runs.effects([row]).item():.3f}"
        '0.076'
    """
    unsettled = [each.unsettled if isinstance(each, Question) else each for each in pairs]
    runs = _run(model, unsettled, rows, family, path, budget)
    settled = []
    for number, each in enumerate(pairs):
        settled.append(each if isinstance(each, Pair) else each.settle(model, *runs.predictions(number)))
    if len({pair.metric.kind for pair in settled}) > 1:
        raise PromptError("pairs that are run together have the same kind of metric")
    runs = replace(runs, pairs=tuple(settled))
    for pair, gap in zip(runs.pairs, runs.gap.tolist(), strict=True):
        if not abs(gap) >= smallest_gap:
            small = f"the counterfactual changes {pair.metric} by only {gap:.2g}, too little to divide by"
            raise PromptError(f"{small}; swap a word that matters more, or name another answer and foil")
    return runs


def bytes_of_run(model: Model, length: int) -> int:
    """What one side of one input takes, as it is kept: eight streams a layer, and the patterns if they are
    kept."""
    patterns = model.n_layers * model.n_heads * length**2
    streams = 8 * model.n_layers * length * model.d_model
    return 4 * (streams + (patterns if patterns <= MOST_PATTERNS else 0))


def warn_of_memory(model: Model, pairs: Sequence[Pair]) -> None:
    """Say beforehand that the runs will take more than half of the memory that is free."""
    needed = 2 * sum(map(draws_of, pairs)) * bytes_of_run(model, len(pairs[0]))
    if needed > _MUCH and (free := free_memory()) is not None and needed > free / 2:
        much = f"the runs of {len(pairs[0])} tokens will take {needed / 1e9:.1f} GB of {free / 1e9:.1f} free"
        cheaper = "a shorter prompt, fewer pairs, or a swap instead of noise takes less"
        warnings.warn(f"{much}; {cheaper}", stacklevel=4)


def warn_of_time(model: Model, length: int, inputs: int) -> None:
    """Say beforehand that the runs will take more than a minute, by the run that verified the layout."""
    longest, _, seconds = _layouts.get(model, (length, None, 0.0))
    needed = 2 * inputs * seconds * length / longest
    if needed > _LONG:
        much = f"the runs of {length} tokens will take about {needed / 60:.0f} minutes before any answer"
        cheaper = "a shorter prompt, fewer pairs, or a swap instead of noise takes less"
        warnings.warn(f"{much}; {cheaper}", stacklevel=4)


def free_memory() -> int | None:
    """Bytes that a process can still have; None where the system does not say."""
    table = Path("/proc/meminfo")
    if not table.exists():
        return None
    lines = (line.split() for line in table.read_text().splitlines())
    return next((1024 * int(line[1]) for line in lines if line[0] == "MemAvailable:"), None)


@torch.inference_mode()
def _run(
    model: Model,
    pairs: Sequence[Pair],
    rows: Sequence[Row],
    family: Sequence[Pair] | None,
    path: Way | None,
    budget: int,
) -> Runs:
    if not pairs:
        raise PromptError("there is no pair to run")
    warn_of_memory(model, pairs)
    lengths = {len(pair) for pair in (*pairs, *(family or ()))}
    if len(lengths) > 1:
        counts = f"pairs that are run together have the same number of tokens; these have {sorted(lengths)}"
        raise PromptError(f"{counts}: run each length by itself")
    inputs = [pair for pair in pairs for _ in range(draws_of(pair))]
    tokens = _stack([pair.clean.tokens for pair in inputs], model)
    others = [p.clean if isinstance(p.counterfactual, Noise) else p.counterfactual for p in inputs]
    sides = (tokens, None), (_stack([other.tokens for other in others], model), _noise(model, pairs))
    tails = {pair.metric.tail for pair in pairs}
    if len(tails) > 1:
        raise PromptError("pairs that are run together have answers of the same number of tokens")
    (tail,) = tails
    relatives = None if family is None else _stack([pair.clean.tokens for pair in family], model)
    layout = None if path == "plain" else _layout(model, tokens[:1])
    warn_of_time(model, len(pairs[0]), len(inputs))
    if path == "fast" and layout is None:
        raise PromptError(f"the fast path does not know the layout of {model.name}; take the plain path")
    if layout is None:
        from circuits.engine import plain

        clean, other = (
            Run(fed, noise, *plain.run(model, fed, noise, tail=tail), tail) for fed, noise in sides
        )
        means = None if relatives is None else plain.run(model, relatives, None)[0]
        return Runs(model, tuple(pairs), clean, other, means, layout, budget)
    begun = [(fed, noise, _embedded(layout, fed, noise)) for fed, noise in sides]
    clean, other = (Run(*each, layout.logits, tail) for each in begun)
    means = None if relatives is None else _embedded(layout, relatives, None)
    climbing = [WholeRun(layout, clean.cache, tail=tail)]
    start = first_difference(pairs)
    climbing.append(WholeRun(layout, other.cache, start, clean.cache, tail=tail))
    climbing += [] if means is None else [WholeRun(layout, means)]
    runs = Runs(model, tuple(pairs), clean, other, means, layout, budget)
    check_rows(rows, direction="swap", **runs.sizes)
    early = list(dict.fromkeys(row for row in runs.reaching(rows) if row.changes))
    how = {"budget": budget, "behind": climbing, "tail": tail}
    top = carry(layout, clean.cache, NewValues(other.cache), early, **how)
    return replace(runs, early=Early({row: number for number, row in enumerate(early)}, top))


def _embedded(layout: Layout, tokens: torch.Tensor, noise: torch.Tensor | None) -> Cache:
    """A run that has not begun."""
    embedded = layout.embed(tokens)
    return Cache((), embedded if noise is None else embedded + noise)


def _stack(rows: Sequence[Sequence[int]], model: Model) -> Int[torch.Tensor, "input pos"]:
    return torch.tensor(rows, device=model.device)


def _layout(model: Model, probe: Int[torch.Tensor, "1 pos"]) -> Layout | None:
    """The model's layout, verified on a prompt at least this long; None where its runs are not the model's
    own."""
    longest, layout, _ = _layouts.get(model, (0, None, 0.0))
    if probe.shape[1] > longest and (longest == 0 or layout is not None):
        layout, seconds = _verified(model, probe)
        _layouts[model] = (probe.shape[1], layout, seconds)
    return layout


def _verified(model: Model, probe: Int[torch.Tensor, "1 pos"]) -> tuple[Layout | None, float]:
    """The layout, if its run is the model's own, and the seconds that the run took."""
    try:
        layout = read_layout(model)
        run = _embedded(layout, probe, None)
        start = time.monotonic()
        climb(layout, [WholeRun(layout, run)])
        seconds = time.monotonic() - start
        ours, own = layout.logits(run.final[:, -1]), model.logits(probe)[:, -1]
    except (AttributeError, TypeError, RuntimeError):  # a part that is missing, or of another shape
        return None, 0.0
    tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(own.dtype).eps)
    same = torch.allclose(ours, own, rtol=0, atol=tolerance * float(own.abs().max()))
    return (layout if same else None), seconds


def _noise(model: Model, pairs: Sequence[Pair]) -> Float[torch.Tensor, "input pos d_model"] | None:
    """The noise on the embeddings of every input; none where no pair has any."""
    if not any(isinstance(pair.counterfactual, Noise) for pair in pairs):
        return None
    return torch.cat([noise_of(model, pair) for pair in pairs])


def noise_of(model: Model, pair: Pair) -> Float[torch.Tensor, "draw pos d_model"]:
    """Seeded noise on the embeddings, in standard deviations of the embedding matrix; nothing where the pair
    has a text."""
    embedding = model.bridge.W_E.detach()
    scale, width = float(embedding.std()) * model.embedding_scale, embedding.shape[-1]
    noise = torch.zeros(draws_of(pair), len(pair), width)
    if isinstance(pair.counterfactual, Noise):
        generator = torch.Generator().manual_seed(pair.counterfactual.seed)
        positions = list(pair.counterfactual.positions)
        random = torch.randn(len(noise), len(positions), width, generator=generator)
        noise[:, positions] = random * scale * pair.counterfactual.scale
    return noise.to(model.device, model.dtype)


# Other inputs, on top of runs that were made


@torch.inference_mode()
def values_of_others(
    runs: Runs, tokens: Int[torch.Tensor, "other pos"], positions: Sequence[int]
) -> Float[torch.Tensor, " other"]:
    """The first pair's metric on prompts that differ from its clean prompt at these positions alone."""
    return torch.cat([_values(runs, part, tuple(positions)) for part in _parts(runs, tokens)])


@torch.inference_mode()
def predictions_of_others(
    runs: Runs, tokens: Int[torch.Tensor, "other pos"], positions: Sequence[int]
) -> Float[torch.Tensor, "other vocab"]:
    """The logits at the last position of such prompts."""
    parts = _parts(runs, tokens)
    if runs.layout is None:
        return torch.cat([runs.model.logits(part)[:, -1] for part in parts])
    top = torch.cat([_top(runs.layout, runs, part, positions)[:, 0, -1] for part in parts])
    return runs.layout.logits(top)


def _parts(runs: Runs, tokens: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """As many prompts at a time as the budget holds."""
    numbers = runs.length * (16 * runs.model.d_model + 3 * runs.model.n_heads * runs.length)
    numbers += 0 if runs.layout is not None else runs.length * runs.model.vocab_size
    return tokens.to(runs.model.device).split(max(1, runs.budget // (4 * numbers)))


def _values(runs: Runs, tokens: torch.Tensor, positions: tuple[int, ...]) -> torch.Tensor:
    """A pair may have several inputs, one a draw of noise; here each other prompt is one."""
    pair = Pair(runs.pairs[0].clean, Noise(positions, draws=len(tokens)), runs.metric)
    clean = _expanded(runs.clean, len(tokens))
    several = replace(runs, pairs=(pair,), clean=clean, counterfactual=clean, family=None, early=None)
    if runs.layout is None:
        return several.read(runs.model.logits(tokens)[:, None, -runs.metric.tail :])[:, 0]
    return several.read_stream(_top(runs.layout, runs, tokens, positions))[:, 0]


def _top(
    layout: Layout, runs: Runs, tokens: torch.Tensor, positions: Sequence[int]
) -> Float[torch.Tensor, "other 1 read d_model"]:
    """The stream above the last block; before the first of the positions it is the clean run's."""
    new, row = NewValues(Cache((), layout.embed(tokens))), Row.of_residual(0, positions)
    base = _expanded(runs.clean.cache, len(tokens))
    return carry(layout, base, new, [row], budget=runs.budget, tail=runs.metric.tail)


def gaps_of_noise(runs: Runs, positions: Sequence[int], *, draws: int, seed: int) -> list[float]:
    """How far noise at each of these positions alone moves the first pair's metric: the mean of its draws."""
    if not positions:
        return []
    one, first = runs.only([0]), positions[0]
    noisy = Pair(runs.pairs[0].clean, Noise((first,), draws=draws, seed=seed), runs.metric)
    noise = noise_of(runs.model, noisy)[:, first]  # the same at every position
    embedded = one.clean.cache.layers[0].pre[:, list(positions), None]
    rows = [
        Row((Change(0, position, "residual", given=number),))
        for number, position in enumerate(position for position in positions for _ in range(draws))
    ]
    given: Given = {"residual": (embedded + noise).flatten(1, 2)}
    # Of `swap` what comes before the pair's difference would be left out, and noise there is none of that.
    moved = one.measure([Row(()), *rows], direction="zero", given=given)
    values = one.mean_over_draws(moved)[0].double()
    return (values[0] - values[1:].unflatten(0, (-1, draws)).mean(1)).tolist()


def _expanded(stored: Any, count: int) -> Any:
    """A record of tensors whose first axis is the input: the first, seen so many times, without a copy."""
    if isinstance(stored, torch.Tensor):
        return stored[:1].expand(count, *stored.shape[1:])
    if isinstance(stored, tuple):
        return tuple(_expanded(part, count) for part in stored)
    if is_dataclass(stored) and not isinstance(stored, type):
        return replace(stored, **{f.name: _expanded(getattr(stored, f.name), count) for f in fields(stored)})
    return stored
