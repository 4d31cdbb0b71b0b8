"""The errors of this package: mistakes that a user can correct. The command line prints one line and exits 1.

CircuitsError
├── ModelError     a model that cannot be found, read, trusted or edited
├── PromptError    a prompt, pair, position, answer or metric that does not fit
│   ├── NoPairError    a task that has no pair for this model
│   └── KeywordError   a keyword that a function does not have
├── EdgeError      a head or edge that does not exist in this model or prompt
├── FileError      a result or output folder that cannot be read or written
└── ExecutorError  workers that cannot be started, or that died
"""

import inspect
import operator
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from functools import wraps
from numbers import Real
from typing import Any, Final, ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

_JOINERS: Final = "\u200c\u200d"
LONGEST: Final = 4000  # characters of a message; the middle of a longer one is left out
_LARGEST: Final = 2**63 - 1  # the largest whole number that files and random generators take


def in_one_line(text: str) -> str:
    """Text on one line, without control characters, cut in the middle where it is too long."""
    if len(text) > LONGEST:
        text = f"{text[: LONGEST - 1000]} … {text[-900:]}"
    lines = [line.strip() for line in text.splitlines()]
    return escaped(" ".join(line for line in lines if line))


def escaped(text: str) -> str:
    """Text with an escape such as `\\x1b` in place of every character that is not printable. Joiners stay
    between two letters, which they make look different."""
    if text.isprintable():
        return text
    shown = ""
    for index, letter in enumerate(text):
        joins = letter in _JOINERS and 0 < index < len(text) - 1
        if letter.isprintable() or joins:
            shown += letter
        else:
            shown += letter.encode("unicode_escape").decode("ascii")
    return shown


def shortened(value: object, longest: int = 60) -> str:
    """A value as a message shows it: its type where that says more than its text, on one line."""
    if type(value).__name__ in ("DataFrame", "Series", "Tensor", "ndarray"):
        return f"a {type(value).__name__}"
    text = " ".join(repr(value).split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


class CircuitsError(Exception):
    """Says in one line what was wrong, what is allowed and what to do.

    >>> try:
    ...     found.prompt.position("larg")
    ... except circuits.CircuitsError as error:
    ...     print(str(error)[:61])
    no token 'larg' in this prompt; it has <|bos|>(0) The(1) oppo
    """

    def __str__(self) -> str:
        return in_one_line(super().__str__())


class ModelError(CircuitsError):
    """A model cannot be found, read, trusted or edited."""


class PromptError(CircuitsError):
    """A prompt, pair, position, answer or metric does not fit."""


class NoPairError(PromptError):
    """A task has no pair of equal token lengths that the model answers correctly."""


class KeywordError(PromptError, TypeError):
    """A function was called with a keyword that it does not have."""


class EdgeError(CircuitsError):
    """A head or an edge does not exist in this model or prompt."""


class FileError(CircuitsError):
    """A result or an output folder cannot be read or written."""


class ExecutorError(CircuitsError):
    """Workers of a large job that cannot be started, or that died."""


def check_whole(name: str, value: Any, *, least: int | None = None) -> None:
    """Refuse a value of a keyword that is no whole number, or is too small. Numpy's integers are whole
    numbers; True and 5.0 are not."""
    try:
        number = None if isinstance(value, bool) else operator.index(value)
    except TypeError:
        number = None
    if number is None or abs(number) > _LARGEST or (least is not None and number < least):
        allowed = "a whole number" if least is None else f"a whole number, {least} or more"
        raise PromptError(f"{name}= is {allowed}, not {shortened(value)}")


def is_number(value: Any) -> bool:
    """Whether a value is a real number, Python's or numpy's."""
    return isinstance(value, Real)


def as_listed(given: Any) -> list[Any]:
    """What a user gave as a list; one thing alone, such as a word, is a list of one."""
    if isinstance(given, str | bytes) or not isinstance(given, Iterable):
        return [given]
    return list(given)


def names_its_keywords(function: Callable[P, T]) -> Callable[P, T]:
    """Decorate a function so that an unknown keyword raises an error that lists those it has."""
    keywords = list(inspect.signature(function).parameters)

    @wraps(function)
    def checked(*args: P.args, **named: P.kwargs) -> T:
        for name in named:
            if name not in keywords:
                similar = get_close_matches(name, keywords, n=1)
                hint = f"; did you mean {similar[0]}?" if similar else ""
                raise KeywordError(
                    f"{function.__name__} has no {name!r}; it has {', '.join(keywords)}{hint}"
                )
        return function(*args, **named)

    return checked
