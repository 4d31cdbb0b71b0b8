"""Searching among edges and heads: the linear reading of all, the exact effect of all, and the greedy path.

1. A loading is an edge's message times the gradient of the metric, patterns and norm scales frozen: one
   forward and one backward give all of them. It is what published attribution figures show; it never replaces
   an effect.
2. `scan` measures the effect of every edge of a short prompt. In a long one the edges with the largest
   first-order estimate are measured, and `Scan.measured` says which they are.
3. `select` adds heads one after the other, each time the one that raises the joint effect of key → query
   most. The trunk of an input is its clean run in which the messages of the heads taken so far are the
   counterfactual's; what one head more would do is a row behind the trunk, so a step costs one run and half
   of the rows' layers. Every pair has a path of its own, or all share one, chosen by the mean over them.
4. Of equal heads the lower one is taken: equal are joint effects within the rounding that the engine keeps
   to, whatever threads, batch and chunks it runs with (`ROUNDING`). So a head that adds no more than that
   does not help, and a share is reached if that much is missing. A head without any message never joins;
   where no head helps by itself the path is empty, however large the total.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, Literal

import torch
from jaxtyping import Bool, Float

from circuits.components import ROUNDING, Edge, Head
from circuits.engine.block import Norm
from circuits.engine.fast import carry
from circuits.engine.layout import Layout
from circuits.engine.runs import Runs
from circuits.engine.streams import Cache, Direction, Layer, NewValues, Row, Taken, WholeRun, windows
from circuits.errors import ModelError

MOST_EDGES: Final = 20_000
Edges = Float[torch.Tensor, "layer head query key"]
WHOLE: Final = 0.995  # a path ends when it has this share of the total, whatever share is wanted
LEAST_TOTAL: Final = 0.01  # below this a mapping carries nothing, and has no carriers
Path = list[
    tuple[Head, float]
]  # heads in the order in which they were added, each with the joint effect up to it


def loadings(runs: Runs, *, of: Literal["message", "change"] = "message") -> Edges:
    """Every edge's clean message (or its change, clean minus counterfactual) times ∂metric/∂residual, as a
    share of the gap.

    Averaged over pairs. With `of="change"` it is the first-order estimate of the edge's `swap` effect.
    """
    return _by_layer(runs, slice(None), slice(None), of)


def loadings_of(runs: Runs, key: int, query: int) -> Float[torch.Tensor, "layer head"]:
    """The loading of key → query in every head, without those of all other edges."""
    return _by_layer(runs, slice(query, query + 1), slice(key, key + 1), "message")[..., 0, 0]


@torch.inference_mode()
def _by_layer(runs: Runs, queries: slice, keys: slice, of: str) -> Edges:
    if runs.layout is None:
        raise ModelError(f"loadings need the layout of {runs.model.name}, which the fast path does not know")
    layers = [_edges(runs, layer, slope, queries, keys, of) for layer, slope in _gradients(runs, runs.layout)]
    return torch.stack(layers[::-1])


def _edges(
    runs: Runs, layer: int, gradient: torch.Tensor, queries: slice, keys: slice, of: str
) -> Float[torch.Tensor, "head query key"]:
    def read(cache: Cache) -> torch.Tensor:
        stored = cache.layers[layer]
        pattern, value = stored.pattern[:, :, queries, keys], stored.value[:, :, keys]
        return torch.einsum("iqhd,ihqk,ihkd->ihqk", gradient[:, queries], pattern, value)

    scores = read(runs.clean.cache) - (read(runs.counterfactual.cache) if of == "change" else 0)
    return (runs.mean_over_draws(scores) / runs.gap[:, None, None, None]).mean(0)


def _gradients(
    runs: Runs, layout: Layout
) -> Iterator[tuple[int, Float[torch.Tensor, "input pos head d_head"]]]:
    """∂metric/∂z of every layer on the clean inputs, from the last to the first: each block is computed again
    from what it read, so that only one at a time is in memory."""
    cache, tail = runs.clean.cache, runs.metric.tail
    with _gradient():
        top = torch.zeros_like(cache.final)
        top[:, -tail:] = cache.final[:, -tail:]  # elsewhere it was left behind, and nothing reads it
        top.requires_grad_()
        logits = layout.output(layout.final_norm.frozen(top[:, None, -tail:]))
        (above,) = torch.autograd.grad(runs.read(logits).sum(), top)
    for layer in reversed(range(len(layout.blocks))):
        with _gradient():
            block, stored = layout.blocks[layer], cache.layers[layer]
            stream = stored.pre.clone().requires_grad_()
            value = block.split_side(block.v(block.norm1.frozen(stream)), "value", None)
            z = _read(stored, value)
            written = _frozen(block.attention_norm, block.o(z.flatten(-2)))
            middle = stream if layout.parallel else stream + written
            out = stream + written + _frozen(block.mlp_norm, block.mlp(block.norm2.frozen(middle)))
            above, gradient = torch.autograd.grad(out, (stream, z), above)
        yield layer, gradient


def _read(stored: Layer, value: torch.Tensor) -> Float[torch.Tensor, "input pos head d_head"]:
    """What the heads read by the run's own pattern, which is constant here."""
    inputs, length, heads, _ = value.shape
    parts = [
        torch.einsum("ihqk,ikhd->iqhd", stored.pattern[:, :, window].clone(), value)
        for window in windows(length, inputs * heads * length)
    ]
    return torch.cat(parts, 1)


@contextmanager
def _gradient() -> Iterator[None]:
    with torch.inference_mode(False), torch.enable_grad():
        yield


def _frozen(norm: Norm | None, written: torch.Tensor) -> torch.Tensor:
    return written if norm is None else norm.frozen(written)


@dataclass(frozen=True, slots=True)
class Scan:
    """Effects (mean over pairs) of all edges; those not `measured` are 0 here and small by their first-order
    estimate."""

    effect: Edges
    measured: Bool[torch.Tensor, "layer head query key"]

    @property
    def exact(self) -> bool:
        """Whether every edge was measured."""
        length = self.measured.shape[-1]
        return bool(self.measured[..., *torch.tril_indices(length, length)].all())

    def top(self, count: int) -> list[tuple[Edge, float]]:
        """The strongest edges."""
        order = self.effect.abs().flatten().argsort(descending=True, stable=True)[:count]
        indices = torch.stack(torch.unravel_index(order, self.effect.shape), 1).tolist()
        edges = [Edge(Head(layer, head), key, query) for layer, head, query, key in indices]
        return list(zip(edges, self.effect.flatten()[order].tolist(), strict=True))


def scan(runs: Runs, *, direction: Direction = "swap", most: int = MOST_EDGES) -> Scan:
    """The exact effect of every edge, or of the `most` edges with the largest first-order estimate.

    >>> scanned = circuits.scan(circuits.prepare(model, [pair]))
    >>> edge, effect = scanned.top(1)[0]
    >>> print(edge, f"{effect:.2f}")
    L5H1:5→8 0.08
    """
    shape = runs.model.n_layers, runs.model.n_heads, runs.length, runs.length
    chosen = torch.ones(shape, dtype=torch.bool).tril()
    if int(chosen.sum()) > most:
        estimate = loadings(runs, of="change").abs().cpu() * chosen
        chosen = torch.zeros(chosen.numel(), dtype=torch.bool)
        chosen = chosen.index_fill(0, estimate.flatten().topk(most).indices, True).view(shape)
    edges = (Edge(Head(layer, head), key, query) for layer, head, query, key in chosen.nonzero().tolist())
    rows = [Row.of_edges([edge]) for edge in edges]
    effect = torch.zeros(shape)
    effect[chosen] = runs.effects(rows, direction=direction).mean(1).cpu().float()
    return Scan(effect, chosen)


def mapping_row(heads: Sequence[Head], key: int, query: int) -> Row:
    """These heads' messages from key to query, together."""
    return Row.of_edges(Edge(head, key, query) for head in heads)


def mapping_rows(heads: Sequence[Head], key: int, query: int) -> list[Row]:
    """Each head's message from key to query alone, and last all of them together: where a trace begins."""
    return [*(mapping_row([head], key, query) for head in heads), mapping_row(heads, key, query)]


@torch.inference_mode()
def select(
    runs: Runs,
    key: int,
    query: int,
    *,
    effects: Float[torch.Tensor, "head pair"],
    totals: Float[torch.Tensor, " pair"],
    share: float = 1.0,
    together: bool = False,
    among: Collection[Head] | None = None,
    progress: Callable[[float], None] = lambda reached: None,
) -> list[Path]:
    """One path a pair, or one for all together, until `share` of the total is reached or no head helps.

    `effects` are those of the single heads, `totals` those of all heads; both are measured beforehand. Heads
    that are not `among` these are not tried.
    """
    count = len(runs.pairs)
    groups = [list(range(count))] if together else [[pair] for pair in range(count)]
    mean = torch.zeros(len(groups), count, dtype=torch.float64)
    for number, members in enumerate(groups):
        mean[number, members] = 1 / len(members)
    heads, reads = runs.heads, _reads(runs, key, query).T.cpu()  # (head, pair)
    single, total = effects.double().cpu() @ mean.T, (mean @ totals.double().cpu()).tolist()
    left = ((effects.cpu() != 0) | reads).double() @ mean.T > 0  # (head, group)
    if among is not None:
        left &= torch.tensor([head in among for head in heads])[:, None]
    goals = [min(share, WHOLE) * each - ROUNDING for each in total]
    paths: list[Path] = [[] for _ in groups]
    going = [n for n, each in enumerate(total) if each >= LEAST_TOTAL and bool(left[:, n].any())]
    joint = single
    while going:
        for number in going:
            _step(paths[number], joint[:, number], left[:, number], heads)
        if together and paths[0]:
            progress(paths[0][-1][1] / total[0])
        going = [n for n in going if bool(left[:, n].any()) and paths[n][-1][1] < goals[n]]
        if going:
            joint = _with_one_more(runs, key, query, paths, left, groups, going) @ mean.T
    return paths


def _step(
    path: Path, joint: Float[torch.Tensor, " head"], left: Bool[torch.Tensor, " head"], heads: Sequence[Head]
) -> None:
    """Add the head that raises the joint effect most, of equal ones the lowest; where none does, nothing is
    left."""
    open_to, reached = torch.where(left, joint, -torch.inf), path[-1][1] if path else 0.0
    best = int((open_to >= open_to.max() - ROUNDING).nonzero()[0])
    if float(joint[best]) <= reached + ROUNDING:
        left[:] = False
        return
    path.append((heads[best], float(joint[best])))
    left[best] = False


def _reads(runs: Runs, key: int, query: int) -> Bool[torch.Tensor, "pair head"]:
    """Whether a head has any message: a weight above zero in the clean run, or another one in the
    counterfactual."""

    def weights(cache: Cache) -> torch.Tensor:
        return runs.mean_over_draws(torch.cat([layer.pattern[:, :, query, key] for layer in cache.layers], 1))

    clean, other = weights(runs.clean.cache), weights(runs.counterfactual.cache)
    return (clean > 0) | (clean != other)


def _with_one_more(
    runs: Runs,
    key: int,
    query: int,
    paths: Sequence[Path],
    left: Bool[torch.Tensor, "head group"],
    groups: Sequence[Sequence[int]],
    going: Sequence[int],
) -> Float[torch.Tensor, "head pair"]:
    """The joint effect of each pair's heads together with each head that is left in any of the groups still
    going."""
    pairs = [pair for number in going for pair in groups[number]]
    taken = [{head for head, _ in paths[number]} for number in going for _ in groups[number]]
    heads = [
        head for head, wanted in zip(runs.heads, left[:, list(going)].any(1).tolist(), strict=True) if wanted
    ]
    part = runs.only(pairs)
    # In a long prompt a trunk of its own costs more, time and memory, than the layers that rows share.
    by_trunk = part.layout is not None and not part.absent and part.keeps_patterns
    values = (_behind_trunk if by_trunk else _by_rows)(part, taken, heads, key, query)
    joint = torch.zeros(len(runs.heads), len(runs.pairs), dtype=torch.float64)
    numbers = [head.layer * runs.model.n_heads + head.index for head in heads]
    joint[torch.tensor(numbers)[:, None], torch.tensor(pairs)] = values.double().cpu()
    return joint


def _behind_trunk(
    runs: Runs, taken: Sequence[set[Head]], heads: Sequence[Head], key: int, query: int
) -> Float[torch.Tensor, "head pair"]:
    """By the fast path: rows of one head each, behind the run in which each pair's own heads are taken."""
    assert runs.layout is not None
    mask = torch.tensor([[head in own for head in runs.heads] for own in runs.per_input(taken)])
    mask = mask.unflatten(1, (runs.model.n_layers, runs.model.n_heads)).to(runs.model.device)
    clean, other = runs.clean.cache, runs.counterfactual.cache
    trunk = Cache((), clean.layers[0].pre)
    tail, taken_now = runs.metric.tail, Taken(mask, key, query, other)
    run = WholeRun(runs.layout, trunk, start=query, ahead=clean, taken=taken_now, tail=tail)
    rows = [mapping_row([head], key, query) for head in heads]
    how = {"budget": runs.budget, "behind": [run], "taken": taken_now, "tail": tail}
    top = carry(runs.layout, trunk, NewValues(other), rows, **how)
    values = runs.mean_over_draws(runs.read_stream(top))  # (pair, head)
    return ((runs.values(runs.clean)[:, None] - values) / runs.gap[:, None]).T


def _by_rows(
    runs: Runs, taken: Sequence[set[Head]], heads: Sequence[Head], key: int, query: int
) -> Float[torch.Tensor, "head pair"]:
    """By rows that hold all of a pair's heads: pairs that have taken the same are measured together."""
    values = torch.zeros(len(heads), len(runs.pairs))
    for own in {frozenset(each) for each in taken}:
        members = [pair for pair, each in enumerate(taken) if each == own]
        rows = [mapping_row([*own, head], key, query) for head in heads]
        values[:, members] = runs.only(members).effects(rows).float().cpu()
    return values
