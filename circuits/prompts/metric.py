"""The metric: what is read at the end of a prompt, and which tokens a user means by an answer.

1. `logit_diff` is `logit(answer) − logit(foil)`, `logprob` the log-probability of the answer, `kl` the
   divergence from the clean prediction; or it is a function of the logits at the last position.
2. Of several answers (or foils) any one counts: their logits (or probabilities) are added up as
   probabilities are, by logsumexp.
3. An answer of several tokens is a sequence. Only `logprob` reads one: the answer follows the prompt, on both
   sides, and the log-probabilities of its tokens are added up, each given those before it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

import torch
from jaxtyping import Float

from circuits.errors import PromptError
from circuits.prompts.prompt import refuse_half_characters

if TYPE_CHECKING:
    from circuits.models.model import Model

MetricKind = Literal["logit_diff", "logprob", "kl", "custom"]
MetricFunction = Callable[
    [Float[torch.Tensor, "row vocab"]], Float[torch.Tensor, " row"]
]  # of the last logits
Answer = str | Sequence[str]  # one, or several of which any counts
Logits = Float[
    torch.Tensor, "row read vocab"
]  # at the positions that the metric reads, the last of them last
Predictions = Float[torch.Tensor, " vocab"]
METRICS: Final = ("logit_diff", "logprob", "kl")
_CLOSING: Final = frozenset(".,;:!?)]}’”%")  # a word that follows one of these follows a space


@dataclass(frozen=True, slots=True)
class Metric:
    """What is read at the end of a prompt."""

    kind: MetricKind
    answer: int  # of several the first
    answer_text: str
    foil: int | None = None
    foil_text: str | None = None
    function: MetricFunction | None = None
    answers: tuple[int, ...] = ()  # all of them, where there are several
    foils: tuple[int, ...] = ()
    sequence: tuple[int, ...] = ()  # the tokens of an answer that is more than one

    def __str__(self) -> str:
        if self.kind == "logit_diff":
            return f"logit({self.answer_text}) − logit({self.foil_text})"
        return f"logprob({self.answer_text})" if self.kind == "logprob" else self.kind

    @property
    def tail(self) -> int:
        """How many of the last positions it reads."""
        return max(1, len(self.sequence))

    @property
    def reads(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """Answers and foils, if their logits are all it needs, or None for the whole vocabulary."""
        if self.kind != "logit_diff" or self.foil is None:
            return None
        return self.answers or (self.answer,), self.foils or (self.foil,)

    def read(self, logits: Logits, clean: Float[torch.Tensor, "read vocab"] | None = None) -> torch.Tensor:
        """Its value for each row; `kl` compares with the clean run's logits."""
        last = logits[:, -1]
        match self.kind:
            case "logit_diff":
                assert self.reads is not None
                answers, foils = (last[:, list(tokens)].logsumexp(-1) for tokens in self.reads)
                return answers - foils
            case "logprob":
                return self._log_probability(logits)
            case "kl":
                assert clean is not None
                expected = clean[-1].log_softmax(-1)
                return -(expected.exp() * (expected - last.log_softmax(-1))).sum(-1)
        assert self.function is not None
        values = self.function(last)
        if values.shape != last.shape[:1]:
            shape = tuple(values.shape)
            raise PromptError(f"a metric function takes logits (row, vocab) and returns (row), not {shape}")
        return values

    def _log_probability(self, logits: Logits) -> Float[torch.Tensor, " row"]:
        chances = logits.log_softmax(-1)
        if self.sequence:
            each = [chances[:, place, token] for place, token in enumerate(self.sequence)]
            return torch.stack(each).sum(0)
        return chances[:, -1, list(self.answers or (self.answer,))].logsumexp(-1)


# What a user means by an answer


def one_or_several(answer: Answer | None) -> tuple[str, ...]:
    """An answer as a tuple, empty where none was given."""
    listed = (answer,) if isinstance(answer, str) else tuple(answer or ())
    for text in listed:
        if not isinstance(text, str) or not text.strip():
            raise PromptError("an answer must not be empty; give the word that the model should say next")
        refuse_half_characters(text)
    return listed


def answer_token(model: Model, text: str, predictions: Predictions) -> int:
    """The token a user means by an answer: as written or with a leading space, whichever is one token and
    likelier here. An answer that is several tokens either way is refused with its pieces."""
    spellings = _spellings(model, text)
    candidates = {tokens[0] for tokens in spellings if len(tokens) == 1 and tokens[0] < len(predictions)}
    if candidates:
        return max(candidates, key=lambda token: float(predictions[token]))
    pieces = [model.spell(token) for token in spellings[-1] if token < len(predictions)]
    if len(pieces) < 2:
        raise PromptError(f"{model.name} has no token for {text!r}, so it cannot be an answer or a foil")
    count = f"{text!r} is {len(pieces)} tokens of {model.name} ({', '.join(map(repr, pieces))})"
    advice = "measure it whole as the only answer with metric='logprob', or name its first piece"
    raise PromptError(f"{count}, and an answer or a foil is one token; {advice}")


def answer_sequence(model: Model, text: str, prompt: str) -> tuple[int, ...]:
    """The tokens of an answer that is more than one however it is spelled, else none.

    It is spelled as it would follow the prompt: with a space behind a word or a closing mark.
    """
    spellings = _spellings(model, text)
    if any(len(tokens) == 1 for tokens in spellings):
        return ()
    spaced = prompt[-1:].isalnum() or prompt[-1:] in _CLOSING
    return spellings[-1 if spaced else 0]


def _spellings(model: Model, text: str) -> list[tuple[int, ...]]:
    """The tokens of an answer as written, and with a leading space if it has none."""
    one_or_several(text)
    spellings = [text] if text[0].isspace() else [text, f" {text}"]
    tokenised = [model.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings]
    if all(model.tokenizer.unk_token_id in tokens for tokens in tokenised):
        raise PromptError(f"{model.name} does not know {text!r}, so it cannot be an answer or a foil")
    return [tuple(tokens) for tokens in tokenised]
