"""The wires of a model, numbered: a component edge holds at all positions together; a wire at a place holds at
one position of every prompt, or at one role where prompts differ in length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Int

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
        present = torch.zeros(size, dtype=torch.bool, device=chosen.device)
        present[reader[chosen], writer[chosen], place[chosen]] = True
        reached = self._reached(present)  # (writer, place)
        useful = self._useful(present)  # (reader, place)
        alive = present & reached & useful[:, None]  # (reader, writer, place)
        return alive[reader, writer, place]

    def _reached(
        self, present: Bool[torch.Tensor, "reader writer place"]
    ) -> Bool[torch.Tensor, "writer place"]:
        """Which writers at which places some path of wires leads to, from the embedding up."""
        reached = torch.zeros(present.shape[1:], dtype=torch.bool)
        reached[0] = True  # the embedding
        for number, component in enumerate(self.edges.writers[1:], 1):
            for row in self.edges.rows_of(component):
                arrives = (present[row] & reached).any(0)  # (place)
                reached[number] |= self._read_at(row, arrives)
        return reached

    def _useful(
        self, present: Bool[torch.Tensor, "reader writer place"]
    ) -> Bool[torch.Tensor, "reader place"]:
        """Which readers at which places lead on to the logits, from the logits down."""
        useful = torch.zeros(present.shape[0], present.shape[2], dtype=torch.bool)
        useful[-1] = True  # the logits
        for number in range(len(self.edges.writers) - 1, 0, -1):
            leads_on = (present[:, number] & useful).any(0)  # (place)
            for row in self.edges.rows_of(self.edges.writers[number]):
                useful[row] = self._read_from(row, leads_on)
        return useful

    def _read_at(
        self, row: int, arrives: Bool[torch.Tensor, " place"]
    ) -> Bool[torch.Tensor, " place"]:
        """Where a reader's component writes something else if its stream differs at these places: a head
        that reads another key or value writes at every query after it."""
        if not self._reads_other_places(row):
            return arrives
        return (self.readable & arrives).any(1)

    def _read_from(
        self, row: int, written: Bool[torch.Tensor, " place"]
    ) -> Bool[torch.Tensor, " place"]:
        """Where a reader's stream matters for what its component writes at these places: a key or value at
        every place that some of these queries can read."""
        if not self._reads_other_places(row):
            return written
        return (self.readable & written[:, None]).any(0)

    def _reads_other_places(self, row: int) -> bool:
        """Whether a head reads this side at other places than it writes."""
        return self.edges.readers[row].kind in ("key", "value")
