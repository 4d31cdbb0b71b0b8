"""Wires and sides: fast == plain == a forward written by hand in plain Hugging Face modules; and identities."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES, random_model

from circuits.components import ALL, Component, Reader, Wire, component_edges, components, readers
from circuits.engine import Direction, prepare
from circuits.engine.wires import wire_effects
from circuits.errors import EdgeError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Pair, to_pair
from circuits.zoo.language import tokenizer

KEY, MIDDLE, LAST = 5, 6, 8
CLOSE = 1e-4
TEXT, OTHER = 'The opposite of "large" is "', 'The opposite of "hot" is "'


# A model by hand: streams and writers of a Hugging Face model, a block at a time, no code of the package


class ByHand:
    """A forward that keeps a stream for every reader: each reader sees a sum of writers, chosen by `wired`."""

    def __init__(self, architecture: str, *, gated: bool) -> None:
        self.hf: Any = random_model(architecture)
        self.architecture, self.gated, self.heads = architecture, gated, 4
        self.parallel = architecture == "neox"
        inner = {"gpt2": "transformer", "llama": "model", "neox": "gpt_neox"}[architecture]
        body = getattr(self.hf, inner)
        self.blocks = body.h if architecture == "gpt2" else body.layers
        self.body = body

    def embed(self, tokens: torch.Tensor) -> torch.Tensor:
        if self.architecture == "gpt2":
            return self.body.wte(tokens) + self.body.wpe(torch.arange(len(tokens)))
        return (self.body.embed_in if self.architecture == "neox" else self.body.embed_tokens)(tokens)

    def norms(self, block: Any) -> tuple[Any, Any]:
        if self.architecture == "gpt2":
            return block.ln_1, block.ln_2
        return block.input_layernorm, block.post_attention_layernorm

    def project(self, block: Any, normed: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(pos, d) to queries, keys and values (pos, head, d_head), rotated."""
        if self.architecture == "gpt2":
            return tuple(part.unflatten(-1, (4, -1)) for part in block.attn.c_attn(normed).chunk(3, -1))  # type: ignore[return-value]
        if self.architecture == "neox":
            q, k, v = block.attention.query_key_value(normed).unflatten(-1, (4, -1)).chunk(3, -1)
        else:
            attention = block.self_attn
            q = attention.q_proj(normed).unflatten(-1, (4, -1))
            k, v = (p(normed).unflatten(-1, (2, -1)).repeat_interleave(2, 1) for p in (attention.k_proj, attention.v_proj))
        cos, sin = self.body.rotary_emb(normed[None], torch.arange(len(normed))[None])
        return self.turn(q, cos[0], sin[0]), self.turn(k, cos[0], sin[0]), v

    @staticmethod
    def turn(heads: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
        width = cos.shape[-1]
        turned, kept = heads[..., :width], heads[..., width:]
        left, right = turned[..., : width // 2], turned[..., width // 2 :]
        return torch.cat((turned * cos[:, None] + torch.cat((-right, left), -1) * sin[:, None], kept), -1)

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
        """Logits at the last position and every writer's output, when a reader at a position (and, of keys and
        values, for a query) sees the writers for which `swapped(writer, reader, position, query)` as in `other`."""
        length = len(tokens)
        written: dict[Component, torch.Tensor] = {Component(-1, "embed"): self.embed(tokens)}
        biases = torch.zeros_like(written[Component(-1, "embed")])

        def seen(reader: Reader, query: int | None = None) -> torch.Tensor:
            stream = biases.clone()
            for writer, value in written.items():
                if reader.sees(writer, parallel=self.parallel):
                    use = [reader in touched and swapped(writer, reader, at, query) for at in range(length)]
                    stream += torch.where(torch.tensor(use)[:, None], other.get(writer, value), value)
            return stream

        for layer, block in enumerate(self.blocks):
            norm1, norm2 = self.norms(block)
            matrix, bias = self.output(block)
            before = biases.clone()
            z = torch.zeros(length, 4, matrix.shape[1])
            for head in range(4):
                q = self.project(block, norm1(seen(Reader(layer, "query", head))))[0][:, head]
                k = self.project(block, norm1(seen(Reader(layer, "key", head))))[1][:, head]
                v = self.project(block, norm1(seen(Reader(layer, "value", head))))[2][:, head]
                for query in range(length):
                    if Reader(layer, "key", head) in touched:
                        k = self.project(block, norm1(seen(Reader(layer, "key", head), query)))[1][:, head]
                    if Reader(layer, "value", head) in touched:
                        v = self.project(block, norm1(seen(Reader(layer, "value", head), query)))[2][:, head]
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


def matches(wires: list[Wire], *, layers: int = 3) -> Callable[..., bool]:
    def swapped(writer: Component, reader: Reader, position: int, query: int | None) -> bool:
        return any(
            wire.writer in (writer, ALL)
            and wire.reader == reader
            and wire.position in (None, position)
            and wire.query in (None, query)
            for wire in wires
        )

    return swapped


@pytest.fixture(scope="module")
def loaded() -> dict[str, Model]:
    return {name: replace(as_model((random_model(name), tokenizer())), reads_bos=True) for name in ARCHITECTURES}


def pair_of(model: Model) -> Pair:
    return to_pair(model, TEXT, counterfactual=OTHER, answer="small", foil="cold")


def by_hand(hand: ByHand, pair: Pair, wires: list[Wire], direction: Direction = "swap") -> float:
    """The effect of these wires together, by the forward written above."""
    clean, other = torch.tensor(pair.clean.tokens), torch.tensor(pair.counterfactual.tokens)  # type: ignore[union-attr]
    values, written = {}, {}
    for name, tokens in (("clean", clean), ("other", other)):
        logits, written[name] = hand.run(tokens, {}, lambda *_: False, set())
        values[name] = float(logits[pair.metric.answer] - logits[pair.metric.foil])
    new = {name: torch.zeros_like(value) for name, value in written["other"].items()} if direction == "zero" else written["other"]
    if direction == "restore":
        logits, _ = hand.run(other, written["clean"], matches(wires), {wire.reader for wire in wires})
        patched = float(logits[pair.metric.answer] - logits[pair.metric.foil])
        return (patched - values["other"]) / (values["clean"] - values["other"])
    logits, _ = hand.run(clean, new, matches(wires), {wire.reader for wire in wires})
    patched = float(logits[pair.metric.answer] - logits[pair.metric.foil])
    return (values["clean"] - patched) / (values["clean"] - values["other"])


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


@pytest.mark.parametrize("gated", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_every_kind_of_wire_is_that_of_a_forward_written_by_hand(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    model = replace(loaded[architecture], gated=gated)
    wires = [wire for wire in (Wire.parse(name, layers=3) for name in KINDS)]
    hand = ByHand(architecture, gated=gated)
    wires = [wire for wire in wires if wire.writer == ALL or wire.reader.sees(wire.writer, parallel=hand.parallel)]
    pair = pair_of(model)
    for direction in ("swap", "restore", "zero"):
        expected = [by_hand(hand, pair, [wire], direction) for wire in wires]
        for path in ("fast", "plain"):
            runs = prepare(model, [pair], path=path)
            effects, _ = wire_effects(runs, wires, direction=direction)
            worst = {str(w): (e, g) for w, e, g in zip(wires, expected, effects[:, 0].tolist()) if not abs(e - g) < CLOSE}
            assert not worst, (direction, path, worst)
