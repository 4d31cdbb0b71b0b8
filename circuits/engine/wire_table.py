"""The wires of a model, numbered: a component edge holds at all positions together; a wire at a place holds at
one position of every prompt, or at one role where prompts differ in length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int

from circuits.components import SIDES
from circuits.engine.edges import EdgeTable

Chosen = Bool[torch.Tensor, " wire"]  # a circuit: whether each wire is in it
Numbers = Int[torch.Tensor, " wire"]


class WireEnds(NamedTuple):
    """The ends of every wire, by the numbers that readers, writers and places have in a table."""

    reader: Numbers  # row of `EdgeTable.exists`
    writer: Numbers  # column of `EdgeTable.exists`
    place: Numbers


@dataclass(frozen=True)
class WireTable:
    """The wires of a model: every component edge, at all positions together or at each of some places."""

    edges: EdgeTable
    places: tuple[str, ...]  # names of positions; one empty name: all positions together
    readable: Bool[torch.Tensor, "query key"]  # whether a head at one place can read another

    @property
    def everywhere(self) -> bool:
        """Whether its wires are component edges."""
        return self.places == ("",)

    def __len__(self) -> int:
        return len(self.edges) * len(self.places)

    @cached_property
    def ends(self) -> WireEnds:
        """Reader, writer and place of every wire. Wires are numbered edge by edge, at each edge place by
        place."""
        reader, writer = self.edges.exists.nonzero().unbind(1)  # of every edge
        places = len(self.places)
        return WireEnds(
            reader.repeat_interleave(places),
            writer.repeat_interleave(places),
            torch.arange(places).repeat(len(reader)),
        )

    def alive(self, chosen: Chosen) -> Chosen:
        """The wires of a circuit that lie on a path from the embedding to the logits."""
        reader, writer, place = self.ends
        size = (*self.edges.exists.shape, len(self.places))
        present = torch.zeros(size, dtype=torch.bool)
        present[reader[chosen], writer[chosen], place[chosen]] = True
        reached = self._reached(present)
        useful = self._useful(present)
        return chosen & reached[writer, place] & useful[reader, place]

    def _reached(
        self, present: Bool[torch.Tensor, "reader writer place"]
    ) -> Bool[torch.Tensor, "writer place"]:
        """Which writers at which places some path of wires leads to, from the embedding up. The heads of a
        layer are looked at together, since none reads another."""
        reached = torch.zeros(present.shape[1:], dtype=torch.bool)
        reached[0] = True  # the embedding
        for layer in range(self.edges.layers):
            heads, mlp = self._rows_of(layer)
            arrives = (present[heads] & reached).any(1)  # (head and side, place)
            query, key, value = arrives.unflatten(0, (-1, len(SIDES))).unbind(1)
            # A head that reads another key or value writes something else at every query after it.
            read = ((key | value)[:, None] & self.readable).any(2)  # (head, query)
            heads_write, mlp_writes = self._columns_of(layer)
            reached[heads_write] = query | read
            reached[mlp_writes] = (present[mlp] & reached).any(0)
        return reached

    def _useful(
        self, present: Bool[torch.Tensor, "reader writer place"]
    ) -> Bool[torch.Tensor, "reader place"]:
        """Which readers at which places lead on to the logits, from the logits down."""
        useful = torch.zeros(present.shape[0], present.shape[2], dtype=torch.bool)
        useful[-1] = True  # the logits
        for layer in reversed(range(self.edges.layers)):
            heads, mlp = self._rows_of(layer)
            heads_write, mlp_writes = self._columns_of(layer)
            useful[mlp] = (present[:, mlp_writes] & useful).any(0)
            query = (present[:, heads_write] & useful[:, None]).any(0)  # (head, place)
            # A key or value matters at every place that one of these queries can read.
            read = (query[:, :, None] & self.readable).any(1)  # (head, key)
            useful[heads] = torch.stack((query, read, read), 1).flatten(0, 1)
        return useful

    def _rows_of(self, layer: int) -> tuple[slice, int]:
        """The rows of a layer's heads, query, key and value of each, and the row of its MLP."""
        heads = self.edges.rows_of_heads(layer)
        return slice(heads.start, heads.stop), heads.stop

    def _columns_of(self, layer: int) -> tuple[slice, int]:
        """The columns of what a layer's heads write, and the column of what its MLP writes."""
        first = 1 + layer * (self.edges.heads + 1)  # behind the embedding
        mlp = first + self.edges.heads
        return slice(first, mlp), mlp
