"""Component edges: wires over all positions together, as EAP, ACDC and MIB count them, by number.

1. They are numbered as `components.component_edges` lists them: reader by reader, and of each reader the
   writers that it sees. `EdgeTable` turns numbers into a matrix of readers and writers and back.
2. `kept_edges` says how much of the gap some of them explain while all others are swapped: one run a set.
   It is `joint.kept_effects` for sets of ten thousand, which no list of wires has to spell out.
3. `estimates` is edge attribution patching, the first-order estimate of every edge from one backward pass. In
   one forward on the clean inputs every reader (each side of each head, each MLP, the logits) has the stream
   as an input of its own; the backward gives the gradient of the metric at each of them. What a writer would
   change in the reader's stream, times that gradient, summed over positions, is the linear part of the
   wire's `swap` effect, as a share of the gap.
4. A shut gate passes no gradient and an open one is taken as it stands: that a change may open or shut it is
   not in the estimate. It never stands in for an effect without saying so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Bool, Float

from circuits.components import SIDES, Component, Reader, Wire, components, readers
from circuits.engine.joint import JointRun, Mask, Masks, Shared, read_tops
from circuits.engine.layout import Layout
from circuits.engine.runs import Runs
from circuits.engine.wires import WireEffects, WireSweep, parts_of, writes
from circuits.errors import ModelError

AtReaders = Float[torch.Tensor, "input reader pos d_model"]


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


def estimates(runs: Runs) -> WireEffects:
    """The estimated `swap` effect of every component edge on every pair, pair by pair to save memory."""
    table = EdgeTable.of(runs)
    each = [_estimate(runs.only([pair]), table) for pair in range(len(runs.pairs))]
    return torch.cat(each).T.double().cpu()


def _estimate(runs: Runs, table: EdgeTable) -> Float[torch.Tensor, "pair edge"]:
    gradients = reader_gradients(runs)
    with torch.inference_mode():
        everywhere = torch.arange(runs.length, device=runs.model.device)
        clean, other = (
            writes(parts_of(runs), side.cache, table.writers, everywhere)
            for side in (runs.clean, runs.counterfactual)
        )
        change = (clean - other).nan_to_num(0.0)  # of the last block only what is read was computed
        scores = torch.einsum("iwtd,irtd->irw", change, gradients)
        return table.edges(runs.mean_over_draws(scores)) / runs.gap[:, None]


def reader_gradients(runs: Runs) -> AtReaders:
    """∂metric/∂(what a reader sees) on the clean inputs, for the readers of `EdgeTable` in their order."""
    layout = runs.layout
    if layout is None:
        name = runs.model.name
        raise ModelError(f"the estimate needs the layout of {name}, which the fast path does not know")
    with torch.inference_mode(False), torch.enable_grad():
        stream = runs.clean.cache.layers[0].pre.clone().requires_grad_()
        seen, top = _climb(layout, stream)
        value = runs.read_stream(top[:, None, -runs.metric.tail :]).sum()
        return _stacked(value, seen, top)


def _stacked(value: torch.Tensor, seen: list[torch.Tensor], top: torch.Tensor) -> AtReaders:
    """The gradients in the order of the readers: head by head its three sides, then the MLP."""
    *inside, last = torch.autograd.grad(value, [*seen, top])
    stacked = []
    for layer in range(len(inside) // 4):
        *sides, mlp = inside[4 * layer : 4 * layer + 4]
        stacked += [torch.stack(sides, 2).flatten(1, 2), mlp[:, None]]
    return torch.cat([*stacked, last[:, None]], 1)


def _climb(
    layout: Layout, stream: Float[torch.Tensor, "input pos d_model"]
) -> tuple[list[torch.Tensor], Float[torch.Tensor, "input pos d_model"]]:
    """What the readers of every block see (three sides (input, head, pos, d_model) and the MLP), and the
    logits."""
    rotations, hidden = layout.rotations(stream.detach(), 0), layout.hidden(stream.detach(), 0)
    seen: list[torch.Tensor] = []
    for block, rotation, future in zip(layout.blocks, rotations, hidden, strict=True):
        streams = [stream[:, None].expand(-1, block.heads, -1, -1) for _ in SIDES]
        query, key, value = (
            block.own_side(own, side, range(block.heads), rotation)
            for own, side in zip(streams, SIDES, strict=True)
        )
        pattern = block.attend(block.scores(torch.einsum("iqhd,ikhd->ihqk", query, key), future))
        written = block.write(torch.einsum("ihqk,ikhd->iqhd", pattern, value).flatten(-2))
        middle = stream if layout.parallel else stream + written
        read = middle.view_as(middle)  # a tensor of the MLP's own, so that the gradient is its alone
        seen += [*streams, read]
        stream = stream + written + block.mlp_output(read)
    return seen, stream.view_as(stream)
