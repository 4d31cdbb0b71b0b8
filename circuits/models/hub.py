"""A repository of the Hugging Face hub as a local folder.

1. Whatever the local hub cache holds whole is used without asking the network.
2. Otherwise the hub must reply within 0.7 s; if not, the error comes now and not after half a minute of retries.
3. Only the files that are needed are fetched: safetensors before pickles, nothing that is code.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from circuits import zoo
from circuits.errors import ModelError
from circuits.files import read_text
from circuits.models import directory
from circuits.models.weights import one_line

_ID: Final = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?", re.ASCII)
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
_PATIENCE: Final = 0.7  # seconds
_FORMER: Final = {"openai-community/gpt2": "gpt2"}  # the id under which older caches hold a repository
_TEXT: Final = (
    "config.json",
    "circuits.json",
    "adapter_config.json",
    "generation_config.json",
    "tokenizer*",
    "special_tokens_map.json",
)
_VOCABULARY: Final = ("vocab.*", "merges.txt", "added_tokens.json", "*.model")
_WEIGHTS: Final = (
    ("*.safetensors", "*.safetensors.index.json"),
    ("pytorch_model*.bin", "pytorch_model.bin.index.json"),
    ("*.pth",),
)


def snapshot(name: str) -> Path:
    """The folder of a hub repository with weights, an adapter or a state dict in it."""
    return _folder(name, complete=_has_all, weights=True)


def tokenizer_snapshot(name: str) -> Path:
    """The folder of a hub repository with at least its tokenizer in it."""
    return _folder(name, complete=directory.has_tokenizer, weights=False)


def _has_all(folder: Path) -> bool:
    if directory.has_model(folder):
        return directory.has_tokenizer(folder)
    return (folder / "adapter_model.safetensors").exists() or directory.state_dict_in(folder) is not None


def _folder(name: str, *, complete: Callable[[Path], bool], weights: bool) -> Path:
    from huggingface_hub import constants

    if not _ID.fullmatch(name):
        raise ModelError(
            f"no model {name!r}: no such file or folder, and it is not the form of a hub id; known names are {_known()}"
        )
    for known_as in (name, _FORMER.get(name, name)):
        cached = _cached(known_as)
        if cached is not None and complete(cached):
            return cached
    if constants.HF_HUB_OFFLINE or not _answers(constants.ENDPOINT):
        state = (
            "HF_HUB_OFFLINE is set"
            if constants.HF_HUB_OFFLINE
            else f"{urlsplit(constants.ENDPOINT).hostname} does not answer"
        )
        raise ModelError(
            f"no model {name!r} here: known names are {_known()}; it is no local folder and not in the hub cache, and {state}: "
            "go online once, or give the path of a downloaded folder"
        )
    return _download(name, weights)


def _cached(name: str) -> Path | None:
    """The folder of a repository in the local hub cache. (The hub's own look-up refuses a folder that lacks files we never need.)"""
    from huggingface_hub import constants

    repository = Path(constants.HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"
    if not (repository / "refs" / "main").is_file():
        return None
    commit = read_text(repository / "refs" / "main", most=200).strip()
    if not _COMMIT.fullmatch(commit):
        raise ModelError(
            f"{repository / 'refs' / 'main'} names no commit; delete {repository} and download it again"
        )
    return repository / "snapshots" / commit


def _known() -> str:
    return ", ".join(str(entry) for entry in zoo.TABLE)


def _download(name: str, weights: bool) -> Path:
    from fnmatch import fnmatch

    from huggingface_hub import HfApi, constants, snapshot_download
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError

    try:
        files = HfApi(endpoint=constants.ENDPOINT).list_repo_files(name)
        kinds = [
            kind for kind in _WEIGHTS if any(fnmatch(file, kind[0]) for file in files if "/" not in file)
        ]
        wanted = [*_TEXT, *_VOCABULARY, *(kinds[0] if weights and kinds else ())]
        return Path(
            snapshot_download(
                name, allow_patterns=wanted, ignore_patterns=["*/*", "*.py"], endpoint=constants.ENDPOINT
            )
        )
    except GatedRepoError as error:
        raise ModelError(
            f"hub repository {name} asks for consent: accept its terms on its page, then run `hf auth login`"
        ) from error
    except RepositoryNotFoundError as error:
        raise ModelError(
            f"no model {name!r}: the hub has no such public repository; known names are {_known()}"
        ) from error
    except (OSError, ValueError, RuntimeError) as error:
        raise ModelError(f"cannot download {name} from the hub: {one_line(error)}") from error


def _answers(endpoint: str) -> bool:
    """Whether the hub replies at all, asked the way a download would ask. In a thread, because looking up a host has no time limit."""
    from huggingface_hub.utils import get_session

    replied = threading.Event()

    def ask() -> None:
        try:
            get_session().head(endpoint, timeout=_PATIENCE)
            replied.set()
        except Exception:  # whichever HTTP library the hub's client uses: any failure means no reply
            return

    threading.Thread(target=ask, daemon=True).start()
    return replied.wait(_PATIENCE)
