"""A LoRA adapter, merged into the weights that it was trained on.

Its config is data for peft, so only plain LoRA is read: modules are listed by name, not by patterns, and no
setting names a module to import. The tensors of the adapter are exactly those that fit its base. The flags of
the base hold where those of the adapter say nothing.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError
from circuits.files import read_object
from circuits.models.folder import ModelFlags, Weights, quiet, read_flags, reading, vet_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

ADAPTER: Final = "adapter_model.safetensors"
_CONFIG: Final = "adapter_config.json"
_NOT_PLAIN: Final = (
    "arrow_config",
    "corda_config",
    "eva_config",
    "layer_replication",
    "loftq_config",
    "megatron_config",
)
_NAMES_OF_MODULES: Final = (
    "alpha_pattern",
    "exclude_modules",
    "layers_pattern",
    "rank_pattern",
    "target_modules",
)
_PLAIN_NAME: Final = re.compile(r"[\w.-]+")


def is_adapter(folder: Path) -> bool:
    return (folder / _CONFIG).exists()


def read_adapter(
    folder: Path, find: Callable[..., Weights], adapters: tuple[Path, ...]
) -> Weights:
    """Read an adapter and merge it into its base, which `find` reads.

    `adapters` are the folders of the adapters whose base this one is, since an adapter may change another.
    """
    if find_spec("peft") is None:
        raise ModelError(
            f"{folder} is a LoRA adapter; reading one needs peft: pip install peft"
        )
    if not (folder / ADAPTER).exists():
        raise ModelError(f"{folder} has no {ADAPTER}; adapters are read as safetensors only")
    if folder.resolve() in adapters:
        raise ModelError(f"{folder} is an adapter that names itself as its base")
    with reading(f"the adapter in {folder}"):
        name = base_of(folder)
    base = find(name, adapters=(*adapters, folder.resolve()))
    own = read_flags(folder)
    gate = base.flags.gate if own.gate is None else own.gate
    bos = base.flags.bos if own.bos is None else own.bos
    return Weights(_merged(base, folder), base.tokenizer, ModelFlags(gate, bos))


def base_of(folder: Path) -> str:
    """The name or path of an adapter's base. A path may be relative to the adapter's folder."""
    vet_folder(folder)
    path = folder / _CONFIG
    config = read_object(path)
    _vet_config(path, config)
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path} does not name its base in base_model_name_or_path")
    beside = os.path.join(folder, name)  # noqa: PTH118 (unlike a path object, these say no and never raise)
    is_beside = os.path.exists(beside) and not os.path.exists(name)  # noqa: PTH110
    return beside if is_beside else name


def _vet_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse all but a plain LoRA."""
    if config.get("peft_type") != "LORA":
        raise ModelError(
            f"{path} is of the kind {config.get('peft_type')!r}; only LORA adapters can be read"
        )
    for setting in _NOT_PLAIN:
        if config.get(setting):
            raise ModelError(f"{path} sets {setting}; only plain LoRA adapters can be read")
    for setting in _NAMES_OF_MODULES:
        given = config.get(setting) or []
        names = [given] if isinstance(given, str) else given
        if not isinstance(names, list | dict) or not all(map(_is_plain_name, names)):
            raise ModelError(f"{path} has a pattern in {setting}; list the modules by name")


def _is_plain_name(name: object) -> bool:
    return isinstance(name, str) and _PLAIN_NAME.fullmatch(name) is not None


def _merged(base: Weights, folder: Path) -> PreTrainedModel:
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    with reading(f"the adapter in {folder}"), quiet():
        # With `low_cpu_mem_usage` the adapter takes its shapes from its file, whatever rank its config names.
        adapted = PeftModel.from_pretrained(base.model, str(folder), low_cpu_mem_usage=True)
        with safe_open(folder / ADAPTER, framework="pt") as file:
            stored = set(file.keys())
        different = sorted(stored ^ set(get_peft_model_state_dict(adapted)))
        if different:
            count = f"{len(different)} tensors without counterpart, e.g. {different[0]}"
            raise ModelError(f"the adapter in {folder} does not fit its base: {count}")
        return adapted.merge_and_unload().eval()
