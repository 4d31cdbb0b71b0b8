"""The mapping of every pair of a batch: totals, single effects, and each pair's own carriers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from circuits.engine import Runs
from circuits.engine.select import mapping_row, select
from circuits.tracing.records import Controls, Mapping, Step


@dataclass(frozen=True, slots=True)
class Found:
    """One pair's mapping; effects are in the order of heads, L0H0 first."""

    total: float
    restore: float
    effects: tuple[float, ...]
    path: tuple[Step, ...]  # the carriers, in the order in which they were found
    controls: Controls | None = None

    @property
    def modulation(self) -> float:
        return self.path[-1].joint / self.total if self.path else 0.0

    @classmethod
    def of(cls, mapping: Mapping, share: float) -> Found:
        """The same from a mapping that was measured by itself."""
        alone = {known.head: known.effect for known in mapping.heads}
        path = mapping.path[: len(mapping.carriers(share))]
        return cls(
            mapping.total, mapping.restore, tuple(alone[head] for head in sorted(alone)), path, mapping.controls
        )


def measure_pairs(runs: Runs, key: int, query: int, *, share: float) -> list[Found]:
    """What `measure_mapping` finds for each pair, up to the share."""
    whole = mapping_row(runs.heads, key, query)
    effects = runs.effects([*(mapping_row([head], key, query) for head in runs.heads), whole])
    restored = runs.effects([whole], direction="restore")[0].double().tolist()
    paths = select(runs, key, query, effects=effects[:-1], totals=effects[-1], share=share)
    steps = [tuple(Step(head, joint) for head, joint in path) for path in paths]
    singles = map(tuple, effects[:-1].double().T.tolist())
    return [Found(*each) for each in zip(effects[-1].double().tolist(), restored, singles, steps, strict=True)]


def only(runs: Runs, places: Sequence[int]) -> Runs:
    return runs.only(places)
