"""How a model reads text: its tokens with their numbers and spellings, and whether it reads BOS first.

This needs a model's folder but not its weights. Where `tokenizer.json` says all there is to know about a
tokenizer, the light `tokenizers` library opens it alone, without transformers.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import ModelError, PromptError
from circuits.files import read_object
from circuits.models.folder import reading

if TYPE_CHECKING:
    from tokenizers import Tokenizer

# For these kinds of model, transformers opens a tokenizer of these classes by its tokenizer.json alone.
_PLAIN_KINDS: Final = ("gpt2", "llama", "gpt_neox")
_PLAIN_CLASSES: Final = ("TokenizersBackend", "PreTrainedTokenizerFast")
# Tokens; transformers may mend the rules of a larger vocabulary.
_LARGEST_PLAIN: Final = 100_000
_SPECIAL: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_WITHOUT_EFFECT: Final = {
    "backend",
    "clean_up_tokenization_spaces",
    "is_local",
    "local_files_only",
    "model_max_length",
    "tokenizer_class",
}


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
            raise ModelError(
                f"{self.name} cannot read BOS first: its tokenizer has no BOS token"
            )

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The token ids of a prompt, BOS first if the model reads one (never twice)."""
        is_fast = bool(self.tokenizer.is_fast)
        encoded = self.tokenizer(text, add_special_tokens=False, return_offsets_mapping=is_fast)
        tokens = list(encoded["input_ids"])
        if not text.strip() or not tokens:
            raise PromptError("the prompt is empty; give at least one token of text")
        offsets = encoded["offset_mapping"] if is_fast else [(0, len(text))] * len(tokens)
        self._refuse_unknown(text, tokens, offsets)
        bos = self.tokenizer.bos_token_id
        if self.reads_bos and tokens[0] != bos:
            tokens.insert(0, bos)
        if len(tokens) > self.n_ctx:
            limit = f"{self.name} reads at most {self.n_ctx}"
            raise PromptError(f"the prompt has {len(tokens)} tokens and {limit}; shorten it")
        return tuple(tokens)

    def _refuse_unknown(
        self, text: str, tokens: list[int], offsets: list[tuple[int, int]]
    ) -> None:
        """Refuse words that the tokenizer does not know; its token for unknown words may be written out."""
        unknown: list[str] = []
        for token, (start, end) in zip(tokens, offsets, strict=True):
            word = text[start:end]
            if token == self.tokenizer.unk_token_id and word != self.tokenizer.unk_token:
                unknown.append(word.strip())
        if unknown:
            listed = ", ".join(map(repr, dict.fromkeys(unknown)))
            near = difflib.get_close_matches(unknown[0], self.tokenizer.get_vocab(), n=3)
            hint = f"; near it are {', '.join(near)}" if near else ""
            raise PromptError(f"{self.name} does not know {listed}{hint}")

    def spell(self, token: int) -> str:
        """The text of a token as the tokenizer has it, leading space included."""
        if not 0 <= token < self.size:
            raise PromptError(
                f"{self.name} has no token {token}; its tokens are 0 to {self.size - 1}"
            )
        piece: Any = self.tokenizer.convert_ids_to_tokens(int(token))
        if piece is None:
            return f"<unused {token}>"  # models pad their vocabulary to a round number
        if "▁" in piece:  # a leading space, which decoding a single token would drop
            return piece.replace("▁", " ")
        return str(self.tokenizer.decode([int(token)], clean_up_tokenization_spaces=False))


class PlainTokenizer:
    """A `tokenizer.json`, with those methods of a transformers tokenizer that reading a prompt needs."""

    is_fast: Final = True

    def __init__(self, tokenizer: Tokenizer, *, bos: str | None, unknown: str | None) -> None:
        tokenizer.no_padding()
        tokenizer.no_truncation()
        self._tokenizer = tokenizer
        self.unk_token = unknown
        self.bos_token_id = None if bos is None else tokenizer.token_to_id(bos)
        self.unk_token_id = None if unknown is None else tokenizer.token_to_id(unknown)

    def __call__(self, text: str, *, add_special_tokens: bool, **_: Any) -> dict[str, Any]:
        encoded = self._tokenizer.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def get_vocab(self) -> dict[str, int]:
        return self._tokenizer.get_vocab()

    def convert_ids_to_tokens(self, token: int) -> str | None:
        return self._tokenizer.id_to_token(token)

    def decode(self, tokens: list[int], **_: Any) -> str:
        return self._tokenizer.decode(tokens, skip_special_tokens=False)


def read_plain_tokenizer(folder: Path, kind: str) -> PlainTokenizer | None:
    """The tokenizer of a folder with a model of this kind (`model_type` of its config), or None where only
    transformers can open it."""
    file = folder / "tokenizer.json"
    settings = folder / "tokenizer_config.json"
    others = (folder / "special_tokens_map.json", folder / "added_tokens.json")
    if kind not in _PLAIN_KINDS or not file.exists() or not settings.exists():
        return None
    if any(other.exists() for other in others):
        return None
    config = read_object(settings)
    other_settings = set(config) - _WITHOUT_EFFECT - set(_SPECIAL)
    if other_settings or config.get("tokenizer_class") not in _PLAIN_CLASSES:
        return None
    from tokenizers import Tokenizer

    with reading(f"the tokenizer in {folder}"):
        tokenizer = Tokenizer.from_file(str(file))
    added = [token.content for token in tokenizer.get_added_tokens_decoder().values()]
    special = [config[name] for name in _SPECIAL if config.get(name) is not None]
    if any(token not in added for token in special):
        return None
    if tokenizer.get_vocab_size() > _LARGEST_PLAIN:
        return None
    return PlainTokenizer(
        tokenizer, bos=config.get("bos_token"), unknown=config.get("unk_token")
    )


def reads_bos_by_default(tokenizer: Any, kind: str) -> bool:
    """Whether a model of this kind (`model_type` of its config) reads BOS first where nothing says so: its
    tokenizer adds it by itself, or it is a GPT-2."""
    bos = tokenizer.bos_token_id
    if bos is None:
        return False
    with_special = tokenizer("a", add_special_tokens=True)["input_ids"]
    without = tokenizer("a", add_special_tokens=False)["input_ids"]
    adds_bos = with_special[:1] == [bos] and without[:1] != [bos]
    return adds_bos or kind == "gpt2"
