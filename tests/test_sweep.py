"""Sweeps: every line gives what `trace` gives, a bad line takes no other down, and nothing that was finished is lost or done twice."""

from __future__ import annotations

import json
import os
import random
import resource
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import click
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from conftest import PROMPT

import circuits
from circuits.cli import main
from circuits.errors import CircuitsError, FileError, ModelError, PromptError
from circuits.models.load import load
from circuits.models.model import Model
from circuits.sweeps import batches, greedy
from circuits.sweeps.lines import read_line
from circuits.sweeps.sweep import Launch, sweep
from circuits.sweeps.results import Sweep, open_sweep

from circuits.tracing.family import bootstrap

WORDS = [
    "large",
    "small",
    "hot",
    "cold",
    "rich",
    "poor",
    "old",
    "young",
    "wet",
    "dry",
    "fast",
    "slow",
    "tall",
    "short",
    "dark",
]


def asked(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Questions of three lengths, at three places, some with noise; all of them can be measured on a random model."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        one, other = draw.sample(WORDS, 2)
        start = draw.choice(["", "The the ", "The opposite of "])
        line: dict[str, Any] = {
            "prompt": f'{start}The opposite of "{one}" is "',
            "key": one,
            "id": f"n{number}",
            "kind": start.strip(),
        }
        answer, foil = draw.sample(WORDS, 2)
        line |= {"answer": answer, "foil": foil, "query": draw.choice([-1, -1, -1, -2])}
        if number % 7:
            line["swap"] = {one: other}
        lines.append(line)
    return lines


def alike(count: int) -> list[dict[str, Any]]:
    """Questions of two lengths that are quickly measured."""
    lines = []
    for number in range(count):
        one, other, answer, foil = random.Random(number).sample(WORDS, 4)
        line = {
            "prompt": f'{"The " * (number % 2)}The opposite of "{one}" is "',
            "key": one,
            "swap": {one: other},
        }
        lines.append(line | {"answer": answer, "foil": foil})
    return lines


def write(path: Path, lines: list[Any]) -> Path:
    """A jsonl file; text is written as it is."""
    path.write_text("".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines))
    return path


def plain(found: Sweep) -> list[dict[str, Any]]:
    """All rows as plain values, to be compared exactly."""
    return json.loads(found.rows.to_json(orient="records", double_precision=15) or "")


@pytest.fixture(scope="module")
def sparse() -> Model:
    return load("planted-sparse")


@pytest.fixture(scope="module")
def tiny(models: dict[str, Model]) -> Model:
    assert models["gpt2"].fingerprint
    return models["gpt2"]


# What is measured


def differences(model: Model, found: Sweep) -> float:
    """The largest difference of any number to what `trace` gives; carriers must be the same."""
    worst = 0.0
    for row in found.table.to_dict("records"):
        alone = found.circuit(row["id"], model=model)
        known = alone.mapping()
        effects = {effect.head: effect.effect for effect in known.heads}
        assert tuple(map(str, known.carriers(found.manifest.share))) == row["carriers"], row["line"]
        pairs = list(zip((effects[head] for head in sorted(effects)), row["effects"], strict=True))
        pairs += [
            (alone.clean_value, row["clean_value"]),
            (alone.counterfactual_value, row["counterfactual_value"]),
        ]
        pairs += [(known.total, row["total"]), (known.restore, row["restore"])]
        pairs += [(known.modulation(found.manifest.share), row["modulation"])]
        assert (alone.metric.answer_text, alone.metric.foil_text) == (row["answer"], row["foil"])
        worst = max(worst, *(abs(one - other) for one, other in pairs))
    return worst


def test_a_line_gives_what_trace_gives(model: Model, tmp_path: Path) -> None:
    found = sweep(model, write(tmp_path / "in.jsonl", asked(8)), tmp_path / "out", share=0.9)
    assert len(found.table) == 8 and found.complete
    assert max(map(len, found.table["carriers"])) > 1
    assert differences(model, found) < 1e-4


def test_the_rows_of_the_engine_give_what_branches_give(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = write(tmp_path / "in.jsonl", asked(12))
    branched = sweep(tiny, lines, tmp_path / "one").table
    monkeypatch.setattr(greedy, "fits", lambda runs, query: 0)
    rows = sweep(tiny, lines, tmp_path / "other").table
    assert rows["carriers"].tolist() == branched["carriers"].tolist()
    assert all(
        abs(one - other).max() < 1e-4 for one, other in zip(rows["effects"], branched["effects"], strict=True)
    )


def test_a_gated_model_gives_its_planted_heads_on_every_line(sparse: Model, tmp_path: Path) -> None:
    lines = [
        {"prompt": PROMPT.replace("large", one), "swap": {one: other}, "key": one}
        for one, other in zip(WORDS, WORDS[3:5], strict=False)
    ]
    found = sweep(sparse, write(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert len(found.table) == len(lines)
    assert differences(sparse, found) < 1e-4
    assert all(
        (effects == 0).sum() > 100 for effects in found.table["effects"]
    )  # shut gates: exactly nothing


def test_controls_are_those_of_trace_and_only_there_if_asked_for(tiny: Model, tmp_path: Path) -> None:
    lines = write(tmp_path / "in.jsonl", asked(3))
    assert not sweep(tiny, lines, tmp_path / "without").table["random_p95"].notna().to_numpy().any()
    found = sweep(tiny, lines, tmp_path / "with", controls=True)
    assert differences(tiny, found) < 1e-4
    row = found.table.iloc[1]
    known = found.circuit(row["id"], model=tiny).mapping().controls
    assert known is not None
    assert row["random_p95"] == pytest.approx(known.random_p95, abs=1e-4) and row[
        "sufficiency"
    ] == pytest.approx(known.sufficiency, abs=1e-4)
    assert row["key_totals"] == pytest.approx(known.key_totals, abs=1e-4)


def test_lines_of_one_shape_are_run_together_and_the_most_is_kept_to(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    prepare = batches.prepare

    def counting(model: Model, pairs: Any, **how: Any) -> Any:
        sizes.append(len(pairs))
        return prepare(model, pairs, **how)

    monkeypatch.setattr(batches, "prepare", counting)
    lines = [
        {
            "prompt": PROMPT.replace("large", one),
            "swap": {one: "hot"},
            "key": one,
            "answer": "small",
            "foil": "cold",
        }
        for one in WORDS[:10]
    ]
    lines = [line for line in lines if line["key"] != "hot"][:9]
    sweep(tiny, write(tmp_path / "in.jsonl", lines), tmp_path / "out", batch=4)
    assert sizes == [4, 4, 1]


# Bad lines

BAD = {
    "{": "not JSON",
    "[1]": "JSON object",
    '"text"': "JSON object",
    '{"prompt": NaN, "key": 1}': "NaN",
    '{"prompt": "The", "key": 1, "weight": 1e999}': "too large",
    '{"prompt": "The", "prompt": "of", "key": 1}': "twice",
    '{"prompt": "\\ud800", "key": 0}': "half a character",
    '{"a": ' + "[" * 3000 + "]" * 3000 + "}": "nested",
    '{"key": 1}': "no prompt",
    '{"prompt": "The opposite"}': "no key",
    '{"prompt": 5, "key": 1}': "prompt is a text",
    '{"prompt": "The", "key": true}': "key is a position",
    '{"prompt": "The", "key": 1.5}': "key is a position",
    '{"prompt": "The", "key": 1, "id": [1]}': "id is a text",
    '{"prompt": "The", "key": 1, "swap": "The=of"}': "swap is an object",
    '{"prompt": "The", "key": 1, "swap": {"The": 1}}': "swap is an object",
    '{"prompt": "The", "key": 1, "answer": 3}': "answer is a text",
    '{"prompt": "The", "key": 1, "metric": "best"}': "no metric",
    '{"prompt": "The xyzzy", "key": 1}': "does not know",
    '{"prompt": "", "key": 0}': "empty",
    '{"prompt": "The opposite", "key": 9}': "outside",
    '{"prompt": "The opposite", "key": 2, "query": 1}': "after query",
    '{"prompt": "The opposite", "key": 1, "swap": {"The": "The The"}}': "same number of tokens",
    '{"prompt": "The opposite", "key": 1, "swap": {"of": "is"}}': "does not stand",
    '{"prompt": "The opposite", "key": 1, "counterfactual": "The opposite"}': "the same as the prompt",
    '{"prompt": "The opposite", "key": 1, "counterfactual": "The of", "swap": {"The": "of"}}': "not both",
    '{"prompt": "The opposite", "key": 1, "swap": {"The": "of"}, "answer": "is", "foil": "is"}': "both",
    '{"prompt": "' + "The " * 40_000 + '", "key": 1}': "tokens",
    '{"prompt": "The\\u0000of", "key": 1}': "does not know",
}


def test_a_bad_line_gets_its_error_and_the_others_go_on(tiny: Model, tmp_path: Path) -> None:
    good = asked(4)
    lines = [good[0], *BAD, "", *good[1:], "x" * 2_000_000]
    file = write(tmp_path / "in.jsonl", lines)
    file.write_bytes(file.read_bytes() + b'{"prompt": "\xff", "key": 0}\n')
    found = sweep(tiny, file, tmp_path / "out")
    assert found.table["line"].tolist() == [
        1,
        *range(len(BAD) + 3, len(BAD) + 6),
    ]  # numbers as an editor has them
    said = dict(zip(found.errors["line"], found.errors["error"], strict=True))
    for number, (line, words) in enumerate(BAD.items(), 2):
        assert words in said.pop(number), line
    assert [words in error for words, error in zip(("longer than", "UTF-8"), said.values(), strict=True)] == [
        True,
        True,
    ]
    assert all("\n" not in error and len(error) <= 500 for error in found.errors["error"])
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == {
        "lines": len(BAD) + 6,
        "measured": 4,
        "errors": len(BAD) + 2,
    }


def test_one_pair_with_too_small_a_gap_takes_no_other_of_its_batch_down(
    sparse: Model, tmp_path: Path
) -> None:
    lines = [
        {"prompt": PROMPT, "key": "large", "swap": {"large": other}, "answer": "small", "foil": "cold"}
        for other in ("hot", "rich", "wet")
    ]
    lines[1] |= {"answer": "tree", "foil": "river"}
    found = sweep(sparse, write(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert found.errors["line"].tolist() == [2] and "too little to divide by" in found.errors["error"][0]
    assert (
        found.table["line"].tolist() == [1, 3]
        and found.table["carriers"].tolist()[0] == found.table["carriers"].tolist()[1]
    )
    assert all(found.table["total"] > 0.5)


def test_metadata_and_ids_are_kept_also_of_a_bad_line(tiny: Model, tmp_path: Path) -> None:
    lines = [
        asked(1)[0] | {"source": {"book": [1, None]}},
        {"prompt": "The", "key": 7, "id": 12, "note": "→ é"},
    ]
    found = sweep(tiny, write(tmp_path / "in.jsonl", lines), tmp_path / "out")
    first, second = map(json.loads, found.rows["metadata"])
    assert first == {"kind": lines[0]["kind"], "source": {"book": [1, None]}} and second == {"note": "→ é"}
    assert found.rows["id"].tolist() == ["n0", "12"]


def test_reading_a_line_never_fails_on_any_bytes() -> None:
    draw = random.Random(0)
    whole = json.dumps(asked(1)[0]).encode()
    for _ in range(2000):
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        read = read_line(1, bytes(raw))
        assert (read.asked is None) == (read.error is not None)


# Going on, and what is refused


def stopping_after(count: int) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        if done >= count:
            raise KeyboardInterrupt

    return progress


def test_a_sweep_goes_on_where_it_stopped_and_measures_no_line_twice(
    tiny: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lines, measured = write(tmp_path / "in.jsonl", asked(40)), list[int]()
    whole = sweep(tiny, lines, tmp_path / "whole")
    measure = batches._measure

    def counting(model: Model, questions: Any, settings: Any) -> Any:
        measured.extend(question.line.number for question in questions)
        return measure(model, questions, settings)

    monkeypatch.setattr(batches, "_measure", counting)
    for count in (5, 20):
        with pytest.raises(KeyboardInterrupt):
            sweep(tiny, lines, tmp_path / "out", progress=stopping_after(count))
        assert not open_sweep(tmp_path / "out").complete
    part = open_sweep(tmp_path / "out")
    assert 20 <= len(part) < 40
    found = sweep(tiny, lines, tmp_path / "out")
    assert sorted(measured) == list(range(1, 41))
    assert plain(found) == plain(whole)
    assert plain(sweep(tiny, lines, tmp_path / "out")) == plain(whole) and len(measured) == 40


def test_other_settings_another_input_or_another_model_are_refused(
    models: dict[str, Model], tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", asked(2)), tmp_path / "out"
    sweep(models["gpt2"], lines, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    cases: tuple[tuple[str, Path, dict[str, Any], str], ...] = (
        ("gpt2", lines, {"share": 0.7}, "share 0.8, not 0.7"),
        ("gpt2", lines, {"seed": 1}, "seed 0, not 1"),
        ("gpt2", lines, {"controls": True}, "controls False"),
        ("gpt2", write(tmp_path / "other.jsonl", asked(2, seed=5)), {}, "another input"),
        ("llama", lines, {}, "another model"),
    )
    for model, file, how, words in cases:
        with pytest.raises(FileError, match=words):
            sweep(models[model], file, out, **how)
    assert {
        path: path.read_bytes() for path in out.rglob("*") if path.is_file() and path.name != ".lock"
    } == {path: known for path, known in before.items() if path.name != ".lock"}
    sweep(
        models["gpt2"], lines, out, batch=1
    )  # how many are run together decides no number, so it may change


def test_a_place_that_is_not_for_a_sweep_is_refused_and_left_as_it_is(tiny: Model, tmp_path: Path) -> None:
    lines = write(tmp_path / "in.jsonl", asked(1))
    file = write(tmp_path / "file", ["mine"])
    foreign, shards, damaged = tmp_path / "foreign", tmp_path / "shards-of-others", tmp_path / "damaged"
    for place in (foreign, shards / "shards", damaged):
        place.mkdir(parents=True)
    (foreign / "manifest.json").write_text('{"name": "an app"}')
    (shards / "shards" / "0.parquet").write_text("mine")
    sweep(tiny, lines, damaged)
    stored = json.loads((damaged / "manifest.json").read_text())
    (damaged / "manifest.json").write_text(json.dumps(stored | {"share": "much"}))
    for place, words in (
        (file, "not a folder"),
        (file / "below", "not a folder"),
        (foreign, "not the manifest of a sweep"),
        (shards, "of something else"),
        (damaged, "edited or damaged"),
        (Path("/proc/sweep"), "cannot write"),
    ):
        with pytest.raises(FileError, match=words):
            sweep(tiny, lines, place)
    assert [path.name for path in foreign.iterdir()] == ["manifest.json"]
    assert file.read_text() == "mine\n" and (shards / "shards" / "0.parquet").read_text() == "mine"
    for wrong in (tmp_path / "none.jsonl", tmp_path, write(tmp_path / "empty.jsonl", ["", " "])):
        with pytest.raises(FileError):
            sweep(tiny, wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(tiny: Model, tmp_path: Path) -> None:
    lines, out = write(tmp_path / "in.jsonl", asked(12)), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        sweep(tiny, lines, out, progress=stopping_after(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(FileError, match="cannot write"):
            sweep(tiny, lines, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(out.rglob("*.unfinished"))
    assert plain(sweep(tiny, lines, out)) == plain(sweep(tiny, lines, tmp_path / "other"))


def test_a_damaged_shard_is_named_and_can_be_measured_again(tiny: Model, tmp_path: Path) -> None:
    lines, out = write(tmp_path / "in.jsonl", asked(6)), tmp_path / "out"
    whole = plain(sweep(tiny, lines, out))
    shard = sorted((out / "shards").iterdir())[0]
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(FileError, match=shard.name):
        open_sweep(out)
    shard.unlink()
    (out / "summary.json").unlink()
    assert plain(sweep(tiny, lines, out)) == whole


# Processes that are killed, and several at once


@contextmanager
def child(act: Callable[[int], object]) -> Iterator[tuple[int, int]]:
    """A forked process doing `act(pipe)`, and the reading end of the pipe; killed at the end if it still runs."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        status = 1
        try:
            os.close(reading)
            torch.set_num_threads(1)
            act(writing)
            status = 0
        except CircuitsError as why:
            os.write(writing, str(why).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    os.close(writing)
    try:
        yield pid, reading
    finally:
        os.close(reading)
        with suppress(ChildProcessError):  # its end was seen already, and its number may be another's by now
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sweeping(
    model: Model, lines: Path, out: Path, rank: int = 0, size: int = 1, port: int = 1
) -> Callable[[int], object]:
    """A sweep as one of several processes, which writes a byte for every batch that is done."""

    def act(pipe: int) -> None:
        def note(stage: str, done: int, total: int) -> None:
            os.write(pipe, b".")

        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
        sweep(model, lines, out, batch=8, progress=note)

    return act


def exactly_once(out: Path) -> None:
    """No line stands in two shards, and no file is left over."""
    numbers = [
        line
        for shard in (out / "shards").iterdir()
        for line in pq.read_table(shard, columns=["line"])["line"].to_pylist()
    ]
    assert len(numbers) == len(set(numbers))
    assert all(
        path.suffix == ".parquet" and not path.name.startswith(".") for path in (out / "shards").iterdir()
    )


def test_killed_at_ten_random_moments_the_table_is_that_of_an_uninterrupted_run(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out, draw = write(tmp_path / "in.jsonl", alike(300)), tmp_path / "out", random.Random(7)
    with child(sweeping(tiny, lines, tmp_path / "whole")) as (pid, pipe):
        os.read(pipe, 1)
        start = time.monotonic()
        assert status_of(pid) == 0
        whole = time.monotonic() - start
    counts = []
    for _ in range(10):
        with child(sweeping(tiny, lines, out)) as (pid, pipe):
            for _ in range(1 + draw.randrange(3)):  # the start, then one a batch
                os.read(pipe, 1)
            time.sleep(draw.uniform(0, whole / 60))  # about as long as one batch takes
            os.kill(pid, signal.SIGKILL)
            assert status_of(pid) == -signal.SIGKILL
        counts.append(len(open_sweep(out)))
    assert counts == sorted(counts) and 0 < counts[-1] < 300
    with child(sweeping(tiny, lines, out)) as (pid, _):
        assert status_of(pid) == 0
    exactly_once(out)
    assert plain(open_sweep(out)) == plain(open_sweep(tmp_path / "whole"))
    assert open_sweep(out).complete and len(open_sweep(out)) == 300


@pytest.mark.parametrize(("size", "others_go_on"), [(2, True), (3, False)])
def test_of_several_processes_one_is_killed_and_a_restart_with_another_number_of_them_gives_the_same_table(
    tiny: Model, tmp_path: Path, size: int, others_go_on: bool
) -> None:
    lines, out = write(tmp_path / "in.jsonl", alike(90)), tmp_path / "out"
    whole = sweep(tiny, lines, tmp_path / "whole", batch=8)
    with ExitStack() as stack:
        killed, pipe = stack.enter_context(child(sweeping(tiny, lines, out, size - 1, size)))
        os.read(pipe, 1)  # it is at work
        others = [
            stack.enter_context(child(sweeping(tiny, lines, out, rank, size)))[0] for rank in range(size - 1)
        ]
        os.read(pipe, 1)  # it has finished a batch and is at the next
        os.kill(killed, signal.SIGKILL)
        assert status_of(killed) == -signal.SIGKILL
        for pid in others:
            if not others_go_on:
                os.kill(pid, signal.SIGKILL)
            assert status_of(pid) == (0 if others_go_on else -signal.SIGKILL)
    assert len(open_sweep(out)) > 0
    assert open_sweep(out).complete or not others_go_on  # the first takes over what the dead has left
    with ExitStack() as stack:
        again = [
            stack.enter_context(child(sweeping(tiny, lines, out, rank, 5 - size, port=2)))
            for rank in range(5 - size)
        ]
        assert [status_of(pid) for pid, _ in again] == [0] * (5 - size)
    exactly_once(out)
    assert plain(open_sweep(out)) == plain(whole) and open_sweep(out).complete


def test_a_second_sweep_into_the_same_folder_is_refused_until_the_first_is_gone(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", alike(60)), tmp_path / "out"
    refused = r"another sweep is at work"
    with child(sweeping(tiny, lines, out)) as (pid, pipe):
        os.read(pipe, 1)
        os.kill(pid, signal.SIGSTOP)
        with pytest.raises(FileError, match=refused):
            sweep(tiny, lines, out)
        with child(sweeping(tiny, lines, out, 1, 2)) as (other, said):  # another launch, another rank
            assert status_of(other) == 1 and b"another sweep" in os.read(said, 500)
        os.kill(pid, signal.SIGKILL)
        assert status_of(pid) == -signal.SIGKILL
    again = []

    def within(stage: str, done: int, total: int) -> None:
        if not again:
            with pytest.raises(FileError, match=refused) as caught:
                sweep(tiny, lines, out)
            again.append(caught)

    assert sweep(
        tiny, lines, out, progress=within
    ).complete  # the dead hold no lock, the living do, also in one process
    assert again


def test_the_place_of_a_process_is_read_from_what_its_launcher_says() -> None:
    torchrun = {"RANK": "2", "WORLD_SIZE": "3", "LOCAL_RANK": "1", "MASTER_ADDR": "a", "MASTER_PORT": "5"}
    launch = Launch.from_environment(torchrun)
    assert (launch.rank, launch.size, launch.local_rank) == (2, 3, 1)
    assert (
        launch.name
        == Launch.from_environment(torchrun | {"RANK": "0"}).name
        != Launch.from_environment(torchrun | {"MASTER_PORT": "6"}).name
    )
    mpi = Launch.from_environment({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"})
    assert (mpi.rank, mpi.size) == (1, 2)
    assert Launch.from_environment({}).size == 1
    for wrong in (
        {"RANK": "3", "WORLD_SIZE": "3"},
        {"RANK": "-1", "WORLD_SIZE": "2"},
        {"WORLD_SIZE": "many"},
    ):
        with pytest.raises(FileError):
            Launch.from_environment(wrong)


# Reading a sweep


@pytest.fixture(scope="module")
def swept(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    room = tmp_path_factory.mktemp("swept")
    return sweep(tiny, write(room / "in.jsonl", [*asked(20), "{"]), room / "out")


def test_lines_can_be_kept_by_column_by_metadata_and_by_a_test(swept: Sweep) -> None:
    assert set(swept.where(query=8).table["query"]) <= {8}
    some = swept.where(kind="The the")
    assert 0 < len(some) < 20 and all(row.startswith("The the") for row in some.table["prompt"])
    strong = swept.where(lambda table: table["total"] > 0.5, kind="The the")
    assert all(strong.table["total"] > 0.5) and len(strong) == (some.table["total"] > 0.5).sum()
    assert len(swept) == 21 and len(swept.errors) == 1
    with pytest.raises(PromptError, match="kind"):
        swept.where(colour="red")


def test_the_mean_circuit_is_the_mean_of_the_lines_with_intervals_like_a_familys(swept: Sweep) -> None:
    mean, table = swept.mean(), swept.table
    assert mean.lines == 20 and mean.total.mean == pytest.approx(table["total"].mean())
    known = bootstrap(table["total"].tolist())
    width = known.high - known.low
    assert mean.total.low == pytest.approx(known.low, abs=0.15 * width) and mean.total.high == pytest.approx(
        known.high, abs=0.15 * width
    )
    for head in mean.heads:
        at = head.head.layer * 4 + head.head.index
        values = [float(effects[at]) for effects in table["effects"]]
        assert (
            head.effect.mean == pytest.approx(sum(values) / 20)
            and head.effect.low <= head.effect.mean <= head.effect.high
        )
        assert head.carries == sum(str(head.head) in carriers for carriers in table["carriers"]) / 20
    assert [known.effect.mean for known in mean.heads] == sorted(
        (known.effect.mean for known in mean.heads), reverse=True
    )
    assert str(mean.heads[0].head) in str(mean)
    with pytest.raises(PromptError, match="no measured line"):
        swept.where(line=21).mean()


def test_a_circuit_is_measured_again_only_on_the_same_weights(swept: Sweep, models: dict[str, Model]) -> None:
    assert (
        swept.circuit("n3").prompt.text == swept.where(id="n3").table["prompt"][0]
    )  # loaded again by its name, a folder
    with pytest.raises(ModelError, match="other weights"):
        swept.circuit("n3", model=models["llama"])
    for wrong, words in (("n99", "no line has the id"), ("21", "was not measured")):
        with pytest.raises(PromptError, match=words):
            swept.circuit(wrong, model=models["gpt2"])


def test_what_is_no_sweep_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "manifest.json").write_text('{"kind": "circuits sweep", "schema": 99}')
    for place in (tmp_path / "none", tmp_path):
        with pytest.raises(FileError):
            open_sweep(place)


# The command


def run(*arguments: object) -> Any:
    return CliRunner().invoke(main, ["sweep", *map(str, arguments)])


def test_the_command_sweeps_says_how_it_went_and_goes_on(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", [*asked(4), "{"]), tmp_path / "out"
    first = run(lines, "--model", directories["gpt2"], "-o", out, "--json")
    assert first.exit_code == 0, first.output
    told = json.loads(first.stdout)
    assert (told["lines"], told["measured"], told["errors"], told["complete"]) == (5, 4, 1, True)
    assert told["wrong"][0]["line"] == 5
    shards = sorted((out / "shards").iterdir())
    again = run(lines, "--model", directories["gpt2"], "-o", out)
    assert again.exit_code == 0 and "4 measured, 1 with errors" in again.stdout and "line 5" in again.stdout
    assert sorted((out / "shards").iterdir()) == shards
    other = run(lines, "--model", directories["gpt2"], "-o", out, "--share", "0.5")
    assert other.exit_code == 1 and other.stderr.count("\n") == 1 and "share 0.8, not 0.5" in other.stderr


@pytest.mark.parametrize(
    "wrong",
    [
        ["none.jsonl", "-o", "out"],
        ["in.jsonl", "-o", "in.jsonl"],
        ["in.jsonl", "-o", "out", "--device", "moon"],
    ],
)
def test_a_wrong_call_is_one_line_and_writes_nothing(
    wrong: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "in.jsonl", asked(1))
    done = run(*wrong)
    assert done.exit_code == 1 and done.stderr.count("\n") == 1 and done.stderr.startswith("Error: ")
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_public_names_are_here() -> None:
    assert circuits.sweep is sweep and circuits.open_sweep is open_sweep
    assert isinstance(main.commands["sweep"], click.Command)
