"""A Hugging Face model read from its folder: config, weights, tokenizer, and our own `circuits.json`.

1. No code of a folder is ever run: remote code and pickled objects are refused, and so is a config that names
   an attention kernel to download.
2. Weights lie in their own folder: an index that names a file elsewhere is refused.
3. Weights that do not fit the config are refused. (The library would draw a missing weight at random.)
4. Whatever a library raises becomes one line; its progress bars, warnings and log lines are not shown.
"""

from __future__ import annotations

import logging
import pickle
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import FileError, ModelError
from circuits.files import check_regular, read_object, to_record

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

FLAGS_FILE: Final = "circuits.json"
NO_LIMIT: Final = 2**63  # bytes: more than any file has
_WEIGHT_FILES: Final = (
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "pytorch_model.bin.index.json",
)
_TOKENIZER_FILES: Final = (
    "tokenizer.json",
    "tokenizer.model",
    "vocab.json",
    "vocab.txt",
    "spiece.model",
)
_READ_BY_LIBRARIES: Final = (".json", ".txt", ".safetensors", ".bin", ".pth", ".model")
# A zip, which torch.save writes, or a pickle, which it wrote.
_SAVED_BY_TORCH: Final = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\x00]")
_MOST_LAYERS: Final = 1000
_LONGEST_LINE: Final = 300  # characters of another library's message


@dataclass(frozen=True, slots=True)
class ModelFlags:
    """What a model's `circuits.json` says: is it gated, does it read BOS. None where it says nothing."""

    gate: bool | None = None
    bos: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A Hugging Face model on the CPU, its tokenizer, its flags, and the dtype of its files if they say."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    flags: ModelFlags
    stored: torch.dtype | None = None


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn whatever is raised while `what` is read into a ModelError of one line."""
    try:
        yield
    except ModelError:
        raise
    except pickle.UnpicklingError as error:
        why = "a pickle that holds more than tensors is not opened; ask for safetensors instead"
        raise ModelError(f"cannot read {what}: {why}") from error
    except BaseException as error:
        # Libraries raise a dozen unrelated types here, and one written in Rust panics past `Exception`.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"cannot read {what}: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The first line of an error's text, cut where it is long, or its type if it has none."""
    lines = str(error).strip().splitlines()
    if not lines:
        return type(error).__name__
    line = lines[0].strip()
    return line if len(line) <= _LONGEST_LINE else f"{line[:_LONGEST_LINE]}…"


@contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars, warnings and log lines of the model libraries off the terminal."""
    from transformers.utils import logging as transformers_logging

    level = logging.root.manager.disable
    had_bars = transformers_logging.is_progress_bar_enabled()
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.disable(level)
            if had_bars:
                transformers_logging.enable_progress_bar()


def has_model(folder: Path) -> bool:
    """Whether a folder has a config and weights as Hugging Face saves them."""
    has_weights = any((folder / name).exists() for name in _WEIGHT_FILES)
    return has_weights and (folder / "config.json").exists()


def has_tokenizer(folder: Path) -> bool:
    """Whether a folder has a tokenizer as Hugging Face saves it."""
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


def state_dict_in(folder: Path) -> Path | None:
    """The state dict in TransformerLens layout: `final.pth`, or the only .pth, or the only .safetensors."""
    if (folder / "final.pth").exists():
        return folder / "final.pth"
    for pattern in ("*.pth", "*.safetensors"):
        files = list(folder.glob(pattern))
        if len(files) == 1:
            return files[0]
    return None


def saved_by_torch(file: Path) -> bool:
    """Whether a file begins as those of torch.save do."""
    with file.open("rb") as opened:
        return _SAVED_BY_TORCH.match(opened.read(4)) is not None


def read(folder: Path, dtype: torch.dtype | None = None) -> Weights:
    """Read a model, in fp32 unless told otherwise; it is dense unless its `circuits.json` says otherwise."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    flags = read_flags(folder)
    with reading(f"the weights in {folder}"), quiet():
        vet_folder(folder)
        config = AutoConfig.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )
        layers = config.get_text_config().num_hidden_layers
        if layers > _MOST_LAYERS:
            raise ModelError(
                f"its config.json describes {layers} layers; at most {_MOST_LAYERS} can be read"
            )
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            folder,
            trust_remote_code=False,
            local_files_only=True,
            dtype=dtype or torch.float32,
            attn_implementation="eager",
            output_loading_info=True,
        )
    model, report = loaded
    absent = sorted(map(str, [*report["missing_keys"], *report["mismatched_keys"]]))
    if absent:
        count = f"{len(absent)} are missing or misshapen, e.g. {absent[0]}"
        raise ModelError(f"the weights in {folder} do not fit its config.json: {count}")
    _vet_extra(folder, model, sorted(map(str, report["unexpected_keys"])))
    stored = config.dtype if isinstance(config.dtype, torch.dtype) else None
    return Weights(
        model.eval(), read_tokenizer(folder), ModelFlags(bool(flags.gate), flags.bos), stored
    )


def read_flags(folder: Path) -> ModelFlags:
    """Read the `circuits.json` of a model's folder, e.g. `{"gate": true}`; without one there are no flags."""
    file = folder / FLAGS_FILE
    if not file.exists():
        return ModelFlags()
    try:
        stored = read_object(file)
        return to_record(
            ModelFlags, {"gate": stored.get("gate"), "bos": stored.get("bos")}, file
        )
    except FileError as why:
        raise ModelError(f'{why}; the file says of a gated model {{"gate": true}}') from why


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    """Read the tokenizer of a folder."""
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        raise ModelError(
            f"{folder} has no tokenizer files; save them with tokenizer.save_pretrained"
        )
    with reading(f"the tokenizer in {folder}"), quiet():
        vet_folder(folder)
        return AutoTokenizer.from_pretrained(
            folder, trust_remote_code=False, local_files_only=True
        )


# What is refused


def vet_folder(folder: Path) -> None:
    """Refuse a folder in which a library would wait for ever, read files elsewhere, or download code."""
    for path in sorted(folder.iterdir()):
        if path.suffix in _READ_BY_LIBRARIES:
            check_regular(path, most=NO_LIMIT)
        if path.name.endswith(".index.json"):
            _vet_index(path)
        if path.name == "config.json":
            _vet_config(path)


def _vet_index(path: Path) -> None:
    """Refuse an index that names a file of weights outside its folder."""
    files = read_object(path).get("weight_map")
    if not isinstance(files, dict) or not all(isinstance(name, str) for name in files.values()):
        raise ModelError(f"{path} must map the name of each tensor to its file, in weight_map")
    for name in files.values():
        if name in ("", "..") or Path(name).name != name or "\\" in name:
            raise ModelError(f"{path} names {name!r}; weights must lie in the same folder")


def _vet_config(path: Path) -> None:
    """Refuse a config that names a kernel on the hub as its implementation of attention."""
    for name, value in read_object(path).items():
        if name.endswith("implementation") and "/" in str(value):
            raise ModelError(
                f"{path} asks for {name} {str(value)!r}; code that weights name is never run"
            )


def _vet_extra(folder: Path, model: PreTrainedModel, extra: list[str]) -> None:
    """Refuse tensors of layers that the config does not have; mention others that the model does not use."""
    if not extra:
        return
    count = f"it has no place for {len(extra)} tensors, e.g. {extra[0]}"
    kinds = {_without_numbers(name) for name, _ in model.named_parameters()}
    if any(_without_numbers(name) in kinds for name in extra):
        raise ModelError(
            f"the weights in {folder} hold more layers than config.json says; {count}"
        )
    warnings.warn(
        f"{folder} is read by its config.json: {count}, which are left out", stacklevel=2
    )


def _without_numbers(name: str) -> str:
    return re.sub(r"\d+", "#", name)
