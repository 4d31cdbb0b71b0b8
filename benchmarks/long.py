"""What a long prompt costs: processor time and peak memory of `trace`, `why` and `circuit`.

    python benchmarks/long.py [--model smollm2] [--tokens 512 1000 2000] [--verbs trace why circuit]

1. The prompt is a log of days, as long as asked for, and behind it the indirect object: `When Mary and John
   went to the store, John gave a drink to`. The second John becomes Mary, so 12 tokens before the end.
2. Each line is a process of its own: its memory is what the process held at most, the model included.
"""

from __future__ import annotations

import argparse
import multiprocessing
import resource
import time
from collections.abc import Callable
from typing import Any

QUESTION = "When Mary and John went to the store, John gave a drink to"
DAY = "On day {} the crew of the ship saw {} islands in the north and wrote a letter home. "


def prompt_of(model: Any, tokens: int) -> str:
    """Days until the prompt is as long as it may be."""
    days, text = 0, QUESTION
    while True:
        days += 1
        log = "".join(DAY.format(day, day * 7 % 13 + 2) for day in range(1, days + 1))
        if len(model.tokenize(log + QUESTION)) > tokens:
            return text
        text = log + QUESTION


def peak() -> float:
    """The most memory that this process has held, in GB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def measure(name: str, verb: str, tokens: int) -> None:
    import circuits
    from circuits.prompts import to_prompt

    model = circuits.load(name)
    text = prompt_of(model, tokens)
    prompt = to_prompt(model, text)
    key = max(place for place, word in enumerate(prompt.words) if word.strip() == "John")
    asked = {"swap": {key: " Mary"}, "answer": " Mary", "foil": " John"}
    traced = circuits.trace(model, text, key=key, **asked) if verb == "why" else None
    verbs: dict[str, Callable[[], Any]] = {
        "trace": lambda: circuits.trace(model, text, key=key, **asked),
        "why": lambda: circuits.why(traced, traced.carriers()[0], model=model),
        "circuit": lambda: circuits.circuit(model, text, **asked),
    }
    before, started = peak(), time.process_time()
    found = verbs[verb]()
    took = time.process_time() - started
    line = f"{verb} of {len(prompt)} tokens on {name}: {took:.0f} CPU s, peak {peak():.2f} GB"
    print(f"{line} ({before:.2f} before); {answer_of(found)}", flush=True)


def answer_of(found: Any) -> str:
    if not hasattr(found, "mappings"):
        return f"{found.head}"
    ends = ", ".join(f"{each.key}→{each.query} {each.total:.2f}" for each in found.mappings[:4])
    return f"{len(found.mappings)} mappings: {ends}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--tokens", type=int, nargs="+", default=[512, 1000, 2000])
    parser.add_argument(
        "--verbs", nargs="+", choices=("trace", "why", "circuit"), default=["trace"]
    )
    asked = parser.parse_args()
    for verb in asked.verbs:
        for tokens in asked.tokens:
            job = (asked.model, verb, tokens)
            process = multiprocessing.get_context("spawn").Process(target=measure, args=job)
            process.start()
            process.join()


if __name__ == "__main__":
    main()
