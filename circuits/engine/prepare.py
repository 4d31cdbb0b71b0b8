"""Run a batch of pairs once clean and once counterfactual, and keep both runs.

1. The layout of a model is read once and verified: a whole run of ours must give the model's own logits.
   Otherwise the plain path measures.
2. The counterfactual run shares the positions before the first difference with the clean run.
3. Where the user named no answer and foil, the predictions of these two runs settle them.
4. How much memory the runs take follows from their shapes, and how long they take from the run that verified
   the layout. Where that is much, a warning says so before they start.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from typing import Final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int

from circuits.engine import plain
from circuits.engine.ablation import SWAP, Ablation
from circuits.engine.block import Stream
from circuits.engine.cache import Cache
from circuits.engine.layout import Layout, read_layout
from circuits.engine.memory import BUDGET, free_memory, plan_memory
from circuits.engine.runs import Run, Runs, Way, first_difference
from circuits.engine.whole import whole_run
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair, Prompt, Question

SMALLEST_GAP: Final = 1e-3
SHORT: Final = 32  # tokens up to which both sides run as one batch
# Of the largest logit, between a whole run of ours and the model's own.
_TOLERANCE: Final = 1e-3
_ROUNDINGS: Final = 4  # roundings of the dtype that are allowed where that is more (fp16, bf16)
_MUCH_MEMORY: Final = 2**30  # bytes that are worth a warning
_LONG: Final = 60.0  # seconds that are worth a warning
_CHEAPER: Final = "a shorter prompt, fewer pairs, or a swap instead of noise takes less"
# What is known of each model: the longest prompt verified, its layout, and how many seconds that run took.
_layouts: WeakKeyDictionary[Model, tuple[int, Layout | None, float]] = WeakKeyDictionary()


def prepare(
    model: Model,
    pairs: Sequence[Pair | Question],
    *,
    family: Sequence[Pair] | None = None,
    ablation: Ablation = SWAP,
    path: Way | None = None,
    budget: int = BUDGET,
    offload: bool | None = None,
    smallest_gap: float = SMALLEST_GAP,
) -> Runs:
    """Run the pairs clean and counterfactual; `path` forces the fast or the plain path.

    A question, which does not name its answer and foil, takes them from what the model predicts in these
    runs. `ablation` is how rows are measured unless the caller says otherwise. `family` are pairs over whose
    clean runs `mean` averages, in the place of the ablation's own reference. `budget` is how many bytes of
    rows pass a block together (`Runs.plan` says what follows). `offload` keeps what the runs computed on the
    CPU and brings it back layer by layer, for a GPU that holds the weights and little else; None is what the
    model was loaded with.

        >>> runs = circuits.prepare(model, [pair])
        >>> row = circuits.Row.of_edges([circuits.Edge.parse("L5H1:5→8")])
        >>> f"{runs.effects([row]).item():.3f}"
        '0.076'
    """
    pair_without_answer = [
        each.pair_without_answer if isinstance(each, Question) else each for each in pairs
    ]
    _check_together(pair_without_answer, family or ())
    averaged = [pair.clean for pair in family or ()]
    if ablation.kind == "mean" and not averaged:
        averaged = ablation.reference_for([pair.clean for pair in pair_without_answer])
    offload = model.offload if offload is None else offload
    runs = _run(model, pair_without_answer, averaged, ablation, path, budget, offload)
    settled = []
    for number, each in enumerate(pairs):
        settled.append(
            each
            if isinstance(each, Pair)
            else each.with_predictions(model, *runs.predictions(number))
        )
    if len({pair.metric.kind for pair in settled}) > 1:
        raise PromptError("pairs that are run together have the same kind of metric")
    layers = {pair.metric.probe.layer for pair in settled if pair.metric.probe is not None}
    if len(layers) > 1:
        raise PromptError("pairs that are run together have their probes at one layer")
    if layers and runs.layout is None:
        raise PromptError(
            f"a probe needs the layout of {model.name}, which the fast path does not know"
        )
    runs = replace(runs, pairs=tuple(settled))
    for pair, gap in zip(runs.pairs, runs.gap.tolist(), strict=True):
        if not abs(gap) >= smallest_gap:
            small = f"the counterfactual changes {pair.metric} by only {gap:.2g}, too little to divide by"
            raise PromptError(
                f"{small}; swap a word that matters more, or name another answer and foil"
            )
    return runs


def _check_together(pairs: Sequence[Pair], family: Sequence[Pair]) -> None:
    if not pairs:
        raise PromptError("there is no pair to run")
    lengths = {len(pair) for pair in (*pairs, *family)}
    if len(lengths) > 1:
        counts = f"pairs that are run together have the same number of tokens; these have {sorted(lengths)}"
        raise PromptError(f"{counts}: run each length by itself")
    if len({pair.metric.positions_read for pair in pairs}) > 1:
        raise PromptError(
            "pairs that are run together have answers of the same number of tokens"
        )


@torch.inference_mode(False)  # gradients of a later pass may need what is kept here
@torch.no_grad()
def _run(
    model: Model,
    pairs: Sequence[Pair],
    averaged: Sequence[Prompt],
    ablation: Ablation,
    path: Way | None,
    budget: int,
    offload: bool,
) -> Runs:
    """Run the pairs; `averaged` are the prompts whose mean is wanted, if any."""
    noises = _noises_of(pairs, ablation)
    draws = tuple(1 if noise is None else noise.draws for noise in noises)
    length = len(pairs[0])
    read = pairs[0].metric.positions_read
    clean_tokens, other_tokens = _tokens_of(model, pairs, draws)
    of_pair = [isinstance(pair.counterfactual, Noise) for pair in pairs]
    noise = _noise(model, length, draws, noises, of_pair)
    _warn_of_memory(model, length, sum(draws))
    layout = None if path == "plain" else known_layout(model, clean_tokens[:1])
    if path == "fast" and layout is None:
        raise PromptError(
            f"the fast path does not know the layout of {model.name}; take the plain path"
        )
    _warn_of_time(model, length, sum(draws))
    if layout is None:
        kept, logits = plain.run(model, clean_tokens, None, read=read, offload=offload)
        clean = Run(clean_tokens, None, kept, logits, read)
        kept, logits = plain.run(model, other_tokens, noise, read=read, offload=offload)
        other = Run(other_tokens, noise, kept, logits, read)
    else:
        embedded = layout.embed(other_tokens)
        if noise is not None:
            embedded = embedded + noise
        caches = _both_runs(
            layout,
            layout.embed(clean_tokens),
            embedded,
            start=first_difference(pairs),
            budget=budget,
            offload=offload,
        )
        clean = Run(clean_tokens, None, caches[0], layout, read)
        other = Run(other_tokens, noise, caches[1], layout, read)
    family = noisy = None
    if averaged:
        tokens = torch.tensor([prompt.tokens for prompt in averaged], device=model.device)
        family = _kept(model, layout, tokens, None, budget, offload)
    if ablation.kind == "noise":
        everywhere = _noise(model, length, draws, noises, [True] * len(pairs))
        noisy = _kept(model, layout, clean_tokens, everywhere, budget, offload)
    return Runs(
        model,
        tuple(pairs),
        draws,
        clean,
        other,
        family,
        layout,
        budget,
        noisy=noisy,
        ablation=ablation,
    )


def _kept(
    model: Model,
    layout: Layout | None,
    tokens: Int[torch.Tensor, "input pos"],
    noise: Float[torch.Tensor, "input pos d_model"] | None,
    budget: int,
    offload: bool,
) -> Cache:
    """One run of prompts, with noise on their embeddings if there is any, of which everything is kept."""
    if layout is None:
        return plain.run(model, tokens, noise, offload=offload)[0]
    embedded = layout.embed(tokens)
    if noise is not None:
        embedded = embedded + noise
    return whole_run(layout, embedded, budget=budget, offload=offload)


def _both_runs(
    layout: Layout, clean: Stream, other: Stream, *, start: int, budget: int, offload: bool
) -> tuple[Cache, Cache]:
    """Run both sides from their embeddings, which are equal before `start`. Short prompts run as one batch,
    so that every matrix is read once for both (`prepare` takes 0.74 of the time at 9 tokens). Long prompts
    share the positions before the first difference."""
    if clean.shape[1] <= SHORT:
        both = whole_run(layout, torch.cat((clean, other)), budget=budget, offload=offload)
        return both.of_inputs(slice(0, len(clean))), both.of_inputs(slice(len(clean), None))
    base = whole_run(layout, clean, budget=budget, offload=offload)
    above = whole_run(layout, other, base=base, start=start, budget=budget, offload=offload)
    return base, above


def _tokens_of(
    model: Model, pairs: Sequence[Pair], draws: Sequence[int]
) -> tuple[Int[torch.Tensor, "input pos"], Int[torch.Tensor, "input pos"]]:
    """The clean and the counterfactual tokens of every input. Noise is added to the clean embeddings."""
    clean, other = [], []
    for pair, count in zip(pairs, draws, strict=True):
        counterfactual = (
            pair.clean if isinstance(pair.counterfactual, Noise) else pair.counterfactual
        )
        clean += [pair.clean.tokens] * count
        other += [counterfactual.tokens] * count
    return torch.tensor(clean, device=model.device), torch.tensor(other, device=model.device)


# Noise on embeddings


def _noises_of(pairs: Sequence[Pair], ablation: Ablation) -> list[Noise | None]:
    """The noise of each pair: its counterfactual or, where the ablation is noise, noise on the tokens at which
    the pair differs. None where a pair has none."""
    noises: list[Noise | None] = []
    for pair in pairs:
        if isinstance(pair.counterfactual, Noise):
            noises.append(pair.counterfactual)
        elif ablation.kind == "noise":
            noises.append(Noise(pair.differs_at))
        else:
            noises.append(None)
    return noises


def _noise(
    model: Model,
    length: int,
    draws: Sequence[int],
    noises: Sequence[Noise | None],
    wanted: Sequence[bool],
) -> Float[torch.Tensor, "input pos d_model"] | None:
    """The noise on the embeddings of every input, of the pairs where it is wanted; None where of none."""
    if not any(wanted):
        return None
    # OPT embeds into fewer dimensions than its stream has.
    width = model.bridge.W_E.shape[-1]
    parts = []
    for count, noise, is_wanted in zip(draws, noises, wanted, strict=True):
        drawn = torch.zeros(count, length, width, device=model.device, dtype=model.dtype)
        if is_wanted and noise is not None:
            drawn[:, list(noise.positions)] = noise_draws(model, noise)
        parts.append(drawn)
    return torch.cat(parts)


def noise_draws(model: Model, noise: Noise) -> Float[torch.Tensor, "draw position d_model"]:
    """Seeded normal noise for each of the noisy positions, in standard deviations of the embedding matrix."""
    embedding = model.bridge.W_E.detach()
    deviation = float(embedding.std()) * model.embedding_scale
    generator = torch.Generator().manual_seed(noise.seed)
    drawn = torch.randn(
        noise.draws, len(noise.positions), embedding.shape[-1], generator=generator
    )
    return (drawn * deviation * noise.scale).to(model.device, model.dtype)


# The layout of a model


def known_layout(model: Model, probe: Int[torch.Tensor, "1 pos"]) -> Layout | None:
    """The model's layout, verified on a prompt at least as long as this one. None where a run of ours is not
    the model's own, and for a model on several devices, which only its own forward can run."""
    if model.is_split:
        return None
    longest, layout, _ = _layouts.get(model, (0, None, 0.0))
    never_read = longest == 0
    if probe.shape[1] > longest and (never_read or layout is not None):
        layout, seconds = _verified_layout(model, probe)
        _layouts[model] = (probe.shape[1], layout, seconds)
    return layout


def _verified_layout(
    model: Model, probe: Int[torch.Tensor, "1 pos"]
) -> tuple[Layout | None, float]:
    """The layout, if a run of ours gives the model's logits, and how many seconds the run took."""
    try:
        layout = read_layout(model)
        start = time.monotonic()
        run = whole_run(layout, layout.embed(probe))
        seconds = time.monotonic() - start
        ours = layout.logits(run.final[:, -1])
        own = model.logits(probe)[:, -1]
    except (AttributeError, TypeError, RuntimeError):  # a part is missing, or has another shape
        return None, 0.0
    tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(own.dtype).eps)
    same = torch.allclose(ours, own, rtol=0, atol=tolerance * float(own.abs().max()))
    return (layout if same else None), seconds


# Warnings before long work


def _warn_of_memory(model: Model, length: int, inputs: int) -> None:
    needed = plan_memory(model, length=length, inputs=inputs).runs
    warning = memory_warning(length, needed, free_memory())
    if warning is not None:
        warnings.warn(warning, stacklevel=5)


def memory_warning(length: int, needed: int, free: int | None) -> str | None:
    """What to say where the runs need much memory, and more than half of what is free."""
    if needed < _MUCH_MEMORY or free is None or needed <= free / 2:
        return None
    much = (
        f"the runs of {length} tokens will take {needed / 1e9:.1f} GB of {free / 1e9:.1f} free"
    )
    return f"{much}; {_CHEAPER}"


def _warn_of_time(model: Model, length: int, inputs: int) -> None:
    longest, _, seconds = _layouts.get(model, (length, None, 0.0))
    warning = time_warning(length, 2 * inputs * seconds * length / longest)
    if warning is not None:
        warnings.warn(warning, stacklevel=5)


def time_warning(length: int, seconds: float) -> str | None:
    """What to say where the runs will take more than a minute, by the run that verified the layout."""
    if seconds <= _LONG:
        return None
    much = f"the runs of {length} tokens will take about {seconds / 60:.0f} minutes before any answer"
    return f"{much}; {_CHEAPER}"
