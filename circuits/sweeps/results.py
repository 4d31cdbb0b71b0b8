"""A sweep read back: its table, parts of it, the mean over lines, and single circuits measured again.

The table has one row a line, in the order of the file; lines that could not be measured are in `errors`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import pyarrow as pa

from circuits.errors import FileError, PromptError
from circuits.files import to_path
from circuits.results import PICTURES, Pictured
from circuits.show.words import plural, spell
from circuits.sweeps.manifest import Manifest, read_manifest
from circuits.sweeps.mean import MeanCircuit, mean_of
from circuits.sweeps.store import copy_lines, read_table
from circuits.tracing import Circuit, FamilyControl, QuestionControl
from circuits.tracing.judge import together
from circuits.tracing.rerun import model_of
from circuits.tracing.trace import trace

if TYPE_CHECKING:
    from circuits.show.head_plots import HeadPlot


@dataclass(frozen=True, slots=True, eq=False, repr=False)
class Sweep(Pictured):
    """A sweep, or some lines of it.

    >>> lines = folder / "lines.jsonl"
    >>> _ = lines.write_text(json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}}))
    >>> swept = circuits.sweep(model, lines, folder / "swept")
    >>> len(swept), swept.complete
    (1, True)
    >>> print(*sorted(swept.mean().carriers()))
    L3H11 L4H0 L4H5 L5H0 L5H1 L5H3
    >>> circuits.Sweep.load(swept.where(line=1).save(folder / "some lines")) == swept
    True
    """

    folder: Path
    manifest: Manifest
    rows: pd.DataFrame = field(repr=False)
    complete: bool  # whether every line of the input has its row on disk

    def __len__(self) -> int:
        return len(self.rows)

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each line."""
        return self.rows.copy()

    def __eq__(self, other: object) -> bool:
        """The same lines of the same question with the same answers, in whatever folder."""
        if not isinstance(other, Sweep):
            return NotImplemented
        return self.manifest == other.manifest and self.rows.equals(other.rows)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a picture by its ending (.svg, .png, .pdf, .html, .dot), or these lines into a new folder."""
        if Path(path).suffix in PICTURES:
            return super(Sweep, self).save(path, **options)
        table = read_table(self.folder)
        own = set(self.rows["line"])
        kept = pa.array([line in own for line in table["line"].to_pylist()], pa.bool_())
        copy_lines(Path(path), self.manifest, table.filter(kept))
        return Path(path)

    @classmethod
    def load(cls, path: str | Path) -> Sweep:
        """Read a sweep, or the lines of one, from its folder."""
        return open_sweep(path)

    @property
    def table(self) -> pd.DataFrame:
        """One row for each line that was measured, in the order of the file."""
        return self._kept(self.rows["error"].isna()).infer_objects()

    @property
    def errors(self) -> pd.DataFrame:
        """The lines that could not be measured, and why."""
        return self._kept(self.rows["error"].notna()).loc[:, ["line", "id", "prompt", "error"]]

    def where(
        self, test: Callable[[pd.DataFrame], Any] | None = None, /, **equal: Any
    ) -> Sweep:
        """The lines that pass a test of the table and have these columns or metadata, as in `kind="noun"`."""
        kept = np.ones(len(self.rows), dtype=bool)
        for name, wanted in equal.items():
            kept &= np.array([value == wanted for value in self._values(name)], dtype=bool)
        if test is not None:
            kept &= np.asarray(test(self.rows), dtype=bool)
        return replace(self, rows=self._kept(kept))

    def _kept(self, kept: Any) -> pd.DataFrame:
        return self.rows.loc[kept].reset_index(drop=True)

    def _values(self, name: str) -> list[Any]:
        """A column, or a field of the metadata, line by line."""
        if name in self.rows:
            return self.rows[name].tolist()
        metadata = [json.loads(line) for line in self.rows["metadata"]]
        there: set[str] = set()
        for line in metadata:
            there |= line.keys()
        if metadata and name not in there:
            listed = ", ".join(sorted(there)) or "none"
            raise PromptError(f"no column or metadata {name!r}; metadata here: {listed}")
        return [line.get(name) for line in metadata]

    def mean(self, *, seed: int = 0) -> MeanCircuit:
        """The mean circuit of the clear lines, with 95% intervals; where no line is clear, of all lines whose
        gap is worth dividing by."""
        table = self.table
        if table.empty:
            raise PromptError("no measured line is left to take the mean of")
        return mean_of(table, self.manifest, question=self.question(), seed=seed)

    @property
    def verdicts(self) -> dict[str, int]:
        """How many measured lines have each verdict; those of version 0.2 are not judged."""
        listed = self.table["verdict"].fillna("not judged")
        counts = Counter(listed.tolist())
        order = ("clear", "weak", "none", "not judged")
        return {verdict: counts[verdict] for verdict in order if counts[verdict]}

    def question(self) -> FamilyControl | None:
        """The verdict on all measured lines; None where a line has none (version 0.2)."""
        table = self.table
        if table.empty or bool(table["verdict"].isna().any()):
            return None
        judged = []
        columns = zip(table["verdict"], table["reasons"], table["doubts"], strict=True)
        for verdict, reasons, doubts in columns:
            judged.append(
                QuestionControl(verdict, reasons, (), None, ("", None), withheld=doubts)
            )
        return together(judged, noun="lines")

    def heads_to_plot(self) -> HeadPlot:
        """What its figure shows: the mean of its lines, and what the first of them asks."""
        plot = self.mean().heads_to_plot()
        first = self.table.iloc[0]
        asked = f"first line: {spell(first['key_token'])}({first['key']}) → "
        asked += f"{spell(first['query_token'])}({first['query']})"
        for name in ("answer", "foil"):
            if isinstance(first[name], str):
                asked += f", {name} {spell(first[name], longest=16)}"
        return replace(plot, question=f"{asked}; {plot.question}")

    def circuit(self, id: str | int, *, model: Any = None) -> Circuit:
        """A line's circuit, measured again with controls and spans; `model` if its name does not load it."""
        row = self._row(str(id))
        if row["error"] is not None:
            raise PromptError(f"line {row['line']} was not measured: {row['error']}")
        question = json.loads(row["asked"])
        settings = {"share": self.manifest.share, "seed": self.manifest.seed}
        measured = model_of(self.manifest.model, self.manifest, model)
        return trace(measured, question.pop("prompt"), **settings, **question)

    def circuits(self, *, most: int = 24, model: Any = None) -> list[Circuit]:
        """The circuits of the first lines, measured again; `show.to_page` picks among them in one page."""
        measured = model_of(self.manifest.model, self.manifest, model)
        return [self.circuit(name, model=measured) for name in self.table["id"][:most]]

    def _row(self, id: str) -> dict[str, Any]:
        rows = self.rows[self.rows["id"] == id]
        if len(rows) == 1:
            return rows.astype(object).where(rows.notna(), None).iloc[0].to_dict()
        if rows.empty:
            first = ", ".join(self.rows["id"][:5]) or "none"
            raise PromptError(f"no line has the id {id!r}; the first ids here are {first}")
        lines = ", ".join(map(str, rows["line"][:5]))
        raise PromptError(
            f"{len(rows)} lines have the id {id!r} ({lines} …); keep one with where(line=…)"
        )

    def __str__(self) -> str:
        complete = "complete"
        if not self.complete:
            complete = f"{self.manifest.lines} in the input, not complete"
        lines = f"{plural(len(self), 'line')} ({complete}) on {self.manifest.model}"
        errors = len(self.errors)
        return f"{self.folder}: {lines}, {len(self) - errors} measured, {errors} with errors"


def open_sweep(folder: str | Path) -> Sweep:
    """A sweep from its folder, finished or not.

    >>> lines = folder / "lines.jsonl"
    >>> _ = lines.write_text(json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}}))
    >>> swept = circuits.sweep(model, lines, folder / "swept")
    >>> len(circuits.open_sweep(folder / "swept"))
    1
    """
    folder = to_path(folder)
    if not folder.is_dir():
        raise FileError(f"no folder {folder}; give the one that circuits sweep wrote to")
    manifest = read_manifest(folder)
    rows = read_table(folder).to_pandas(integer_object_nulls=True)
    for name in ("carriers", "joint", "tokens", "key_totals", "reasons", "doubts", "core"):
        values = [None if value is None else tuple(value) for value in rows[name]]
        rows[name] = pd.Series(values, index=rows.index, dtype=object)
    return Sweep(folder, manifest, rows, len(rows) == manifest.lines)
