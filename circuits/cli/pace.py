"""How long a stage of the work will still take, by the pace at which it went so far.

1. A stage begins with its first report, or where its count falls or its total changes. What was done by then
   does not count: it may hold work of another kind, and its first piece is often a small one.
2. There is an estimate once two seconds of the stage are measured. Before that, and for a stage whose steps
   are not alike, there is none.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

MEASURED: Final = 2.0  # seconds of a stage that an estimate needs
UNEVEN: Final = ("loading", "carriers", "pairs")  # stages whose steps take very different times


@dataclass(slots=True)
class Pace:
    """The reports of one stage after the other. There is an estimate after `least` seconds of a stage."""

    least: float = MEASURED
    stage: str = ""
    first: int = 0  # the count at the first report of the stage, at the time `began`
    began: float = 0.0
    done: int = 0
    total: int = 0

    def report(self, stage: str, done: int, total: int, now: float) -> float | None:
        """Take a report at a time in seconds; the seconds that are left of its stage, where they are known."""
        name = stage.partition(":")[0]
        if name != self.stage or total != self.total or done < self.done:
            self.stage, self.total = name, total
            self.first, self.began = done, now
        self.done = done
        measured = now - self.began
        if name in UNEVEN or measured < self.least or done == self.first:
            return None
        return measured / (done - self.first) * (total - done)
