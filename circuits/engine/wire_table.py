"""The wires of a model, numbered: a component edge holds at all positions together; a wire at a place holds at
one position of every prompt, or at one role where prompts differ in length."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Int

from circuits.components import Wire
from circuits.engine.edges import EdgeTable

Chosen = Bool[torch.Tensor, " wire"]
Numbers = Int[torch.Tensor, " wire"]


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
    def ends(self) -> tuple[Numbers, Numbers, Numbers]:
        """Row of the reader, column of the writer, and place of every wire."""
        reader, writer = self.edges.exists.nonzero().unbind(1)
        places = len(self.places)
        place = torch.arange(places).repeat(len(reader))
        return reader.repeat_interleave(places), writer.repeat_interleave(places), place

    def name(self, number: int) -> tuple[Wire, str]:
        """A wire as a component edge, and the name of its place."""
        edge, place = divmod(number, len(self.places))
        return self.edges.wires[edge], self.places[place]

    def alive(self, chosen: Chosen) -> Chosen:
        """The wires of a circuit on a way from the embedding to the logits."""
        reader, writer, place = self.ends
        present = torch.zeros(
            *self.edges.exists.shape, len(self.places), dtype=torch.bool, device=chosen.device
        )
        present[reader[chosen], writer[chosen], place[chosen]] = True
        reached = self._reached(present)
        useful = self._useful(present)
        alive = present & reached & useful[:, None]
        return alive[reader, writer, place]

    def _reached(
        self, present: Bool[torch.Tensor, "reader writer place"]
    ) -> Bool[torch.Tensor, "writer place"]:
        """Which writers at which places some way of wires leads to, from the embedding up."""
        reached = torch.zeros(present.shape[1:], dtype=torch.bool)
        reached[0] = True
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
        useful[-1] = True
        for number in range(len(self.edges.writers) - 1, 0, -1):
            leads_on = (present[:, number] & useful).any(0)  # (place)
            for row in self.edges.rows_of(self.edges.writers[number]):
                kind = self.edges.readers[row].kind
                useful[row] = self._keys_of(leads_on) if kind in ("key", "value") else leads_on
        return useful

    def _read_at(
        self, row: int, arrives: Bool[torch.Tensor, " place"]
    ) -> Bool[torch.Tensor, " place"]:
        """Where a reader's component writes something else if its stream differs at these places: a head
        that reads another key or value writes at every query behind it."""
        if self.edges.readers[row].kind not in ("key", "value"):
            return arrives
        return (self.readable & arrives).any(1)

    def _keys_of(self, queries: Bool[torch.Tensor, " place"]) -> Bool[torch.Tensor, " place"]:
        """The keys that some of these queries can read."""
        return (self.readable & queries[:, None]).any(0)
