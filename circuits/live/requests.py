"""What the page may ask for: each request is one of these records; anything else is refused in a line."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuits.errors import PromptError

LONGEST_PROMPT: Final = 4_000  # characters
LARGEST_BODY: Final = 64 * 2**10  # bytes
_LARGEST_POSITION: Final = 100_000
_MOST_SWAPS: Final = 256

Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT)]
Position = Annotated[int, Field(ge=0, le=_LARGEST_POSITION)]
Identity = Annotated[str, Field(pattern=r"^[\w-]{1,40}$")]
Token = Annotated[str, Field(max_length=200)]


class Request(BaseModel):
    """A request: no field beside its own, no value of another kind."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Reading(Request):
    """A text as this model reads it."""

    model: Name
    prompt: Text


class Proposing(Request):
    """Other words for the token at `key`."""

    model: Name
    prompt: Text
    key: Position


class Asking(Request):
    """Which heads carry key → query. Without a swap the key gets noise."""

    model: Name
    prompt: Text
    key: Position
    query: Position
    group: Identity  # what stands side by side
    swap: dict[Position, Token] = Field(default={}, max_length=_MOST_SWAPS)

    def to_call(self) -> str:
        """The Python call that gives the same answer."""
        swap = f", swap={self.swap!r}" if self.swap else ""
        ends = f"key={self.key}, query={self.query}"
        return f"circuits.trace(circuits.load({self.model!r}), {self.prompt!r}, {ends}{swap})"


class Explaining(Request):
    """Why a head of an answer looks where it looks."""

    job: Identity
    head: Annotated[str, Field(pattern=r"^L\d{1,4}H\d{1,4}$")]
    key: Position
    query: Position


class Naming(Request):
    """An answer or a question that is under way, by its name."""

    job: Identity


class Malformed(PromptError):
    """A request that is none."""


T = TypeVar("T", bound=Request)


def parse(kind: type[T], body: bytes) -> T:
    """The request in a body."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as why:
        first = why.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the request"
        known = ", ".join(kind.model_fields)
        raise Malformed(f"{place}: {first['msg']}; {kind.__name__.lower()} takes {known}") from None
