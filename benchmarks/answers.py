"""What a trace costs where the answer has several tokens, beside one whose answer is a single token, on SmolLM2.

1. An answer of one token against a foil needs two logits of each run.
2. The log-probability of an answer needs the logits of the whole vocabulary, at every token of the answer; the
   answer's earlier tokens are appended to the prompt, and are computed anew in every run.
"""

from __future__ import annotations

import argparse
from functools import partial
from typing import Any

from measure import CLOCKS, Line, interleave, seconds, show, show_header

import circuits
from circuits.models.model import Model
from circuits.tracing.records import Circuit

PROMPT = 'The opposite of "large" is "'
QUESTION: dict[str, Any] = {"key": "large", "swap": {"large": "hot"}}
ANSWERS = ("small", 'small."', 'small." It')  # one token, two, three


def trace(model: Model, **named: Any) -> Circuit:
    found = circuits.trace(model, PROMPT, **QUESTION, **named)
    assert isinstance(found, Circuit)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clock", choices=CLOCKS, default="wall")
    parser.add_argument("--repeats", type=int, default=1)
    chosen = parser.parse_args()
    model = circuits.load("smollm2")
    _ = model.fingerprint  # of the weights, once
    acts = [partial(trace, model, answer=answer, metric="logprob") for answer in ANSWERS]
    of_two_logits = partial(trace, model, answer="small", foil="cold")
    of_two_logits()  # reads the layout, once
    clock = CLOCKS[chosen.clock]
    first, *others = interleave([of_two_logits, *acts], repeats=chosen.repeats, clock=clock)
    show_header()
    for answer, taken in zip(ANSWERS, others, strict=True):
        tokens = len(model.tokenize(answer)) - model.reads_bos
        measured = f"smollm2: a trace, logprob, tokens of the answer: {tokens}"
        against = "logit(small) − logit(cold)"
        times = (seconds(taken.median), seconds(first.median))
        show(Line(measured, against, *times, taken.of(first)).cells())


if __name__ == "__main__":
    main()
