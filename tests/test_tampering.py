"""Whatever is changed in a saved result, `verify` names it or says that it is not checked: nothing is silent.

Each value of each kind of result is changed by itself, and the checksum is made to fit again.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
from small_models import PROMPT

import circuits
from circuits import verify
from circuits.errors import CircuitsError
from circuits.files import to_json
from circuits.models.model import Model
from circuits.results import Saved

SWAP = {"large": "hot"}
NAMED: dict[str, Any] = {"answer": "small", "foil": "cold"}
KINDS = ("trace", "noise", "sequence", "circuit", "why", "wiring", "family")
Path_ = tuple[str | int, ...]  # names of fields and numbers of items


@pytest.fixture(scope="module")
def tiny(models: dict[str, Model]) -> Model:
    return models["gpt2"]


@pytest.fixture(scope="module")
def measured(tiny: Model) -> dict[str, Any]:
    """One result of every kind that can be verified."""
    found = circuits.trace(tiny, PROMPT, key="large", swap=SWAP, stability=2, **NAMED)
    other = PROMPT.replace("large", "hot")
    both_ways = {"large": "hot", "hot": "large"}
    return {
        "trace": found,
        "noise": circuits.trace(tiny, PROMPT, key="large"),
        "sequence": circuits.trace(
            tiny, PROMPT, key="large", swap=SWAP, answer="small cold", metric="logprob"
        ),
        "circuit": circuits.circuit(
            tiny, PROMPT, swap=SWAP, groups={"brackets": (3, 5)}, **NAMED
        ),
        "why": circuits.why(found, "L1H2", model=tiny),
        "wiring": circuits.wiring(
            tiny, "The large", swap=SWAP, most=2, roles={"END": -1}, **NAMED
        ),
        "family": circuits.trace(tiny, [PROMPT, other], key=5, swap=both_ways, **NAMED),
    }


# Changing a file


def fields(value: Any, path: Path_ = (), field: str = "") -> Iterator[tuple[Path_, str]]:
    """Every value in a record, with its field: `mappings[].heads[].effect`; lists and records as a whole, too."""
    yield path, field
    if isinstance(value, dict):
        for name, part in value.items():
            dot = "." if field else ""
            yield from fields(part, (*path, name), f"{field}{dot}{name}")
    if isinstance(value, list):
        for number, part in enumerate(value):
            yield from fields(part, (*path, number), f"{field}[]")


def others(value: Any) -> list[Any]:
    """Other values that may stand in the place of one."""
    match value:
        case bool():
            return [not value]
        case int():
            return [value + 1, value - 1 if value else 2]
        case float():
            return [value + 0.01 * max(1.0, abs(value)), -value - 0.01]
        case str():
            return [f"{value} and more", "L0H1", "L0H0", "M0", "L1H1", "query", "weak", "kl"]
        case None:
            return [1, 0.5, "word"]
        case list() if not value:
            return [["word"], [1], [0.5], [["word", 1]]]
        case list():
            return [value[:-1]]
        case _:
            return [None]


def changed(stored: dict[str, Any], path: Path_, value: Any) -> dict[str, Any]:
    """The record with another value in one place."""
    copy = deepcopy(stored)
    *before, last = path
    part: Any = copy
    for name in before:
        part = part[name]
    part[last] = value
    return copy


def value_at(stored: Any, path: Path_) -> Any:
    for name in path:
        stored = stored[name]
    return stored


def seal(folder: Path, stored: dict[str, Any], kind: type[Saved]) -> None:
    """Write a record with the checksum that fits."""
    body = {name: value for name, value in stored.items() if name != "sha256"}
    text = to_json(body, sort_keys=True)
    checksum = hashlib.sha256(text.encode()).hexdigest()
    (folder / kind.file_name()).write_text(
        to_json({**body, "sha256": checksum}, sort_keys=True)
    )


def outcome(folder: Path, model: Model, field: str) -> str:
    """What `verify` says about a folder in which a field was changed."""
    try:
        found = verify(folder, model=model)
    except CircuitsError as error:
        return f"refused: {error}"
    if found.differences:
        return f"named: {found.differences[0]}"
    unchecked = [name for name in found.not_checked if field.startswith(name)]
    return "not checked" if unchecked else "silent"


def places(stored: dict[str, Any], kind: type[Saved]) -> dict[str, list[Path_]]:
    """Where each field of a record stands: the first place and the last."""
    found: dict[str, list[Path_]] = {}
    for path, field in fields(stored):
        if path and path[0] not in ("sha256", *kind.header()):
            found.setdefault(field, []).append(path)
    return {field: [paths[0], paths[-1]][: len(paths)] for field, paths in found.items()}


def try_all(record: Any, model: Model, folder: Path, *, every: int = 1) -> dict[str, list[str]]:
    """What came of changing each field of a record by itself, by field."""
    stored = json.loads(record.save(folder).read_text())
    told: dict[str, list[str]] = {}
    for field, paths in list(places(stored, type(record)).items())[::every]:
        for path in paths:
            was = value_at(stored, path)
            for value in others(was):
                if value == was:
                    continue
                seal(folder, changed(stored, path, value), type(record))
                told.setdefault(field, []).append(outcome(folder, model, field))
    return told


# The claims


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_changed_holds(kind: str, tiny: Model, measured: dict[str, Any]) -> None:
    found = verify(measured[kind], model=tiny)
    assert found.holds and found.compared > 50, str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_can_be_changed_in_silence(
    kind: str, tiny: Model, measured: dict[str, Any], tmp_path: Path
) -> None:
    told = try_all(measured[kind], tiny, tmp_path)
    silent = {field: said for field, said in told.items() if "silent" in said}
    assert not silent
    assert len(told) > 30
