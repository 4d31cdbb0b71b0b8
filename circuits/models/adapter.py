"""A LoRA adapter directory, merged into the weights that it was trained on.

1. It must be a plain LoRA: nothing in it names modules to import, layers to copy or patterns that never end.
2. `adapter_config.json` names its base: any name that `load` takes, or a path beside the adapter.
3. The tensors of the adapter must be exactly those that fit its base; the library would only warn.
4. The sum is an ordinary model. The base's marks hold where the adapter's own `circuits.json` says nothing.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError
from circuits.files import read_object
from circuits.models.folder import Marks, Weights, quiet, read_marks, reading, shapes_in, vet_folder

if TYPE_CHECKING:
    from transformers import PreTrainedModel

_TENSORS: Final = "adapter_model.safetensors"
_EXTRAS: Final = ("megatron_config", "loftq_config", "corda_config", "eva_config", "arrow_config")
_REPEATED_GROUP: Final = re.compile(r"\)\s*[*+{]")  # matching such a pattern can take for ever


def read(folder: Path, find: Callable[..., Weights], above: tuple[Path, ...]) -> Weights:
    """Read an adapter on top of the base that `find` gives. `above` are the adapters that led here."""
    if find_spec("peft") is None:
        raise ModelError(f"{folder} is a LoRA adapter; reading one needs peft: pip install peft")
    if not (folder / _TENSORS).exists():
        raise ModelError(f"{folder} has no {_TENSORS}; adapters are read as safetensors only")
    if folder.resolve() in above:
        raise ModelError(f"{folder} is an adapter that names itself as its base")
    with reading(f"the adapter in {folder}"):
        name = base_of(folder)
    base, own = find(name, above=(*above, folder.resolve())), read_marks(folder)
    gate = base.marks.gate if own.gate is None else own.gate
    bos = base.marks.bos if own.bos is None else own.bos
    return Weights(_merged(base, folder), base.tokenizer, Marks(gate, bos))


def base_of(folder: Path) -> str:
    """The name or path of an adapter's base, once the adapter is vetted."""
    vet_folder(folder)
    path = folder / "adapter_config.json"
    config = read_object(path)
    _vet_config(path, config)
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path} does not name its base in base_model_name_or_path")
    beside = os.path.join(folder, name)  # noqa: PTH118 (unlike a path object, these say no and never raise)
    return beside if not os.path.exists(name) and os.path.exists(beside) else name  # noqa: PTH110


def _vet_config(path: Path, config: dict[str, Any]) -> None:
    """Refuse all but a plain LoRA whose ranks are those of its tensors."""
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{path} is of the kind {config.get('peft_type')!r}; only LORA adapters can be read")
    if extra := next((name for name in (*_EXTRAS, "layer_replication") if config.get(name)), None):
        raise ModelError(f"{path} sets {extra}; only plain LoRA adapters can be read")
    if _REPEATED_GROUP.search(json.dumps(config)):
        raise ModelError(f"{path} holds a pattern with a repeated group; list its target_modules by name")
    pattern = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [None])]
    shapes = shapes_in(path.with_name(_TENSORS)).values()
    largest = max((max(shape) for shape in shapes if shape and prod(shape)), default=0)
    if not all(isinstance(rank, int) and 0 < rank <= largest for rank in ranks):
        raise ModelError(f"{path} names a rank that its {_TENSORS} does not hold")


def _merged(base: Weights, folder: Path) -> PreTrainedModel:
    from peft import PeftModel, get_peft_model_state_dict

    with reading(f"the adapter in {folder}"), quiet():
        adapted = PeftModel.from_pretrained(base.model, str(folder))
        if astray := sorted(set(shapes_in(folder / _TENSORS)) ^ set(get_peft_model_state_dict(adapted))):
            count = f"{len(astray)} tensors without counterpart, e.g. {astray[0]}"
            raise ModelError(f"the adapter in {folder} does not fit its base: {count}")
        return adapted.merge_and_unload().eval()
