"""A model's folder: config, weights, tokenizer and marks, vetted before a library may open any of them.

1. Each file that a library would open is a regular file, and its JSON is read strictly. Code is never run.
2. Weights lie in their own folder: the name of a shard that leads elsewhere is refused.
3. A config that describes a much larger model than the files hold is refused before memory is taken for it.
4. A LoRA adapter must be a plain one: nothing in it names modules to import, layers to copy or patterns that
   never end, and its tensors are exactly those that fit its base. The base's marks hold where its own say
   nothing.
5. A `tokenizer.json` whose settings change nothing about it (they are listed below) is opened by the light
   `tokenizers` library alone.
6. Whatever a library raises while it reads becomes one line; its bars, warnings and log lines are not shown.
"""

from __future__ import annotations

import json
import logging
import os
import pickle
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import FileError, ModelError
from circuits.files import check_regular, read_object, to_record
from circuits.models import PlainTokenizer

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MARKS: Final = "circuits.json"
_WEIGHT_FILES: Final = tuple(
    f"{file}{index}" for file in ("model.safetensors", "pytorch_model.bin") for index in ("", ".index.json")
)
_TOKENIZER_FILES: Final = ("tokenizer.json", "tokenizer.model", "vocab.json", "vocab.txt", "spiece.model")
_SETTINGS: Final = ("config", "generation_config", "adapter_config", "tokenizer_config", "special_tokens_map")
_TABLES: Final = ("tokenizer.json", "vocab.json", "vocab.txt", "merges.txt", "added_tokens.json")
_BINARIES: Final = (".safetensors", ".bin", ".pth", ".model")
_DEPTHS: Final = ("n_layer", "n_layers", "num_layers", "num_hidden_layers")
_MOST_LAYERS: Final = 1000
_LARGEST_SETTINGS: Final = 64 * 2**20  # bytes of a JSON file of settings
NO_LIMIT: Final = 2**63  # bytes: more than any file has
_PLAIN_CLASSES: Final = ("TokenizersBackend", "PreTrainedTokenizerFast")
_PLAIN_KINDS: Final = ("gpt2", "llama", "gpt_neox")  # transformers puts no class of its own in their place
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_NEUTRAL: Final = ("backend", "clean_up_tokenization_spaces", "model_max_length", "tokenizer_class")
_SAID_BY_THE_HUB: Final = ("is_local", "local_files_only")
_OTHER_FILES: Final = ("special_tokens_map.json", "added_tokens.json")
_LARGEST_PLAIN: Final = 100_000  # transformers may mend the rules of a larger vocabulary
ADAPTER: Final = "adapter_model.safetensors"
_EXTRAS: Final = ("megatron_config", "loftq_config", "corda_config", "eva_config", "arrow_config")
# Matching a pattern with a repeated group, or with many repeated parts, can take for ever.
_REPEATED_GROUP: Final = re.compile(r"\)\s*[*+{]")
_REPEATED: Final = re.compile(r"(?<!\()(?:[*+?]|\{[^{}]*\})[?+]?")
_MOST_REPEATED: Final = 3


@dataclass(frozen=True, slots=True)
class Marks:
    """What a model's own files say: is it gated, does it read BOS. None where they say nothing."""

    gate: bool | None = None
    bos: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A Hugging Face model on the CPU, its tokenizer and marks, and the dtype that its files name, if any."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    marks: Marks
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
    """The first line of an error's text, or its type if it has none."""
    lines = (line.strip() for line in str(error).splitlines())
    return next(filter(None, lines), type(error).__name__)


@contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars, warnings and log lines of the model libraries off the terminal."""
    from transformers.utils import logging as transformers_logging

    level, bars = logging.root.manager.disable, transformers_logging.is_progress_bar_enabled()
    with warnings.catch_warnings(action="ignore"):
        logging.disable(logging.WARNING)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.disable(level)
            if bars:
                transformers_logging.enable_progress_bar()


def has_model(folder: Path) -> bool:
    return (folder / "config.json").exists() and any((folder / name).exists() for name in _WEIGHT_FILES)


def has_tokenizer(folder: Path) -> bool:
    return any((folder / name).exists() for name in _TOKENIZER_FILES)


def state_dict_in(folder: Path) -> Path | None:
    """The state dict in TransformerLens layout: `final.pth`, or the only .pth, or the only .safetensors."""
    if (folder / "final.pth").exists():
        return folder / "final.pth"
    candidates = (sorted(folder.glob(pattern)) for pattern in ("*.pth", "*.safetensors"))
    return next((files[0] for files in candidates if len(files) == 1), None)


def read(folder: Path, dtype: torch.dtype | None = None) -> Weights:
    """Read a Hugging Face directory, in fp32 unless told otherwise. One without a mark in `circuits.json` is
    dense."""
    marks, (model, stored) = read_marks(folder), _read_model(folder, dtype)
    return Weights(model, read_tokenizer(folder), Marks(bool(marks.gate), marks.bos), stored)


def read_marks(folder: Path) -> Marks:
    """Read the `circuits.json` of a model's folder, e.g. `{"gate": true}`; without one there are no marks."""
    if not (folder / MARKS).exists():
        return Marks()
    try:
        stored = read_object(folder / MARKS)
        return to_record(Marks, {name: stored.get(name) for name in ("gate", "bos")}, folder / MARKS)
    except FileError as why:
        raise ModelError(f'{why}; the file marks a gated model with {{"gate": true}}') from why


def read_tokenizer(folder: Path) -> PreTrainedTokenizerBase:
    from transformers import AutoTokenizer

    if not has_tokenizer(folder):
        raise ModelError(f"{folder} has no tokenizer files; save them with tokenizer.save_pretrained")
    with reading(f"the tokenizer in {folder}"), quiet():
        vet_folder(folder)
        return AutoTokenizer.from_pretrained(folder, trust_remote_code=False, local_files_only=True)


def read_plain_tokenizer(folder: Path, kind: str) -> PlainTokenizer | None:
    """The tokenizer, if its `tokenizer.json` says all there is to know about it."""
    file, settings = folder / "tokenizer.json", folder / "tokenizer_config.json"
    if kind not in _PLAIN_KINDS or not (file.exists() and settings.exists()):
        return None
    config = read_object(settings)
    said = set(config) - {*_NEUTRAL, *_SAID_BY_THE_HUB, *_NAMED}
    if said or config.get("tokenizer_class") not in _PLAIN_CLASSES:
        return None
    if any((folder / other).exists() for other in _OTHER_FILES):
        return None
    from tokenizers import Tokenizer as Rules

    with reading(f"the tokenizer in {folder}"):
        rules = Rules.from_file(str(file))
    added = {token.content for token in rules.get_added_tokens_decoder().values()}
    named = [config[name] for name in _NAMED if config.get(name) is not None]
    if not all(token in added for token in named) or rules.get_vocab_size() > _LARGEST_PLAIN:
        return None
    return PlainTokenizer(rules, bos=config.get("bos_token"), unknown=config.get("unk_token"))


def _read_model(folder: Path, dtype: torch.dtype | None) -> tuple[PreTrainedModel, torch.dtype | None]:
    """Read the weights, and say in which dtype they are stored. The library would draw a missing weight at
    random: here it is an error."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    local: dict[str, Any] = {"trust_remote_code": False, "local_files_only": True}
    form = {"dtype": dtype or torch.float32, "attn_implementation": "eager", "output_loading_info": True}
    with reading(f"the weights in {folder}"), quiet():
        vet_folder(folder)
        config = AutoConfig.from_pretrained(folder, **local)
        with torch.device("meta"):  # shapes alone
            described = AutoModelForCausalLM.from_config(config, trust_remote_code=False)
        _vet_size(folder, sum(parameter.numel() for parameter in described.parameters()))
        loaded: Any = AutoModelForCausalLM.from_pretrained(folder, **local, **form)
    model, report = loaded
    if absent := sorted(str(name) for name in [*report["missing_keys"], *report["mismatched_keys"]]):
        count = f"{len(absent)} are missing or misshapen, e.g. {absent[0]}"
        raise ModelError(f"the weights in {folder} do not fit its config.json: {count}")
    if extra := sorted(str(name) for name in report["unexpected_keys"]):
        _weigh_extra(folder, extra, {name for name, _ in model.named_parameters()})
    return model.eval(), config.dtype if isinstance(config.dtype, torch.dtype) else None


def _weigh_extra(folder: Path, extra: list[str], names: set[str]) -> None:
    """Tensors that no part of the model takes up: those of further layers are refused, others mentioned."""

    def without_numbers(name: str) -> str:
        return re.sub(r"\d+", "#", name)

    count = f"it has no place for {len(extra)} tensors, e.g. {extra[0]}"
    if any(without_numbers(name) in set(map(without_numbers, names)) for name in extra):
        raise ModelError(f"the weights in {folder} hold more layers than config.json says; {count}")
    warnings.warn(f"{folder} is read by its config.json: {count}, which are left out", stacklevel=2)


def vet_folder(folder: Path) -> None:
    """Check every file that a library would open."""
    for path in sorted(folder.iterdir()):
        if path.name.endswith(".index.json"):
            _vet_shards(path, read_object(path, most=_LARGEST_SETTINGS))
        elif path.suffix == ".json" and path.stem in _SETTINGS:
            settings = read_object(path, most=_LARGEST_SETTINGS)
            if path.stem == "config":
                _vet_config(path, settings)
        elif path.name in _TABLES or path.suffix in _BINARIES:
            check_regular(path, most=NO_LIMIT)


def _vet_shards(path: Path, index: dict[str, Any]) -> None:
    shards = index.get("weight_map")
    if not isinstance(shards, dict) or not all(isinstance(name, str) for name in shards.values()):
        raise ModelError(f"{path} must map the name of each tensor to its file, in weight_map")
    for name in set(shards.values()):
        if name in ("", ".", "..") or Path(name).name != name or "\\" in name:
            raise ModelError(f"{path} names {name!r}; weights must lie in the same folder")


def _vet_config(path: Path, config: dict[str, Any]) -> None:
    for name, value in config.items():
        if name.endswith("implementation") and "/" in str(value):
            raise ModelError(f"{path} asks for {name} {str(value)!r}; code that weights name is never run")
    depth = max((config[name] for name in _DEPTHS if isinstance(config.get(name), int)), default=0)
    if depth > _MOST_LAYERS:
        raise ModelError(f"{path} describes a model of {depth} layers; at most {_MOST_LAYERS} can be read")


def _vet_size(folder: Path, described: int) -> None:
    """Refuse a config with many more parameters than the files hold. (A few missing ones are named later.)"""
    stored = sum(prod(shape) for file in folder.glob("*.safetensors") for shape in shapes_in(file).values())
    stored += sum(file.stat().st_size for file in folder.glob("pytorch_model*.bin"))  # at least a byte each
    if described > 2 * stored + 1_000_000:
        file = folder / "config.json"
        raise ModelError(f"{file} describes {described} parameters, but its weights hold {stored}")


def shapes_in(file: Path) -> dict[str, tuple[int, ...]]:
    """The shape of each tensor of a safetensors file, from its header, which must fit the file's size."""
    from safetensors import safe_open

    with reading(f"the weights in {file}"):
        check_regular(file, most=NO_LIMIT)
        with safe_open(file, framework="pt") as tensors:
            return {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118


# A LoRA adapter, merged into the weights that it was trained on


def read_adapter(folder: Path, find: Callable[..., Weights], above: tuple[Path, ...]) -> Weights:
    """Read an adapter on top of the base that `find` gives. `above` are the adapters that led here."""
    if find_spec("peft") is None:
        raise ModelError(f"{folder} is a LoRA adapter; reading one needs peft: pip install peft")
    if not (folder / ADAPTER).exists():
        raise ModelError(f"{folder} has no {ADAPTER}; adapters are read as safetensors only")
    if folder.resolve() in above:
        raise ModelError(f"{folder} is an adapter that names itself as its base")
    with reading(f"the adapter in {folder}"):
        name = base_of(folder)
    base, own = find(name, above=(*above, folder.resolve())), read_marks(folder)
    gate = base.marks.gate if own.gate is None else own.gate
    bos = base.marks.bos if own.bos is None else own.bos
    return Weights(_with_adapter(base, folder), base.tokenizer, Marks(gate, bos))


def base_of(folder: Path) -> str:
    """The name or path of an adapter's base, once the adapter is vetted."""
    vet_folder(folder)
    path = folder / "adapter_config.json"
    config = read_object(path)
    _vet_adapter(path, config)
    name = config.get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelError(f"{path} does not name its base in base_model_name_or_path")
    beside = os.path.join(folder, name)  # noqa: PTH118 (unlike a path object, these say no and never raise)
    return beside if not os.path.exists(name) and os.path.exists(beside) else name  # noqa: PTH110


def _vet_adapter(path: Path, config: dict[str, Any]) -> None:
    """Refuse all but a plain LoRA whose ranks are those of its tensors."""
    if config.get("peft_type") != "LORA":
        raise ModelError(f"{path} is of the kind {config.get('peft_type')!r}; only LORA adapters can be read")
    if extra := next((name for name in (*_EXTRAS, "layer_replication") if config.get(name)), None):
        raise ModelError(f"{path} sets {extra}; only plain LoRA adapters can be read")
    if _REPEATED_GROUP.search(json.dumps(config)):
        raise ModelError(f"{path} holds a pattern with a repeated group; list its target_modules by name")
    if any(len(_REPEATED.findall(pattern)) > _MOST_REPEATED for pattern in _patterns_in(config)):
        most = f"more than {_MOST_REPEATED} repeated parts"
        raise ModelError(f"{path} holds a pattern of {most}; list its target_modules by name")
    pattern = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(pattern.values() if isinstance(pattern, dict) else [None])]
    shapes = shapes_in(path.with_name(ADAPTER)).values()
    largest = max((max(shape) for shape in shapes if shape and prod(shape)), default=0)
    if not all(isinstance(rank, int) and 0 < rank <= largest for rank in ranks):
        raise ModelError(f"{path} names a rank that its {ADAPTER} does not hold")


def _patterns_in(config: dict[str, Any]) -> Iterator[str]:
    """Every text of an adapter's settings that is matched against the names of modules."""
    for name in ("target_modules", "exclude_modules", "layers_pattern", "rank_pattern", "alpha_pattern"):
        given = config.get(name)
        listed = given if isinstance(given, list | dict) else [given]
        yield from (text for text in listed if isinstance(text, str))


def _with_adapter(base: Weights, folder: Path) -> PreTrainedModel:
    from peft import PeftModel, get_peft_model_state_dict

    with reading(f"the adapter in {folder}"), quiet():
        adapted = PeftModel.from_pretrained(base.model, str(folder))
        if astray := sorted(set(shapes_in(folder / ADAPTER)) ^ set(get_peft_model_state_dict(adapted))):
            count = f"{len(astray)} tensors without counterpart, e.g. {astray[0]}"
            raise ModelError(f"the adapter in {folder} does not fit its base: {count}")
        return adapted.merge_and_unload().eval()
