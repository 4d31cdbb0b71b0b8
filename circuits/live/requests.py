"""What the page may send: each request is one of these records, and anything else is refused in one line."""

from __future__ import annotations

from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuits.errors import PromptError

LARGEST_BODY: Final = 64 * 2**10  # bytes
_LONGEST_PROMPT: Final = 4_000  # characters
_LARGEST_POSITION: Final = 100_000
_MOST_SWAPS: Final = 256
_MOST_HEADS: Final = 64

Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=_LONGEST_PROMPT)]
Position = Annotated[int, Field(ge=0, le=_LARGEST_POSITION)]
Identifier = Annotated[str, Field(pattern=r"^[\w-]{1,40}$")]
Token = Annotated[str, Field(max_length=200)]
HeadName = Annotated[str, Field(pattern=r"^L\d{1,4}H\d{1,4}$")]


class MalformedRequest(PromptError):
    """A request that does not have the form of its record."""


class PageRequest(BaseModel):
    """A request has its own fields only, each of its own type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class PromptRequest(PageRequest):
    """A text, to be read by this model."""

    model: Name
    prompt: Text


class ProposalRequest(PageRequest):
    """Other words for the token at `key`."""

    model: Name
    prompt: Text
    key: Position


class TraceRequest(PageRequest):
    """Which heads carry key → query; where nothing is swapped, noise is added at the key.

    With heads in `without`, the same of the model in which they are swapped to the counterfactual.
    """

    model: Name
    prompt: Text
    key: Position
    query: Position
    group: Identifier  # circuits of one group stand side by side
    swap: dict[Position, Token] = Field(default={}, max_length=_MOST_SWAPS)
    without: tuple[HeadName, ...] = Field(default=(), max_length=_MOST_HEADS)

    def to_python(self) -> str:
        """The Python that gives the same answer, after `import circuits`."""
        swap = f", swap={self.swap!r}" if self.swap else ""
        ends = f"key={self.key}, query={self.query}"
        lines = [
            f"model = circuits.load({self.model!r})",
            f"found = circuits.trace(model, {self.prompt!r}, {ends}{swap})",
        ]
        if self.without:
            heads = ", ".join(map(repr, self.without))
            lines.append(f"found = found.without({heads}, model=model)")
        return "\n".join([*lines, "print(found)\n"])


class WhyRequest(PageRequest):
    """Why a head of an answered question looks where it looks."""

    job: Identifier
    head: HeadName
    key: Position
    query: Position


class JobRequest(PageRequest):
    """A question, answered or not, by the id of its job."""

    job: Identifier


T = TypeVar("T", bound=PageRequest)


def parse(kind: type[T], body: bytes) -> T:
    """The request in a body."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as why:
        first = why.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the request"
        fields = ", ".join(kind.model_fields)
        raise MalformedRequest(f"{where}: {first['msg']}; the request takes {fields}") from None
