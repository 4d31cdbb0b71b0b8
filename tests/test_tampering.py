"""Whatever is changed in a saved result, `verify` names it or says that it is not checked: nothing is silent.

Each value of each kind of result is changed by itself, and the checksum is made to fit again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_saved import KINDS as KINDS_SAVED

import circuits
from circuits import verify
from circuits.checks.again import Measurable, Question, own_model, question_of
from circuits.checks.verify import compare, open_saved
from circuits.errors import CircuitsError, FileError
from circuits.files import to_json
from circuits.models.model import Model
from circuits.results import Saved, open_result
from circuits.results import silent as no_progress

pytestmark = pytest.mark.long  # every kind of result is measured again many times

TEXT = "The large is"
SWAP = {"large": "hot"}
KINDS = (
    "trace",
    "noise",
    "sequence",
    "circuit",
    "why",
    "wiring",
    "family",
    "circuit of a family",
    "why of a family",
)
Path_ = tuple[str | int, ...]  # names of fields and numbers of items


@pytest.fixture(scope="module")
def tiny(models: dict[str, Model]) -> Model:
    return models["gpt2"]


@pytest.fixture(scope="module")
def measured(tiny: Model) -> dict[str, Any]:
    """One result of every kind that can be verified, of short prompts: each is measured hundreds of times."""
    question: dict[str, Any] = {"swap": SWAP, "answer": "small", "foil": "cold"}
    found = circuits.trace(tiny, TEXT, key="large", stability=2, **question)
    both_ways = {"large": "hot", "hot": "large"}
    lines = []
    for text in ("The large", "The is large"):
        roles = {"word": "large", "END": -1}
        line = {"prompt": text, "swap": SWAP, "roles": roles}
        lines.append(line | {"answer": "small", "foil": "cold"})
    of_family = circuits.trace(tiny, lines, key="word", query="END")
    return {
        "trace": found,
        "noise": circuits.trace(tiny, TEXT, key="large"),
        "sequence": circuits.trace(
            tiny, TEXT, key="large", swap=SWAP, answer="small cold", metric="logprob"
        ),
        "circuit": circuits.circuit(
            tiny, "The large", groups={"both": (0, 1)}, least=0.1, **question
        ),
        "why": circuits.why(found, "L1H2", model=tiny),
        "wiring": circuits.wiring(tiny, "The large", roles={"END": -1}, **question),
        "family": circuits.trace(
            tiny, [TEXT, "The hot is"], key=2, swap=both_ways, answer="small", foil="cold"
        ),
        "circuit of a family": circuits.circuit(tiny, lines, least=0.1),
        "why of a family": circuits.why(of_family, "L1H2", model=tiny),
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


class Verifier:
    """`verify`, except that equal questions are measured once: most changes leave the question as it was."""

    def __init__(self, model: Model) -> None:
        self.model = model
        self.answers: dict[Question, Measurable | CircuitsError] = {}

    def outcome(self, folder: Path, field: str) -> str:
        """What is said about a folder in which a field was changed."""
        try:
            record = open_saved(folder)
            own = own_model(record, self.model, device="cpu")
            found = compare(record, self.answer(question_of(record, own)))
        except CircuitsError as error:
            return f"refused: {error}"
        if found.differences:
            return f"named: {found.differences[0]}"
        for name in found.not_checked:
            # `spans[both].label` is one of the fields `spans[].label`.
            if field.startswith(re.sub(r"\[.*?\]", "[]", name)):
                return "not checked"
        return "silent"

    def answer(self, question: Question) -> Measurable:
        if question not in self.answers:
            try:
                self.answers[question] = question.measure(self.model, no_progress)
            except CircuitsError as error:
                self.answers[question] = error
        answer = self.answers[question]
        if isinstance(answer, CircuitsError):
            raise answer
        return answer


def places(stored: dict[str, Any], kind: type[Saved]) -> dict[str, list[Path_]]:
    """Where each field of a record stands: the first place and the last."""
    found: dict[str, list[Path_]] = {}
    for path, field in fields(stored):
        if path and path[0] not in ("sha256", *kind.header()):
            found.setdefault(field, []).append(path)
    return {field: [paths[0], paths[-1]][: len(paths)] for field, paths in found.items()}


def try_all(record: Any, model: Model, folder: Path) -> dict[str, list[str]]:
    """What came of changing each field of a record by itself, by field."""
    stored = json.loads(record.save(folder).read_text())
    verifier = Verifier(model)
    told: dict[str, list[str]] = {}
    for field, paths in places(stored, type(record)).items():
        for path in paths:
            was = value_at(stored, path)
            for value in others(was):
                if value != was:
                    seal(folder, changed(stored, path, value), type(record))
                    told.setdefault(field, []).append(verifier.outcome(folder, field))
    return told


def silent(told: dict[str, list[str]]) -> dict[str, list[str]]:
    return {field: said for field, said in told.items() if "silent" in said}


# Changes that are named


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_not_changed_holds(kind: str, tiny: Model, measured: dict[str, Any]) -> None:
    found = verify(measured[kind], model=tiny)
    assert found.holds and found.compared > 50, str(found)


@pytest.mark.parametrize("kind", KINDS)
def test_no_field_can_be_changed_in_silence(
    kind: str, tiny: Model, measured: dict[str, Any], tmp_path: Path
) -> None:
    told = try_all(measured[kind], tiny, tmp_path)
    assert len(told) > 20 and not silent(told)


def test_verify_says_of_a_changed_file_what_its_parts_say(
    tiny: Model, measured: dict[str, Any], tmp_path: Path
) -> None:
    stored = json.loads(measured["trace"].save(tmp_path).read_text())
    for field in ("notes", "seed"):
        path, _ = next(each for each in fields(stored) if each[1] == field)
        other = others(value_at(stored, path))[0]
        seal(tmp_path, changed(stored, path, other), circuits.Circuit)
        whole = verify(tmp_path, model=tiny)
        record = open_saved(tmp_path)
        assert compare(record, question_of(record, tiny).measure(tiny, no_progress)) == whole


def test_a_circuit_without_its_doubts_does_not_hold(
    tiny: Model, measured: dict[str, Any], tmp_path: Path
) -> None:
    """The forgery that earlier versions certified: no verdict, no doubts, no notes."""
    found = measured["noise"]
    stored = json.loads(found.save(tmp_path).read_text())
    stored |= {"question": None, "notes": []}
    for mapping in stored["mappings"]:
        mapping["doubts"] = []
    seal(tmp_path, stored, type(found))
    again = verify(tmp_path, model=tiny)
    assert any(line.startswith("question: was null") for line in again.differences)
    assert any(line.startswith("notes[0]: was not there") for line in again.differences)


@pytest.mark.parametrize("name", ["heads", "path", "spans"])
def test_an_order_that_means_something_is_compared(
    name: str, tiny: Model, measured: dict[str, Any], tmp_path: Path
) -> None:
    found = measured["noise"]
    stored = json.loads(found.save(tmp_path).read_text())
    owner = stored if name == "spans" else stored["mappings"][0]
    owner[name].reverse()
    seal(tmp_path, stored, type(found))
    assert any("in the order" in line for line in verify(tmp_path, model=tiny).differences)


def test_arrays_are_compared(tiny: Model, measured: dict[str, Any]) -> None:
    found = measured["trace"]
    bent = found.arrays["patterns"].copy()
    bent[1, 2, 2, 1] += 0.01
    (line,) = verify(replace(found, arrays={"patterns": bent}), model=tiny).differences
    assert line.startswith("arrays.patterns[1, 2, 2, 1]: was ")


def test_what_is_not_checked_is_named_with_its_reason(
    tiny: Model, measured: dict[str, Any]
) -> None:
    told = str(verify(measured["trace"], model=tiny))
    for name in ("seed", "versions", "engine", "stability"):
        assert re.search(rf"^Not checked: .*\b{name}\b.* \(.+\)$", told, re.MULTILINE), told
    assert "spans[both].label" in verify(measured["circuit"], model=tiny).not_checked


def test_other_kinds_are_refused_in_one_line(results: dict[str, Any]) -> None:
    for kind in ("ranking", "comparison", "mean"):
        with pytest.raises(FileError, match="can be verified, and this is"):
            verify(results[kind])


# Strings that are commands to a terminal

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")


@pytest.mark.parametrize("kind", KINDS_SAVED)
def test_no_string_of_a_file_reaches_the_terminal_as_a_command(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    record = results[kind]
    stored = json.loads(record.save(tmp_path).read_text())
    read = 0
    for paths in places(stored, type(record)).values():
        value = value_at(stored, paths[0])
        if not isinstance(value, str):
            continue
        seal(tmp_path, changed(stored, paths[0], f"{value}\x1b[31m\x9b1A"), type(record))
        try:
            known = open_result(tmp_path)
        except CircuitsError as error:
            assert not CONTROL.search(str(error))
            continue
        read += 1
        assert not CONTROL.search(str(known)), paths[0]
        for span in getattr(known, "spans", ()):
            assert not CONTROL.search(f"{span} {span.remark}")
        for name in ("prompt", "metric", "source"):
            assert not CONTROL.search(str(getattr(known, name, "")))
    assert read


def test_the_writers_of_an_explanation_are_components_or_the_biases(
    results: dict[str, Any], tmp_path: Path
) -> None:
    found = results["why"]
    stored = json.loads(found.save(tmp_path).read_text())
    assert stored["qk_attribution"]["by_key_writer"][-1][0] == "biases"
    for path in (("parts", 0, "key_writer"), ("by_query_writer", 1, 0)):
        for name in ("M0\x1b[31m", "nobody", " M0", "m0"):
            seal(tmp_path, changed(stored, ("qk_attribution", *path), name), type(found))
            with pytest.raises(FileError, match=r"component|writer"):
                open_result(tmp_path)
