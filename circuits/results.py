"""What every result can do, how modules reach others late, and how progress is reported.

Results are plain records at the bottom of the package; drawing, tables and measuring stand above them. A
method such as `Circuit.to_graph` therefore calls `above("to_graph")`, and the table `ABOVE`, the only one of
its kind, says where that leads. `Saved` is how every kind of result is written, read and checked, `Pictured`
how it is drawn.
"""

from __future__ import annotations

import hashlib
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self, TypeVar

from circuits.errors import CircuitsError, FileError
from circuits.files import (
    FILE_OF,
    RESULTS,
    SIGNATURE,
    parse_json,
    read_bytes,
    read_object,
    to_json,
    to_record,
    write_folder,
)

if TYPE_CHECKING:
    import numpy as np
    from graphviz import Digraph
    from matplotlib.figure import Figure

T = TypeVar("T")
Progress = Callable[[str, int, int], None]  # what is under way, how much is done, how much there is
Watch = Callable[[T], None]  # is shown a result as far as it is measured; whatever it raises ends the work
Arrays = Mapping[str, "np.ndarray"]
Faults = Iterator[tuple[bool, str]]  # whether something is wrong, and what

DRAWN_AS: Final = ("svg", "png", "pdf")  # the formats of a figure and of a drawn diagram
FORMATS: Final = (*DRAWN_AS, "html", "dot")  # of the files of a result: figure, page and diagram
PICTURES: Final = tuple(f".{name}" for name in FORMATS)  # their endings
ABOVE: Final = {
    "to_text": "circuits.show.tables",
    "ranking_text": "circuits.show.task_tables",
    "figure_of": "circuits.show.results",
    "page_of": "circuits.show.results",
    "dot_of": "circuits.show.results",
    "html_of": "circuits.show.results",
    "save_picture": "circuits.show.results",
    "to_graph": "circuits.show",
    "routes": "circuits.show",
    "measure_without": "circuits.tracing.circuit",
    "why_text": "circuits.show.wiring",
    "measure_kept": "circuits.tracing.wiring",
    "wiring_text": "circuits.show.wiring",
    "wiring_graph": "circuits.show.wiring",
    "task_comparison_text": "circuits.show.task_tables",
    "panel_text": "circuits.show.task_tables",
}


def above(name: str) -> Callable[..., Any]:
    """The function of this name in the module above that has it."""
    return getattr(import_module(ABOVE[name]), name)


def reader_of(kind: str) -> Any:
    """The class that reads results of a kind."""
    module, name = RESULTS[kind]
    return getattr(import_module(module), name)


# Results


class Pictured:
    """What every result can be asked for: its figure, its page, its diagram, and files of them."""

    __slots__ = ()

    def figure(self, **options: Any) -> Figure:
        """The result as a matplotlib figure; `ax=` where a single panel makes sense."""
        return above("figure_of")(self, **options)

    def page(self, **options: Any) -> str:
        """The result as one HTML file, its text."""
        return above("page_of")(self, **options)

    def to_dot(self, **options: Any) -> Digraph:
        """The result as a Graphviz diagram, to be restyled, saved or rendered."""
        return above("dot_of")(self, **options)

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write the figure (.svg, .png, .pdf), the page (.html) or the diagram (.dot), by the ending."""
        return above("save_picture")(self, path, **options)

    def _repr_html_(self) -> str:
        return above("html_of")(self)


class Saved:
    """What is kept as one JSON file in a folder, and its arrays, if it has any, as safetensors beside it.

    1. The file says of what kind and schema it is. It carries the sha256 of itself and of its arrays: arrays
       of another result are refused, a JSON that was edited is read with a warning.
    2. What has a spoken name (a head, a wire) is written by that name, every other record by its fields.
    3. `faults` says what must not be although every type is right: what reads a result relies on it.
    """

    __slots__ = ()
    KIND: ClassVar[str]  # one of RESULTS
    CALLED: ClassVar[str]  # in a sentence
    SCHEMA: ClassVar[int] = 1

    @classmethod
    def header(cls) -> dict[str, Any]:
        """What stands in a file beside the record."""
        return {"schema": cls.SCHEMA, "result": cls.KIND, "written_by": SIGNATURE}

    def to_json(self) -> str:
        """Every number of the result; the same result gives the same bytes."""
        return sealed(self.header() | to_plain(self))

    def save(self, path: str | Path, **options: Any) -> Path:
        """Write a picture by its ending (.svg, .png, .pdf, .html, .dot), or the result itself into a folder.

        Returns the path of the picture, or of the folder's JSON file.
        """
        if Path(path).suffix in PICTURES:
            return above("save_picture")(self, path, **options)
        file, arrays = Path(path) / FILE_OF[self.KIND], getattr(self, "arrays", None)

        def fill(aside: Path) -> None:
            if arrays is not None:
                (aside / file.name).with_suffix(".safetensors").write_bytes(_to_bytes(arrays))
            (aside / file.name).write_bytes(self.to_json().encode())

        write_folder(Path(path), fill)
        return file

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a result from its folder or its JSON file."""
        from safetensors import SafetensorError

        file = Path(path)
        file = file / FILE_OF[cls.KIND] if os.path.isdir(file) else file  # noqa: PTH112 (answers no where a Path would raise)
        stored = _opened(file, cls)
        packed = _arrays_beside(file, stored) if "arrays" in cls.__slots__ else None
        try:
            result = cls.from_stored(stored, packed)
            for wrong, fault in result.faults():
                if wrong:
                    raise FileError(fault)
        except (CircuitsError, SafetensorError, KeyError, TypeError, ValueError) as why:  # types numpy lacks
            wrong = f"{file} is not {cls.CALLED} that this version can read ({why})"
            raise FileError(f"{wrong}; measure it again") from why
        return result

    @classmethod
    def from_stored(cls, stored: dict[str, Any], packed: bytes | None = None) -> Self:
        """The record of the values in a file."""
        if packed is None:
            return to_record(cls, stored)
        from safetensors.numpy import load as read_arrays

        return replace(to_record(cls, stored | {"arrays": {}}), arrays=read_arrays(packed))  # type: ignore[type-var]

    def faults(self) -> Faults:
        """What does not belong together, part by part."""
        return iter(())


def open_result(path: str | Path) -> Any:
    """Whatever result a file or a folder holds: a circuit, a wiring, a ranking, a family, a comparison …

    >>> saved = found.save(folder / "opened")
    >>> circuits.open_result(saved) == found
    True
    """
    file = Path(path)
    if file.is_dir():
        names = list(dict.fromkeys(FILE_OF.values()))
        held = [name for name in names if (file / name).exists()]
        if len(held) != 1:
            holds = " and ".join(held) or "none of them"
            raise FileError(
                f"{file} must hold one of {', '.join(names)}, and it holds {holds}; name the file"
            )
        file = file / held[0]
    stored = read_object(file)
    if (kind := _kind_of(stored)) not in RESULTS:
        raise FileError(f"{file} is not a result of circuits; those say of what kind they are")
    return reader_of(kind).load(file)


def sealed(values: dict[str, Any]) -> str:
    """Values as the text of a file that carries the sha256 of itself."""
    body = to_json(values, default=to_plain, sort_keys=True)
    return body[:-2] + f',\n "sha256": "{_sha256(body.encode())}"\n}}\n'


def to_plain(value: Any) -> Any:
    """A record by its spoken name if it has one, else as its fields, without what JSON cannot hold."""
    if hasattr(type(value), "parse"):
        return str(value)
    return {name: getattr(value, name) for name in value.__slots__ if name not in ("arrays", "function")}


def sha256_of(arrays: Arrays) -> str:
    """What `arrays_sha256` must be for these arrays."""
    return _sha256(_to_bytes(arrays))


def _to_bytes(arrays: Arrays) -> bytes:
    """The content of the file beside the JSON."""
    import numpy as np
    from safetensors.numpy import save as write_arrays

    return write_arrays({name: np.ascontiguousarray(arrays[name]) for name in sorted(arrays)})


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _kind_of(stored: Any) -> str | None:
    """What a file says that it is; a circuit, which had the first of these files, says its schema alone."""
    if not isinstance(stored, dict) or "schema" not in stored:
        return None
    kind = stored.get("result", "circuit")
    return kind if isinstance(kind, str) else None


def _opened(file: Path, cls: type[Saved]) -> dict[str, Any]:
    """The values in a file of this kind and schema; that it was edited is said, and no reason to stop."""
    stored = parse_json(read_bytes(file), file)
    if (kind := _kind_of(stored)) != cls.KIND:
        other = f": it is {reader_of(kind).CALLED}" if kind in RESULTS else ""
        raise FileError(f"{file} is not {cls.CALLED}{other}")
    if stored["schema"] != cls.SCHEMA or type(stored["schema"]) is not int:
        other = f"{file} has schema {repr(stored['schema'])[:40]}, this version reads {cls.SCHEMA}"
        raise FileError(f"{other}; measure it again")
    written = stored.pop("sha256", None)
    if written != _sha256(to_json(stored, sort_keys=True).encode()):
        edited = f"{file} was edited since it was written; its numbers are taken as they stand"
        warnings.warn(edited, stacklevel=3)
    return {name: value for name, value in stored.items() if name not in cls.header()}


def _arrays_beside(file: Path, stored: dict[str, Any]) -> bytes:
    beside = file.with_suffix(".safetensors")
    packed = read_bytes(beside)
    if _sha256(packed) != stored.get("arrays_sha256"):
        other = f"{beside} does not belong to {file} (its sha256 differs)"
        raise FileError(f"{other}; copy both files together")
    return packed


# Progress


def silent(stage: str, done: int, total: int) -> None:
    """No progress shown."""


def unwatched(partial: object) -> None:
    """Nobody looks at a result before it is complete."""


# Names that a package offers


def offer(
    package: str,
    homes: dict[str, tuple[str, ...]],
    modules: tuple[str, ...] = (),
    *,
    own: tuple[str, ...] = (),
) -> tuple[list[str], Any, Any]:
    """`__all__`, `__getattr__` and `__dir__` of a package whose names are imported when they are first used.

    `homes` says which of its modules has which names, `modules` which modules are names themselves, `own`
    what the package defines itself. So importing the package imports no model library.
    """
    home_of = {name: home for home, names in homes.items() for name in names}
    offered = sorted({*home_of, *modules, *own})

    def find(name: str) -> Any:
        if name in modules:
            return import_module(f"{package}.{name}")
        if name not in home_of:
            raise AttributeError(f"{package} has no {name!r}; it has {', '.join(offered)}")
        return getattr(import_module(f"{package}.{home_of[name]}"), name)

    return sorted({*home_of, *own}), find, lambda: offered
