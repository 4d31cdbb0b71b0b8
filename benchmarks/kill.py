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
from killing import CASES, MOMENTS, kill_and_go_on
from small_models import random_model, save


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    parser.add_argument("--moments", nargs="+", type=float, default=list(MOMENTS))
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        model = save(random_model("gpt2"), Path(name) / "model")
        for case in options.cases:
            for moment in options.moments:
                room = Path(name) / f"{case} {moment}"
                room.mkdir()
                start = time.perf_counter()
                there = kill_and_go_on(case, moment, model, room)
                taken = time.perf_counter() - start
                print(
                    f"{case:24} killed at {moment:g} ({there} shards there): finished by the same "
                    f"command, every line once, {taken:.0f} s",
                    flush=True,
                )


if __name__ == "__main__":
    main()
