"""A state dict in TransformerLens layout (`embed.W_E`, `blocks.0.attn.W_Q`, …) as a Hugging Face GPT-2.

1. Sizes are read off the shapes; a GPT-2's config.json beside the file gives its activation and epsilon.
2. The matrices of the heads are laid side by side, as GPT-2 keeps them. Folded layer norms (no `ln1.w`)
   become norms of scale 1 and shift 0.
3. GPT-2 has no unembedding bias: it becomes the shift of the final norm that has exactly that effect.
4. Rows of the vocabulary beyond the tokenizer's are padding and are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import torch
from einops import rearrange

from circuits.errors import ModelError
from circuits.files import check_regular, read_object
from circuits.models.folder import (
    NO_LIMIT,
    Weights,
    has_tokenizer,
    quiet,
    read_flags,
    read_tokenizer,
    reading,
    saved_by_torch,
)

if TYPE_CHECKING:
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

Tensors = dict[str, torch.Tensor]

# The causal mask and its fill value, which TransformerLens saves too.
_BUFFERS: Final = (".mask", ".IGNORE")
_KNOWN: Final = re.compile(
    r"embed\.W_E|pos_embed\.W_pos|unembed\.(W_U|b_U)|ln_final\.(w|b)|"
    r"blocks\.\d{1,4}\.(ln[12]\.(w|b)|attn\.(W_[QKVO]|b_[QKVO])|mlp\.(W_in|b_in|W_out|b_out))"
)
_NEEDED: Final = ("embed.W_E", "pos_embed.W_pos", "unembed.W_U")
_NEEDED_IN_BLOCK: Final = (
    "attn.W_Q",
    "attn.W_K",
    "attn.W_V",
    "attn.W_O",
    "mlp.W_in",
    "mlp.W_out",
)
_FROM_CONFIG: Final = (
    "activation_function",
    "layer_norm_epsilon",
    "scale_attn_by_inverse_layer_idx",
)


def read(file: Path) -> Weights:
    """Read one state dict. Its tokenizer is that of its folder, or GPT-2's from the hub."""
    tensors = _read_tensors(file)
    tokenizer = _read_tokenizer(file.parent)
    with reading(file), quiet():
        model = to_gpt2(tensors, file.parent, vocabulary=len(tokenizer))
    return Weights(model, tokenizer, read_flags(file.parent))


def _read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    if not has_tokenizer(folder):
        from circuits.models import hub

        folder = hub.snapshot("openai-community/gpt2", weights=False)
    return read_tokenizer(folder)


def _read_tensors(file: Path) -> Tensors:
    """The tensors of a file under plain names: without a prefix such as `_orig_mod.`, and without buffers."""
    stored = _read_file(file)
    prefix = _prefix_of(stored)
    if prefix is None:
        lacks = "it has no embed.W_E, and there is no config.json of a Hugging Face model"
        raise ModelError(f"{file} is not a state dict in TransformerLens layout: {lacks}")
    tensors: Tensors = {}
    for key, value in stored.items():
        if key.endswith(_BUFFERS):
            continue
        name = key.removeprefix(prefix)
        if not _KNOWN.fullmatch(name):
            raise ModelError(
                f"{file} is not a GPT-2: it has other tensors too, the first is {name}"
            )
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise ModelError(f"{file}: {name} is not a tensor of floating-point numbers")
        tensors[name] = value.float()
    _refuse_missing(file, tensors)
    return tensors


def _read_file(file: Path) -> Any:
    """What a file holds, taken out of a `state_dict` or `model` around it."""
    from safetensors.torch import load_file

    with reading(file), quiet():
        check_regular(file, most=NO_LIMIT)
        if file.suffix == ".safetensors":
            stored: Any = load_file(file)
        elif not saved_by_torch(file):
            expected = (
                "a folder, a state dict (.pth, .safetensors) or a llama2.c checkpoint (.bin)"
            )
            raise ModelError(f"{file} is a file that holds no model: expected {expected}")
        else:
            stored = torch.load(file, map_location="cpu", weights_only=True)
    for wrapping in ("state_dict", "model"):
        if isinstance(stored, dict) and isinstance(stored.get(wrapping), dict):
            stored = stored[wrapping]
    if not isinstance(stored, dict) or not all(isinstance(key, str) for key in stored):
        raise ModelError(f"{file} is not a state dict: it does not map names to tensors")
    return stored


def _prefix_of(stored: dict[str, Any]) -> str | None:
    """What stands before every name, e.g. `_orig_mod.` of a compiled model; None without an embedding."""
    for key in stored:
        if key.endswith("embed.W_E"):
            return key.removesuffix("embed.W_E")
    return None


def _refuse_missing(file: Path, tensors: Tensors) -> None:
    needed = list(_NEEDED)
    for layer in range(max(1, _n_layers(tensors))):
        needed += [f"blocks.{layer}.{name}" for name in _NEEDED_IN_BLOCK]
    missing = [name for name in needed if name not in tensors]
    if missing:
        raise ModelError(
            f"{file} is not a GPT-2: it lacks {len(missing)} tensors, the first {missing[0]}"
        )


def _n_layers(tensors: Tensors) -> int:
    layers = [int(key.split(".")[1]) for key in tensors if key.startswith("blocks.")]
    return max(layers, default=-1) + 1


def to_gpt2(tensors: Tensors, folder: Path, *, vocabulary: int) -> GPT2LMHeadModel:
    """Lay the tensors out as GPT-2 keeps them."""
    from transformers import GPT2LMHeadModel

    config = _to_config(tensors, folder, vocabulary)
    state = _outside_blocks(tensors, vocabulary)
    for layer in range(config.n_layer):
        prefix = f"blocks.{layer}."
        block = {
            key.removeprefix(prefix): value
            for key, value in tensors.items()
            if key.startswith(prefix)
        }
        for name, value in _to_block(block, config.n_embd).items():
            state[f"transformer.h.{layer}.{name}"] = value
    model = GPT2LMHeadModel(config)
    model.load_state_dict(state)
    return model.eval()


def _to_config(tensors: Tensors, folder: Path, vocabulary: int) -> GPT2Config:
    """The sizes of the tensors, with the activation and epsilon of the config.json beside them."""
    from transformers import GPT2Config

    rows, d_model = tensors["embed.W_E"].shape
    if rows < vocabulary:
        counts = f"{rows} tokens and its tokenizer {vocabulary}"
        raise ModelError(f"the state dict has {counts}: find the right one")
    file = folder / "config.json"
    stored = read_object(file) if file.exists() else {}
    kind = stored.get("model_type", "gpt2")
    if kind != "gpt2":
        raise ModelError(f"{file} describes a {kind}; only GPT-2 state dicts can be read")
    kept = {name: stored[name] for name in _FROM_CONFIG if name in stored}
    return GPT2Config(
        n_embd=d_model,
        n_layer=_n_layers(tensors),
        n_head=len(tensors["blocks.0.attn.W_Q"]),
        n_inner=tensors["blocks.0.mlp.W_in"].shape[1],
        n_positions=len(tensors["pos_embed.W_pos"]),
        vocab_size=vocabulary,
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
        **kept,
    )


def _outside_blocks(tensors: Tensors, vocabulary: int) -> Tensors:
    """Embedding, positions, final norm, unembedding."""
    d_model = tensors["embed.W_E"].shape[1]
    shift = tensors.get("ln_final.b", torch.zeros(d_model))
    unembed = tensors["unembed.W_U"][:, :vocabulary]  # (d_model, vocab)
    bias = tensors.get("unembed.b_U", torch.zeros(vocabulary))[:vocabulary]
    if bias.any():
        extra = torch.linalg.lstsq(unembed.T.double(), bias.double()).solution
        if not torch.allclose(extra @ unembed.double(), bias.double(), atol=1e-3):
            raise ModelError(
                "not a GPT-2: no shift of the final norm has the effect of unembed.b_U"
            )
        shift = shift + extra.float()
    return {
        "transformer.wte.weight": tensors["embed.W_E"][:vocabulary],
        "transformer.wpe.weight": tensors["pos_embed.W_pos"],
        "transformer.ln_f.weight": tensors.get("ln_final.w", torch.ones(d_model)),
        "transformer.ln_f.bias": shift,
        "lm_head.weight": unembed.T.contiguous(),
    }


def _to_block(block: Tensors, d_model: int) -> Tensors:
    """One layer. What a folded state dict lacks is the identity: norms of scale 1, biases of 0."""
    one = torch.ones(d_model)
    zero = torch.zeros(d_model)
    weights = [
        rearrange(block[f"attn.W_{side}"], "head d_model d -> d_model (head d)")
        for side in "QKV"
    ]
    biases = [block.get(f"attn.b_{side}", zero).flatten() for side in "QKV"]
    return {
        "ln_1.weight": block.get("ln1.w", one),
        "ln_1.bias": block.get("ln1.b", zero),
        "ln_2.weight": block.get("ln2.w", one),
        "ln_2.bias": block.get("ln2.b", zero),
        "attn.c_attn.weight": torch.cat(weights, dim=1),  # GPT-2's layers keep (in, out)
        "attn.c_attn.bias": torch.cat(biases),
        "attn.c_proj.weight": rearrange(
            block["attn.W_O"], "head d d_model -> (head d) d_model"
        ),
        "attn.c_proj.bias": block.get("attn.b_O", zero),
        "mlp.c_fc.weight": block["mlp.W_in"],
        "mlp.c_fc.bias": block.get("mlp.b_in", torch.zeros(block["mlp.W_in"].shape[1])),
        "mlp.c_proj.weight": block["mlp.W_out"],
        "mlp.c_proj.bias": block.get("mlp.b_out", zero),
    }
