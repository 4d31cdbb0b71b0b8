"""Component edges: wires over all positions together, as EAP, ACDC and MIB count them, by number.

1. They are numbered as `components.component_edges` lists them: reader by reader, and of each reader the
   writers that it sees. `EdgeTable` turns numbers into a matrix of readers and writers and back.
2. `kept_edges` says how much of the gap some of them explain while all others are swapped: one run a set.
   It is `joint.kept_effects` for sets of ten thousand, which no list of wires has to spell out.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float

from circuits.components import Component, Reader, Wire, components, readers
from circuits.engine.joint import JointRun, Mask, Masks, Shared, read_tops
from circuits.engine.runs import Runs
from circuits.engine.wires import WireEffects, WireSweep, parts_of


@dataclass(frozen=True)
class EdgeTable:
    """The component edges of a model of this shape."""

    layers: int
    heads: int
    parallel: bool = False

    @classmethod
    def of(cls, runs: Runs) -> EdgeTable:
        return cls(runs.model.n_layers, runs.model.n_heads, parts_of(runs).parallel)

    @cached_property
    def readers(self) -> tuple[Reader, ...]:
        return readers(layers=self.layers, heads=self.heads)

    @cached_property
    def writers(self) -> tuple[Component, ...]:
        return components(layers=self.layers, heads=self.heads)

    @cached_property
    def exists(self) -> Bool[torch.Tensor, "reader writer"]:
        """Whether a reader sees a writer: read row by row, this is the numbering."""
        seen = [[r.sees(w, parallel=self.parallel) for w in self.writers] for r in self.readers]
        return torch.tensor(seen)

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        numbers = self.exists.nonzero().tolist()
        return tuple(Wire(self.writers[writer], self.readers[reader]) for reader, writer in numbers)

    def __len__(self) -> int:
        return int(self.exists.sum())

    def matrix(self, chosen: Bool[torch.Tensor, " edge"]) -> Bool[torch.Tensor, "reader writer"]:
        """Which writers of which readers are among some edges."""
        matrix = torch.zeros_like(self.exists)
        matrix[self.exists] = chosen
        return matrix

    def edges(
        self, matrix: Float[torch.Tensor, "*batch reader writer"]
    ) -> Float[torch.Tensor, "*batch edge"]:
        """The values of the edges that exist, by number."""
        return matrix[..., self.exists.to(matrix.device)]


@torch.inference_mode()
def kept_edges(
    runs: Runs,
    sets: Bool[torch.Tensor, "set edge"],
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> WireEffects:
    """How much of the gap each set of component edges explains on every pair, all others swapped."""
    table, shared, tops = EdgeTable.of(runs), Shared(WireSweep(runs, "swap")), []
    for number, chosen in enumerate(sets):
        wired = table.matrix(chosen).to(runs.model.device)
        masks: dict[Reader, dict[int | None, Mask]] = {
            reader: {None: wired[index, :, None].expand(-1, runs.length)}
            for index, reader in enumerate(table.readers)
            if bool(wired[index].any())
        }
        tops.append(JointRun(shared, Masks(masks), kept=True).top()[:, -runs.metric.tail :])
        progress(number + 1, len(sets))
    return 1 - read_tops(runs, tops, "swap")
