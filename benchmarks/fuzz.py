"""Wild input for every reader, at length: how many inputs each was given, how many it took, and whether any
ended in a crash.

    python benchmarks/fuzz.py [--share 1.0] [--seed 0] [--only NAME]

A reader may take an input or refuse it with a CircuitsError of one line; any other exception is a failure,
and this exits 1.
"""

from __future__ import annotations

import argparse
import sys
import time
import traceback
from collections import Counter
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import hypothesis

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from fuzzing import READERS, SLOW_IS_FINE, Reader, attempt


def fuzz(reader: Reader, count: int, seed: int) -> tuple[Counter[str], dict[str, str]]:
    """Outcomes, and one traceback for each place that failed."""
    outcomes: Counter[str] = Counter()
    failures: dict[str, str] = {}

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=SLOW_IS_FINE,
    )
    @hypothesis.given(reader.inputs())
    def run(given: Any) -> None:
        try:
            with TemporaryDirectory() as room:
                outcomes["accepted" if attempt(reader, given, Path(room)) else "refused"] += 1
        except BaseException as why:  # a library that gives up in Rust raises past `Exception`
            if isinstance(why, KeyboardInterrupt) or type(why).__module__.startswith(
                "hypothesis"
            ):
                raise
            outcomes["failed"] += 1
            last = traceback.extract_tb(why.__traceback__)[-1]
            failures.setdefault(
                f"{type(why).__name__} at {last.filename}:{last.lineno}",
                f"{traceback.format_exc()}\n{str(given)[:400]}",
            )

    run()
    return outcomes, failures


def main() -> int:
    asked = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    asked.add_argument("--share", type=float, default=1.0, help="of the usual number of inputs")
    asked.add_argument("--seed", type=int, default=0)
    asked.add_argument("--only", default="", help="readers whose name holds this")
    chosen = asked.parse_args()
    total: Counter[str] = Counter()
    begun = time.monotonic()
    print(
        f"{'reader':32} {'inputs':>7} {'accepted':>9} {'refused':>8} {'failed':>7} {'seconds':>8}"
    )
    found: dict[str, str] = {}
    for reader in READERS:
        if chosen.only not in reader.name:
            continue
        start = time.monotonic()
        outcomes, failures = fuzz(reader, max(1, int(reader.many * chosen.share)), chosen.seed)
        total += outcomes
        found |= failures
        counts = (
            outcomes.total(),
            outcomes["accepted"],
            outcomes["refused"],
            outcomes["failed"],
        )
        print(
            "{:32} {:>7} {:>9} {:>8} {:>7} {:>8.1f}".format(
                reader.name, *counts, time.monotonic() - start
            ),
            flush=True,
        )
    counts = (total.total(), total["accepted"], total["refused"], total["failed"])
    print(
        "{:32} {:>7} {:>9} {:>8} {:>7} {:>8.1f}".format(
            "all", *counts, time.monotonic() - begun
        )
    )
    for where, trace in found.items():
        print(f"\n{where}\n{trace}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
