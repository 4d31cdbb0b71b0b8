"""Architectures beside GPT-2 for `engine.py` and `patching.py`: GPT-2 small's width and vocabulary, six layers
of twelve heads, seeded random weights large enough that heads attend sharply."""

from __future__ import annotations

from functools import cache
from typing import Any, Final

import torch
import transformers as hf
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import WhitespaceSplit

from circuits.models.load import as_model
from circuits.models.model import Model

LAYERS: Final = 6
_GROUPED: Final[dict[str, Any]] = {"num_key_value_heads": 4}
_HALF_SLIDING: Final = {
    "sliding_window": 4,
    "layer_types": ["sliding_attention", "full_attention"] * 3,
}
_GEMMA: Final = {**_GROUPED, **_HALF_SLIDING, "head_dim": 64, "query_pre_attn_scalar": 64}
LAYOUTS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {}),
    "neox": ("GPTNeoXForCausalLM", "GPTNeoXConfig", {"rotary_pct": 0.25}),
    "qwen2": ("Qwen2ForCausalLM", "Qwen2Config", _GROUPED),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_GROUPED, "head_dim": 64}),
    "gemma2": ("Gemma2ForCausalLM", "Gemma2Config", _GEMMA),
    "gemma3": ("Gemma3ForCausalLM", "Gemma3TextConfig", _GEMMA),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_GROUPED, "sliding_window": 4}),
    "phi": ("PhiForCausalLM", "PhiConfig", {}),
    "gptj": ("GPTJForCausalLM", "GPTJConfig", {"rotary_dim": 32}),
    "opt": (
        "OPTForCausalLM",
        "OPTConfig",
        {"ffn_dim": 3072, "init_std": 0.05, "word_embed_proj_dim": 768},
    ),
    "falcon": ("FalconForCausalLM", "FalconConfig", {"multi_query": True, "bias": False}),
    "stablelm": ("StableLmForCausalLM", "StableLmConfig", _GROUPED),
}


def words_tokenizer() -> hf.PreTrainedTokenizerFast:
    """GPT-2's number of tokens: w0, w1, … and BOS."""
    words = {f"w{index}": index for index in range(50256)} | {"<|endoftext|>": 50256}
    spelling = Tokenizer(WordLevel(words, unk_token="<|endoftext|>"))
    spelling.pre_tokenizer = WhitespaceSplit()
    named = {"bos_token": "<|endoftext|>", "eos_token": "<|endoftext|>"}
    return hf.PreTrainedTokenizerFast(tokenizer_object=spelling, **named)


@cache
def layout_model(name: str) -> Model:
    """One of the architectures, by its name here."""
    kind, config, own = LAYOUTS[name]
    sizes: dict[str, Any] = {"vocab_size": 50257, "bos_token_id": 50256, "eos_token_id": 50256}
    sizes |= {"hidden_size": 768, "num_hidden_layers": LAYERS, "num_attention_heads": 12}
    sizes |= {
        "intermediate_size": 3072,
        "max_position_embeddings": 1024,
        "initializer_range": 0.05,
    }
    sizes |= {"pad_token_id": None}
    if name in ("gptj", "falcon"):  # they take four times the width by themselves
        del sizes["intermediate_size"]
    torch.manual_seed(0)
    model = getattr(hf, kind)(getattr(hf, config)(**sizes | own)).eval().requires_grad_(False)
    return as_model((model, words_tokenizer()), bos=True)
