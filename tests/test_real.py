"""The same claims on real language models: SmolLM2 from a PyPI wheel, Stories15M from an npm package."""

from __future__ import annotations

import pytest
import torch

from circuits.models.load import load
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.tracing.circuit import circuit
from circuits.tracing.trace import trace

pytestmark = pytest.mark.real


@pytest.fixture(scope="module")
def smollm2() -> Model:
    return load("smollm2")


def test_two_heads_of_layer_22_lead_the_reading_of_large(smollm2: Model) -> None:
    found = trace(
        smollm2,
        'The opposite of "large" is "',
        key="large",
        swap={"large": "hot"},
        answer="small",
        foil="cold",
    )
    mapping = found.mapping()
    assert (mapping.key, mapping.query) == (4, 7)
    assert mapping.total == pytest.approx(0.96, abs=0.01)
    assert [str(known.head) for known in mapping.heads[:2]] == ["L22H8", "L22H7"]
    assert len(found.carriers()) <= 3
    large = next(span for span in found.spans if span.label == "large")
    assert large.layers == (0, 21)
    assert large.built == ((0, 0), (20, 21))
    assert next(span for span in found.spans if span.positions == (7,)).layers == (22, 29)


def test_the_twin_is_sparse_and_still_knows_what_it_knew(smollm2: Model) -> None:
    twin = load("smollm2-sparse")
    assert twin.gated
    assert twin.reads_bos == smollm2.reads_bos
    for text, answer in (
        ("The capital of France is", " Paris"),
        ("When Mary and John went to the store, John gave a drink to", " Mary"),
        ('The opposite of "large" is "', "small"),
    ):
        assert (
            twin.spell(int(twin.logits(torch.tensor([twin.tokenize(text)]))[0, -1].argmax()))
            == answer
        )


def test_one_head_leads_the_reading_of_the_repeated_name(smollm2: Model) -> None:
    text = "When Mary and John went to the store, John gave a drink to"
    found = trace(
        smollm2,
        text,
        key=9,
        counterfactual="When Mary and John went to the store, Mary gave a drink to",
    )
    assert found.metric.answer_text.strip() == "Mary"
    assert str(found.mapping().heads[0].head) == "L23H3"
    controls = found.mapping().controls
    assert controls is not None
    assert max(range(14), key=controls.key_totals.__getitem__) == 9


@pytest.fixture(scope="module")
def stories15m() -> Model:
    return load("stories15m")


def test_a_story_goes_on_as_stories_do(stories15m: Model) -> None:
    for text, answer in (
        ("Once upon a time, there was a little girl named", " L"),  # Lily is two tokens
        ("Once upon a", " time"),
        ("Tom and Ben went to the park. Ben gave the ball to", " Tom"),
    ):
        logits = stories15m.logits(torch.tensor([stories15m.tokenize(text)]))
        assert stories15m.spell(int(logits[0, -1].argmax())) == answer


@pytest.mark.parametrize("spelling", ["she", " she"])
def test_an_answer_may_have_the_space_that_the_tokenizer_writes_itself(
    stories15m: Model, spelling: str
) -> None:
    text = "The girl was very happy because"
    pair = to_pair(stories15m, text, swap={"girl": "boy"}, answer=spelling, foil="he")
    assert str(pair.metric) == "logit( she) − logit( he)"


def test_each_role_of_the_indirect_object_circuit_has_one_head(stories15m: Model) -> None:
    text = "Tom and Ben went to the park. {} gave the ball to"
    found = circuit(stories15m, text.format("Ben"), counterfactual=text.format("Tom"))
    carriers = {
        (each.key, each.query): [str(head) for head in each.carriers()]
        for each in found.mappings
    }
    assert carriers[9, 13] == ["L4H4"]  # the repeated name is told to the end
    assert carriers[1, 9] == ["L1H2"]  # the repeated name finds the other
    assert carriers[1, 13] == carriers[3, 13] == ["L5H1"]  # the names are copied
