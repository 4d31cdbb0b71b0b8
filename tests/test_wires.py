"""Wires and sides: fast == plain == a forward written by hand with Hugging Face modules; and identities."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import random_model

from circuits.components import (
    ALL,
    SIDES,
    Component,
    Reader,
    Side,
    Wire,
    component_edges,
    readers,
)
from circuits.engine import Direction, Runs, prepare
from circuits.engine.kept import CircuitForward, KeptRuns
from circuits.engine.wire_table import WireTable
from circuits.engine.wires import wire_effects
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, to_pair
from circuits.tracing.asked import Asked, names_of_positions
from circuits.wires.pairs import kept_runs
from circuits.zoo.language import tokenizer

KEY, MIDDLE, LAST = 5, 6, 8
CLOSE = 1e-4
TEXT, OTHER = 'The opposite of "large" is "', 'The opposite of "hot" is "'


# A model by hand: streams and writers of a Hugging Face model, a block at a time, no code of the package


class ByHand:
    """A forward with a stream of its own for every reader: a sum of writers, of which some are swapped."""

    def __init__(self, architecture: str, *, gated: bool) -> None:
        self.hf: Any = random_model(architecture)
        self.architecture, self.gated, self.heads = architecture, gated, 4
        self.parallel = architecture == "neox"
        inner = {"gpt2": "transformer", "llama": "model", "neox": "gpt_neox"}[architecture]
        body = getattr(self.hf, inner)
        self.blocks = body.h if architecture == "gpt2" else body.layers
        self.body = body
        self.unwired: dict[
            tuple[int, ...], tuple[torch.Tensor, dict[Component, torch.Tensor]]
        ] = {}

    def plain(
        self, tokens: tuple[int, ...]
    ) -> tuple[torch.Tensor, dict[Component, torch.Tensor]]:
        """A run without any wire, made once."""
        if tokens not in self.unwired:
            self.unwired[tokens] = self.run(torch.tensor(tokens), {}, lambda *_: False, set())
        return self.unwired[tokens]

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.architecture == "gpt2":
            return self.body.wte(tokens) + self.body.wpe(torch.arange(len(tokens)))
        return (self.body.embed_in if self.architecture == "neox" else self.body.embed_tokens)(
            tokens
        )

    def norms(self, block: Any) -> tuple[Any, Any]:
        if self.architecture == "gpt2":
            return block.ln_1, block.ln_2
        return block.input_layernorm, block.post_attention_layernorm

    def project(
        self, block: Any, normed: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(pos, d) to queries, keys and values (pos, head, d_head), rotated."""
        if self.architecture == "gpt2":
            return tuple(
                part.unflatten(-1, (4, -1)) for part in block.attn.c_attn(normed).chunk(3, -1)
            )  # type: ignore[return-value]
        if self.architecture == "neox":
            q, k, v = (
                block.attention.query_key_value(normed).unflatten(-1, (4, -1)).chunk(3, -1)
            )
        else:
            attention = block.self_attn
            q = attention.q_proj(normed).unflatten(-1, (4, -1))
            k, v = (
                p(normed).unflatten(-1, (2, -1)).repeat_interleave(2, 1)
                for p in (attention.k_proj, attention.v_proj)
            )
        cos, sin = self.body.rotary_emb(normed[None], torch.arange(len(normed))[None])
        return self.turn(q, cos[0], sin[0]), self.turn(k, cos[0], sin[0]), v

    @staticmethod
    def turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        width = cos.shape[-1]
        turned, kept = heads[..., :width], heads[..., width:]
        left, right = turned[..., : width // 2], turned[..., width // 2 :]
        return torch.cat(
            (turned * cos[:, None] + torch.cat((-right, left), -1) * sin[:, None], kept), -1
        )

    def output(self, block: Any) -> tuple[torch.Tensor, torch.Tensor | float]:
        """(head, d_head, d_model) and the bias."""
        if self.architecture == "gpt2":
            return block.attn.c_proj.weight.unflatten(0, (4, -1)), block.attn.c_proj.bias
        o = block.attention.dense if self.architecture == "neox" else block.self_attn.o_proj
        return o.weight.T.unflatten(0, (4, -1)), 0.0 if o.bias is None else o.bias

    def logits(self, stream: torch.Tensor) -> torch.Tensor:
        if self.architecture == "gpt2":
            return self.hf.lm_head(self.body.ln_f(stream))
        if self.architecture == "neox":
            head = getattr(self.hf, "embed_out", None) or self.hf.lm_head
            return head(self.body.final_layer_norm(stream))
        return self.hf.lm_head(self.body.norm(stream))

    @torch.no_grad()
    def run(
        self,
        tokens: torch.Tensor,
        other: dict[Component, torch.Tensor],
        swapped: Callable[..., bool],
        touched: set[Reader],
    ) -> tuple[torch.Tensor, dict[Component, torch.Tensor]]:
        """Logits at the last position and every writer's output, when a reader sees the writers for which
        `swapped(writer, reader, position, query)` as in `other`."""
        length = len(tokens)
        written: dict[Component, torch.Tensor] = {Component(-1, "embed"): self.embed(tokens)}
        biases = torch.zeros_like(written[Component(-1, "embed")])

        def seen(reader: Reader, query: int | None = None) -> torch.Tensor:
            stream = biases.clone()
            for writer, value in written.items():
                if reader.sees(writer, parallel=self.parallel):
                    for at in range(length) if reader in touched else ():
                        use = other[writer] if swapped(writer, reader, at, query) else value
                        stream[at] += use[at]
                    stream += 0 if reader in touched else value
            return stream

        for layer, block in enumerate(self.blocks):
            norm1, norm2 = self.norms(block)
            matrix, bias = self.output(block)
            before = biases.clone()
            z = torch.zeros(length, 4, matrix.shape[1])
            untouched = self.project(block, norm1(seen(Reader(layer, "query"))))

            def side(kind: Side, head: int, query: int | None = None) -> torch.Tensor:
                number, reader = SIDES.index(kind), Reader(layer, kind, head)  # noqa: B023
                if reader not in touched:
                    return untouched[number][:, head]  # noqa: B023
                return self.project(block, norm1(seen(reader, query)))[number][:, head]  # noqa: B023

            for head in range(4):
                q = side("query", head)
                for query in range(length):
                    k, v = side("key", head, query), side("value", head, query)
                    scores = (k[: query + 1] @ q[query]) * matrix.shape[1] ** -0.5
                    pattern = scores.softmax(-1)
                    pattern = pattern * (scores > 0) if self.gated else pattern
                    z[query, head] = pattern @ v[: query + 1]
            mlp = Reader(layer, "mlp")
            if not self.parallel:
                for head in range(4):
                    written[Component(layer, "head", head)] = z[:, head] @ matrix[head]
                biases = before + bias
                added = block.mlp(norm2(seen(mlp)))
            else:
                added = block.mlp(norm2(seen(mlp)))
                for head in range(4):
                    written[Component(layer, "head", head)] = z[:, head] @ matrix[head]
                biases = before + bias
            written[Component(layer, "mlp")] = added
        return self.logits(seen(Reader(len(self.blocks), "logits"))[-1]), written


def matches(wires: list[Wire]) -> Callable[..., bool]:
    listed = {(wire.writer, wire.reader, wire.position, wire.query) for wire in wires}

    def swapped(writer: Component, reader: Reader, position: int, query: int | None) -> bool:
        asked = product((writer, ALL), (reader,), (None, position), (None, query))
        return any(each in listed for each in asked)

    return swapped


SHAPES = [
    pytest.param(
        architecture,
        gated,
        id=f"{architecture}-{'gated' if gated else 'dense'}",
        marks=[pytest.mark.long]
        * (architecture == "llama" or (gated and architecture != "gpt2")),
    )
    for architecture in ARCHITECTURES
    for gated in (False, True)
]


@pytest.fixture(scope="module")
def loaded() -> dict[str, Model]:
    return {
        name: replace(as_model((random_model(name), tokenizer())), reads_bos=True)
        for name in ARCHITECTURES
    }


def pair_of(model: Model) -> Pair:
    return to_pair(model, TEXT, counterfactual=OTHER, answer="small", foil="cold")


def by_hand(
    hand: ByHand, pair: Pair, wires: list[Wire], direction: Direction = "swap"
) -> float:
    """The effect of these wires together, by the forward written above."""
    (clean, written), (other, others) = sides = [
        hand.plain(prompt.tokens) for prompt in prompts(pair)
    ]
    base, new = (sides[1], written) if direction == "restore" else (sides[0], others)
    new = (
        {name: torch.zeros_like(value) for name, value in new.items()}
        if direction == "zero"
        else new
    )
    tokens = prompts(pair)[direction == "restore"].tokens
    patched, _ = hand.run(
        torch.tensor(tokens), new, matches(wires), {wire.reader for wire in wires}
    )
    gap = read(pair, clean) - read(pair, other)
    return (read(pair, base[0]) - read(pair, patched)) / (
        -gap if direction == "restore" else gap
    )


def prompts(pair: Pair) -> tuple[Prompt, Prompt]:
    assert isinstance(pair.counterfactual, Prompt)
    return pair.clean, pair.counterfactual


def read(pair: Pair, logits: torch.Tensor) -> float:
    return float(logits[pair.metric.answer] - logits[pair.metric.foil])


KINDS = [
    "embed@5→L1H0@8.value",
    "embed@5→L0H2@6.key",
    "L0H1@8→L2H3@8.query",
    "M0@6→L1H2@6.query",
    "L1H3@7→L2H1@8.key",
    "M1@6→L2H0@7.value",
    "L1H1@6→M1@6",
    "M0@8→M2@8",
    "embed@7→M1@7",
    "L2H2@8→logits",
    "M2@8→logits",
    "all@8→L2H1@8.query",
    "all@5→L1H1@8.key",
    "all@5→L0H3@8.value",
    "all@6→M1@6",
    "all@8→logits",
    "embed→L0H1.key",
    "L0H0→L1H2.query",
    "M0→L2H1.value",
    "M1→M2",
    "embed→logits",
    "L1H2@6→L2H0.key",
]  # fmt: skip


@pytest.mark.parametrize(("architecture", "gated"), SHAPES)
def test_every_kind_of_wire_is_that_of_a_forward_written_by_hand(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    model = replace(loaded[architecture], gated=gated)
    hand, pair = ByHand(architecture, gated=gated), pair_of(model)
    wires = existing(KINDS, hand)
    both = [prepare(model, [pair], path=path) for path in ("fast", "plain")]
    for direction in ("swap", "restore", "zero"):
        expected = torch.tensor([by_hand(hand, pair, [wire], direction) for wire in wires])
        for runs in both:
            effects, _ = wire_effects(runs, wires, direction=direction)
            torch.testing.assert_close(effects[:, 0].float(), expected, atol=CLOSE, rtol=0)


# Wires at positions (a key or value wire holds for all queries), and wires at all positions.
SETS = [
    ["L0H1@8→L2H3.query", "M0@6→L1H2.query", "embed@5→L1H0.value", "L1H0@8→M2", "M2@8→logits"],
    ["embed@5→L0H2.key", "embed@5→L1H1.key", "L0H2@6→L2H0.value", "L0H2→L1H0.value", "L1H0@7→L2H0.key"],
    ["embed→L0H0.query", "embed→L0H0.key", "L0H1→L1H3.value", "M0→M1", "embed→logits", "M0→L2H1.value"],
    ["embed@5→L0H0.query", "embed@5→L0H0.value", "L0H0@6→M0", "M0@6→L1H1.key", "L1H1@8→logits"],
]  # fmt: skip


def kept_by(runs: Runs, sets: list[list[Wire]]) -> torch.Tensor:
    """How much of the gap each set of wires keeps; wires without a position hold at all of them."""
    positions = [str(position) for position in range(runs.length)]
    kept = KeptRuns.at_places([(runs, [0])], [positions])
    every = torch.stack([chosen_of(kept, wires) for wires in sets])
    return kept.kept(every)[:, 0].float()


def chosen_of(kept: KeptRuns, wires: list[Wire]) -> torch.Tensor:
    places = len(kept.table.places)
    chosen = torch.zeros(len(kept.table.edges), places, dtype=torch.bool)
    for wire in wires:
        edge = kept.table.edges.number_of[Wire(wire.writer, wire.reader)]
        chosen[edge, slice(None) if wire.position is None else wire.position] = True
    return chosen.flatten()


@pytest.mark.parametrize(("architecture", "gated"), SHAPES)
def test_wires_swapped_together_are_those_of_a_forward_written_by_hand(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    """To swap some wires is to keep all others."""
    model, hand = replace(loaded[architecture], gated=gated), ByHand(architecture, gated=gated)
    pair, sets = pair_of(model), [existing(names, hand) for names in SETS]
    expected = torch.tensor([by_hand(hand, pair, wires, "swap") for wires in sets])
    for path in ("fast", "plain"):
        runs = prepare(model, [pair], path=path)
        kept = KeptRuns.at_places([(runs, [0])], [[str(at) for at in range(runs.length)]])
        others = torch.stack([~chosen_of(kept, wires) for wires in sets])
        effects = 1 - kept.kept(others)[:, 0].float()
        torch.testing.assert_close(effects, expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(("architecture", "gated"), SHAPES)
def test_kept_wires_explain_what_a_forward_by_hand_says_with_all_others_swapped(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    model, hand = replace(loaded[architecture], gated=gated), ByHand(architecture, gated=gated)
    pair = pair_of(model)
    sets = [existing(names, hand) for names in SETS]
    sets += [random_component_edges(hand, share=0.7), list(every_edge(hand)), []]
    expected = torch.tensor([by_hand_kept(hand, pair, wires) for wires in sets])
    for path in ("fast", "plain"):
        explained = kept_by(prepare(model, [pair], path=path), sets)
        torch.testing.assert_close(explained, expected, atol=CLOSE, rtol=0)
    # Everything kept, nothing kept.
    assert expected[-2:].tolist() == pytest.approx([1.0, 0.0], abs=CLOSE)


@pytest.mark.parametrize("at_roles", [False, True], ids=["edges", "roles"])
def test_a_circuit_of_a_family_keeps_in_each_prompt_what_a_forward_by_hand_says(
    loaded: dict[str, Model], at_roles: bool
) -> None:
    """Two prompts of different lengths, by component edges and by wires at roles."""
    model, hand = loaded["gpt2"], ByHand("gpt2", gated=False)
    roles = {9: (("WORD", 5), ("END", 8)), 8: (("WORD", 4), ("END", 7))}  # by length
    asked = []
    for text in (TEXT, TEXT.removeprefix("The ")):
        other = text.replace("large", "hot")
        pair = to_pair(model, text, counterfactual=other, answer="small", foil="cold")
        asked.append(Asked(pair, roles[len(pair)]))
    kept = kept_runs(model, asked, at_places=at_roles)
    draw = torch.Generator().manual_seed(3)
    chosen = torch.rand(len(kept.table), generator=draw) < 0.7
    expected = []
    for each in asked:
        assert isinstance(each.question, Pair)
        names = names_of_positions(each.roles, len(each))
        wires = wires_in(kept.table, chosen, names)
        expected.append(by_hand_kept(hand, each.question, wires))
    shares = kept.kept(chosen[None])[0].float()
    torch.testing.assert_close(shares, torch.tensor(expected), atol=CLOSE, rtol=0)


def wires_in(table: WireTable, chosen: torch.Tensor, names: list[str]) -> list[Wire]:
    """The wires of a circuit at the positions, of these names, of one prompt."""
    wires = []
    for number in chosen.nonzero().flatten().tolist():
        edge, place = divmod(number, len(table.places))
        wire = table.edges.wires[edge]
        if table.everywhere:
            wires.append(wire)
        elif table.places[place] in names:
            wires.append(replace(wire, position=names.index(table.places[place])))
    return wires


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_value_of_a_wire_is_the_slope_of_what_is_kept(
    loaded: dict[str, Model], architecture: str
) -> None:
    """Gradients against finite differences."""
    model = loaded[architecture]
    runs = prepare(model, [pair_of(model)])
    kept = KeptRuns.everywhere([(runs, [0])])
    draw = torch.Generator().manual_seed(0)
    chosen = torch.rand(len(kept.table), generator=draw) < 0.8
    values = kept.values(chosen)[:, 0]
    assert not values[~chosen].any()
    strongest = values.abs().argsort(descending=True)[:6].tolist()
    every = torch.arange(len(kept.table))
    small = 1e-2
    for number in strongest:
        ends = []
        for step in (-small, small):
            weights = chosen.float()
            weights[number] += step
            batch = kept.batches[0]
            forward = CircuitForward(runs, kept.table, batch.place_of, every, copies=1)
            with torch.no_grad():
                top = forward.top(weights[None])
                ends.append(runs.read_stream(top[:, None])[0, 0])
        slope = float((ends[1] - ends[0]) / (2 * small) / runs.gap[0])
        assert float(values[number]) == pytest.approx(slope, rel=0.02, abs=1e-3)


def test_dead_wires_carry_nothing(loaded: dict[str, Model]) -> None:
    """A wire that leads from nowhere or to nowhere can go without any change."""
    model = loaded["gpt2"]
    runs = prepare(model, [pair_of(model)])
    names = [str(at) for at in range(runs.length)]
    for kept in (
        KeptRuns.everywhere([(runs, [0])]),
        KeptRuns.at_places([(runs, [0])], [names]),
    ):
        draw = torch.Generator().manual_seed(1)
        for share in (0.02, 0.1, 0.3):
            chosen = torch.rand(len(kept.table), generator=draw) < share
            alive = kept.table.alive(chosen)
            assert not (alive & ~chosen).any()
            both = kept.kept(torch.stack((chosen, alive)))
            torch.testing.assert_close(both[0], both[1], atol=CLOSE, rtol=0)


def test_circuits_run_beside_each_other_as_one_by_one(loaded: dict[str, Model]) -> None:
    model = loaded["llama"]
    kept = KeptRuns.everywhere([(prepare(model, [pair_of(model)]), [0])])
    draw = torch.Generator().manual_seed(2)
    circuits = (
        torch.rand(5, len(kept.table), generator=draw) < torch.linspace(0.1, 0.9, 5)[:, None]
    )
    one_by_one = torch.cat([kept.kept(circuit[None]) for circuit in circuits])
    torch.testing.assert_close(kept.kept(circuits), one_by_one, atol=CLOSE, rtol=0)


def existing(names: list[str], hand: ByHand) -> list[Wire]:
    wires = [Wire.parse(name, layers=3) for name in names]
    return [wire for wire in wires if wire.reader.sees(wire.writer, parallel=hand.parallel)]


def every_edge(hand: ByHand) -> tuple[Wire, ...]:
    return component_edges(layers=3, heads=4, parallel=hand.parallel)


def random_component_edges(hand: ByHand, *, share: float) -> list[Wire]:
    draw = random.Random(0)
    return [wire for wire in every_edge(hand) if draw.random() < share]


def by_hand_kept(hand: ByHand, pair: Pair, wires: list[Wire]) -> float:
    """How much of the gap is left when all wires but these are swapped, by the forward written above."""
    keeps, every = matches(wires), set(readers(layers=3, heads=4))
    (clean, _), (other, others) = (hand.plain(prompt.tokens) for prompt in prompts(pair))
    kept, _ = hand.run(
        torch.tensor(pair.clean.tokens), others, lambda *wire: not keeps(*wire), every
    )
    return (read(pair, kept) - read(pair, other)) / (read(pair, clean) - read(pair, other))


@st.composite
def wires_of(draw: st.DrawFn, *, parallel: bool) -> Wire:
    """Any wire of a model of three layers of four heads on nine tokens, at positions or at all of them."""
    edge = draw(st.sampled_from(component_edges(layers=3, heads=4, parallel=parallel)))
    if edge.reader.kind == "logits":
        return draw(st.sampled_from([edge, replace(edge, position=LAST)]))
    position = draw(st.none() | st.integers(KEY, LAST))
    if edge.reader.kind in ("key", "value"):
        query = draw(st.none() | st.integers(KEY if position is None else position, LAST))
        return replace(edge, position=position, query=query)
    return replace(edge, position=position)


@pytest.mark.long
@settings(
    max_examples=8, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(data=st.data())
def test_fast_and_plain_agree_on_any_wires_alone_and_kept(
    loaded: dict[str, Model], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(ARCHITECTURES))
    model = replace(loaded[name], gated=data.draw(st.booleans()))
    wires = data.draw(
        st.lists(wires_of(parallel=name == "neox"), min_size=1, max_size=6, unique=True)
    )
    direction = data.draw(st.sampled_from(("swap", "restore", "zero")))
    fast, plain = (prepare(model, [pair_of(model)], path=path) for path in ("fast", "plain"))
    alone = [wire_effects(runs, wires, direction=direction)[0] for runs in (fast, plain)]
    torch.testing.assert_close(*alone, atol=CLOSE, rtol=1e-3)
    kept = [kept_by(runs, [wires]) for runs in (fast, plain)]
    torch.testing.assert_close(*kept, atol=CLOSE, rtol=1e-3)
