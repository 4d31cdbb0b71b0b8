"""How stable the README's traces are under sixteen other counterfactuals, and what that costs beside a trace.

`python benchmarks/stability.py [model …]`, by default mini, stories15m and smollm2; times are processor time.
"""

from __future__ import annotations

import sys
import time
from typing import Any

import circuits

OPPOSITE = 'The opposite of "large" is "'
STORY = "Tom and Ben went to the park. Ben gave the ball to"
TRACES: dict[str, tuple[str, dict[str, Any]]] = {
    "mini": (OPPOSITE, {"key": "large", "swap": {"large": "hot"}}),
    "stories15m": (STORY, {"key": 9, "swap": {9: "Tom"}}),
    "smollm2": (OPPOSITE, {"key": "large", "swap": {"large": "hot"}, "answer": "small", "foil": "cold"}),
}


def main(*names: str) -> None:
    for name in names or TRACES:
        model, (text, asked) = circuits.load(name), TRACES[name]
        circuits.stability(model, text, n=2, **asked)  # what is done once for a model and a length
        start = time.process_time()
        found = circuits.trace(model, text, **asked)
        once = time.process_time() - start
        start = time.process_time()
        steady = circuits.stability(model, text, n=16, **asked)
        cost = time.process_time() - start
        print(f"{name}: {text}")
        print(f"one trace {once:.2f} s, stability over 16 {cost:.2f} s: {cost / once:.1f}×")
        print(f"carriers of the trace: {' '.join(map(str, found.carriers()))}")
        print(f"counterfactuals: {', '.join(steady.counterfactuals)}")
        print(f"{steady}\n", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
