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
from dataclasses import dataclass, replace
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
from circuits.engine.plain import Noises, Tokens
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


@dataclass(frozen=True, slots=True)
class _VerifiedLayout:
    """A layout that was read off a model and compared with the model's own logits."""

    longest: int  # tokens of the longest prompt on which they were compared
    layout: Layout | None  # None where a run of ours did not give the model's logits
    seconds: float  # that our run of this prompt took


_verified: WeakKeyDictionary[Model, _VerifiedLayout] = WeakKeyDictionary()


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
    unanswered: list[Pair] = []
    for each in pairs:
        unanswered.append(each.pair_without_answer if isinstance(each, Question) else each)
    _check_together(unanswered, family or ())
    averaged = [pair.clean for pair in family or ()]
    if ablation.kind == "mean" and not averaged:
        averaged = ablation.reference_for([pair.clean for pair in unanswered])
    offload = model.offload if offload is None else offload
    runs = _run(model, unanswered, averaged, ablation, path, budget, offload)
    answered: list[Pair] = []
    for number, each in enumerate(pairs):
        if isinstance(each, Question):
            each = each.with_predictions(model, *runs.predictions(number))
        answered.append(each)
    _check_metrics(answered, runs)
    runs = replace(runs, pairs=tuple(answered))
    _check_gaps(runs, smallest_gap)
    return runs


def _check_metrics(pairs: Sequence[Pair], runs: Runs) -> None:
    """Refuse metrics that cannot be read in one batch, or not on the plain path."""
    if len({pair.metric.kind for pair in pairs}) > 1:
        raise PromptError("pairs that are run together have the same kind of metric")
    layers = {pair.metric.probe.layer for pair in pairs if pair.metric.probe is not None}
    if len(layers) > 1:
        raise PromptError("pairs that are run together have their probes at one layer")
    if layers and runs.layout is None:
        name = runs.model.name
        raise PromptError(
            f"a probe needs the layout of {name}, which the fast path does not know"
        )


def _check_gaps(runs: Runs, smallest: float) -> None:
    """Refuse a pair whose gap is too small to divide by."""
    for pair, gap in zip(runs.pairs, runs.gap.tolist(), strict=True):
        if not abs(gap) >= smallest:  # also where it is not a number
            small = f"the counterfactual changes {pair.metric} by only {gap:.2g}, too little to divide by"
            raise PromptError(
                f"{small}; swap a word that matters more, or name another answer and foil"
            )


def _check_together(pairs: Sequence[Pair], family: Sequence[Pair]) -> None:
    """Refuse pairs that differ in what one batch must share: the number of tokens, of the prompts and of the
    answers."""
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
    noises = [_noise_of_counterfactual(pair) for pair in pairs]
    ablation_noises = noises
    if ablation.kind == "noise":
        ablation_noises = [_noise_of_ablation(pair) for pair in pairs]
    # A pair has one input, or one for each draw of its noise.
    draws = tuple(1 if noise is None else noise.draws for noise in ablation_noises)
    length = len(pairs[0])
    read = pairs[0].metric.positions_read
    clean_tokens, other_tokens = _tokens_of(model, pairs, draws)
    noise = _noise_on_inputs(model, length, draws, noises)
    layout = None if path == "plain" else known_layout(model, clean_tokens[:1])
    if path == "fast" and layout is None:
        raise PromptError(
            f"the fast path does not know the layout of {model.name}; take the plain path"
        )
    kept_on = torch.device("cpu") if offload else model.device
    _warn_of_memory(model, length, sum(draws), plain=layout is None, device=kept_on)
    _warn_of_time(model, length, sum(draws))
    keeper = _Keeper(model, layout, budget, offload)
    clean, other = keeper.both(
        clean_tokens, other_tokens, noise, start=first_difference(pairs), read=read
    )
    family = noisy = None
    if averaged:
        tokens = torch.tensor([prompt.tokens for prompt in averaged], device=model.device)
        family = keeper.cache(tokens, None)
    if ablation.kind == "noise":
        on_every_pair = _noise_on_inputs(model, length, draws, ablation_noises)
        noisy = keeper.cache(clean_tokens, on_every_pair)
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


@dataclass(frozen=True)
class _Keeper:
    """How prompts are run so that everything is kept: by our forward, or without a layout by the model's
    own."""

    model: Model
    layout: Layout | None
    budget: int
    offload: bool  # what is kept is on the CPU

    def both(
        self, clean: Tokens, other: Tokens, noise: Noises, *, start: int, read: int
    ) -> tuple[Run, Run]:
        """Both sides of the pairs, which are equal before `start`; the other side's embeddings have the
        noise, if there is any. The metric reads the last `read` positions."""
        if self.layout is None:
            return self._by_hooks(clean, None, read), self._by_hooks(other, noise, read)
        clean_embedded = self._embedded(clean, None)
        other_embedded = self._embedded(other, noise)
        if clean.shape[1] <= SHORT:
            # One batch, so that every matrix is read once for both: 0.74 of the time at 9 tokens.
            both = self._whole(torch.cat((clean_embedded, other_embedded)))
            clean_cache = both.of_inputs(slice(0, len(clean)))
            other_cache = both.of_inputs(slice(len(clean), None))
        else:
            clean_cache = self._whole(clean_embedded)
            other_cache = self._whole(other_embedded, base=clean_cache, start=start)
        return (
            Run(clean, None, clean_cache, self.layout, read),
            Run(other, noise, other_cache, self.layout, read),
        )

    def cache(self, tokens: Tokens, noise: Noises) -> Cache:
        """What a run of prompts computed, with noise on their embeddings if there is any."""
        if self.layout is None:
            return self._by_hooks(tokens, noise, 1).cache
        return self._whole(self._embedded(tokens, noise))

    def _by_hooks(self, tokens: Tokens, noise: Noises, read: int) -> Run:
        cache, logits = plain.run(self.model, tokens, noise, read=read, offload=self.offload)
        return Run(tokens, noise, cache, logits, read)

    def _embedded(self, tokens: Tokens, noise: Noises) -> Stream:
        assert self.layout is not None
        embedded = self.layout.embed(tokens)
        return embedded if noise is None else embedded + noise

    def _whole(self, embedded: Stream, *, base: Cache | None = None, start: int = 0) -> Cache:
        assert self.layout is not None
        return whole_run(
            self.layout,
            embedded,
            base=base,
            start=start,
            budget=self.budget,
            offload=self.offload,
        )


def _tokens_of(
    model: Model, pairs: Sequence[Pair], draws: Sequence[int]
) -> tuple[Int[torch.Tensor, "input pos"], Int[torch.Tensor, "input pos"]]:
    """The clean and the counterfactual tokens of every input. Noise is added to the clean embeddings."""
    clean, other = [], []
    for pair, count in zip(pairs, draws, strict=True):
        counterfactual = pair.counterfactual
        if isinstance(counterfactual, Noise):
            counterfactual = pair.clean
        clean += [pair.clean.tokens] * count
        other += [counterfactual.tokens] * count
    return torch.tensor(clean, device=model.device), torch.tensor(other, device=model.device)


# Noise on embeddings


def _noise_of_counterfactual(pair: Pair) -> Noise | None:
    """The noise that is a pair's counterfactual; None where that is a prompt."""
    return pair.counterfactual if isinstance(pair.counterfactual, Noise) else None


def _noise_of_ablation(pair: Pair) -> Noise:
    """The noise that ablation by noise takes: the pair's own, or noise on the tokens at which it differs."""
    return _noise_of_counterfactual(pair) or Noise(pair.differs_at)


def _noise_on_inputs(
    model: Model, length: int, draws: Sequence[int], noises: Sequence[Noise | None]
) -> Float[torch.Tensor, "input pos d_model"] | None:
    """The noise on the embeddings of every input, given that of each pair: 0 for a pair without noise. None
    where no pair has any."""
    if all(noise is None for noise in noises):
        return None
    # OPT embeds into fewer dimensions than its stream has.
    width = model.bridge.W_E.shape[-1]
    parts = []
    for count, noise in zip(draws, noises, strict=True):
        drawn = torch.zeros(count, length, width, device=model.device, dtype=model.dtype)
        if noise is not None:
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
    length = probe.shape[1]
    known = _verified.get(model)
    # A layout that failed on a shorter prompt is not tried again.
    if known is None or (known.layout is not None and length > known.longest):
        layout, seconds = _verify_layout(model, probe)
        known = _VerifiedLayout(length, layout, seconds)
        _verified[model] = known
    return known.layout


def _verify_layout(
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


def _warn_of_memory(
    model: Model, length: int, inputs: int, *, plain: bool, device: torch.device
) -> None:
    """`device` is where the runs are kept."""
    needed = plan_memory(model, length=length, inputs=inputs, plain=plain).runs
    warning = memory_warning(length, needed, free_memory(device))
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
    known = _verified.get(model)
    if known is None:  # the plain path was asked for
        return
    seconds_a_run = known.seconds * length / known.longest
    warning = time_warning(length, 2 * inputs * seconds_a_run)  # clean and counterfactual
    if warning is not None:
        warnings.warn(warning, stacklevel=5)


def time_warning(length: int, seconds: float) -> str | None:
    """What to say where the runs will take more than a minute, by the run that verified the layout."""
    if seconds <= _LONG:
        return None
    much = f"the runs of {length} tokens will take about {seconds / 60:.0f} minutes before any answer"
    return f"{much}; {_CHEAPER}"
