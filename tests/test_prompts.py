"""Positions, pairs and metrics mean what a user means by them, and say so when they cannot."""

from __future__ import annotations

import math

import pytest
import torch
from small_models import loaded

from circuits.components import Edge, Head
from circuits.errors import EdgeError, PromptError
from circuits.models.model import Model
from circuits.prompts import (
    Metric,
    Noise,
    Pair,
    Prompt,
    answer_token,
    swap_words,
    to_pair,
    to_prompt,
)

TEXT = 'The opposite of "large" is "'


@pytest.fixture(scope="module")
def model() -> Model:
    return loaded("planted-sparse")


@pytest.fixture(scope="module")
def prompt(model: Model) -> Prompt:
    return to_prompt(model, TEXT)


def test_bos_is_zero_so_large_is_five_and_the_last_quote_eight(prompt: Prompt) -> None:
    assert [prompt.words[at] for at in (5, 8)] == ["large", '"']
    assert len(prompt) == 9


@pytest.mark.parametrize(
    ("at", "position"),
    [(5, 5), (-1, 8), (-4, 5), ("large", 5), ("opposite", 2), ("5", 5), ("-1", 8)],
)
def test_a_position_is_named_by_index_negative_index_or_text(
    prompt: Prompt, at: int | str, position: int
) -> None:
    assert prompt.position(at) == position


@pytest.mark.parametrize(
    ("at", "says"),
    [
        ("larg", "no token 'larg'"),
        ('"', "4, 6, 8"),
        (9, "0…8"),
        (-10, "0…8"),
        ("99", "0…8"),
        ("", "no token"),
    ],
)
def test_a_position_that_is_not_there_is_an_error_that_lists_the_candidates(
    prompt: Prompt, at: int | str, says: str
) -> None:
    with pytest.raises(PromptError, match=says) as refused:
        prompt.position(at)
    assert "large(5)" in str(refused.value)


def test_a_leading_space_need_not_be_written() -> None:
    spaced = Prompt("a large", (1, 2), ("a", " large"))
    assert spaced.position("large") == spaced.position(" large") == 1


def test_words_are_swapped_all_at_once() -> None:
    assert swap_words("John saw Mary", {"John": "Mary", "Mary": "John"}) == "Mary saw John"
    with pytest.raises(PromptError, match="cannot swap 'huge'"):
        swap_words(TEXT, {"huge": "hot"})


def test_a_counterfactual_of_another_length_shows_both_tokenisations(model: Model) -> None:
    with pytest.raises(PromptError, match="9 and 10") as refused:
        to_pair(model, TEXT, counterfactual='The opposite of the "hot" is "')
    assert "large(5)" in str(refused.value)
    assert "hot(6)" in str(refused.value)


def test_answer_and_foil_are_the_top_predictions_unless_named(model: Model) -> None:
    pair = to_pair(model, TEXT, swap={"large": "hot"})
    assert (pair.metric.answer_text, pair.metric.foil_text) == ("small", "cold")
    named = to_pair(model, TEXT, swap={"large": "hot"}, answer="short", foil="poor")
    assert str(named.metric) == "logit(short) − logit(poor)"
    assert pair.differs_at == (5,)


def test_noise_has_no_foil_so_its_metric_is_the_log_probability(model: Model) -> None:
    pair = to_pair(model, TEXT, noise_at=(5,))
    assert pair.metric.kind == "logprob"
    assert pair.counterfactual == Noise((5,))
    with pytest.raises(PromptError, match="foil"):
        to_pair(model, TEXT, noise_at=(5,), metric="logit_diff")


def test_the_likelier_spelling_of_an_answer_is_meant(model: Model) -> None:
    predictions = torch.zeros(model.vocab_size)
    assert model.spell(answer_token(model, "small", predictions)) == "small"
    with pytest.raises(PromptError, match="does not know"):
        answer_token(model, "gigantic", predictions)
    with pytest.raises(PromptError, match="must not be empty"):
        answer_token(model, " ", predictions)


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"swap": {"large": "hot"}, "counterfactual": TEXT}, "not both"),
        ({}, "no counterfactual"),
        ({"counterfactual": TEXT}, "same as the prompt"),
        ({"swap": {"large": "hot"}, "metric": "speed"}, "no metric 'speed'"),
        (
            {"swap": {"large": "hot"}, "answer": "small", "foil": "small"},
            "answer and foil are both",
        ),
    ],
)
def test_a_pair_that_does_not_fit_is_refused(model: Model, asked: dict, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        to_pair(model, TEXT, **asked)


def test_a_pair_of_unequal_prompts_cannot_be_made_by_hand_either(
    prompt: Prompt, model: Model
) -> None:
    metric = to_pair(model, TEXT, swap={"large": "hot"}).metric
    with pytest.raises(PromptError, match="same number of tokens"):
        Pair(prompt, to_prompt(model, "The opposite"), metric)


# Metrics


def test_every_metric_is_the_formula_written_out() -> None:
    """Of logits whose probabilities are 1/2, 1/4 and 1/4, against a clean run that was sure of the first."""
    logits = torch.tensor([[[0.5, 0.25, 0.25]]]).log()
    clean = torch.tensor([[1.0, 1e-30, 1e-30]]).log()
    difference = Metric("logit_diff", 0, "a", foil=1, foil_text="b")
    assert float(difference.read(logits)) == pytest.approx(math.log(2))
    any_of_two = Metric("logit_diff", 0, "a", foil=1, foil_text="b or c", foils=(1, 2))
    assert float(any_of_two.read(logits)) == pytest.approx(0, abs=1e-6)
    assert float(Metric("logprob", 1, "b").read(logits)) == pytest.approx(math.log(1 / 4))
    assert float(Metric("logprob", 1, "b or c", answers=(1, 2)).read(logits)) == pytest.approx(
        math.log(1 / 2)
    )
    assert float(Metric("kl", 0, "a").read(logits, clean)) == pytest.approx(-math.log(2))
    assert (
        float(Metric("custom", 0, "a", function=lambda last: last[:, 2]).read(logits))
        == logits[0, 0, 2]
    )
    both = Metric("logprob", 0, "ab", sequence=(0, 1))
    assert both.positions_read == 2
    assert float(both.read(logits.repeat(1, 2, 1))) == pytest.approx(math.log(1 / 8))
    assert both.answer_probability(logits[0].repeat(2, 1)) == pytest.approx(1 / 8)


def test_a_function_that_is_no_metric_is_refused() -> None:
    with pytest.raises(PromptError, match="returns"):
        Metric("custom", 0, "a", function=lambda last: last).read(torch.zeros(2, 1, 3))


# Heads and edges


@pytest.mark.parametrize("name", ["L11H7", "l11h7", "L11-H7", "11.7", "a11.h7", " L11H7 "])
def test_a_head_has_many_spellings_and_one_name(name: str) -> None:
    assert str(Head.parse(name)) == "L11H7"


@pytest.mark.parametrize("name", ["L11", "H7", "11,7", "", "L1H2H3", "L１H2"])
def test_what_is_not_a_head_is_refused(name: str) -> None:
    with pytest.raises(EdgeError, match="not the name of a head"):
        Head.parse(name)


def test_an_edge_reads_as_it_is_written() -> None:
    edge = Edge.parse("L11H7:5→8")
    assert edge == Edge(Head(11, 7), 5, 8) == Edge.parse("11.7:5->8")
    assert Edge.parse(str(edge)) == edge
    with pytest.raises(EdgeError, match="backwards"):
        Edge(Head(0, 0), 8, 5)
    with pytest.raises(EdgeError, match="not the name of an edge"):
        Edge.parse("L11H7")


def test_heads_stand_in_order_of_layer_and_index() -> None:
    assert sorted([Head(2, 0), Head(0, 10), Head(0, 2)]) == [
        Head(0, 2),
        Head(0, 10),
        Head(2, 0),
    ]
