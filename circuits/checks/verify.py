"""`verify`: a saved result measured again on its own model, and whether it holds.

1. The question is asked again with the settings that the record states (`again`).
2. Both records are compared value by value (`differences`): every number within 0.001, every word exactly.
   What a figure or a table shows is one of these values, or follows from them.
3. Fields that cannot be measured again are named: the settings, which are taken as they stand, and what says
   how it was measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Final, Literal, get_args

from circuits.checks.again import Measurable, is_group, own_model, question_of
from circuits.checks.differences import TOLERANCE, differences
from circuits.errors import EdgeError, FileError, PromptError, escaped
from circuits.models.placement import Device
from circuits.results import Progress, Saved, Tabular, open_result, require, silent
from circuits.tracing.records import Circuit
from circuits.tracing.trace import package_versions

Kind = Literal["circuit", "wiring", "why", "family"]
_SETTING: Final = "settings are taken as the file states them"
_NAME: Final = "names that a user gave are taken as they stand"
_WEIGHTS: Final = "the weights are compared, by their sha256"
# Why a field is not checked. Brackets stand for any item of a list.
NOT_CHECKED: Final = {
    "seed": _SETTING,
    "focus": _SETTING,
    "least": _SETTING,
    "aim": _SETTING,
    "ablation": _SETTING,
    "all_ends": _SETTING,
    "without_heads": _SETTING,
    "searched": _SETTING,
    "task": _NAME,
    "against.task": _NAME,
    "against.pairs[].roles": _NAME,
    "pairs[].roles": _NAME,
    "pairs[].held_out": _SETTING,
    "share": _SETTING,
    "mappings[].controls.share": _SETTING,
    "mapping.controls.share": _SETTING,
    "roles": _NAME,
    "source.name": _WEIGHTS,
    "model": _WEIGHTS,
    "versions": "they are those of today; others than then stand in a note",
    "engine": "both paths give the same numbers",
    "arrays_sha256": "the arrays themselves are compared",
    "stability": "other counterfactuals than the pair's are not in the file",
    "repeated": "a pair that was given twice is in the file once",
    "family.repeated": "a pair that was given twice is in the file once",
    "family.roles": _NAME,
}
_MOST_PRINTED: Final = 20


@dataclass(frozen=True, slots=True, repr=False)
class Verification(Tabular, Saved):
    """A saved result beside the same measured again.

    >>> checked = circuits.verify(found, model=model)
    >>> checked.kind, checked.holds
    ('circuit', True)
    >>> circuits.Verification.load(checked.save(folder / "checked")) == checked
    True
    """

    KIND: ClassVar = "verification"
    NAME: ClassVar = "a verification"

    kind: Kind
    model: str
    compared: int  # numbers and words
    differences: tuple[str, ...]  # one sentence each
    notes: tuple[str, ...] = ()  # packages of another version than then
    not_checked: tuple[str, ...] = ()  # the fields of the record that were not compared

    def check(self) -> None:
        require(len(self.differences) <= self.compared, "it has more differences than facts")

    def to_rows(self) -> list[dict[str, Any]]:
        """One row for each value that differs."""
        return [{"difference": sentence} for sentence in self.differences]

    @property
    def holds(self) -> bool:
        """Whether every fact is as it was."""
        return not self.differences

    def __str__(self) -> str:
        same = self.compared - len(self.differences)
        verdict = "holds" if self.holds else "does not hold"
        facts = f"{same} of {self.compared} facts are the same (numbers to {TOLERANCE:g})"
        lines = [f"{self.kind} on {self.model} {verdict}: {facts}"]
        lines += self.differences[:_MOST_PRINTED]
        left = len(self.differences) - _MOST_PRINTED
        if left > 0:
            lines.append(f"and {left} more")
        lines += _lines_on_unchecked(self.not_checked)
        lines += [f"Note: {note}" for note in self.notes]
        return "\n".join(map(escaped, lines))


def _lines_on_unchecked(fields: tuple[str, ...]) -> list[str]:
    """One line for each reason why fields were not compared."""
    by_reason: dict[str, list[str]] = {}
    for name in fields:
        by_reason.setdefault(NOT_CHECKED.get(name, _NAME), []).append(name)
    return [f"Not checked: {', '.join(names)} ({why})" for why, names in by_reason.items()]


def verify(
    saved: str | Path | Measurable,
    *,
    model: Any = None,
    device: Device = "cpu",
    progress: Progress = silent,
) -> Verification:
    """Measure a saved circuit, wiring, explanation of a head or trace of a family again. Name its `model` where
    the saved name does not load it.

    >>> circuits.verify(found, model=model).differences
    ()
    """
    record = open_saved(saved)
    own = own_model(record, model, device=device)
    try:
        again = question_of(record, own).measure(own, progress)
    except (PromptError, EdgeError) as error:
        sentence = f"it cannot be measured: {error}"
        return Verification(_kind_of(record), _name_of(record), 1, (sentence,))
    return compare(record, again)


def compare(record: Measurable, again: Measurable) -> Verification:
    """A record beside the same question measured again, value by value."""
    found = differences(record, again, unchecked=frozenset(NOT_CHECKED))
    return Verification(
        kind=_kind_of(record),
        model=_name_of(record),
        compared=found.compared,
        differences=tuple(found.sentences),
        notes=_changed_versions(record),
        not_checked=(*sorted(found.skipped), *_given_labels(record)),
    )


def open_saved(saved: object) -> Measurable:
    """What can be measured again: the record itself, or the one in a file or folder."""
    record = open_result(saved) if isinstance(saved, str | Path) else saved
    if isinstance(record, Measurable):
        return record
    name = getattr(record, "NAME", type(record).__name__)
    kinds = "a circuit, a wiring, an explanation of a head or a trace of a family"
    raise FileError(f"{kinds} can be verified, and this is {name}; measure it again")


def _kind_of(record: Measurable) -> Kind:
    kinds: tuple[Kind, ...] = get_args(Kind)
    return kinds[kinds.index(record.KIND)]


def _name_of(record: Measurable) -> str:
    return record.model if record.source is None else record.source.name


def _given_labels(record: Measurable) -> list[str]:
    """The labels of a circuit's spans that are not the word of a token, so that a user must have given them."""
    if not isinstance(record, Circuit):
        return []
    named = [span for span in record.spans if is_group(span, record)]
    return [f"spans[{span.label}].label" for span in named]


def _changed_versions(record: Measurable) -> tuple[str, ...]:
    """The packages that have another version now than when the record was made."""
    now = dict(package_versions())
    changed = []
    for name, was in getattr(record, "versions", ()):
        if now.get(name) != was:
            changed.append(f"{name} was {was}, is {now.get(name)}")
    return tuple(changed)
