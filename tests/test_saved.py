"""Every kind of result survives the disk, says what it is, and refuses what is not whole in one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import circuits
from circuits.cli import main
from circuits.errors import FileError, PromptError
from circuits.results import PICTURES, Pictured, Saved, open_result, result_classes

CASE_STUDIES = Path(__file__).parents[1] / "case_studies"
EDITED: dict[str, tuple[str, Any]] = dict.fromkeys(
    ("circuit", "why", "wiring", "ranking"), ("seed", 7)
)
EDITED |= dict.fromkeys(("stability", "family", "mean"), ("weak", 7)) | {
    "panel": ("prompts", 7)
}
EDITED |= {
    "verification": ("compared", 10**6),
    "comparison": ("query", 99),
    "task_comparison": ("task", "x"),
    "attribution": ("model", "x"),
    "lens": ("answer", "x"),
}
EDITED |= dict.fromkeys(("patch", "paths", "head_scores", "neurons"), ("seed", 7))
KINDS = tuple(EDITED)
DRAWN = [kind for kind in KINDS if kind not in ("verification", "panel")]


def test_every_kind_of_result_is_tried_here(results: dict[str, Any]) -> None:
    classes = result_classes()
    assert set(classes) == set(KINDS)
    for kind in KINDS:
        assert type(results[kind]) is classes[kind] and kind == results[kind].KIND


@pytest.mark.parametrize("kind", [*KINDS, "sweep"])
def test_a_result_survives_the_disk(kind: str, results: dict[str, Any], tmp_path: Path) -> None:
    known = results[kind]
    saved = known.save(tmp_path / "deep" / "folder")
    assert type(known).load(saved) == type(known).load(tmp_path / "deep" / "folder") == known
    assert str(type(known).load(saved)).replace(str(saved), "") == str(known).replace(
        str(getattr(known, "folder", "")), ""
    )


@pytest.mark.parametrize("kind", KINDS)
def test_saving_twice_replaces_the_file_by_the_same_bytes(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    first = results[kind].save(tmp_path).read_bytes()
    assert (
        results[kind].save(tmp_path).read_bytes() == first == results[kind].to_json().encode()
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_and_its_folder_are_opened_by_what_they_say(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    saved = results[kind].save(tmp_path)
    assert open_result(tmp_path) == open_result(saved) == results[kind]
    moved = saved.rename(tmp_path / "another name.json")
    if (arrays := saved.with_suffix(".safetensors")).exists():
        arrays.rename(moved.with_suffix(".safetensors"))
    assert open_result(moved) == results[kind]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edited_number_is_read_with_a_warning(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    file, (name, value) = results[kind].save(tmp_path), EDITED[kind]
    file.write_text(json.dumps(json.loads(file.read_text()) | {name: value}))
    with pytest.warns(UserWarning, match="edited"):
        assert getattr(open_result(file), name) == value


@pytest.mark.parametrize(
    "file", sorted(CASE_STUDIES.rglob("*.json")), ids=lambda file: file.parent.name
)
def test_results_that_version_0_2_saved_are_read(file: Path) -> None:
    result = open_result(file)
    assert file.name == result.file_name() and str(result)


def _without_a_field(stored: dict[str, Any]) -> None:
    del stored[
        next(
            name
            for name in ("counterfactuals", "model", "source", "models", "names")
            if name in stored
        )
    ]


def _with_another_field(stored: dict[str, Any]) -> None:
    stored["surprise"] = 1


def _with_another_type(stored: dict[str, Any]) -> None:
    stored[max(name for name in stored if isinstance(stored[name], list | dict))] = "none"


def _of_another_version(stored: dict[str, Any]) -> None:
    stored["schema"] = 99


@pytest.mark.filterwarnings("ignore:.*was edited")
@pytest.mark.parametrize(
    ("edit", "said"),
    [
        (_without_a_field, "missing"),
        (_with_another_field, "surprise"),
        (_with_another_type, "this version"),
        (_of_another_version, "schema 99"),
    ],
)
@pytest.mark.parametrize("kind", KINDS)
def test_a_file_that_is_not_whole_is_refused_in_one_line(
    kind: str,
    edit: Callable[[dict[str, Any]], None],
    said: str,
    results: dict[str, Any],
    tmp_path: Path,
) -> None:
    file = results[kind].save(tmp_path)
    stored = json.loads(file.read_text())
    edit(stored)
    file.write_text(json.dumps(stored))
    with pytest.raises(FileError, match=said) as refused:
        open_result(file)
    assert "\n" not in str(refused.value)


@pytest.mark.filterwarnings("ignore:.*was edited")
@pytest.mark.parametrize(
    ("kind", "edit", "said"),
    [
        ("family", lambda stored: stored["mapping"].update(query=70), "outside its prompt"),
        ("family", lambda stored: stored.update(pairs=[]), "no pairs"),
        ("family", lambda stored: stored["heads"].pop(), "intervals"),
        ("stability", lambda stored: stored.update(share=7.0), "above 1"),
        (
            "comparison",
            lambda stored: stored["carriers"][0].append(stored["carriers"][0][0]),
            "twice",
        ),
        (
            "task_comparison",
            lambda stored: stored["panels"][0]["patterns"].pop(),
            "one pattern",
        ),
        ("task_comparison", lambda stored: stored["rankings"][0][1].update(pairs=7), "7 pairs"),
        (
            "panel",
            lambda stored: stored["heads"].reverse() or stored["heads"].append("L0H0"),
            "one pattern",
        ),
        ("mean", lambda stored: stored["heads"].append(stored["heads"][0]), "twice"),
        (
            "verification",
            lambda stored: stored.update(differences=["a"], compared=0),
            "more differences",
        ),
        ("ranking", lambda stored: stored["each"].pop(), "one value for each size"),
        ("patch", lambda stored: stored["axes"][0]["labels"].pop(), "values are not numbers"),
        ("patch", lambda stored: stored["clean_values"].pop(), "metric of every pair"),
        ("paths", lambda stored: stored.update(pairs=[]), "no pairs"),
        ("attribution", lambda stored: stored.update(heads=7), "components"),
        ("attribution", lambda stored: stored["totals"].pop(), "one answer for each prompt"),
        ("lens", lambda stored: stored["top"].pop(), "words"),
        ("head_scores", lambda stored: stored["axes"].reverse(), "values are not numbers"),
        ("neurons", lambda stored: stored["neurons"][0].update(neuron=10**6), "MLP lacks"),
        ("neurons", lambda stored: stored.update(mlp="L0H0"), "no MLP"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    kind: str, edit: Callable[[Any], Any], said: str, results: dict[str, Any], tmp_path: Path
) -> None:
    file = results[kind].save(tmp_path)
    stored = json.loads(file.read_text())
    edit(stored)
    file.write_text(json.dumps(stored))
    with pytest.raises(FileError, match=said):
        open_result(file)


def test_a_result_of_another_kind_is_named(results: dict[str, Any], tmp_path: Path) -> None:
    file = results["family"].save(tmp_path)
    with pytest.raises(FileError, match=r"is not a circuit: it is a trace of a family$"):
        circuits.Circuit.load(file)
    with pytest.raises(FileError, match=r"on a task: it is a comparison of two circuits$"):
        circuits.TaskComparison.load(results["comparison"].save(tmp_path / "other"))


def test_a_file_of_something_else_is_no_result(tmp_path: Path) -> None:
    (tmp_path / "family.json").write_text('{"name": "mine"}')
    with pytest.raises(FileError, match="is not a result of circuits"):
        open_result(tmp_path)
    with pytest.raises(FileError, match=r"is not a trace of a family$"):
        circuits.FamilyTrace.load(tmp_path)
    with pytest.raises(FileError, match="must hold one of circuit"):
        open_result(tmp_path.parent)


def test_maps_of_another_comparison_are_refused(
    results: dict[str, Any], tmp_path: Path
) -> None:
    file = results["task_comparison"].save(tmp_path)
    beside = file.with_suffix(".safetensors")
    beside.write_bytes(beside.read_bytes()[:-1] + b"\1")
    with pytest.raises(FileError, match="does not belong to"):
        open_result(file)


def test_the_maps_of_a_comparison_survive_the_disk(
    results: dict[str, Any], tmp_path: Path
) -> None:
    known = results["task_comparison"]
    again = open_result(known.save(tmp_path))
    for mine, other in zip(known.maps, again.maps, strict=True):
        assert len(mine) == len(other) and all(
            (a == b).all() for a, b in zip(mine, other, strict=True)
        )


def test_some_lines_of_a_sweep_are_a_sweep(results: dict[str, Any], tmp_path: Path) -> None:
    one = results["sweep"].where(id="b")
    again = circuits.Sweep.load(one.save(tmp_path / "one"))
    assert again == one and list(again.rows["id"]) == ["b"] and not again.complete
    assert again != results["sweep"]
    none = results["sweep"].where(id="e")
    assert len(circuits.Sweep.load(none.save(tmp_path / "none"))) == len(none) == 0
    with pytest.raises(FileError, match="holds a sweep already"):
        one.save(tmp_path / "one")


# The command line


@pytest.mark.long
@pytest.mark.parametrize("kind", DRAWN)
def test_render_draws_every_result_that_has_a_picture(
    kind: str, results: dict[str, Any], tmp_path: Path
) -> None:
    results[kind].save(tmp_path)
    ran = CliRunner().invoke(main, ["render", str(tmp_path), "--format", "svg,html,dot"])
    assert ran.exit_code == 0, ran.output
    assert {file.suffix for file in tmp_path.iterdir()} >= {".svg", ".html", ".dot", ".json"}


def test_what_has_no_picture_says_so(results: dict[str, Any], tmp_path: Path) -> None:
    for kind in {*KINDS} - {*DRAWN}:
        assert not isinstance(results[kind], Pictured) and isinstance(results[kind], Saved)
        ran = CliRunner().invoke(main, ["render", str(results[kind].save(tmp_path / kind))])
        assert ran.exit_code == 1 and "there is no picture of" in ran.stderr
        with pytest.raises(PromptError, match="there is no picture of"):
            results[kind].save(tmp_path / f"it{PICTURES[0]}")


def test_what_goes_with_a_circuit_alone_is_refused_elsewhere(
    results: dict[str, Any], tmp_path: Path
) -> None:
    results["family"].save(tmp_path)
    ran = CliRunner().invoke(main, ["render", str(tmp_path), "--share", "0.5"])
    assert ran.exit_code == 1 and "go with a circuit" in ran.stderr
    ran = CliRunner().invoke(main, ["export", str(tmp_path), "--to", "eap"])
    assert ran.exit_code == 1 and "circuits, wirings and rankings" in ran.stderr
    results["mean"].save(tmp_path / "mean")
    ran = CliRunner().invoke(main, ["verify", str(tmp_path / "mean")])
    assert ran.exit_code == 1 and "and this is the mean of a sweep" in ran.stderr
