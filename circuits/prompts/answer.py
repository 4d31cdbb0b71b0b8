"""From the answer that a user writes to the tokens that the model may predict.

A word can stand as it is or after a space, and these are different tokens: `small` and ` small`. Of the
spellings that are a single token, the user means the one that the model finds likelier here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
from jaxtyping import Float

from circuits.errors import PromptError, shortened
from circuits.prompts.prompt import refuse_half_characters

if TYPE_CHECKING:
    from circuits.models.model import Model

Answer = str | Sequence[str]  # one answer, or several of which any counts
Predictions = Float[torch.Tensor, " vocab"]  # the logits at the last position
_CLOSING: Final = frozenset(".,;:!?)]}’”%")  # a word that follows one of these follows a space


def given_answers(answer: Answer | None) -> tuple[str, ...]:
    """The answers as a tuple, which is empty where none was given."""
    if answer is None:
        return ()
    listed = isinstance(answer, Sequence) and not isinstance(answer, str | bytes)
    answers: tuple[Any, ...] = tuple(answer) if listed else (answer,)
    if not answers:
        raise PromptError("a list of answers or foils must not be empty; leave it out")
    for text in answers:
        if not isinstance(text, str):
            remedy = "give the word, or model.spell(id) of a token id"
            raise PromptError(f"an answer or a foil is text, not {shortened(text)}; {remedy}")
        if not text.strip():
            raise PromptError(
                "an answer must not be empty; give the word that the model should say next"
            )
        refuse_half_characters(text)
    return answers


def answer_token(model: Model, text: str, predictions: Predictions) -> int:
    """The token that is meant by an answer or a foil: as written or with a leading space, whichever is one
    token and likelier here. If neither is one token, the error shows the pieces."""
    spellings = _spellings(model, text)
    single = [
        tokens[0] for tokens in spellings if len(tokens) == 1 and tokens[0] < len(predictions)
    ]
    if single:
        return max(single, key=lambda token: float(predictions[token]))
    pieces = [repr(model.spell(piece)) for piece in spellings[-1] if piece < len(predictions)]
    if len(pieces) < 2:
        raise PromptError(
            f"{model.name} has no token for {text!r}, so it cannot be an answer or a foil"
        )
    raise PromptError(
        f"{text!r} is {len(pieces)} tokens of {model.name} ({', '.join(pieces)}), and an answer or a foil is "
        "one token; measure it whole as the only answer with metric='logprob', or name its first piece"
    )


def answer_sequence(model: Model, text: str, prompt: str) -> tuple[int, ...]:
    """The tokens of an answer of several tokens; none if some spelling of it is a single token.

    The answer is spelled as it would follow the prompt: with a space after a word or a closing mark.
    """
    spellings = _spellings(model, text)
    if any(len(tokens) == 1 for tokens in spellings):
        return ()
    needs_space = prompt[-1:].isalnum() or prompt[-1:] in _CLOSING
    return spellings[-1] if needs_space else spellings[0]


def _spellings(model: Model, text: str) -> list[tuple[int, ...]]:
    """The tokens of an answer as written, then those with a leading space if it has none."""
    given_answers(text)
    spellings = [text] if text[0].isspace() else [text, f" {text}"]
    known = []
    for spelling in spellings:
        tokens = _tokens(model, spelling)
        if model.tokenizer.unk_token_id not in tokens:
            known.append(tokens)
    if not known:
        raise PromptError(
            f"{model.name} does not know {text!r}, so it cannot be an answer or a foil"
        )
    return known


def _tokens(model: Model, spelling: str) -> tuple[int, ...]:
    """The tokens of an answer. Some tokenizers put a space before every text by themselves; one that is written
    as well would be a token of its own, and is left out."""
    tokens = tuple(model.tokenizer(spelling, add_special_tokens=False)["input_ids"])
    if spelling.startswith(" "):
        without = tuple(
            model.tokenizer(spelling.lstrip(" "), add_special_tokens=False)["input_ids"]
        )
        if tokens[1:] == without:
            return without
    return tokens
