"""What a whole trace of one mapping costs beside one naive sweep, on GPT-2 small's shape with random weights.

1. A trace as a user asks for it, `circuits.trace`: both runs, the total and every head in both directions,
   loadings, the greedy path of carriers, all controls, the spans of key and query, and the record. The
   weights' fingerprint is taken once a model, beforehand.
2. A naive sweep: one hooked forward a head, for the single effects alone. Some are run and the time is
   scaled; `--full` runs all.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

from engine import (
    TOLERANCE,
    Question,
    gpt2_small,
    message_changes,
    patch_by_forwards,
    random_question,
)
from measure import CLOCKS, Aim, Line, interleave, seconds, show, show_header

import circuits
from circuits.engine import Row, Runs, prepare
from circuits.engine.selection import Mapped
from circuits.prompts import Prompt
from circuits.tracing.aligned import Aligned
from circuits.tracing.measure import measure_mapping
from circuits.tracing.records import Circuit
from circuits.tracing.spans import measure_span

TOKENS, KEY, QUERY = 9, 5, 8
HOOKED = 8  # forwards of the naive sweep that are run


def trace(asked: Question) -> Circuit:
    """The question in words; the tokenizer puts BOS first again."""
    pair = asked.pair
    assert isinstance(pair.counterfactual, Prompt)
    text, other = (" ".join(side.words[1:]) for side in (pair.clean, pair.counterfactual))
    named = {"answer": pair.metric.answer_text, "foil": pair.metric.foil_text}
    return circuits.trace(
        asked.model, text, key=asked.key, query=asked.query, counterfactual=other, **named
    )


def count_rows(asked: Question) -> tuple[Circuit, int]:
    """A trace, and how many rows it measured."""
    counted: list[int] = []
    effects = Runs.effects

    def counting(runs: Runs, rows: Sequence[Row], **how: Any) -> Any:
        counted.append(len(rows))
        return effects(runs, rows, **how)

    with patch.object(Runs, "effects", counting):
        return trace(asked), sum(counted)


def check(asked: Question, found: Circuit, values: Sequence[float]) -> None:
    """The trace's single effects must be those of the hooked forwards."""
    clean, other = found.clean_value, found.counterfactual_value
    known = [found.mappings[0].effect_of(head).effect for head in asked.some_heads(len(values))]
    worst = max(
        abs((clean - value) / (clean - other) - effect)
        for value, effect in zip(values, known, strict=True)
    )
    if not worst <= TOLERANCE:
        raise SystemExit(
            f"the trace and the hooked forwards disagree by {worst:.2g} of the gap, more than {TOLERANCE:g}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer repeats")
    parser.add_argument(
        "--full",
        action="store_true",
        help="run every forward of the naive sweep instead of scaling",
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: processor time, for one thread on a busy machine",
    )
    options = parser.parse_args()
    asked = random_question(gpt2_small(), TOKENS, key=KEY, query=QUERY)
    _ = asked.model.fingerprint
    heads = asked.some_heads(len(asked.heads) if options.full else HOOKED)
    naive = partial(patch_by_forwards, asked, message_changes(asked), heads)
    found, rows = count_rows(asked)
    check(asked, found, naive().tolist())
    runs = prepare(asked.model, [asked.pair])
    parts = {
        "the whole trace": lambda: trace(asked),
        "its two runs": lambda: prepare(asked.model, [asked.pair]),
        "its mapping": lambda: measure_mapping([Mapped(runs, KEY, QUERY)]),
        "its two spans": lambda: [
            measure_span([Aligned.whole(runs)], "", (at,)) for at in (KEY, QUERY)
        ],
    }
    *taken, forwards = interleave(
        (*parts.values(), naive), repeats=3 if options.quick else 5, clock=CLOCKS[options.clock]
    )
    forwards = forwards.scaled(len(asked.heads) / len(heads))
    forwarded = "" if options.full else f", {HOOKED} run"
    against = f"one naive sweep: {len(asked.heads)} hooked forwards{forwarded} (ours / other)"
    show_header()
    for name, ours in zip(parts, taken, strict=True):
        aim = Aim("<", 1) if name == "the whole trace" else None
        told = f"gpt2 {TOKENS} tokens: {name}"
        show(
            Line(
                told,
                against,
                seconds(ours.median),
                seconds(forwards.median),
                ours.of(forwards),
                aim,
            ).cells()
        )
    mapping = found.mappings[0]
    print(
        f"\nThe trace measured {rows} rows; its greedy path has {len(mapping.path)} heads, "
        f"of which {len(mapping.carriers())}",
        end=" ",
    )
    print(f"carry {mapping.modulation():.0%} of the total {mapping.total:.2f}.")


if __name__ == "__main__":
    main()
