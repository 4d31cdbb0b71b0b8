"""A batch of pairs, run once clean and once counterfactual, ready to be asked what any change would do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final, Literal
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float, Int

from circuits.edges import Head
from circuits.engine import fast, plain
from circuits.engine.cache import Cache, FromRun, Scaled, Source
from circuits.engine.layout import Layout, read_layout
from circuits.engine.rows import Direction, Row, check_rows
from circuits.errors import PromptError
from circuits.models import Model
from circuits.prompts import Metric, Noise, Pair

Path = Literal["fast", "plain"]
BUDGET: Final = 64 * 2**20  # bytes of rows under way at once
SMALLEST_GAP: Final = 1e-3

_layouts: WeakKeyDictionary[Model, tuple[int, Layout | None]] = WeakKeyDictionary()  # model -> (longest prompt verified, layout)


@dataclass(frozen=True, slots=True)
class Run:
    """One side of the batch: what went in and what was kept. A pair with noise has one input per draw."""

    tokens: Int[torch.Tensor, "input pos"]
    noise: Float[torch.Tensor, "input pos d_model"] | None
    cache: Cache
    logits: Float[torch.Tensor, "input vocab"]  # at the last position


@dataclass(frozen=True, slots=True)
class Runs:
    """Both sides of a batch of pairs."""

    model: Model
    pairs: tuple[Pair, ...]
    clean: Run
    counterfactual: Run
    family: Cache | None
    layout: Layout | None
    budget: int
    absent: tuple[Head, ...] = ()  # heads that write what they write in the counterfactual run, in every row and in the base

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

    def values(self, side: Run) -> Float[torch.Tensor, " pair"]:
        """The metric of an unpatched side."""
        return self.mean_over_draws(self.read(side.logits[:, None])[:, 0])

    @property
    def gap(self) -> Float[torch.Tensor, " pair"]:
        return self.values(self.clean) - self.values(self.counterfactual)

    def effects(self, rows: Sequence[Row], *, direction: Direction = "swap") -> Float[torch.Tensor, "row pair"]:
        """The effect of every row on every pair, as a share of the pair's gap."""
        if not rows:
            return self.gap.new_zeros(0, len(self.pairs))
        values = self.mean_over_draws(self.measure([Row(()), *rows], direction=direction))
        change = values[:, :1] - values[:, 1:]
        return (change / (-self.gap if direction == "restore" else self.gap)[:, None]).T

    @torch.inference_mode()
    def measure(self, rows: Sequence[Row], *, direction: Direction = "swap") -> Float[torch.Tensor, "input row"]:
        """The metric of every row on every input."""
        check_rows(rows, direction=direction, layers=self.model.n_layers, heads=self.model.n_heads, length=self.length)
        base = self.counterfactual if direction == "restore" else self.clean
        source = self._source(direction)
        kept = [self._without_identical(self._with_absent(row, direction), direction) for row in rows]
        live = self._live(kept, base, source, direction)
        values = self.read(base.logits[:, None]).expand(-1, len(rows)).clone()
        if live:
            values[:, live] = self._carry([kept[index] for index in live], base, source, direction)
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
                raise PromptError("direction 'mean' needs a family of prompts of the same length: prepare(..., family=pairs)")
            return Scaled(FromRun(self.family), "mean")
        if direction in ("zero", "knockout"):
            return Scaled(FromRun(self.clean.cache), "zero")
        return FromRun((self.clean if direction == "restore" else self.counterfactual).cache)

    def _with_absent(self, row: Row, direction: Direction) -> Row:
        """The row in a model where some heads are absent: swapped throughout, or never restored."""
        if not self.absent:
            return row
        gone = {(head.layer, head.index) for head in self.absent}
        kept = tuple(change for change in row.changes if change.site not in ("edge", "head") or (change.layer, change.head) not in gone)
        if direction == "restore":
            return Row(kept)
        return Row(tuple(sorted((*kept, *Row.of_heads(self.absent, range(self.length)).changes))))

    def without(self, heads: Sequence[Head]) -> Runs:
        """The same runs in a model where these heads are absent. Only `swap` and `restore` make sense there."""
        return replace(self, absent=tuple(sorted({*self.absent, *heads})))

    def _without_identical(self, row: Row, direction: Direction) -> Row:
        """The row without changes at positions before the first difference, where both runs are the same."""
        if direction not in ("swap", "restore"):
            return row
        first = min(at for pair in self.pairs for at in pair.differs_at)
        return Row(tuple(change for change in row.changes if change.position >= first))

    def _live(self, rows: Sequence[Row], base: Run, source: Source, direction: Direction) -> list[int]:
        """The rows that change anything. With gates, a row of edges whose old and new messages are equal does not."""
        candidates = [index for index, row in enumerate(rows) if row.changes]
        if not self.model.gated or direction == "knockout":
            return candidates
        live = {index for index in candidates if any(change.site != "edge" for change in rows[index].changes)}
        own = FromRun(base.cache)
        for layer in range(self.model.n_layers):
            listed = [(index, c) for index in candidates for c in rows[index].changes if c.layer == layer and c.site == "edge"]
            if listed:
                todo = fast.Todo.of(listed, base.tokens.device)
                where = (layer, todo.head, todo.key, todo.at)
                differs = (source.message(*where) != own.message(*where)).any(-1).any(0)
                live.update(todo.row[differs].tolist())
        return sorted(live)

    # Carrying and reading

    def _carry(self, rows: Sequence[Row], base: Run, source: Source, direction: Direction) -> Float[torch.Tensor, "input row"]:
        knockout = direction == "knockout"
        if self.layout is None:
            logits = plain.carry(self.model, base.tokens, base.noise, source, rows, knockout=knockout, budget=self.budget)
            return self.read(logits)
        top = fast.carry(self.layout, base.cache, source, rows, knockout=knockout, budget=self.budget)
        step = max(1, self.budget // (4 * self.model.vocab_size * len(top))) if self.metric.reads is None else len(rows)
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
        answer = self._per_input([pair.metric.answer for pair in self.pairs])[:, None, None].expand(-1, logits.shape[1], -1)
        match self.metric.kind:
            case "logit_diff":
                foil = self._per_input([pair.metric.foil for pair in self.pairs])[:, None, None].expand_as(answer)
                return (logits.gather(-1, answer) - logits.gather(-1, foil))[..., 0]
            case "logprob":
                return logits.log_softmax(-1).gather(-1, answer)[..., 0]
            case "kl":
                wanted = self.clean.logits[:, None].log_softmax(-1)
                return -(wanted.exp() * (wanted - logits.log_softmax(-1))).sum(-1)
            case _:
                functions = [pair.metric.function for pair in self.pairs for _ in range(_draws(pair))]
                read = [function(part) for function, part in zip(functions, logits, strict=True) if function is not None]
                if any(value.shape != logits.shape[1:2] for value in read):
                    raise PromptError(
                        f"a metric function takes logits (row, vocab) and returns one number a row, not {tuple(read[0].shape)}"
                    )
                return torch.stack(read)

    def _per_input(self, values: Sequence[object]) -> torch.Tensor:
        repeated = [value for value, pair in zip(values, self.pairs, strict=True) for _ in range(_draws(pair))]
        return torch.tensor(repeated, device=self.model.device)

    def mean_over_draws(self, values: torch.Tensor) -> torch.Tensor:
        """(input, …) to (pair, …): a pair with noise is the mean of its draws."""
        parts = values.split([_draws(pair) for pair in self.pairs])
        return torch.stack([part.mean(0) for part in parts])


@torch.inference_mode()
def prepare(
    model: Model,
    pairs: Sequence[Pair],
    *,
    family: Sequence[Pair] | None = None,
    path: Path | None = None,
    budget: int = BUDGET,
    smallest_gap: float = SMALLEST_GAP,
) -> Runs:
    """Run the pairs clean and counterfactual; `path` forces the fast or the plain path."""
    if not pairs:
        raise PromptError("there is no pair to run")
    lengths = {len(pair) for pair in (*pairs, *(family or ()))}
    if len(lengths) > 1:
        raise PromptError(
            f"pairs that are run together have the same number of tokens; these have {sorted(lengths)}: run each length by itself"
        )
    if len({pair.metric.kind for pair in pairs}) > 1:
        raise PromptError("pairs that are run together have the same kind of metric")
    tokens = _stack([pair.clean.tokens for pair in pairs for _ in range(_draws(pair))], model)
    others = _stack(
        [
            (pair.clean if isinstance(pair.counterfactual, Noise) else pair.counterfactual).tokens
            for pair in pairs
            for _ in range(_draws(pair))
        ],
        model,
    )
    layout = None if path == "plain" else _layout(model, tokens[:1])
    if path == "fast" and layout is None:
        raise PromptError(f"the fast path does not know the layout of {model.name}; leave path out, and the plain path is taken")
    clean, other = _both(model, layout, tokens, others, _noise(model, pairs))
    relatives = None if family is None else _run(model, layout, _stack([pair.clean.tokens for pair in family], model), None).cache
    runs = Runs(model, tuple(pairs), clean, other, relatives, layout, budget)
    for pair, gap in zip(pairs, runs.gap.tolist(), strict=True):
        if not abs(gap) >= smallest_gap:
            raise PromptError(
                f"the counterfactual changes {pair.metric} by {gap:.2g} only, too little to divide by; "
                "swap a word that matters more, or name another answer and foil"
            )
    return runs


def _draws(pair: Pair) -> int:
    return pair.counterfactual.draws if isinstance(pair.counterfactual, Noise) else 1


def _stack(rows: Sequence[Sequence[int]], model: Model) -> Int[torch.Tensor, "input pos"]:
    return torch.tensor(rows, device=model.device)


def _layout(model: Model, probe: Int[torch.Tensor, "1 pos"]) -> Layout | None:
    """The model's layout, verified on a prompt at least this long."""
    longest, layout = _layouts.get(model, (0, None))
    if probe.shape[1] > longest and (longest == 0 or layout is not None):
        layout = read_layout(model, probe)
        _layouts[model] = (probe.shape[1], layout)
    return layout


def _run(model: Model, layout: Layout | None, tokens: torch.Tensor, noise: torch.Tensor | None) -> Run:
    if layout is None:
        cache, logits = plain.run(model, tokens, noise)
        return Run(tokens, noise, cache, logits)
    embedded = layout.embed(tokens)
    cache = layout.run(embedded if noise is None else embedded + noise)
    return Run(tokens, noise, cache, layout.logits(cache.final[:, -1]))


def _both(model: Model, layout: Layout | None, tokens: torch.Tensor, others: torch.Tensor, noise: torch.Tensor | None) -> tuple[Run, Run]:
    """Both sides; where the layout is known in one pass, the positions before the first difference once."""
    if layout is None:
        return _run(model, layout, tokens, None), _run(model, layout, others, noise)
    clean, other = layout.embed(tokens), layout.embed(others)
    other = other if noise is None else other + noise
    differs = (clean != other).any(-1).any(0)  # (pos)
    start = int(differs.int().argmax()) if differs.any() else tokens.shape[1] - 1
    caches = layout.run_both(clean, other[:, start:])
    logits = layout.logits(torch.cat([cache.final[:, -1] for cache in caches])).split(len(tokens))
    return Run(tokens, None, caches[0], logits[0]), Run(others, noise, caches[1], logits[1])


def _noise(model: Model, pairs: Sequence[Pair]) -> Float[torch.Tensor, "input pos d_model"] | None:
    """Seeded noise on the embeddings, in standard deviations of the embedding matrix; nothing where a pair has a text."""
    if not any(isinstance(pair.counterfactual, Noise) for pair in pairs):
        return None
    scale = float(model.bridge.W_E.std())
    drawn = []
    for pair in pairs:
        noise = torch.zeros(_draws(pair), len(pair), model.d_model)
        if isinstance(pair.counterfactual, Noise):
            chance = torch.Generator().manual_seed(pair.counterfactual.seed)
            at = list(pair.counterfactual.positions)
            noise[:, at] = torch.randn(len(noise), len(at), model.d_model, generator=chance) * scale * pair.counterfactual.scale
        drawn.append(noise)
    return torch.cat(drawn).to(model.device, model.dtype)
