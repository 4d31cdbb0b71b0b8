"""The metric: one number that says how strongly a run predicts the answer, read at the end of the prompt.

- `logit_diff`: `logit(answer) − logit(foil)` at the last position.
- `logprob`: the log-probability of the answer. An answer of several tokens is appended to the prompt, all but
  its last token, and the log-probabilities of its tokens are added up.
- `kl`: minus the KL divergence of the prediction from that of the clean run; 0 is the largest value.
- `custom`: a function of the logits at the last position.

Where several answers (or foils) are given, any of them counts: their probabilities are added, which in terms
of logits is a logsumexp.

To add a metric, name it in `MetricKind` and give it a case in `Metric.read`. If it needs a foil, or the
logits of the clean run, name it in `COMPARES_WITH_FOIL` or `COMPARES_WITH_CLEAN` too.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float

from circuits.errors import PromptError, escaped

MetricKind = Literal["logit_diff", "logprob", "kl", "custom"]
# Those with a name.
METRICS: Final = tuple(kind for kind in get_args(MetricKind) if kind != "custom")
COMPARES_WITH_FOIL: Final = ("logit_diff",)
COMPARES_WITH_CLEAN: Final = ("kl",)
MetricFunction = Callable[[Float[torch.Tensor, "row vocab"]], Float[torch.Tensor, " row"]]
# At the last positions, as many as `Metric.positions_read`.
Logits = Float[torch.Tensor, "row read vocab"]
Values = Float[torch.Tensor, " row"]


@dataclass(frozen=True, slots=True)
class Metric:
    """The kind of metric, with the tokens and texts of its answer and foil.

    `answer` and `foil` are token ids. Where there are several, they are the first, and `answers` and `foils`
    hold all. `sequence` holds the tokens of an answer of more than one token.
    """

    kind: MetricKind
    answer: int
    answer_text: str
    foil: int | None = None
    foil_text: str | None = None
    function: MetricFunction | None = None
    answers: tuple[int, ...] = ()
    foils: tuple[int, ...] = ()
    sequence: tuple[int, ...] = ()

    def __str__(self) -> str:
        match self.kind:
            case "logit_diff":
                answer, foil = escaped(self.answer_text), escaped(self.foil_text or "")
                return f"logit({answer}) − logit({foil})"
            case "logprob":
                return f"logprob({escaped(self.answer_text)})"
            case _:
                return self.kind

    @property
    def positions_read(self) -> int:
        """How many of the last positions the metric reads: one, or one for each token of the answer."""
        return max(1, len(self.sequence))

    @property
    def reads(self) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
        """The answers and foils, if the metric is a difference of their logits; None if it needs the logits
        of the whole vocabulary."""
        if self.foil is None or self.kind != "logit_diff":
            return None
        return self._all_answers, self.foils or (self.foil,)

    @property
    def needs_clean(self) -> bool:
        """Whether `read` needs the logits of the clean run too."""
        return self.kind in COMPARES_WITH_CLEAN

    def read(
        self, logits: Logits, clean: Float[torch.Tensor, "read vocab"] | None = None
    ) -> Values:
        """The value of each row. `clean` are the logits of the clean run, for a metric that needs them."""
        last = logits[:, -1]  # (row, vocab)
        match self.kind:
            case "logit_diff":
                assert self.reads is not None
                answers, foils = self.reads
                return last[:, list(answers)].logsumexp(-1) - last[:, list(foils)].logsumexp(-1)
            case "logprob":
                return self._log_probability(logits)
            case "kl":
                assert clean is not None
                expected = clean[-1].log_softmax(-1)  # (vocab)
                return -(expected.exp() * (expected - last.log_softmax(-1))).sum(-1)
            case "custom":
                assert self.function is not None
                values = self.function(last)
                if values.shape != last.shape[:1]:
                    shape = tuple(values.shape)
                    raise PromptError(
                        f"a metric function takes logits (row, vocab) and returns (row), not {shape}"
                    )
                return values

    def answer_probability(self, logits: Float[torch.Tensor, "read vocab"]) -> float | None:
        """The probability of the answer, given one run's logits. None if the metric has no answer."""
        if self.kind not in ("logit_diff", "logprob"):
            return None
        probabilities = logits.float().softmax(-1)
        if self.sequence:
            each = [
                float(probabilities[index, token]) for index, token in enumerate(self.sequence)
            ]
            return float(torch.tensor(each, dtype=torch.float64).prod())
        return float(probabilities[-1, list(self._all_answers)].sum())

    @property
    def _all_answers(self) -> tuple[int, ...]:
        return self.answers or (self.answer,)

    def _log_probability(self, logits: Logits) -> Values:
        log_probabilities = logits.log_softmax(-1)  # (row, read, vocab)
        if not self.sequence:
            return log_probabilities[:, -1, list(self._all_answers)].logsumexp(-1)
        each = [log_probabilities[:, index, token] for index, token in enumerate(self.sequence)]
        return torch.stack(each).sum(0)
