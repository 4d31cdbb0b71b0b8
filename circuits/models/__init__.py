"""Models: `load` finds and reads weights from any source, `Model` runs them with hooks that were checked.

How a model reads text needs no weights and stands here, a `Vocabulary`: tokens with their numbers and
spellings, BOS first if the model reads one. `tokens.load_vocabulary` makes one without the weights.
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from circuits.errors import ModelError, PromptError


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


def reads_bos_by_default(tokenizer: Any, kind: str) -> bool:
    """Whether a model of this kind (`model_type` of its config) reads BOS first where nothing says so: its
    tokenizer adds it, or it is a GPT-2."""
    bos, encode = tokenizer.bos_token_id, tokenizer.encode
    if bos is None:
        return False
    adds_bos = encode("a")[:1] == [bos] != encode("a", add_special_tokens=False)[:1]
    return adds_bos or kind == "gpt2"
