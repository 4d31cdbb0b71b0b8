"""A model's own words: as likely as it says, the same after a kill, and trainable with fewer tokens."""

from __future__ import annotations

import math
import shutil
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_processes import ASKED, FEWER_TOKENS, PROMPTED, TWO_CHUNKS, die_at_file, start

from circuits.errors import CircuitsError, FileError, ModelError
from circuits.models.folder import Weights
from circuits.models.load import find, load
from circuits.sparsify import SHORT_ROWS, Settings, sparsify
from circuits.sparsify.sampling import (
    CHUNK_ROWS,
    OwnWords,
    Sampling,
    sample_rows,
)
from circuits.sparsify.small_vocabulary import shrunk, survey
from circuits.sparsify.text import corpus_for


@pytest.fixture(scope="module")
def foreign(directories: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GPT-2 with one word spelled otherwise, so that its language is not the little one."""
    folder = shutil.copytree(directories["gpt2"], tmp_path_factory.mktemp("foreign") / "gpt2")
    vocabulary = folder / "tokenizer.json"
    vocabulary.write_text(vocabulary.read_text().replace('"small"', '"petit"'))
    return folder


@pytest.fixture(scope="module")
def weights(foreign: Path) -> Weights:
    return find(str(foreign))


def logits(model: Any, rows: torch.Tensor) -> torch.Tensor:
    with torch.inference_mode():
        return model(rows, use_cache=False).logits


def test_tokens_are_drawn_as_often_as_the_model_says(weights: Weights) -> None:
    rows = sample_rows(
        weights, count=4000, length=2, seed=0, sampling=Sampling(temperatures=(0.5,))
    )
    chances = (logits(weights.model, rows[:1, :1])[0, -1] / 0.5).softmax(-1)
    counts = torch.bincount(rows[:, 1], minlength=len(chances)) / len(rows)
    deviation = (chances * (1 - chances) / len(rows)).sqrt()
    assert ((counts - chances).abs() <= 5 * deviation + 1 / len(rows)).all()
    assert (counts > 0.01).sum() > 5


def test_a_cold_row_is_what_the_model_finds_likeliest_at_every_place(weights: Weights) -> None:
    cold = Sampling(openings=("The opposite of", "large"), temperatures=(1e-4,))
    rows = sample_rows(weights, count=6, length=12, seed=1, sampling=cold)
    likeliest = logits(weights.model, rows).argmax(-1)[:, :-1]
    encoded: Any = [
        weights.tokenizer(text, add_special_tokens=False)["input_ids"] for text in cold.openings
    ]
    for row, expected in zip(rows.tolist(), likeliest.tolist(), strict=True):
        opening = next(tokens for tokens in encoded if row[1 : 1 + len(tokens)] == tokens)
        assert row[0] == weights.tokenizer.bos_token_id
        assert row[1 + len(opening) :] == expected[len(opening) :]


def test_a_model_without_bos_begins_with_any_token_that_is_kept(
    directories: dict[str, Path],
) -> None:
    llama = find(str(directories["llama"]))
    rows = sample_rows(llama, count=64, length=4, seed=0)
    assert len(rows[:, 0].unique()) > 30
    vocabulary = survey(llama.model, rows, most=300, needed=set())
    few = sample_rows(llama, count=64, length=4, seed=0, vocabulary=vocabulary)
    assert len(few[:, 0].unique()) > 30
    assert set(few.unique().tolist()) <= set(vocabulary.kept.tolist())


def test_the_same_seed_gives_the_same_rows_and_another_gives_others(weights: Weights) -> None:
    rows, again, other = (
        sample_rows(weights, count=300, length=6, seed=seed) for seed in (0, 0, 1)
    )
    assert torch.equal(rows, again)
    assert not torch.equal(rows, other)


def test_a_model_with_fewer_tokens_says_of_them_what_the_whole_model_says(
    weights: Weights,
) -> None:
    rows = sample_rows(weights, count=16, length=8, seed=0)
    vocabulary = survey(weights.model, rows, most=300, needed={5})
    small = shrunk(weights, vocabulary)
    whole = logits(weights.model, rows)
    assert torch.allclose(
        logits(small, vocabulary.shrink(rows)), whole[..., vocabulary.kept], atol=1e-5
    )
    chances = whole.softmax(-1)[..., vocabulary.kept].sum(-1).mean().item()
    assert vocabulary.coverage == pytest.approx(chances, abs=1e-5)
    assert {5, *rows.unique().tolist()} <= set(vocabulary.kept.tolist())
    unknown = next(token for token in range(vocabulary.size) if token not in vocabulary.kept)
    with pytest.raises(ModelError, match=f"token {unknown} is not among the 300 kept"):
        vocabulary.shrink(torch.tensor([[unknown]]))


def test_rows_of_fewer_tokens_have_no_others(weights: Weights, tmp_path: Path) -> None:
    own = OwnWords(weights, TWO_CHUNKS, 10, 0, tmp_path, tokens=300)
    assert own.vocabulary is not None
    kept = set(own.vocabulary.kept.tolist())
    assert set(own.chunk(0).unique().tolist()) <= kept
    assert not set(own.held_out().unique().tolist()) <= kept  # the whole model wrote these


def test_a_share_of_the_steps_takes_short_pieces(weights: Weights, tmp_path: Path) -> None:
    settings = Settings(batch=2, length=30, short=0.5)
    corpus = corpus_for(
        weights, settings, text=None, folder=tmp_path, sampling=Sampling(rows=40)
    )
    tokens = [corpus.batch(step).tokens for step in range(30)]
    short = [rows for rows in tokens if rows.shape[1] < 30]
    assert 5 < len(short) < 25
    for rows in short:
        count, length = rows.shape
        assert SHORT_ROWS[0] <= length <= SHORT_ROWS[1]
        assert count == 2 * (30 // length)
        assert rows[:, 0].tolist() == [weights.tokenizer.bos_token_id] * len(rows)
    assert torch.equal(corpus.batch(7).tokens, tokens[7])


def test_openings_count_as_targets_only_if_they_should(
    weights: Weights, tmp_path: Path
) -> None:
    openings = ("", "The opposite of")
    for counted, expected in (
        (True, {10.0}),
        (False, {9.0, 6.0}),
    ):  # without BOS, or without all four
        sampling = Sampling(rows=32, openings=openings, openings_count=counted)
        own = OwnWords(weights, sampling, 10, 0, tmp_path / str(counted))
        assert set(own.weight(own.chunk(0)).sum(1).tolist()) == expected


def test_a_share_of_the_steps_takes_prompts_whose_answers_count_most(
    weights: Weights, tmp_path: Path
) -> None:
    settings = Settings(batch=2, length=30, prompted=0.5)
    given: Any = {
        "text": None,
        "folder": tmp_path,
        "sampling": Sampling(rows=40),
        "prompts": ASKED,
    }
    batches = [corpus_for(weights, settings, **given).batch(step) for step in range(30)]
    asked = [rows for rows in batches if rows.tokens.shape[1] < 30]
    assert 5 < len(asked) < 25
    ends: Any = [
        weights.tokenizer(text, add_special_tokens=False)["input_ids"]
        for text in ASKED.openings
    ]
    for rows in asked:
        # BOS, three words, and three that follow.
        assert rows.tokens.shape == (2 * (30 // 7), 7)
        for tokens, weight in zip(rows.tokens.tolist(), rows.weight.tolist(), strict=True):
            answer = next(1 + len(end) for end in ends if tokens[1 : 1 + len(end)] == end)
            assert weight == [5.0 if position == answer else 1.0 for position in range(7)]
    assert all((rows.weight == 1).all() for rows in batches if rows.tokens.shape[1] == 30)


def test_prompts_and_their_share_of_the_steps_need_each_other(
    weights: Weights, tmp_path: Path
) -> None:
    given: Any = {"text": None, "folder": tmp_path}
    with pytest.raises(CircuitsError, match="need each other"):
        corpus_for(weights, Settings(prompted=0.5), **given)
    with pytest.raises(CircuitsError, match="need each other"):
        corpus_for(weights, Settings(), prompts=ASKED, **given)
    with pytest.raises(CircuitsError, match=r"a share from 0 to 0\.6, what short rows leave"):
        Settings(short=0.4, prompted=0.7)
    with pytest.raises(CircuitsError, match="less than nothing"):
        Sampling(answers=-1.0)


def test_later_steps_draw_from_more_text(weights: Weights, tmp_path: Path) -> None:
    own = OwnWords(weights, Sampling(rows=2 * CHUNK_ROWS + 1), 4, 0, tmp_path)
    assert [len(own.upto(done)) for done in (0.0, 0.3, 0.34, 0.9, 1.0)] == [1, 1, 2, 3, 3]
    assert [len(chunk) for chunk in own.upto(1.0)] == [CHUNK_ROWS, CHUNK_ROWS, 1]


@pytest.mark.long
def test_a_run_killed_while_it_samples_ends_with_the_same_weights(
    foreign: Path, tmp_path: Path
) -> None:
    given: Any = {"settings": PROMPTED, "sampling": TWO_CHUNKS, "prompts": ASKED}
    sparsify(foreign, tmp_path / "whole", **given)
    for name in (
        "survey",
        "own-words/0000",
        "prompts/0000",
        "checkpoint",
        "0001",
        "checkpoint",
    ):
        process = start(die_at_file, name, foreign, tmp_path / "killed")
        process.join(300)
        assert process.exitcode == -signal.SIGKILL
    sparsify(foreign, tmp_path / "killed", **given)
    for file in ("training/checkpoint.safetensors", "adapter_model.safetensors"):
        whole, killed = (load_file(tmp_path / folder / file) for folder in ("whole", "killed"))
        assert all(torch.equal(whole[name], killed[name]) for name in whole)
    assert load(tmp_path / "killed").gated  # the adapter fits the whole model
    still = replace(FEWER_TOKENS, steps=1, learning_rate=1e-12)
    sparsify(
        foreign,
        tmp_path / "next",
        settings=still,
        sampling=TWO_CHUNKS,
        after=tmp_path / "killed",
    )
    taken = load_file(tmp_path / "next" / "adapter_model.safetensors")
    assert all(torch.equal(taken[name], killed[name]) for name in killed)
    assert "after 4 steps of killed" in (tmp_path / "next" / "README.md").read_text()


def test_a_damaged_chunk_is_refused(weights: Weights, tmp_path: Path) -> None:
    own = OwnWords(weights, Sampling(rows=8), 6, 0, tmp_path)
    own.chunk(0)
    file = tmp_path / "0000.safetensors"
    with pytest.raises(FileError, match="rows of this model's tokens; delete it"):
        OwnWords(weights, Sampling(rows=8), 5, 0, tmp_path).chunk(0)
    file.write_bytes(file.read_bytes()[:-3])
    with pytest.raises(FileError, match="delete it"):
        OwnWords(weights, Sampling(rows=8), 6, 0, tmp_path).chunk(0)


def test_impossible_sampling_is_refused(weights: Weights, tmp_path: Path) -> None:
    with pytest.raises(CircuitsError, match="at least one row"):
        Sampling(rows=0)
    with pytest.raises(CircuitsError, match="temperatures must be above 0"):
        Sampling(temperatures=(0.0,))
    with pytest.raises(CircuitsError, match="temperatures must be above 0"):
        Sampling(temperatures=(math.nan,))
    with pytest.raises(CircuitsError, match="learning_rate must be a finite number, not nan"):
        Settings(learning_rate=math.nan)
    with pytest.raises(CircuitsError, match="gap must not be below 0 nats, not -1"):
        Settings(gap=-1.0)
    with pytest.raises(CircuitsError, match="need an adapter"):
        replace(FEWER_TOKENS, lora=0)
    (tmp_path / "a.txt").write_text("The opposite of")
    with pytest.raises(CircuitsError, match="leave out the text"):
        corpus_for(weights, FEWER_TOKENS, text=tmp_path / "a.txt", folder=tmp_path)
