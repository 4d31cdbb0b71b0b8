"""One sweep by every executor: are the rows the same to the last digit, and how long does each take?

1. Each is `circuits sweep` in a process of its own, with one thread a worker, into a folder of its own. The
   shards are the same for all: one process, two processes, two actors of Ray, and tasks of submitit on this
   machine, which starts one for each shard, all at once.
2. The tables must be equal, every bit of every number, or the run ends.
3. The time is that of the whole command: starting Python and the workers, loading the model in each of them,
   measuring, writing. Beside it stands how long the measuring took, from the manifest to the last shard.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory

from measure import Aim, Line, Spread, seconds, show, show_header
from sweep import MODEL, STARTS, questions, write

from circuits.sweeps.store import read_table

WAYS = {
    "1 process": (),
    "2 processes": ("--workers", "2"),
    "2 actors of Ray": ("--executor", "ray", "--workers", "2"),
    "tasks of submitit, all at once": ("--executor", "slurm", "--slurm-cluster", "local"),
}


def run(file: Path, out: Path, options: list[str]) -> tuple[float, float]:
    """Seconds of the whole command, and from its manifest to its last shard."""
    asked = ["sweep", str(file), "--model", MODEL, "-o", str(out)]
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "circuits", *asked, *options],
        check=True,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        stdout=subprocess.DEVNULL,
    )
    whole = time.perf_counter() - start
    written = [each.stat().st_mtime for each in (out / "shards").glob("*.parquet")]
    return whole, max(written) - (out / "manifest.json").stat().st_mtime


def measure(room: Path, ways: list[str], options: argparse.Namespace) -> dict[str, list[float]]:
    """The times of each way; those that an earlier call left in `room` are not measured again."""
    file = write(room / "lines.jsonl", questions(options.lines, starts=STARTS))
    settings = ["--shard", str(options.shard), "--share", str(options.share)]
    taken = {}
    for way in ways:
        out = room / way.replace(" ", "-")
        times = out.with_suffix(".json")
        if not times.exists():
            times.write_text(json.dumps(run(file, out, [*settings, *WAYS[way]])))
        taken[way] = json.loads(times.read_text())
        print(f"{way}: {taken[way][0]:.1f} s, measuring {taken[way][1]:.1f} s", flush=True)
    tables = [read_table(room / way.replace(" ", "-")) for way in ways]
    for way, table in zip(ways, tables, strict=True):
        if not table.equals(tables[0]) or len(table) != options.lines:
            raise SystemExit(f"{way} gave other rows than {ways[0]}")
    columns = tables[0].num_columns
    print(f"\n{options.lines} lines, {columns} columns: the same rows, bit for bit.\n")
    return taken


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--lines", type=int, default=2000)
    parser.add_argument("--shard", type=int, default=250, help="lines of a shard")
    parser.add_argument(
        "--share", type=float, default=0.8, help="with 0.1, a line takes a quarter of the time"
    )
    parser.add_argument("--ways", nargs="+", choices=WAYS, default=list(WAYS))
    parser.add_argument(
        "--keep", type=Path, help="a folder for all results; what it has is not measured again"
    )
    options = parser.parse_args()
    with TemporaryDirectory() as name:
        room = options.keep or Path(name)
        room.mkdir(exist_ok=True)
        taken = measure(room, options.ways, options)
    one = taken.pop("1 process", None)
    if one is None:
        return
    show_header()
    for way, theirs in taken.items():
        told = f"{MODEL}: sweep of {options.lines} lines (share {options.share:g}) by {way}"
        parts = zip(("the whole command", "measuring"), theirs, one, strict=True)
        for part, mine, its in parts:
            ratio = Spread((its / mine,))
            aim = Aim("≥", 1.2) if way == "2 processes" else None
            cells = seconds(mine), seconds(its), ratio, aim
            show(Line(f"{told}, {part}", "1 process", *cells).cells())


if __name__ == "__main__":
    main()
