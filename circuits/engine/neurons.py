"""Single units of one MLP: the effect of each, exactly, and what each of them reads.

1. A unit has an activation at a position and a direction that it writes. The MLP's write is a sum over units.
   `Units` says so in general. Neurons are the units of an MLP itself (`MlpNeurons`); the features of a
   transcoder can take their place.
2. Swapping one unit changes the MLP's write by one vector: the difference of its activations times its
   direction. So every unit is a row whose MLP writes that value, and all rows are measured in one batch.
3. What a unit reads: the difference of its inputs is a sum over the writers below. With the norm's scale of
   each run held, each writer's part of the unit's change adds up to the change. That is a reading.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from jaxtyping import Float

from circuits.components import Component, Reader, components
from circuits.engine.block import Block
from circuits.engine.cache import Cache
from circuits.engine.memory import BYTES, streams_at_once
from circuits.engine.rows import Change, Given, Row
from circuits.engine.runs import Effects, Runs
from circuits.engine.wires import stream_of, writes_of

Activations = Float[torch.Tensor, "input pos unit"]


class Units(Protocol):
    """What the write of an MLP is a sum of."""

    def activations(self, stream: torch.Tensor) -> Activations:
        """How active each unit is where the MLP reads this stream."""
        ...

    @property
    def directions(self) -> Float[torch.Tensor, "unit d_model"]:
        """What each unit writes for an activation of one."""
        ...

    def changes_by_part(
        self,
        normed: torch.Tensor,
        other: torch.Tensor,
        parts: torch.Tensor,
        units: Sequence[int],
    ) -> torch.Tensor:
        """How much each part (…, part, d_model) of the difference of two normed inputs (…, d_model) changes
        some units: (…, part, unit)."""
        ...


@dataclass(frozen=True, slots=True)
class MlpNeurons:
    """The neurons of a block's MLP."""

    block: Block

    def activations(self, stream: torch.Tensor) -> Activations:
        return self.block.neurons(stream)

    @property
    def directions(self) -> Float[torch.Tensor, "unit d_model"]:
        return self.block.neuron_writes

    def changes_by_part(
        self,
        normed: torch.Tensor,
        other: torch.Tensor,
        parts: torch.Tensor,
        units: Sequence[int],
    ) -> torch.Tensor:
        return self.block.mlp.changes_by_part(normed, other, parts, units)


def block_of(runs: Runs, layer: int) -> Block:
    """The block of a layer; an error where the layout is not known."""
    return runs.layout_for("the effects of single neurons").blocks[layer]


@dataclass(frozen=True)
class UnitRuns:
    """The units of one MLP at some positions, in both runs of a batch of pairs."""

    runs: Runs
    layer: int
    positions: tuple[int, ...]
    units: Units

    def activations(self, *, clean: bool) -> Activations:
        """The activation of each unit in the clean or the counterfactual run."""
        return self.units.activations(self._read(clean=clean))

    def _read(self, *, clean: bool) -> Float[torch.Tensor, "input pos d_model"]:
        """What the MLP reads in a run."""
        reader = Reader(self.layer, "mlp")
        parallel = self.runs.blocks[0].parallel
        stream = stream_of(self._cache(clean=clean), reader, parallel=parallel)
        return stream[:, list(self.positions)]

    def _cache(self, *, clean: bool) -> Cache:
        return self.runs.clean.cache if clean else self.runs.counterfactual.cache

    @torch.inference_mode()
    def effects(self, groups: Sequence[Sequence[int]]) -> Effects:
        """The effect of each group of units, swapped together at all positions."""
        change = self.activations(clean=False) - self.activations(clean=True)
        block = block_of(self.runs, self.layer)
        # Not the units' sum: what a transcoder does not explain stays as it is.
        output = block.mlp_output(self._read(clean=True))  # (input, pos, d_model)
        step = streams_at_once(self.runs.budget, BYTES * output.numel())
        parts = []
        for first in range(0, len(groups), step):
            some = groups[first : first + step]
            added = torch.stack([self._change_of(change, group) for group in some], 1)
            new = block.mlp_added(output[:, None] + added)  # (input, group, pos, d_model)
            given: Given = {"mlp": new.flatten(1, 2)}
            rows = [self._row(number) for number in range(len(some))]
            parts.append(self.runs.effects(rows, direction="swap", given=given))
        return torch.cat(parts)

    def _change_of(
        self, change: Activations, group: Sequence[int]
    ) -> Float[torch.Tensor, "input pos d_model"]:
        """How the MLP's output changes when the activations of these units change by so much."""
        chosen = list(group)
        return change[..., chosen] @ self.units.directions[chosen]

    def _row(self, number: int) -> Row:
        """The row whose MLP writes, at every position, the values of group `number`."""
        first = number * len(self.positions)
        return Row.of_given(self.layer, self.positions, "mlp", first=first)

    def whole_effect(self) -> Effects:
        """The effect of all that the MLP writes at these positions, swapped."""
        row = Row(tuple(Change(self.layer, position, "mlp") for position in self.positions))
        return self.runs.effects([row], direction="swap")

    @torch.inference_mode()
    def readings(
        self, units: Sequence[int]
    ) -> tuple[tuple[Component, ...], Float[torch.Tensor, "part unit"]]:
        """The writers below, and each writer's part of each unit's change, clean less counterfactual, summed
        over the positions and averaged over the inputs. The last part is that of the biases."""
        runs = self.runs
        reader = Reader(self.layer, "mlp")
        listed = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
        parallel = runs.blocks[0].parallel
        writers = tuple(each for each in listed if reader.sees(each, parallel=parallel))
        block = block_of(runs, self.layer)
        clean, other = self._read(clean=True), self._read(clean=False)
        clean_parts = block.mlp_input_by_part(self._parts(writers, clean, clean=True), clean)
        other_parts = block.mlp_input_by_part(self._parts(writers, other, clean=False), other)
        difference = clean_parts - other_parts  # (input, pos, part, d_model)
        by_part = self.units.changes_by_part(
            block.mlp_input(clean), block.mlp_input(other), difference, units
        )
        return writers, by_part.sum(1).mean(0)

    def _parts(
        self, writers: Sequence[Component], stream: torch.Tensor, *, clean: bool
    ) -> Float[torch.Tensor, "input pos part d_model"]:
        """What each writer adds to a stream, and last what no writer does: the biases of attention."""
        positions = torch.tensor(self.positions, device=stream.device)
        written = writes_of(self.runs, self._cache(clean=clean), writers, positions)
        written = written.transpose(1, 2)  # (input, pos, writer, d_model)
        rest = stream - written.sum(2)
        return torch.cat((written, rest[:, :, None]), 2)


@torch.inference_mode()
def promoted_tokens(
    runs: Runs, directions: Float[torch.Tensor, "unit d_model"], most: int
) -> tuple[list[list[int]], list[list[int]]]:
    """The tokens whose logits each direction raises most, and those that it lowers most, by the final norm of
    the clean run and the unembedding."""
    assert runs.layout is not None
    final = runs.clean.cache.final[0, -1]
    scaled = runs.layout.final_norm.linear(directions, final)
    logits = scaled @ runs.layout.unembed.T  # (unit, vocab)
    raised = logits.topk(most, dim=-1).indices.tolist()
    lowered = (-logits).topk(most, dim=-1).indices.tolist()
    return raised, lowered
