"""A batch of pairs that was run clean and counterfactual (`prepare`), ready to be measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, TypeVar

import torch
from jaxtyping import Float, Int

from circuits.components import Head
from circuits.engine import plain, plain_block
from circuits.engine.ablation import SWAP, Ablation
from circuits.engine.batches import run_rows
from circuits.engine.cache import Cache, Replacement, all_ablated
from circuits.engine.layout import AnyBlock, Layout
from circuits.engine.memory import BYTES, MemoryPlan, plan_memory, streams_at_once
from circuits.engine.reach import Reach, changed_inputs, without_heads
from circuits.engine.rows import OF_PAIR, Direction, Given, Row, check_rows
from circuits.errors import ModelError, PromptError
from circuits.models.model import Model
from circuits.prompts import Metric, Noise, Pair

Way = Literal["fast", "plain"]
T = TypeVar("T")
Effects = Float[torch.Tensor, "row pair"]
Values = Float[torch.Tensor, "input row"]  # of the metric
# Streams above the last block, where the metric reads.
Tops = Float[torch.Tensor, "input row read d_model"]


@dataclass(frozen=True, repr=False)
class Run:
    """One side of the batch: what was fed in, and what the run computed. A pair with noise has one input for
    each draw of the noise."""

    tokens: Int[torch.Tensor, "input pos"]
    noise: Float[torch.Tensor, "input pos d_model"] | None
    cache: Cache
    # The logits, or what computes them.
    output: Float[torch.Tensor, "input read vocab"] | Layout
    read: int  # how many positions at the end the metric reads

    def __repr__(self) -> str:
        return f"Run({self.cache!r})"

    @cached_property
    @torch.no_grad()
    def logits(self) -> Float[torch.Tensor, "input read vocab"]:
        """The logits at the positions that the metric reads. They are computed when first asked for: most
        metrics need two tokens, and the vocabulary is large."""
        if isinstance(self.output, torch.Tensor):
            return self.output
        return self.output.logits(self.cache.final[:, -self.read :])

    def of_inputs(self, index: Int[torch.Tensor, " chosen"]) -> Run:
        """The run of some of the inputs."""
        noise = None if self.noise is None else self.noise[index]
        output = self.output[index] if isinstance(self.output, torch.Tensor) else self.output
        return Run(self.tokens[index], noise, self.cache.of_inputs(index), output, self.read)


def every_head(model: Model) -> tuple[Head, ...]:
    """Every head of the model, layer by layer."""
    heads = []
    for layer in range(model.n_layers):
        heads += [Head(layer, index) for index in range(model.n_heads)]
    return tuple(heads)


@dataclass(frozen=True, repr=False)
class Runs:
    """Both sides of a batch of pairs."""

    model: Model
    pairs: tuple[Pair, ...]
    draws: tuple[int, ...]  # how many inputs each pair has: one, or one for each draw of noise
    clean: Run
    counterfactual: Run
    family: Cache | None  # the runs over which `mean` is taken
    layout: Layout | None  # None: the plain path measures
    budget: int  # bytes that one batch of streams may take
    # Heads that write what they write in the counterfactual, in every run.
    absent: tuple[Head, ...] = ()
    noisy: Cache | None = None  # the runs whose values `noise` takes
    ablation: Ablation = SWAP  # how rows are measured unless the caller says otherwise

    def __repr__(self) -> str:
        return f"Runs({self.model.name}, {len(self.pairs)} pairs of {self.length} tokens, {self.path} path)"

    @property
    def path(self) -> Way:
        """Which path measures the rows."""
        return "plain" if self.layout is None else "fast"

    def layout_for(self, what: str) -> Layout:
        """The model's layout; an error that says what needs it where it is not known."""
        if self.layout is None:
            name = self.model.name
            raise ModelError(
                f"{what} need the layout of {name}, which the fast path does not know"
            )
        return self.layout

    @property
    def length(self) -> int:
        """How many tokens each prompt has."""
        return self.clean.tokens.shape[1]

    @property
    def metric(self) -> Metric:
        return self.pairs[0].metric

    def plan(self) -> MemoryPlan:
        """What these runs keep, and how their rows are cut."""
        return plan_memory(
            self.model,
            length=self.length,
            inputs=len(self.clean.tokens),
            plain=self.path == "plain",
            budget=self.budget,
        )

    @cached_property
    def heads(self) -> tuple[Head, ...]:
        return every_head(self.model)

    @cached_property
    def first_difference(self) -> int:
        """The first position at which any pair's inputs differ."""
        return first_difference(self.pairs)

    @cached_property
    def blocks(self) -> tuple[AnyBlock, ...]:
        """The model's blocks on these prompts, computed by our forward or by the model's own."""
        if self.layout is not None:
            return self.layout.on_prompt(self.clean.cache.final)
        return plain_block.blocks_of(self.model, self.length, self.budget)

    def inputs_of(self, pair: int) -> range:
        """The numbers of a pair's inputs: one, or one for each draw of its noise."""
        first = sum(self.draws[:pair])
        return range(first, first + self.draws[pair])

    # Measuring

    @torch.no_grad()
    def values(self, side: Run) -> Float[torch.Tensor, " pair"]:
        """The metric of an unchanged side."""
        return self.mean_over_draws(self._value(side)[:, 0])

    @cached_property
    @torch.inference_mode(False)  # gradients of a later pass may divide by it
    def gap(self) -> Float[torch.Tensor, " pair"]:
        """The metric of the clean run less that of the counterfactual."""
        return self.values(self.clean) - self.values(self.counterfactual)

    def predictions(self, pair: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logits at the last position of one pair, clean and counterfactual. Noise has no single
        prediction: None."""
        first = self.inputs_of(pair).start
        clean = self.clean.logits[first, -1]
        if isinstance(self.pairs[pair].counterfactual, Noise):
            return clean, None
        return clean, self.counterfactual.logits[first, -1]

    def effects(
        self,
        rows: Sequence[Row],
        *,
        direction: Direction | None = None,
        given: Given | None = None,
    ) -> Effects:
        """The effect of every row on every pair, as a share of the pair's gap. `given` are values that the
        rows' changes name by number. Without a `direction` it is the ablation of these runs."""
        direction = direction or self.ablation.kind
        # A row without changes in front: the base run's own value.
        measured = self.measure([Row(()), *rows], direction=direction, given=given)
        values = self.mean_over_draws(measured)  # (pair, 1 + row)
        change = values[:, :1] - values[:, 1:]
        gap = -self.gap if direction == "restore" else self.gap
        return (change / gap[:, None]).T

    @torch.inference_mode()
    def measure(
        self,
        rows: Sequence[Row],
        *,
        direction: Direction | None = None,
        given: Given | None = None,
    ) -> Values:
        """The metric of every row on every input. A row that cannot change anything is not run: its value is
        exactly that of the base run."""
        direction = direction or self.ablation.kind
        check_rows(
            rows,
            direction=direction,
            layers=self.model.n_layers,
            heads=self.model.n_heads,
            length=self.length,
        )
        base = self.base(direction)
        new = replace(self.replacement(direction), given=given or {})
        rows = self._without_idle_changes(rows, direction)
        values = self._value(base).expand(-1, len(rows)).clone()
        changed = changed_inputs(rows, base.cache, new, knockout=direction == "knockout")
        to_run = changed.any(0).nonzero().flatten().tolist()  # rows that change any input
        if to_run:
            measured = self._run_rows([rows[number] for number in to_run], base, new, direction)
            values[:, to_run] = torch.where(changed[:, to_run], measured, values[:, to_run])
        return values

    def _without_idle_changes(self, rows: Sequence[Row], direction: Direction) -> list[Row]:
        """The rows, in a model without its absent heads, without the changes that cannot change the metric."""
        reach = Reach(
            first_changed=self.first_changed(direction),
            first_read=self.length - self.metric.positions_read,
            layers=self._layers_read,
            is_probe=self.metric.kind == "probe",
        )
        every_position = range(self.length)
        kept = []
        for row in rows:
            if self.absent:
                swapped = direction != "restore"
                row = without_heads(row, self.absent, every_position, swapped=swapped)
            kept.append(row.only(reach.matters))
        return kept

    @torch.inference_mode()
    def identity(self, row: Row) -> float:
        """The largest effect of patching the clean run's own values into it: 0 up to rounding, or the engine
        is wrong."""
        patched = self._run_rows([row], self.clean, Replacement(self.clean.cache), "swap")[:, 0]
        effect = (self.values(self.clean) - self.mean_over_draws(patched)) / self.gap
        return float(effect.abs().max())

    # Parts of the batch, and models without some heads

    def without(self, heads: Sequence[Head]) -> Runs:
        """The same runs in a model where these heads are absent: ablated in every run."""
        return replace(self, absent=tuple(sorted({*self.absent, *heads})))

    def only(self, pairs: Sequence[int]) -> Runs:
        """The runs of some of the pairs."""
        if list(pairs) == list(range(len(self.pairs))):
            return self
        inputs = []
        for pair in pairs:
            inputs += self.inputs_of(pair)
        chosen = self._of_inputs(inputs)
        draws = tuple(self.draws[pair] for pair in pairs)
        return replace(chosen, pairs=tuple(self.pairs[pair] for pair in pairs), draws=draws)

    def first_input(self) -> Runs:
        """The first input of the first pair alone. Of a pair with noise, all inputs have one clean run."""
        if len(self.clean.tokens) == 1:
            return self
        return replace(self._of_inputs([0]), pairs=self.pairs[:1], draws=(1,))

    def first_of_each_pair(self) -> Runs:
        """The first input of each pair alone, for what only the clean runs decide."""
        if all(draws == 1 for draws in self.draws):
            return self
        firsts = [self.inputs_of(pair).start for pair in range(len(self.pairs))]
        return replace(self._of_inputs(firsts), draws=(1,) * len(firsts))

    def _of_inputs(self, inputs: Sequence[int]) -> Runs:
        index = torch.tensor(inputs, dtype=torch.long, device=self.model.device)
        return replace(
            self,
            clean=self.clean.of_inputs(index),
            counterfactual=self.counterfactual.of_inputs(index),
            noisy=None if self.noisy is None else self.noisy.of_inputs(index),
        )

    # What an ablation puts where

    def base(self, direction: Direction) -> Run:
        """The run in which a direction changes something."""
        return self.counterfactual if direction == "restore" else self.clean

    def replacement(self, direction: Direction) -> Replacement:
        """What a direction puts in the changed places."""
        if direction == "mean":
            if self.family is None:
                raise PromptError(
                    "ablation 'mean' needs prompts of one length: prepare(..., family=pairs)"
                )
            return Replacement(self.family, "mean")
        if direction == "noise":
            if self.noisy is None:
                raise PromptError("ablation 'noise' needs runs that were made for it")
            return Replacement(self.noisy)
        if direction in ("zero", "knockout"):
            return Replacement(self.clean.cache, "zero")
        source = self.clean if direction == "restore" else self.counterfactual
        return Replacement(source.cache)

    def first_changed(self, direction: Direction | None = None) -> int:
        """The first position at which an ablation can change anything."""
        kind = direction or self.ablation.kind
        return self.first_difference if kind in OF_PAIR else 0

    @cached_property
    @torch.inference_mode(False)  # gradients of a later pass may need it
    @torch.no_grad()
    def ablated(self) -> Cache:
        """What every writer writes and every reader sees where all writers are ablated."""
        new = self.replacement(self.ablation.kind)
        return all_ablated(new, self.blocks, inputs=len(self.clean.tokens))

    def ablated_head_writes(self, layer: int) -> Float[torch.Tensor, "input pos head d_model"]:
        """What each head of a layer adds to the stream where it is ablated."""
        new = self.replacement(self.ablation.kind)
        written = new.reduce(self.blocks[layer].head_writes(new.run.layers[layer].z))
        if new.reduced is None:
            return written
        return written[:1].expand(len(self.clean.tokens), -1, -1, -1)

    # Running rows and reading the metric

    def _run_rows(
        self, rows: Sequence[Row], base: Run, new: Replacement, direction: Direction
    ) -> Values:
        """The metric of rows on top of a base run, on the path that these runs take."""
        knockout = direction == "knockout"
        if self.layout is None:
            logits = plain.run_rows(
                self.model,
                base.tokens,
                base.noise,
                new,
                rows,
                budget=self.budget,
                read=self.metric.positions_read,
                knockout=knockout,
            )
            return self.read_logits(logits)
        return self.read_stream(
            run_rows(
                self.layout,
                base.cache,
                new,
                rows,
                budget=self.budget,
                read=self.metric.positions_read,
                knockout=knockout,
                layers=self._layers_read if self.metric.kind == "probe" else None,
            )
        )

    @property
    def _layers_read(self) -> int:
        """How many blocks lie below what the metric reads: all, or those below a probe."""
        probe = self.metric.probe
        return self.model.n_layers if probe is None else probe.layer

    def _value(self, side: Run) -> Float[torch.Tensor, "input 1"]:
        """The metric of an unchanged side, input by input."""
        if self.layout is None:
            return self.read_logits(side.logits[:, None])
        stream = side.cache.pre(self._layers_read)
        return self.read_stream(stream[:, None, -self.metric.positions_read :])

    def read_stream(self, top: Tops) -> Values:
        """The metric, from the stream above the last block (a probe: from the stream that it reads). Of the
        vocabulary only the tokens that the metric names are computed, where it names some."""
        if self.metric.kind == "probe":
            metrics = self.per_input([pair.metric for pair in self.pairs])
            read = [metric.read_probe(own) for metric, own in zip(metrics, top, strict=True)]
            return torch.stack(read)
        if self.metric.reads is None:
            return self._read_all_logits(top)
        return self._read_named_logits(top[:, :, -1])

    def _read_all_logits(self, top: Tops) -> Values:
        """The metric, from the logits of the whole vocabulary, for as many rows at a time as fit."""
        assert self.layout is not None
        logits = len(top) * self.metric.positions_read * self.model.vocab_size  # of one row
        step = streams_at_once(self.budget, BYTES * logits)
        parts = [self.read_logits(self.layout.logits(part)) for part in top.split(step, 1)]
        return torch.cat(parts, 1)

    def _read_named_logits(self, last: Float[torch.Tensor, "input row d_model"]) -> Values:
        """The logit of the answer less that of the foil, at the last position; of several answers, or foils,
        the `logsumexp` of their logits."""
        answers, foils = [], []
        for pair in self.pairs:
            assert pair.metric.reads is not None
            own_answers, own_foils = pair.metric.reads
            answers.append(own_answers)
            foils.append(own_foils)
        answer_logits = self._logits_of(last, answers)
        foil_logits = self._logits_of(last, foils)
        return answer_logits.logsumexp(-1) - foil_logits.logsumexp(-1)

    def _logits_of(
        self,
        stream: Float[torch.Tensor, "input row d_model"],
        tokens: Sequence[tuple[int, ...]],
    ) -> Float[torch.Tensor, "input row token"]:
        """The logits of each pair's tokens; −∞ where a pair has fewer tokens than another."""
        assert self.layout is not None
        most = max(map(len, tokens))
        padded = []
        for own in tokens:
            missing = most - len(own)
            padded.append(own + (-1,) * missing)
        wanted = torch.tensor(self.per_input(padded), device=stream.device)  # (input, token)
        logits = self.layout.logits_of(stream, wanted)
        return logits.masked_fill((wanted < 0)[:, None], -torch.inf)

    def read_logits(self, logits: Float[torch.Tensor, "input row read vocab"]) -> Values:
        """The metric, from the logits of the whole vocabulary where it is read."""
        values = []
        for number, metric in enumerate(self.per_input([pair.metric for pair in self.pairs])):
            clean = self.clean.logits[number] if metric.needs_clean else None
            values.append(metric.read(logits[number], clean))
        read = torch.stack(values)
        if torch.is_grad_enabled() and logits.requires_grad and not read.requires_grad:
            without = "without detach, item or argmax, as loadings and wirings need it"
            raise PromptError(
                f"the metric function has no gradient; compute it from the logits {without}"
            )
        return read

    def per_input(self, values: Sequence[T]) -> list[T]:
        """One value for each pair as one value for each input."""
        spread = []
        for value, draws in zip(values, self.draws, strict=True):
            spread += [value] * draws
        return spread

    def mean_over_draws(self, values: torch.Tensor) -> torch.Tensor:
        """(input, …) to (pair, …): a pair with noise is the mean of its draws."""
        return torch.stack([part.mean(0) for part in values.split(list(self.draws))])


def first_difference(pairs: Sequence[Pair]) -> int:
    """The first position at which any pair's inputs differ."""
    return min(min(pair.differs_at) for pair in pairs)
