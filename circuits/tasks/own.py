"""Own tasks from a jsonl file: one object a line, every mistake told with its line.

`{"prompt": …, "counterfactual": … or "swap": {old: new}, "answer": …, "foil": …, "roles": {name: position or token text}}`

Prompt and counterfactual (or swap) are needed; answer and foil are read off the model's predictions where they are missing.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from circuits.errors import FileError, PromptError
from circuits.files import parse_json, read_text
from circuits.models.model import Model
from circuits.prompts import swap_words, to_prompt
from circuits.tasks.families import Candidate, Marked

_FIELDS: Final = ("prompt", "counterfactual", "swap", "answer", "foil", "roles")


def read_own(model: Model, path: Path) -> list[Candidate]:
    """Every line of the file as a candidate."""
    found = list(_candidates(model, path, read_text(path).split("\n")))
    if not found:
        raise FileError(
            f"the task {path} has no items; write one JSON object a line with {', '.join(_FIELDS)}"
        )
    return found


def _candidates(model: Model, path: Path, lines: list[str]) -> Iterator[Candidate]:
    for number, line in enumerate(lines, 1):
        if line.strip():
            try:
                yield _candidate(model, _object(line))
            except PromptError as wrong:
                raise PromptError(f"{path.name}, line {number}: {wrong}") from wrong


def _object(line: str) -> dict[str, Any]:
    try:
        given = parse_json(line, "the item")
    except FileError as wrong:
        raise PromptError(str(wrong)) from wrong
    if not isinstance(given, dict):
        raise PromptError(f"an item is a JSON object with {', '.join(_FIELDS)}, not {type(given).__name__}")
    unknown = [name for name in given if name not in _FIELDS]
    if unknown:
        raise PromptError(f"no field {unknown[0]!r}; an item has {', '.join(_FIELDS)}")
    for name in ("prompt", "counterfactual", "answer", "foil"):
        if name in given and not (isinstance(given[name], str) and given[name].strip()):
            raise PromptError(f"{name!r} must be text that is not empty, not {given[name]!r}")
    if "prompt" not in given:
        raise PromptError("there is no 'prompt'")
    if ("counterfactual" in given) == ("swap" in given):
        raise PromptError("give a 'counterfactual' or a 'swap', one of the two")
    return given


def _candidate(model: Model, given: dict[str, Any]) -> Candidate:
    prompt = given["prompt"]
    other = (
        given["counterfactual"] if "counterfactual" in given else swap_words(prompt, _texts(given["swap"]))
    )
    return Candidate(
        Marked(prompt),
        Marked(other),
        answer=given.get("answer"),
        foil=given.get("foil"),
        roles=_roles(model, prompt, given.get("roles")),
    )


def _texts(swap: Any) -> dict[str, str]:
    if not isinstance(swap, dict) or not swap or not all(isinstance(new, str) for new in swap.values()):
        raise PromptError(f'\'swap\' must be an object of words such as {{"large": "hot"}}, not {swap!r}')
    return swap


def _roles(model: Model, prompt: str, roles: Any) -> tuple[tuple[str, int], ...]:
    if roles is None:
        return ()
    wrong = not isinstance(roles, dict) or any(
        isinstance(at, bool) or not isinstance(at, int | str) for at in roles.values()
    )
    if wrong:
        raise PromptError(f"'roles' must be an object of positions such as {{\"S1\": 4}}, not {roles!r}")
    read = to_prompt(model, prompt)
    return tuple(sorted(((name, read.position(at)) for name, at in roles.items()), key=lambda role: role[1]))
