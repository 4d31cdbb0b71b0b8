"""A TransformerLens-layout state dict (`embed.W_E`, `blocks.0.attn.W_Q`, …) as a Hugging Face GPT-2.

1. Sizes are read off the shapes; a config.json beside the file, if it is a GPT-2's, gives the activation and the norm's epsilon.
2. Per-head matrices are laid side by side, as GPT-2 keeps them. Folded layer norms (no `ln1.w`) become norms of scale 1 and shift 0.
3. An unembedding bias, which GPT-2 has not, becomes the shift of the final norm that has exactly that effect.
4. Rows of the vocabulary beyond the tokenizer's are padding and are dropped.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError
from circuits.files import read_object
from circuits.models import directory, hub
from circuits.models.vetting import vet_archive
from circuits.models.weights import Weights, quiet, read_marks, reading

if TYPE_CHECKING:
    import torch
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerBase

    Tensors = dict[str, torch.Tensor]

_BUFFERS: Final = (".mask", ".IGNORE")  # the causal mask and its fill value, saved along by TransformerLens
_KNOWN: Final = re.compile(
    r"embed\.W_E|pos_embed\.W_pos|unembed\.(W_U|b_U)|ln_final\.(w|b)|"
    r"blocks\.\d+\.(ln[12]\.(w|b)|attn\.(W_[QKVO]|b_[QKVO])|mlp\.(W_in|b_in|W_out|b_out))"
)


def read(file: Path) -> Weights:
    """Read one state dict. Its tokenizer is that of its folder, or GPT-2's from the hub."""
    tensors = _tensors(file)
    tokenizer = _tokenizer(file.parent)
    with reading(file), quiet():
        return Weights(
            to_gpt2(tensors, file.parent, vocabulary=len(tokenizer)), tokenizer, read_marks(file.parent)
        )


def _tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    return directory.read_tokenizer(
        folder if directory.has_tokenizer(folder) else hub.tokenizer_snapshot("openai-community/gpt2")
    )


def _tensors(file: Path) -> Tensors:
    """The tensors of a file under their plain names: wrappings such as `model.` or `_orig_mod.` and buffers taken off."""
    import torch
    from safetensors.torch import load_file

    vet_archive(file)
    with reading(file), quiet():
        stored: Any = (
            load_file(file)
            if file.suffix == ".safetensors"
            else torch.load(file, map_location="cpu", weights_only=True)
        )
    for wrapping in ("state_dict", "model"):
        stored = (
            stored[wrapping]
            if isinstance(stored, dict) and isinstance(stored.get(wrapping), dict)
            else stored
        )
    if not isinstance(stored, dict) or not all(isinstance(key, str) for key in stored):
        raise ModelError(f"{file} is no state dict: it holds no names with tensors")
    prefix = next((key.removesuffix("embed.W_E") for key in stored if key.endswith("embed.W_E")), None)
    if prefix is None:
        raise ModelError(
            f"{file} is no TransformerLens-layout state dict (no embed.W_E), and no Hugging Face model (no config.json)"
        )
    tensors = {key.removeprefix(prefix): value for key, value in stored.items() if not key.endswith(_BUFFERS)}
    strange = [key for key in tensors if not _KNOWN.fullmatch(key)]
    if strange:
        raise ModelError(
            f"{file} is not of GPT-2's architecture: it has {len(strange)} other tensors, the first {strange[0]}"
        )
    _check_tensors(file, tensors)
    return {key: value.float() for key, value in tensors.items()}


def _check_tensors(file: Path, tensors: dict[str, Any]) -> None:
    """Refuse what is no plain tensor of numbers, and tensors that would take far more memory than their file has bytes."""
    import torch

    for key, value in tensors.items():
        if (
            not isinstance(value, torch.Tensor)
            or value.layout != torch.strided
            or not value.is_floating_point()
            or value.is_meta
        ):
            raise ModelError(f"{file}: {key} is no tensor of floating-point numbers")
    if sum(value.numel() * value.element_size() for value in tensors.values()) > 4 * file.stat().st_size:
        raise ModelError(f"{file}: its tensors describe more numbers than the file holds")
    layers = {int(key.split(".")[1][:9]) for key in tensors if key.startswith("blocks.")}
    if layers != set(range(len(layers))):
        raise ModelError(f"{file}: its blocks are not numbered 0…{len(layers) - 1}")


def to_gpt2(tensors: Tensors, folder: Path, *, vocabulary: int) -> GPT2LMHeadModel:
    """Lay the tensors out as GPT-2 keeps them."""
    from transformers import GPT2LMHeadModel

    config = _config(tensors, folder, vocabulary)
    model = GPT2LMHeadModel(config)
    state = _outer(tensors, vocabulary)
    for layer in range(config.n_layer):
        state |= _block(tensors, layer, config.n_embd)
    missing, unexpected = model.load_state_dict(state, strict=False)
    if missing or unexpected:
        raise ModelError(
            f"the state dict does not fill a GPT-2: missing {missing[:1]}, unexpected {unexpected[:1]}"
        )
    return model.eval()


def _config(tensors: Tensors, folder: Path, vocabulary: int) -> GPT2Config:
    from transformers import GPT2Config

    rows, d_model = tensors["embed.W_E"].shape
    n_heads, _, d_head = tensors["blocks.0.attn.W_Q"].shape
    if rows < vocabulary:
        raise ModelError(
            f"the state dict has {rows} tokens and its tokenizer {vocabulary}: this is not its tokenizer"
        )
    if n_heads * d_head != d_model:
        raise ModelError(
            f"{n_heads} heads of {d_head} do not make up d_model {d_model}, as they must in a GPT-2"
        )
    stored = read_object(folder / "config.json") if (folder / "config.json").exists() else {}
    if stored.get("model_type", "gpt2") != "gpt2":
        raise ModelError(
            f"{folder / 'config.json'} describes a {stored['model_type']}; only GPT-2 state dicts can be read"
        )
    return GPT2Config(
        vocab_size=vocabulary,
        n_embd=d_model,
        n_head=n_heads,
        n_layer=1 + max(int(key.split(".")[1]) for key in tensors if key.startswith("blocks.")),
        n_positions=tensors["pos_embed.W_pos"].shape[0],
        n_inner=tensors["blocks.0.mlp.W_in"].shape[1],
        activation_function=stored.get("activation_function", "gelu_new"),
        layer_norm_epsilon=stored.get("layer_norm_epsilon", 1e-5),
        scale_attn_by_inverse_layer_idx=stored.get("scale_attn_by_inverse_layer_idx", False),
        tie_word_embeddings=False,
        bos_token_id=None,
        eos_token_id=None,
    )


def _outer(tensors: Tensors, vocabulary: int) -> Tensors:
    """Embedding, positions, final norm, unembedding."""
    import torch

    scale, shift = _norm(tensors, "ln_final", tensors["embed.W_E"].shape[1])
    unembed = tensors["unembed.W_U"][:, :vocabulary]  # (d_model, vocab)
    bias = tensors.get("unembed.b_U", torch.zeros(vocabulary))[:vocabulary]
    if bias.any():
        extra = torch.linalg.lstsq(unembed.T.double(), bias.double()).solution
        if not torch.allclose(extra @ unembed.double(), bias.double(), atol=1e-3):
            raise ModelError(
                "unembed.b_U is not the effect of any shift of the final norm, so this is not a GPT-2"
            )
        shift = shift + extra.float()
    return {
        "transformer.wte.weight": tensors["embed.W_E"][:vocabulary],
        "transformer.wpe.weight": tensors["pos_embed.W_pos"],
        "transformer.ln_f.weight": scale,
        "transformer.ln_f.bias": shift,
        "lm_head.weight": unembed.T.contiguous(),
    }


def _block(tensors: Tensors, layer: int, d_model: int) -> Tensors:
    import torch
    from einops import rearrange

    old, new = f"blocks.{layer}", f"transformer.h.{layer}"

    def bias(name: str, size: int) -> torch.Tensor:
        return tensors.get(f"{old}.{name}", torch.zeros(size)).flatten()

    state = {}
    for ours, theirs in (("ln1", "ln_1"), ("ln2", "ln_2")):
        state[f"{new}.{theirs}.weight"], state[f"{new}.{theirs}.bias"] = _norm(
            tensors, f"{old}.{ours}", d_model
        )
    queries_keys_values = [
        rearrange(tensors[f"{old}.attn.W_{one}"], "head d_model d_head -> d_model (head d_head)")
        for one in "QKV"
    ]
    return state | {
        f"{new}.attn.c_attn.weight": torch.cat(queries_keys_values, dim=1),  # GPT-2's layers keep (in, out)
        f"{new}.attn.c_attn.bias": torch.cat([bias(f"attn.b_{one}", d_model) for one in "QKV"]),
        f"{new}.attn.c_proj.weight": rearrange(
            tensors[f"{old}.attn.W_O"], "head d_head d_model -> (head d_head) d_model"
        ),
        f"{new}.attn.c_proj.bias": bias("attn.b_O", d_model),
        f"{new}.mlp.c_fc.weight": tensors[f"{old}.mlp.W_in"],
        f"{new}.mlp.c_fc.bias": bias("mlp.b_in", tensors[f"{old}.mlp.W_in"].shape[1]),
        f"{new}.mlp.c_proj.weight": tensors[f"{old}.mlp.W_out"],
        f"{new}.mlp.c_proj.bias": bias("mlp.b_out", d_model),
    }


def _norm(tensors: Tensors, name: str, d_model: int) -> tuple[torch.Tensor, torch.Tensor]:
    import torch

    return tensors.get(f"{name}.w", torch.ones(d_model)), tensors.get(f"{name}.b", torch.zeros(d_model))
