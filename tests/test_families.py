"""Families in every form that one can be given, of one length or of several: the numbers of their prompts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pandas
import pytest
from small_models import PROMPT, SWAPS

import circuits
from circuits.errors import CircuitsError
from circuits.models.model import Model

LONGER = 'John is old. The opposite of "large" is "'
CLOSE = 1e-4


@pytest.fixture
def small(models: dict[str, Model]) -> Model:
    return replace(models["gpt2"], reads_bos=True)


def lines(*texts: str) -> list[dict[str, Any]]:
    listed = []
    for number, text in enumerate(texts):
        roles = {"word": "large", "END": -1}
        line = {"id": number, "prompt": text, "swap": {"large": "hot"}, "roles": roles}
        listed.append(line | {"answer": "small", "foil": "cold"})
    return listed


def one_by_one(model: Model, family: circuits.FamilyTrace) -> list[float]:
    """The total of every pair that the family counts, traced alone."""
    totals = []
    for pair in family.pairs:
        alone = circuits.trace_family(model, [pair], key="large")
        totals.append(alone.total.mean)
    return totals


def test_a_table_of_two_lengths_is_the_mean_of_its_prompts(small: Model) -> None:
    table = pandas.DataFrame(lines(PROMPT, LONGER))
    family = circuits.trace(small, table, key="word", query="END")
    assert [len(pair) for pair in family.pairs] == [9, 13]
    assert family.all_ends == ((5, 8), (9, 12))
    assert family.total.mean == pytest.approx(np.mean(one_by_one(small, family)), abs=CLOSE)
    assert family.mapping.total == pytest.approx(family.total.mean, abs=CLOSE)
    by_head = [
        circuits.trace_family(small, [pair], key="large").mapping.effect_of("L1H2")
        for pair in family.pairs
    ]
    measured = family.mapping.effect_of("L1H2")
    for name in ("effect", "restore", "loading", "weight"):
        mean = np.mean([getattr(each, name) for each in by_head])
        assert getattr(measured, name) == pytest.approx(mean, abs=CLOSE)
    assert circuits.verify(family, model=small).holds


@pytest.mark.long
def test_all_forms_of_a_family_say_the_same(small: Model, tmp_path: Path) -> None:
    listed = lines(PROMPT, LONGER)
    file = tmp_path / "lines.jsonl"
    file.write_text("\n".join(json.dumps(line | {"key": "word"}) for line in listed))
    texts = [PROMPT, LONGER]
    others = [text.replace("large", "hot") for text in texts]
    named: dict[str, Any] = {"answer": "small", "foil": "cold"}
    pairs = [circuits.to_pair(small, text, swap=SWAPS[0], **named) for text in texts]
    forms = [
        circuits.trace(small, listed, key="word"),
        circuits.trace(small, file),
        circuits.trace(small, cast(Any, str(file))),
        circuits.trace(small, texts, key="large", swap=SWAPS[0], **named),
        circuits.trace(small, texts, key="large", counterfactual=others, **named),
        circuits.trace(small, list(zip(texts, others, strict=True)), key="large", **named),
        circuits.trace(small, pairs, key="large"),
    ]
    for form in forms[1:]:
        assert form == forms[0]


def test_a_map_of_two_lengths_has_the_roles_that_all_share(small: Model) -> None:
    table = pandas.DataFrame(lines(PROMPT, LONGER))
    together = circuits.patch(small, table, "mlp")
    assert together.axes[1].labels == ("word", "END")
    alone = []
    for line in lines(PROMPT, LONGER):
        one = circuits.patch(small, [line], "mlp", positions=["word", "END"])
        alone.append(one.values)
    np.testing.assert_allclose(together.per_pair, alone, atol=CLOSE)
    heads = circuits.patch(small, table, "head")
    np.testing.assert_allclose(
        heads.per_pair,
        [circuits.patch(small, [line], "head").values for line in lines(PROMPT, LONGER)],
        atol=CLOSE,
    )


def test_each_pair_of_a_family_is_a_run_of_its_stability(small: Model, tmp_path: Path) -> None:
    steady = circuits.stability(small, lines(PROMPT, LONGER), key="word")
    assert len(steady.counterfactuals) + steady.weak == 2
    assert circuits.Stability.load(steady.save(tmp_path / "steady")) == steady


def test_an_explanation_of_a_family_is_a_mean_over_its_pairs(small: Model) -> None:
    named: dict[str, Any] = {"answer": "small", "foil": "cold"}
    texts = [PROMPT, PROMPT.replace("The", "John")]
    family = circuits.trace(small, texts, key="large", swap=SWAPS[0], **named)
    answer = circuits.why(family, "L1H2", model=small)
    assert answer.effect == pytest.approx(family.mapping.effect_of("L1H2").effect, abs=CLOSE)
    assert answer.pairs == family.pairs
    assert circuits.verify(answer, model=small).holds


def test_an_explanation_of_two_lengths_is_a_mean_over_its_pairs(
    small: Model, tmp_path: Path
) -> None:
    family = circuits.trace(small, lines(PROMPT, LONGER), key="word", query="END")
    answer = circuits.why(family, "L1H2", model=small)
    alone = []
    for line in lines(PROMPT, LONGER):
        one = circuits.trace(small, [line], key="word", query="END")
        alone.append(circuits.why(one, "L1H2", model=small))
    for name in ("effect", "pattern", "weight", "gap"):
        mean = np.mean([getattr(each, name) for each in alone])
        assert getattr(answer, name) == pytest.approx(mean, abs=CLOSE)
    for side in ("query", "key", "value"):
        written = {each.writer: each.effect for each in answer.side(side).writers}
        by_pair = [
            {each.writer: each.effect for each in one.side(side).writers} for one in alone
        ]
        for writer, effect in written.items():
            mean = np.mean([effects[writer] for effects in by_pair])
            assert effect == pytest.approx(mean, abs=CLOSE)
    assert answer.qk_attribution is not None
    parts = [part.part for part in answer.qk_attribution.parts]
    total = sum(parts) + answer.qk_attribution.rest
    assert total == pytest.approx(answer.qk_attribution.score, abs=CLOSE)
    assert circuits.Why.load(answer.save(tmp_path / "why")) == answer
    assert circuits.verify(answer, model=small).holds


@pytest.mark.long
@pytest.mark.parametrize("texts", [(PROMPT, PROMPT.replace("The", "John")), (PROMPT, LONGER)])
def test_the_circuit_of_a_family_is_a_mean_over_its_pairs(
    small: Model, texts: tuple[str, ...], tmp_path: Path
) -> None:
    listed = lines(*texts)
    together = circuits.circuit(small, listed, least=0.02)
    assert together.family is not None and len(together.family.counted) == 2
    assert together.mappings
    for mapping, total in zip(together.mappings, together.family.totals, strict=True):
        assert total.mean == pytest.approx(mapping.total, abs=CLOSE)
        by_pair = []
        for line, pair in zip(listed, together.family.pairs, strict=True):
            # Before the first role positions are shared by index, from there on by their distance to it.
            shift = len(pair) - 9
            key, query = (end + shift if end >= 5 else end for end in mapping.ends)
            by_pair.append(circuits.trace(small, [line], key=key, query=query).total.mean)
        assert np.mean(by_pair) == pytest.approx(mapping.total, abs=CLOSE)
    assert circuits.Circuit.load(together.save(tmp_path / "circuit")) == together
    assert circuits.verify(together, model=small).holds
    ends = together.mappings[0].ends
    answer = circuits.why(together, "L1H2", model=small)
    measured = together.mapping(*ends).effect_of("L1H2").effect
    assert answer.effect == pytest.approx(measured, abs=CLOSE)
    assert "mean of 2 pairs" in str(together)


@pytest.mark.long
def test_the_circuit_of_one_pair_given_as_a_family_is_its_circuit(small: Model) -> None:
    (line,) = lines(PROMPT)
    named = {name: line[name] for name in ("swap", "answer", "foil")}
    alone = circuits.circuit(small, PROMPT, **named)
    of_family = circuits.circuit(small, [PROMPT], **named)
    assert of_family.mappings == alone.mappings
    assert of_family.spans == alone.spans
    assert of_family.gap == alone.gap


def test_a_path_of_two_lengths_is_found_by_role_in_each(small: Model) -> None:
    listed = lines(PROMPT, LONGER)
    together = circuits.path(small, listed, "M0@word → L1H2.value@END")
    alone = [
        circuits.path(small, [line], "M0@word → L1H2.value@END").effect() for line in listed
    ]
    assert together.per_pair.flatten() == pytest.approx(alone, abs=CLOSE)
    assert together.effect() == pytest.approx(np.mean(alone), abs=CLOSE)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "is text"),
        ([1], "is text"),
        ([{"prompt": PROMPT, "key": "large", "swap": {"huge": "hot"}}], "huge"),
        ([{"text": PROMPT}], "needs a prompt"),
        ([PROMPT, LONGER], "no counterfactual|key"),
    ],
)
def test_what_is_no_family_is_refused_in_one_line(small: Model, given: Any, said: str) -> None:
    with pytest.raises(CircuitsError, match=said) as refused:
        circuits.trace(small, given)
    assert "\n" not in str(refused.value)


def test_positions_that_prompts_do_not_share_are_asked_for(small: Model) -> None:
    bare = [{**line, "roles": None} for line in lines(PROMPT, LONGER)]
    with pytest.raises(CircuitsError, match="roles"):
        circuits.patch(small, bare, "mlp")
    with pytest.raises(CircuitsError, match="roles"):
        circuits.circuit(small, bare)
