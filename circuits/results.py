"""What every result can do: be saved and loaded (`Saved`), and be drawn (`Pictured`).

A result is a frozen dataclass of plain values. Drawing, tables and measuring again stand in packages above
it, so its methods import them when they are called. The types of progress callbacks are here, too.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from circuits.components import Head
from circuits.errors import CircuitsError, FileError, PromptError, in_one_line
from circuits.files import (
    SIGNATURE,
    read_bytes,
    read_object,
    to_json,
    to_path,
    to_record,
    write_folder,
)

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from graphviz import Digraph
    from matplotlib.figure import Figure

T = TypeVar("T")
# What is measured now, how much of it is done, how much there is.
Progress = Callable[[str, int, int], None]
# Is called with a result that is not complete yet; raising ends the measurement.
Watch = Callable[[T], None]
Arrays = Mapping[str, "np.ndarray"]

DRAWN_AS: Final = ("svg", "png", "pdf")  # the formats of a figure and of a drawn diagram
FORMATS: Final = (*DRAWN_AS, "html", "dot")  # all formats of a result: figure, page and diagram
LONGEST_SUMMARY: Final = 160  # characters
PICTURES: Final = tuple(f".{name}" for name in FORMATS)  # their endings


def silent(stage: str, done: int, total: int) -> None:
    """A Progress that shows nothing."""


def unwatched(partial: object) -> None:
    """A Watch that does nothing."""


class Summarised:
    """Something whose `repr` is one short line: its kind, and `summary`."""

    __slots__ = ()

    @property
    def summary(self) -> str:
        """Model, question and main number: the first line of its text, unless a class says it better."""
        return str(self).partition("\n")[0]

    def __repr__(self) -> str:
        summary = in_one_line(self.summary)
        if len(summary) > LONGEST_SUMMARY:
            summary = f"{summary[: LONGEST_SUMMARY - 1]}…"
        return f"<{type(self).__name__} {summary}>"


class Tabular:
    """A result that is a table, too: `to_rows` has a row for each head, writer or other part."""

    __slots__ = ()
    if TYPE_CHECKING:

        def to_rows(self) -> list[dict[str, Any]]: ...

    def to_dataframe(self) -> pd.DataFrame:
        """The rows as a pandas table."""
        import pandas as pd

        return pd.DataFrame(self.to_rows())


class OfHeads(Tabular):
    """A result that has numbers for heads, in rows with a `head`."""

    __slots__ = ()

    def head_shape(self) -> tuple[int, int] | None:
        """How many layers, and heads a layer, the model has; None where the record does not say."""
        return None

    def head_array(self, value: str = "effect") -> np.ndarray:
        """One column of the table as (layer, head); NaN where a head has none. Where the record does not say
        how many heads there are, as far as its heads go."""
        import numpy as np

        rows = [row for row in self.to_rows() if value in row]
        if not rows:
            raise PromptError(f"no head of this result has a number that is called {value!r}")
        heads = [Head.parse(row["head"]) for row in rows]
        shape = self.head_shape()
        if shape is None:
            layers = max(head.layer for head in heads) + 1
            shape = (layers, max(head.index for head in heads) + 1)
        array = np.full(shape, np.nan)
        for head, row in zip(heads, rows, strict=True):
            number = row[value]
            array[head.layer, head.index] = np.nan if number is None else number
        return array


class Pictured(Summarised):
    """A result that has a figure, a page and a diagram."""

    __slots__ = ()

    def figure(self, **options: Any) -> Figure:
        """The result as a matplotlib figure; `ax=` where a single panel makes sense."""
        from circuits.show.results import figure_of

        return figure_of(self, **options)

    def page(self, **options: Any) -> str:
        """The result as one HTML file, its text."""
        from circuits.show.results import page_of

        return page_of(self, **options)

    def to_dot(self, **options: Any) -> Digraph:
        """The result as a Graphviz diagram, to be restyled, saved or rendered."""
        from circuits.show.results import dot_of

        return dot_of(self, **options)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the figure (.svg, .png, .pdf), the page (.html) or the diagram (.dot), by the ending."""
        from circuits.show.results import save_picture

        return save_picture(self, path, **options)

    def _repr_html_(self) -> str:
        from circuits.show.results import html_of

        return html_of(self)


class Saved(Summarised):
    """A result that is kept as one JSON file in a folder, with its arrays, if any, as safetensors beside it.

    1. The file names its kind and schema. It carries a sha256 of itself and of its arrays: arrays of another
       result are refused, a JSON file that was edited is read with a warning.
    2. A head, wire or other record with a `parse` method is written as its name, any other by its fields.
    3. After reading, pydantic has checked the types and `check` whether the parts belong together.
    """

    __slots__ = ()
    KIND: ClassVar[str]  # the name of the kind in a file
    NAME: ClassVar[str]  # the kind in a sentence: "a circuit"
    SCHEMA: ClassVar[int] = 1

    @classmethod
    def file_name(cls) -> str:
        """The name of the JSON file in its folder."""
        return f"{cls.KIND}.json"

    @classmethod
    def header(cls) -> dict[str, Any]:
        """What a file holds beside the fields of the record."""
        return {"schema": cls.SCHEMA, "result": cls.KIND, "written_by": SIGNATURE}

    def to_json(self, beside: Mapping[str, Any] | None = None) -> str:
        """Every number of the result; the same result gives the same text.

        `beside` holds further values for other programs that read the file.
        """
        values = {**self.header(), **_fields_of(self), **(beside or {})}
        body = to_json(values, default=_to_plain, sort_keys=True)
        checksum = _sha256(body.encode())
        # The last field, after all that it is the checksum of.
        return body.removesuffix("\n}") + f',\n "sha256": "{checksum}"\n}}\n'

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a picture by its ending (.svg, .png, .pdf, .html, .dot), or the result itself into a folder.

        Returns the path of the picture, or of the folder's JSON file.
        """
        folder = to_path(path)
        if folder.suffix in PICTURES:
            from circuits.show.results import save_picture

            return save_picture(self, folder, **options)
        arrays: Arrays | None = getattr(self, "arrays", None)

        def write_files(folder: Path) -> None:
            file = folder / self.file_name()
            if arrays is not None:
                file.with_suffix(".safetensors").write_bytes(_to_bytes(arrays))
            file.write_bytes(self.to_json().encode())

        write_folder(folder, write_files)
        return folder / self.file_name()

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result from its folder or its JSON file."""
        from safetensors import SafetensorError
        from safetensors.numpy import load as unpack

        file = to_path(path)
        if os.path.isdir(file):  # noqa: PTH112 (Path.is_dir raises where this answers no)
            file = file / cls.file_name()
        stored = _read_values(file, cls)
        packed = _read_arrays(file, stored) if "arrays" in cls.__slots__ else None
        try:
            result = cls.from_stored(stored, None if packed is None else unpack(packed))
            result.check()
        except (CircuitsError, SafetensorError, KeyError, TypeError, ValueError) as error:
            wrong = f"{file} is not {cls.NAME} that this version can read ({error})"
            raise FileError(f"{wrong}; measure it again") from error
        return result

    @classmethod
    def from_stored(cls, stored: dict[str, Any], arrays: Arrays | None = None) -> Self:
        """The record with these field values, as they stand in a file."""
        if arrays is None:
            return to_record(cls, stored)
        record = to_record(cls, stored | {"arrays": {}})
        return replace(record, arrays=arrays)  # type: ignore[type-var]

    def check(self) -> None:
        """Raise a CircuitsError if parts do not belong together, such as a key after its query."""


def require(holds: bool, otherwise: str) -> None:
    """Raise a FileError unless a condition on a stored record holds."""
    if not holds:
        raise FileError(otherwise)


def open_result(path: str | Path) -> Any:
    """Whatever result a file or a folder holds: a circuit, a wiring, a ranking, a family, a comparison …

    >>> saved = found.save(folder / "opened")
    >>> circuits.open_result(saved) == found
    True
    """
    file = to_path(path)
    classes = result_classes()
    if os.path.isdir(file):  # noqa: PTH112 (Path.is_dir raises where this answers no)
        names = list(dict.fromkeys(each.file_name() for each in classes.values()))
        present = [name for name in names if (file / name).exists()]
        if len(present) != 1:
            holds = " and ".join(present) or "none of them"
            raise FileError(
                f"{file} must hold one of {', '.join(names)}, and it holds {holds}; name the file"
            )
        file = file / present[0]
    kind = _kind_of(read_object(file))
    if kind not in classes:
        raise FileError(f"{file} is not a result of circuits; those say of what kind they are")
    return classes[kind].load(file)


def result_classes() -> dict[str, type[Saved]]:
    """Every class of saved results by its kind."""
    from circuits.checks.verify import Verification
    from circuits.instruments.grids import Patching, Paths
    from circuits.instruments.reading_records import HeadScores, LogitAttribution, LogitLens
    from circuits.sweeps.mean import MeanCircuit
    from circuits.tasks.comparison import Comparison, TaskComparison
    from circuits.tasks.patterns import PanelFigures
    from circuits.tasks.ranking import Ranking
    from circuits.tracing import Circuit, FamilyTrace, Neurons, Stability, Why
    from circuits.wires.record import Wiring

    traced = (Circuit, Stability, Why, Wiring, FamilyTrace, Verification)
    maps = (Patching, Paths, LogitAttribution, LogitLens, HeadScores, Neurons)
    of_tasks = (Ranking, PanelFigures, Comparison, TaskComparison)
    return {each.KIND: each for each in (*traced, *maps, *of_tasks, MeanCircuit)}


def sha256_of(arrays: Arrays) -> str:
    """The sha256 of arrays as they are written to disk."""
    return _sha256(_to_bytes(arrays))


def _to_plain(value: Any) -> Any:
    """What JSON has in the place of a record: its name where it can be parsed from that, else its fields."""
    return str(value) if hasattr(value, "parse") else _fields_of(value)


def _fields_of(record: Any) -> dict[str, Any]:
    """The fields of a record that JSON can hold: no arrays and no metric function."""
    return {
        name: getattr(record, name)
        for name in record.__slots__
        if name not in ("arrays", "function")
    }


def _to_bytes(arrays: Arrays) -> bytes:
    """The content of the safetensors file."""
    import numpy as np
    from safetensors.numpy import save as pack

    return pack({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _kind_of(stored: dict[str, Any]) -> str:
    """The kind that a file names. A circuit, the first result that was saved, names its schema alone."""
    return str(stored.get("result", "circuit")) if "schema" in stored else ""


def _read_values(file: Path, cls: type[Saved]) -> dict[str, Any]:
    """The field values in a file of this kind and schema; warns if it was edited since it was written."""
    stored = read_object(file)
    kind = _kind_of(stored)
    if kind != cls.KIND:
        other = result_classes().get(kind)
        is_other = "" if other is None else f": it is {other.NAME}"
        raise FileError(f"{file} is not {cls.NAME}{is_other}")
    schema = stored["schema"]
    if schema != cls.SCHEMA or type(schema) is not int:  # True and 1.0 equal 1
        other = f"{file} has schema {repr(schema)[:40]}, this version reads {cls.SCHEMA}"
        raise FileError(f"{other}; measure it again")
    checksum = stored.pop("sha256", None)
    if checksum != _sha256(to_json(stored, sort_keys=True).encode()):
        edited = f"{file} was edited since it was written; its numbers are taken as they stand"
        warnings.warn(edited, stacklevel=3)
    return {name: value for name, value in stored.items() if name not in cls.header()}


def _read_arrays(file: Path, stored: dict[str, Any]) -> bytes:
    """The safetensors file beside a JSON file, if its sha256 is the one that the JSON names."""
    beside = file.with_suffix(".safetensors")
    packed = read_bytes(beside)
    if _sha256(packed) != stored.get("arrays_sha256"):
        other = f"{beside} does not belong to {file} (its sha256 differs)"
        raise FileError(f"{other}; copy both files together")
    return packed
