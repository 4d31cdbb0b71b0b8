"""What is looked at before a library may open a model's folder: nothing that runs, nothing that leaves the folder, nothing that lies.

1. Every file in it is a regular file, its JSON is read strictly, and code beside the weights is never asked for.
2. Shards of weights are files of the same folder; a name with a path in it is refused.
3. A config that describes a far larger model than its files hold is refused before memory is taken for it.
4. An adapter is a plain LoRA: nothing in it names modules to import, layers to copy or patterns that never end.
"""

from __future__ import annotations

import json
import re
import struct
import zipfile
from math import prod
from pathlib import Path
from typing import Any, Final

from circuits.errors import FileError, ModelError
from circuits.files import check_regular, read_object

_LARGEST_JSON: Final = 64 * 2**20
_LARGEST_HEADER: Final = 100 * 2**20  # what safetensors itself allows
_MOST_LAYERS: Final = 1000
_DEPTHS: Final = ("n_layer", "n_layers", "num_layers", "num_hidden_layers")
_WORDS: Final = (
    "config.json",
    "generation_config.json",
    "adapter_config.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
)
_TABLES: Final = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
_PACKED: Final = (".safetensors", ".bin", ".pth", ".model")
_EMPTY: Final = (
    "megatron_config",
    "layer_replication",
    "loftq_config",
    "corda_config",
    "eva_config",
    "arrow_config",
)
_ENDLESS: Final = re.compile(r"\)\s*[*+{]")  # a repeated group in a pattern can take for ever


def vet_folder(folder: Path, what: str) -> None:
    """Look at every file that a library would open. `what` names the folder in the error."""
    try:
        for path in sorted(folder.iterdir()):
            if path.name in _WORDS or path.name.endswith(".index.json"):
                _vet_json(path, read_object(path, most=_LARGEST_JSON))
            elif path.name in _TABLES or path.suffix in _PACKED:
                check_regular(path, most=2**63)
    except FileError as why:
        raise ModelError(f"cannot read {what}: {why}") from why


def _vet_json(path: Path, stored: dict[str, Any]) -> None:
    if path.name.endswith(".index.json"):
        shards = stored.get("weight_map")
        if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
            raise ModelError(f"{path} must map the name of each tensor to its file, in weight_map")
        for name in set(shards.values()):
            if name in ("", ".", "..") or Path(name).name != name or "\\" in name:
                raise ModelError(f"{path} names {name!r}; weights must lie in the same folder")
    if path.name == "config.json":
        _vet_config(path, stored)
    if path.name == "adapter_config.json":
        _vet_adapter(path, stored)


def _vet_config(path: Path, stored: dict[str, Any]) -> None:
    for name, value in stored.items():
        if name.endswith("implementation") and "/" in str(value):
            raise ModelError(
                f"{path} asks for {name} {str(value)!r}; code that comes with weights or is named by them is never run"
            )
    depth = max((stored[name] for name in _DEPTHS if isinstance(stored.get(name), int)), default=0)
    if depth > _MOST_LAYERS:
        raise ModelError(f"{path} describes a model of {depth} layers; at most {_MOST_LAYERS} can be read")


def _vet_adapter(path: Path, stored: dict[str, Any]) -> None:
    if stored.get("peft_type") != "LORA":
        raise ModelError(f"{path} is of the kind {stored.get('peft_type')!r}; only LORA adapters can be read")
    for name in _EMPTY:
        if stored.get(name):
            raise ModelError(f"{path} sets {name}; only plain LoRA adapters can be read")
    if _ENDLESS.search(json.dumps(stored)):
        raise ModelError(f"{path} holds a pattern with a repeated group; list its target_modules by name")
    pattern = stored.get("rank_pattern") or {}
    ranks = [stored.get("r"), *(pattern.values() if isinstance(pattern, dict) else [None])]
    held = max(
        (max(shape, default=0) for shape in shapes_in(path.with_name("adapter_model.safetensors")).values()),
        default=0,
    )
    if not all(isinstance(rank, int) and 0 < rank <= held for rank in ranks):
        raise ModelError(f"{path} names a rank that its adapter_model.safetensors does not hold")


def vet_size(folder: Path, described: int) -> None:
    """Refuse a config that describes many more parameters than the folder's files hold. (A few missing are named later.)"""
    files = sorted(folder.glob("*.safetensors"))
    held = sum(prod(shape) for file in files for shape in shapes_in(file).values())
    held += sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))  # at least a byte each
    if described > 2 * held + 1_000_000:
        raise ModelError(
            f"{folder / 'config.json'} describes {described} parameters and its weights are {held}"
        )


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor in a safetensors file, from its header; what does not fit into the file is refused."""
    try:
        check_regular(file, most=2**63)
        with file.open("rb") as stream:
            (length,) = struct.unpack("<Q", stream.read(8))
            if length > min(_LARGEST_HEADER, file.stat().st_size):
                raise ValueError("header too large")
            header = json.loads(stream.read(length))
        shapes = {
            name: tuple(map(int, held["shape"])) for name, held in header.items() if name != "__metadata__"
        }
    except (
        OSError,
        ValueError,
        TypeError,
        KeyError,
        AttributeError,
        RecursionError,
        struct.error,
        FileError,
    ) as why:
        raise ModelError(
            f"cannot read the weights in {file}: it is not a whole safetensors file ({why})"
        ) from why
    if (
        any(min(shape, default=0) < 0 for shape in shapes.values())
        or sum(map(prod, shapes.values())) > 8 * file.stat().st_size
    ):
        raise ModelError(f"cannot read the weights in {file}: its header describes more than the file holds")
    return shapes


def vet_archive(file: Path) -> None:
    """Refuse a .pth whose parts would take more room in memory than on disk."""
    try:
        check_regular(file, most=2**63)
        if not zipfile.is_zipfile(file):
            return
        with zipfile.ZipFile(file) as archive:
            packed = [
                part.filename for part in archive.infolist() if part.compress_type != zipfile.ZIP_STORED
            ]
            size = sum(part.file_size for part in archive.infolist())
    except FileError as why:
        raise ModelError(str(why)) from why
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as why:
        raise ModelError(f"cannot read {file}: {why}") from why
    if packed or size > file.stat().st_size:
        raise ModelError(
            f"cannot read {file}: it is compressed or its parts overlap, as torch.save writes none; save it again"
        )
