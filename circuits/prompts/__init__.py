"""What is asked: tokens with their positions, a clean prompt beside its counterfactual, and the metric that
reads the answer.

1. `prompt`: a text as the model reads it, its positions, and other words in their places.
2. `metric`: what is read at the end of the prompt, and which tokens a user means by an answer.
3. `question`: what the user gave. With the model's predictions, which settle the rest, it becomes a `Pair`.
"""

from circuits.prompts.metric import METRICS, Answer, Metric, MetricFunction, MetricKind, answer_token
from circuits.prompts.prompt import NOISE_DRAWS, NOISE_SCALE, Noise, Prompt, Swap, swap_words, to_prompt
from circuits.prompts.question import Pair, Question, Wording, to_pair, to_question

__all__ = [
    "METRICS",
    "NOISE_DRAWS",
    "NOISE_SCALE",
    "Answer",
    "Metric",
    "MetricFunction",
    "MetricKind",
    "Noise",
    "Pair",
    "Prompt",
    "Question",
    "Swap",
    "Wording",
    "answer_token",
    "swap_words",
    "to_pair",
    "to_prompt",
    "to_question",
]
