"""Sparse twins: the gate is as written, the multiplier follows the budget, killed runs end as others do."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from accelerate import DistributedType
from click.testing import CliRunner
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from small_models import PROMPT
from training_processes import (
    ADAPTER,
    TINY,
    die_after_lines,
    die_while_writing,
    free_port,
    start,
    train_together,
)
from transformers import AutoModelForCausalLM, AutoTokenizer

from circuits.cli.sparsify import sparsify_command, sparsity_command
from circuits.errors import CircuitsError, FileError, ModelError
from circuits.models.load import find, load
from circuits.models.model import Model
from circuits.sparsify import (
    LITTLE_LANGUAGE,
    Settings,
    measure_sparsity,
    settings_for,
    sparsify,
)
from circuits.sparsify.attention import TrainingGate, attending, dense, hard, logits_under
from circuits.sparsify.card import draw_training, write_card
from circuits.sparsify.checkpoint import read_log
from circuits.sparsify.measure import measure
from circuits.sparsify.processes import check_launch, started_alone
from circuits.sparsify.text import corpus_for, little_language, read_texts, to_rows
from circuits.sparsify.training import TrainingRun, train, training_gate
from circuits.sparsify.twin import to_student
from circuits.zoo.evaluate import Score

LINES = 1700  # of the trainer's code: about three steps


def causal_scores(*shape: int, seed: int = 0) -> torch.Tensor:
    """Random scores with masked keys at the lowest number, in double precision."""
    scores = torch.randn(
        *shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    length = shape[-1]
    return scores.masked_fill(
        torch.ones(length, length).triu(1).bool(), torch.finfo(torch.float32).min
    )


def tokens_of(model: Model) -> torch.Tensor:
    return torch.tensor([model.tokenize(PROMPT)])


# The gate and its gradient


def test_the_deterministic_gate_is_the_written_formula() -> None:
    scores = causal_scores(2, 3, 5, 5)
    gate = TrainingGate()
    weights = gate(scores)
    penalty, opened = 0.0, 0
    for row in range(2):
        for head in range(3):
            for query in range(5):
                exponentials = [
                    math.exp(scores[row, head, query, key]) for key in range(query + 1)
                ]
                for key in range(query + 1):
                    s = scores[row, head, query, key].item()
                    expected = exponentials[key] / sum(exponentials) if s > 0 else 0.0
                    assert weights[row, head, query, key].item() == pytest.approx(
                        expected, abs=1e-12
                    )
                    penalty += 1 / (1 + math.exp(-s)) / 15 / 6
                    opened += s > 0
    assert gate.penalty.item() == pytest.approx(penalty, abs=1e-12)
    assert gate.open_edges == pytest.approx(opened / 90)
    assert torch.equal(weights, hard(scores))


def test_a_sampled_gate_opens_as_often_as_the_penalty_says() -> None:
    scores = torch.full((1, 1, 400, 400), 0.3)
    gate = TrainingGate(noise=torch.Generator().manual_seed(0), bias=0.5)
    share = (gate(scores) > 0).float().mean().item()
    assert share == pytest.approx(1 / (1 + math.exp(-0.8)), abs=0.005)


@pytest.mark.parametrize("sampled", [False, True])
def test_the_straight_through_gradient_is_that_of_the_sigmoid(sampled: bool) -> None:
    values, target = (
        torch.randn(2, 3, 5, 4, dtype=torch.float64),
        torch.randn(2, 3, 5, 4, dtype=torch.float64),
    )
    bias, scores = 0.25, causal_scores(2, 3, 5, 5).requires_grad_()
    noise = torch.Generator().manual_seed(7) if sampled else None
    gate = TrainingGate(noise=noise, bias=bias)
    loss = ((gate(scores) @ values) * target).sum() + 3 * gate.penalty
    (fast,) = torch.autograd.grad(loss, scores)

    uniform = torch.rand(
        scores.shape, generator=torch.Generator().manual_seed(7), dtype=torch.float64
    )
    logistic = torch.logit(uniform, eps=1e-7) if sampled else 0.0
    soft = torch.sigmoid(scores + bias + logistic)
    through = (soft > 0.5).double() - soft.detach() + soft
    plain = ((through * scores.softmax(-1) @ values) * target).sum() + 3 * torch.sigmoid(
        scores + bias
    ).sum() / 15 / 6
    (slow,) = torch.autograd.grad(plain, scores)
    assert torch.allclose(loss, plain, atol=1e-9)
    assert torch.allclose(fast, slow, atol=1e-9)
    assert fast.abs().max() > 0.01


def test_the_rules_are_the_toolkits_own_runs_on_every_architecture(
    model: Model, directories: dict[str, Path]
) -> None:
    plain: Any = find(model.name).model
    tokens = tokens_of(model)
    twin = Model(
        model.name, model.bridge, model.tokenizer, gated=True, reads_bos=model.reads_bos
    )
    with torch.inference_mode():
        untouched = plain(tokens).logits
        with attending(plain, dense):
            assert torch.allclose(plain(tokens).logits, untouched, atol=1e-5)
        with attending(plain, hard):
            gated = plain(tokens).logits
        assert torch.equal(plain(tokens).logits, untouched)
    assert torch.allclose(gated, twin.logits(tokens), atol=1e-4)
    assert not torch.allclose(gated, untouched, atol=1e-2)


# The constraint


def test_the_multiplier_moves_by_at_most_two_percent_towards_the_budget() -> None:
    settings = Settings(gap=0.03)
    assert settings.next_multiplier(1.0, 0.03, 0) == 1.0
    assert settings.next_multiplier(1.0, 0.02, 0) == pytest.approx(math.exp(0.01))
    assert settings.next_multiplier(1.0, -5.0, 0) == pytest.approx(math.exp(0.02))
    assert settings.next_multiplier(1.0, 5.0, 0) == pytest.approx(math.exp(-0.02))


def test_the_budget_falls_evenly_from_its_slack_to_the_gap_and_is_half_of_it_while_healing() -> (
    None
):
    settings = Settings(gap=0.1, slack=3.0, steps=100, healing=20)
    assert settings.all_steps == 120
    assert [settings.budget(step) for step in (0, 50, 99, 100, 119)] == pytest.approx(
        [0.3, 0.2, 0.102, 0.05, 0.05]
    )
    assert [
        settings.rate(step) / settings.learning_rate for step in (99, 100, 119)
    ] == pytest.approx([0.02, 0.2, 0.029], abs=1e-3)
    assert settings.next_multiplier(1.0, 0.2, 50) == pytest.approx(1.0)
    assert settings.next_multiplier(1.0, 0.2, 0) > 1.0 > settings.next_multiplier(1.0, 0.2, 100)


def test_healing_shortens_with_the_steps_unless_it_is_given() -> None:
    def healing(**changes: Any) -> int:
        return settings_for(little_language=True, **changes).healing

    assert healing() == healing(steps=None) == healing(steps=2000) == healing(steps=4000) == 300
    assert [healing(steps=steps) for steps in (1000, 8, 1)] == [150, 1, 0]
    assert healing(steps=8, healing=300) == 300 and healing(healing=7) == 7
    assert settings_for(little_language=False, steps=8).all_steps == 8


def test_the_help_shows_the_defaults_of_both_presets() -> None:
    shown = " ".join(CliRunner().invoke(sparsify_command, ["--help"]).output.split())
    assert "[default: 2000 for mini, 600 for a language model]" in shown
    assert "[default: 300 for mini, 0 for a language model]" in shown
    assert "[default: 0.0005 for mini, 0.002 for a language model]" in shown
    assert "Tokens in a row. [default: 64]" in shown
    assert shown.count("[default: ") == 15


@pytest.mark.parametrize("constraint", ["loss", "kl"])
def test_a_large_budget_raises_the_multiplier_and_none_lowers_it_on_a_wrecked_model(
    directories: dict[str, Path], tmp_path: Path, constraint: Any
) -> None:
    ends = {}
    for gap in (50.0, 0.0):
        settings = replace(TINY, steps=5, gap=gap, constraint=constraint)
        weights = find(str(directories["gpt2"]))
        student = to_student(weights, settings)
        for parameter in student.parameters.values():
            parameter.data += 0.5 * torch.randn(
                parameter.shape, generator=torch.Generator().manual_seed(0)
            )
        (folder := tmp_path / f"{gap}").mkdir()
        train(TrainingRun(student, little_language(settings), settings), folder)
        ends[gap] = read_log(folder / "log.jsonl")[-1]["multiplier"]
    assert ends[50.0] == pytest.approx(math.exp(0.1))
    assert ends[0.0] == pytest.approx(math.exp(-0.1))


def test_training_closes_gates(directories: dict[str, Path], tmp_path: Path) -> None:
    settings = replace(TINY, steps=40, gap=50.0, multiplier=100.0, learning_rate=1e-2)
    measured = sparsify(directories["gpt2"], tmp_path, settings=settings)
    assert measured.open_edges < 0.6 * measured.dense.open_edges


# Stopping and resuming


@pytest.fixture(scope="module")
def foreign(
    directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Path]:
    """The same models with one word spelled otherwise, so that theirs is not the little language."""
    copies = tmp_path_factory.mktemp("foreign")
    for name, folder in directories.items():
        vocabulary = shutil.copytree(folder, copies / name) / "tokenizer.json"
        vocabulary.write_text(vocabulary.read_text().replace('"small"', '"petit"'))
    return {name: copies / name for name in directories}


@pytest.fixture(scope="module")
def uninterrupted(
    directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory
) -> Path:
    folder = tmp_path_factory.mktemp("whole") / "twin"
    sparsify(directories["gpt2"], folder, settings=TINY)
    return folder


def same_tensors(one: Path, other: Path) -> bool:
    files = ("training/checkpoint.safetensors", "model.safetensors")
    pairs = [(load_file(one / name), load_file(other / name)) for name in files]
    return all(
        a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
        for a, b in pairs
    )


def steps_done(folder: Path) -> int:
    checkpoint = folder / "training" / "checkpoint.safetensors"
    if not checkpoint.exists():
        return 0
    with safe_open(checkpoint, framework="pt") as stored:
        return json.loads(stored.metadata()["progress"])["step"]


@pytest.mark.long
def test_a_run_killed_at_random_moments_ends_with_the_same_weights(
    directories: dict[str, Path], uninterrupted: Path, tmp_path: Path
) -> None:
    draw, model, done = random.Random(0), directories["gpt2"], []
    for work, *moment in (
        (die_after_lines, draw.randrange(LINES)),
        (die_while_writing, draw.randrange(2), draw.random()),
        (die_after_lines, draw.randrange(LINES)),
        (die_after_lines, draw.randrange(LINES)),
    ):
        process = start(work, *moment, model, tmp_path)
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
        done.append(steps_done(tmp_path))
    sparsify(model, tmp_path, settings=TINY)
    assert same_tensors(tmp_path, uninterrupted)
    assert [line["step"] for line in read_log(tmp_path / "training" / "log.jsonl")] == [5, 6]
    assert not list((tmp_path / "training").glob("*.unfinished"))
    assert done == sorted(done) and 0 < done[1] < TINY.steps, done


@pytest.fixture(scope="module")
def together(
    directories: dict[str, Path],
    foreign: dict[str, Path],
    tmp_path_factory: pytest.TempPathFactory,
) -> Path:
    """What two processes made; the second of them is killed in the end."""
    folder, models = tmp_path_factory.mktemp("together"), (directories["gpt2"], foreign["gpt2"])
    port = free_port()
    processes = [start(train_together, index, port, *models, folder) for index in range(2)]
    for process in processes:
        process.join(300)
    assert [process.exitcode for process in processes] == [0, -signal.SIGKILL]
    return folder


def furthest(one: Path, other: Path) -> float:
    """The largest difference between two checkpoints' weights."""
    a, b = (load_file(each / "checkpoint.safetensors") for each in (one, other))
    assert a.keys() == b.keys()
    return max(
        (a[name] - b[name]).abs().max().item() for name in a if name.startswith("value/")
    )


@pytest.mark.long
def test_two_processes_train_all_weights_as_one_does(
    uninterrupted: Path, together: Path
) -> None:
    assert furthest(together / "all", uninterrupted / "training") < 1e-5
    first, second = (
        load_file(together / "all" / f"weights{index}.safetensors") for index in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)
    ends = [
        read_log(folder / "log.jsonl")[-1]
        for folder in (together / "all", uninterrupted / "training")
    ]
    assert ends[0]["measured"] == pytest.approx(ends[1]["measured"], rel=1e-5)
    assert [ends[0][name] for name in ("multiplier", "gap")] == pytest.approx(
        [ends[1][name] for name in ("multiplier", "gap")], rel=1e-4
    )


@pytest.mark.long
def test_two_processes_train_an_adapter_on_the_models_own_words_as_one_does(
    foreign: dict[str, Path], together: Path, tmp_path: Path
) -> None:
    sparsify(foreign["gpt2"], tmp_path, settings=ADAPTER)
    assert furthest(together / "adapter" / "training", tmp_path / "training") < 1e-5


@pytest.mark.long
def test_the_main_process_publishes_and_both_know_what_was_measured(
    uninterrupted: Path, together: Path
) -> None:
    assert load(together / "published").gated
    measured = [(together / f"measured{index}").read_text() for index in range(2)]
    assert measured[0] == measured[1]
    assert "open edges" in measured[0]
    made = [
        sorted(path.name for path in folder.rglob("*"))
        for folder in (together / "published", uninterrupted)
    ]
    assert made[0] == made[1]


@pytest.mark.long
def test_rows_that_two_processes_cannot_share_are_refused_before_anything_is_written(
    together: Path,
) -> None:
    for index in range(2):
        assert "3 rows" in (together / f"odd{index}").read_text()
        assert "multiple of 2" in (together / f"odd{index}").read_text()
    assert not (together / "odd").exists()


@pytest.mark.long
def test_processes_that_find_different_checkpoints_stop(together: Path) -> None:
    for index in range(2):
        assert "different steps, [0, 1]" in (together / f"apart{index}").read_text()


@pytest.mark.long
def test_one_process_goes_on_where_two_were_killed(
    directories: dict[str, Path], uninterrupted: Path, together: Path
) -> None:
    assert "start the same command again" in (together / "lost0").read_text()
    assert "\n" not in (together / "lost0").read_text()
    assert steps_done(together / "lost") == 4
    sparsify(directories["gpt2"], together / "lost", settings=TINY)
    assert furthest(together / "lost" / "training", uninterrupted / "training") < 1e-5


@pytest.mark.parametrize(
    ("said", "differently"),
    [
        ("2 processes were started and 1 joined", {"num_processes": 1}),
        ("--mixed_precision no", {"mixed_precision": "bf16"}),
        ("launch without FSDP", {"distributed_type": DistributedType.FSDP}),
    ],
)
def test_a_launch_that_would_train_otherwise_than_asked_is_refused(
    said: str, differently: dict[str, Any]
) -> None:
    usual = {
        "num_processes": 2,
        "mixed_precision": "no",
        "distributed_type": DistributedType.MULTI_CPU,
        "device": "cpu",
    }
    check_launch(SimpleNamespace(**usual), 2)
    with pytest.raises(CircuitsError, match=said):
        check_launch(SimpleNamespace(**usual | differently), 2)


def test_a_launcher_that_started_one_process_of_several_is_noticed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert not started_alone()
    monkeypatch.setenv("ACCELERATE_USE_CPU", "True")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    assert started_alone()
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert not started_alone()


def test_each_part_of_the_rows_gets_the_noise_that_it_has_among_all() -> None:
    scores = causal_scores(4, 3, 5, 5)
    whole = training_gate(TINY, 3)(scores)
    for index, rows in enumerate(scores.chunk(2)):
        assert torch.equal(training_gate(TINY, 3, part=(index, 2))(rows), whole.chunk(2)[index])
    assert not torch.equal(training_gate(TINY, 3)(scores[2:]), whole[2:])


def test_a_loss_that_is_no_number_stops_with_one_line_and_the_checkpoint_whole(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    settings = replace(TINY, learning_rate=1e30)
    with pytest.raises(CircuitsError, match="broke at step 1") as error:
        sparsify(directories["gpt2"], tmp_path, settings=settings, save_every=0.0)
    assert "\n" not in str(error.value)
    assert steps_done(tmp_path) == 1
    stored = load_file(tmp_path / "training" / "checkpoint.safetensors")
    assert all(tensor.isfinite().all() for tensor in stored.values())


def test_a_full_disk_stops_with_one_line_and_the_checkpoint_whole(
    directories: dict[str, Path],
    uninterrupted: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unfinished, writes = tmp_path / "training" / "checkpoint.unfinished", []

    def fsync(file: int) -> None:
        # A folder is synced when nothing is unfinished.
        writes.extend([file] * unfinished.exists())
        if len(writes) == 4:
            os.truncate(unfinished, 4)
            raise OSError(28, "No space left on device")

    with (
        monkeypatch.context() as patched,
        pytest.raises(FileError, match="No space left") as error,
    ):
        patched.setattr(os, "fsync", fsync)
        sparsify(directories["gpt2"], tmp_path, settings=TINY, save_every=0.0)
    assert "\n" not in str(error.value)
    assert not unfinished.exists()
    assert steps_done(tmp_path) == 3
    sparsify(directories["gpt2"], tmp_path, settings=TINY)
    assert same_tensors(tmp_path, uninterrupted)


def test_a_checkpoint_that_is_older_than_a_setting_goes_on(
    directories: dict[str, Path], uninterrupted: Path, tmp_path: Path
) -> None:
    source = uninterrupted / "training" / "checkpoint.safetensors"
    with safe_open(source, framework="pt") as stored:
        progress = json.loads(stored.metadata()["progress"])
    del progress["recipe"]["settings"]["healing"]
    save_file(
        load_file(source), tmp_path / source.name, metadata={"progress": json.dumps(progress)}
    )
    student = to_student(find(str(directories["gpt2"])), TINY)
    train(TrainingRun(student, little_language(TINY), TINY), tmp_path)
    name = "transformer.wte.weight"
    assert torch.equal(student.parameters[name], load_file(source)[f"value/{name}"])


def test_a_folder_with_other_files_is_refused_and_left_as_it_is(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "model.safetensors").write_text("not ours")
    with pytest.raises(FileError, match="a folder of its own"):
        sparsify(directories["gpt2"], tmp_path, settings=TINY)
    assert [file.read_text() for file in tmp_path.iterdir()] == ["not ours"]


def test_a_folder_of_another_run_is_refused(
    directories: dict[str, Path], uninterrupted: Path
) -> None:
    with pytest.raises(FileError, match=r"another run: steps .*, not 9"):
        sparsify(directories["gpt2"], uninterrupted, settings=replace(TINY, steps=9))


# The result


def test_the_twin_loads_gated_and_predicts_as_the_trainer_does(uninterrupted: Path) -> None:
    model = load(uninterrupted)
    tokens = tokens_of(model)
    trained: Any = find(str(uninterrupted)).model
    with torch.inference_mode(), attending(trained, hard):
        expected = trained(tokens).logits
    assert model.gated
    assert torch.allclose(model.logits(tokens), expected, atol=1e-4)
    assert (
        load_file(uninterrupted / "model.safetensors")["transformer.wte.weight"].dtype
        == torch.float16
    )


def test_plain_transformers_opens_the_twin(uninterrupted: Path) -> None:
    model, tokenizer = (
        AutoModelForCausalLM.from_pretrained(uninterrupted),
        AutoTokenizer.from_pretrained(uninterrupted),
    )
    assert model(**tokenizer(PROMPT, return_tensors="pt")).logits.isfinite().all()


@pytest.mark.parametrize(("low", "high"), [(3.2, 5.9), (1.81, 2.12), (0.2, 47.0), (1e-3, 80.0)])
def test_every_axis_of_the_picture_of_a_training_has_numbers(
    low: float, high: float, tmp_path: Path
) -> None:
    values = [(step, low + (high - low) * step / 10) for step in range(11)]
    log: Any = [
        {"step": step, "gap": 0.1, "multiplier": value, "measured": {"open_edges": value / 100}}
        for step, value in values
    ]
    draw_training(log, Settings(gap=0.1), tmp_path / "training.svg")
    groups = [
        *ElementTree.parse(tmp_path / "training.svg").iter("{http://www.w3.org/2000/svg}g")
    ]
    panels = [group for group in groups if str(group.get("id")).startswith("axes_")]
    assert len(panels) == 3
    for panel in panels:
        ticks = [group for group in panel.iter() if str(group.get("id")).startswith("ytick_")]
        assert len([tick for tick in ticks if "".join(tick.itertext()).strip()]) >= 2


def test_the_card_shows_what_circuits_json_says(uninterrupted: Path) -> None:
    said, card = (
        json.loads((uninterrupted / "circuits.json").read_text()),
        (uninterrupted / "README.md").read_text(),
    )
    assert said["gate"] is True
    assert f"{said['measured']['loss']:.4f}" in card
    assert "training.svg" in card
    assert (uninterrupted / "training.svg").read_text().count("<path") > 3


@pytest.mark.long
@pytest.mark.parametrize("architecture", ["gpt2", "llama", "neox"])
def test_an_adapter_trains_on_the_models_own_words_and_loads_gated(
    foreign: dict[str, Path], tmp_path: Path, architecture: str
) -> None:
    pytest.importorskip("peft")
    settings = Settings(steps=3, batch=2, length=10, warmup=1, lora=2)
    name = str(foreign[architecture])
    measured = sparsify(name, tmp_path, settings=settings)
    model = load(tmp_path)
    assert model.gated
    assert (tmp_path / "adapter_model.safetensors").exists()
    assert not (tmp_path / "model.safetensors").exists()
    assert "sampled from the dense model" in (tmp_path / "README.md").read_text()
    again = corpus_for(find(name), settings, text=None, folder=tmp_path / "training")
    assert again.held_out.shape == (128, 10)
    assert measured.tokens == 128 * 9


@pytest.mark.long
def test_a_training_begins_as_the_published_twin_that_it_is_given(
    foreign: dict[str, Path], tmp_path: Path
) -> None:
    name, published = str(foreign["llama"]), tmp_path / "published"
    settings = Settings(steps=3, batch=2, length=10, warmup=1, lora=2)
    sparsify(name, published, settings=settings)
    shutil.rmtree(published / "training")  # no checkpoint is published
    hardly = replace(settings, steps=1, learning_rate=1e-9)
    sparsify(name, tmp_path / "further", settings=replace(hardly, lora=4), after=published)
    before, after = load(published), load(tmp_path / "further")
    tokens = tokens_of(before)
    torch.testing.assert_close(before.logits(tokens), after.logits(tokens), rtol=0, atol=1e-5)
    with pytest.raises(FileError, match="of at most this rank"):
        sparsify(name, tmp_path / "smaller", settings=replace(hardly, lora=1), after=published)


def test_the_card_sets_the_tasks_of_both_models_side_by_side(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    measured = measure_sparsity(directories["gpt2"], [PROMPT])
    scores = [
        [Score("opposite", before, 512), Score("loss", 1.5, 99)] for before in (1.0, 0.995)
    ]
    write_card(
        tmp_path / "card.md", measured, {"settings": {"steps": 3}, "text": "none"}, scores, []
    )
    assert "| opposite | 100.00% | 99.50% | 512 |" in (tmp_path / "card.md").read_text()


# Text


def test_batches_depend_on_seed_and_step_alone() -> None:
    corpus, again = little_language(LITTLE_LANGUAGE), little_language(LITTLE_LANGUAGE)
    assert torch.equal(corpus.batch(7).tokens, again.batch(7).tokens)
    assert torch.equal(corpus.batch(7).weight, again.batch(7).weight)
    assert not torch.equal(corpus.batch(7).tokens, corpus.batch(8).tokens)


def test_a_jsonl_and_a_text_file_become_rows_with_bos(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"text": PROMPT}) + "\n" for _ in range(40))
    )
    (tmp_path / "a.txt").write_text(PROMPT + " " + PROMPT)
    weights = find(str(directories["gpt2"]))
    corpus = corpus_for(weights, TINY, text=tmp_path / "a.jsonl", folder=tmp_path)
    assert corpus.batch(0).tokens.shape == (2, 12)
    assert corpus.batch(0).tokens[:, 0].tolist() == [weights.tokenizer.bos_token_id] * 2
    assert [
        tuple(rows.shape)
        for rows in to_rows(weights, read_texts(tmp_path / "a.txt"), length=10)
    ] == [
        (1, 10),
        (1, 8),
    ]
    (tmp_path / "bad.jsonl").write_text('{"words": 1}\n')
    with pytest.raises(FileError, match='field "text"'):
        read_texts(tmp_path / "bad.jsonl")


# Measuring


def test_measured_figures_equal_the_models_own_scores_and_losses(model: Model) -> None:
    measured = measure_sparsity(model, [PROMPT])
    tokens, scores = tokens_of(model), []
    names = [f"blocks.{layer}.attn.hook_attn_scores" for layer in range(model.n_layers)]
    with model.hooked(
        [(name, lambda tensor, hook: scores.append(tensor.clone())) for name in names]
    ):
        logits = model.logits(tokens)
    edges = tokens.shape[1] * (tokens.shape[1] + 1) / 2
    for layer, each in enumerate(
        scores[:1]
    ):  # above the first layer the gate itself changes the scores
        assert measured.gated.per_head[layer] == pytest.approx(
            ((each[0] > 0).sum((1, 2)) / edges).tolist()
        )
    loss = torch.nn.functional.cross_entropy(logits[0, :-1], tokens[0, 1:])
    assert measured.dense_loss == pytest.approx(loss.item(), abs=1e-4)
    assert measured.divergence > 0
    assert measured.dense.first_token > measured.gated.first_token


def test_open_edges_by_length_are_those_that_prompts_of_this_length_have(
    directories: dict[str, Path],
) -> None:
    weights = find(str(directories["gpt2"]))
    rows = little_language(Settings(length=20)).held_out[:3]
    measured = measure(weights.model, weights.model, [rows], name="twin", original="dense")
    assert [each.length for each in measured.by_length] == [8, 16, 20]
    for each in measured.by_length:
        opened = []

        def counting(scores: torch.Tensor, opened: list[int] = opened) -> torch.Tensor:
            opened.append(int((scores > 0).sum()))
            return hard(scores)

        logits_under(counting, weights.model, rows[:, : each.length])
        heads = weights.model.config.num_attention_heads * len(opened)
        queries = heads * len(rows) * each.length
        assert each.edges == pytest.approx(sum(opened) / queries)
        assert each.share == pytest.approx(each.edges / ((each.length + 1) / 2))
    assert measured.edges_per_query == pytest.approx(measured.open_edges * 21 / 2)


def test_a_row_of_one_token_is_refused(directories: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="at least 2 tokens"):
        measure_sparsity(directories["gpt2"], [PROMPT], length=1)


def test_a_model_without_text_of_its_own_must_be_given_some(foreign: dict[str, Path]) -> None:
    with pytest.raises(ModelError, match="give it some"):
        measure_sparsity(foreign["gpt2"])


def test_the_commands_train_and_measure(directories: dict[str, Path], tmp_path: Path) -> None:
    twin, short = str(tmp_path / "twin"), ["--steps", "2", "--batch", "2", "--length", "8"]
    made = CliRunner().invoke(
        sparsify_command, [str(directories["gpt2"]), "-o", twin, *short], catch_exceptions=False
    )
    assert "open edges" in made.output
    assert [
        line["step"] for line in read_log(tmp_path / "twin" / "training" / "log.jsonl")
    ] == [2]
    said = CliRunner().invoke(
        sparsity_command, [twin, "--rows", "4", "--json"], catch_exceptions=False
    )
    told = json.loads(said.output)
    assert told["original"] == str(directories["gpt2"])
    assert told["edges_per_query"] == pytest.approx(told["by_length"][-1]["edges"])
    assert (
        "L2  "
        in CliRunner()
        .invoke(sparsity_command, [twin, "--rows", "4"], catch_exceptions=False)
        .output
    )
