"""A sweep read back: its table, parts of it, the mean over lines, and single circuits measured again.

1. The table has one row a line, in the order of the file; lines that could not be measured are in `errors`.
2. `where` keeps some lines; the mean is over those that are left, with intervals from seeded resamples of the lines, the same
   resamples for every head.
3. `circuit` asks a line's question again, in full, on the model with the same weights.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pandas as pd

from circuits.errors import FileError, ModelError, PromptError
from circuits.heads import Head
from circuits.sweeps.store import Manifest, read_manifest, read_table
from circuits.tracing.family import RESAMPLES, Interval

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit

_AT_ONCE: Final = 2**22  # numbers of a block of resamples


@dataclass(frozen=True, slots=True)
class MeanHead:
    """One head over many lines."""

    head: Head
    effect: Interval
    carries: float  # the share of lines of which it is a carrier


@dataclass(frozen=True, slots=True)
class MeanCircuit:
    """The mean over lines. A head that carries in most lines carries in the mean circuit."""

    model: str
    lines: int
    share: float
    total: Interval
    restore: Interval
    modulation: Interval
    count: Interval  # carriers a line
    heads: tuple[MeanHead, ...]  # strongest first

    def carriers(self, least: float = 0.5) -> tuple[Head, ...]:
        """The heads that are carriers in at least this share of the lines, the most frequent first."""
        often = sorted(
            (known for known in self.heads if known.carries >= least),
            key=lambda known: (-known.carries, known.head),
        )
        return tuple(known.head for known in often)

    def __str__(self) -> str:
        lines = [f"{self.model}, mean of {self.lines} lines: total {self.total}, restore {self.restore}"]
        lines.append(
            f"Carriers at a share of {self.share:.0%}: {self.count} a line, modulation {self.modulation}"
        )
        lines += [
            f"  {known.head!s:8}{known.effect}  carries in {known.carries:.0%} of lines"
            for known in self.heads[:8]
        ]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class Sweep:
    """A sweep, or some lines of it."""

    folder: Path
    manifest: Manifest
    rows: pd.DataFrame = field(repr=False, compare=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def table(self) -> pd.DataFrame:
        """One row a line that was measured, in the order of the file."""
        return self._kept(self.rows["error"].isna()).infer_objects()

    @property
    def errors(self) -> pd.DataFrame:
        """The lines that could not be measured, and why."""
        return self.rows.loc[self.rows["error"].notna(), ["line", "id", "prompt", "error"]].reset_index(
            drop=True
        )

    @property
    def complete(self) -> bool:
        """Whether every line of the input has its row on disk."""
        return (self.folder / "summary.json").exists()

    def where(self, test: Callable[[pd.DataFrame], Any] | None = None, /, **equal: Any) -> Sweep:
        """The lines that pass a test of the table and whose columns or metadata have these values: `where(kind="colour")`."""
        kept = np.ones(len(self.rows), dtype=bool)
        for name, value in equal.items():
            kept &= np.array([known == value for known in self._values(name)], dtype=bool)
        if test is not None:
            kept &= np.asarray(test(self.rows), dtype=bool)
        return replace(self, rows=self._kept(kept))

    def _kept(self, kept: Any) -> pd.DataFrame:
        return self.rows.loc[kept].reset_index(drop=True)

    def _values(self, name: str) -> list[Any]:
        if name in self.rows:
            return self.rows[name].tolist()
        known = [json.loads(metadata) for metadata in self.rows["metadata"]]
        if known and not any(name in metadata for metadata in known):
            names = sorted({other for metadata in known for other in metadata})
            raise PromptError(
                f"no column and no metadata {name!r}; metadata here are {', '.join(names) or 'none'}"
            )
        return [metadata.get(name) for metadata in known]

    def mean(self, *, seed: int = 0) -> MeanCircuit:
        """The mean circuit of these lines, with 95% intervals."""
        table = self.table
        if table.empty:
            raise PromptError("no measured line is left to take a mean of")
        effects = np.stack(list(table["effects"])).astype(np.float64)
        shared = table[["total", "restore", "modulation"]].to_numpy(np.float64)
        counts = table["carriers"].map(len).to_numpy(np.float64)[:, None]
        total, restore, modulation, count, *heads = _intervals(
            np.hstack([shared, counts, effects]), seed=seed
        )
        often = Counter(head for carriers in table["carriers"] for head in carriers)
        named = [Head(at // self.manifest.heads, at % self.manifest.heads) for at in range(effects.shape[1])]
        found = [
            MeanHead(head, effect, often[str(head)] / len(table))
            for head, effect in zip(named, heads, strict=True)
        ]
        found.sort(key=lambda known: (-known.effect.mean, known.head))
        return MeanCircuit(
            self.manifest.model,
            len(table),
            self.manifest.share,
            total,
            restore,
            modulation,
            count,
            tuple(found),
        )

    def circuit(self, id: str | int, *, model: Any = None) -> Circuit:
        """A line's circuit, measured again with controls and spans; `model` where it cannot be loaded by its name."""
        from circuits.models.load import as_model, load
        from circuits.tracing.trace import trace

        row = self._row(str(id))
        if row["error"] is not None:
            raise PromptError(f"line {row['line']} was not measured: {row['error']}")
        known = (
            load(self.manifest.model, gate=self.manifest.gated or None) if model is None else as_model(model)
        )
        if known.fingerprint != self.manifest.fingerprint:
            raise ModelError(
                f"{known.name} has other weights than the sweep was measured on; give the right one as model=…"
            )
        if (known.gated, known.reads_bos) != (self.manifest.gated, self.manifest.reads_bos):
            raise ModelError(
                f"{known.name} runs with another gate or BOS rule than in the sweep; give the right one as model=…"
            )
        asked = json.loads(row["asked"])
        return trace(known, asked.pop("prompt"), share=self.manifest.share, seed=self.manifest.seed, **asked)

    def _row(self, id: str) -> dict[str, Any]:
        found = self.rows[self.rows["id"] == id]
        if len(found) == 1:
            return found.astype(object).where(found.notna(), None).iloc[0].to_dict()
        if found.empty:
            raise PromptError(
                f"no line has the id {id!r}; ids here begin with {', '.join(self.rows['id'][:5]) or 'none'}"
            )
        raise PromptError(
            f"{len(found)} lines have the id {id!r} ({', '.join(map(str, found['line'][:5]))} …); keep one with where(line=…)"
        )

    def __str__(self) -> str:
        done = "complete" if self.complete else f"{self.manifest.lines} in the input, not complete"
        wrong = len(self.errors)
        return f"{self.folder}: {len(self)} lines ({done}) on {self.manifest.model}, {len(self) - wrong} measured, {wrong} with errors"


def open_sweep(folder: str | Path) -> Sweep:
    """A sweep from its folder, finished or not."""
    place = Path(folder)
    if not place.is_dir():
        raise FileError(f"no folder {place}; give the one that circuits sweep wrote to")
    manifest = read_manifest(place)
    rows = read_table(place).to_pandas(integer_object_nulls=True)
    for name in ("carriers", "joint", "tokens", "key_totals"):
        rows[name] = pd.Series(
            [None if value is None else tuple(value) for value in rows[name]], index=rows.index, dtype=object
        )
    return Sweep(place, manifest, rows)


def _intervals(values: np.ndarray, *, seed: int) -> list[Interval]:
    """Mean and 95% percentile interval of each column, over seeded resamples of the rows."""
    draw, count = np.random.default_rng(seed), len(values)
    means, step = [], max(1, _AT_ONCE // count)
    for start in range(0, RESAMPLES, step):
        times = draw.multinomial(
            count, np.full(count, 1 / count), size=min(step, RESAMPLES - start)
        )  # (resample, row)
        means.append(times @ values / count)
    ordered = np.sort(np.concatenate(means), axis=0)
    low, high = ordered[int(0.025 * RESAMPLES)], ordered[int(0.975 * RESAMPLES) - 1]
    return [Interval(*map(float, three)) for three in zip(values.mean(0), low, high, strict=True)]
