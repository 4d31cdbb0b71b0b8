"""Kill −9 at five moments: the driver of a sweep, an actor of Ray, a task of submitit.

Each sweep is run again by the same command; it must finish with every line exactly once, or the run ends.
A small random model is swept, so that a case takes half a minute on a quiet machine.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from killing import CASES, LINES, MOMENTS, SHARD, TASK_SHARD, kill_and_go_on
from small_models import random_model, save

from circuits.files import to_markdown


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--moments", nargs="+", type=float, default=list(MOMENTS))
    options = parser.parse_args()
    table = []
    with TemporaryDirectory() as name:
        model = save(random_model("gpt2"), Path(name) / "model")
        for case in options.cases:
            row = [case]
            for moment in options.moments:
                room = Path(name) / f"{case} {moment}"
                room.mkdir()
                start = time.perf_counter()
                there = kill_and_go_on(case, moment, model, room)
                shard = TASK_SHARD if "submitit" in case else SHARD
                row.append(f"{there} of {LINES // shard}")
                print(f"{case}: {row[-1]}, {time.perf_counter() - start:.0f} s", flush=True)
            table.append(row)
    print("\nShards that were there when it was killed; each was finished by the same command,")
    print(f"{LINES} lines, every one once:\n")
    print(to_markdown(("killed", *(f"at {moment:g}" for moment in options.moments)), table))


if __name__ == "__main__":
    main()
