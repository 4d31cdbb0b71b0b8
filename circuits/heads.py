"""Heads and edges: their spoken names, how to parse them, their order.

A head is `L11H7`. An edge is one head, one key position, one query position: `L11H7:5→8`, always key to
query.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final

from circuits.errors import EdgeError

ROUNDING: Final = (
    1e-5  # of the gap: effects that lie nearer to each other are equal, and the lower head leads
)
_HEAD: Final = re.compile(
    r"(?:L(\d{1,9})-?H(\d{1,9})|(\d{1,9})\.(\d{1,9})|a(\d{1,9})\.h(\d{1,9}))", re.IGNORECASE | re.ASCII
)
_EDGE: Final = re.compile(r"(?P<head>[^:]+):(?P<key>\d{1,9})(?:→|->)(?P<query>\d{1,9})", re.ASCII)


def by_name(cls: Any, source: Any, handler: Any) -> Any:
    """How a schema reads a class from JSON: by its spoken name. Set it as `__get_pydantic_core_schema__`."""
    from pydantic_core import core_schema

    def parse(name: str) -> Any:
        try:
            return cls.parse(name)
        except EdgeError as why:
            raise ValueError(why) from why  # a schema then tries the next class of a union

    return core_schema.no_info_after_validator_function(parse, core_schema.str_schema(strict=True))


@dataclass(frozen=True, slots=True, order=True)
class Head:
    """One attention head.

    >>> circuits.Head.parse("L5H1")
    Head(layer=5, index=1)
    >>> str(circuits.Head(5, 1))
    'L5H1'
    """

    layer: int
    index: int

    def __str__(self) -> str:
        return f"L{self.layer}H{self.index}"

    @classmethod
    def parse(cls, name: str | Head) -> Head:
        """Read `L11H7`, `L11-H7`, `11.7` or `a11.h7`."""
        if isinstance(name, Head):
            return name
        match = _HEAD.fullmatch(name.strip())
        if match is None:
            raise EdgeError(f"{name!r} is not the name of a head; write it as L11H7, 11.7 or a11.h7")
        layer, index = (int(number) for number in match.groups() if number is not None)
        return cls(layer, index)

    __get_pydantic_core_schema__ = classmethod(by_name)


@dataclass(frozen=True, slots=True, order=True)
class Edge:
    """One head reading one key position from one query position.

    >>> circuits.Edge.parse("L5H1:5→8").key
    5
    """

    head: Head
    key: int
    query: int

    def __post_init__(self) -> None:
        if not 0 <= self.key <= self.query:
            raise EdgeError(f"{self} runs backwards: a query reads keys up to itself, so 0 ≤ key ≤ query")

    def __str__(self) -> str:
        return f"{self.head}:{self.key}→{self.query}"

    @classmethod
    def parse(cls, name: str | Edge) -> Edge:
        """Read `L11H7:5→8` (or `L11H7:5->8`)."""
        if isinstance(name, Edge):
            return name
        match = _EDGE.fullmatch(name.strip())
        if match is None:
            raise EdgeError(f"{name!r} is not the name of an edge; write it as L11H7:5→8 (head, key, query)")
        return cls(Head.parse(match["head"]), int(match["key"]), int(match["query"]))
