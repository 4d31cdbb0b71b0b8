"""`load(name)`: one `Model` for every source of weights, with its tokens, its BOS rule and its gate known and its hooks checked.

1. `find` finds the weights and reads them as a Hugging Face model.
2. A TransformerLens bridge goes around it.
3. Whether the model is gated, and whether it reads BOS first, is what its own files say unless the caller decides.
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeAlias

import torch

from circuits.errors import ModelError
from circuits.models.directory import has_tokenizer
from circuits.models.find import find
from circuits.models.model import Model
from circuits.models.weights import Marks, Weights, quiet, reading

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel
    from transformers import PreTrainedTokenizerBase as Tokenizer

    ModelLike: TypeAlias = "Model | TransformerBridge | tuple[PreTrainedModel, Tokenizer]"


def load(
    name: str | Path, *, gate: bool | None = None, device: str | torch.device = "cpu", bos: bool | None = None
) -> Model:
    """Load a model in fp32 by its name in the zoo, its path, or its hub id.

    `gate=None` runs the model as its files say: a zoo name as in the table, a folder as in its `circuits.json` (`{"gate": true}`),
    dense where nothing is said. `gate=False` runs a gated model without its gate. `gate=True` is for weights that cannot say it
    themselves, a bare state dict; on a model that is dense by its own account it is an error.
    `bos=None` reads BOS first if the tokenizer adds it by itself or the architecture is GPT-2.
    """
    with reading(name):
        found = find(str(name))
        return _wrapped(str(name), found, device=device, gate=gate, bos=bos)


def as_model(x: ModelLike, *, gate: bool | None = None, bos: bool | None = None) -> Model:
    """Take what the user already has: a Model as it is, a bridge, or a Hugging Face model with its tokenizer.

    A Hugging Face model gets hook points put into it, in place, and is set to eval mode; its weights, device and dtype stay.
    A bridge keeps its own BOS rule (`bridge.to_tokens`). Objects carry no mark of a gate, so `gate=True` is taken at its word.
    """
    if isinstance(x, Model):
        return x
    if isinstance(x, tuple) and len(x) == 2:
        model, tokenizer = x
        with reading(f"this {type(model).__name__}"):
            return _wrapped(
                _name_of(model), Weights(model, tokenizer, Marks()), device=model.device, gate=gate, bos=bos
            )
    from transformer_lens.model_bridge import TransformerBridge

    if isinstance(x, TransformerBridge):
        if x.tokenizer is None:
            raise ModelError("this bridge has no tokenizer; boot it with one")
        reads_bos = bool(getattr(x.cfg, "default_prepend_bos", True)) if bos is None else bos
        with reading("this bridge"):
            return Model(
                str(getattr(x.cfg, "model_name", "bridge")),
                x,
                x.tokenizer,
                gated=bool(gate),
                reads_bos=reads_bos,
            )
    raise ModelError(
        f"expected a Model, a TransformerBridge or (hf_model, tokenizer), not {type(x).__name__}; load(name) takes names"
    )


def _wrapped(
    name: str, found: Weights, *, device: str | torch.device, gate: bool | None, bos: bool | None
) -> Model:
    if gate and found.marks.gate is False:
        raise ModelError(
            f"gate=True on {name}, which is not a gated model; if it was trained with the gate, mark it in circuits.json"
        )
    is_gated = bool(found.marks.gate) if gate is None else gate
    says_bos = found.marks.bos if bos is None else bos
    reads_bos = reads_bos_by_default(found) if says_bos is None else says_bos
    return Model(name, _bridge(name, found, device), found.tokenizer, gated=is_gated, reads_bos=reads_bos)


def _bridge(name: str, found: Weights, device: str | torch.device) -> TransformerBridge:
    """Hook points around a Hugging Face model. The bridge opens the tokenizer's own folder again, so there must be one."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    with quiet(), TemporaryDirectory() as folder:
        tokenizer = found.tokenizer
        if not tokenizer.name_or_path or not has_tokenizer(Path(tokenizer.name_or_path)):
            tokenizer.save_pretrained(folder)
            tokenizer = AutoTokenizer.from_pretrained(folder)
        model: Any = found.model
        return TransformerBridge.boot_transformers(
            name, hf_model=model.to(device), tokenizer=tokenizer, device=device, dtype=model.dtype
        )


def reads_bos_by_default(found: Weights) -> bool:
    """Whether a model reads BOS first where nobody says: its tokenizer adds it, or its architecture is GPT-2."""
    tokenizer = found.tokenizer
    if tokenizer.bos_token_id is None:
        return False
    adds_it = (
        tokenizer.encode("a")[:1]
        == [tokenizer.bos_token_id]
        != tokenizer.encode("a", add_special_tokens=False)[:1]
    )
    return adds_it or found.model.config.model_type == "gpt2"


def _name_of(model: PreTrainedModel) -> str:
    return str(getattr(model.config, "_name_or_path", "")) or type(model).__name__
