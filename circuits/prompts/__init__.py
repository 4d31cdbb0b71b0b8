"""What is asked of a model: prompts, pairs of prompts, and the metric that reads the answer."""

from circuits.prompts.answer import Answer, answer_token
from circuits.prompts.metric import (
    METRICS,
    FunctionMetric,
    Metric,
    MetricFunction,
    MetricKind,
    ProbeMetric,
)
from circuits.prompts.prompt import Prompt, Swap, swap_words, to_prompt
from circuits.prompts.question import (
    NOISE_DRAWS,
    NOISE_SCALE,
    Noise,
    Pair,
    Question,
    QuestionSpec,
    to_pair,
    to_question,
)

__all__ = [
    "METRICS",
    "NOISE_DRAWS",
    "NOISE_SCALE",
    "Answer",
    "FunctionMetric",
    "Metric",
    "MetricFunction",
    "MetricKind",
    "Noise",
    "Pair",
    "ProbeMetric",
    "Prompt",
    "Question",
    "QuestionSpec",
    "Swap",
    "answer_token",
    "swap_words",
    "to_pair",
    "to_prompt",
    "to_question",
]
