"""Two records of one kind, compared value by value: what differs, and which fields were not compared.

1. A record is compared in the form in which it is saved: fields, lists, numbers, and words. Nothing here knows
   what a field means, so a field that is added to a record is compared from then on.
2. Items of a list that have a name (a head, a wire, a mapping by its ends) are compared with the item of the
   same name; items without one by their place.
3. A list that is sorted by size may be sorted otherwise where sizes are equal within the tolerance.
4. A number holds if it is within the tolerance: other processors and libraries round otherwise. Words, counts
   and everything else hold if they are the same.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from circuits.components import ROUNDING
from circuits.results import Saved

TOLERANCE: Final = 1e-3
# The fields that name an item of a list, where it has them.
_NAMING: Final = (
    "head",
    "unit",
    "wire",
    "side",
    "writer",
    "position",
    "label",
    "positions",
    "query_writer",
    "key_writer",
)
# The numbers by which lists are sorted. Spans have an effect, too, and stand in the order of their positions.
_SORTED_BY: Final = ("effect", "part")
_LONGEST: Final = 80  # characters of a value in a difference


@dataclass(frozen=True, slots=True)
class Place:
    """Where a value stands: `mappings[5→8].heads[L5H1].effect`, and its field, `mappings[].heads[].effect`."""

    path: str = ""
    field: str = ""

    def at(self, name: str) -> Place:
        """The field of this name in a record."""
        dot = "." if self.path else ""
        return Place(f"{self.path}{dot}{name}", f"{self.field}{dot}{name}")

    def item(self, name: str) -> Place:
        """The item of this name, or number, in a list."""
        return Place(f"{self.path}[{name}]", f"{self.field}[]")


@dataclass
class Differences:
    """What differs between two records, as one sentence each, and how many values were compared.

    `unchecked` are fields that are not compared, with all that stands in them.
    """

    unchecked: frozenset[str] = frozenset()
    compared: int = 0
    sentences: list[str] = field(default_factory=list)
    # Fields of `unchecked` that the records have.
    skipped: set[str] = field(default_factory=set)

    def compare(self, was: Any, now: Any, place: Place) -> None:
        """Compare two values in the form in which they are saved."""
        if place.field in self.unchecked:
            self.skipped.add(place.field)
        elif isinstance(was, dict) and isinstance(now, dict):
            for name in dict.fromkeys([*was, *now]):
                self.compare(was.get(name), now.get(name), place.at(name))
        elif isinstance(was, list) and isinstance(now, list):
            self._compare_lists(was, now, place)
        else:
            self.compared += 1
            if not _same(was, now):
                self._tell(place, _shown(was), _shown(now))

    def compare_arrays(
        self, was: Mapping[str, np.ndarray], now: Mapping[str, np.ndarray]
    ) -> None:
        """Compare the arrays of two records; each counts as one value."""
        for name in dict.fromkeys([*was, *now]):
            place = Place().at("arrays").at(name)
            self.compared += 1
            if name not in was or name not in now or was[name].shape != now[name].shape:
                self._tell(place, _shape_of(was.get(name)), _shape_of(now.get(name)))
                continue
            distance = np.abs(was[name].astype(np.float64) - now[name].astype(np.float64))
            if distance.max(initial=0.0) > TOLERANCE:
                worst = np.unravel_index(distance.argmax(), distance.shape)
                at = place.item(", ".join(str(int(index)) for index in worst))
                self._tell(at, f"{was[name][worst]:.4f}", f"{now[name][worst]:.4f}")

    def _compare_lists(self, was: list[Any], now: list[Any], place: Place) -> None:
        names_then = _names_of(was)
        names_now = _names_of(now)
        if names_then is None or names_now is None:
            names_then = [str(number) for number in range(len(was))]
            names_now = [str(number) for number in range(len(now))]
        item_then = dict(zip(names_then, was, strict=True))
        item_now = dict(zip(names_now, now, strict=True))
        for name in dict.fromkeys([*names_then, *names_now]):
            at = place.item(name)
            if name in item_then and name in item_now:
                self.compare(item_then[name], item_now[name], at)
            elif at.field not in self.unchecked:
                self.compared += 1
                then = item_then.get(name, _ABSENT)
                self._tell(at, _shown(then), _shown(item_now.get(name, _ABSENT)))
        if set(names_then) == set(names_now) and names_then != names_now:
            in_old_order = [item_now[name] for name in names_then]
            by_position = "positions" in now[0]
            if by_position or not _sorted_alike(now, in_old_order):
                self._tell(place, f"in the order {_listed(names_then)}", _listed(names_now))

    def _tell(self, place: Place, was: str, now: str) -> None:
        self.sentences.append(f"{place.path}: was {was}, is {now}")


def differences(then: Saved, now: Saved, *, unchecked: frozenset[str]) -> Differences:
    """What differs between a record and the same measured again."""
    found = Differences(unchecked)
    found.compare(plain_values(then), plain_values(now), Place())
    found.compare_arrays(getattr(then, "arrays", {}), getattr(now, "arrays", {}))
    return found


def plain_values(record: Saved) -> dict[str, Any]:
    """The fields of a record in the form in which they are saved, without the head of the file."""
    values = json.loads(record.to_json())
    for name in ("sha256", *record.header()):
        values.pop(name, None)
    return values


_ABSENT: Final = object()


def _same(was: Any, now: Any) -> bool:
    """Whether two plain values are the same, numbers within the tolerance."""
    if isinstance(was, float) and isinstance(now, float):
        return abs(was - now) <= TOLERANCE * max(1.0, abs(was))
    return type(was) is type(now) and was == now


def _shown(value: Any) -> str:
    """A value in a sentence."""
    if value is _ABSENT:
        return "not there"
    if isinstance(value, float):
        return f"{value:.4f}"
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _shape_of(array: np.ndarray | None) -> str:
    return "not there" if array is None else f"of shape {array.shape}"


# Lists


def _names_of(items: Sequence[Any]) -> list[str] | None:
    """The names of the items of a list; None if some have none, or two have the same."""
    names = [_name_of(item) for item in items]
    if None in names or len(set(names)) < len(names):
        return None
    return [name for name in names if name is not None]


def _name_of(item: Any) -> str | None:
    """The name of an item: its naming fields, or the word that stands first in it."""
    if isinstance(item, list) and len(item) == 2 and isinstance(item[0], str):
        return item[0]
    if not isinstance(item, dict):
        return None
    if "key" in item and "query" in item:
        return f"{item['key']}→{item['query']}"
    shown = []
    for name in _NAMING:
        part = item.get(name)
        if isinstance(part, list):
            shown.append(", ".join(map(str, part)))
        elif part is not None:
            shown.append(str(part))
    return " ".join(shown) or None


def _listed(names: Sequence[str]) -> str:
    return _shown(" ".join(names))


def _sorted_alike(items: Sequence[Any], other: Sequence[Any]) -> bool:
    """Whether `items` are sorted by their effect or by its size, the largest first, and `other`, the same
    items in another order, are sorted so as well within the tolerance."""
    keys: list[str | int] = [name for name in _SORTED_BY if name in items[0]]
    if isinstance(items[0], list):
        keys = [1]  # the items are pairs of a name and its number
    for key in keys:
        numbers = [_number_of(item[key]) for item in items]
        others = [_number_of(item[key]) for item in other]
        by_number = _descends(numbers, ROUNDING) and _descends(others, TOLERANCE)
        by_size = _descends(np.abs(numbers), ROUNDING) and _descends(np.abs(others), TOLERANCE)
        if by_number or by_size:
            return True
    return False


def _number_of(value: Any) -> float:
    """A number, or the mean of an interval; of anything else NaN, which is never in order."""
    if isinstance(value, dict):
        value = value.get("mean")
    return value if isinstance(value, float) else np.nan


def _descends(numbers: Sequence[float] | np.ndarray, slack: float) -> bool:
    """Whether no number is larger than the one before it by more than `slack`."""
    return bool((np.diff(numbers) <= slack).all())
