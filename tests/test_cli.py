"""The command line: light to start, a plain sentence per command, a line per mistake, files all or none."""

from __future__ import annotations

import json
import os
import pty
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
import warnings
import webbrowser
import xml.etree.ElementTree as ElementTree
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest
import render_samples as samples
from click.testing import CliRunner, Result

from circuits import cli
from circuits.cli import options, output
from circuits.cli.pace import Pace
from circuits.errors import FileError, in_one_line
from circuits.files import write_folder
from circuits.prompts import METRICS
from circuits.show.export import EXPORTS, export
from circuits.tasks import TASKS
from circuits.tasks.compare import Comparison
from circuits.tasks.families import FAMILIES
from circuits.tracing.records import Circuit
from circuits.zoo import planted

PROMPT = 'The opposite of "large" is "'
ASKED = [
    "--key",
    "large",
    "--query",
    "-1",
    "--swap",
    "large=hot",
    "--answer",
    "small",
    "--foil",
    "cold",
]
FILES = [
    "circuit.dot",
    "circuit.json",
    "circuit.pdf",
    "circuit.png",
    "circuit.safetensors",
    "circuit.svg",
    "figure.pdf",
    "figure.png",
    "figure.svg",
    "page.html",
]
PLANTED = ["L11H7", "L10H1", "L9H7", "L9H1", "L8H6"]


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, list(map(str, arguments)), input=stdin)


def done(*arguments: object, stdin: str | bytes | None = None) -> str:
    result = run(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.output
    return result.stdout


def is_one_line(stderr: str) -> bool:
    """Whether a command said one line on what was wrong."""
    return stderr.startswith("Error: ") and stderr.count("\n") == 1


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """What `trace` printed, and the folder it filled."""
    folder = tmp_path_factory.mktemp("out") / "new" / "folder"
    return done("trace", PROMPT, *ASKED, "--model", "planted-sparse", "-o", folder), folder


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A small circuit on disk."""
    return samples.planted().save(tmp_path / "saved")


# Light


HEAVY = {
    "torch",
    "transformers",
    "transformer_lens",
    "matplotlib",
    "numpy",
    "pandas",
    "networkx",
    "rich",
}


def modules_after(*arguments: object) -> list[str]:
    """What a process that runs one command has imported in the end."""
    code = (
        "import sys; from circuits.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit: print('\\n'.join(('', *sys.modules)), end='')"
    )
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )


@pytest.mark.parametrize(
    "call",
    [
        ["--help"],
        ["--version"],
        ["trace"],
        ["sing"],
        *([name, "--help"] for name in cli.main.commands),
    ],
    ids=" ".join,
)
def test_help_and_wrong_calls_import_nothing_heavy(call: list[str]) -> None:
    assert not HEAVY & {*modules_after(*call)}


def test_the_names_that_are_known_without_torch_are_those_of_the_library() -> None:
    (metric,) = [
        option for option in cli.main.commands["trace"].params if option.name == "metric"
    ]
    assert isinstance(metric.type, click.Choice) and tuple(metric.type.choices) == METRICS
    assert tuple(FAMILIES) == TASKS


@pytest.mark.parametrize("command", cli.main.commands.values(), ids=list(cli.main.commands))
def test_every_command_is_told_in_one_plain_sentence(command: click.Command) -> None:
    sentence = command.help or ""
    assert re.fullmatch(r"[A-Z][^.\n]*\.", sentence)
    assert sentence in " ".join(done(command.name, "--help").split())
    assert sentence in " ".join(done("--help").split())  # not cut short


def test_the_commands_are_these() -> None:
    expected = "models tokens trace circuit compare render export explore heads rank"
    expected += " edges why wiring patch path readings verify sparsify sparsity sweep mcp"
    assert list(cli.main.commands) == expected.split()


# What is printed


def test_models_lists_what_is_known_and_what_is_here() -> None:
    rows = {line.split()[0]: line.split()[1:] for line in done("models").split("\n") if line}
    assert (
        rows["planted-sparse"][1:4] == ["12×12", "gated", "MIT"]
        and rows["planted-sparse"][-1] == "yes"
    )
    assert rows["gpt2"][:4] == ["124M", "12×12", "dense", "MIT"]
    listed = {entry["name"]: entry for entry in json.loads(done("models", "--json"))}
    assert (
        listed["planted-sparse"]["gated"] is True and listed["planted-sparse"]["here"] is True
    )


def test_tokens_prints_positions() -> None:
    lines = done("tokens", "planted-sparse", PROMPT).split("\n")
    assert "5 = large" in lines and '8 = "' in lines


def test_a_prompt_can_come_from_standard_input(directories: dict[str, Path]) -> None:
    printed = json.loads(
        done("tokens", directories["gpt2"], "-", "--json", stdin=PROMPT + "\n")
    )
    assert (printed[5]["position"], printed[5]["token"]) == (5, "large") and isinstance(
        printed[5]["id"], int
    )
    assert printed[8]["token"] == '"' and len(printed) == 9


def test_trace_finds_the_planted_heads(traced: tuple[str, Path]) -> None:
    text, _ = traced
    assert (
        'large(5) → "(8): total 1.00' in text
        and f"Modulated at 80% by {', '.join(PLANTED)}\n" in text
    )
    assert "large(5) → hot" in text and "random heads" in text


@pytest.mark.long
def test_json_is_the_record_and_nothing_else(traced: tuple[str, Path], tmp_path: Path) -> None:
    result = run("trace", PROMPT, *ASKED, "--model", "planted-sparse", "--json", "-o", tmp_path)
    assert result.stdout == (traced[1] / "circuit.json").read_text()
    record = json.loads(result.stdout)
    assert [step["head"] for step in record["mappings"][0]["path"][:5]] == PLANTED
    effects = [head["effect"] for head in record["mappings"][0]["heads"]]
    assert effects == sorted(effects, reverse=True)
    assert len(result.stderr.strip().split("\n")) == len(FILES)


def test_the_share_changes_the_carriers(directories: dict[str, Path]) -> None:
    other = 'The opposite of "hot" is "'
    asked = [
        "trace",
        PROMPT,
        "--key",
        "large",
        "--counterfactual",
        other,
        "--model",
        directories["gpt2"],
    ]
    for share in (0.2, 0.9):
        record = json.loads(done(*asked, "--share", share, "--json"))
        assert record["mappings"][0]["controls"]["share"] == share


@pytest.mark.long
def test_circuit_takes_groups_and_prints_spans() -> None:
    own = [
        f"--own={label}={text}"
        for label, text in planted.COUNTERFACTUALS.items()
        if label != "large"
    ]
    asked = [
        "--swap",
        "large=hot",
        "--model",
        "planted-sparse",
        "--group",
        "brackets=4,6",
        *own,
    ]
    text = done("circuit", PROMPT, *asked)
    assert "Modulated at 80% by" in text
    spans = {
        line.split("(")[0]: line
        for line in text.split("Spans")[1].split("\n")
        if "layer" in line
    }
    assert spans["brackets"].startswith("brackets(4, 6)")
    assert "0-3" in spans["large"] and "0-1 " in spans["opposite"]


@pytest.mark.long
def test_compare_sets_models_side_by_side_and_writes_a_folder_for_each(tmp_path: Path) -> None:
    asked = ["compare", PROMPT, *ASKED, "--models", "planted-sparse,mini-sparse"]
    text = done(*asked, "-o", tmp_path)
    rows = {
        line.split()[0]: line.split()
        for line in text.split("\n")
        if line.startswith(("planted", "mini"))
    }
    assert rows["planted-sparse"][2:5] == ["1.00", "5", "80%"] and rows["mini-sparse"][2:4] == [
        "1.00",
        "5",
    ]
    each = [f"{model}/{name}" for model in ("mini-sparse", "planted-sparse") for name in FILES]
    both = ["comparison.json", "figure.pdf", "figure.png", "figure.svg", "page.html"]
    assert names_in(tmp_path) == sorted([*both, *each])
    assert Circuit.load(tmp_path / "mini-sparse").source.name == "mini-sparse"
    assert Comparison.load(tmp_path).names == ("planted-sparse", "mini-sparse")


@pytest.mark.long
def test_compare_speaks_json(directories: dict[str, Path]) -> None:
    asked = ["--key", "large", "--swap", "large=hot", "--metric", "kl", "--json"]
    names = [str(directories[name]) for name in ("gpt2", "gpt2", "neox")]
    first, again, other = json.loads(
        done("compare", PROMPT, *asked, "--models", ",".join(names))
    )
    assert (
        first == again
        and first["overlap"] == first["carriers"]
        and first["heads"] == len(first["carriers"])
    )
    assert (first["key"], first["query"]) == (5, 8)
    assert (other["key"], other["query"], other["overlap"]) == (4, 7, None)  # it reads no BOS


# What is written


def test_trace_writes_every_file_and_says_where(traced: tuple[str, Path]) -> None:
    text, folder = traced
    assert names_in(folder) == FILES
    assert [line for line in text.split("\n") if line.startswith("wrote ")] == [
        f"wrote {folder / name}" for name in FILES
    ]
    assert Circuit.load(folder).carriers() == Circuit.load(folder / "circuit.json").carriers()
    ElementTree.parse(folder / "figure.svg")


def test_a_saved_circuit_is_drawn_again_to_the_same_bytes(
    traced: tuple[str, Path], tmp_path: Path
) -> None:
    done("render", traced[1], "-o", tmp_path, "--format", "svg,dot,html,svg")
    drawn = ["circuit.dot", "circuit.svg", "figure.svg", "page.html"]
    assert names_in(tmp_path) == sorted([*drawn, "graphviz.svg"])  # what was asked for by name
    for name in drawn:
        assert (tmp_path / name).read_bytes() == (traced[1] / name).read_bytes()


def test_render_draws_beside_the_circuit_unless_told_otherwise(saved: Path) -> None:
    printed = json.loads(done("render", saved, "--format", "dot", "--json"))
    assert printed == {"files": [str(saved.parent / "circuit.dot")]}
    assert names_in(saved.parent) == ["circuit.dot", "circuit.json", "circuit.safetensors"]


@pytest.mark.parametrize("to", EXPORTS)
def test_export_writes_each_format_to_stdout_and_to_a_file(
    to: str, saved: Path, tmp_path: Path
) -> None:
    wanted = export(Circuit.load(saved), to)
    assert done("export", saved, "--to", to) == wanted
    ElementTree.fromstring(wanted.encode()) if to == "graphml" else json.loads(wanted)
    file = tmp_path / "deep" / "file.txt"
    assert done("export", saved, "--to", to, "-o", file) == f"wrote {file}\n"
    assert file.read_text(encoding="utf-8") == wanted
    done("export", saved.parent, "--to", to, "-o", tmp_path / "deep")
    assert (tmp_path / "deep" / f"circuit{EXPORTS[to][0]}").read_text(
        encoding="utf-8"
    ) == wanted


@pytest.mark.long
def test_open_opens_the_page(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, Path], tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    asked = ["trace", PROMPT, "--key", "5", "--metric", "kl", "--swap", "large=hot"]
    done(*asked, "--model", directories["gpt2"], "-o", tmp_path, "--open")
    assert opened == [(tmp_path / "page.html").as_uri()]


def test_a_folder_is_filled_whole_or_not_at_all(tmp_path: Path) -> None:
    def fails(room: Path) -> None:
        (room / "first").write_text("done")
        raise OSError(28, "No space left on device")

    with pytest.raises(FileError, match="No space left"):
        write_folder(tmp_path / "a" / "b", fails)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "first").write_text("kept")
    with pytest.raises(FileError):
        write_folder(tmp_path, fails)
    assert names_in(tmp_path) == ["first"] and (tmp_path / "first").read_text() == "kept"


# Mistakes


def mistakes(model: Path, room: Path) -> dict[str, list[Any]]:
    trace = ["trace", "--model", model, "-o", room / "out"]
    swapped = [*trace, "--swap", "large=hot", "--key"]
    return {
        "unknown model": ["tokens", "no such model!", PROMPT],
        "a folder that is no model": ["tokens", room, PROMPT],
        "empty prompt": [*swapped, "large", ""],
        "unknown word": [*swapped, "1", "The opposite of flibbertigibbet"],
        "prompt longer than the context": [*swapped, "1", "large " * 40],
        "no such token": [*swapped, "larg", PROMPT],
        "a token at several positions": [*swapped, '"', PROMPT],
        "position outside": [*swapped, "9", PROMPT],
        "key after query": [*swapped, "8", "--query", "5", PROMPT],
        "counterfactual of another length": [
            *trace,
            "--key",
            "5",
            "--counterfactual",
            "The opposite of",
            PROMPT,
        ],
        "counterfactual and swap": [*swapped, "large", "--counterfactual", "x", PROMPT],
        "swap of a word that is not there": [
            *trace,
            "--key",
            "5",
            "--swap",
            "small=hot",
            PROMPT,
        ],
        "swap by the same word": [*trace, "--key", "5", "--swap", "large=large", PROMPT],
        "swap without =": [*trace, "--key", "large", "--swap", "large", PROMPT],
        "swap without the new word": [*trace, "--key", "large", "--swap", "large=", PROMPT],
        "swap twice": [
            *trace,
            "--key",
            "large",
            "--swap",
            "large=hot",
            "--swap",
            "large=cold",
            PROMPT,
        ],
        "unknown answer": [*swapped, "large", "--answer", "flibbertigibbet", PROMPT],
        "group of an unknown token": [
            "circuit",
            "--model",
            model,
            "--swap",
            "large=hot",
            "--metric",
            "kl",
            "--group",
            "x=larg",
            PROMPT,
        ],
        "circuit without a counterfactual": ["circuit", "--model", model, PROMPT],
        "one model to compare": ["compare", "--models", model, "--key", "5", PROMPT],
        "a file in the way": ["trace", "--key", "5", PROMPT, "-o", room / "file"],
        "a file on the way": ["trace", "--key", "5", PROMPT, "-o", room / "file" / "below"],
        "no circuit there": ["render", room / "nothing"],
        "a circuit that is no JSON": ["render", room / "file"],
        "unknown picture": ["render", room / "nothing", "--format", "svg,gif"],
        "no picture": ["render", room / "nothing", "--format", ","],
        "unknown export": ["export", room / "saved", "--to", "gexf"],
        "control characters": [*swapped, "\x1b[31mlarge\n\x07", PROMPT],
    }


@pytest.mark.parametrize("mistake", mistakes(Path(), Path()))
def test_a_mistake_is_told_in_one_line_and_leaves_nothing_behind(
    mistake: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("in the way")
    samples.empty().save(tmp_path / "saved")
    before = names_in(tmp_path)
    result = run(*mistakes(directories["gpt2"], tmp_path)[mistake])
    assert result.exit_code == 1 and result.stdout == ""
    assert is_one_line(result.stderr) and result.stderr.rstrip("\n").isprintable()
    assert names_in(tmp_path) == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace"],
        ["trace", PROMPT],
        ["trace", PROMPT, "--key", "5", "--share", "0"],
        ["trace", PROMPT, "--key", "5", "--seed", "x"],
        ["trace", PROMPT, "--key", "5", "--metric", "loss"],
        ["trace", PROMPT, "--key", "5", "-o", ""],
        ["sweep", "prompts.jsonl", "-o", ""],
        ["sparsify", "mini", "-o", " "],
        ["render", ""],
        ["export", "circuit.json", "--to", "eap", "-o", ""],
        ["--sing"],
        ["trace", PROMPT, "--key", "5", "--no-such-option"],
        ["trace", "not \udcff UTF-8", "--key", "5"],
        ["compare", PROMPT, "--key", "5"],
        ["export", "circuit.json"],
        ["sing"],
    ],
    ids=lambda arguments: " ".join(arguments).encode("ascii", "replace").decode(),
)
def test_a_wrong_call_is_told_in_one_line(arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert is_one_line(result.stderr) and "--help" in result.stderr


def test_standard_input_that_is_not_text_is_refused() -> None:
    result = run("tokens", "planted-sparse", "-", stdin=b"\xff\xfe")
    assert result.exit_code == 1 and "not valid UTF-8" in result.stderr


def test_messages_are_folded_and_made_visible() -> None:
    assert in_one_line("two\nlines\x1b[0m and\r\nmore") == "two lines\\x1b[0m and more"


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["trace", "", "--key", "0", "--model", "nowhere"], "the prompt is empty"),
        (["tokens", "nowhere", " "], "the prompt is empty"),
        (
            ["trace", PROMPT, "--key", "5", "--model", "nowhere", "--metric", "loss"],
            "'loss' is not one of",
        ),
        (
            ["rank", "oposites", "--model", "nowhere"],
            "no task 'oposites'; there are opposites, ",
        ),
        (["rank", "none.jsonl", "--model", "nowhere"], "cannot read none.jsonl"),
        (
            ["compare", "--task", "induction,oposites", "--models", "nowhere,here"],
            "no task 'oposites'",
        ),
        (["compare", "--task", "", "--models", "nowhere,here"], "at least one task"),
        (["sweep", "none.jsonl", "-o", "out", "--model", "nowhere"], "cannot read none.jsonl"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_needs_no_model_to_be_refused_is_refused_before_one_is_loaded(
    call: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*call)
    assert (
        result.exit_code in (1, 2) and result.stderr.count("\n") == 1 and said in result.stderr
    )


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["tokens", "--model", "", PROMPT], "name must not be empty"),
        (["heads", PROMPT, "--swap", "large=hot", "-n", "4"], "-n goes with --task"),
        (["heads", "--task", "opposites", "--foil", "hot"], "--foil goes with a prompt"),
        (["circuit", PROMPT, "--swap", "large=hot", "--key", "5"], "--key is where noise"),
        (["why", "circuit.json", "--head", "L5H1", "--model", "mini"], "--model goes with a p"),
        (["why", PROMPT, "--head", "M3@8", "--key", "5"], "--key goes with a head"),
        (["why", PROMPT, "--head", "M3", "--strict"], "--strict goes with a head"),
        (["wiring", PROMPT, "--count", "3"], "--count goes with a task"),
        (["wiring", "opposites", "--swap", "large=hot"], "--swap goes with a prompt"),
        (["patch", PROMPT, "--swap", "large=hot", "--noise-at", "large"], "one of the two"),
        (["readings", "--of", "heads", "--answer", "hot"], "attribution or lens"),
        (["rank", "opposites", "--gpus", "1"], "go with --executor ray"),
        (["sweep", "-o", "out", "in.jsonl", "--slurm-cluster", "local"], "--executor slurm"),
        (["edges", "opposites", "-o", "."], "it is a folder; name a file"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_would_be_ignored_is_refused(
    call: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*call)
    assert result.exit_code in (1, 2) and result.stdout == ""
    assert is_one_line(result.stderr) and said in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (["trace", PROMPT, "--key", "larg", "--swap", "large=hot"], "no token 'larg'"),
        (["trace", PROMPT, "--key", "8", "--query", "5"], "stands after query"),
        (["trace", PROMPT, "--key", "5", "--query", "99"], "outside the prompt"),
        (["trace", PROMPT, "--key", "5", "--swap", "smal=hot"], "'smal'"),
        (["trace", PROMPT, "--key", "5", "--counterfactual", "The opposite"], "9 and 3"),
        (["trace", "flibbertigibbet", "--key", "0"], "does not know 'flibbertigibbet'"),
        (["circuit", PROMPT], "no counterfactual"),
        (["circuit", PROMPT, "--swap", "large=hot", "--group", "x=larg"], "no token 'larg'"),
        (
            ["trace", PROMPT, "--key", "5", "--dtype", "int8"],
            "dtype 'int8'; there are float32 (fp32), ",
        ),
        (["trace", PROMPT, "--key", "5", "--device", "abacus"], "no device 'abacus'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_what_needs_a_tokenizer_to_be_refused_is_refused_before_weights_are_read(
    call: list[str], said: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    for file in directories["gpt2"].iterdir():
        (tmp_path / file.name).write_bytes(
            b"" if file.suffix == ".safetensors" else file.read_bytes()
        )
    result = run(*call, "--model", tmp_path)
    assert result.exit_code == 1 and result.stderr.count("\n") == 1 and said in result.stderr


def test_a_warning_is_one_line(saved: Path, tmp_path: Path) -> None:
    saved.write_text(saved.read_text().replace('"seed": 0', '"seed": 1'))
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        result = run("render", saved, "--format", "dot", "-o", tmp_path / "out")
    assert (
        result.exit_code == 0 and result.stdout == f"wrote {tmp_path / 'out' / 'circuit.dot'}\n"
    )
    assert result.stderr.startswith(f"Warning: {saved} was edited")
    assert result.stderr.count("\n") == 1 and ".py" not in result.stderr


@pytest.mark.long
def test_figures_are_drawn_for_the_share_that_is_asked_for(saved: Path, tmp_path: Path) -> None:
    drawn = {}
    for share in ("0.2", "0.8", ""):
        asked = ["--share", share] if share else []
        done("render", saved, "--format", "dot,svg", "-o", tmp_path / f"at {share}", *asked)
        drawn[share] = [
            (tmp_path / f"at {share}" / name).read_text()
            for name in ("circuit.dot", "figure.svg")
        ]
    assert "Modulated at 80% by" in drawn["0.8"][0] and drawn["0.2"] != drawn["0.8"]
    assert drawn[""] == drawn["0.8"]  # the share that was measured


# Progress


def test_where_there_is_no_terminal_progress_is_a_line_now_and_then(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with output.progress() as note:
        note("lines", 1, 4)
    assert capsys.readouterr().err == ""  # not within the first 30 seconds
    with output.progress(log_every=0.0, measured=0.0) as note:
        for number in range(5):
            note("lines", number, 4)
            time.sleep(0.01)
        note("spans", 1, 3)
    *lines, spans = capsys.readouterr().err.splitlines()
    assert lines[1].startswith("lines: 1 of 4, 25%")
    assert re.fullmatch(r"spans: 1 of 3, 33%, 0:00:\d\d so far", spans)
    assert re.fullmatch(r"lines: 3 of 4, 75%, 0:00:\d\d left", lines[3])
    assert lines[4] == "lines: 4 of 4, 100%, 0:00:00 left"


def test_long_work_is_announced_once_for_each_stage(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(measured=0.0) as note:
        for stage, total in (("totals", 3), ("lines", 4_000), ("tokens", 40_000_000)):
            for number in range(4):
                note(stage, number, total)
                time.sleep(0.02)
    lines, tokens = capsys.readouterr().err.splitlines()
    assert re.fullmatch(r"lines: about \d+ (seconds|minutes)", lines)
    assert re.fullmatch(r"tokens: about \d+ hours", tokens)


def test_work_that_reports_nothing_is_not_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(log_every=0.2) as note:
        note("carriers", 99, 100)
        time.sleep(1.5)
    lines = capsys.readouterr().err.splitlines()
    assert lines  # one, or on a busy machine more
    for line in lines:
        assert re.fullmatch(r"carriers: 99 of 100, 99%, 0:00:\d\d so far", line)


def test_time_left_is_the_pace_of_the_stage_itself() -> None:
    """Neither what came before its first report nor an earlier pass of the same name counts."""
    pace = Pace()
    assert pace.report("totals", 4, 100, 60.0) is None  # a slow start, of other work
    assert pace.report("totals", 10, 100, 61.0) is None  # too little is measured
    assert pace.report("totals", 24, 100, 64.0) == pytest.approx(76 * 4 / 20)
    assert pace.report("totals", 5, 100, 70.0) is None  # begins again
    assert pace.report("totals", 30, 100, 75.0) == pytest.approx(70 * 5 / 25)
    assert pace.report("totals", 30, 400, 76.0) is None  # another total
    assert pace.report("spans: 3", 1, 9, 80.0) is None
    assert pace.report("spans: 4", 3, 9, 84.0) == pytest.approx(6 * 2)
    assert pace.report("carriers", 10, 100, 85.0) is None
    assert pace.report("carriers", 90, 100, 95.0) is None  # its steps are not alike


@pytest.mark.parametrize("falls", [False, True])
def test_what_is_announced_is_within_a_factor_of_two(falls: bool) -> None:
    """Of steps that take the same time, and of rows that pass fewer positions the later they start."""
    times = [0.0]
    for left in range(200, 0, -1):
        times.append(times[-1] + (0.005 * left if falls else 0.5))
    pace = Pace()
    for done, now in enumerate(times):
        estimate = pace.report("queries", done, 200, now)
        if estimate is not None:
            assert 0.5 <= estimate / (times[-1] - now) <= 2.02
            return
    pytest.fail("there was no estimate")


def test_processes_other_than_the_first_are_silent(capsys: pytest.CaptureFixture[str]) -> None:
    with output.progress(shown=False, log_every=0.0) as note:
        note("lines", 1, 4)
    assert capsys.readouterr().err == ""


def test_on_a_terminal_a_bar_says_stage_percentage_and_time_left() -> None:
    code = (
        "import time; from circuits.cli.output import progress\n"
        "with progress(patience=0.2, measured=0.1) as note:\n"
        "    for number in range(30): note('lines', number, 30); time.sleep(0.05)"
    )
    terminal, end = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stderr=end,
        env=os.environ | {"TERM": "xterm", "NO_COLOR": "1"},
    ) as job:
        os.close(end)
        shown = b""
        while part := _read(terminal):
            shown += part
    assert job.returncode == 0
    assert re.search(r"lines .*━ +\d+% 0:00:\d\d 0:00:\d\d left", shown.decode())


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # how Linux says that the other end was closed
        return b""


# In a process of its own


def test_the_installed_command_says_one_line_without_a_traceback() -> None:
    ran = subprocess.run(
        [
            sys.executable,
            "-c",
            "from circuits.cli import main; main()",
            "tokens",
            "flibbertigibbet→",
            "x",
        ],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"},
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert is_one_line(ran.stderr) and "flibbertigibbet" in ran.stderr


@pytest.mark.long
@pytest.mark.parametrize(
    ("number", "code", "said"),
    [(signal.SIGINT, 130, "interrupted"), (signal.SIGTERM, 143, "terminated")],
)
def test_a_signal_ends_a_command_in_one_line_and_leaves_nothing_behind(
    number: signal.Signals, code: int, said: str, saved: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    command = [sys.executable, "-m", "circuits", "render", saved, "-o", out]
    # Tests in the background inherit a deaf ear.
    heard = partial(signal.signal, number, signal.SIG_DFL)
    pipes = {
        "stdout": subprocess.PIPE,
        "stderr": subprocess.PIPE,
        "text": True,
        "preexec_fn": heard,
    }
    with subprocess.Popen(command, **pipes) as job:
        while not list(out.glob(".unfinished-*/*")) and job.poll() is None:
            time.sleep(0.001)
        job.send_signal(number)
        printed = job.communicate()
    assert (job.returncode, *printed) == (code, "", f"Error: {said}\n")
    assert not out.exists()


def test_a_page_that_cannot_be_drawn_leaves_no_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(folder: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    result = options.ResultOptions(output=None, as_json=False, open_page=True)
    with pytest.raises(KeyboardInterrupt):
        output.print_result(result, [], to_text=str, fill=fails)
    assert list(tmp_path.iterdir()) == []


def test_a_result_without_a_page_opens_its_picture(monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    result = options.ResultOptions(output=None, as_json=False, open_page=True)
    output.print_result(
        result, [], to_text=str, fill=lambda folder: (folder / "why.svg").write_text("<svg/>")
    )
    assert [Path(address).name for address in opened] == ["why.svg"]


def test_a_command_may_run_in_another_thread() -> None:
    results: list[Result] = []
    thread = threading.Thread(target=lambda: results.append(run("models", "--json")))
    thread.start()
    thread.join()
    assert results[0].exit_code == 0


def test_a_standard_input_that_is_closed_is_one_line() -> None:
    command = f"{sys.executable} -m circuits tokens mini - <&-"
    ran = subprocess.run(command, shell=True, capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (1, "")
    assert is_one_line(ran.stderr) and "closed" in ran.stderr
