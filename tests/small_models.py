"""Small random-weight models of three architectures, the same every time, models of the zoo, and one result
of every kind."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
)
from transformers.utils import logging as transformers_logging

import circuits
from circuits.models.load import load
from circuits.models.model import Model
from circuits.zoo.language import tokenizer

PROMPT = 'The opposite of "large" is "'
SWAPS: tuple[dict[str, str], ...] = tuple(
    {"large": other} for other in ("hot", "rich", "old", "wet")
)

transformers_logging.disable_progress_bar()
# A model of the zoo by its name, once for all tests, which must leave it as it is.
loaded = cache(load)


def random_model(architecture: str, *, seed: int = 0) -> PreTrainedModel:
    """Three layers of four heads; ten times the usual weights and random biases, so heads attend sharply."""
    torch.manual_seed(seed)
    shared: dict[str, Any] = {
        "vocab_size": len(tokenizer()),
        "bos_token_id": 0,
        "eos_token_id": 0,
    }
    shared |= {"initializer_range": 0.2}
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 32}
    grouped = {"num_key_value_heads": 2, "tie_word_embeddings": True}
    build: dict[str, Callable[[], PreTrainedModel]] = {
        "gpt2": lambda: GPT2LMHeadModel(
            GPT2Config(n_embd=32, n_layer=3, n_head=4, n_positions=32, **shared)
        ),
        "llama": lambda: LlamaForCausalLM(LlamaConfig(**grouped, **sizes, **shared)),
        "neox": lambda: GPTNeoXForCausalLM(
            GPTNeoXConfig(use_parallel_residual=True, **sizes, **shared)
        ),
    }
    model = build[architecture]()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1:
                parameter += 0.2 * torch.randn_like(parameter)
    return model.eval()


def save(model: PreTrainedModel, folder: Path) -> Path:
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


class EveryKind(dict[str, Any]):
    """One result of every kind, measured on a small random model where that will do, when first asked for."""

    def __init__(self, model: Model, folder: Path) -> None:
        super().__init__()
        named: dict[str, Any] = {"answer": "small", "foil": "cold"}
        question = {"swap": SWAPS[0], **named}

        def family() -> Any:
            pairs = [circuits.to_pair(model, PROMPT, swap=swap, **named) for swap in SWAPS]
            return circuits.trace_family(model, pairs, key=5)

        def sweep() -> Any:
            lines: list[dict[str, Any]] = []
            for name, swap in zip("abcd", SWAPS, strict=True):
                lines.append({"prompt": PROMPT, "key": 5, "id": name, **named, "swap": swap})
            file = folder / "in.jsonl"
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
            return circuits.sweep(model, file, folder / "out")

        def both() -> tuple[Model, Model]:  # a task takes models that can do it
            return loaded("mini"), loaded("mini-sparse")

        def traced() -> Any:
            return self["traced"]

        def first_head() -> Any:
            return traced().mapping().heads[0].head

        self.measure: dict[str, Callable[[], Any]] = {
            "circuit": lambda: circuits.circuit(model, PROMPT, **question),
            "traced": lambda: circuits.trace(model, PROMPT, key="large", **question),
            "other": lambda: circuits.trace(model, PROMPT, key="large", swap=SWAPS[1], **named),
            "mapping": lambda: traced().mapping(),
            "family": family,
            "comparison": lambda: circuits.compare(traced(), self["other"]),
            "verification": lambda: circuits.verify(traced(), model=model),
            "ranking": lambda: circuits.rank(both()[0], "opposites", count=2),
            "task_comparison": lambda: circuits.compare(
                *both(), task="opposites", count=2, units=("heads",)
            ),
            "panel": lambda: circuits.measure_panel(
                model, [traced().prompt], heads=traced().carriers()
            ),
            "sweep": sweep,
            "mean": lambda: self["sweep"].mean(),
            "why": lambda: circuits.why(traced(), first_head(), model=model),
            "wiring": lambda: circuits.wiring(model, PROMPT, positions=False, **question),
            "stability": lambda: circuits.stability(
                model, PROMPT, key="large", n=3, **question
            ),
            "patch": lambda: circuits.patch(model, PROMPT, "residual", **question),
            "paths": lambda: circuits.path(
                model, PROMPT, "L0H1, M0, M1 → M1, L2H3.query", **question
            ),
            "attribution": lambda: circuits.logit_attribution(model, PROMPT, **named),
            "lens": lambda: circuits.logit_lens(model, PROMPT, answer="small"),
            "head_scores": lambda: circuits.head_scores(model, length=8, sequences=2),
            "neurons": lambda: circuits.neurons(traced(), "M1@5", model=model),
        }

    def __missing__(self, kind: str) -> Any:
        self[kind] = self.measure[kind]()
        return self[kind]
