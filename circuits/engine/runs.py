"""`prepare`: a batch of pairs, run once clean and once counterfactual, ready to be asked what any change
would do."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from collections.abc import Mapping as MappingType
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from itertools import product
from operator import add
from typing import Any, Final, Literal, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float, Int

from circuits.engine.fast import WholeRun, carry, climb
from circuits.engine.layout import Layout, read_layout
from circuits.engine.rows import Cache, Change, ChangeTable, Direction, Given, NewValues, Row, check_rows
from circuits.errors import PromptError
from circuits.heads import Head
from circuits.models.model import Model
from circuits.prompts import Metric, Noise, Pair, Question

Path = Literal["fast", "plain"]
BUDGET: Final = (
    32 * 2**20
)  # bytes of rows under way at once: what a processor's cache holds, enough for tall products
SMALLEST_GAP: Final = 1e-3
_TOLERANCE: Final = 1e-3  # of the largest logit, between a whole run on the fast path and the model's own
_ROUNDINGS: Final = 4  # as many of the dtype's are allowed for, where that is more (fp16, bf16)
_layouts: WeakKeyDictionary[Model, tuple[int, Layout | None]] = (
    WeakKeyDictionary()
)  # -> (longest prompt verified, layout)
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
    def path(self) -> Path:
        """Which path measures the rows."""
        return "plain" if self.layout is None else "fast"

    @property
    def length(self) -> int:
        return len(self.pairs[0])

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
        kept = [self.reaching(self._with_absent(row, direction), direction) for row in rows]
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

    def reaching(self, row: Row, direction: Direction = "swap") -> Row:
        """The row without changes that cannot matter: those before the first difference, where both runs are
        the same, and writes that the positions where the metric is read cannot read any more."""
        first = self.first_difference if direction in ("swap", "restore") else 0

        def reaches(change: Change) -> bool:
            above = change.layer + (change.site != "residual")  # the first layer that can read it
            read = change.position >= self.length - self.metric.tail or above < self.model.n_layers
            return change.position >= first and read

        return Row(tuple(filter(reaches, row.changes)))

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


# Preparing


def prepare(
    model: Model,
    pairs: Sequence[Pair | Question],
    *,
    rows: Sequence[Row] = (),
    family: Sequence[Pair] | None = None,
    path: Path | None = None,
    budget: int = BUDGET,
    smallest_gap: float = SMALLEST_GAP,
) -> Runs:
    """Run the pairs clean and counterfactual; `path` forces the fast or the plain path.

    A question is settled by what the model predicts in these runs: answer and foil, where the user named
    none. `rows` that will be asked for first climb behind the runs, which costs them no pass of their own.
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


@torch.inference_mode()
def _run(
    model: Model,
    pairs: Sequence[Pair],
    rows: Sequence[Row],
    family: Sequence[Pair] | None,
    path: Path | None,
    budget: int,
) -> Runs:
    if not pairs:
        raise PromptError("there is no pair to run")
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
    early = list(dict.fromkeys(row for row in map(runs.reaching, rows) if row.changes))
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
    longest, layout = _layouts.get(model, (0, None))
    if probe.shape[1] > longest and (longest == 0 or layout is not None):
        layout = _verified(model, probe)
        _layouts[model] = (probe.shape[1], layout)
    return layout


def _verified(model: Model, probe: Int[torch.Tensor, "1 pos"]) -> Layout | None:
    try:
        layout = read_layout(model)
        run = _embedded(layout, probe, None)
        climb(layout, [WholeRun(layout, run)])
        ours, own = layout.logits(run.final[:, -1]), model.logits(probe)[:, -1]
    except (AttributeError, TypeError, RuntimeError):  # a part that is missing, or of another shape
        return None
    tolerance = max(_TOLERANCE, _ROUNDINGS * torch.finfo(own.dtype).eps)
    return layout if torch.allclose(ours, own, rtol=0, atol=tolerance * float(own.abs().max())) else None


def _noise(model: Model, pairs: Sequence[Pair]) -> Float[torch.Tensor, "input pos d_model"] | None:
    """Seeded noise on the embeddings, in standard deviations of the embedding matrix; nothing where a pair
    has a text."""
    if not any(isinstance(pair.counterfactual, Noise) for pair in pairs):
        return None
    embedding = model.bridge.W_E
    scale, width = float(embedding.std()) * model.embedding_scale, embedding.shape[-1]
    drawn = []
    for pair in pairs:
        noise = torch.zeros(draws_of(pair), len(pair), width)
        if isinstance(pair.counterfactual, Noise):
            generator = torch.Generator().manual_seed(pair.counterfactual.seed)
            positions = list(pair.counterfactual.positions)
            random = torch.randn(len(noise), len(positions), width, generator=generator)
            noise[:, positions] = random * scale * pair.counterfactual.scale
        drawn.append(noise)
    return torch.cat(drawn).to(model.device, model.dtype)
