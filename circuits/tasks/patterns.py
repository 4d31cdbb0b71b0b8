"""What kind of attention map a head has, and what a panel of maps shows, in one model and between two.

A map is (query, key), causal, its rows summing to 1, or to less where gates are shut. Query 0 has no choice:
it is left out.

1. A line is a set of cells: `first token` (key 0), `diagonal` (the query itself), `offset d` (d before the
   query, up to half the prompt, never key 0), `stripes` (later keys that three queries or more, and more than
   half of those behind them, read).
2. A line's score is its share of the mass of the queries that cross it, set against an even spread of
   the same rows: 0 is no more than even, 1 is all. A query reads a cell that has 0.15 of the way from even to
   all; a line that fewer than three queries read scores 0.
3. `peak` is the largest share in a row, set against even in the same way; `mass` is the sum of a row. Both
   are means over queries, `peak` weighted by mass. Over several prompts scores are means weighted by mass,
   and the offset is the one that is strongest on average.
4. The kind, by the first rule that holds: `nearly empty` below a mass of 0.05; the name of a line that scores
   0.5 or more if no other scores 0.25; `hybrid` if any line scores 0.25; `dots` with a peak of 0.5 or more;
   else `diffuse`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np
import torch

from circuits.components import Head
from circuits.errors import EdgeError, PromptError
from circuits.models.load import as_model
from circuits.models.model import PATTERN, Model
from circuits.prompts import Prompt
from circuits.results import Saved, require
from circuits.tasks.task import Task, of_equal_length

Kind = Literal["first token", "diagonal", "offset", "stripes", "hybrid", "diffuse", "dots", "nearly empty"]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
EMPTY: Final = 0.05
DOMINANT: Final = 0.5
PRESENT: Final = 0.25
READ: Final = 0.15  # of the way from an even spread to everything
FEWEST: Final = 3  # queries that make a line
PEAK: Final = 0.5


@dataclass(frozen=True, slots=True)
class Pattern:
    """What kind of map it is, and the scores that say so, 0…1 each.

    >>> pattern = circuits.classify(found.pattern("L5H1"))
    >>> pattern.kind
    'first token'
    """

    kind: Kind
    first: float
    diagonal: float
    offset: float
    distance: int  # of the strongest offset, 0 where there is none
    stripes: float
    peak: float
    mass: float

    def __str__(self) -> str:
        return f"offset {self.distance}" if self.kind == "offset" else self.kind


@dataclass(frozen=True, slots=True)
class PanelFigures(Saved):
    """What a panel of maps shows, averaged over prompts. Shares are of the mass of queries 1 and later.

    >>> figures = circuits.measure_panel(model, [found.prompt], heads=found.carriers())
    >>> f"{figures.mean_peak:.2f}"
    '0.95'
    >>> circuits.PanelFigures.load(figures.save(folder / "panel")) == figures
    True
    """

    KIND: ClassVar = "panel"
    NAME: ClassVar = "a panel of maps"

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
            heads = " ".join(map(str, self.heads)) or "none"
            raise EdgeError(f"no head {wanted} in this panel of {self.model}; it has {heads}")
        return self.patterns[self.heads.index(wanted)]

    @property
    def kinds(self) -> tuple[tuple[Kind, int], ...]:
        """How many heads are of each kind."""
        kinds = [pattern.kind for pattern in self.patterns]
        return tuple((kind, kinds.count(kind)) for kind in KINDS if kind in kinds)

    def check(self) -> None:
        require(len(self.heads) == len(self.patterns), "it does not have one pattern for each head")
        require(len(set(self.heads)) == len(self.heads), "it names a head twice")

    def __str__(self) -> str:
        from circuits.show.task_tables import panel_text

        return panel_text(self)


@dataclass(frozen=True, slots=True)
class Changed:
    """One head's pattern in two models."""

    head: Head
    before: Pattern
    after: Pattern

    def __str__(self) -> str:
        after = f" → {self.after}" if str(self.before) != str(self.after) else ""
        return f"{self.head} {self.before}{after}"


def changed(before: PanelFigures, after: PanelFigures) -> tuple[Changed, ...]:
    """The heads that both panels have, in the order of the first, with their patterns in each."""
    shared = [head for head in before.heads if head in after.heads]
    return tuple(Changed(head, before.pattern(head), after.pattern(head)) for head in shared)


def measure_panel(
    model: Any, task: Task | Sequence[Prompt], *, heads: Sequence[str | Head] | None = None
) -> PanelFigures:
    """What the maps of these heads (by default all) show on the clean prompts of a task.

    >>> figures = circuits.measure_panel(model, [found.prompt])
    >>> len(figures.heads), figures.open_edges == figures.edges
    (144, True)
    """
    model = as_model(model)
    prompts = [pair.clean for pair in task.pairs] if isinstance(task, Task) else task
    if not prompts:
        raise PromptError("a panel needs at least one prompt")
    chosen = _heads(model, heads)
    maps = [each[*_indices(chosen)] for each in attention_maps(model, prompts)]  # (head, query, key) each
    patterns = _patterns([_score(each) for each in maps])
    dominant = sum(each.diagonal >= DOMINANT for each in patterns)
    tallies = np.mean([_tally(each) for each in maps], axis=0).tolist()
    mass, first, diagonal, opened, edges, peak, peaked, rows = tallies
    shares = (first / (mass or 1), diagonal / (mass or 1), dominant / (len(chosen) or 1))
    means = (peak / (len(chosen) or 1), peaked, mass / (rows or 1))
    return PanelFigures(model.name, len(prompts), chosen, patterns, *shares, *means, opened, edges)


def attention_maps(model: Model, prompts: Sequence[Prompt]) -> list[np.ndarray]:
    """The maps (layer, head, query, key) of every prompt, gate applied."""
    maps: dict[int, np.ndarray] = {}
    layers: list[np.ndarray] = []  # (prompt, head, query, key) each

    def keep(pattern: torch.Tensor, hook: Any) -> None:
        layers.append(pattern.float().cpu().numpy())

    for part in of_equal_length(enumerate(prompts)):
        layers.clear()
        with model.hooked([(PATTERN.format(layer), keep) for layer in range(model.n_layers)]):
            model.logits(torch.tensor([prompts[index].tokens for index in part], device=model.device))
        maps |= zip(part, np.stack(layers, 1), strict=True)
    return [maps[index] for index in range(len(prompts))]


def maps_of(model: Model, prompt: Prompt, heads: Sequence[Head]) -> tuple[np.ndarray, ...]:
    """The maps (query, key) of these heads on one prompt."""
    return tuple(attention_maps(model, [prompt])[0][*_indices(heads)])


def _heads(model: Model, names: Sequence[str | Head] | None) -> tuple[Head, ...]:
    """The named heads, which must exist, or all."""
    every = tuple(Head(*index) for index in np.ndindex(model.n_layers, model.n_heads))
    heads = every if names is None else tuple(map(Head.parse, names))
    if absent := [head for head in heads if head not in every]:
        sizes = f"{model.n_layers} layers of {model.n_heads} heads"
        raise EdgeError(f"{model.name} has no head {absent[0]}; it has {sizes}")
    return heads


def _indices(heads: Sequence[Head]) -> tuple[list[int], list[int]]:
    return [head.layer for head in heads], [head.index for head in heads]


def _tally(maps: np.ndarray) -> np.ndarray:
    """Of one prompt: mass, mass on key 0 and on the diagonal, open edges, edges, peaks, peaked, rows."""
    heads, length = maps.shape[0], maps.shape[-1]
    later = maps[:, 1:].astype(float)
    diagonal = np.diagonal(later, offset=1, axis1=1, axis2=2)
    peaked = (np.tril(later) > PEAK).any((1, 2))  # row 0 of `later` is query 1, so this is key < query
    mass = [later.sum(), later[..., 0].sum(), diagonal.sum()]
    edges = [(maps > 0).sum(), heads * length * (length + 1) / 2]
    return np.array([*mass, *edges, later.max((1, 2), initial=0.0).sum(), peaked.sum(), heads * (length - 1)])


def classify(maps: np.ndarray | Sequence[np.ndarray]) -> Pattern:
    """The pattern of one head from its map (query, key), or from its maps on several prompts.

    >>> circuits.classify(found.pattern("L5H1")).kind
    'first token'
    """
    several = [maps] if isinstance(maps, np.ndarray) and maps.ndim == 2 else list(maps)
    if not several or any(each.ndim != 2 or each.shape[0] != each.shape[1] for each in several):
        raise PromptError("a map is square, query by key; give one map or several")
    return _patterns([_score(each[None]) for each in several])[0]


def _score(maps: np.ndarray) -> np.ndarray:
    """Of one prompt, (score, head): mass, peak, first token, diagonal, stripes, and offsets 1, 2, …"""
    length = maps.shape[-1]
    if length < 2:
        raise PromptError("a map of one position has nothing to choose; give prompts of two tokens or more")
    weights = maps[:, 1:].astype(float)  # (head, query, key), queries 1…
    rows = weights.sum(-1)  # (head, query)
    shares = _ratio(weights, rows[..., None])
    even = 1.0 / np.arange(2, length + 1)
    read = shares >= (even + READ * (1 - even))[:, None]
    query, key = np.arange(1, length)[:, None], np.arange(length)[None]

    def above_even(cells: np.ndarray) -> np.ndarray:
        """How far above an even spread the mass on these cells is, from 0 to 1, for each head."""
        expected = (rows * cells.sum(-1) * even).sum(-1)
        most = (rows * cells.any(-1)).sum(-1) - expected
        score = _ratio((weights * cells).sum((-1, -2)) - expected, most, least=1e-12)
        readers = (read & cells).any(-1).sum(-1)
        return np.clip(score, 0, 1) * (readers >= FEWEST)

    columns = (key > 0) & (key < query)
    behind = (columns & (rows > 0)[..., None]).sum(1)  # (head, key): queries that could read it and read some
    readers = (read & columns).sum(1)
    stripes = columns & ((readers >= FEWEST) & (readers > behind / 2))[:, None]
    offsets = ((key == query - distance) & (key > 0) for distance in range(1, length // 2 + 1))
    lines = (np.broadcast_to(key == 0, columns.shape), key == query, stripes, *offsets)
    sharp = np.clip((shares.max(-1) - even) / (1 - even), 0, 1)  # (head, query)
    peak = _ratio((sharp * rows).sum(-1), rows.sum(-1))
    return np.stack([rows.mean(-1), peak, *map(above_even, lines)])


def _ratio(part: np.ndarray, whole: np.ndarray, *, least: float = 0.0) -> np.ndarray:
    """The quotient, and 0 where there is nothing to divide by."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > least)


def _patterns(scores: Sequence[np.ndarray]) -> tuple[Pattern, ...]:
    """The pattern of each head by its mean scores over prompts, for the offsets that all prompts have."""
    fewest = min(map(len, scores))
    every = np.stack([each[:fewest] for each in scores])  # (prompt, score, head)
    mass = every[:, 0]
    means = np.einsum("ph,psh->hs", _ratio(mass, mass.sum(0)), every)
    return tuple(map(_pattern, mass.mean(0).tolist(), means.tolist()))


def _pattern(mass: float, scores: Sequence[float]) -> Pattern:
    _, peak, first, diagonal, stripes, *offsets = scores
    offset = max(offsets)
    distance = offsets.index(offset) + 1 if offset > 0 else 0
    kind = _kind((first, diagonal, offset, stripes), peak, mass)
    return Pattern(kind, first, diagonal, offset, distance, stripes, peak, mass)


def _kind(lines: Sequence[float], peak: float, mass: float) -> Kind:
    """The kind by the scores of the lines in the order of KINDS."""
    most, second = sorted(lines, reverse=True)[:2]
    if mass < EMPTY:
        return "nearly empty"
    if most >= DOMINANT and second < PRESENT:
        return KINDS[lines.index(most)]
    if most >= PRESENT:
        return "hybrid"
    return "dots" if peak >= PEAK else "diffuse"
