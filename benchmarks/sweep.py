"""What a sweep costs beside separate traces, and in memory, on the model that ships. `scale.py` compares
executors.

1. 200 pairs of one length. Ours is the whole of `circuits.sweep`: reading the lines, both runs, total and
   restore, the effect of every head, carriers at a share of 80%, and the table on disk. Beside it, a pair at
   a time: (a) `circuits.trace`, which also measures heads in the other direction, loadings, carriers up to
   99.5%, controls and spans; (b) the same without spans and controls: `to_pair`, `prepare` and
   `measure_mapping(controls=False)`. Of (a) and (b) some pairs are run and the time is counted a pair;
   `--full` runs all. Their carriers must be those of the sweep and their effects equal to 1e-4, or the run
   ends. A sweep with `--controls` (c) measures a pair at a time, all that (a) does but spans.
2. Lines of one length run together. 200 lines of 9 to 24 tokens in a mixed order, in shards of 16, where a
   batch is a line or two, beside the same lines sorted by length, where a batch is a shard: what is lost to
   small batches, and the most that padding could win.
3. Memory of one process over 1,000 prompts of three lengths: what it holds at five moments, and its peak up
   to there.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence
from functools import partial
from itertools import permutations
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil
from measure import CLOCKS, Aim, Line, Spread, interleave, megabytes, seconds, show, show_header

import circuits
from circuits.engine import prepare
from circuits.engine.selection import Mapped
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.tracing import Mapping
from circuits.tracing.measure import measure_mapping

MODEL, TOLERANCE = "mini", 1e-4
STARTS = ("", "The opposite of ", "The opposite of the opposite of ")
OPPOSITES = """large small hot cold rich poor old young wet dry fast slow tall short dark light loud quiet
happy sad strong weak hard soft open closed full empty early late near far high low deep shallow"""
WORDS = OPPOSITES.split()


# The lines


def questions(count: int, *, starts: Sequence[str] = STARTS[:1]) -> list[dict[str, Any]]:
    """So many lines, each another pair of words, the lengths in turn."""
    words = list(permutations(WORDS, 2))[:: max(1, len(WORDS) * (len(WORDS) - 1) // count)]
    lines = []
    for number in range(count):
        (one, other), start = words[number % len(words)], starts[number % len(starts)]
        answer, foil = opposite(one), opposite(other)
        if answer == foil or opposite(one) == other:
            other, foil = ("hot", "cold") if one not in ("hot", "cold") else ("large", "small")
        lines.append(
            {
                "prompt": f'{start}The opposite of "{one}" is "',
                "key": one,
                "swap": {one: other},
                "answer": answer,
                "foil": foil,
            }
        )
    return lines


def opposite(word: str) -> str:
    return WORDS[WORDS.index(word) ^ 1]


def write(path: Path, lines: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


# One pair at a time


def trace(model: Model, line: dict[str, Any]) -> Mapping:
    return circuits.trace(
        model, line["prompt"], **{name: line[name] for name in line if name != "prompt"}
    ).mapping()


def measure_alone(model: Model, line: dict[str, Any]) -> Mapping:
    pair = to_pair(
        model, line["prompt"], swap=line["swap"], answer=line["answer"], foil=line["foil"]
    )
    key = pair.clean.position(line["key"])
    part = Mapped(prepare(model, [pair]), key, len(pair) - 1)
    return measure_mapping([part], controls=False)


def check(
    model: Model, found: circuits.Sweep, lines: Sequence[dict[str, Any]], places: Sequence[int]
) -> float:
    """The largest disagreement with `trace`; other carriers end the run."""
    if len(found.table) < len(lines):
        raise SystemExit(
            f"{len(found.errors)} lines could not be measured, the first: {found.errors['error'][0]}"
        )
    worst = 0.0
    for place in places:
        row, known = found.table.iloc[place], trace(model, lines[place])
        if tuple(map(str, known.carriers())) != row["carriers"]:
            raise SystemExit(
                f"line {row['line']} has the carriers {row['carriers']} in the sweep "
                f"and {known.carriers()} in its trace"
            )
        ordered = sorted(known.heads, key=lambda effect: effect.head)
        worst = max(
            worst,
            *(
                abs(effect.effect - mine)
                for effect, mine in zip(ordered, row["effects"], strict=True)
            ),
        )
    if not worst <= TOLERANCE:
        raise SystemExit(
            f"sweep and trace disagree by {worst:.2g} of the gap, more than {TOLERANCE:g}"
        )
    return worst


def compare_with_traces(room: Path, count: int, options: argparse.Namespace) -> None:
    model = circuits.load(MODEL)
    _ = model.fingerprint
    lines = questions(count)
    file, turn = write(room / "lines.jsonl", lines), iter(range(1000))
    some = list(range(0, count, 1 if options.full else max(1, count // 4)))
    chosen = [lines[place] for place in some]
    worst = check(model, circuits.sweep(model, file, room / "first"), lines, some)
    few = write(room / "few.jsonl", chosen)
    acts = (
        lambda: circuits.sweep(model, file, room / f"turn{next(turn)}"),
        lambda: [trace(model, line) for line in chosen],
        lambda: [measure_alone(model, line) for line in chosen],
        lambda: circuits.sweep(model, few, room / f"turn{next(turn)}", controls=True),
    )
    ours, *others = interleave(
        acts, repeats=1 if options.quick or options.full else 3, clock=CLOCKS[options.clock]
    )
    names = (
        "(a) circuits.trace",
        "(b) to_pair, prepare, measure_mapping(controls=False)",
        "(c) sweep --controls",
    )
    run = "" if options.full else f", {len(some)} run"
    for name, other, aim in zip(names, others, (Aim("≥", 5), None, None), strict=True):
        ratio = other.scaled(count / len(some)).of(ours)
        told = f"{MODEL}: sweep of {count} pairs of one length, a pair (equal to {worst:.0e})"
        show(
            Line(
                told,
                name + run,
                seconds(ours.median / count),
                seconds(other.median / len(some)),
                ratio,
                aim,
            ).cells()
        )


# Lengths


def compare_lengths(room: Path, count: int, options: argparse.Namespace) -> None:
    """The same lines in a mixed order and sorted by length."""
    model = circuits.load(MODEL)
    turn = iter(range(1000))
    lines = questions(count)
    for number, line in enumerate(lines):
        line["prompt"] = "The " * (number * 7 % 16) + line["prompt"]
    by_length = sorted(lines, key=lambda line: len(line["prompt"].split()))
    mixed, ordered = write(room / "mixed.jsonl", lines), write(room / "sorted.jsonl", by_length)

    def run(file: Path) -> None:
        circuits.sweep(model, file, room / f"lengths{next(turn)}", shard=16)

    run(write(room / "one.jsonl", lines[:1]))
    theirs, ours = interleave(
        (partial(run, mixed), partial(run, ordered)),
        repeats=1 if options.quick else 3,
        clock=CLOCKS[options.clock],
    )
    told = f"{MODEL}: sweep of {count} lines of 16 lengths, a line"
    cells = seconds(ours.median / count), seconds(theirs.median / count), theirs.of(ours)
    name = "mixed, shards of 16 (ours: sorted by length)"
    show(Line(told, name, *cells, Aim("<", 1.5)).cells())


# Memory


def show_memory(room: Path, count: int) -> None:
    file = write(room / "long.jsonl", questions(count, starts=STARTS))
    told = subprocess.run(
        [sys.executable, __file__, "--memory", str(file), str(room / "long")],
        check=True,
        capture_output=True,
        text=True,
    )
    moments: list[tuple[int, int, int]] = json.loads(told.stdout.splitlines()[-1])
    early, late = moments[0], moments[-1]
    ratio = Spread((late[2] / early[2],))
    told = f"{MODEL}: peak memory of a sweep after {late[0]} prompts, model included"
    show(
        Line(
            told,
            f"after {early[0]} (ours / other)",
            megabytes(late[2]),
            megabytes(early[2]),
            ratio,
            Aim("<", 1.1),
        ).cells()
    )
    listed = ", ".join(
        f"{done} lines {megabytes(held)} (peak {megabytes(peak)})"
        for done, held, peak in moments
    )
    print(f"\nHeld at five moments: {listed}.")


def remember(file: str, out: str) -> None:
    """Sweep, and print what the process holds after each fifth of the lines."""
    import resource

    moments: list[tuple[int, int, int]] = []

    def note(stage: str, done: int, total: int) -> None:
        if done >= (len(moments) + 1) * total / 5:
            moments.append(
                (
                    done,
                    psutil.Process().memory_info().rss,
                    resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
                )
            )

    circuits.sweep(circuits.load(MODEL), file, out, progress=note)
    print(json.dumps(moments))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--quick", action="store_true", help="fewer lines and one turn")
    parser.add_argument("--full", action="store_true", help="trace every pair instead of some")
    parser.add_argument("--only", choices=("traces", "lengths", "memory"), help="one part")
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: processor time, for the first part on a busy machine",
    )
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory:
        remember(*options.memory)
        return
    with TemporaryDirectory() as folder:
        room = Path(folder)
        parts = {
            "traces": partial(compare_with_traces, room, 24 if options.quick else 200, options),
            "lengths": partial(compare_lengths, room, 96 if options.quick else 200, options),
            "memory": partial(show_memory, room, 90 if options.quick else 1000),
        }
        show_header()
        for name, part in parts.items():
            if options.only in (None, name):
                part()


if __name__ == "__main__":
    main()
