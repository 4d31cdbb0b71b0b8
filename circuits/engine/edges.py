"""The component edges of a model, numbered: every writer seen by every reader above it, as EAP, ACDC and MIB
count them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache, cached_property

import torch
from jaxtyping import Bool, Float

from circuits.components import SIDES, Component, Reader, Wire, components, readers
from circuits.engine.runs import Runs


@dataclass(frozen=True)
class EdgeTable:
    """The component edges of a model of this shape, in their order. Each has a reader, which is a row of the
    matrix `exists`, and a writer, which is a column."""

    layers: int
    heads: int
    parallel: bool = False

    @staticmethod
    def of(runs: Runs) -> EdgeTable:
        return _edge_table(runs.model.n_layers, runs.model.n_heads, runs.blocks[0].parallel)

    @cached_property
    def readers(self) -> tuple[Reader, ...]:
        return readers(layers=self.layers, heads=self.heads)

    @cached_property
    def writers(self) -> tuple[Component, ...]:
        return components(layers=self.layers, heads=self.heads)

    @cached_property
    def exists(self) -> Bool[torch.Tensor, "reader writer"]:
        """Whether a reader sees a writer. Read row by row, this is the numbering of the edges."""
        exists = torch.zeros(len(self.readers), len(self.writers), dtype=torch.bool)
        for row, reader in enumerate(self.readers):
            for column, writer in enumerate(self.writers):
                exists[row, column] = reader.sees(writer, parallel=self.parallel)
        return exists

    @cached_property
    def wires(self) -> tuple[Wire, ...]:
        wires = []
        for reader, writer in self.exists.nonzero().tolist():
            wires.append(Wire(self.writers[writer], self.readers[reader]))
        return tuple(wires)

    @cached_property
    def number_of(self) -> dict[Wire, int]:
        return {wire: number for number, wire in enumerate(self.wires)}

    @cached_property
    def _count(self) -> int:
        return int(self.exists.sum())

    def __len__(self) -> int:
        return self._count

    @property
    def readers_in_layer(self) -> int:
        return len(SIDES) * self.heads + 1

    def rows_of_heads(self, layer: int) -> range:
        """The rows of all heads of a layer: query, key and value of each."""
        first = layer * self.readers_in_layer
        return range(first, first + len(SIDES) * self.heads)

    def rows_of(self, component: Component) -> range:
        """The rows of a component: the three sides of a head, or the MLP itself. The embedding reads nothing."""
        if component.kind == "embed":
            return range(0)
        heads = self.rows_of_heads(component.layer)
        if component.kind == "mlp":
            return range(heads.stop, heads.stop + 1)
        first = heads.start + len(SIDES) * component.index
        return range(first, first + len(SIDES))

    def matrix(
        self, chosen: Float[torch.Tensor, " edge"] | Bool[torch.Tensor, " edge"]
    ) -> torch.Tensor:
        """A number for each edge as a matrix (reader, writer), 0 where there is no edge."""
        matrix = torch.zeros(self.exists.shape, dtype=chosen.dtype, device=chosen.device)
        return matrix.masked_scatter(self.exists.to(chosen.device), chosen)

    def edges(
        self, matrix: Float[torch.Tensor, "*batch reader writer"]
    ) -> Float[torch.Tensor, "*batch edge"]:
        """The numbers of the edges that exist, in their order."""
        return matrix[..., self.exists.to(matrix.device)]


@cache
def _edge_table(layers: int, heads: int, parallel: bool) -> EdgeTable:
    """The table of a shape, made once: it has hundreds of thousands of places in a large model."""
    return EdgeTable(layers, heads, parallel)
