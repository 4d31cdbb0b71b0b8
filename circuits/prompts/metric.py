"""The metric: one number that says how strongly a run predicts the answer, read at the end of the prompt.

- `logit_diff`: `logit(answer) − logit(foil)` at the last position.
- `logprob`: the log-probability of the answer. An answer of several tokens is appended to the prompt, all but
  its last token, and the log-probabilities of its tokens are added up.
- `kl`: minus the KL divergence of the prediction from that of the clean run; 0 is the largest value.
- `custom`: a function of the logits at the last position, or as a `FunctionMetric` at several.
- `probe`: the residual stream at one layer and position times a direction (`ProbeMetric`). What is measured
  above that layer, or after that position, has no effect on it.

Where several answers (or foils) are given, any of them counts: their probabilities are added, which in terms
of logits is a logsumexp.

To add a metric, name it in `MetricKind` and give it a case in `Metric.read`. If it needs a foil, or the
logits of the clean run, name it in `COMPARES_WITH_FOIL` or `COMPARES_WITH_CLEAN` too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, get_args

import torch
from jaxtyping import Float

from circuits.errors import CircuitsError, PromptError, check_whole, escaped, shortened

MetricKind = Literal["logit_diff", "logprob", "kl", "custom", "probe"]
# Those with a name.
METRICS: Final = tuple(kind for kind in get_args(MetricKind) if kind not in ("custom", "probe"))
COMPARES_WITH_FOIL: Final = ("logit_diff",)
COMPARES_WITH_CLEAN: Final = ("kl",)
MetricFunction = Callable[[Float[torch.Tensor, "row vocab"]], Float[torch.Tensor, " row"]]
# At the last positions, as many as `Metric.positions_read`.
Logits = Float[torch.Tensor, "row read vocab"]
Values = Float[torch.Tensor, " row"]


@dataclass(frozen=True, slots=True)
class FunctionMetric:
    """A function of the logits at the last `positions` of the prompt, or at all of them, as a metric.

    The function takes logits (row, position, vocab) and returns one number for each row. It must be
    differentiable for loadings and wirings.

    >>> def mean_logit(logits):
    ...     return logits[:, :, 0].mean(1)
    >>> everywhere = circuits.FunctionMetric(mean_logit, positions="all")
    >>> str(circuits.to_pair(model, TEXT, swap={"large": "hot"}, metric=everywhere).metric)
    'custom'
    """

    function: Callable[[Logits], Values]
    positions: int | Literal["all"] = "all"

    def __post_init__(self) -> None:
        if not callable(self.function):
            raise PromptError(f"a metric is a function, not {shortened(self.function)}")
        is_count = isinstance(self.positions, int) and not isinstance(self.positions, bool)
        if self.positions != "all" and not (is_count and self.positions >= 1):
            allowed = "a number of positions at the end of the prompt, or 'all'"
            raise PromptError(f"positions is {allowed}, not {shortened(self.positions)}")

    def __call__(self, logits: Logits) -> Values:
        return self.function(logits)

    def count_in(self, length: int) -> int:
        """How many positions of a prompt of `length` tokens the function sees."""
        if self.positions == "all":
            return length
        if self.positions > length:
            raise PromptError(f"the metric reads {self.positions} positions of {length} tokens")
        return self.positions


@dataclass(frozen=True, slots=True)
class ProbeMetric:
    """A direction in the residual stream, such as that of a linear probe, as a metric: the stream at the input
    of `layer` (the number of layers: above the last) at `position` times the direction.

    >>> probe = circuits.ProbeMetric([1.0] * model.d_model, layer=4, position="large")
    >>> str(circuits.to_pair(model, TEXT, swap={"large": "hot"}, metric=probe).metric)
    'probe at layer 4, position 5'
    """

    direction: Sequence[float]  # one number for each dimension of the stream
    layer: int
    position: int | str = -1
    site: Literal["residual"] = "residual"

    def __post_init__(self) -> None:
        if self.site != "residual":
            raise PromptError(f"a probe reads the residual stream, not {shortened(self.site)}")
        check_whole("layer", self.layer)
        try:
            flat = torch.as_tensor(self.direction, dtype=torch.float64).detach().cpu()
        except (TypeError, ValueError, RuntimeError):
            flat = torch.tensor(torch.nan)
        if flat.dim() != 1 or not bool(flat.isfinite().all()):
            given = shortened(self.direction)
            raise PromptError(f"a probe's direction is a list of finite numbers, not {given}")
        object.__setattr__(self, "direction", tuple(flat.tolist()))

    def placed(self, position: int, *, layers: int, width: int) -> Probe:
        """The probe at a position of a prompt, in a model of so many layers and dimensions."""
        if len(self.direction) != width:
            sizes = f"{len(self.direction)} numbers, and the stream has {width} dimensions"
            raise PromptError(f"the probe's direction has {sizes}")
        if not 1 <= self.layer <= layers:
            raise PromptError(f"a probe reads at layer 1…{layers}, not {self.layer}")
        return Probe(tuple(self.direction), self.layer, position)


@dataclass(frozen=True, slots=True)
class Probe:
    """Where a probe reads, and its direction."""

    direction: tuple[float, ...]
    layer: int
    position: int


@dataclass(frozen=True, slots=True)
class Metric:
    """The kind of metric, with the tokens and texts of its answer and foil.

    `answer` and `foil` are token ids. Where there are several, they are the first, and `answers` and `foils`
    hold all. `sequence` holds the tokens of an answer of more than one token. `function` sees the logits of
    the last position (row, vocab), or where `sees` is not 0 of so many last positions (row, position, vocab).
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
    sees: int = 0
    probe: Probe | None = None

    def __str__(self) -> str:
        match self.kind:
            case "logit_diff":
                answer, foil = escaped(self.answer_text), escaped(self.foil_text or "")
                return f"logit({answer}) − logit({foil})"
            case "logprob":
                return f"logprob({escaped(self.answer_text)})"
            case "probe":
                assert self.probe is not None
                return f"probe at layer {self.probe.layer}, position {self.probe.position}"
            case _:
                return self.kind

    @property
    def is_of_predictions(self) -> bool:
        """Whether it is in logits or nats of a prediction, which thresholds are made for."""
        return self.kind not in ("custom", "probe")

    @property
    def positions_read(self) -> int:
        """How many of the last positions the metric reads: one, one for each token of the answer, or what a
        function asks for."""
        return max(1, len(self.sequence), self.sees)

    @property
    def prediction(self) -> int:
        """Which of the positions read is the end of the prompt, counted from the last: the answer follows."""
        return -max(1, len(self.sequence))

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
                return self._of_function(logits if self.sees else last)
            case "probe":
                raise PromptError("a probe reads the residual stream, not logits")

    def read_probe(
        self, stream: Float[torch.Tensor, "row read d_model"]
    ) -> Float[torch.Tensor, " row"]:
        """The probe's value, from the stream at its layer, at its position and after it."""
        assert self.probe is not None
        direction = torch.tensor(self.probe.direction, dtype=stream.dtype, device=stream.device)
        return stream[:, 0] @ direction

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

    def _of_function(self, logits: torch.Tensor) -> Values:
        """What the user's function says of each row, or what is wrong with it."""
        assert self.function is not None
        try:
            values = self.function(logits)
        except CircuitsError:
            raise
        except Exception as why:
            shape = tuple(logits.shape)
            raise PromptError(
                f"the metric function fails on logits of shape {shape}: {type(why).__name__}: {why}"
            ) from why
        is_tensor = isinstance(values, torch.Tensor)
        if is_tensor and values.is_floating_point() and values.shape == logits.shape[:1]:
            return values
        taken = "(row, position, vocab)" if self.sees else "(row, vocab)"
        rule = f"takes logits {taken} and returns a float tensor (row,), one value for each row"
        returned = shortened(values)
        if is_tensor:
            returned = f"{values.dtype} of shape {tuple(values.shape)}"
        raise PromptError(f"a metric function {rule}; this one returns {returned}")

    def _log_probability(self, logits: Logits) -> Values:
        """The log-probability of any of the answers, or of all tokens of a sequence one after the other."""
        if not self.sequence:
            last = logits[:, -1]
            return last[:, list(self._all_answers)].logsumexp(-1) - last.logsumexp(-1)
        positions = range(len(self.sequence))
        chosen = logits[:, positions, list(self.sequence)]  # (row, read)
        return (chosen - logits.logsumexp(-1)).sum(-1)
