"""Edge attribution patching: the first-order estimate of every component edge, from one backward pass.

1. One forward on the clean inputs, block by block from the layout, in which every reader (each side of each
   head, each MLP, the logits) has the stream as an input of its own; one backward gives the gradient of the
   metric at each of them.
2. The estimate of a wire is what its writer would change in the reader's stream, times that gradient, summed
   over positions: the linear part of the wire's `swap` effect, as a share of the gap.
3. A shut gate passes no gradient and an open one is taken as it stands: that a change may open or shut it is
   not in the estimate. It never stands in for an effect without saying so.
"""

from __future__ import annotations

import torch
from jaxtyping import Float

from circuits.components import SIDES
from circuits.engine.component_edges import EdgeTable
from circuits.engine.layout import Layout
from circuits.engine.runs import Runs
from circuits.engine.wires import WireEffects, parts_of, writes
from circuits.errors import ModelError

AtReaders = Float[torch.Tensor, "input reader pos d_model"]


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
