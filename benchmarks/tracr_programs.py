"""Ground truth from outside: programs compiled by tracr, whose circuits are known, run through our verbs.

    pip install jax dm-haiku chex git+https://github.com/google-deepmind/tracr  # or a checkout of it
    python benchmarks/tracr_programs.py [prompts]

1. A program is compiled with causal attention. Its weights are put into a GPT-2 that computes the same: the
   stream is mirrored, so that its mean is nothing, and its norms have so large an epsilon that they do
   nothing. Its outputs are compared with tracr's own before anything is measured. A number that a program
   gives out is read as the logits of two tokens, `more` and `less`.
2. What is true is read off the compiled model. Every direction of its stream has a name and one writer, so a
   reader's wire from a writer is true if the writer's direction is read, and differs between the two prompts
   there. A head's edge is true if, besides, it is attended to.
3. Of random prompts with one random word swapped: precision and recall of the heads that `trace` names, of
   the edges (head, key, query) of `circuit`, and of the wires of `wiring`.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from tracr.compiler import compiling, lib
from tracr.rasp import rasp
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

import circuits
from circuits.errors import CircuitsError
from circuits.files import to_markdown
from circuits.models.model import Model

BOS, LENGTH, EPSILON, LOUD = "compiler_bos", 6, 1e10, 8.0
PROGRAMS: dict[str, tuple[Callable[[], Any], str]] = {
    "frac_prevs": (lambda: lib.make_frac_prevs(rasp.tokens == "x"), "xyz"),
    "pair_balance": (lambda: lib.make_pair_balance(rasp.tokens, "(", ")"), "()a"),
    "shift_by": (lambda: lib.shift_by(1, rasp.tokens), "abc"),
    "detect_pattern": (lambda: lib.detect_pattern(rasp.tokens, "ab"), "abc"),
}
Wires = set[tuple[str, str]]


@dataclass(frozen=True)
class Part:
    """A component of a compiled model: which directions of the stream it reads, by side, and it writes."""

    layer: int
    name: str
    reads: dict[str, np.ndarray]
    writes: np.ndarray


@dataclass(frozen=True)
class Compiled:
    """A program, compiled: by tracr, and as our model."""

    tracr: Any
    model: Model
    parts: list[Part]
    output: np.ndarray  # the directions that are read off as output
    letters: str

    def differs(self, clean: list[str], other: list[str]) -> np.ndarray:
        """Which directions differ between two prompts at which position, (position, direction)."""
        streams = [
            np.array(self.tracr.apply([BOS, *words]).residuals[-1][0])
            for words in (clean, other)
        ]
        return np.abs(streams[0] - streams[1]) > 1e-3

    def weights(self, words: list[str]) -> dict[str, np.ndarray]:
        """The attention of every head, (query, key)."""
        logits = self.tracr.apply([BOS, *words]).attn_logits
        named = {}
        for layer, scores in enumerate(logits):
            heads = _tensor(scores[0]).softmax(-1).numpy()
            named |= {f"L{layer}H{number}": head for number, head in enumerate(heads)}
        return named


def compiled(name: str) -> Compiled:
    build, letters = PROGRAMS[name]
    program = build()
    made = compiling.compile_rasp_to_model(
        program, vocab=set(letters), max_seq_len=LENGTH, causal=True, compiler_bos=BOS
    )
    said = _said(made, program.label)
    output = np.abs(list(said.values())).any(0)
    return Compiled(made, _as_gpt2(made, said), list(_parts(made)), output, letters)


def _said(made: Any, label: str) -> dict[str, np.ndarray]:
    """The tokens that a program can say, each with what it reads off the stream: `more` and `less` of a
    number, or a token for each value."""
    size = len(made.residual_labels)
    if label in made.residual_labels:
        value = np.eye(size)[made.residual_labels.index(label)]
        return {"more": value, "less": -value}
    values = [
        number
        for number, name in enumerate(made.residual_labels)
        if name.startswith(f"{label}:")
    ]
    return {
        "=" + made.residual_labels[number].split(":", 1)[1]: np.eye(size)[number]
        for number in values
    }


def _parts(made: Any) -> Iterator[Part]:
    config, weights = made.model_config, made.params
    embedded = np.array(weights["token_embed"]["embeddings"])
    positions = np.array(weights["pos_embed"]["embeddings"])
    yield Part(-1, "embed", {}, np.abs(embedded).any(0) | np.abs(positions).any(0))
    for layer in range(config.num_layers):
        attention = {
            name: np.array(weights[f"transformer/layer_{layer}/attn/{name}"]["w"])
            for name in ("query", "key", "value", "linear")
        }
        for head in range(config.num_heads):
            own = slice(head * config.key_size, (head + 1) * config.key_size)
            reads = {
                side: np.abs(attention[side][:, own]).any(1)
                for side in ("query", "key", "value")
            }
            writes = np.abs(attention["linear"][own]).any(0)
            if writes.any():
                yield Part(layer, f"L{layer}H{head}", reads, writes)
        first, second = (
            np.array(weights[f"transformer/layer_{layer}/mlp/linear_{number}"]["w"])
            for number in (1, 2)
        )
        if second.any():
            yield Part(layer, f"M{layer}", {"mlp": np.abs(first).any(1)}, np.abs(second).any(0))


# The same as a GPT-2


@torch.no_grad()
def _as_gpt2(made: Any, said: dict[str, np.ndarray]) -> Model:
    config, size, heads = (
        made.model_config,
        len(made.residual_labels),
        made.model_config.num_heads,
    )
    words = sorted(made.input_encoder.encoding_map, key=made.input_encoder.encoding_map.get)
    d_head = max(config.key_size, -(-2 * size // heads))
    d_head += (heads * d_head) % 2
    mirror = torch.zeros(size, heads * d_head)
    mirror[torch.arange(size), 2 * torch.arange(size)] = math.sqrt(0.5)
    mirror[torch.arange(size), 2 * torch.arange(size) + 1] = -math.sqrt(0.5)
    names = [*words, *said]
    shape: dict[str, Any] = {
        "n_embd": heads * d_head,
        "n_layer": config.num_layers,
        "n_head": heads,
    }
    shape |= {
        "n_inner": config.mlp_hidden_size,
        "n_positions": LENGTH + 1,
        "vocab_size": len(names),
    }
    shape |= {
        "activation_function": "relu",
        "layer_norm_epsilon": EPSILON,
        "tie_word_embeddings": False,
    }
    shape |= {"attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    model = GPT2LMHeadModel(
        GPT2Config(**shape, bos_token_id=names.index(BOS), eos_token_id=None)
    )
    for name, weight in model.named_parameters():
        weight.fill_(math.sqrt(EPSILON) if "ln_" in name and name.endswith("weight") else 0.0)
    body: Any = model.transformer
    body.wte.weight[: len(words)] = (
        _tensor(made.params["token_embed"]["embeddings"])[: len(words)] @ mirror
    )
    body.wpe.weight[:] = _tensor(made.params["pos_embed"]["embeddings"])[: LENGTH + 1] @ mirror
    for layer, block in enumerate(body.h):
        _set_block(made, layer, block, mirror, d_head)
    model.lm_head.weight[len(words) :] = LOUD * _tensor(list(said.values())) @ mirror
    return circuits.as_model((model.eval(), _tokenizer(names)), bos=True)


def _set_block(made: Any, layer: int, block: Any, mirror: torch.Tensor, d_head: int) -> None:
    weights, size = made.params, made.model_config.key_size
    width = mirror.shape[1]
    for head in range(made.model_config.num_heads):
        own = slice(head * size, (head + 1) * size)
        start = head * d_head
        scale = {"query": math.sqrt(d_head / size), "key": 1.0, "value": 1.0}
        for number, side in enumerate(("query", "key", "value")):
            matrix = _tensor(weights[f"transformer/layer_{layer}/attn/{side}"]["w"])[:, own]
            place = slice(number * width + start, number * width + start + size)
            block.attn.c_attn.weight[:, place] = mirror.T @ matrix * scale[side]
        out = _tensor(weights[f"transformer/layer_{layer}/attn/linear"]["w"])[own]
        block.attn.c_proj.weight[start : start + size] = out @ mirror
    first, second = (
        weights[f"transformer/layer_{layer}/mlp/linear_{number}"] for number in (1, 2)
    )
    block.mlp.c_fc.weight[:] = mirror.T @ _tensor(first["w"])
    block.mlp.c_fc.bias[:] = _tensor(first["b"])
    block.mlp.c_proj.weight[:] = _tensor(second["w"]) @ mirror


def _tensor(values: Any) -> torch.Tensor:
    return torch.tensor(np.array(values), dtype=torch.float32)


def _tokenizer(names: list[str]) -> PreTrainedTokenizerFast:
    words = Tokenizer(
        models.WordLevel({name: number for number, name in enumerate(names)}, unk_token=BOS)
    )
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=BOS, unk_token=BOS)


def check_same(made: Compiled, words: list[str]) -> None:
    """Our GPT-2 says what tracr's model says, at every position."""
    own = made.tracr.apply([BOS, *words])
    logits = made.model.logits(torch.tensor([made.model.tokenize(" ".join(words))]))[0]
    said = [made.model.spell(number) for number in range(made.model.vocab_size)]
    if "more" in said:
        ours = (logits[:, said.index("more")] - logits[:, said.index("less")]) / 2 / LOUD
        torch.testing.assert_close(ours[1:], _tensor(own.unembedded[0])[1:], rtol=0, atol=1e-3)
    else:
        first = next(number for number, name in enumerate(said) if name.startswith("="))
        ours = [said[first + int(number)] for number in logits[1:, first:].argmax(-1)]
        assert ours == [f"={value}" for value in own.decoded[1:]], (words, ours, own.decoded)


# What is true


def truth(
    made: Compiled, clean: list[str], other: list[str]
) -> tuple[Wires, set[tuple[str, int, int]]]:
    """The wires, as (writer, reader), and the attention edges, through which the swap moves the output."""
    apart, looks, last = made.differs(clean, other), made.weights(clean), len(clean)
    wires: Wires = set()
    edges: set[tuple[str, int, int]] = set()
    by_name = {part.name: part for part in made.parts}
    waiting, seen = [("logits", last)], set()
    while waiting:
        node = name, at = waiting.pop()
        if node in seen or name == "embed":
            continue
        seen.add(node)
        for side, read, position in _sides(by_name.get(name), made.output, looks, at):
            for part in made.parts:
                if (
                    _below(part, by_name.get(name))
                    and (part.writes & read & apart[position]).any()
                ):
                    # Logits and MLPs read where they stand, and a wire into a key or value may be read by
                    # several queries: its name has the place of its writer alone.
                    reader = f"{name}@{at}{side}" if side == ".query" else name + side
                    wires.add((f"{part.name}@{position}", reader))
                    waiting.append((part.name, position))
                    if side == ".value":
                        edges.add((name, position, at))
    return wires, edges


def _sides(
    part: Part | None, output: np.ndarray, looks: dict[str, np.ndarray], at: int
) -> Iterator[tuple[str, np.ndarray, int]]:
    """What a reader at a position reads: side, directions, and where."""
    if part is None:
        yield "", output, at
    elif "mlp" in part.reads:
        yield "", part.reads["mlp"], at
    else:
        yield ".query", part.reads["query"], at
        for key in range(at + 1):
            yield ".key", part.reads["key"], key
            if looks[part.name][at, key] > 1e-3:
                yield ".value", part.reads["value"], key


def _below(writer: Part, reader: Part | None) -> bool:
    if reader is None:
        return True
    same = writer.layer == reader.layer and "mlp" in reader.reads and "mlp" not in writer.reads
    return writer.layer < reader.layer or same


# What is found


def ask(made: Compiled, draw: random.Random, counts: Counter[tuple[str, str]]) -> bool:
    """One random question; whether it is one."""
    clean = [draw.choice(made.letters) for _ in range(draw.randint(3, LENGTH))]
    place = draw.randrange(len(clean))
    other = list(clean)
    other[place] = draw.choice([letter for letter in made.letters if letter != clean[place]])
    wires, edges = truth(made, clean, other)
    if not wires:
        return False
    numeric = "more" in made.model.tokenizer.get_vocab()
    asked: dict[str, Any] = {"counterfactual": " ".join(other)}
    asked |= {"answer": "more", "foil": "less"} if numeric else {}
    text, ends = " ".join(clean), (place + 1, len(clean))
    try:
        traced = circuits.trace(made.model, text, key=ends[0], query=ends[1], **asked)
        whole = circuits.circuit(made.model, text, **asked)
        wired = circuits.wiring(made.model, text, share=0.99, **asked)
    except CircuitsError as why:
        print(f"  {text} / {' '.join(other)}: {why}", file=sys.stderr)
        return False
    found = {
        "heads": {str(head) for head in traced.carriers()},
        "edges": {(str(h), *m.ends) for m in whole.mappings for h in m.carriers(whole.share)},
        "wires": {tuple(str(each.wire).split("→")) for each in wired.wires},
    }
    true = {
        "heads": {head for head, *rest in edges if tuple(rest) == ends},
        "edges": edges,
        "wires": wires,
    }
    for kind in found:
        counts[kind, "found"] += len(found[kind])
        counts[kind, "true"] += len(true[kind])
        counts[kind, "both"] += len(found[kind] & true[kind])
        for sort, wrong in (
            ("too many", found[kind] - true[kind]),
            ("missing", true[kind] - found[kind]),
        ):
            if wrong:
                print(
                    f"  {text} / {' '.join(other)}: {kind} {sort}: {sorted(wrong)}",
                    file=sys.stderr,
                )
    return True


def main(count: str = "20") -> None:
    rows = []
    for name in PROGRAMS:
        made, draw, counts = compiled(name), random.Random(name), Counter()
        for _ in range(10):
            check_same(made, [draw.choice(made.letters) for _ in range(LENGTH)])
        asked = 0
        for _ in range(20 * int(count)):
            asked += ask(made, draw, counts)
            if asked == int(count):
                break
        shares = []
        for kind in ("heads", "edges", "wires"):
            both, found, true = (counts[kind, what] for what in ("both", "found", "true"))
            shares += [f"{both}/{found}", f"{both}/{true}"]
        shape = f"{made.model.n_layers}×{made.model.n_heads}"
        rows.append((name, shape, str(asked), *shares))
    columns = (
        "program",
        "layers×heads",
        "questions",
        "heads: precision",
        "recall",
        "edges: precision",
    )
    print(to_markdown((*columns, "recall", "wires: precision", "recall"), rows))


if __name__ == "__main__":
    main(*sys.argv[1:])
