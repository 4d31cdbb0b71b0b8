"""A batch of pairs, run once clean and once counterfactual, ready to be asked what any change would do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final, Literal

import torch
from jaxtyping import Float, Int

from circuits.engine import fast, plain
from circuits.engine.cache import Cache, FromRun, Scaled, Source
from circuits.engine.climb import Traveller
from circuits.engine.layout import Layout
from circuits.engine.rows import Change, Direction, Row, check_rows
from circuits.errors import PromptError
from circuits.heads import Head
from circuits.models.model import Model
from circuits.prompts import Metric, Noise, Pair

Path = Literal["fast", "plain"]
BUDGET: Final = (
    32 * 2**20
)  # bytes of rows under way at once: what a processor's cache holds, enough for tall products
SMALLEST_GAP: Final = 1e-3


@dataclass(frozen=True)
class Run:
    """One side of the batch: what went in and what was kept. A pair with noise has one input per draw."""

    tokens: Int[torch.Tensor, "input pos"]
    noise: Float[torch.Tensor, "input pos d_model"] | None
    cache: Cache
    output: (
        Float[torch.Tensor, "input vocab"] | Callable[[torch.Tensor], torch.Tensor]
    )  # the logits, or the unembedding

    @cached_property
    @torch.inference_mode()
    def logits(self) -> Float[torch.Tensor, "input vocab"]:
        """At the last position, computed when asked for: most metrics read two of them, and the unembedding is large."""
        return self.output if isinstance(self.output, torch.Tensor) else self.output(self.cache.final[:, -1])


@dataclass(frozen=True)
class Runs:
    """Both sides of a batch of pairs."""

    model: Model
    pairs: tuple[Pair, ...]
    clean: Run
    counterfactual: Run
    family: Cache | None
    layout: Layout | None
    budget: int
    absent: tuple[
        Head, ...
    ] = ()  # heads that write what they write in the counterfactual run, in every row and in the base

    @property
    def path(self) -> Path:
        """Which path measures the rows."""
        return "plain" if self.layout is None else "fast"

    @property
    def length(self) -> int:
        return len(self.pairs[0])

    @property
    def metric(self) -> Metric:
        return self.pairs[0].metric

    @cached_property
    def _first_difference(self) -> int:
        return first_difference(self.pairs)

    @torch.inference_mode()
    def values(self, side: Run) -> Float[torch.Tensor, " pair"]:
        """The metric of an unpatched side."""
        return self.mean_over_draws(self._value(side)[:, 0])

    @cached_property
    def gap(self) -> Float[torch.Tensor, " pair"]:
        return self.values(self.clean) - self.values(self.counterfactual)

    def effects(
        self, rows: Sequence[Row], *, direction: Direction = "swap", along: Sequence[Traveller] = ()
    ) -> Float[torch.Tensor, "row pair"]:
        """The effect of every row on every pair, as a share of the pair's gap."""
        values = self.mean_over_draws(self.measure([Row(()), *rows], direction=direction, along=along))
        change = values[:, :1] - values[:, 1:]
        return (change / (-self.gap if direction == "restore" else self.gap)[:, None]).T

    @torch.inference_mode()
    def measure(
        self, rows: Sequence[Row], *, direction: Direction = "swap", along: Sequence[Traveller] = ()
    ) -> Float[torch.Tensor, "input row"]:
        """The metric of every row on every input. `along`: the travellers of these runs, where they are still to be run."""
        check_rows(
            rows,
            direction=direction,
            layers=self.model.n_layers,
            heads=self.model.n_heads,
            length=self.length,
        )
        base = self.counterfactual if direction == "restore" else self.clean
        source = self._source(direction)
        kept = [self._reaching(self._with_absent(row, direction), direction) for row in rows]
        live = self._live(kept, base, source, direction)
        measured = (
            self._carry([kept[index] for index in live], base, source, direction, along)
            if live or along
            else None
        )
        values = self._value(base).expand(-1, len(rows)).clone()
        if measured is not None:
            values[:, live] = measured
        return values

    @torch.inference_mode()
    def identity(self, row: Row) -> float:
        """The largest effect of patching the clean run's own values into it: 0 up to rounding, or the engine is wrong."""
        patched = self._carry([row], self.clean, FromRun(self.clean.cache), "swap")[:, 0]
        return float(((self.values(self.clean) - self.mean_over_draws(patched)) / self.gap).abs().max())

    # How a direction reads

    def _source(self, direction: Direction) -> Source:
        if direction == "mean":
            if self.family is None:
                raise PromptError(
                    "direction 'mean' needs a family of prompts of the same length: prepare(..., family=pairs)"
                )
            return Scaled(FromRun(self.family), "mean")
        if direction in ("zero", "knockout"):
            return Scaled(FromRun(self.clean.cache), "zero")
        return FromRun((self.clean if direction == "restore" else self.counterfactual).cache)

    def _with_absent(self, row: Row, direction: Direction) -> Row:
        """The row in a model where some heads are absent: swapped throughout, or never restored."""
        if not self.absent:
            return row
        gone = {(head.layer, head.index) for head in self.absent}
        kept = tuple(
            change
            for change in row.changes
            if change.site not in ("edge", "head") or (change.layer, change.head) not in gone
        )
        if direction == "restore":
            return Row(kept)
        return Row(tuple(sorted((*kept, *Row.of_heads(self.absent, range(self.length)).changes))))

    def without(self, heads: Sequence[Head]) -> Runs:
        """The same runs in a model where these heads are absent. Only `swap` and `restore` make sense there."""
        return replace(self, absent=tuple(sorted({*self.absent, *heads})))

    def _reaching(self, row: Row, direction: Direction) -> Row:
        """The row without changes that cannot matter: those before the first difference, where both runs are the same, and writes
        that the last position, where the metric is read, cannot read any more."""
        first = self._first_difference if direction in ("swap", "restore") else 0

        def reaches(change: Change) -> bool:
            above = change.layer + (change.site != "residual")  # the first layer that can read it
            return change.position >= first and (
                change.position == self.length - 1 or above < self.model.n_layers
            )

        return Row(tuple(filter(reaches, row.changes)))

    def _live(self, rows: Sequence[Row], base: Run, source: Source, direction: Direction) -> list[int]:
        """The rows that change anything. With gates, a row of edges whose old and new messages are equal does not."""
        candidates = [index for index, row in enumerate(rows) if row.changes]
        if not self.model.gated or direction == "knockout":
            return candidates
        live = {index for index in candidates if any(change.site != "edge" for change in rows[index].changes)}
        own = FromRun(base.cache)
        for layer in range(self.model.n_layers):
            listed = [
                (index, c)
                for index in candidates
                for c in rows[index].changes
                if c.layer == layer and c.site == "edge"
            ]
            if listed:
                todo = fast.Todo.of(listed, base.tokens.device)
                where = (layer, todo.head, todo.key, todo.at)
                differs = (source.message(*where) != own.message(*where)).any(-1).any(0)
                live.update(todo.row[differs].tolist())
        return sorted(live)

    # Carrying and reading

    def _value(self, side: Run) -> Float[torch.Tensor, "input 1"]:
        """The metric of an unpatched side, draw by draw."""
        if self.layout is None or self.metric.reads is None:
            return self.read(side.logits[:, None])
        return self._read_stream(side.cache.final[:, -1:])

    def _carry(
        self,
        rows: Sequence[Row],
        base: Run,
        source: Source,
        direction: Direction,
        along: Sequence[Traveller] = (),
    ) -> Float[torch.Tensor, "input row"]:
        knockout = direction == "knockout"
        if self.layout is None:
            logits = plain.carry(
                self.model, base.tokens, base.noise, source, rows, knockout=knockout, budget=self.budget
            )
            return self.read(logits)
        top = fast.carry(
            self.layout, base.cache, source, rows, knockout=knockout, budget=self.budget, along=along
        )
        step = (
            max(1, self.budget // (4 * self.model.vocab_size * len(top)))
            if self.metric.reads is None
            else len(rows)
        )
        return torch.cat([self._read_stream(part) for part in top.split(step, 1)], 1)

    def _read_stream(self, top: Float[torch.Tensor, "input row d_model"]) -> Float[torch.Tensor, "input row"]:
        assert self.layout is not None
        if self.metric.reads is None:
            return self.read(self.layout.logits(top))
        wanted = self._per_input([pair.metric.reads for pair in self.pairs])  # (input, 2): answer and foil
        logits = torch.einsum("nrd,nvd->nrv", self.layout.final_norm(top), self.layout.unembed[wanted])
        bias = self.layout.unembed_bias
        logits = logits if bias is None else logits + bias[wanted][:, None]
        return logits[..., 0] - logits[..., 1]

    def read(self, logits: Float[torch.Tensor, "input row vocab"]) -> Float[torch.Tensor, "input row"]:
        """The metric from the logits of the whole vocabulary at the last position."""
        answer = self._per_input([pair.metric.answer for pair in self.pairs])[:, None, None].expand(
            -1, logits.shape[1], -1
        )
        match self.metric.kind:
            case "logit_diff":
                foil = self._per_input([pair.metric.foil for pair in self.pairs])[:, None, None].expand_as(
                    answer
                )
                return (logits.gather(-1, answer) - logits.gather(-1, foil))[..., 0]
            case "logprob":
                return logits.log_softmax(-1).gather(-1, answer)[..., 0]
            case "kl":
                wanted = self.clean.logits[:, None].log_softmax(-1)
                return -(wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1)
            case _:
                functions = [pair.metric.function for pair in self.pairs for _ in range(draws_of(pair))]
                read = [
                    function(part)
                    for function, part in zip(functions, logits, strict=True)
                    if function is not None
                ]
                if any(value.shape != logits.shape[1:2] for value in read):
                    raise PromptError(
                        f"a metric function takes logits (row, vocab) and returns one number a row, not {tuple(read[0].shape)}"
                    )
                return torch.stack(read)

    def predictions(self, pair: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logits at the last position of one pair, clean and counterfactual (none for noise, which has no single prediction)."""
        row = sum(draws_of(each) for each in self.pairs[:pair])
        noisy = isinstance(self.pairs[pair].counterfactual, Noise)
        return self.clean.logits[row], None if noisy else self.counterfactual.logits[row]

    def _per_input(self, values: Sequence[object]) -> torch.Tensor:
        repeated = [
            value for value, pair in zip(values, self.pairs, strict=True) for _ in range(draws_of(pair))
        ]
        return torch.tensor(repeated, device=self.model.device)

    def mean_over_draws(self, values: torch.Tensor) -> torch.Tensor:
        """(input, …) to (pair, …): a pair with noise is the mean of its draws."""
        parts = values.split([draws_of(pair) for pair in self.pairs])
        return torch.stack([part.mean(0) for part in parts])


def draws_of(pair: Pair) -> int:
    """How many inputs a pair has."""
    return pair.counterfactual.draws if isinstance(pair.counterfactual, Noise) else 1


def first_difference(pairs: Sequence[Pair]) -> int:
    """The first position at which any pair's inputs differ."""
    return min(at for pair in pairs for at in pair.differs_at)
