"""A record from plain values: the dataclass's own types decide what may stand where.

1. Every field must be there (unless it has a default) and nothing else; numbers are numbers, never true or false or text.
2. A class that can `parse` its spoken name, such as `Head`, is read from that name.
"""

from __future__ import annotations

from dataclasses import MISSING, fields, is_dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from circuits.errors import CircuitsError, FileError

_LARGEST: Final = 1e18  # no measured value comes near it, and quotients of such values stay finite
T = TypeVar("T")


def build(kind: type[T], plain: Any, at: str = "") -> T:
    """The value of type `kind` that `plain` stands for; `at` says where it stands, for the error."""
    return _build(kind, plain, at)


def _build(kind: Any, plain: Any, at: str) -> Any:
    origin = get_origin(kind)
    if origin in (Union, UnionType):
        return _one_of(get_args(kind), plain, at)
    if origin is tuple:
        return _tuple(get_args(kind), plain, at)
    if origin is Literal:
        return plain if plain in get_args(kind) and isinstance(plain, str) else _refuse(plain, at, f"one of {', '.join(get_args(kind))}")
    if hasattr(kind, "parse"):
        return kind.parse(plain) if isinstance(plain, str) else _refuse(plain, at, f"the name of a {kind.__name__.lower()}")
    return _record(kind, plain, at) if is_dataclass(kind) else _value(kind, plain, at)


def _value(kind: Any, plain: Any, at: str) -> Any:
    if kind is float:
        known = isinstance(plain, int | float) and not isinstance(plain, bool) and -_LARGEST <= plain <= _LARGEST
        return float(plain) if known else _refuse(plain, at, "a finite number")
    wanted = {int: "a whole number", str: "text", bool: "true or false", NoneType: "null"}.get(kind, "left out")
    fits = type(plain) is kind and (kind is not int or -_LARGEST <= plain <= _LARGEST)
    return plain if fits else _refuse(plain, at, wanted)


def _record(kind: Any, plain: Any, at: str) -> Any:
    if not isinstance(plain, dict):
        _refuse(plain, at, "an object")
    types = _types(kind)
    needed = {field.name for field in fields(kind) if field.default is MISSING}
    astray = sorted((needed - plain.keys()) | (plain.keys() - types.keys()))
    if astray:
        raise FileError(f"{at or 'it'} has not the fields it must have: {astray[0]!r} is {'missing' if astray[0] in needed else 'unknown'}")
    return kind(**{name: _build(types[name], value, f"{at}.{name}".removeprefix(".")) for name, value in plain.items()})


@cache
def _types(kind: Any) -> dict[str, Any]:
    return get_type_hints(kind)


def _one_of(kinds: tuple[Any, ...], plain: Any, at: str) -> Any:
    if plain is None and NoneType in kinds:
        return None
    failed: CircuitsError | None = None
    for kind in kinds:
        try:
            return _build(kind, plain, at)
        except CircuitsError as why:
            failed = failed or why
    assert failed is not None
    raise failed


def _tuple(kinds: tuple[Any, ...], plain: Any, at: str) -> Any:
    if not isinstance(plain, list):
        _refuse(plain, at, "a list")
    inner = [kinds[0]] * len(plain) if kinds[-1] is Ellipsis else list(kinds)
    if len(inner) != len(plain):
        raise FileError(f"{at} must have {len(inner)} values, not {len(plain)}")
    return tuple(_build(kind, value, f"{at}[{number}]") for number, (kind, value) in enumerate(zip(inner, plain, strict=True)))


def _refuse(plain: Any, at: str, wanted: str) -> Any:
    raise FileError(f"{at or 'it'} must be {wanted}, not {repr(plain)[:40]}")
