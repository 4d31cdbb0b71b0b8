"""The little language is what its card says, training resumes exactly, `mini` knows what it was taught."""

from __future__ import annotations

import random
import re
from itertools import permutations
from pathlib import Path

import pytest
import torch
import train_stories
from small_models import loaded
from train_mini import Plan, documents, fresh_model, train

import circuits
from circuits.models import ZOO
from circuits.models.model import Model
from circuits.sparsify import measure_sparsity
from circuits.sparsify.training import load_checkpoint
from circuits.zoo import language
from circuits.zoo.evaluate import STORY_FRAMES, STORY_NAMES, score_loss, score_task, to_table
from circuits.zoo.language import tokenizer

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


def sentences(task: str, count: int, *, held_out: bool = False) -> list[language.Sentence]:
    draw = random.Random("test")
    return [language.sentence(draw, task, held_out=held_out) for _ in range(count)]


@pytest.mark.parametrize("task", language.TASKS)
def test_the_tokenizer_cuts_sentences_as_the_language_does(task: str) -> None:
    cut, vocabulary = tokenizer(), language.vocabulary()
    for sentence in sentences(task, 100):
        assert cut(sentence.text)["input_ids"] == [vocabulary[word] for word in sentence.words]


def test_the_language_is_as_large_as_the_card_says() -> None:
    assert len(set(language.SUBJECTS)) == len(language.SUBJECTS) >= 150
    assert len(language.RELATIONS) >= 4
    assert all(set(answers) == set(language.SUBJECTS) for answers in language.FACTS.values())
    opposite = language.FACTS["opposite"]
    assert all(opposite[opposite[word]] == word != opposite[word] for word in language.SUBJECTS)


@pytest.mark.parametrize("task", ["relation", "indirect_object", "greater_than", "induction"])
def test_every_sentence_has_its_answer_where_it_says(task: str) -> None:
    for sentence in sentences(task, 200):
        said = [sentence.words[at] for at in sentence.answers]
        if task == "relation":
            assert sentence.relation is not None
            assert said[0] in language.FACTS[sentence.relation].values()
        elif task == "indirect_object":
            # Once where the two are named, once as the answer.
            assert sentence.words.count(said[0]) == 2
        elif task == "greater_than":
            century = next(index for index, word in enumerate(sentence.words) if word.isdigit())
            start = int(sentence.words[century + 1])
            assert sentence.possible == tuple(f"{year:02d}" for year in range(start + 1, 100))
            assert said[0] in sentence.possible
        else:
            half = len(sentence.words) // 2
            assert sentence.words[:half] == sentence.words[half : 2 * half]


def test_training_never_writes_a_held_out_sentence() -> None:
    written = {sentence.text for task in language.TASKS for sentence in sentences(task, 300)}
    held = {
        sentence.text
        for task in language.TASKS
        for sentence in sentences(task, 300, held_out=True)
    }
    assert not written & held


def test_the_twin_of_stories_was_never_asked_a_held_out_prompt() -> None:
    trained = {text for stage in train_stories.STAGES for text in stage.sampling.openings}
    trained |= set(train_stories.ASKED.openings)
    halves = [
        half
        for frames in STORY_FRAMES.values()
        for frame in frames
        for half in frame.split(". ", 1)
    ]
    for answer, other in permutations(STORY_NAMES, 2):
        asked = [half.format(answer=answer, other=other) for half in halves]
        assert not [text for text in trained for half in asked if half in text]


def test_documents_depend_on_seed_and_step_alone() -> None:
    plan = Plan(batch=2)
    assert torch.equal(documents(plan, 7).tokens, documents(plan, 7).tokens)
    assert not torch.equal(documents(plan, 7).tokens, documents(plan, 8).tokens)
    assert not torch.equal(
        documents(plan, 7).tokens, documents(Plan(batch=2, seed=1), 7).tokens
    )


def test_a_run_that_was_stopped_ends_with_the_same_weights(tmp_path: Path) -> None:
    plan = Plan(
        steps=5,
        dropout_from=1,
        dropout_until=4,
        all_years_from=3,
        batch=2,
        length=24,
        warmup=1,
        horizon=8,
        cooldown=1,
    )
    whole = train(plan, tmp_path / "whole", save_every=2).state_dict()
    train(plan, tmp_path / "parts", save_every=2, stop_at=2)
    parts = train(plan, tmp_path / "parts", save_every=2).state_dict()
    assert all(torch.equal(whole[name], parts[name]) for name in whole)


def test_a_checkpoint_of_another_plan_is_refused(tmp_path: Path) -> None:
    plan = Plan(steps=1, batch=1, length=16)
    train(plan, tmp_path)
    with pytest.raises(SystemExit, match="another plan"):
        train(Plan(steps=1, batch=1, length=16, seed=1), tmp_path)
    parameters = dict(fresh_model(plan).named_parameters())
    assert (
        load_checkpoint(
            tmp_path / "checkpoint.safetensors",
            parameters,
            torch.optim.AdamW(parameters.values()),
        )["step"]
        == 1
    )


# The model that ships


def test_mini_fits_into_the_package() -> None:
    assert (ZOO / "mini" / "model.safetensors").stat().st_size <= 8_000_000


def test_mini_reads_large_at_five_and_the_last_quote_at_eight(mini: Model) -> None:
    words = [mini.spell(token) for token in mini.tokenize('The opposite of "large" is "')]
    assert (words[5], words[8], len(words)) == ("large", '"', 9)


@pytest.mark.long
@pytest.mark.parametrize("task", ["relation", "indirect_object", "greater_than", "induction"])
def test_mini_knows_what_it_was_taught_in_contexts_it_never_saw(mini: Model, task: str) -> None:
    assert score_task(mini.logits, task, count=96, seed=1).value >= (
        0.93 if task == "induction" else 0.97
    )


@pytest.mark.long
def test_the_model_card_says_what_is_measured(mini: Model) -> None:
    card = (ZOO / "mini" / "README.md").read_text()
    measured = to_table(
        [
            score_task(mini.logits, "relation", count=512, relation="opposite"),
            score_loss(mini.logits),
        ]
    ).splitlines()[2:]
    for line in measured:
        said = next(
            other
            for other in card.splitlines()
            if other.split("|")[1:2] == line.split("|")[1:2]
        )
        numbers = [float(re.findall(r"[\d.]+", text.split("|")[2])[0]) for text in (line, said)]
        assert numbers[0] == pytest.approx(numbers[1], abs=0.005)


@pytest.mark.long
def test_the_twin_has_few_open_edges_and_loses_almost_nothing(mini: Model) -> None:
    assert (ZOO / "mini-sparse" / "model.safetensors").stat().st_size <= 8_000_000
    found = measure_sparsity("mini-sparse", rows=32)
    assert (found.original, found.dense.open_edges > 0.4) == ("mini", True)
    assert found.open_edges <= 0.005
    assert found.gap <= 0.03
    twin = loaded("mini-sparse")
    for task in ("relation", "indirect_object", "greater_than", "induction"):
        dense, sparse = (
            score_task(model.logits, task, count=64, seed=2).value for model in (mini, twin)
        )
        assert sparse >= dense - 0.02, task  # its card says how near over 512 prompts


@pytest.mark.long
def test_the_carriers_do_not_all_sit_in_layer_0(mini: Model) -> None:
    text = 'Tom wrote "cold" on the wall . The opposite of "large" , not of "wet" , is "'
    found = circuits.trace(mini, text, key="large", swap={"large": "hot"})
    assert found.mapping().total > 0.5
    assert {head.layer for head in found.carriers()} - {0}


@pytest.mark.long
def test_the_example_of_the_readme_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    example = re.search(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)
    assert example is not None
    monkeypatch.chdir(tmp_path)
    exec(compile(example[1], "README.md", "exec"), {})
    assert "Modulated at" in capsys.readouterr().out
    assert circuits.Circuit.load("out").carriers()
