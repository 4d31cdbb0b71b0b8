"""What a user asks, whichever way it is given, as a list of questions with named positions.

A question is given as a prompt; as a list of prompts, of `(prompt, counterfactual)`, of pairs or of dicts such
as the lines of a jsonl file; as a pandas table with the columns of such lines; or as a task, by its name, its
file or itself.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from circuits.errors import CircuitsError, PromptError, as_listed, shortened
from circuits.files import parse_json, read_text
from circuits.models.model import Model
from circuits.prompts import (
    MetricKind,
    Pair,
    Prompt,
    Question,
    QuestionSpec,
    to_prompt,
    to_question,
)
from circuits.prompts.prompt import check_roles, check_text, stands_in
from circuits.results import Progress, silent
from circuits.tracing.parts import Position, RoleNames, Roles

FIELDS: Final = ("prompt", "counterfactual", "swap", "answer", "foil", "key", "query", "roles")
_FIELDS: Final = ", ".join(FIELDS)
_WAYS: Final = (
    "give a prompt, a list of prompts, of (prompt, counterfactual), of pairs or of dicts, a pandas table, "
    "a jsonl file, or a task"
)


@dataclass(frozen=True)
class Asked:
    """One question, and the names that the user gave to some of its positions."""

    question: Pair | Question
    roles: Roles = ()
    key: Position | None = None  # where its own line names them
    query: Position | None = None

    def ends(self, key: Position | None, query: Position) -> tuple[int, int]:
        """Key and query of this prompt, by role, token or index; those of its own line come first."""
        wanted = key if self.key is None else self.key
        if wanted is None:
            raise PromptError("name the key: key=…, or a key in every line")
        reader = query if self.query is None else self.query
        return self.prompt.ends(wanted, reader, dict(self.roles))

    @property
    def prompt(self) -> Prompt:
        return self.question.clean

    @property
    def metric_kind(self) -> MetricKind:
        question = self.question
        return question.kind if isinstance(question, Question) else question.metric.kind

    def position(self, name: Position) -> int:
        """The position of this role, token or index."""
        return self.prompt.position(name, dict(self.roles))

    def __len__(self) -> int:
        return len(self.prompt)


@dataclass(frozen=True)
class Family:
    """Questions that are asked together."""

    asked: tuple[Asked, ...]
    name: str = ""  # of the task, if it is one
    several: bool = True  # False where the user gave one prompt


def to_family(
    model: Model,
    given: Any,
    spec: QuestionSpec,
    *,
    roles: RoleNames | None = None,
    noise_at: Sequence[Position] | None = None,
    count: int = 16,
    seed: int = 0,
    lines: bool = False,
    progress: Progress = silent,
) -> Family:
    """Turn what the user gave into questions. `spec` and `roles` hold for all of them; what a single line
    says comes first. A prompt without any counterfactual has noise at the positions `noise_at`. With `lines`
    those of a jsonl file are asked as they stand; else the file is a task, of which the model's wrong answers
    are left out."""
    check_roles(roles)
    reader = _Reader(model, spec, roles or {}, noise_at)
    is_file = isinstance(given, str) and given.endswith(".jsonl")
    if isinstance(given, str) and not is_file and not _names_task(given):
        return Family((reader.of_text(given, spec, reader.roles),), several=False)
    if isinstance(given, Pair) or is_text_with_counterfactual(given):
        return Family((reader.of_entry(given),), several=False)
    if lines and (is_file or isinstance(given, Path)):
        return Family(tuple(reader.of_file(Path(given))), name=Path(given).stem)
    if isinstance(given, str | Path) or (
        hasattr(given, "items") and hasattr(given, "left_out")
    ):
        _refuse_beside_task(spec)
        return _of_task(model, given, count=count, seed=seed, progress=progress)
    if hasattr(given, "to_dict") and hasattr(given, "columns"):
        given = given.to_dict("records")
    if not isinstance(given, Sequence) or not given:
        _refuse_tokens(given)
        raise PromptError(f"a prompt is text, not {shortened(given)}; {_WAYS}")
    return Family(tuple(reader.of_entry(entry) for entry in given))


def _refuse_tokens(given: Any) -> None:
    """Say what to do with token ids, which are no text."""
    if isinstance(given, int) or type(given).__name__ in ("Tensor", "ndarray"):
        check_text(given)


def _refuse_beside_task(spec: QuestionSpec) -> None:
    """Refuse what would be ignored, since every pair of a task says it itself."""
    for name in ("counterfactual", "swap", "answer", "foil", "metric"):
        if getattr(spec, name) is not None:
            raise PromptError(
                f"{name}= is for prompts; the pairs of a task have their own: leave it out, or give the "
                "prompts as a list"
            )


def _names_task(text: str) -> bool:
    from circuits.tasks.names import TASKS

    return text in TASKS


def _of_task(model: Model, given: Any, *, count: int, seed: int, progress: Progress) -> Family:
    from circuits.tasks.task import Task, to_task

    task = given
    if not isinstance(task, Task):
        task = to_task(model, given, count=count, seed=seed, progress=progress)
    items = task.items[:count]
    return Family(tuple(Asked(item.pair, item.roles) for item in items), name=task.name)


def is_text_with_counterfactual(given: Any) -> bool:
    is_two = isinstance(given, tuple) and len(given) == 2
    return is_two and all(isinstance(text, str) for text in given)


@dataclass(frozen=True)
class _Reader:
    """Reads one question after the other, with what holds for all of them."""

    model: Model
    spec: QuestionSpec
    roles: RoleNames
    noise_at: Sequence[Position] | None

    def of_entry(self, entry: Any) -> Asked:
        """One entry of a list."""
        if isinstance(entry, Pair | Question):
            return Asked(entry, _positions(entry.clean, self.roles))
        if isinstance(entry, str):
            return self.of_text(entry, self._with_own_words(entry), self.roles)
        if isinstance(entry, Mapping):
            return self._of_line(entry)
        if is_text_with_counterfactual(entry):
            text, other = entry
            own = replace(self.spec, counterfactual=other, swap=None)
            return self.of_text(text, own, self.roles)
        _refuse_tokens(entry)
        raise PromptError(f"a prompt in a list is text, not {shortened(entry)}; {_WAYS}")

    def of_file(self, path: Path) -> Iterator[Asked]:
        """The lines of a jsonl file; a mistake is reported with the number of its line."""
        count = 0
        for number, line in enumerate(read_text(path).split("\n"), 1):
            if not line.strip():
                continue
            count += 1
            try:
                parsed = parse_json(line, "it")
                if not isinstance(parsed, Mapping):
                    raise PromptError(f"a line is a JSON object; its fields are {_FIELDS}")
                yield self._of_line(parsed)
            except CircuitsError as why:
                raise PromptError(f"{path.name}, line {number}: {why}") from why
        if not count:
            raise PromptError(f"{path} has no lines; write a JSON object a line: {_FIELDS}")

    def _with_own_words(self, text: str) -> QuestionSpec:
        """The question with those words of the swap that stand in this prompt."""
        if not self.spec.swap:
            return self.spec
        own = {old: new for old, new in self.spec.swap.items() if stands_in(old, text)}
        if not own:
            words = ", ".join(map(str, self.spec.swap))
            raise PromptError(f"no word of the swap stands in {text!r}; it has {words}")
        return replace(self.spec, swap=own)

    def _of_line(self, line: Mapping[str, Any]) -> Asked:
        """A dict such as a line of a jsonl file. Fields that are empty in a table are left out."""
        given = {name: value for name, value in line.items() if not _is_empty(value)}
        if "prompt" not in given:
            raise PromptError(f"a line needs a prompt; its fields are {_FIELDS}")
        text = given["prompt"]
        spec = self.spec
        if "counterfactual" not in given and "swap" not in given and isinstance(text, str):
            spec = self._with_own_words(text)
        for name in ("answer", "foil", "counterfactual", "swap"):
            if name in given:
                spec = replace(spec, **{name: given[name]})
        if "counterfactual" in given and "swap" not in given:
            spec = replace(spec, swap=None)
        check_roles(given.get("roles"))
        roles = {**self.roles, **given.get("roles", {})}
        own = self
        if "key" in given:
            own = replace(self, noise_at=(given["key"],))
        asked = own.of_text(text, spec, roles)
        return replace(asked, key=given.get("key"), query=given.get("query"))

    def of_text(self, text: str, spec: QuestionSpec, roles: RoleNames) -> Asked:
        if self.noise_at is not None and spec.counterfactual is None and not spec.swap:
            read = to_prompt(self.model, text)
            places = as_listed(self.noise_at)
            noisy = tuple(read.position(name, roles) for name in places)
            spec = replace(spec, noise_at=noisy)
        question = to_question(self.model, text, spec)
        return Asked(question, _positions(question.clean, roles))


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, float) and value != value)


def _positions(prompt: Prompt, roles: RoleNames) -> Roles:
    """Named positions, in the order in which they stand. A name can stand after an @."""
    for name in roles:
        if (
            not name.strip()
            or any(sign in name for sign in "@.→")
            or name.lstrip("-").isdigit()
        ):
            raise PromptError(f"{name!r} cannot name a position; take a word such as S2 or END")
    placed = [(name.strip(), prompt.position(position)) for name, position in roles.items()]
    return tuple(sorted(placed, key=lambda role: role[1]))


def names_of_positions(roles: Roles, length: int) -> list[str]:
    """A name for every position: its role, or the last role before it and the distance (`S2+1`), or its
    index."""
    names: list[str] = []
    base: tuple[str, int] | None = None
    role_at = {position: name for name, position in reversed(roles)}
    for position in range(length):
        if position in role_at:
            base = (role_at[position], position)
            names.append(base[0])
        elif base is None:
            names.append(str(position))
        else:
            names.append(f"{base[0]}+{position - base[1]}")
    return names
