"""`why`: why a head looks where it looks, and who wrote what it moves.

1. The circuit's pair is run again on its model. The three sides of the head on its edge are measured.
2. On each side every writer below is measured: one run in which that side alone sees the writer's
   counterfactual output. The leading writers are then swapped together, which says how much they explain.
3. QK attribution (the ledger): the parts of the clean score, writer by writer. With the norm's scale fixed at
   that of the whole stream, q·k is bilinear in the writers of query and key. What each writer adds to the
   stream becomes a part of the normed stream, then of the query (or key), then, after the rotation, of the
   score. What comes from no writer is one part more: biases of norms, projections and attention layers below.
4. The parts of all pairs of writers add up to the score, before any soft cap. Like a loading, they are read
   off the clean run: they stand beside effects and never replace them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.components import SIDES, Component, Head, Side, components
from circuits.engine import Row, Runs
from circuits.engine.block import Block, rotated
from circuits.engine.joint import joint_effects
from circuits.engine.search import mapping_row
from circuits.engine.wires import parts_of, wire_effects, writes
from circuits.errors import EdgeError, ModelError, PromptError
from circuits.results import Progress, silent
from circuits.tracing.circuit import run_again
from circuits.tracing.measure import pattern_effects, side_wire, tells_sides
from circuits.tracing.records import Circuit, Ledger, LedgerPart, SideWriters, Why, WriterEffect
from circuits.tracing.trace import measured_model

LEADING: Final = 8  # writers of a side that are swapped together
LONGEST_MAP: Final = 256  # tokens of a prompt whose map is kept
PARTS: Final = 20  # parts of the ledger that are kept; the rest is one number
Position = int | str


def why(
    circuit: Circuit,
    head: str | Head,
    *,
    key: Position | None = None,
    query: Position | None = None,
    every_key: bool = False,
    model: Any = None,
    progress: Progress = silent,
) -> Why:
    """Why this head looks where it looks on a mapping of the circuit, and who wrote what it moves.

    Without `key` and `query` it is the mapping that the circuit shows first. With `every_key` the head's key
    and value sides are those of all keys of the query. `model` is needed where the circuit's own cannot be
    loaded by name.

        >>> answer = circuits.why(found, "L5H1")
        >>> print(answer.side("value").writers[0])
        M0@5
    """
    checked = circuit.checked(head)
    if key is None and query is None:
        if circuit.front is None:
            raise PromptError("no mapping of this circuit carries anything; name key and query")
        ends = circuit.front.ends
    else:
        ends = circuit.prompt.ends(0 if key is None else key, -1 if query is None else query)
    runs = run_again(circuit, model=model)
    return explain(runs, checked, *ends, every_key=every_key, seed=circuit.seed, progress=progress)


def explain(
    runs: Runs,
    name: str | Head,
    key: int,
    query: int,
    *,
    every_key: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> Why:
    """The answer for one head on key → query, from runs that were already made; numbers are means over their
    pairs."""
    source = measured_model(runs)
    head = source.checked(name)
    if not tells_sides(runs):
        raise EdgeError(f"the sides of a head cannot be told apart on the plain path: {runs.model.no_scores}")
    pair = runs.pairs[0]
    own_key = None if every_key else key
    sides = []
    for number, side in enumerate(SIDES):
        progress("writers", number, len(SIDES))
        sides.append(_side(runs, head, side, own_key, query, watch=(key, query)))
    return Why(
        source=source,
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        gap=float(runs.gap.double().mean()),
        head=head,
        key=key,
        query=query,
        every_key=every_key,
        weight=_mean_weight(runs.clean.cache.layers[head.layer].pattern[:, head.index, query, key]),
        counterfactual_weight=_mean_weight(
            runs.counterfactual.cache.layers[head.layer].pattern[:, head.index, query, key]
        ),
        effect=_edge_effect(runs, head, own_key, query),
        pattern=pattern_effects(runs, [head], key, query)[0],
        sides=tuple(sides),
        ledger=None if runs.layout is None else _ledger(runs, head, key, query),
        attention=_attention_map(runs, head) if runs.length <= LONGEST_MAP else None,
        engine=runs.path,
        seed=seed,
    )


def _mean_weight(weights: Float[torch.Tensor, " pair"]) -> float:
    return float(weights.double().mean())


def _side(
    runs: Runs, head: Head, side: Side, key: int | None, query: int, *, watch: tuple[int, int]
) -> SideWriters:
    """One side: all of it, each writer alone, and the leading writers together.

    The head's attention weight is read on the edge `watch`.
    """
    whole = side_wire(side, head, key, query)
    writers = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    wires = [replace(whole, writer=writer) for writer in writers if writer.layer < head.layer]
    effects, weights = wire_effects(runs, [whole, *wires], watch=watch)  # both (wire, pair)
    effect, *effect_of = effects.mean(1).tolist()
    weight, *weight_of = weights.mean(1).tolist()
    order = sorted(range(len(wires)), key=lambda number: (-abs(effect_of[number]), number))
    leading = [wires[number] for number in order[:LEADING]]
    listed: list[WriterEffect] = []
    for number in order:
        wire = wires[number]
        listed.append(WriterEffect(wire.writer, wire.position, effect_of[number], weight_of[number]))
    return SideWriters(
        side=side,
        effect=effect,
        weight=weight,
        writers=tuple(listed),
        together=float(joint_effects(runs, [leading]).mean()),
        leading=len(leading),
    )


def _edge_effect(runs: Runs, head: Head, key: int | None, query: int) -> float:
    """The effect of the head's message from the key; without a key, of all its messages at the query."""
    row = Row.of_heads([head], [query]) if key is None else mapping_row([head], key, query)
    return float(runs.effects([row]).double().mean())


def _attention_map(runs: Runs, head: Head) -> tuple[tuple[float, ...], ...]:
    """The head's pattern on the first clean prompt, (query, key), rounded for the file."""
    weights = runs.clean.cache.layers[head.layer].pattern[0, head.index].double().tolist()
    return tuple(tuple(round(weight, 6) for weight in row) for row in weights)


def _ledger(runs: Runs, head: Head, key: int, query: int) -> Ledger:
    """The largest parts of the clean score, the sums over either side, and what is left."""
    measured = score_parts(runs, head, key, query)
    names = [*map(str, measured.writers), "biases"]
    parts = measured.parts.double().cpu()
    order = parts.abs().flatten().argsort(descending=True, stable=True)[:PARTS].tolist()
    listed = []
    for number in order:
        row, column = divmod(number, len(names))
        listed.append(LedgerPart(names[row], names[column], float(parts[row, column])))
    by_query = tuple(zip(names, parts.sum(1).tolist(), strict=True))
    by_key = tuple(zip(names, parts.sum(0).tolist(), strict=True))
    rest = float(parts.sum()) - sum(part.part for part in listed)
    return Ledger(measured.score, tuple(listed), rest, by_query, by_key)


@dataclass(frozen=True, slots=True)
class ScoreParts:
    """The parts of one score. The last row and the last column are what no writer owns."""

    score: float  # as the model has it, scaled, before a soft cap
    writers: tuple[Component, ...]
    parts: Float[torch.Tensor, "query_writer key_writer"]


@torch.inference_mode()
def score_parts(runs: Runs, head: Head, key: int, query: int) -> ScoreParts:
    """The parts of a head's score on key → query in the clean run of the first pair."""
    if runs.layout is None:
        raise ModelError(f"a ledger needs the layout of {runs.model.name}, which the fast path does not know")
    block, stored = runs.layout.blocks[head.layer], runs.clean.cache.layers[head.layer]
    assert stored.query is not None and stored.key is not None
    every = components(layers=runs.model.n_layers, heads=runs.model.n_heads)
    below = tuple(writer for writer in every if writer.layer < head.layer)
    queries = _parts_of_side(runs, block, head, below, "query", query)
    keys = _parts_of_side(runs, block, head, below, "key", key)
    own = stored.query[0, head.index, query] @ stored.key[0, head.index, key]
    return ScoreParts(float(own * block.scale), below, queries @ keys.T * block.scale)


def _parts_of_side(
    runs: Runs, block: Block, head: Head, writers: tuple[Component, ...], side: Side, position: int
) -> Float[torch.Tensor, "writer d_head"]:
    """Each writer's part of the head's query (or key) at a position, and last the part that none owns."""
    parts, cache = parts_of(runs), runs.clean.cache
    positions = torch.tensor([position], device=runs.model.device)
    stream = cache.layers[head.layer].pre[:1, positions]  # (1, 1, d_model)
    written = writes(parts, cache, writers, positions)[0, :, 0]  # (writer, d_model)
    silent = torch.zeros_like(cache.layers[0].z[:1, positions])
    biases = sum((parts.write(layer, silent)[0] for layer in range(head.layer)), torch.zeros_like(stream[0]))
    normed = block.norm1.linear(torch.cat((written, biases)), stream[0])  # (writer + 1, d_model)
    product = block.q if side == "query" else block.k
    none = product(torch.zeros_like(normed[:1]))
    bias = getattr(block.norm1.module, "bias", None)
    projected = product(normed) - none
    projected[-1] += product(torch.zeros_like(normed[:1]) if bias is None else bias[None])[0]
    heads = projected.unflatten(-1, (-1, block.d_head))  # (writer + 1, group, d_head)
    norm = block.query_norm if side == "query" else block.key_norm
    if norm is not None:
        heads = norm.linear(heads, heads.sum(0, keepdim=True))
    rotation = None if block.rotation is None else block.rotation(cache.final)[:, positions]
    if rotation is not None:
        heads = rotated(heads[:, None], rotation, adjacent=block.adjacent)[:, 0]
    return block.spread(heads)[:, head.index]
