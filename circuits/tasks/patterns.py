"""What kind of attention map a head has, and what a panel of maps shows, in one model and between two.

A map is (query, key) and causal. Its rows sum to 1, or to less where gates are shut. Query 0 can only read
itself, so it is left out.

1. A line is a set of cells: `first token` (key 0), `diagonal` (the query itself), `offset d` (the key d
   before the query, with d up to half the prompt, never key 0), `stripes` (keys after 0 that at least three
   queries read, and more than half of the queries after them).
2. The score of a line compares the attention mass on its cells with an even spread of the same rows: 0 means
   no more than even, 1 means all mass. Only queries that the line crosses count. A query reads a cell whose
   weight lies at least 0.15 of the way from even to all; a line that fewer than three queries read scores 0.
3. `peak` is the largest weight in a row, compared with an even spread in the same way; `mass` is the sum of a
   row. Both are means over queries, `peak` weighted by mass. Over several prompts, scores are means weighted
   by mass, and the offset is the one with the largest mean.
4. The kind, by the first rule that holds: `nearly empty` below a mass of 0.05; the name of a line that scores
   0.5 or more if no other scores 0.25; `hybrid` if any line scores 0.25; `dots` with a peak of 0.5 or more;
   else `diffuse`.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, ClassVar, Final, Literal, get_args

import numpy as np
import torch

from circuits.components import Head
from circuits.engine.runs import every_head
from circuits.errors import EdgeError, PromptError
from circuits.models.hooks import PATTERN
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Prompt
from circuits.results import OfHeads, Saved, require
from circuits.tasks.task import END, Item, Task, of_equal_length

Kind = Literal[
    "first token", "diagonal", "offset", "stripes", "hybrid", "diffuse", "dots", "nearly empty"
]
KINDS: Final[tuple[Kind, ...]] = get_args(Kind)
EMPTY: Final = 0.05  # a map with less mass in a row is nearly empty
DOMINANT: Final = 0.5  # the score of a line that names the map
PRESENT: Final = 0.25  # the score of a line that makes the map a hybrid
READ: Final = 0.15  # how far from an even spread to all mass a weight must be to count as read
FEWEST: Final = 3  # queries that must read a line
PEAK: Final = 0.5  # a weight, or a peak compared with an even spread, that makes a dot


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


@dataclass(frozen=True, slots=True, repr=False)
class PanelFigures(OfHeads, Saved):
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
    # For each head the named word of the task that its last row reads most, and the mean weight there: a map
    # may be of one kind as a whole, and the row that answers of another. Empty where words have no names.
    reads: tuple[tuple[str, float], ...] = ()

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each head of the panel: what kind of map it has, and the scores that say so."""
        pairs = zip(self.heads, self.patterns, strict=True)
        return [{"head": str(head), **asdict(pattern)} for head, pattern in pairs]

    def head_array(self, value: str = "peak") -> np.ndarray:
        """One score of the heads of the panel, (layer, head)."""
        return super(PanelFigures, self).head_array(value)

    def read_by(self, head: str | Head) -> str:
        """`IO 0.62`: what a head's last row reads most, among the named words; empty where none are named."""
        if not self.reads:
            return ""
        self.pattern(head)  # refuses a head that is not in the panel
        role, weight = self.reads[self.heads.index(Head.parse(head))]
        return f"{role} {weight:.2f}"

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
        require(
            len(self.heads) == len(self.patterns), "it does not have one pattern for each head"
        )
        require(len(set(self.heads)) == len(self.heads), "it names a head twice")
        one_each = not self.reads or len(self.reads) == len(self.heads)
        require(one_each, "it does not have one named word for each head")

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
    # (head, query, key) each
    maps = [_chosen_maps(each, chosen) for each in attention_maps(model, prompts)]
    patterns = _patterns([_score(each) for each in maps])
    dominant = sum(pattern.diagonal >= DOMINANT for pattern in patterns)
    tallies = [_tally(each) for each in maps]
    mean = {name: float(np.mean([tally[name] for tally in tallies])) for name in tallies[0]}
    mass = mean["mass"] or 1  # an empty panel has no mass, and all its shares are 0
    count = len(chosen) or 1
    return PanelFigures(
        model=model.name,
        prompts=len(prompts),
        heads=chosen,
        patterns=patterns,
        first_token=mean["mass on key 0"] / mass,
        diagonal=mean["mass on the diagonal"] / mass,
        dominant_diagonal=dominant / count,
        mean_peak=mean["largest weights"] / count,
        peaked=mean["peaked heads"],
        mass=mean["mass"] / (mean["rows"] or 1),
        open_edges=mean["open edges"],
        edges=mean["edges"],
        reads=_reads(task.items, maps) if isinstance(task, Task) else (),
    )


def _reads(items: Sequence[Item], maps: Sequence[np.ndarray]) -> tuple[tuple[str, float], ...]:
    """For each head the role that the last row of its map, (head, query, key), reads most on average."""
    position_of = [dict(item.roles) for item in items]  # by role, for each item
    shared = set(position_of[0]) - {END}
    for positions in position_of:
        shared &= positions.keys()
    if not shared:
        return ()
    roles = [role for role in position_of[0] if role in shared]
    weights = np.zeros((len(roles), len(maps[0])))  # (role, head)
    for positions, of_item in zip(position_of, maps, strict=True):
        for row, role in enumerate(roles):
            weights[row] += of_item[:, -1, positions[role]] / len(maps)
    best = weights.argmax(0).tolist()
    return tuple((roles[row], float(weights[row, head])) for head, row in enumerate(best))


def _tally(maps: np.ndarray) -> dict[str, float]:
    """What is counted in the maps (head, query, key) of one prompt; in all rows but that of query 0, except
    for the edges."""
    heads, length, _ = maps.shape
    later = maps[:, 1:].astype(float)
    # Row 0 is query 1, so its lower triangle has the keys before the query.
    off_diagonal = np.tril(later)
    return {
        "rows": heads * (length - 1),
        "mass": later.sum(),
        "mass on key 0": later[..., 0].sum(),
        "mass on the diagonal": np.diagonal(later, 1, 1, 2).sum(),
        "largest weights": later.max((1, 2), initial=0.0).sum(),
        "peaked heads": (off_diagonal > PEAK).any((1, 2)).sum(),
        "open edges": (maps > 0).sum(),
        "edges": heads * length * (length + 1) / 2,
    }


def attention_maps(model: Model, prompts: Sequence[Prompt]) -> list[np.ndarray]:
    """The maps (layer, head, query, key) of every prompt, gate applied."""
    maps: dict[int, np.ndarray] = {}
    layers: list[np.ndarray] = []  # (prompt, head, query, key) each

    def keep(pattern: torch.Tensor, hook: Any) -> None:
        layers.append(pattern.float().cpu().numpy())

    hooks = [(PATTERN.format(layer), keep) for layer in range(model.n_layers)]
    for numbers in of_equal_length(dict(enumerate(prompts))):
        tokens = torch.tensor(
            [prompts[number].tokens for number in numbers], device=model.device
        )
        layers.clear()
        with model.hooked(hooks):
            model.logits(tokens)
        maps |= zip(numbers, np.stack(layers, 1), strict=True)
    return [maps[number] for number in range(len(prompts))]


def maps_of(model: Model, prompt: Prompt, heads: Sequence[Head]) -> tuple[np.ndarray, ...]:
    """The maps (query, key) of these heads on one prompt."""
    return tuple(_chosen_maps(attention_maps(model, [prompt])[0], heads))


def _chosen_maps(maps: np.ndarray, heads: Sequence[Head]) -> np.ndarray:
    """The maps of some heads, (head, query, key), of all maps (layer, head, query, key)."""
    layers = [head.layer for head in heads]
    indices = [head.index for head in heads]
    return maps[layers, indices]


def _heads(model: Model, names: Sequence[str | Head] | None) -> tuple[Head, ...]:
    """The named heads, which must exist, or all."""
    every = every_head(model)
    if names is None:
        return every
    heads = tuple(Head.parse(name) for name in names)
    for head in heads:
        if head not in every:
            sizes = f"{model.n_layers} layers of {model.n_heads} heads"
            raise EdgeError(f"{model.name} has no head {head}; it has {sizes}")
    return heads


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
    """Of the maps (head, query, key) of one prompt: mass, peak, first token, diagonal, stripes, and offsets
    1, 2, …, as (score, head)."""
    length = maps.shape[-1]
    if length < 2:
        raise PromptError(
            "a map of one position has nothing to choose; give prompts of two tokens or more"
        )
    weights = maps[:, 1:].astype(float)  # (head, query, key) from query 1 on
    rows = weights.sum(-1)  # (head, query)
    shares = _ratio(weights, rows[..., None])
    even = 1.0 / np.arange(2, length + 1)  # (query), what an even spread gives to a key
    read = shares >= (even + READ * (1 - even))[:, None]
    query = np.arange(1, length)[:, None]
    key = np.arange(length)[None]

    def score_line(cells: np.ndarray) -> np.ndarray:
        """How far above an even spread the mass on these cells is, from 0 to 1, for each head."""
        expected = (rows * cells.sum(-1) * even).sum(-1)
        largest = (rows * cells.any(-1)).sum(-1)
        above_even = (weights * cells).sum((-1, -2)) - expected
        score = _ratio(above_even, largest - expected, least=1e-12)
        readers = (read & cells).any(-1).sum(-1)
        return np.clip(score, 0, 1) * (readers >= FEWEST)

    # Keys that are neither the first token nor the query itself.
    between = (key > 0) & (key < query)
    readers = (read & between).sum(1)  # (head, key)
    # (head, key): later queries whose row is not empty
    could_read = (between & (rows > 0)[..., None]).sum(1)
    is_stripe = (readers >= FEWEST) & (readers > could_read / 2)
    first_token = np.broadcast_to(key == 0, between.shape)
    lines = [first_token, key == query, between & is_stripe[:, None]]
    lines += [(key == query - distance) & (key > 0) for distance in range(1, length // 2 + 1)]
    sharpness = np.clip((shares.max(-1) - even) / (1 - even), 0, 1)  # (head, query)
    peak = _ratio((sharpness * rows).sum(-1), rows.sum(-1))
    return np.stack([rows.mean(-1), peak, *(score_line(cells) for cells in lines)])


def _ratio(part: np.ndarray, whole: np.ndarray, *, least: float = 0.0) -> np.ndarray:
    """The quotient, and 0 where there is nothing to divide by."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > least)


def _patterns(scores: Sequence[np.ndarray]) -> tuple[Pattern, ...]:
    """The pattern of each head by its mean scores over prompts, for the offsets that all prompts have."""
    fewest = min(len(each) for each in scores)
    every = np.stack([each[:fewest] for each in scores])  # (prompt, score, head)
    masses = every[:, 0]  # (prompt, head)
    means = np.einsum("ph,psh->hs", _ratio(masses, masses.sum(0)), every)
    patterns = []
    for mass, scores_of_head in zip(masses.mean(0).tolist(), means.tolist(), strict=True):
        _, peak, first, diagonal, stripes, *offsets = scores_of_head
        offset = max(offsets)
        distance = offsets.index(offset) + 1 if offset > 0 else 0
        lines: dict[Kind, float] = {
            "first token": first,
            "diagonal": diagonal,
            "offset": offset,
            "stripes": stripes,
        }
        kind = _kind(lines, peak, mass)
        patterns.append(Pattern(kind, first, diagonal, offset, distance, stripes, peak, mass))
    return tuple(patterns)


def _kind(lines: dict[Kind, float], peak: float, mass: float) -> Kind:
    """The kind of a map, by the scores of its lines."""
    strongest, second, *_ = sorted(lines, key=lambda name: -lines[name])
    if mass < EMPTY:
        return "nearly empty"
    if lines[strongest] >= DOMINANT and lines[second] < PRESENT:
        return strongest
    if lines[strongest] >= PRESENT:
        return "hybrid"
    return "dots" if peak >= PEAK else "diffuse"
