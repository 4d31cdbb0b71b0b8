"""A Hugging Face directory: config.json, weights, tokenizer files. All three must be there and whole, and are vetted before use."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError
from circuits.models.vetting import vet_folder, vet_size
from circuits.models.weights import Marks, Weights, quiet, read_marks, reading

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

_WEIGHTS: Final = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_TOKENIZER: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")


def has_model(folder: Path) -> bool:
    return (folder / "config.json").exists() and any((folder / name).exists() for name in _WEIGHTS)


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in _TOKENIZER)


def state_dict_in(folder: Path) -> Path | None:
    """The TransformerLens-layout state dict in a folder: `final.pth`, or the only .pth, or the only .safetensors."""
    if (folder / "final.pth").exists():
        return folder / "final.pth"
    for pattern in ("*.pth", "*.safetensors"):
        found = sorted(folder.glob(pattern))
        if len(found) == 1:
            return found[0]
    return None


def read(folder: Path) -> Weights:
    """Read a directory. One without a mark in `circuits.json` is dense."""
    marks = read_marks(folder)
    return Weights(read_model(folder), read_tokenizer(folder), Marks(gate=bool(marks.gate), bos=marks.bos))


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        raise ModelError(
            f"{folder} has no tokenizer files such as tokenizer.json; save them with tokenizer.save_pretrained"
        )
    vet_folder(folder, f"the tokenizer in {folder}")
    with reading(f"the tokenizer in {folder}"), quiet():
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def read_model(folder: Path) -> PreTrainedModel:
    """Read the weights in fp32. A weight that the file lacks would be drawn at random by the library: an error here."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    vet_folder(folder, f"the weights in {folder}")
    settings = {
        "dtype": torch.float32,
        "trust_remote_code": False,
        "local_files_only": True,
        "attn_implementation": "eager",
    }
    with reading(f"the weights in {folder}"), quiet():
        with torch.device("meta"):  # shapes alone
            described = AutoModelForCausalLM.from_config(
                AutoConfig.from_pretrained(folder, trust_remote_code=False, local_files_only=True)
            )
        vet_size(folder, sum(parameter.numel() for parameter in described.parameters()))
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True, **settings)
    model, report = loaded
    absent = sorted(str(name) for name in [*report["missing_keys"], *report["mismatched_keys"]])
    if absent:
        raise ModelError(
            f"weights in {folder} do not fit its config.json: {len(absent)} are missing or misshapen, e.g. {absent[0]}"
        )
    return model.eval()
