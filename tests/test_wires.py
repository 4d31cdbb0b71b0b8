"""Wires and sides: fast == plain == a forward written by hand with Hugging Face modules; and identities."""

from __future__ import annotations

import random
import re
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
    components,
    readers,
)
from circuits.engine import Direction, prepare
from circuits.engine.joint import joint_effects, kept_effects
from circuits.engine.wires import wire_effects
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, Prompt, to_pair
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
        marks=[pytest.mark.long] * (gated and architecture != "gpt2"),
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


# Fmt: skip.
SETS = [
    [
        "L0H1@8→L2H3@8.query",
        "M0@6→L1H2@6.query",
        "embed@5→L1H0@8.value",
        "L1H0@8→M2@8",
        "M2@8→logits",
    ],
    [
        "embed@5→L0H2@6.key",
        "all@5→L1H1@8.key",
        "L0H2@6→L2H0@8.value",
        "L0H2→L1H0.value",
        "L1H0@7→L2H0.key",
    ],
    [
        "all→L0H0.query",
        "all→L0H0.key",
        "all→L1H3.value",
        "all→M1",
        "embed→logits",
        "M0→L2H1.value",
    ],
    [
        "embed@5→L0H0@5.query",
        "embed@5→L0H0@6.value",
        "embed@5→L0H0.value",
        "L0H0@6→M0@6",
        "M0@6→L1H1@7.key",
    ],
]


@pytest.mark.parametrize(("architecture", "gated"), SHAPES)
def test_wires_act_together_as_in_a_forward_written_by_hand(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    model, hand = replace(loaded[architecture], gated=gated), ByHand(architecture, gated=gated)
    pair, sets = pair_of(model), [existing(names, hand) for names in SETS]
    for direction in ("swap", "restore"):
        expected = torch.tensor([by_hand(hand, pair, wires, direction) for wires in sets])
        for path in ("fast", "plain"):
            effects = joint_effects(
                prepare(model, [pair], path=path), sets, direction=direction
            )[:, 0]
            torch.testing.assert_close(effects.float(), expected, atol=CLOSE, rtol=0)


@pytest.mark.parametrize(("architecture", "gated"), SHAPES)
def test_kept_wires_explain_what_a_forward_by_hand_says_with_all_others_swapped(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    model, hand = replace(loaded[architecture], gated=gated), ByHand(architecture, gated=gated)
    pair = pair_of(model)
    sets = [[wire for wire in existing(names, hand) if wire.writer != ALL] for names in SETS]
    sets += [random_component_edges(hand, share=0.7), list(every_edge(hand)), []]
    expected = torch.tensor([by_hand_kept(hand, pair, wires) for wires in sets])
    for path in ("fast", "plain"):
        explained = kept_effects(prepare(model, [pair], path=path), sets)[:, 0]
        torch.testing.assert_close(explained.float(), expected, atol=CLOSE, rtol=0)
    # Everything kept, nothing kept.
    assert expected[-2:].tolist() == pytest.approx([1.0, 0.0], abs=CLOSE)


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


@pytest.mark.parametrize("architecture", ARCHITECTURES)
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_the_writers_of_a_reader_together_are_its_side_and_all_readers_together_the_other_run(
    loaded: dict[str, Model], architecture: str, path: Any
) -> None:
    model, parallel = loaded[architecture], architecture == "neox"
    runs, writers = prepare(model, [pair_of(model)], path=path), components(layers=3, heads=4)
    for name in ("L2H1@8.query", "L1H2@8.value", "M1@6", "logits"):
        reader = Reader.parse(re.sub(r"@\d", "", name), layers=3)
        query = 8 if reader.kind == "value" else None
        at = {"query": 8, "value": 5, "mlp": 6, "logits": 8}[reader.kind]
        below = [
            Wire(w, reader, at, query) for w in writers if reader.sees(w, parallel=parallel)
        ]
        side, _ = wire_effects(runs, [Wire(ALL, reader, at, query)])
        torch.testing.assert_close(joint_effects(runs, [below]), side, atol=CLOSE, rtol=0)
    everything = [Wire(ALL, reader) for reader in readers(layers=3, heads=4)]
    assert float(joint_effects(runs, [everything])) == pytest.approx(1, abs=CLOSE)
    assert float(joint_effects(runs, [[]])) == pytest.approx(0, abs=1e-5)


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
def test_fast_and_plain_agree_on_any_wires_alone_together_and_kept(
    loaded: dict[str, Model], data: st.DataObject
) -> None:
    name = data.draw(st.sampled_from(ARCHITECTURES))
    model = replace(loaded[name], gated=data.draw(st.booleans()))
    wires = data.draw(
        st.lists(wires_of(parallel=name == "neox"), min_size=1, max_size=6, unique=True)
    )
    direction = data.draw(st.sampled_from(("swap", "restore", "zero")))
    fast, plain = (prepare(model, [pair_of(model)], path=path) for path in ("fast", "plain"))
    for measure in (
        lambda runs: wire_effects(runs, wires, direction=direction)[0],
        lambda runs: joint_effects(runs, [wires], direction=direction),
        lambda runs: kept_effects(runs, [wires]),
    ):
        torch.testing.assert_close(measure(fast), measure(plain), atol=CLOSE, rtol=1e-3)
    if len(wires) == 1:
        alone = wire_effects(fast, wires, direction=direction)[0]
        torch.testing.assert_close(
            joint_effects(fast, [wires], direction=direction), alone, atol=CLOSE, rtol=1e-3
        )
