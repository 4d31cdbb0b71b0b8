"""Run pairs clean and counterfactual: by themselves, or in one pass with the first rows that are asked about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int

from circuits.engine import plain
from circuits.engine.cache import Cache
from circuits.engine.climb import Traveller, climb, travel
from circuits.engine.layout import Layout
from circuits.engine.reading import read_layout
from circuits.engine.rows import Direction, Row
from circuits.engine.runs import BUDGET, SMALLEST_GAP, Path, Run, Runs, draws_of, first_difference
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair, Question

_layouts: WeakKeyDictionary[Model, tuple[int, Layout | None]] = (
    WeakKeyDictionary()
)  # model -> (longest prompt verified, layout)


def prepare(
    model: Model,
    pairs: Sequence[Pair | Question],
    *,
    family: Sequence[Pair] | None = None,
    path: Path | None = None,
    budget: int = BUDGET,
    smallest_gap: float = SMALLEST_GAP,
) -> Runs:
    """Run the pairs clean and counterfactual; `path` forces the fast or the plain path. Questions are settled by what is predicted."""
    runs, travellers = _begin(
        model,
        [each.unsettled if isinstance(each, Question) else each for each in pairs],
        family,
        path,
        budget,
    )
    if any(isinstance(each, Question) for each in pairs):
        runs = settled(_finished(runs, travellers, 0.0), pairs)
        travellers = []
    return _finished(runs, travellers, smallest_gap)


def settled(runs: Runs, questions: Sequence[Pair | Question]) -> Runs:
    """The same runs with the metrics that their own predictions settle."""
    pairs = []
    for number, question in enumerate(questions):
        pairs.append(
            question.settle(runs.model, *runs.predictions(number))
            if isinstance(question, Question)
            else question
        )
    return replace(runs, pairs=tuple(pairs))


def prepare_and_measure(
    model: Model,
    pairs: Sequence[Pair],
    rows: Sequence[Row],
    *,
    direction: Direction = "swap",
    family: Sequence[Pair] | None = None,
    path: Path | None = None,
    budget: int = BUDGET,
    smallest_gap: float = SMALLEST_GAP,
) -> tuple[Runs, Float[torch.Tensor, "row pair"]]:
    """`prepare`, and the `effects` of these rows: in one pass where that is possible, so that each matrix is read once for all."""
    runs, travellers = _begin(model, pairs, family, path, budget)
    if model.gated:  # which rows are live shows when both runs are there
        runs, travellers = _finished(runs, travellers, smallest_gap), []
    effects = runs.effects(rows, direction=direction, along=travellers)
    return _finished(runs, [], smallest_gap), effects


@torch.inference_mode()
def _begin(
    model: Model, pairs: Sequence[Pair], family: Sequence[Pair] | None, path: Path | None, budget: int
) -> tuple[Runs, list[Traveller]]:
    """The runs, and on the fast path the travellers that will fill them."""
    if not pairs:
        raise PromptError("there is no pair to run")
    lengths = {len(pair) for pair in (*pairs, *(family or ()))}
    if len(lengths) > 1:
        raise PromptError(
            f"pairs that are run together have the same number of tokens; these have {sorted(lengths)}: run each length by itself"
        )
    if len({pair.metric.kind for pair in pairs}) > 1:
        raise PromptError("pairs that are run together have the same kind of metric")
    inputs = [pair for pair in pairs for _ in range(draws_of(pair))]
    tokens = _stack([pair.clean.tokens for pair in inputs], model)
    others = _stack(
        [
            (pair.clean if isinstance(pair.counterfactual, Noise) else pair.counterfactual).tokens
            for pair in inputs
        ],
        model,
    )
    layout = None if path == "plain" else _layout(model, tokens[:1])
    if path == "fast" and layout is None:
        raise PromptError(
            f"the fast path does not know the layout of {model.name}; leave path out, and the plain path is taken"
        )
    relatives = None if family is None else _stack([pair.clean.tokens for pair in family], model)
    sides = (tokens, None), (others, _noise(model, pairs))
    if layout is None:
        clean, other = (Run(into, noise, *plain.run(model, into, noise)) for into, noise in sides)
        kin = None if relatives is None else plain.run(model, relatives, None)[0]
        return Runs(model, tuple(pairs), clean, other, kin, layout, budget), []
    clean, other = (Run(into, noise, _embedded(layout, into, noise), layout.logits) for into, noise in sides)
    kin = None if relatives is None else _embedded(layout, relatives, None)
    travellers = [
        travel(layout, clean.cache),
        travel(layout, other.cache, start=first_difference(pairs), ahead=clean.cache),
        *([] if kin is None else [travel(layout, kin)]),
    ]
    return Runs(model, tuple(pairs), clean, other, kin, layout, budget), travellers


@torch.inference_mode()
def _finished(runs: Runs, travellers: Sequence[Traveller], smallest_gap: float) -> Runs:
    """The runs when all travellers have arrived, and their gaps are wide enough."""
    if runs.layout is not None:
        climb(runs.layout, travellers)
    for pair, gap in zip(runs.pairs, runs.gap.tolist(), strict=True):
        if not abs(gap) >= smallest_gap:
            raise PromptError(
                f"the counterfactual changes {pair.metric} by {gap:.2g} only, too little to divide by; "
                "swap a word that matters more, or name another answer and foil"
            )
    return runs


def _embedded(layout: Layout, tokens: torch.Tensor, noise: torch.Tensor | None) -> Cache:
    """A run that has not begun."""
    embedded = layout.embed(tokens)
    return Cache((), embedded if noise is None else embedded + noise)


def _stack(rows: Sequence[Sequence[int]], model: Model) -> Int[torch.Tensor, "input pos"]:
    return torch.tensor(rows, device=model.device)


def _layout(model: Model, probe: Int[torch.Tensor, "1 pos"]) -> Layout | None:
    """The model's layout, verified on a prompt at least this long."""
    longest, layout = _layouts.get(model, (0, None))
    if probe.shape[1] > longest and (longest == 0 or layout is not None):
        layout = read_layout(model, probe)
        _layouts[model] = (probe.shape[1], layout)
    return layout


def _noise(model: Model, pairs: Sequence[Pair]) -> Float[torch.Tensor, "input pos d_model"] | None:
    """Seeded noise on the embeddings, in standard deviations of the embedding matrix; nothing where a pair has a text."""
    if not any(isinstance(pair.counterfactual, Noise) for pair in pairs):
        return None
    scale = float(model.bridge.W_E.std())
    drawn = []
    for pair in pairs:
        noise = torch.zeros(draws_of(pair), len(pair), model.d_model)
        if isinstance(pair.counterfactual, Noise):
            chance = torch.Generator().manual_seed(pair.counterfactual.seed)
            at = list(pair.counterfactual.positions)
            noise[:, at] = (
                torch.randn(len(noise), len(at), model.d_model, generator=chance)
                * scale
                * pair.counterfactual.scale
            )
        drawn.append(noise)
    return torch.cat(drawn).to(model.device, model.dtype)
