"""Rows, which say what one run of the model has changed, and caches, which hold what a run computed.

1. A `Row` is a set of changes, each at a layer, a position and a site: `edge` (the message of one head from
   one key to one query), `head` (all that a head writes at a position: its `z`), `attention` and `mlp` (what
   they write at a position), `residual` (the stream at the input of a layer).
2. A `Cache` holds one run of a batch of inputs, layer by layer.
3. A `Replacement` says what stands in the changed places: the values of another run, nothing (`zero`), a mean
   over a family, or values that the caller computed (`given`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float, Int

from circuits.components import Edge, Head
from circuits.engine.layout import PromptBlock
from circuits.errors import EdgeError

# The kinds of ablation (`engine.ablation` says what each is).
Direction = Literal["swap", "restore", "zero", "mean", "knockout", "noise"]
DIRECTIONS: Final[tuple[Direction, ...]] = get_args(Direction)
# Those that change nothing where both prompts are the same.
OF_PAIR: Final[tuple[Direction, ...]] = ("swap", "restore", "noise")
Site = Literal["edge", "head", "attention", "mlp", "residual"]
Indices = Int[torch.Tensor, " change"]
InputIndex = slice | Int[torch.Tensor, " input"]
Given = Mapping[Site, Float[torch.Tensor, "input value width"]]


@dataclass(frozen=True, slots=True, order=True)
class Change:
    """One thing that is not as in the base run."""

    layer: int
    position: int  # where it is written: of an edge, its query
    site: Site
    head: int = -1  # of edges and heads
    key: int = -1  # of edges
    given: int = -1  # which of the caller's values to put there; -1: the direction's own


@dataclass(frozen=True, slots=True, repr=False)
class Row:
    """All the changes of one run. A row without changes is the base run itself.

    >>> edge = circuits.Edge.parse("L5H1:5→8")
    >>> circuits.Row.of_edges([edge]).first_layer
    5
    """

    changes: tuple[Change, ...]

    def __repr__(self) -> str:
        if len(self.changes) <= 1:
            return f"Row({', '.join(map(str, self.changes))})"
        return f"Row({len(self.changes)} changes, the first {self.changes[0]})"

    @classmethod
    def of_edges(cls, edges: Iterable[Edge]) -> Row:
        """The messages of all these edges."""
        changes = [
            Change(edge.head.layer, edge.query, "edge", edge.head.index, edge.key)
            for edge in edges
        ]
        return cls(tuple(sorted(changes)))

    @classmethod
    def of_heads(cls, heads: Iterable[Head], positions: Iterable[int]) -> Row:
        """Everything that these heads write at these positions."""
        positions = tuple(positions)
        changes = []
        for head in heads:
            changes += [
                Change(head.layer, position, "head", head.index) for position in positions
            ]
        return cls(tuple(sorted(changes)))

    @classmethod
    def of_writes(cls, layer: int, positions: Iterable[int]) -> Row:
        """What the attention and the MLP of block `layer` write at these positions."""
        changes = []
        for position in positions:
            changes.append(Change(layer, position, "attention"))
            changes.append(Change(layer, position, "mlp"))
        return cls(tuple(sorted(changes)))

    @classmethod
    def of_residual(cls, layer: int, positions: Iterable[int]) -> Row:
        """The residual stream at the input of `layer`. The number of layers means: above the last block."""
        return cls(tuple(Change(layer, position, "residual") for position in sorted(positions)))

    @classmethod
    def of_given(
        cls, layer: int, positions: Sequence[int], site: Site, *, first: int, head: int = -1
    ) -> Row:
        """Values of the caller at these positions, the first of them number `first`."""
        changes = []
        for number, position in enumerate(positions, first):
            changes.append(Change(layer, position, site, head, given=number))
        return cls(tuple(changes))

    def only(self, wanted: Callable[[Change], bool]) -> Row:
        """The row without the other changes."""
        return Row(tuple(filter(wanted, self.changes)))

    @property
    def first_layer(self) -> int:
        return min([change.layer for change in self.changes])

    @property
    def first_position(self) -> int:
        return min([change.position for change in self.changes])


def check_rows(
    rows: Iterable[Row], *, direction: str, layers: int, heads: int, length: int
) -> None:
    """Refuse, before anything runs, a change that does not exist in this model and prompt."""
    if direction not in DIRECTIONS:
        raise EdgeError(f"no ablation {direction!r}; there are {', '.join(DIRECTIONS)}")
    for row in rows:
        for change in row.changes:
            _check_change(change, direction, layers, heads, length)


def _check_change(change: Change, direction: str, layers: int, heads: int, length: int) -> None:
    if not 0 <= change.position < length:
        raise EdgeError(
            f"position {change.position} lies outside the prompt, which has 0…{length - 1}"
        )
    highest = layers if change.site == "residual" else layers - 1
    if not 0 <= change.layer <= highest:
        raise EdgeError(f"layer {change.layer} does not exist: this model has 0…{layers - 1}")
    if change.site in ("edge", "head") and not 0 <= change.head < heads:
        name = f"L{change.layer}H{change.head}"
        raise EdgeError(f"head {name} does not exist: this model has {heads} heads a layer")
    if change.site == "edge" and not 0 <= change.key <= change.position:
        edge = f"{change.key}→{change.position}"
        raise EdgeError(f"edge {edge} runs backwards: attention reads at or before its query")
    if direction == "knockout" and change.site != "edge":
        raise EdgeError(
            f"knockout shuts attention edges; it means nothing for {change.site}: use zero"
        )


@dataclass(frozen=True, slots=True)
class ChangeTable:
    """Changes of one site in one layer as index tensors."""

    row: Indices
    position: Indices
    head: Indices
    key: Indices
    given: Indices

    @classmethod
    def of(cls, changes: Sequence[tuple[int, Change]], device: torch.device) -> ChangeTable:
        """From pairs of a row's number and its change."""
        listed = [(row, c.position, c.head, c.key, c.given) for row, c in changes]
        return cls(*torch.tensor(listed, device=device).reshape(-1, 5).unbind(1))


def changes_by_site(rows: Sequence[Row]) -> dict[tuple[int, Site], list[tuple[int, Change]]]:
    """All changes of some rows by layer and site, each with its row's number."""
    found: dict[tuple[int, Site], list[tuple[int, Change]]] = {}
    for number, row in enumerate(rows):
        for change in row.changes:
            found.setdefault((change.layer, change.site), []).append((number, change))
    return found


# What a run computed


@dataclass(frozen=True, slots=True, repr=False)
class Layer:
    """One block of one run. Keys and values are repeated for every head and rotated where the model rotates.

    Attention weights are not kept, since they grow with the square of the prompt: `pattern` computes them
    again from queries and keys. The plain path, which sees no rotated keys, keeps them instead.
    """

    pre: Float[torch.Tensor, "input pos d_model"]  # the stream at the block's input
    value: Float[torch.Tensor, "input head pos d_head"]
    z: Float[torch.Tensor, "input pos head d_head"]
    attention: Float[torch.Tensor, "input pos d_model"]  # what attention writes
    mlp: Float[torch.Tensor, "input pos d_model"]  # what the MLP writes
    query: Float[torch.Tensor, "input head pos d_head"] | None = None
    key: Float[torch.Tensor, "input head pos d_head"] | None = None
    block: PromptBlock | None = None
    kept_pattern: Float[torch.Tensor, "input head query key"] | None = None

    def __repr__(self) -> str:
        return f"Layer({_shape_of(self.pre)})"

    def of_inputs(self, index: InputIndex) -> Layer:
        """The layer for some of the inputs."""
        chosen = {}
        for each in fields(self):
            stored = getattr(self, each.name)
            chosen[each.name] = stored[index] if isinstance(stored, torch.Tensor) else stored
        return Layer(**chosen)

    def pattern(
        self, queries: Int[torch.Tensor, " query"] | None = None
    ) -> Float[torch.Tensor, "input head query key"]:
        """The attention weights at these queries, or at all of them."""
        if queries is None:
            queries = torch.arange(self.pre.shape[1], device=self.pre.device)
        if self.kept_pattern is not None:
            return self.kept_pattern[:, :, queries]
        assert self.query is not None and self.key is not None and self.block is not None
        products = self.query[:, :, queries] @ self.key.mT
        return self.block.block.pattern(products, self.block.hidden[queries])

    def pattern_at(self, query: int) -> Float[torch.Tensor, "input head key"]:
        """The attention weights at one query."""
        return self.pattern(torch.tensor([query], device=self.pre.device))[:, :, 0]

    def weights(
        self, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change"]:
        """The attention weights of some edges."""
        queries, which = query.unique(return_inverse=True)
        return self.pattern(queries)[:, head, which, key]

    def messages(
        self, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change d_head"]:
        """What each edge adds to its head's output `z`: weight times value."""
        return self.weights(head, key, query)[..., None] * self.value[:, head, key]


@dataclass(frozen=True, slots=True, repr=False)
class Cache:
    """One run: its blocks, and the stream above the last of them."""

    layers: tuple[Layer, ...]
    final: Float[torch.Tensor, "input pos d_model"]

    def __repr__(self) -> str:
        return f"Cache({len(self.layers)} layers, {_shape_of(self.final)})"

    def of_inputs(self, index: InputIndex) -> Cache:
        """The run of some of the inputs."""
        layers = tuple(layer.of_inputs(index) for layer in self.layers)
        return Cache(layers, self.final[index])

    def pre(self, layer: int) -> Float[torch.Tensor, "input pos d_model"]:
        """The residual stream at the input of a layer; of the number of layers: above the last block."""
        return self.layers[layer].pre if layer < len(self.layers) else self.final


def _shape_of(stream: Float[torch.Tensor, "input pos d_model"]) -> str:
    inputs, length, width = stream.shape
    return f"{inputs} inputs of {length} tokens, d_model {width}"


@dataclass(frozen=True, slots=True)
class Replacement:
    """What stands in the changed places: the values of a run, their mean over its inputs, or nothing."""

    run: Cache
    reduced: Literal["mean", "zero"] | None = None
    given: Given = field(default_factory=dict)

    def reduce(self, values: torch.Tensor) -> torch.Tensor:
        """(input, …) as it is, as its mean (1, …), or as zeros."""
        if self.reduced == "mean":
            return values.mean(0, keepdim=True)
        if self.reduced == "zero":
            return torch.zeros_like(values)
        return values

    def messages(
        self, layer: int, head: Indices, key: Indices, query: Indices
    ) -> Float[torch.Tensor, "input change d_head"]:
        """The new message of each edge."""
        return self.reduce(self.run.layers[layer].messages(head, key, query))

    def values(
        self, layer: int, site: Site, table: ChangeTable
    ) -> Float[torch.Tensor, "input change width"]:
        """What each change of a site puts there: the caller's value where it names one, else the run's."""
        if site == "residual":
            own = self.run.pre(layer)[:, table.position]
        elif site == "head":
            own = self.run.layers[layer].z[:, table.position, table.head]
        elif site == "attention":
            own = self.run.layers[layer].attention[:, table.position]
        else:
            own = self.run.layers[layer].mlp[:, table.position]
        own = self.reduce(own)
        if site not in self.given:
            return own
        of_caller = self.given[site][:, table.given.clamp(min=0)]
        return torch.where((table.given >= 0)[:, None], of_caller, own)
