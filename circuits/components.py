"""The names of heads, edges, components, readers and wires: how they are written and parsed, and their order.

- A head is `L11H7`. An edge is one head, one key position, one query position: `L11H7:5→8`, always key to
  query.
- A component writes into the residual stream: `embed`, a head `L4H4`, an MLP `M3`. `all` stands for
  everything below a reader.
- A reader sees the stream: a head's `L5H1.query`, `L5H1.key`, `L5H1.value`, an MLP `M3`, or the `logits`.
- A wire is one writer seen by one reader, at one position or at all of them (then it is what EAP, ACDC and
  MIB call an edge). A position is written after `@`. Of a head's key and value sides two positions are named:
  the key where the writer stands and the query at which the head reads: `M3@9→L4H4@13.value`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Final, Literal

from circuits.errors import EdgeError, shortened

Side = Literal["query", "key", "value"]
SIDES: Final[tuple[Side, ...]] = ("query", "key", "value")
ComponentKind = Literal["embed", "head", "mlp", "all"]
ReaderKind = Literal["query", "key", "value", "mlp", "logits"]
# Of the gap: effects that differ by less count as equal; the lower head comes first.
ROUNDING: Final = 1e-5
_HEAD: Final = re.compile(
    r"(?:L(\d{1,9})-?H(\d{1,9})|(\d{1,9})\.(\d{1,9})|a(\d{1,9})\.h(\d{1,9}))",
    re.IGNORECASE | re.ASCII,
)
_EDGE: Final = re.compile(
    r"(?P<head>[^:]+):(?P<key>\d{1,9})(?:→|->)(?P<query>\d{1,9})", re.ASCII
)
_MLP: Final = re.compile(r"m(?:lp)?(\d{1,9})", re.IGNORECASE | re.ASCII)
_WRITER: Final = re.compile(r"(?P<name>[^@]+?)(?:@(?P<position>\d{1,9}))?", re.ASCII)
# As EAP and TransformerLens write sides.
SIDE_OF_LETTER: Final[dict[str, Side]] = {"q": "query", "k": "key", "v": "value"}


def _stripped(name: Any, kind: str, example: str) -> str:
    """A name without the spaces around it; an error if it is no text."""
    if not isinstance(name, str):
        raise EdgeError(f"{shortened(name)} is not {kind}; write its name, such as {example}")
    return name.strip()


def by_name(cls: Any, source: Any, handler: Any) -> Any:
    """Let pydantic read a class from its name in JSON: set it as its `__get_pydantic_core_schema__`."""
    from pydantic_core import core_schema

    def parse(name: str) -> Any:
        try:
            return cls.parse(name)
        except EdgeError as error:
            # After a ValueError pydantic tries the next class of a union.
            raise ValueError(error) from error

    return core_schema.no_info_after_validator_function(
        parse, core_schema.str_schema(strict=True)
    )


class _Named:
    """Something that is known by its name, in a `repr` too."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Head(_Named):
    """One attention head.

    >>> circuits.Head.parse("L5H1")
    L5H1
    >>> circuits.Head(5, 1).layer
    5
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
        match = _HEAD.fullmatch(name.strip()) if isinstance(name, str) else None
        if match is None:
            wrong = f"{shortened(name)} is not the name of a head"
            raise EdgeError(f"{wrong}; write it as L11H7, 11.7 or a11.h7, or as Head(11, 7)")
        layer, index = (int(number) for number in match.groups() if number is not None)
        return cls(layer, index)

    __get_pydantic_core_schema__ = classmethod(by_name)


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Edge(_Named):
    """One head reading one key position from one query position.

    >>> circuits.Edge.parse("L5H1:5→8").key
    5
    """

    head: Head
    key: int
    query: int

    def __post_init__(self) -> None:
        if not 0 <= self.key <= self.query:
            raise EdgeError(
                f"{self} runs backwards: a query reads keys up to itself, so 0 ≤ key ≤ query"
            )

    def __str__(self) -> str:
        return f"{self.head}:{self.key}→{self.query}"

    @classmethod
    def parse(cls, name: str | Edge) -> Edge:
        """Read `L11H7:5→8` (or `L11H7:5->8`)."""
        if isinstance(name, Edge):
            return name
        match = _EDGE.fullmatch(name.strip()) if isinstance(name, str) else None
        if match is None:
            wrong = f"{shortened(name)} is not the name of an edge"
            raise EdgeError(f"{wrong}; write it as L11H7:5→8 (head, key, query)")
        return cls(Head.parse(match["head"]), int(match["key"]), int(match["query"]))


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Component(_Named):
    """Something that writes into the residual stream.

    >>> circuits.Component.parse("M3")
    M3
    >>> str(circuits.Component.parse("a4.h4"))  # as EAP and MIB write it
    'L4H4'
    """

    layer: int  # -1 for the embedding: below all layers
    kind: ComponentKind
    index: int = -1  # of a head in its layer

    def __str__(self) -> str:
        if self.kind == "head":
            return f"L{self.layer}H{self.index}"
        if self.kind == "mlp":
            return f"M{self.layer}"
        return self.kind

    @property
    def eap(self) -> str:
        """Its name in EAP and MIB: `input`, `a4.h4`, `m3`."""
        if self.kind == "head":
            return f"a{self.layer}.h{self.index}"
        if self.kind == "mlp":
            return f"m{self.layer}"
        return "input" if self.kind == "embed" else "all"

    @classmethod
    def of(cls, head: Head) -> Component:
        """A head as a component."""
        return cls(head.layer, "head", head.index)

    @property
    def head(self) -> Head:
        """The head that it is."""
        if self.kind != "head":
            raise EdgeError(f"{self} is not a head; heads are named like L4H4")
        return Head(self.layer, self.index)

    @classmethod
    def parse(cls, name: str | Component | Head) -> Component:
        """Read `embed`, `L4H4`, `M3`, and the names of EAP: `input`, `a4.h4`, `m3`."""
        if isinstance(name, Component):
            return name
        if isinstance(name, Head):
            return cls.of(name)
        bare = _stripped(name, "a component", "embed, L4H4 or M3")
        if bare.lower() == "all":
            return ALL
        if bare.lower() in ("embed", "input"):
            return EMBED
        mlp = _MLP.fullmatch(bare)
        if mlp is not None:
            return cls(int(mlp[1]), "mlp")
        try:
            return cls.of(Head.parse(bare))
        except EdgeError:
            message = f"{name!r} is not a component; there are embed, heads such as L4H4 and MLPs such as M3"
            raise EdgeError(message) from None

    __get_pydantic_core_schema__ = classmethod(by_name)


EMBED: Final = Component(-1, "embed")
ALL: Final = Component(-1, "all")  # the whole stream below a reader: its side


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Reader(_Named):
    """Something that reads the residual stream: one side of a head, an MLP, or the logits.

    >>> str(circuits.Reader.parse("a5.h1<q>", layers=6))
    'L5H1.query'
    """

    layer: int  # of the logits: the number of layers
    kind: ReaderKind
    index: int = -1  # of a head in its layer

    def __str__(self) -> str:
        if self.kind == "logits":
            return "logits"
        if self.kind == "mlp":
            return f"M{self.layer}"
        return f"L{self.layer}H{self.index}.{self.kind}"

    @property
    def eap(self) -> str:
        """Its name in EAP and MIB: `a5.h1<q>`, `m3`, `logits`."""
        if self.component is None:
            return "logits"
        if self.kind == "mlp":
            return self.component.eap
        return f"{self.component.eap}<{self.kind[0]}>"

    @property
    def component(self) -> Component | None:
        """The head or MLP that reads; None for the logits."""
        if self.kind == "logits":
            return None
        kind = "mlp" if self.kind == "mlp" else "head"
        return Component(self.layer, kind, self.index)

    def sees(self, writer: Component, *, parallel: bool) -> bool:
        """Whether a writer stands below this reader. The MLP of a block that is not parallel reads its own
        block's heads."""
        if self.kind == "mlp" and writer.kind == "head" and not parallel:
            return writer.layer <= self.layer
        return writer.layer < self.layer

    @classmethod
    def parse(cls, name: str | Reader, *, layers: int) -> Reader:
        """Read `L5H1.query`, `M3`, `logits`, and the names of EAP: `a5.h1<q>`, `m3`."""
        if isinstance(name, Reader):
            return name
        bare = _stripped(name, "a reader", "L5H1.query, M3 or logits")
        if bare.lower() == "logits":
            return cls(layers, "logits")
        in_eap = re.fullmatch(r"(.+)<([qkv])>", bare)
        if in_eap is not None:
            bare = f"{in_eap[1]}.{SIDE_OF_LETTER[in_eap[2]]}"
        owner, _, side = bare.rpartition(".")
        if side in SIDES:
            head = Head.parse(owner)
            return cls(head.layer, side, head.index)
        mlp = _MLP.fullmatch(bare)
        if mlp is not None:
            return cls(int(mlp[1]), "mlp")
        allowed = "L5H1.query (or .key, .value), M3 and logits"
        raise EdgeError(f"{name!r} is not a reader; readers are named like {allowed}")


@dataclass(frozen=True, slots=True, order=True, repr=False)
class Wire(_Named):
    """One writer, seen by one reader. Without positions: at all of them together.

    >>> str(circuits.Wire.parse("L4H4@13→L5H1.query", layers=6))
    'L4H4@13→L5H1@13.query'
    """

    writer: Component
    reader: Reader
    position: int | None = None  # where the writer's output stands
    query: int | None = None  # of a head's key and value sides: at which query the head reads

    def __post_init__(self) -> None:
        if self.query is not None and self.reader.kind not in ("key", "value"):
            where = "reads where its writer stands: a query belongs to key and value sides"
            raise EdgeError(f"{self.reader} {where}")
        if self.position is not None and self.query is not None and self.position > self.query:
            raise EdgeError(f"{self} runs backwards: a query reads keys at or before itself")

    def __str__(self) -> str:
        writer = str(self.writer) if self.position is None else f"{self.writer}@{self.position}"
        read_at = self.position if self.reader.kind == "query" else self.query
        if self.reader.kind not in SIDES or read_at is None:
            return f"{writer}→{self.reader}"
        return f"{writer}→{self.reader.component}@{read_at}.{self.reader.kind}"

    @property
    def eap(self) -> str:
        """Its name in EAP and MIB, which have no positions: `a9.h9->a10.h0<q>`."""
        return f"{self.writer.eap}->{self.reader.eap}"

    @classmethod
    def parse(cls, name: str | Wire, *, layers: int) -> Wire:
        """Read `L4H4@13→L5H1.query`, `M3@9→L4H4@13.value`, `M5→logits`, and EAP's `a9.h9->a10.h0<q>`."""
        if isinstance(name, Wire):
            return name
        bare = _stripped(name, "a wire", "L4H4@13→L5H1.query")
        writer, arrow, reader = bare.replace("->", "→").partition("→")
        if not arrow:
            raise EdgeError(
                f"{name!r} is not a wire; write it as L4H4@13→L5H1.query or M3@9→L4H4@13.value"
            )
        at_writer = _WRITER.fullmatch(writer.strip())
        if at_writer is None:
            raise EdgeError(
                f"{writer!r} is not a writer; write it as M3, or M3@9 at a position"
            )
        component = Component.parse(at_writer["name"])
        position = None if at_writer["position"] is None else int(at_writer["position"])
        parsed = Reader.parse(re.sub(r"@\d{1,9}", "", reader), layers=layers)
        at_reader = re.search(r"@(\d{1,9})", reader)
        if at_reader is None:
            return cls(component, parsed, position)
        read_at = int(at_reader[1])
        if parsed.kind in ("key", "value"):
            return cls(component, parsed, position, read_at)
        if position != read_at:
            raise EdgeError(
                f"{name!r} names two positions, but {parsed} reads where its writer stands"
            )
        return cls(component, parsed, position)


def components(*, layers: int, heads: int) -> tuple[Component, ...]:
    """Every writer of a model, from the embedding up; in a layer its heads and then its MLP."""
    listed = [EMBED]
    for layer in range(layers):
        listed += [Component(layer, "head", head) for head in range(heads)]
        listed.append(Component(layer, "mlp"))
    return tuple(listed)


def readers(*, layers: int, heads: int) -> tuple[Reader, ...]:
    """Every reader of a model, from the lowest heads up to the logits."""
    listed = []
    for layer in range(layers):
        for head in range(heads):
            listed += [Reader(layer, side, head) for side in SIDES]
        listed.append(Reader(layer, "mlp"))
    return (*listed, Reader(layers, "logits"))


def component_edges(*, layers: int, heads: int, parallel: bool = False) -> tuple[Wire, ...]:
    """Every wire over all positions together: 32,491 in GPT-2 small, query, key and value told apart."""
    writers = components(layers=layers, heads=heads)
    wires = []
    for reader in readers(layers=layers, heads=heads):
        below = [writer for writer in writers if reader.sees(writer, parallel=parallel)]
        wires += [Wire(writer, reader) for writer in below]
    return tuple(wires)
