"""Executors: whoever measures, the rows are the same to the last digit; whatever is killed, none is lost."""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import polars
import pyarrow.dataset
import pytest
from click.testing import CliRunner
from killing import CASES, PROCESS, below, kill_and_go_on, lives, running, wait, write_lines
from test_sweep import alike, plain, write

import circuits
from circuits import Local, ModelSource, OnRay, OnSlurm
from circuits.cli import main
from circuits.errors import ExecutorError, FileError, ModelError
from circuits.models.model import Model
from circuits.sweeps.results import open_sweep
from circuits.sweeps.sweep import sweep

FROZEN = Path(__file__).parent / "frozen"


def failing(model: Model, part: str) -> str:
    """Work that refuses one part."""
    if part == "bad":
        raise FileError(f"no {part} part; take another")
    return part.upper()


def dying(model: Model, part: str) -> None:
    """Work that is killed in the middle."""
    os.kill(os.getpid(), signal.SIGKILL)


def failing_beside_long_work(model: Model, part: Path | None) -> None:
    """Work that refuses one part at once, and takes long for another, which leaves a file."""
    if part is None:
        raise FileError("no part; take another")
    time.sleep(60)
    part.touch()


@pytest.fixture
def found_by_workers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers can import this file, as they import any work of a user."""
    path = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(__file__).parent), path]))


@pytest.fixture(scope="module")
def tiny(models: dict[str, Model]) -> Model:
    return models["gpt2"]


# Readers that know nothing of us


def test_duckdb_polars_pandas_and_pyarrow_read_the_folder(tiny: Model, tmp_path: Path) -> None:
    swept = sweep(tiny, write(tmp_path / "in.jsonl", alike(9)), tmp_path / "out", shard=4)
    shards = tmp_path / "out" / "shards"
    whole = swept.rows["total"].sum()
    found: Any = duckdb.sql(f"SELECT sum(total), count(*) FROM '{shards}/*.parquet'")
    by_duckdb = found.fetchall()
    by_polars = polars.read_parquet(shards)["total"].sum()
    by_pandas = pd.read_parquet(shards)["total"].sum()
    by_pyarrow = pyarrow.dataset.dataset(shards).count_rows()
    assert by_duckdb == [(pytest.approx(whole), 9)]
    assert (by_polars, by_pandas) == (pytest.approx(whole), pytest.approx(whole))
    assert by_pyarrow == 9


def test_a_folder_of_version_0_2_is_read_and_can_be_saved_anew(tmp_path: Path) -> None:
    old = open_sweep(FROZEN / "sweep-0.2.0")
    assert (len(old), len(old.errors), old.complete) == (4, 1, True)
    assert old.verdicts == {"not judged": 3} and set(old.rows["seed"]) == {None}
    assert old.where(kind="size").table["id"].tolist() == ["a"]
    again = open_sweep(old.save(tmp_path / "new"))
    assert plain(again.where(kind="size"))[0]["total"] == plain(old)[0]["total"]
    assert set(again.rows["model"]) == {"mini"}


def test_a_folder_of_version_0_2_is_not_gone_on_with(tiny: Model, tmp_path: Path) -> None:
    folder = tmp_path / "old"
    (folder / "shards").mkdir(parents=True)
    stored = json.loads((FROZEN / "sweep-0.2.0" / "manifest.json").read_text())
    lines = write(tmp_path / "in.jsonl", alike(2))
    sweep(tiny, lines, tmp_path / "new")
    mine = json.loads((tmp_path / "new" / "manifest.json").read_text())
    kept = {name: mine[name] for name in stored if name not in ("kind", "schema")}
    (folder / "manifest.json").write_text(
        json.dumps(kept | {"kind": stored["kind"], "schema": stored["schema"]})
    )
    with pytest.raises(FileError, match=r"version 0\.2"):
        sweep(tiny, lines, folder)


# The same rows


@pytest.fixture(scope="module")
def lines(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("lines") / "in.jsonl", [*alike(40), "{"])


@pytest.fixture(scope="module")
def alone(tiny: Model, lines: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return plain(sweep(tiny, lines, tmp_path_factory.mktemp("alone") / "out", shard=8))


@pytest.mark.long
def test_processes_give_the_same_rows_to_the_last_digit(
    tiny: Model, lines: Path, alone: Any, tmp_path: Path
) -> None:
    seen: list[int] = []
    swept = sweep(
        tiny,
        lines,
        tmp_path / "out",
        shard=8,
        executor=Local(2),
        progress=lambda stage, done, total: seen.append(done),
    )
    assert plain(swept) == alone and swept.complete
    assert seen == sorted(seen) and (seen[0], seen[-1], len(seen)) == (0, 41, 7)


@pytest.mark.long
def test_ray_gives_the_same_rows_to_the_last_digit(
    tiny: Model, lines: Path, alone: Any, tmp_path: Path
) -> None:
    home = {path.name for path in Path.home().glob(".ray/*")}
    swept = sweep(tiny, lines, tmp_path / "out", shard=8, executor=OnRay(2))
    assert plain(swept) == alone
    assert {path.name for path in Path.home().glob(".ray/*")} == home  # no token was written
    assert "RAY_AUTH_MODE" not in os.environ


@pytest.mark.long
def test_tasks_of_submitit_give_the_same_rows_to_the_last_digit(
    tiny: Model, lines: Path, alone: Any, tmp_path: Path
) -> None:
    tasks = OnSlurm(tmp_path / "tasks", cluster="local")
    swept = sweep(tiny, lines, tmp_path / "out", shard=21, executor=tasks)
    assert swept.complete and len(swept) == 41
    in_process = sweep(tiny, lines, tmp_path / "other", shard=21)
    assert plain(swept) == plain(in_process)
    assert [row["carriers"] for row in plain(swept)] == [row["carriers"] for row in alone]


@pytest.mark.long
def test_a_name_alone_is_enough_where_others_load_the_model(
    tiny: Model, lines: Path, alone: Any, tmp_path: Path
) -> None:
    source = ModelSource(tiny.name)
    assert plain(sweep(source, lines, tmp_path / "out", shard=8, executor=Local(2))) == alone


# What goes wrong


def test_a_model_of_other_weights_under_the_same_name_is_refused(tiny: Model) -> None:
    source = ModelSource.of(tiny)
    assert source.load().fingerprint == tiny.fingerprint
    with pytest.raises(ModelError, match="other weights"):
        replace(source, fingerprint="0" * 64).load()


@pytest.mark.usefixtures("found_by_workers")
@pytest.mark.long
@pytest.mark.parametrize("executor", [Local(1), Local(2), OnRay(2)], ids=["1", "2", "ray"])
def test_an_error_of_the_work_comes_through_as_it_is(tiny: Model, executor: Any) -> None:
    with pytest.raises(FileError, match="no bad part"):
        list(executor.map(tiny, failing, ["good", "bad", "fine"]))


@pytest.mark.usefixtures("found_by_workers")
@pytest.mark.long
def test_after_an_error_nobody_waits_for_the_other_parts(tiny: Model, tmp_path: Path) -> None:
    left = tmp_path / "left"
    with pytest.raises(FileError, match="no part"):
        list(Local(2).map(tiny, failing_beside_long_work, [left, None]))
    assert not left.exists()


@pytest.mark.long
def test_an_interrupt_ends_all_processes_with_one_line(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    """Ctrl-C goes to every process of a terminal; here the workers have just been started."""
    out = tmp_path / "out"
    asked = [str(write_lines(tmp_path / "in.jsonl")), "-o", str(out), "--workers", "2"]
    with running([*asked, "--model", str(directories["gpt2"])]) as command:
        wait(lambda: len(below(command, PROCESS)) == 2, command)
        started = below(command)
        os.killpg(command.pid, signal.SIGINT)
        assert command.wait(60) == 130
        assert command.stderr is not None
        assert command.stderr.read() == b"Error: interrupted\n"
        wait(lambda: not any(map(lives, started)))


@pytest.mark.usefixtures("found_by_workers")
@pytest.mark.long
def test_a_failed_task_of_submitit_is_told_after_the_others(
    tiny: Model, tmp_path: Path
) -> None:
    found = []
    with pytest.raises(ExecutorError, match="1 of 2 tasks failed"):
        for each in OnSlurm(tmp_path, cluster="local").map(tiny, failing, ["bad", "good"]):
            found.append(each)
    assert found == [(1, "GOOD")]


@pytest.mark.usefixtures("found_by_workers")
@pytest.mark.long
def test_a_part_that_kills_every_worker_ends_the_job(tiny: Model) -> None:
    with pytest.raises(ExecutorError, match="a worker died"):
        list(Local(2).map(tiny, dying, ["one", "two"]))
    with pytest.raises(ExecutorError, match="died 4 times"):
        list(OnRay(1).map(tiny, dying, ["one"]))


def test_what_cannot_work_is_refused_before_anything_starts(tmp_path: Path) -> None:
    for wrong in (lambda: Local(0), lambda: OnRay(0), lambda: OnRay(gpus=1.5)):
        with pytest.raises(ExecutorError):
            wrong()
    with pytest.raises(ExecutorError, match="no sbatch"):
        list(OnSlurm(tmp_path).map(ModelSource("mini"), failing, ["good"]))
    file = write(tmp_path / "in.jsonl", alike(1))
    for options, said in (
        (["--address", "1.2.3.4:5"], "--executor ray"),
        (["--slurm-time", "5"], "--slurm-time goes with"),
        (["--executor", "slurm", "--workers", "2"], "leave --workers out"),
        (["--executor", "ray", "--gpus", "0.5"], "--gpus reserves GPUs"),
        (["--executor", "slurm", "--slurm-gpus-per-node", "1"], "add --device auto"),
        ([], "-o DIR"),
    ):
        output = ["-o", str(tmp_path / "out")] if options else []
        done = CliRunner().invoke(main, ["sweep", str(file), *output, *options])
        assert done.exit_code in (1, 2) and said in done.stderr, done.output
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("command", ["sweep FILE -o OUT", "edges T -o OUT/e.parquet", "rank T"])
@pytest.mark.parametrize("package, executor", [("ray", "ray"), ("submitit", "slurm")])
def test_a_missing_extra_is_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, package: str, executor: str, command: str
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    file = write(tmp_path / "in.jsonl", alike(1))
    named = {"FILE": str(file), "T": "opposites", "OUT": str(tmp_path / "out")}
    words = re.sub("|".join(named), lambda found: named[found[0]], command).split()
    units = ["--units", "wires"] if words[0] == "rank" else []
    done = CliRunner().invoke(main, [*words, *units, "--executor", executor])
    assert done.exit_code == 1 and f".[{executor}]" in done.stderr
    assert done.stderr.count("\n") == 1 and not (tmp_path / "out").exists()


def test_heads_are_ranked_by_one_process(tmp_path: Path) -> None:
    done = CliRunner().invoke(main, ["rank", "opposites", "--workers", "2"])
    assert done.exit_code == 1 and "--units wires" in done.stderr


def test_a_plan_counts_shards_and_memory_and_writes_nothing(
    tiny: Model, tmp_path: Path
) -> None:
    file = write(tmp_path / "in.jsonl", alike(100))
    planned = circuits.plan_sweep(tiny, file, shard=10)
    assert (planned.shards, planned.sample, planned.wrong) == (10, 10, 0)
    whole = circuits.plan_sweep(tiny, write(tmp_path / "few.jsonl", alike(20)), shard=20)
    weights = sum(each.numel() * 4 for each in tiny.bridge.state_dict().values())
    # Half of the lines have 10 tokens: two runs of ten pairs, seven vectors a layer and position.
    assert (whole.weights, whole.batch.runs) == (weights, 2 * 10 * 7 * 4 * 3 * 10 * 32)
    one, two = planned.seconds(1), planned.seconds(2)
    assert one - planned.seconds_to_load == pytest.approx(100 * planned.seconds_a_line)
    assert two - planned.seconds_to_load == pytest.approx(50 * planned.seconds_a_line)
    assert planned.seconds(1000) == planned.seconds(10)
    idle, busy = (str(replace(planned, computing=share)).splitlines() for share in (1.0, 0.2))
    assert len(busy) == len(idle) + 1
    asked = ["sweep", str(file), "--model", tiny.name, "--plan", "--workers", "3"]
    done = CliRunner().invoke(main, asked)
    assert done.exit_code == 0 and "7 shards of 16 lines" in done.stdout
    rounds = {
        int(row[0]): int(row[1]) for row in re.findall(r"^ +(\d+) +(\d+) ", done.stdout, re.M)
    }
    assert rounds == {1: 7, 2: 4, 3: 3, 4: 2, 7: 1}
    assert {path.name for path in tmp_path.iterdir()} == {"in.jsonl", "few.jsonl"}


# Kill −9


@pytest.mark.long
@pytest.mark.parametrize("case", CASES)
def test_killed_in_the_middle_the_same_command_finishes_and_no_row_is_lost_or_twice(
    directories: dict[str, Path], tmp_path: Path, case: str
) -> None:
    """`benchmarks/kill.py` kills at five moments."""
    kill_and_go_on(case, 0.5, directories["gpt2"], tmp_path)
