"""Sweeps: every line gives what `trace` gives, bad lines do no harm, each line is measured exactly once."""

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
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import astuple
from pathlib import Path
from typing import Any

import click
import pandas as pd
import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from small_models import PROMPT, loaded

import circuits
from circuits.cli import main
from circuits.errors import CircuitsError, FileError, ModelError, PromptError
from circuits.models.model import Model
from circuits.show.page import to_page
from circuits.sweeps.batches import to_batches
from circuits.sweeps.lines import read_line, read_lines
from circuits.sweeps.results import Sweep, open_sweep
from circuits.sweeps.store import shards_in
from circuits.sweeps.sweep import SweepSettings, manifest_of, sweep
from circuits.tracing.family import bootstrap
from circuits.tracing.trust import weak_pairs

OPPOSITES = {
    "large": "small",
    "hot": "cold",
    "rich": "poor",
    "old": "young",
    "wet": "dry",
    "fast": "slow",
}
WORDS = [word for pair in OPPOSITES.items() for word in pair] + ["tall", "short", "dark"]


def questions(count: int, *, seed: int = 0) -> list[dict[str, Any]]:
    """Lines of three lengths with two queries, some with noise; all can be measured on a random model."""
    draw, lines = random.Random(seed), []
    for number in range(count):
        one, other = draw.sample(WORDS, 2)
        start = draw.choice(["", "The the ", "The opposite of "])
        line: dict[str, Any] = {"prompt": f'{start}The opposite of "{one}" is "', "key": one}
        line |= {"id": f"n{number}", "kind": start.strip()}
        answer, foil = draw.sample(WORDS, 2)
        line |= {"answer": answer, "foil": foil, "query": draw.choice([-1, -1, -1, -2])}
        if number % 7:
            line["swap"] = {one: other}
        lines.append(line)
    return lines


def alike(count: int) -> list[dict[str, Any]]:
    """Lines of two lengths that are quickly measured."""
    lines = []
    for number in range(count):
        one, other, answer, foil = random.Random(number).sample(WORDS, 4)
        prompt = f'{"The " * (number % 2)}The opposite of "{one}" is "'
        line = {
            "prompt": prompt,
            "key": one,
            "swap": {one: other},
            "answer": answer,
            "foil": foil,
        }
        lines.append(line)
    return lines


def write(path: Path, lines: list[Any]) -> Path:
    """A jsonl file; text is written as it is."""
    path.write_text(
        "".join((line if isinstance(line, str) else json.dumps(line)) + "\n" for line in lines)
    )
    return path


def plain(swept: Sweep) -> list[dict[str, Any]]:
    """All rows as plain values, to be compared exactly."""
    return json.loads(swept.rows.to_json(orient="records", double_precision=15) or "")


@pytest.fixture(scope="module")
def sparse() -> Model:
    return loaded("planted-sparse")


@pytest.fixture(scope="module")
def tiny(models: dict[str, Model]) -> Model:
    assert models["gpt2"].fingerprint
    return models["gpt2"]


# What is measured


def differences(model: Model, swept: Sweep) -> float:
    """The largest difference of any number to what `trace` gives; carriers must be the same."""
    worst, share = 0.0, swept.manifest.share
    for row in swept.table.to_dict("records"):
        circuit = swept.circuit(row["id"], model=model)
        mapping = circuit.mapping()
        assert tuple(map(str, mapping.carriers(share))) == row["carriers"], row["line"]
        assert (circuit.metric.answer_text, circuit.metric.foil_text) == (
            row["answer"],
            row["foil"],
        )
        effects = {effect.head: effect.effect for effect in mapping.heads}
        pairs = list(
            zip((effects[head] for head in sorted(effects)), row["effects"], strict=True)
        )
        pairs += [
            (getattr(circuit, name), row[name])
            for name in ("clean_value", "counterfactual_value")
        ]
        pairs += [(mapping.total, row["total"]), (mapping.restore, row["restore"])]
        pairs += [(mapping.modulation(share), row["modulation"])]
        worst = max(worst, *(abs(one - other) for one, other in pairs))
    return worst


def test_a_line_gives_what_trace_gives(model: Model, tmp_path: Path) -> None:
    swept = sweep(
        model, write(tmp_path / "in.jsonl", questions(8)), tmp_path / "out", share=0.9
    )
    assert len(swept.table) == 8 and swept.complete
    assert max(map(len, swept.table["carriers"])) > 1
    assert differences(model, swept) < 1e-4


@pytest.mark.long
def test_a_gated_model_gives_its_planted_heads_on_every_line(
    sparse: Model, tmp_path: Path
) -> None:
    lines = [
        {"prompt": PROMPT.replace("large", one), "swap": {one: other}, "key": one}
        for one, other in zip(WORDS, WORDS[3:5], strict=False)
    ]
    swept = sweep(sparse, write(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert len(swept.table) == len(lines)
    assert differences(sparse, swept) < 1e-4
    # Shut gates: exactly nothing.
    assert all((effects == 0).sum() > 100 for effects in swept.table["effects"])


@pytest.mark.long
def test_controls_are_those_of_trace_and_only_there_if_asked_for(
    tiny: Model, tmp_path: Path
) -> None:
    lines = write(tmp_path / "in.jsonl", questions(3))
    assert (
        not sweep(tiny, lines, tmp_path / "without")
        .table["random_p95"]
        .notna()
        .to_numpy()
        .any()
    )
    swept = sweep(tiny, lines, tmp_path / "with", controls=True)
    assert differences(tiny, swept) < 1e-4
    row = swept.table.iloc[1]
    controls = swept.circuit(row["id"], model=tiny).mapping().controls
    assert controls is not None
    for name in ("random_mean", "random_p95", "key_totals", "sufficiency", "identity"):
        assert row[name] == pytest.approx(getattr(controls, name), abs=1e-4), name


def test_lines_of_one_shape_are_run_together_and_a_batch_is_never_larger_than_asked(
    tiny: Model, tmp_path: Path
) -> None:
    words = [word for word in WORDS if word not in ("hot", "small", "cold")][:9]
    shared = {"answer": "small", "foil": "cold"}
    lines = [
        {"prompt": PROMPT.replace("large", word), "swap": {word: "hot"}, "key": word} | shared
        for word in words
    ]
    read = read_lines(write(tmp_path / "in.jsonl", lines))
    (shard,) = read.shards(16)
    manifest = manifest_of(tiny, read, SweepSettings())
    batches, wrong = to_batches(tiny, shard.lines(), manifest, batch=4)
    numbers = [[each.line.number for each in batch] for batch in batches]
    assert numbers == [[1, 2, 3, 4], [5, 6, 7, 8], [9]] and not wrong


# Bad lines

BAD = {
    "{": "not valid JSON",
    "[1]": "JSON object",
    '"text"': "JSON object",
    '{"prompt": NaN, "key": 1}': "not valid JSON",
    '{"prompt": "The", "key": 1, "weight": 1e999}': "not valid JSON",
    '{"prompt": "\\ud800", "key": 0}': "not valid JSON",
    '{"a": ' + "[" * 3000 + "]" * 3000 + "}": "not valid JSON",
    '{"key": 1}': "prompt is missing",
    '{"prompt": "The opposite"}': "key is missing",
    '{"prompt": 5, "key": 1}': "prompt is '5'",
    '{"prompt": "The", "key": true}': "key is 'True'",
    '{"prompt": "The", "key": 1.5}': "key is '1.5'",
    '{"prompt": "The", "key": 1, "id": [1]}': "id is",
    '{"prompt": "The", "key": 1, "swap": "The=of"}': "swap is 'The=of'",
    '{"prompt": "The", "key": 1, "swap": {"The": 1}}': "swap.The is '1'",
    '{"prompt": "The", "key": 1, "swap": {}}': "swap is empty",
    '{"prompt": "The", "key": 1, "answer": 3}': "answer is '3'",
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
    good = questions(4)
    lines = [good[0], *BAD, "", *good[1:], "x" * 2_000_000]
    file = write(tmp_path / "in.jsonl", lines)
    file.write_bytes(file.read_bytes() + b'{"prompt": "\xff", "key": 0}\n')
    swept = sweep(tiny, file, tmp_path / "out")
    # Numbers as in an editor.
    assert swept.table["line"].tolist() == [1, *range(len(BAD) + 3, len(BAD) + 6)]
    errors = dict(zip(swept.errors["line"], swept.errors["error"], strict=True))
    for number, (line, words) in enumerate(BAD.items(), 2):
        assert words in errors.pop(number), line
    too_long, not_text = errors.values()
    assert "longer than" in too_long and "UTF-8" in not_text
    assert all("\n" not in error and len(error) <= 500 for error in swept.errors["error"])
    summary = {"lines": len(BAD) + 6, "measured": 4, "errors": len(BAD) + 2}
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary


def test_what_is_null_counts_as_not_given(tiny: Model, tmp_path: Path) -> None:
    line = questions(1)[0] | {"query": -1}
    empty = dict.fromkeys(("id", "counterfactual", "metric"))
    swept = sweep(
        tiny,
        write(tmp_path / "in.jsonl", [line, line | empty | {"query": None}]),
        tmp_path / "out",
    )
    first, second = plain(swept)
    assert first["error"] is None and second["id"] == "2"
    assert {**first, "line": 2, "id": "2"} == second


def test_one_pair_with_too_small_a_gap_takes_no_other_of_its_batch_down(
    sparse: Model, tmp_path: Path
) -> None:
    lines = [
        {
            "prompt": PROMPT,
            "key": "large",
            "swap": {"large": other},
            "answer": "small",
            "foil": "cold",
        }
        for other in ("hot", "rich", "wet")
    ]
    lines[1] |= {"answer": "tree", "foil": "river"}
    swept = sweep(sparse, write(tmp_path / "in.jsonl", lines), tmp_path / "out")
    assert (
        swept.errors["line"].tolist() == [2]
        and "too little to divide by" in swept.errors["error"][0]
    )
    first, third = swept.table["carriers"]
    assert swept.table["line"].tolist() == [1, 3] and first == third
    assert all(swept.table["total"] > 0.5)


def test_metadata_and_ids_are_kept_also_of_a_bad_line(tiny: Model, tmp_path: Path) -> None:
    lines = [
        questions(1)[0] | {"source": {"book": [1, None]}},
        {"prompt": "The", "key": 7, "id": 12, "note": "→ é"},
    ]
    swept = sweep(tiny, write(tmp_path / "in.jsonl", lines), tmp_path / "out")
    first, second = map(json.loads, swept.rows["metadata"])
    assert first == {"kind": lines[0]["kind"], "source": {"book": [1, None]}} and second == {
        "note": "→ é"
    }
    assert swept.rows["id"].tolist() == ["n0", "12"]


def test_reading_a_line_never_fails_on_any_bytes() -> None:
    draw = random.Random(0)
    whole = json.dumps(questions(1)[0]).encode()
    for _ in range(2000):
        raw = bytearray(whole)
        for _ in range(draw.randint(1, 4)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
        read = read_line(1, bytes(raw))
        assert (read.question is None) == (read.error is not None)


# Going on, and what is refused


def stopping_after(count: int) -> Callable[[str, int, int], None]:
    def progress(stage: str, done: int, total: int) -> None:
        if done >= count:
            raise KeyboardInterrupt

    return progress


@pytest.mark.long
def test_a_sweep_goes_on_where_it_stopped_and_measures_no_line_twice(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", questions(40)), tmp_path / "out"
    whole = sweep(tiny, lines, tmp_path / "whole")
    written: dict[Path, int] = {}  # shards, and when each was written
    for count in (5, 20, None):
        stopped = pytest.raises(KeyboardInterrupt) if count else nullcontext()
        with stopped:
            sweep(tiny, lines, out, progress=stopping_after(count or 41))
        assert open_sweep(out).complete == (count is None)
        assert (count or 40) <= len(open_sweep(out)) <= 40
        times = {shard: shard.stat().st_mtime_ns for shard in shards_in(out)}
        assert times.items() >= written.items() and len(times) > len(written)
        written = times
    exactly_once(out)
    assert plain(open_sweep(out)) == plain(whole)
    assert plain(sweep(tiny, lines, out)) == plain(whole)
    assert {shard: shard.stat().st_mtime_ns for shard in shards_in(out)} == written


@pytest.mark.long
def test_what_a_dead_process_left_half_written_is_never_read_and_is_removed(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", questions(40)), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        sweep(tiny, lines, out, progress=stopping_after(1))
    measured = len(open_sweep(out))
    for name in (".000000001-000000016-1", ".000000033-000000040-2"):
        (out / "shards" / f"{name}.unfinished").write_bytes(b"PAR1 half")
    assert len(open_sweep(out)) == len(pd.read_parquet(out / "shards")) == measured
    assert plain(sweep(tiny, lines, out)) == plain(sweep(tiny, lines, tmp_path / "whole"))
    assert not list(out.rglob("*.unfinished"))


def test_other_settings_another_input_or_another_model_are_refused(
    models: dict[str, Model], tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", questions(2)), tmp_path / "out"
    sweep(models["gpt2"], lines, out)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    cases: tuple[tuple[str, Path, dict[str, Any], str], ...] = (
        ("gpt2", lines, {"share": 0.7}, "share 0.8, not 0.7"),
        ("gpt2", lines, {"seed": 1}, "seed 0, not 1"),
        ("gpt2", lines, {"controls": True}, "controls False"),
        ("gpt2", write(tmp_path / "other.jsonl", questions(2, seed=5)), {}, "another input"),
        ("llama", lines, {}, "another model"),
    )
    for model, file, how, words in cases:
        with pytest.raises(FileError, match=words):
            sweep(models[model], file, out, **how)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
    # The size of a batch decides no number, so it may change.
    sweep(models["gpt2"], lines, out, batch=1)


def test_a_place_that_is_not_for_a_sweep_is_refused_and_left_as_it_is(
    tiny: Model, tmp_path: Path
) -> None:
    lines = write(tmp_path / "in.jsonl", questions(1))
    file = write(tmp_path / "file", ["mine"])
    foreign, shards, damaged = (
        tmp_path / "foreign",
        tmp_path / "shards-of-others",
        tmp_path / "damaged",
    )
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
        (shards, "no manifest of a sweep"),
        (damaged, "edited or damaged"),
        (Path("/proc/sweep"), "cannot write"),
    ):
        with pytest.raises(FileError, match=words):
            sweep(tiny, lines, place)
    assert [path.name for path in foreign.iterdir()] == ["manifest.json"]
    assert (
        file.read_text() == "mine\n" and (shards / "shards" / "0.parquet").read_text() == "mine"
    )
    for wrong in (
        tmp_path / "none.jsonl",
        tmp_path,
        write(tmp_path / "empty.jsonl", ["", " "]),
    ):
        with pytest.raises(FileError):
            sweep(tiny, wrong, tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing_half_written(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", questions(12)), tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        sweep(tiny, lines, out, shard=4, progress=stopping_after(1))
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(FileError, match="cannot write"):
            sweep(tiny, lines, out)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert not list(out.rglob("*.unfinished"))
    assert plain(sweep(tiny, lines, out)) == plain(
        sweep(tiny, lines, tmp_path / "other", shard=4)
    )


def test_a_damaged_shard_is_named_and_the_same_sweep_measures_it_again(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", questions(6)), tmp_path / "out"
    whole = plain(sweep(tiny, lines, out))
    shard = sorted((out / "shards").iterdir())[0]
    shard.write_bytes(shard.read_bytes()[:-20])
    with pytest.raises(FileError, match=shard.name):
        open_sweep(out)
    assert plain(sweep(tiny, lines, out)) == whole


def test_no_flipped_bit_of_a_shard_passes(tiny: Model, tmp_path: Path) -> None:
    sweep(tiny, write(tmp_path / "in.jsonl", alike(4)), tmp_path / "out")
    shard = shards_in(tmp_path / "out")[0]
    content, draw = shard.read_bytes(), random.Random(0)
    for _ in range(100):
        damaged = bytearray(content)
        damaged[draw.randrange(len(damaged))] ^= 1 << draw.randrange(8)
        shard.write_bytes(damaged)
        with pytest.raises(FileError, match="checksum does not match"):
            open_sweep(tmp_path / "out")


def test_an_edited_manifest_is_refused(tiny: Model, tmp_path: Path) -> None:
    out = tmp_path / "out"
    sweep(tiny, write(tmp_path / "in.jsonl", alike(2)), out)
    manifest = out / "manifest.json"
    stored = json.loads(manifest.read_text())
    for name, value in stored.items():
        other = "x" if isinstance(value, str) else (value or 0) + 1
        manifest.write_text(json.dumps(stored | {name: other}))
        with pytest.raises(FileError, match=r"edited or damaged|not the manifest"):
            open_sweep(out)
    without = {name: stored[name] for name in stored if name != "checksum"}
    manifest.write_text(json.dumps(without))
    with pytest.raises(FileError, match="another version"):
        open_sweep(out)


def test_a_shard_of_another_sweep_is_refused_and_measured_again(
    tiny: Model, tmp_path: Path
) -> None:
    lines = write(tmp_path / "in.jsonl", alike(4))
    whole = sweep(tiny, lines, tmp_path / "out")
    sweep(tiny, lines, tmp_path / "other", share=0.5)
    (shard,) = shards_in(tmp_path / "out")
    shard.write_bytes((tmp_path / "other" / "shards" / shard.name).read_bytes())
    with pytest.raises(FileError, match="another sweep"):
        open_sweep(tmp_path / "out")
    assert plain(sweep(tiny, lines, tmp_path / "out")) == plain(whole)


@pytest.mark.long
def test_the_core_of_each_line_is_that_of_stability(tiny: Model, tmp_path: Path) -> None:
    lines = [*alike(3), "{"]
    swept = sweep(tiny, write(tmp_path / "in.jsonl", lines), tmp_path / "out", stability=5)
    for row, line in zip(swept.table.to_dict("records"), alike(3), strict=True):
        steady = circuits.stability(tiny, line.pop("prompt"), n=5, **line)
        assert row["core"] == tuple(map(str, steady.core))
        assert (row["overlap"], row["counterfactuals"]) == (
            steady.overlap,
            len(steady.counterfactuals),
        )
    with pytest.raises(FileError, match="stability 5, not 0"):
        sweep(tiny, tmp_path / "in.jsonl", tmp_path / "out")


def test_model_and_seed_stand_in_every_row(tiny: Model, tmp_path: Path) -> None:
    sweep(tiny, write(tmp_path / "in.jsonl", [*alike(3), "{"]), tmp_path / "out", seed=3)
    rows = pd.read_parquet(tmp_path / "out" / "shards")
    assert set(rows["model"]) == {tiny.name} and set(rows["seed"]) == {3}
    assert set(rows["fingerprint"]) == {tiny.fingerprint}
    asked = [json.loads(question) for question in rows["asked"].dropna()]
    assert [question["prompt"] for question in asked] == rows["prompt"].dropna().tolist()


def test_the_manifest_decides_what_is_complete(tiny: Model, tmp_path: Path) -> None:
    lines, out = write(tmp_path / "in.jsonl", alike(8)), tmp_path / "out"
    whole = sweep(tiny, lines, out, shard=2)
    shards_in(out)[0].unlink()
    left = open_sweep(out)
    assert (len(left), left.complete) == (6, False) and "8 in the input, not complete" in str(
        left
    )
    assert plain(sweep(tiny, lines, out, shard=2)) == plain(whole) and open_sweep(out).complete


def test_a_copied_shard_is_refused(tiny: Model, tmp_path: Path) -> None:
    sweep(tiny, write(tmp_path / "in.jsonl", alike(4)), tmp_path / "out", shard=2)
    shard = shards_in(tmp_path / "out")[0]
    copies = {
        "000000001 copy.parquet": "no shard",
        "000000009-000000010.parquet": "by its name",
        "000000001-000000009.parquet": "in two shards",
        "000000001-2.parquet": "no shard",  # of version 0.1
    }
    for name, said in copies.items():
        copy = shard.with_name(name)
        copy.write_bytes(shard.read_bytes())
        with pytest.raises(FileError, match=said):
            open_sweep(tmp_path / "out")
        copy.unlink()


# Processes that are killed, and several at once


@contextmanager
def child(act: Callable[[int], object]) -> Iterator[tuple[int, int]]:
    """A forked process that does `act(pipe)`, and the pipe's reading end; killed at the end at the latest."""
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
        with suppress(
            ChildProcessError
        ):  # its end was seen already, and its number may be another's by now
            if os.waitpid(pid, os.WNOHANG) == (0, 0):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def status_of(pid: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def sweeping(
    model: Model, lines: Path, out: Path, *, shard: int = 4
) -> Callable[[int], object]:
    """A sweep that writes a byte at its start and after every shard."""

    def act(pipe: int) -> None:
        def report(stage: str, done: int, total: int) -> None:
            os.write(pipe, b".")

        sweep(model, lines, out, shard=shard, progress=report)

    return act


def exactly_once(out: Path) -> None:
    """No line stands in two shards, and nothing half-written is left over."""
    shards = list((out / "shards").iterdir())
    numbers = [
        line
        for shard in shards
        for line in pq.read_table(shard, columns=["line"])["line"].to_pylist()
    ]
    assert len(numbers) == len(set(numbers))
    assert shards_in(out) == sorted(shards) and not list(out.rglob("*.unfinished"))


@pytest.mark.long
def test_killed_at_ten_random_moments_the_table_is_that_of_an_uninterrupted_run(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out, draw = (
        write(tmp_path / "in.jsonl", alike(120)),
        tmp_path / "out",
        random.Random(7),
    )
    with child(sweeping(tiny, lines, tmp_path / "whole", shard=3)) as (pid, pipe):
        os.read(pipe, 1)
        start = time.monotonic()
        assert status_of(pid) == 0
        whole = time.monotonic() - start
    counts = []
    for _ in range(10):
        with child(sweeping(tiny, lines, out, shard=3)) as (pid, pipe):
            for _ in range(1 + draw.randrange(3)):  # the start, then one a shard
                os.read(pipe, 1)
            time.sleep(draw.uniform(0, whole / 40))  # about as long as one shard takes
            os.kill(pid, signal.SIGKILL)
            assert status_of(pid) == -signal.SIGKILL
        counts.append(len(open_sweep(out)))
    assert counts == sorted(counts) and 0 < counts[-1] < 120
    with child(sweeping(tiny, lines, out, shard=3)) as (pid, _):
        assert status_of(pid) == 0
    exactly_once(out)
    assert plain(open_sweep(out)) == plain(open_sweep(tmp_path / "whole"))
    assert open_sweep(out).complete and len(open_sweep(out)) == 120


@pytest.mark.long
def test_two_sweeps_of_the_same_at_the_same_time_do_each_other_no_harm(
    tiny: Model, tmp_path: Path
) -> None:
    lines, out = write(tmp_path / "in.jsonl", alike(60)), tmp_path / "out"
    whole = sweep(tiny, lines, tmp_path / "whole", shard=4)
    with ExitStack() as stack:
        both = [stack.enter_context(child(sweeping(tiny, lines, out)))[0] for _ in range(2)]
        assert [status_of(pid) for pid in both] == [0, 0]
    exactly_once(out)
    assert plain(open_sweep(out)) == plain(whole) and open_sweep(out).complete


# Reading a sweep


@pytest.fixture(scope="module")
def swept(tiny: Model, tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    folder = tmp_path_factory.mktemp("swept")
    return sweep(tiny, write(folder / "in.jsonl", [*questions(20), "{"]), folder / "out")


def test_lines_can_be_kept_by_column_by_metadata_and_by_a_test(swept: Sweep) -> None:
    assert set(swept.where(query=8).table["query"]) <= {8}
    some = swept.where(kind="The the")
    assert 0 < len(some) < 20 and all(row.startswith("The the") for row in some.table["prompt"])
    strong = swept.where(lambda table: table["total"] > 0.5, kind="The the")
    assert all(strong.table["total"] > 0.5) and len(strong) == (some.table["total"] > 0.5).sum()
    assert len(swept) == 21 and len(swept.errors) == 1
    with pytest.raises(PromptError, match="kind"):
        swept.where(colour="red")


def test_the_mean_circuit_is_the_mean_of_the_lines_with_the_intervals_of_a_family(
    swept: Sweep,
) -> None:
    mean, table = swept.mean(), swept.table
    sides = (table[name].tolist() for name in ("clean_value", "counterfactual_value"))
    # Weak lines are counted and left out.
    table = table.loc[[not weak for weak in weak_pairs(*sides)]]
    assert mean.lines == len(table) == 20 - mean.weak and mean.weak
    (total,) = bootstrap(table["total"].to_numpy()[None])
    assert astuple(mean.total) == pytest.approx(astuple(total))
    for head in mean.heads:
        index = head.head.layer * 4 + head.head.index
        values = [float(effects[index]) for effects in table["effects"]]
        assert head.effect.mean == pytest.approx(sum(values) / len(table))
        assert head.effect.low <= head.effect.mean <= head.effect.high
        assert head.carries == sum(
            str(head.head) in carriers for carriers in table["carriers"]
        ) / len(table)
    effects = [head.effect.mean for head in mean.heads]
    assert effects == sorted(effects, reverse=True)
    assert str(mean.heads[0].head) in str(mean)
    with pytest.raises(PromptError, match="no measured line"):
        swept.where(line=21).mean()


def test_the_circuits_of_a_sweep_are_picked_in_one_page(
    swept: Sweep, models: dict[str, Model]
) -> None:
    found = swept.circuits(most=3, model=models["gpt2"])
    assert [circuit.prompt.text for circuit in found] == swept.table["prompt"][:3].tolist()
    data = json.loads(to_page(found).split('id="data">')[1].split("</script>")[0])
    assert [circuit["words"] for circuit in data["circuits"]] == [
        list(each.prompt.words) for each in found
    ]


def test_a_circuit_is_measured_again_only_on_the_same_weights(
    swept: Sweep, models: dict[str, Model]
) -> None:
    again = swept.circuit("n3")  # loaded again by its name, a folder
    assert again.prompt.text == swept.where(id="n3").table["prompt"][0]
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
    lines, out = write(tmp_path / "in.jsonl", [*questions(4), "{"]), tmp_path / "out"
    first = run(lines, "--model", directories["gpt2"], "-o", out, "--json")
    assert first.exit_code == 0, first.output
    report = json.loads(first.stdout)
    assert (report["lines"], report["measured"], report["errors"], report["complete"]) == (
        5,
        4,
        1,
        True,
    )
    assert report["wrong"][0]["line"] == 5
    shards = sorted((out / "shards").iterdir())
    again = run(lines, "--model", directories["gpt2"], "-o", out)
    assert (
        again.exit_code == 0
        and "4 measured, 1 with errors" in again.stdout
        and "line 5" in again.stdout
    )
    assert sorted((out / "shards").iterdir()) == shards
    other = run(lines, "--model", directories["gpt2"], "-o", out, "--share", "0.5")
    assert (
        other.exit_code == 1
        and other.stderr.count("\n") == 1
        and "share 0.8, not 0.5" in other.stderr
    )


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
    write(tmp_path / "in.jsonl", questions(1))
    done = run(*wrong)
    assert (
        done.exit_code == 1
        and done.stderr.count("\n") == 1
        and done.stderr.startswith("Error: ")
    )
    assert [path.name for path in tmp_path.iterdir()] == ["in.jsonl"]


def test_the_public_names_are_here() -> None:
    assert circuits.sweep is sweep and circuits.open_sweep is open_sweep
    assert isinstance(main.commands["sweep"], click.Command)
