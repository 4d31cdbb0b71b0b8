"""Input made to do harm is refused in one line, runs nothing, and leaves everything as it was."""

from __future__ import annotations

import hashlib
import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import hypothesis
import pytest
import render_samples as samples
import torch
from click.testing import CliRunner, Result
from fuzzing import CONTROL, READERS, SLOW_IS_FINE, Reader, attempt
from safetensors.torch import load_file, save_file
from small_models import PROMPT, random_model, save
from test_sources import Bomb, save_adapter, to_lens_layout

from circuits import cli
from circuits.errors import CircuitsError, FileError, ModelError, PromptError
from circuits.models import hub
from circuits.models.folder import read_flags
from circuits.models.load import find, load
from circuits.models.model import Model
from circuits.prompts import Prompt, swap_words, to_prompt
from circuits.show.export import EXPORTS
from circuits.sparsify.text import read_texts
from circuits.sparsify.training import load_checkpoint
from circuits.tracing import Circuit
from circuits.tracing.trace import trace
from circuits.wires.record import Wiring
from circuits.zoo.language import tokenizer

PAGE = Path(__file__).parents[1] / "docs" / "reliability.md"


def run(*arguments: object, stdin: str | bytes | None = None) -> Result:
    return CliRunner().invoke(cli.main, list(map(str, arguments)), input=stdin)


def refusal(*arguments: object) -> str:
    """The one line of a command that fails."""
    result = run(*arguments)
    assert (result.exit_code, result.stdout) == (1, ""), result.output
    assert (
        result.stderr.startswith("Error: ")
        and result.stderr.count("\n") == 1
        and result.stderr.rstrip("\n").isprintable()
    )
    return result.stderr


def contents(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def folder(directories: dict[str, Path], tmp_path: Path) -> Path:
    """A model's folder that a test may spoil."""
    return Path(shutil.copytree(directories["gpt2"], tmp_path / "model"))


def edit(file: Path, **changes: Any) -> None:
    stored = json.loads(file.read_text()) if file.exists() else {}
    file.write_text(json.dumps(stored | changes))


# Code


EVIL = "import pathlib\npathlib.Path({!r}).mkdir()\nclass Evil:\n    pass\n"
CODE: dict[str, tuple[str, dict[str, Any]]] = {
    "a model": (
        "config.json",
        {"auto_map": {"AutoConfig": "evil.Evil", "AutoModelForCausalLM": "evil.Evil"}},
    ),
    "a model that is no language model": (
        "config.json",
        {"model_type": "vit", "auto_map": {"AutoModelForCausalLM": "evil.Evil"}},
    ),
    "a model of its own": (
        "config.json",
        {"model_type": "evil", "auto_map": {"AutoConfig": "evil.Evil"}},
    ),
    "a tokenizer": (
        "tokenizer_config.json",
        {"auto_map": {"AutoTokenizer": ["evil.Evil", "evil.Evil"]}},
    ),
    "a tokenizer of its own": (
        "tokenizer_config.json",
        {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}},
    ),
    "a tokenizer in the config": (
        "config.json",
        {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": "evil.Evil"}},
    ),
    "a kernel": ("config.json", {"_attn_implementation": "someone/evil"}),
    "another kernel": ("config.json", {"attn_implementation": "someone/evil:run"}),
}


@pytest.mark.parametrize("kind", CODE)
def test_code_that_a_model_names_is_never_run(
    kind: str, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("builtins.input", lambda *_: "y")  # even if a library were to ask
    (folder / "evil.py").write_text(EVIL.format(str(tmp_path / "went-off")))
    name, changes = CODE[kind]
    edit(folder / name, **changes)
    try:
        load(folder)
    except ModelError as why:
        assert str(why).isprintable()
    assert not (tmp_path / "went-off").exists()


def test_pickles_beside_the_weights_are_never_opened(folder: Path, tmp_path: Path) -> None:
    for name in (
        "training_args.bin",
        "optimizer.pt",
        "rng_state.pth",
        "scheduler.pt",
        "pytorch_model.bin",
    ):
        torch.save(Bomb(tmp_path / "went-off"), folder / name)
    assert find(str(folder)).model.config.n_layer == 3
    assert not (tmp_path / "went-off").exists()


@pytest.mark.parametrize("ending", [".pt", ".pth", ".bin", ".ckpt", ".pkl"])
def test_a_pickle_that_is_named_is_refused_and_not_run(ending: str, tmp_path: Path) -> None:
    torch.save({"embed.W_E": Bomb(tmp_path / "went-off")}, tmp_path / f"it{ending}")
    assert "pickle" in refusal("tokens", tmp_path / f"it{ending}", PROMPT)
    assert not (tmp_path / "went-off").exists()


@pytest.mark.parametrize(
    "changes",
    [
        {"megatron_config": {"a": 1}, "megatron_core": "antigravity"},
        {"peft_type": "PROMPT_TUNING"},
        {"layer_replication": [[0, 10**6]]},
        {"target_modules": "(a+)+$"},
        {"target_modules": ".*.*.*.*.*.*.*.*.*.*x"},
        {"target_modules": ".?" * 40 + "x"},
        {"rank_pattern": {"a*a*a*a*a*a*": 4}},
        {"r": 10**9},
        {"rank_pattern": {"c_attn": 10**9}},
        {"base_model_name_or_path": 5},
    ],
    ids=str,
)
def test_an_adapter_is_a_plain_lora_or_refused(
    changes: dict[str, Any], directories: dict[str, Path], tmp_path: Path
) -> None:
    save_adapter(tmp_path, str(directories["gpt2"]))
    edit(tmp_path / "adapter_config.json", **changes)
    with pytest.raises(ModelError) as refused:
        find(str(tmp_path))
    assert str(refused.value).isprintable()


def test_a_tensor_of_no_numbers_does_not_vouch_for_a_rank(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    save_adapter(tmp_path, str(directories["gpt2"]))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    save_file(
        tensors | {"empty": torch.zeros(0, 10**9)}, tmp_path / "adapter_model.safetensors"
    )
    edit(tmp_path / "adapter_config.json", r=10**9)
    with pytest.raises(ModelError):
        find(str(tmp_path))


# Names that lead elsewhere


@pytest.mark.parametrize(
    "name",
    [
        "../other.safetensors",
        "/etc/passwd",
        "below/model.safetensors",
        "..",
        "",
        "..\\other.safetensors",
    ],
)
def test_weights_outside_their_folder_are_refused(name: str, folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "other.safetensors")
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"weight_map": {"transformer.wte.weight": name}})
    )
    with pytest.raises(ModelError, match="same folder"):
        find(str(folder))


def test_weights_may_be_links_as_in_the_hub_cache(folder: Path) -> None:
    shutil.move(folder / "model.safetensors", folder.parent / "blob")
    (folder / "model.safetensors").symlink_to(Path("..") / "blob")
    assert find(str(folder)).model.config.n_layer == 3


def test_a_hub_cache_whose_commit_is_a_path_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--someone--it" / "refs").mkdir(parents=True)
    (tmp_path / "models--someone--it" / "refs" / "main").write_text("../../../../etc")
    with pytest.raises(ModelError, match="names no commit"):
        hub.snapshot("someone/it")


# JSON


JSON: dict[str, bytes] = {
    "nothing": b"",
    "NaN": b'{"gate": NaN, "text": NaN}',
    "infinity": b'{"gate": -Infinity}',
    "a number beyond all": b'{"gate": 1e999}',
    "a number of 5000 digits": b'{"gate": ' + b"9" * 5000 + b"}",
    "nested": b"[" * 100_000,
    "nested and closed": b'{"gate": ' + b"[" * 500 + b"]" * 500 + b"}",
    "a list": b"[1, 2]",
    "null": b"null",
    "cut off": b'{"gate": tr',
    "no UTF-8": b'{"text": "\xff\xfe"}',
    "UTF-16": '{"text": "a"}'.encode("utf-16"),
    "NUL": b"\x00\x00",
    "half a character": b'{"text": "\\ud800", "gate": "\\udfff"}',
    "wrong types": b'{"gate": 1, "text": 1, "schema": "1", "model_type": 5, "peft_type": [], "weight_map": 3}',
}
JSON_READERS: dict[str, Callable[[Path], object]] = {
    "circuits.json": lambda room: read_flags(room),
    "circuit.json": lambda room: Circuit.load(room),
    "wiring.json": lambda room: Wiring.load(room),
    "text.jsonl": lambda room: read_texts(room / "text.jsonl"),
    "config.json": lambda room: find(str(room)),
    "adapter_config.json": lambda room: find(str(room)),
    "model.safetensors.index.json": lambda room: find(str(room)),
}


@pytest.mark.parametrize("reader", JSON_READERS)
@pytest.mark.parametrize("wild", JSON)
def test_json_that_is_not_as_it_must_be_is_refused_in_one_line(
    wild: str, reader: str, tmp_path: Path
) -> None:
    for name in (
        "config.json",
        "model.safetensors",
        "adapter_model.safetensors",
        "tokenizer.json",
    ):
        (tmp_path / name).write_bytes(b"{}")
    (tmp_path / reader).write_bytes(JSON[wild])
    with pytest.raises(CircuitsError) as refused:
        JSON_READERS[reader](tmp_path)
    assert str(refused.value).isprintable() and len(str(refused.value)) < 4100


def test_a_byte_order_mark_is_no_harm(tmp_path: Path) -> None:
    (tmp_path / "circuits.json").write_bytes(b'\xef\xbb\xbf{"gate": true}')
    assert read_flags(tmp_path).gate is True
    (tmp_path / "text.jsonl").write_bytes(
        b'\xef\xbb\xbf{"text": "one"}\r\n{"text": "two\xe2\x80\xa8lines"}\n'
    )
    assert read_texts(tmp_path / "text.jsonl") == ["one", "two\u2028lines"]


# Files that never end, or say more than they hold


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize("make", [_pipe, _zeros])
@pytest.mark.parametrize(
    "name",
    [
        "circuit.json",
        "text.jsonl",
        "final.pth",
        "model.safetensors",
        "config.json",
        "circuits.json",
        "checkpoint",
    ],
)
def test_pipes_and_devices_are_not_read(
    name: str, make: Callable[[Path], None], folder: Path
) -> None:
    (folder / name).unlink(missing_ok=True)
    make(folder / name)
    readers: dict[str, Callable[[], object]] = {
        "circuit.json": lambda: Circuit.load(folder),
        "text.jsonl": lambda: read_texts(folder / name),
        "final.pth": lambda: find(str(folder / name)),
        "checkpoint": lambda: load_checkpoint(
            folder / name, {}, torch.optim.AdamW([torch.zeros(1)])
        ),
    }
    with pytest.raises(CircuitsError, match=r"not a regular file|no such file|holds no model"):
        readers.get(name, lambda: find(str(folder)))()


@pytest.mark.parametrize(
    "changes",
    [{"n_layer": 10**7}, {"vocab_size": 10**12}, {"n_positions": 10**12}, {"n_inner": 10**12}],
)
def test_a_config_that_describes_more_than_the_weights_is_refused(
    changes: dict[str, int], folder: Path
) -> None:
    edit(folder / "config.json", **changes)
    with pytest.raises(ModelError) as refused:
        find(str(folder))
    assert str(refused.value).isprintable()


def _compressed(file: Path) -> None:
    torch.save({"embed.W_E": torch.zeros(100_000)}, file.with_suffix(".plain"))
    with (
        zipfile.ZipFile(file.with_suffix(".plain")) as plain,
        zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for part in plain.infolist():
            packed.writestr(part.filename, plain.read(part))


LYING: dict[str, Callable[[Path], object]] = {
    "blown up": lambda file: torch.save(
        {"embed.W_E": torch.zeros(1).expand(10**7, 10**7)}, file
    ),
    "compressed": _compressed,
    "a block far away": lambda file: torch.save(
        to_lens_layout(random_model("gpt2")) | {"blocks.99999999.ln1.w": torch.ones(32)}, file
    ),
    "no tensors": lambda file: torch.save({"embed.W_E": 5, "blocks.0.attn.W_Q": "x"}, file),
    "a list": lambda file: torch.save([torch.zeros(3)], file),
    "nothing": lambda file: file.write_bytes(b""),
    "a header that lies": lambda file: file.write_bytes(b"\xff" * 7 + b"\x7f{}"),
}


@pytest.mark.parametrize("kind", LYING)
def test_a_state_dict_that_says_more_than_it_holds_is_refused(
    kind: str, tmp_path: Path
) -> None:
    tokenizer().save_pretrained(tmp_path)
    LYING[kind](tmp_path / "it.pth")
    with pytest.raises(ModelError) as refused:
        find(str(tmp_path / "it.pth"))
    assert str(refused.value).isprintable()


@pytest.mark.parametrize("shape", [(1,), (2, 3), (2, 2, 1)])
def test_a_checkpoint_of_another_shape_is_refused_and_changes_nothing(
    shape: tuple[int, ...], tmp_path: Path
) -> None:
    save_file(
        {"value/a": torch.ones(shape)},
        tmp_path / "it.safetensors",
        metadata={"progress": '{"step": 3}'},
    )
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    with pytest.raises(FileError, match="another shape"):
        load_checkpoint(tmp_path / "it.safetensors", {"a": weight}, torch.optim.AdamW([weight]))
    assert not weight.any()


# Words


ESCAPES = (
    "\x1b]0;owned\x07",
    "\x1b[2J<b>&amp;",
    "\x9b31m",
    "\u202e}; evil [",
    "a\nb\rc",
    "nul\x00",
)


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose words are commands to terminals, browsers and Graphviz."""
    room = save(random_model("gpt2"), tmp_path_factory.mktemp("hostile"))
    stored = json.loads((room / "tokenizer.json").read_text())
    words = {number: word for word, number in stored["model"]["vocab"].items()}
    for number, word in enumerate(ESCAPES, 500):
        del stored["model"]["vocab"][words[number]]
        stored["model"]["vocab"][word] = number
        like = {
            key: value
            for key, value in stored["added_tokens"][0].items()
            if key not in ("id", "content")
        }
        stored["added_tokens"].append({"id": number, "content": word, **like})
    (room / "tokenizer.json").write_text(json.dumps(stored))
    return room


@pytest.mark.long
def test_no_command_passes_control_characters_on(hostile_folder: Path, tmp_path: Path) -> None:
    text = "The opposite " + " ".join(ESCAPES)
    asked = [
        "--model",
        hostile_folder,
        "--metric",
        "kl",
        "--counterfactual",
        text.replace("opposite", "large"),
    ]
    calls: list[list[object]] = [
        ["tokens", hostile_folder, "-"],
        ["tokens", hostile_folder, "-", "--json"],
        ["trace", "-", "--key", "2", *asked, "-o", tmp_path / "out"],
        ["trace", "-", "--key", "nowhere", *asked],
        ["trace", "-", "--key", "\x1b[2J", *asked],
        ["render", tmp_path / "out", "--format", "dot", "-o", tmp_path / "again"],
        *(["export", tmp_path / "out", "--to", form] for form in EXPORTS),
        ["models"],
        ["tokens", "no\x1b[2Jwhere", "a"],
    ]
    for call in calls:
        result = run(*call, stdin=text)
        assert result.exit_code == (
            1 if {"nowhere", "\x1b[2J", "no\x1b[2Jwhere"} & set(map(str, call)) else 0
        ), result.output
        assert not CONTROL.search(result.stdout + result.stderr), call
    words = json.loads(run("tokens", hostile_folder, "-", "--json", stdin=text).stdout)
    assert {word["token"] for word in words} >= set(ESCAPES)  # escaped, not lost
    assert not CONTROL.search((tmp_path / "out" / "circuit.json").read_text())
    assert Circuit.load(tmp_path / "out").prompt.text == text


def test_a_token_beyond_the_embedding_is_refused(folder: Path) -> None:
    stored = json.loads((folder / "tokenizer.json").read_text())
    stored["model"]["vocab"]["zork"] = 100_000
    (folder / "tokenizer.json").write_text(json.dumps(stored))
    assert "no token 100000" in refusal("tokens", folder, "The zork")
    assert "zork" in refusal(
        "trace",
        PROMPT,
        "--model",
        folder,
        "--key",
        "5",
        "--swap",
        "large=hot",
        "--answer",
        "zork",
    )


LONG = {
    "one word": "x" * 100_000,
    "many words": "large " * 16_667,
    "one letter": "! " * 50_000,
    "many lines": "a\n" * 50_000,
    "NUL": "\x00" * 100_000,
}


@pytest.mark.parametrize("kind", LONG)
def test_a_prompt_of_100000_characters_is_refused_in_one_line(
    kind: str, models: dict[str, Model]
) -> None:
    with pytest.raises(PromptError) as refused:
        to_prompt(models["gpt2"], LONG[kind])
    assert str(refused.value).isprintable() and len(str(refused.value)) < 4100


def test_a_thousand_words_of_a_long_prompt_can_be_swapped() -> None:
    words = [f"w{number:04}" for number in range(1000)]
    text = " ".join(words * 20)
    assert swap_words(text, {word: word.upper() for word in words}) == text.upper()


@pytest.mark.parametrize("at", ["9" * 5000, "--5", "-", "²", "\x00", "- 1"])
def test_what_only_looks_like_a_position_is_refused(at: str) -> None:
    with pytest.raises(PromptError, match="no token"):
        Prompt("a b", (0, 1), ("a", "b")).position(at)


@pytest.mark.parametrize("text", ["\ud800", "The \udfff large"])
def test_half_a_character_is_refused(text: str, models: dict[str, Model]) -> None:
    with pytest.raises(PromptError, match="half a character"):
        to_prompt(models["gpt2"], text)


# Output


def small(*words: str) -> Circuit:
    return samples.hostile(words or ("a", "b", "c"))


@pytest.mark.parametrize(
    "name",
    [
        "circuit.json",
        "circuit.safetensors",
        "circuit.dot",
        "page.html",
        "figure.svg",
        "figure.png",
        "figure.pdf",
    ],
)
def test_a_file_that_is_not_ours_is_not_overwritten(name: str, tmp_path: Path) -> None:
    saved, out = small().save(tmp_path / "saved"), tmp_path / "out"
    out.mkdir()
    (out / name).write_text("my own work, begun like any other\n" * 3)
    before = contents(tmp_path)
    if name.startswith("circuit.") and name != "circuit.dot":
        with pytest.raises(FileError, match="was not written by circuits"):
            small().save(out)
    else:
        form = name.rsplit(".", 1)[1]
        assert "was not written by circuits" in refusal(
            "render", saved, "-o", out, "--format", form
        )
    assert contents(tmp_path) == before


@pytest.mark.long
def test_a_file_of_ours_is_replaced(tmp_path: Path) -> None:
    for folder, words in (("a", "abc"), ("a", "xyz"), ("b", "xyz")):
        saved = small(*words).save(tmp_path / folder)
        assert run("render", saved).exit_code == 0
        for form in EXPORTS:
            assert (
                run(
                    "export", saved, "--to", form, "-o", saved.with_name(f"it.{form}")
                ).exit_code
                == 0
            )
    assert contents(tmp_path / "a") == contents(tmp_path / "b")


@pytest.mark.parametrize("form", EXPORTS)
def test_an_export_does_not_overwrite_what_is_not_ours(form: str, tmp_path: Path) -> None:
    saved = samples.planted().save(tmp_path / "saved")
    (tmp_path / "notes.txt").write_text("my own notes, which took a long time to write")
    told = refusal("export", saved, "--to", form, "-o", tmp_path / "notes.txt")
    assert "was not written by circuits" in told
    assert (tmp_path / "notes.txt").read_text().startswith("my own notes")


@contextmanager
def full_disk(at: int) -> Iterator[None]:
    """Within this, no file may grow beyond `at` bytes: the system refuses the write, as it does on a full
    disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (at, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("at", [0, 100, 6000])
def test_a_disk_that_fills_up_leaves_what_was_there(at: int, tmp_path: Path) -> None:
    samples.planted().save(tmp_path / "a")
    before = contents(tmp_path)
    with full_disk(at), pytest.raises(FileError, match="cannot write"):
        samples.dense().save(tmp_path / "a")
    with full_disk(at), pytest.raises(FileError, match="cannot write"):
        samples.dense().save(tmp_path / "new" / "folder")
    with full_disk(at):
        told = refusal("render", tmp_path / "a", "-o", tmp_path / "new")
    assert "cannot write" in told
    assert contents(tmp_path) == before and not (tmp_path / "new").exists()
    assert Circuit.load(tmp_path / "a") == samples.planted()


@pytest.mark.parametrize(
    "place", ["/proc/nothing", "/dev/full", "/dev/full/below", "/dev/null", "x" * 300]
)
def test_a_place_that_cannot_be_written_is_refused_in_one_line(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    saved = samples.empty().save(tmp_path / "saved")
    before = contents(tmp_path)
    assert "cannot write" in refusal("render", saved, "-o", place, "--format", "dot")
    with pytest.raises(FileError, match="cannot write"):
        samples.empty().save(place)
    assert contents(tmp_path) == before


def test_a_folder_that_is_read_only_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = samples.empty().save(tmp_path / "saved")
    # An administrator may write anywhere, so the system cannot be asked.
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert "no permission to write" in refusal("render", saved, "-o", tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize(
    "call", ["models", "models --json", "--help", "--version", "rank --help"]
)
def test_an_output_that_is_full_is_one_line(call: str) -> None:
    command = [sys.executable, "-m", "circuits", *call.split()]
    with Path("/dev/full").open("w") as full:
        ran = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (ran.returncode, ran.stderr) == (1, "Error: No space left on device\n")


def test_a_folder_in_the_cache_that_is_not_ours_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path))
    (tmp_path / "smollm2").mkdir()
    (tmp_path / "smollm2" / "thesis.txt").write_text("mine")
    with pytest.raises(ModelError, match="was not made by circuits"):
        hub.cached_folder("smollm2", lambda folder: None)
    assert contents(tmp_path) == {"smollm2/thesis.txt": b"mine"}


def test_a_circuit_that_fits_its_checksum_and_not_itself_is_refused(tmp_path: Path) -> None:
    file = samples.planted().save(tmp_path)
    stored = json.loads(file.read_text())
    del stored["sha256"]
    stored["mappings"][0]["heads"][0]["head"] = "L99H0"
    body = json.dumps(stored, ensure_ascii=False, indent=1, sort_keys=True)
    file.write_text(
        body[:-2] + f',\n "sha256": "{hashlib.sha256(body.encode()).hexdigest()}"\n}}\n'
    )
    with pytest.raises(FileError, match="L99H0"):
        Circuit.load(file)


# Every reader, wild input; benchmarks/fuzz.py does the same at length


@pytest.mark.parametrize("reader", READERS, ids=lambda reader: reader.name)
def test_wild_input_is_accepted_or_refused_in_one_line(
    reader: Reader, tmp_path_factory: pytest.TempPathFactory
) -> None:
    few = max(3, reader.many // 200)

    @hypothesis.settings(
        max_examples=few,
        database=None,
        deadline=None,
        derandomize=True,
        suppress_health_check=SLOW_IS_FINE,
    )
    @hypothesis.given(reader.inputs())
    def check(given: Any) -> None:
        attempt(reader, given, tmp_path_factory.mktemp("wild"))

    check()


# Promises


def test_a_trace_uses_no_network(
    monkeypatch: pytest.MonkeyPatch, directories: dict[str, Path], tmp_path: Path
) -> None:
    def refused(*_: object, **__: object) -> None:
        raise AssertionError("the network was used")

    for name in ("socket", "create_connection", "getaddrinfo"):
        monkeypatch.setattr(socket, name, refused)
    found = trace(
        load(directories["gpt2"]), PROMPT, key="large", swap={"large": "hot"}, metric="kl"
    )
    Circuit.load(found.save(tmp_path / "out"))
    assert run("render", tmp_path / "out", "--format", "html,dot").exit_code == 0


def test_every_test_that_the_page_on_reliability_names_is_there() -> None:
    named = re.findall(r"`(test_\w+\.py)::(test_\w+)`", PAGE.read_text(encoding="utf-8"))
    assert len(named) >= 15
    here = Path(__file__).parent
    missing = [
        f"{file}::{name}"
        for file, name in named
        if f"def {name}(" not in (here / file).read_text(encoding="utf-8")
    ]
    assert not missing
