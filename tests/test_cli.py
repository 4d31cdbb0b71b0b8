"""The command line: light to start, one plain sentence per command, one line for every mistake, files all or none."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import webbrowser
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from typing import Any

import click
import pytest
import render_samples as samples
from click.testing import CliRunner, Result

from circuits import cli
from circuits.cli.options import one_line
from circuits.errors import FileError
from circuits.files import write_folder
from circuits.show.export import EXPORTS, export
from circuits.tracing import trace as discover
from circuits.tracing.records import Circuit

PROMPT = 'The opposite of "large" is "'
ASKED = ["--key", "large", "--query", "-1", "--swap", "large=hot", "--answer", "small", "--foil", "cold"]
FILES = [
    "circuit.dot",
    "circuit.json",
    "circuit.safetensors",
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


def test_help_is_quick_and_imports_nothing_heavy() -> None:
    heavy = "torch transformers transformer_lens matplotlib numpy pandas networkx rich safetensors"
    code = (
        "import sys, time; start = time.process_time()\n"
        "from circuits.cli import main\n"
        "main(['--help'], standalone_mode=False)\n"
        f"print([name for name in {heavy.split()} if name in sys.modules], time.process_time() - start < 0.5)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.startswith("Usage:") and ran.stdout.endswith("\n[] True\n")


@pytest.mark.parametrize("command", cli.main.commands.values(), ids=list(cli.main.commands))
def test_every_command_is_told_in_one_plain_sentence(command: click.Command) -> None:
    sentence = command.help or ""
    assert (
        sentence.count(".") == 1 and sentence.endswith(".") and "\n" not in sentence and sentence[0].isupper()
    )
    assert sentence in " ".join(done(command.name, "--help").split())
    assert sentence in " ".join(done("--help").split())  # not cut short


def test_the_commands_are_these() -> None:
    expected = "models tokens trace circuit compare render export rank sparsify sparsity sweep"
    assert list(cli.main.commands) == expected.split()


# What is printed


def test_models_lists_what_is_known_and_what_is_here() -> None:
    told = {
        line.split()[0]: line.split()[1:]
        for line in done("models").split("\n")
        if line.startswith(("planted-sparse", "gpt2"))
    }
    assert told["planted-sparse"] == ["5.5M", "12×12", "gated", "MIT", "built", "by", "code", "yes"]
    assert told["gpt2"][:4] == ["124M", "12×12", "dense", "MIT"]
    listed = {entry["name"]: entry for entry in json.loads(done("models", "--json"))}
    assert listed["planted-sparse"]["gated"] is True and listed["planted-sparse"]["here"] is True


def test_tokens_prints_positions() -> None:
    lines = done("tokens", "planted-sparse", PROMPT).split("\n")
    assert "5 = large" in lines and '8 = "' in lines


def test_a_prompt_can_come_from_standard_input(directories: dict[str, Path]) -> None:
    told = json.loads(done("tokens", directories["gpt2"], "-", "--json", stdin=PROMPT + "\n"))
    assert (
        told[5] == {"position": 5, "token": "large", "id": told[5]["id"]}
        and told[8]["token"] == '"'
        and len(told) == 9
    )


def test_trace_finds_the_planted_heads(traced: tuple[str, Path]) -> None:
    text, _ = traced
    assert f'large(5) → "(8): total 1.00 (restore 1.00)\nModulated at 80% by {", ".join(PLANTED)}\n' in text
    assert "large(5) → hot" in text and "random heads" in text


def test_json_is_the_record_and_nothing_else(traced: tuple[str, Path], tmp_path: Path) -> None:
    result = run("trace", PROMPT, *ASKED, "--model", "planted-sparse", "--json", "-o", tmp_path)
    assert result.stdout == (traced[1] / "circuit.json").read_text()
    record = json.loads(result.stdout)
    assert [step["head"] for step in record["mappings"][0]["path"][:5]] == PLANTED
    effects = [known["effect"] for known in record["mappings"][0]["heads"]]
    assert effects == sorted(effects, reverse=True)
    assert len(result.stderr.strip().split("\n")) == len(FILES)


def test_the_share_changes_the_carriers(directories: dict[str, Path]) -> None:
    asked = [
        "trace",
        PROMPT,
        "--key",
        "large",
        "--counterfactual",
        'The opposite of "hot" is "',
        "--model",
        directories["gpt2"],
    ]
    few, many = (
        json.loads(done(*asked, "--share", share, "--json"))["mappings"][0]["controls"]
        for share in ("0.2", "0.9")
    )
    assert (few["share"], many["share"]) == (0.2, 0.9)


def test_circuit_takes_groups_and_prints_spans() -> None:
    text = done(
        "circuit", PROMPT, "--swap", "large=hot", "--model", "planted-sparse", "--group", "brackets=4,6"
    )
    assert "Modulated at 80% by" in text
    spans = {line.split("(")[0]: line for line in text.split("Spans")[1].split("\n") if "layer" in line}
    assert (
        spans["brackets"].startswith("brackets(4, 6)")
        and "0-3" in spans["large"]
        and "0-1 " in spans["opposite"]
    )


def test_compare_sets_models_side_by_side_and_writes_a_folder_for_each(tmp_path: Path) -> None:
    asked = ["compare", PROMPT, *ASKED, "--models", "planted-sparse,mini-sparse"]
    text = done(*asked, "-o", tmp_path)
    rows = {
        line.split()[0]: line.split() for line in text.split("\n") if line.startswith(("planted", "mini"))
    }
    assert rows["planted-sparse"][1:4] == ["1.00", "5", "80%"] and rows["mini-sparse"][1:3] == ["1.00", "5"]
    each = [f"{model}/{name}" for model in ("mini-sparse", "planted-sparse") for name in FILES]
    assert names_in(tmp_path) == sorted(["figure.pdf", "figure.png", "figure.svg", "page.html", *each])
    assert Circuit.load(tmp_path / "mini-sparse").source.name == "mini-sparse"


def test_compare_speaks_json(directories: dict[str, Path]) -> None:
    asked = ["--key", "large", "--swap", "large=hot", "--metric", "kl", "--json"]
    names = [str(directories[name]) for name in ("gpt2", "gpt2", "neox")]
    first, again, other = json.loads(done("compare", PROMPT, *asked, "--models", ",".join(names)))
    assert (
        first == again and first["overlap"] == first["carriers"] and first["heads"] == len(first["carriers"])
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


def test_a_saved_circuit_is_drawn_again_to_the_same_bytes(traced: tuple[str, Path], tmp_path: Path) -> None:
    done("render", traced[1], "-o", tmp_path, "--format", "svg,dot,html,svg")
    assert names_in(tmp_path) == ["circuit.dot", "figure.svg", "page.html"]
    for name in names_in(tmp_path):
        assert (tmp_path / name).read_bytes() == (traced[1] / name).read_bytes()


def test_render_draws_beside_the_circuit_unless_told_otherwise(saved: Path) -> None:
    told = json.loads(done("render", saved, "--format", "dot", "--json"))
    assert told == {"files": [str(saved.parent / "circuit.dot")]}
    assert names_in(saved.parent) == ["circuit.dot", "circuit.json", "circuit.safetensors"]


@pytest.mark.parametrize("to", EXPORTS)
def test_export_writes_each_format_to_stdout_and_to_a_file(to: str, saved: Path, tmp_path: Path) -> None:
    wanted = export(Circuit.load(saved), to)
    assert done("export", saved, "--to", to) == wanted
    ElementTree.fromstring(wanted.encode()) if to == "graphml" else json.loads(wanted)
    assert (
        done("export", saved, "--to", to, "-o", tmp_path / "deep" / "file.txt")
        == f"wrote {tmp_path / 'deep' / 'file.txt'}\n"
    )
    assert (tmp_path / "deep" / "file.txt").read_text(encoding="utf-8") == wanted
    done("export", saved.parent, "--to", to, "-o", tmp_path / "deep")
    assert (tmp_path / "deep" / f"circuit{EXPORTS[to][0]}").read_text(encoding="utf-8") == wanted


def test_open_opens_the_page(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, Path], tmp_path: Path
) -> None:
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)
    done(
        "trace",
        PROMPT,
        "--key",
        "5",
        "--metric",
        "kl",
        "--swap",
        "large=hot",
        "--model",
        directories["gpt2"],
        "-o",
        tmp_path,
        "--open",
    )
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
        "swap of a word that is not there": [*trace, "--key", "5", "--swap", "small=hot", PROMPT],
        "swap by the same word": [*trace, "--key", "5", "--swap", "large=large", PROMPT],
        "swap without =": [*trace, "--key", "large", "--swap", "large", PROMPT],
        "swap without the new word": [*trace, "--key", "large", "--swap", "large=", PROMPT],
        "swap twice": [*trace, "--key", "large", "--swap", "large=hot", "--swap", "large=cold", PROMPT],
        "unknown metric": [*swapped, "large", "--metric", "loss", PROMPT],
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
    assert (
        result.stderr.startswith("Error: ")
        and result.stderr.count("\n") == 1
        and result.stderr.rstrip("\n").isprintable()
    )
    assert names_in(tmp_path) == before and not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "arguments",
    [
        ["trace"],
        ["trace", PROMPT],
        ["trace", PROMPT, "--key", "5", "--share", "0"],
        ["trace", PROMPT, "--key", "5", "--seed", "x"],
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
    assert (
        result.stderr.startswith("Error: ") and result.stderr.count("\n") == 1 and "--help" in result.stderr
    )


def test_standard_input_that_is_not_text_is_refused() -> None:
    result = run("tokens", "planted-sparse", "-", stdin=b"\xff\xfe")
    assert result.exit_code == 1 and "not valid UTF-8" in result.stderr


def test_an_interrupt_is_one_line(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, Path], tmp_path: Path
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(discover, "trace", interrupted)
    result = run("trace", PROMPT, "--key", "5", "--model", directories["gpt2"], "-o", tmp_path / "out")
    assert (result.exit_code, result.stdout, result.stderr) == (130, "", "Error: interrupted\n")
    assert not (tmp_path / "out").exists()


def test_messages_are_folded_and_made_visible() -> None:
    assert one_line("two\nlines\x1b[0m  and\r\nmore") == "two lines\\x1b[0m and more"


# In a process of its own


def test_the_installed_command_says_one_line_without_a_traceback() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", "from circuits.cli import main; main()", "tokens", "flibbertigibbet→", "x"],
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONIOENCODING": "ascii", "OMP_NUM_THREADS": "1"},
    )
    assert (ran.returncode, ran.stdout) == (1, "")
    assert (
        ran.stderr.startswith("Error: ") and ran.stderr.count("\n") == 1 and "flibbertigibbet" in ran.stderr
    )
