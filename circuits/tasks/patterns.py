"""What kind of attention map a head has, and what a panel of maps shows, in one model and from one model to another.

A map is (query, key), causal, its rows summing to 1, or to less where gates are shut. Query 0 has nothing to choose and is left out.

1. A line is a set of cells: `first token` (key 0), `diagonal` (the query itself), `offset d` (d before the query, from 1 to half the
   prompt, never key 0) and `stripes` (later keys that more than half of the queries behind them read, and three at least).
2. A line's score is its share of the mass of the queries that cross it, set against an even spread of the same rows:
   0 is no more than even, 1 is all of it. A query reads a cell if it gives it 0.15 of the way from even to all; a line that
   fewer than three queries read is no line, and scores 0.
3. `peak` is the largest share in a row, set against even in the same way; `mass` is the sum of a row. Both are means over queries,
   `peak` weighted by mass.
4. Over several prompts the scores are means weighted by mass; the offset is the one that is strongest on average.
5. The kind, by the first rule that holds: `nearly empty` below a mass of 0.05; the name of a line that scores 0.5 or more if no other
   scores 0.25; `hybrid` if any line scores 0.25; `dots` with a peak of 0.5 or more (sharp, but on no line); else `diffuse`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np
import torch

from circuits.errors import EdgeError, PromptError
from circuits.heads import Head
from circuits.models.hooks import PATTERN, Edit
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Prompt

if TYPE_CHECKING:
    from circuits.tasks.records import Task

Kind = Literal["first token", "diagonal", "offset", "stripes", "hybrid", "diffuse", "dots", "nearly empty"]
KINDS: Final[tuple[Kind, ...]] = (
    "first token",
    "diagonal",
    "offset",
    "stripes",
    "hybrid",
    "diffuse",
    "dots",
    "nearly empty",
)
EMPTY: Final = 0.05
DOMINANT: Final = 0.5
PRESENT: Final = 0.25
READ: Final = 0.15  # of the way from an even spread to everything
FEWEST: Final = 3  # queries that make a line
PEAK: Final = 0.5
_BATCH: Final = 16  # prompts that run together


@dataclass(frozen=True, slots=True)
class Pattern:
    """What kind of map it is, and the scores that say so (0…1 each; `distance` is that of the strongest offset, 0 where there is none)."""

    kind: Kind
    first: float
    diagonal: float
    offset: float
    distance: int
    stripes: float
    peak: float
    mass: float

    def __str__(self) -> str:
        return f"offset {self.distance}" if self.kind == "offset" else self.kind


@dataclass(frozen=True, slots=True)
class PanelFigures:
    """What a panel of maps shows, averaged over prompts. Shares are of all mass in the panel from queries after the first."""

    model: str
    prompts: int
    heads: tuple[Head, ...]
    patterns: tuple[Pattern, ...]  # one for each head
    first_token: float  # share of the mass on key 0
    diagonal: float  # share of the mass on the query itself
    dominant_diagonal: float  # share of heads whose diagonal scores half or more
    mean_peak: float  # mean over heads of the largest weight in the map
    peaked: float  # heads with an off-diagonal weight above 0.5
    mass: float  # mean sum of a row; 1 without a gate
    open_edges: float  # weights above 0 in all maps of the panel
    edges: float  # cells on and under the diagonal in all maps of the panel

    def pattern(self, head: str | Head) -> Pattern:
        """The pattern of one head of the panel."""
        wanted = Head.parse(head)
        if wanted not in self.heads:
            raise EdgeError(
                f"no head {wanted} in this panel of {self.model}; it has {' '.join(map(str, self.heads)) or 'none'}"
            )
        return self.patterns[self.heads.index(wanted)]

    @property
    def kinds(self) -> tuple[tuple[Kind, int], ...]:
        """How many heads are of each kind."""
        found = [pattern.kind for pattern in self.patterns]
        return tuple((kind, found.count(kind)) for kind in KINDS if kind in found)


@dataclass(frozen=True, slots=True)
class Changed:
    """One head's pattern in two models."""

    head: Head
    before: Pattern
    after: Pattern

    def __str__(self) -> str:
        return (
            f"{self.head} {self.before} → {self.after}"
            if str(self.before) != str(self.after)
            else f"{self.head} {self.before}"
        )


def changed(before: PanelFigures, after: PanelFigures) -> tuple[Changed, ...]:
    """The heads that both panels have, in the order of the first, with their patterns in each."""
    shared = [head for head in before.heads if head in after.heads]
    return tuple(Changed(head, before.pattern(head), after.pattern(head)) for head in shared)


# Measuring a model


def measure_panel(
    model: Any, task: Task | Sequence[Prompt], *, heads: Sequence[str | Head] | None = None
) -> PanelFigures:
    """What the maps of these heads (by default all) show on the clean prompts of a task."""
    known = as_model(model)
    prompts = _prompts_of(task)
    chosen = _all_heads(known) if heads is None else tuple(_checked(known, head) for head in heads)
    layers, places = [head.layer for head in chosen], [head.index for head in chosen]
    maps = [
        each[layers, places] for each in attention_maps(known, prompts)
    ]  # (head, query, key) for each prompt
    patterns = _patterns([_score(each) for each in maps])
    totals = np.sum([_tally(each) for each in maps], axis=0) / len(maps)
    mass, first, diagonal, opened, edges, peak, peaked, rows = totals.tolist()
    return PanelFigures(
        model=known.name,
        prompts=len(prompts),
        heads=chosen,
        patterns=patterns,
        first_token=first / mass if mass else 0.0,
        diagonal=diagonal / mass if mass else 0.0,
        dominant_diagonal=sum(each.diagonal >= DOMINANT for each in patterns) / max(len(patterns), 1),
        mean_peak=peak / max(len(chosen), 1),
        peaked=peaked,
        mass=mass / rows if rows else 0.0,
        open_edges=opened,
        edges=edges,
    )


def attention_maps(model: Model, prompts: Sequence[Prompt]) -> list[np.ndarray]:
    """The maps (layer, head, query, key) of every prompt, gate applied; prompts of one length run together."""
    found: dict[int, np.ndarray] = {}
    for part in _batches(prompts):
        kept: dict[int, np.ndarray] = {}
        tokens = torch.tensor([prompts[at].tokens for at in part], device=model.device)
        with model.hooked([_keeps(layer, kept) for layer in range(model.n_layers)]):
            model.logits(tokens)
        for number, at in enumerate(part):
            found[at] = np.stack([kept[layer][number] for layer in range(model.n_layers)])
    return [found[at] for at in range(len(prompts))]


def _batches(prompts: Sequence[Prompt]) -> Iterator[list[int]]:
    order = sorted(range(len(prompts)), key=lambda at: len(prompts[at]))
    for _, same in groupby(order, key=lambda at: len(prompts[at])):
        group = list(same)
        yield from (group[start : start + _BATCH] for start in range(0, len(group), _BATCH))


def _keeps(layer: int, kept: dict[int, np.ndarray]) -> Edit:
    def keep(tensor: torch.Tensor, hook: Any) -> None:
        kept[layer] = tensor.float().cpu().numpy()

    return PATTERN.format(layer), keep


def _prompts_of(task: Task | Sequence[Prompt]) -> tuple[Prompt, ...]:
    prompts = tuple(task) if isinstance(task, Sequence) else tuple(pair.clean for pair in task.pairs)
    if not prompts:
        raise PromptError("a panel needs at least one prompt")
    return prompts


def _all_heads(model: Model) -> tuple[Head, ...]:
    return tuple(Head(layer, index) for layer in range(model.n_layers) for index in range(model.n_heads))


def _checked(model: Model, head: str | Head) -> Head:
    known = Head.parse(head)
    if known.layer >= model.n_layers or known.index >= model.n_heads:
        raise EdgeError(
            f"{model.name} has no head {known}; it has {model.n_layers} layers of {model.n_heads} heads"
        )
    return known


def _tally(maps: np.ndarray) -> np.ndarray:
    """Of the maps (head, query, key) of one prompt: mass, that on key 0, that on the diagonal, open edges, edges, peaks, peaked, rows."""
    heads, length = maps.shape[0], maps.shape[-1]
    later = maps[:, 1:].astype(float)
    own = np.diagonal(later, offset=1, axis1=1, axis2=2)
    peaked = (np.tril(later, k=0) > PEAK).any((1, 2))  # row 0 of `later` is query 1, so this is key < query
    largest = later.max((1, 2), initial=0.0)
    counts = (
        (maps > 0).sum(),
        heads * length * (length + 1) / 2,
        largest.sum(),
        peaked.sum(),
        heads * (length - 1),
    )
    return np.array([later.sum(), later[..., 0].sum(), own.sum(), *counts], dtype=float)


# Scores and kinds


def classify(maps: np.ndarray | Sequence[np.ndarray]) -> Pattern:
    """The pattern of one head from its map (query, key), or from its maps on several prompts."""
    several = [maps] if isinstance(maps, np.ndarray) and maps.ndim == 2 else list(maps)
    if not several or any(each.ndim != 2 or each.shape[0] != each.shape[1] for each in several):
        raise PromptError("a map is square, query by key; give one map or several")
    return _patterns([_score(each[None]) for each in several])[0]


@dataclass(frozen=True, slots=True)
class _Scores:
    """Of every head on one prompt. Offsets are from 1 on."""

    lines: np.ndarray  # (head, 3): first token, diagonal, stripes
    offsets: np.ndarray  # (head, offset)
    peak: np.ndarray  # (head)
    mass: np.ndarray  # (head)


def _score(maps: np.ndarray) -> _Scores:
    length = maps.shape[-1]
    if length < 2:
        raise PromptError("a map of one position has nothing to choose; give prompts of two tokens or more")
    weights = maps[:, 1:].astype(float)  # (head, query, key), queries 1…
    rows = weights.sum(-1)  # (head, query)
    shares = np.divide(weights, rows[..., None], out=np.zeros_like(weights), where=rows[..., None] > 0)
    even = 1.0 / np.arange(2, length + 1)
    read = shares >= (even + READ * (1 - even))[:, None]
    query, key = np.arange(1, length)[:, None], np.arange(length)[None]
    on = partial(_on, weights=weights, rows=rows, read=read, even=even)
    columns = (key > 0) & (key < query)
    behind = (columns & (rows > 0)[..., None]).sum(
        1
    )  # (head, key): queries that could read it and read anything
    readers = (read & columns).sum(1)
    stripes = columns & ((readers >= FEWEST) & (readers > behind / 2))[:, None]
    lines = [on(np.broadcast_to(key == 0, columns.shape)), on(key == query), on(stripes)]
    offsets = [on((key == query - distance) & (key > 0)) for distance in range(1, length // 2 + 1)]
    sharp = np.clip((shares.max(-1) - even) / (1 - even), 0, 1)  # (head, query)
    peak = np.divide((sharp * rows).sum(-1), rows.sum(-1), out=np.zeros(len(maps)), where=rows.sum(-1) > 0)
    return _Scores(np.stack(lines, 1), np.stack(offsets, 1), peak, rows.mean(-1))


def _on(
    cells: np.ndarray, *, weights: np.ndarray, rows: np.ndarray, read: np.ndarray, even: np.ndarray
) -> np.ndarray:
    """How far above an even spread the mass on these cells is, from 0 to 1, for each head."""
    crossed = cells.any(-1)  # (query) or (head, query)
    held = (weights * cells).sum((-1, -2))
    room = (rows * crossed).sum(-1)
    expected = (rows * cells.sum(-1) * even).sum(-1)
    score = np.divide(
        held - expected, room - expected, out=np.zeros_like(held), where=room - expected > 1e-12
    )
    readers = (read & cells).any(-1).sum(-1)
    return np.clip(score, 0, 1) * (readers >= FEWEST)


def _patterns(scores: Sequence[_Scores]) -> tuple[Pattern, ...]:
    """Means over prompts, then the kind of each head."""
    mass = np.stack([each.mass for each in scores])  # (prompt, head)
    weight = np.divide(mass, mass.sum(0), out=np.zeros_like(mass), where=mass.sum(0) > 0)
    farthest = min(each.offsets.shape[1] for each in scores)
    lines = np.einsum("ph,phl->hl", weight, np.stack([each.lines for each in scores]))
    offsets = np.einsum("ph,phd->hd", weight, np.stack([each.offsets[:, :farthest] for each in scores]))
    peaks = np.einsum("ph,ph->h", weight, np.stack([each.peak for each in scores]))
    return tuple(_pattern(*each) for each in zip(lines, offsets, peaks, mass.mean(0), strict=True))


def _pattern(lines: np.ndarray, offsets: np.ndarray, peak: float, mass: float) -> Pattern:
    first, diagonal, stripes = lines.tolist()
    offset = float(offsets.max(initial=0.0))
    distance = int(offsets.argmax()) + 1 if offset > 0 else 0
    named: dict[Kind, float] = {
        "first token": first,
        "diagonal": diagonal,
        "offset": offset,
        "stripes": stripes,
    }
    return Pattern(
        _kind(named, peak, mass), first, diagonal, offset, distance, stripes, float(peak), float(mass)
    )


def _kind(lines: dict[Kind, float], peak: float, mass: float) -> Kind:
    (leading, most), (_, second) = sorted(lines.items(), key=lambda item: -item[1])[:2]
    if mass < EMPTY:
        return "nearly empty"
    if most >= DOMINANT and second < PRESENT:
        return leading
    if most >= PRESENT:
        return "hybrid"
    return "dots" if peak >= PEAK else "diffuse"
