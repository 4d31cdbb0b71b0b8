"""A batch of pairs that was run clean and counterfactual (`prepare`), ready to be asked what any change would
do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import product
from operator import add
from typing import Any, Literal, TypeVar

import torch
from jaxtyping import Bool, Float, Int

from circuits.components import Head
from circuits.engine.fast import carry
from circuits.engine.layout import Layout
from circuits.engine.streams import Cache, Change, ChangeTable, Direction, Given, NewValues, Row, check_rows
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.prompts import Metric, Noise, Pair

Way = Literal["fast", "plain"]
T = TypeVar("T")
Effects = Float[torch.Tensor, "row pair"]
Values = Float[torch.Tensor, "input row"]  # of the metric
Changed = Bool[torch.Tensor, "input row"]


@dataclass(frozen=True)
class Run:
    """One side of the batch: what went in and what was kept. A pair with noise has one input per draw."""

    tokens: Int[torch.Tensor, "input pos"]
    noise: Float[torch.Tensor, "input pos d_model"] | None
    cache: Cache
    output: (
        Float[torch.Tensor, "input read vocab"] | Callable[[torch.Tensor], torch.Tensor]
    )  # the logits, or the unembedding
    tail: int = 1  # positions at which the metric is read

    @cached_property
    @torch.inference_mode()
    def logits(self) -> Float[torch.Tensor, "input read vocab"]:
        """Where the metric is read, computed when needed: most metrics read two of them, and the unembedding
        is large."""
        if isinstance(self.output, torch.Tensor):
            return self.output
        return self.output(self.cache.final[:, -self.tail :])


@dataclass(frozen=True)
class Early:
    """Rows of `swap` that climbed behind the runs themselves, before the metric was known: the streams above
    the last block, to be read when they are asked for."""

    rows: MappingType[Row, int]
    top: Float[torch.Tensor, "input row read d_model"]


def every_head(model: Model) -> tuple[Head, ...]:
    """Every head of the model, layer by layer."""
    every = product(range(model.n_layers), range(model.n_heads))
    return tuple(Head(layer, index) for layer, index in every)


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
    early: Early | None = None

    @property
    def path(self) -> Way:
        """Which path measures the rows."""
        return "plain" if self.layout is None else "fast"

    @property
    def length(self) -> int:
        return len(self.pairs[0])

    @property
    def keeps_patterns(self) -> bool:
        """Whether the runs are short enough for that."""
        return isinstance(self.clean.cache.layers[0].pattern, torch.Tensor)

    @property
    def sizes(self) -> dict[str, int]:
        """What rows must fit into."""
        return {"layers": self.model.n_layers, "heads": self.model.n_heads, "length": self.length}

    @property
    def metric(self) -> Metric:
        return self.pairs[0].metric

    @property
    def heads(self) -> tuple[Head, ...]:
        return every_head(self.model)

    @cached_property
    def first_difference(self) -> int:
        return first_difference(self.pairs)

    @torch.inference_mode()
    def values(self, side: Run) -> Float[torch.Tensor, " pair"]:
        """The metric of an unpatched side."""
        return self.mean_over_draws(self._value(side)[:, 0])

    @cached_property
    def gap(self) -> Float[torch.Tensor, " pair"]:
        return self.values(self.clean) - self.values(self.counterfactual)

    def predictions(self, pair: int) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The logits at the last position of one pair, clean and counterfactual (none for noise, which has no
        single one)."""
        row = self._inputs[pair].start
        noisy = isinstance(self.pairs[pair].counterfactual, Noise)
        return self.clean.logits[row, -1], None if noisy else self.counterfactual.logits[row, -1]

    def effects(
        self, rows: Sequence[Row], *, direction: Direction = "swap", given: Given | None = None
    ) -> Effects:
        """The effect of every row on every pair, as a share of the pair's gap. `given` are the values that
        changes of the rows name by number."""
        values = self.mean_over_draws(self.measure([Row(()), *rows], direction=direction, given=given))
        change = values[:, :1] - values[:, 1:]
        return (change / (-self.gap if direction == "restore" else self.gap)[:, None]).T

    @torch.inference_mode()
    def measure(
        self, rows: Sequence[Row], *, direction: Direction = "swap", given: Given | None = None
    ) -> Values:
        """The metric of every row on every input."""
        check_rows(rows, direction=direction, **self.sizes)
        base = self.base(direction)
        new = replace(self.new_values(direction), given=given or {})
        kept = self.reaching([self._with_absent(row, direction) for row in rows], direction)
        values = self._value(base).expand(-1, len(rows)).clone()
        changed = self._changed(kept, base, new, direction)
        if live := changed.any(0).nonzero().flatten().tolist():
            carried = self._carry([kept[index] for index in live], base, new, direction)
            values[:, live] = torch.where(changed[:, live], carried, values[:, live])
        return values

    @torch.inference_mode()
    def identity(self, row: Row) -> float:
        """The largest effect of patching the clean run's own values into it: 0 up to rounding, or the engine
        is wrong."""
        patched = self._carry([row], self.clean, NewValues(self.clean.cache), "swap")[:, 0]
        return float(((self.values(self.clean) - self.mean_over_draws(patched)) / self.gap).abs().max())

    def without(self, heads: Sequence[Head]) -> Runs:
        """The same runs in a model where these heads are absent. Only `swap` and `restore` make sense."""
        return replace(self, absent=tuple(sorted({*self.absent, *heads})))

    def only(self, pairs: Sequence[int]) -> Runs:
        """The runs of some of the pairs."""
        if list(pairs) == list(range(len(self.pairs))):
            return self
        inputs = torch.tensor([row for pair in pairs for row in self._inputs[pair]], device=self.model.device)
        clean, other = _chosen(self.clean, inputs), _chosen(self.counterfactual, inputs)
        chosen, early = tuple(self.pairs[pair] for pair in pairs), _chosen(self.early, inputs)
        return replace(self, pairs=chosen, clean=clean, counterfactual=other, early=early)

    # How a direction reads

    def base(self, direction: Direction) -> Run:
        """The run that a direction starts from."""
        return self.counterfactual if direction == "restore" else self.clean

    def new_values(self, direction: Direction) -> NewValues:
        if direction == "mean":
            if self.family is None:
                raise PromptError("direction 'mean' needs a family of one length: prepare(..., family=pairs)")
            return NewValues(self.family, "mean")
        if direction in ("zero", "knockout"):
            return NewValues(self.clean.cache, "zero")
        return NewValues((self.clean if direction == "restore" else self.counterfactual).cache)

    def _with_absent(self, row: Row, direction: Direction) -> Row:
        """The row in a model where some heads are absent: swapped throughout, or never restored."""
        if not self.absent:
            return row
        absent = {(head.layer, head.index) for head in self.absent}
        kept = [c for c in row.changes if c.site not in ("edge", "head") or (c.layer, c.head) not in absent]
        if direction == "restore":
            return Row(tuple(kept))
        return Row(tuple(sorted((*kept, *Row.of_heads(self.absent, range(self.length)).changes))))

    def reaching(self, rows: Sequence[Row], direction: Direction = "swap") -> list[Row]:
        """The rows without changes that cannot matter: those before the first difference, where both runs are
        the same, and writes that the positions where the metric is read cannot read any more."""
        first = self.first_difference if direction in ("swap", "restore") else 0
        read, top = self.length - self.metric.tail, self.model.n_layers

        def reaches(change: Change) -> bool:
            if change.position < first:
                return False
            above = change.layer + (change.site != "residual")  # the first layer that can read it
            return above < top or change.position >= read

        return [row if all(map(reaches, row.changes)) else row.only(reaches) for row in rows]

    def _changed(self, rows: Sequence[Row], base: Run, new: NewValues, direction: Direction) -> Changed:
        """Which rows change which inputs. A row of edges whose old and new messages are equal (a shut gate)
        changes nothing."""
        inputs, device = len(base.tokens), base.tokens.device
        changed = torch.zeros(inputs, len(rows), dtype=torch.bool, device=device)
        by_layer: dict[int, list[tuple[int, Change]]] = defaultdict(list)
        for index, row in enumerate(rows):
            if direction == "knockout" or any(change.site != "edge" for change in row.changes):
                changed[:, index] = bool(row.changes)
                continue
            for change in row.changes:
                by_layer[change.layer].append((index, change))
        for layer, listed in by_layer.items():
            table = ChangeTable.of(listed, device)
            edges = (layer, table.head, table.key, table.position)
            differs = (new.message(*edges) != NewValues(base.cache).message(*edges)).any(-1)
            every = torch.arange(inputs, device=device)[:, None]
            changed.index_put_((every, table.row[None]), differs.expand(inputs, -1), accumulate=True)
        return changed

    # Carrying and reading

    def _value(self, side: Run) -> Float[torch.Tensor, "input 1"]:
        """The metric of an unpatched side, draw by draw."""
        if self.layout is None or self.metric.reads is None:
            return self.read(side.logits[:, None])
        return self.read_stream(side.cache.final[:, None, -self.metric.tail :])

    def _carry(self, rows: Sequence[Row], base: Run, new: NewValues, direction: Direction) -> Values:
        how = {"knockout": direction == "knockout", "budget": self.budget, "tail": self.metric.tail}
        if self.layout is None:
            from circuits.engine import plain

            return self.read(plain.carry(self.model, base.tokens, base.noise, new, rows, **how))
        swapped = direction == "swap" and new.run is self.counterfactual.cache
        early = dict(self.early.rows) if self.early is not None and swapped else {}
        fresh = [row for row in rows if row not in early]
        top = carry(self.layout, base.cache, new, fresh, **how)
        if self.early is not None and len(fresh) < len(rows):
            number = {**early, **{row: len(early) + index for index, row in enumerate(fresh)}}
            top = torch.cat((self.early.top, top), 1)[:, [number[row] for row in rows]]
        return self.read_stream(top)

    def read_stream(self, top: Float[torch.Tensor, "input row read d_model"]) -> Values:
        """The metric from the stream above the last block; of the vocabulary only what the metric needs."""
        assert self.layout is not None
        if self.metric.reads is None:
            step = max(1, self.budget // (4 * self.model.vocab_size * len(top) * self.metric.tail))
            return torch.cat([self.read(self.layout.logits(part)) for part in top.split(step, 1)], 1)
        answers, foils = zip(*(pair.metric.reads or ((), ()) for pair in self.pairs), strict=True)
        wanted = torch.tensor(
            self.per_input(list(map(add, _padded(answers), _padded(foils)))), device=top.device
        )  # (input, answers and foils)
        logits = self.layout.logits_of(top[:, :, -1], wanted).masked_fill((wanted < 0)[:, None], -torch.inf)
        first_foil = max(map(len, answers))
        return logits[..., :first_foil].logsumexp(-1) - logits[..., first_foil:].logsumexp(-1)

    def read(self, logits: Float[torch.Tensor, "input row read vocab"]) -> Values:
        """The metric from the logits of the whole vocabulary where it is read."""
        metrics = self.per_input([pair.metric for pair in self.pairs])
        clean = self.clean.logits if self.metric.kind == "kl" else [None] * len(metrics)
        each = zip(metrics, logits, clean, strict=True)
        return torch.stack([metric.read(part, own) for metric, part, own in each])

    @cached_property
    def _inputs(self) -> tuple[range, ...]:
        """Which inputs belong to each pair: one, or one a draw of noise."""
        ends = [0]
        for pair in self.pairs:
            ends.append(ends[-1] + draws_of(pair))
        return tuple(map(range, ends, ends[1:]))

    def per_input(self, values: Sequence[T]) -> list[T]:
        """One value a pair to one value an input."""
        return [value for value, inputs in zip(values, self._inputs, strict=True) for _ in inputs]

    def mean_over_draws(self, values: torch.Tensor) -> torch.Tensor:
        """(input, …) to (pair, …): a pair with noise is the mean of its draws."""
        return torch.stack([part.mean(0) for part in values.split([len(inputs) for inputs in self._inputs])])


def _padded(tokens: Sequence[tuple[int, ...]]) -> list[tuple[int, ...]]:
    """As many tokens for each pair, -1 where it has no more."""
    most = max(map(len, tokens))
    return [(*own, *[-1] * (most - len(own))) for own in tokens]


def draws_of(pair: Pair) -> int:
    """How many inputs a pair has."""
    return pair.counterfactual.draws if isinstance(pair.counterfactual, Noise) else 1


def first_difference(pairs: Sequence[Pair]) -> int:
    """The first position at which any pair's inputs differ."""
    return min(position for pair in pairs for position in pair.differs_at)


def _chosen(stored: Any, inputs: torch.Tensor) -> Any:
    """A record of tensors whose first axis is the input, with these inputs alone."""
    if isinstance(stored, torch.Tensor):
        return stored[inputs]
    if isinstance(stored, tuple):
        return tuple(_chosen(part, inputs) for part in stored)
    if is_dataclass(stored) and not isinstance(stored, type):
        parts = {field.name: _chosen(getattr(stored, field.name), inputs) for field in fields(stored)}
        return replace(stored, **parts)
    return stored
