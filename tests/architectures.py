"""Small random models of the architectures that people use, and effects measured on them by hand: with
`transformers` and hooks on the output projection, and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import torch
import transformers as hf

from circuits.components import Edge
from circuits.zoo.language import tokenizer

WINDOW = 4  # shorter than the prompts


@dataclass(frozen=True)
class Architecture:
    """How to make a model of it, and what its parts are called in `transformers`."""

    make: Callable[..., Any]
    layers: str = "model.layers"
    attention: str = "self_attn"
    output: str = "o_proj"
    value: str = "v_proj"  # a module whose output ends with the values
    path: str = "fast"
    edits_attention: bool = True


def _make(kind: str, config: str, **own: Any) -> Callable[..., Any]:
    """Three layers of four heads, of large weights, so that heads attend sharply; biases and gains random."""
    sizes: dict[str, Any] = {
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
    }
    sizes |= {"intermediate_size": 48, "max_position_embeddings": 32, "initializer_range": 0.2}
    sizes |= {
        "vocab_size": len(tokenizer()),
        "bos_token_id": 0,
        "eos_token_id": 0,
        "pad_token_id": None,
    } | own

    def make(**how: Any) -> Any:
        torch.manual_seed(0)
        chosen = getattr(hf, config)(
            **{key: value for key, value in sizes.items() if value != "absent"}
        )
        model = getattr(hf, kind)._from_config(chosen, **how)
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim == 1:
                    parameter += 0.2 * torch.randn_like(parameter)
        return model.eval()

    return make


GROUPED: dict[str, Any] = {"num_key_value_heads": 2}
SLIDING: dict[str, Any] = {"sliding_window": WINDOW}
GEMMA = GROUPED | SLIDING | {"head_dim": 16, "query_pre_attn_scalar": 24}
GEMMA |= {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]}
OPT = {"ffn_dim": 48, "init_std": 0.2, "pad_token_id": 1, "word_embed_proj_dim": 32}
GPT_LIKE = {"intermediate_size": "absent", "max_position_embeddings": "absent"}

ARCHITECTURES = {
    "qwen2": Architecture(_make("Qwen2ForCausalLM", "Qwen2Config", **GROUPED)),
    "qwen2-sliding": Architecture(
        _make(
            "Qwen2ForCausalLM",
            "Qwen2Config",
            **GROUPED,
            **SLIDING,
            use_sliding_window=True,
            max_window_layers=1,
        )
    ),
    "qwen3": Architecture(_make("Qwen3ForCausalLM", "Qwen3Config", **GROUPED, head_dim=16)),
    "gemma2": Architecture(
        _make(
            "Gemma2ForCausalLM",
            "Gemma2Config",
            **GEMMA,
            attn_logit_softcapping=2.0,
            final_logit_softcapping=3.0,
        )
    ),
    "gemma3": Architecture(_make("Gemma3ForCausalLM", "Gemma3TextConfig", **GEMMA)),
    "mistral": Architecture(_make("MistralForCausalLM", "MistralConfig", **GROUPED, **SLIDING)),
    "phi": Architecture(_make("PhiForCausalLM", "PhiConfig"), output="dense"),
    "phi3": Architecture(_make("Phi3ForCausalLM", "Phi3Config", **GROUPED), value="qkv_proj"),
    "stablelm": Architecture(_make("StableLmForCausalLM", "StableLmConfig", **GROUPED)),
    "falcon": Architecture(
        _make("FalconForCausalLM", "FalconConfig", **GPT_LIKE, multi_query=True, bias=True),
        layers="transformer.h",
        attention="self_attention",
        output="dense",
        value="query_key_value",
    ),
    "gptj": Architecture(
        _make("GPTJForCausalLM", "GPTJConfig", intermediate_size="absent", rotary_dim=4),
        layers="transformer.h",
        attention="attn",
        output="out_proj",
        edits_attention=False,
    ),
    "opt": Architecture(
        _make("OPTForCausalLM", "OPTConfig", **OPT),
        layers="model.decoder.layers",
        output="out_proj",
        edits_attention=False,
    ),
    "opt-350m": Architecture(
        _make(
            "OPTForCausalLM",
            "OPTConfig",
            **OPT | {"word_embed_proj_dim": 16},
            do_layer_norm_before=False,
        ),
        layers="model.decoder.layers",
        output="out_proj",
        path="plain",
        edits_attention=False,
    ),
    "stablelm-2-12b": Architecture(
        _make(
            "StableLmForCausalLM",
            "StableLmConfig",
            **GROUPED,
            qk_layernorm=True,
            use_qkv_bias=True,
        ),
        path="plain",
    ),
}


@dataclass(frozen=True)
class Read:
    """One run: each layer's pattern (input, head, query, key) and values (input, pos, head, d_head)."""

    patterns: list[torch.Tensor]
    values: list[torch.Tensor]
    logits: torch.Tensor

    def weight(self, edge: Edge) -> torch.Tensor:
        return self.patterns[edge.head.layer][0, edge.head.index, edge.query, edge.key]

    def message(self, edge: Edge) -> torch.Tensor:
        return self.weight(edge) * self.values[edge.head.layer][0, edge.key, edge.head.index]


class ByHand:
    """A model in plain `transformers`."""

    def __init__(self, architecture: Architecture) -> None:
        self.model = architecture.make(attn_implementation="eager")
        config = self.model.config
        self.heads = config.num_attention_heads
        self.groups = (
            1
            if "Falcon" in type(config).__name__
            else getattr(config, "num_key_value_heads", self.heads)
        )
        self.d_head = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        attentions = [
            attrgetter(architecture.attention)(layer)
            for layer in attrgetter(architecture.layers)(self.model)
        ]
        self.outputs = [getattr(attention, architecture.output) for attention in attentions]
        self.sources = [getattr(attention, architecture.value) for attention in attentions]

    @contextmanager
    def edited(
        self, layer: int, edit: Callable[[torch.Tensor], torch.Tensor | None]
    ) -> Iterator[None]:
        """With every head's z (input, pos, head, d_head) edited in front of the output projection."""

        def hook(module: Any, inputs: tuple[torch.Tensor]) -> tuple[torch.Tensor] | None:
            shape = inputs[0].shape
            changed = edit(inputs[0].unflatten(-1, (self.heads, self.d_head)).clone())
            return None if changed is None else (changed.reshape(shape),)

        handle = self.outputs[layer].register_forward_pre_hook(hook)
        try:
            yield
        finally:
            handle.remove()

    def read(self, tokens: torch.Tensor) -> Read:
        values: list[torch.Tensor] = []

        def keep(module: Any, inputs: Any, output: torch.Tensor) -> None:
            own = output[..., -self.groups * self.d_head :].unflatten(
                -1, (self.groups, self.d_head)
            )
            values.append(own.repeat_interleave(self.heads // self.groups, -2))

        handles = [source.register_forward_hook(keep) for source in self.sources]
        try:
            output = self.model(tokens, output_attentions=True, use_cache=False)
        finally:
            for handle in handles:
                handle.remove()
        return Read(list(output.attentions), values, output.logits[:, -1])

    def patched(
        self, tokens: torch.Tensor, edges: list[Edge], new: Callable[..., torch.Tensor]
    ) -> torch.Tensor:
        """The last logits of one run for each edge, all of one layer: its head's z there becomes
        `new(z, edge)`."""

        def edit(z: torch.Tensor) -> torch.Tensor:
            for row, edge in enumerate(edges):
                z[row, edge.query, edge.head.index] = new(
                    z[row, edge.query, edge.head.index], edge
                )
            return z

        with self.edited(edges[0].head.layer, edit):
            return self.model(tokens.repeat(len(edges), 1), use_cache=False).logits[:, -1]
