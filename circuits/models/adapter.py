"""A LoRA adapter directory, merged into the weights it was trained on.

1. `adapter_config.json` names its base: any name that `load` takes, or a path beside the adapter.
2. Every tensor of the adapter must find its place, and every place its tensor; the library would only warn.
3. The sum is an ordinary model; the base's marks hold where the adapter's own `circuits.json` says nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

from circuits.errors import ModelError
from circuits.files import read_object
from circuits.models.vetting import vet_folder
from circuits.models.weights import Marks, Weights, quiet, read_marks, reading


def read(folder: Path, find: Callable[..., Weights], above: tuple[Path, ...]) -> Weights:
    """Read an adapter on top of the base that `find` gives. `above` are the adapters on the way here."""
    if find_spec("peft") is None:
        raise ModelError(f"{folder} is a LoRA adapter; reading one needs peft: pip install peft")
    if not (folder / "adapter_model.safetensors").exists():
        raise ModelError(f"{folder} has no adapter_model.safetensors; adapters are read as safetensors only")
    vet_folder(folder, f"the adapter in {folder}")
    if folder.resolve() in above:
        raise ModelError(f"{folder} is an adapter that names itself as its base")
    base = find(_base_name(folder), above=(*above, folder.resolve()))
    own = read_marks(folder)
    marks = Marks(
        base.marks.gate if own.gate is None else own.gate, base.marks.bos if own.bos is None else own.bos
    )
    return Weights(_merged(base, folder), base.tokenizer, marks)


def _base_name(folder: Path) -> str:
    name = read_object(folder / "adapter_config.json").get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(
            f"{folder / 'adapter_config.json'} does not name its base in base_model_name_or_path"
        )
    beside = os.path.join(folder, name)  # noqa: PTH118 (these two answer no where a path object would raise)
    return beside if not os.path.exists(name) and os.path.exists(beside) else name  # noqa: PTH110


def _merged(base: Weights, folder: Path):
    from peft import PeftModel, get_peft_model_state_dict
    from safetensors import safe_open

    with reading(f"the adapter in {folder}"), quiet():
        adapted = PeftModel.from_pretrained(base.model, str(folder))
        with safe_open(folder / "adapter_model.safetensors", framework="pt") as file:
            stored = set(file.keys())
        astray = sorted(stored ^ set(get_peft_model_state_dict(adapted)))
        if astray:
            raise ModelError(
                f"the adapter in {folder} does not fit its base: {len(astray)} tensors without counterpart, e.g. {astray[0]}"
            )
        return adapted.merge_and_unload().eval()
