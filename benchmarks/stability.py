"""How stable the README's traces are under sixteen other counterfactuals, and what that costs beside a trace.

`python benchmarks/stability.py [model …]`, by default mini, stories15m and smollm2. Times are processor time:
of each the least of three turns, after one that is not counted.
"""

from __future__ import annotations

import sys
import time
from functools import partial
from typing import Any

from measure import interleave

import circuits

OPPOSITE = 'The opposite of "large" is "'
STORY = "Tom and Ben went to the park. Ben gave the ball to"
TRACES: dict[str, tuple[str, dict[str, Any]]] = {
    "mini": (OPPOSITE, {"key": "large", "swap": {"large": "hot"}}),
    "stories15m": (STORY, {"key": 9, "swap": {9: "Tom"}}),
    "smollm2": (
        OPPOSITE,
        {"key": "large", "swap": {"large": "hot"}, "answer": "small", "foil": "cold"},
    ),
}


def main(*names: str) -> None:
    for name in names or TRACES:
        model, (text, asked) = circuits.load(name), TRACES[name]
        both = (
            partial(circuits.trace, model, text, **asked),
            partial(circuits.stability, model, text, n=16, **asked),
        )
        found, steady = both[0](), both[1]()
        once, cost = (
            min(spread.values)
            for spread in interleave(both, repeats=3, clock=time.process_time)
        )
        print(f"{name}: {text}")
        print(f"one trace {once:.2f} s, stability over 16 {cost:.2f} s: {cost / once:.1f}×")
        print(f"carriers of the trace: {' '.join(map(str, found.carriers()))}")
        print(f"counterfactuals: {', '.join(steady.counterfactuals)}")
        print(f"{steady}\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
