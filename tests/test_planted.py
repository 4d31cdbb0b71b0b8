"""The planted models are what they claim to be.

The first half is the reference, a slow and plain reading of the definitions; the second half is the claims.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from transformers import GPT2LMHeadModel

from circuits.errors import ModelError
from circuits.zoo import language, planted

VOCABULARY = language.vocabulary()
LAST = planted.QUERY


# The reference: a GPT-2 forward pass with every message in sight.


@dataclass(frozen=True, slots=True)
class Run:
    """What one batch of rows computed, layer by layer."""

    messages: list[torch.Tensor]  # (row, head, query, key, d_head), before W_O
    patterns: list[torch.Tensor]  # (row, head, query, key)
    scores: list[torch.Tensor]  # (row, head, query, key)
    # Attention's and the MLP's output, (row, pos, d_model) each.
    writes: list[tuple[torch.Tensor, torch.Tensor]]
    residuals: list[torch.Tensor]  # input of layers 0…L, (row, pos, d_model)
    logits: torch.Tensor  # (row, vocab), at the last position


@dataclass(frozen=True, slots=True)
class Swap:
    """What is taken from another run; one mask row for each row of the batch."""

    source: Run
    messages: torch.Tensor | None = None  # (row, layer, head, query, key)
    writes: torch.Tensor | None = None  # (row, layer, pos)
    residuals: torch.Tensor | None = None  # (row, layer 0…L, pos)


def tokens(text: str) -> list[int]:
    return [VOCABULARY[language.BOS], *(VOCABULARY[word] for word in language.split(text))]


def embed(model: GPT2LMHeadModel, text: str) -> torch.Tensor:
    return model.transformer.wte.weight[torch.tensor([tokens(text)])]


def noisy(
    model: GPT2LMHeadModel, text: str, positions: tuple[int, ...], draws: int = 8
) -> torch.Tensor:
    """One row per draw, with 3 sigma of the embedding added at these positions."""
    embedded = embed(model, text).repeat(draws, 1, 1)
    noise = (
        torch.randn(embedded.shape, generator=torch.Generator().manual_seed(0))
        * 3
        * model.transformer.wte.weight.std()
    )
    where = torch.zeros(embedded.shape[1], 1)
    where[list(positions)] = 1
    return embedded + noise * where


@torch.inference_mode()
def run(
    model: GPT2LMHeadModel,
    embedded: torch.Tensor,
    swap: Swap | None = None,
    *,
    gate: bool = False,
) -> Run:
    made = Run([], [], [], [], [], torch.empty(0))
    length, heads = embedded.shape[1], model.config.n_head
    future = torch.ones(length, length, dtype=torch.bool).triu(1)
    stream = embedded + model.transformer.wpe.weight[:length]

    def replaced(
        mask: torch.Tensor | None, layer: int, own: torch.Tensor, other: list[torch.Tensor]
    ) -> torch.Tensor:
        return (
            own if mask is None else torch.where(mask[:, layer, ..., None], other[layer], own)
        )

    blocks: Any = model.transformer.h
    for layer, block in enumerate(blocks):
        if swap:
            stream = replaced(swap.residuals, layer, stream, swap.source.residuals)
        made.residuals.append(stream)
        query, key, value = (
            part.unflatten(-1, (heads, -1))
            for part in block.attn.c_attn(block.ln_1(stream)).chunk(3, dim=-1)
        )
        scores = torch.einsum("rqhd,rkhd->rhqk", query, key) / query.shape[-1] ** 0.5
        scores = scores.masked_fill(future, -torch.inf)
        pattern = scores.softmax(-1) * (scores > 0 if gate else 1)
        messages = torch.einsum("rhqk,rkhd->rhqkd", pattern, value)
        if swap:
            messages = replaced(swap.messages, layer, messages, swap.source.messages)
        attention = block.attn.c_proj(messages.sum(3).transpose(1, 2).flatten(2))
        if swap:
            attention = replaced(
                swap.writes, layer, attention, [write for write, _ in swap.source.writes]
            )
        mlp = block.mlp(block.ln_2(stream + attention))
        if swap:
            mlp = replaced(swap.writes, layer, mlp, [write for _, write in swap.source.writes])
        stream = stream + attention + mlp
        made.messages.append(messages)
        made.patterns.append(pattern)
        made.scores.append(scores)
        made.writes.append((attention, mlp))
    if swap:
        stream = replaced(
            swap.residuals, len(model.transformer.h), stream, swap.source.residuals
        )
    made.residuals.append(stream)
    logits = model.lm_head(model.transformer.ln_f(stream))[:, -1]
    return Run(made.messages, made.patterns, made.scores, made.writes, made.residuals, logits)


class Case:
    """A clean prompt, a counterfactual, and a metric: logit(answer) - logit(foil), or logprob(answer)."""

    def __init__(
        self,
        model: GPT2LMHeadModel,
        clean: str,
        counterfactual: str | torch.Tensor,
        answer: str,
        foil: str | None,
    ) -> None:
        other = (
            embed(model, counterfactual) if isinstance(counterfactual, str) else counterfactual
        )
        self.model, self.answer, self.foil = (
            model,
            VOCABULARY[answer],
            None if foil is None else VOCABULARY[foil],
        )
        self.embedded = embed(model, clean).repeat(len(other), 1, 1)
        self.clean, self.other = run(model, self.embedded), run(model, other)
        self.gap = self.metric(self.clean).mean() - self.metric(self.other).mean()
        self.layers, self.heads, self.length = (
            model.config.n_layer,
            model.config.n_head,
            self.embedded.shape[1],
        )

    def metric(self, made: Run) -> torch.Tensor:
        if self.foil is None:
            return made.logits.log_softmax(-1)[:, self.answer]
        return made.logits[:, self.answer] - made.logits[:, self.foil]

    def _effects(self, **masks: torch.Tensor) -> list[float]:
        """The effect of each row of masks (averaged over the draws of a counterfactual that is noise)."""
        if len(self.embedded) == 1:
            rows = len(next(iter(masks.values())))
            patched = run(
                self.model, self.embedded.expand(rows, -1, -1), Swap(self.other, **masks)
            )
            return ((self.metric(self.clean) - self.metric(patched)) / self.gap).tolist()
        each = [
            dict(zip(masks, row, strict=True))
            for row in zip(*(mask.split(1) for mask in masks.values()), strict=True)
        ]
        patched = [run(self.model, self.embedded, Swap(self.other, **row)) for row in each]
        return [
            float((self.metric(self.clean).mean() - self.metric(one).mean()) / self.gap)
            for one in patched
        ]

    def heads_effects(
        self, sets: list[set[tuple[int, int]]], key: int, query: int
    ) -> list[float]:
        """The joint effect of each set of heads on the mapping key → query."""
        mask = torch.zeros(
            len(sets), self.layers, self.heads, self.length, self.length, dtype=torch.bool
        )
        for row, chosen in enumerate(sets):
            for layer, index in chosen:
                mask[row, layer, index, query, key] = True
        return self._effects(messages=mask)

    def every_head(self) -> list[tuple[int, int]]:
        return [(layer, index) for layer in range(self.layers) for index in range(self.heads)]

    def singles(self, key: int, query: int) -> dict[tuple[int, int], float]:
        return dict(
            zip(
                self.every_head(),
                self.heads_effects([{head} for head in self.every_head()], key, query),
                strict=True,
            )
        )

    def totals(self) -> dict[tuple[int, int], float]:
        """The effect of all heads together, for every mapping key → query of the prompt."""
        mappings = [(key, query) for query in range(self.length) for key in range(query + 1)]
        mask = torch.zeros(
            len(mappings), self.layers, self.heads, self.length, self.length, dtype=torch.bool
        )
        for row, (key, query) in enumerate(mappings):
            mask[row, :, :, query, key] = True
        return dict(zip(mappings, self._effects(messages=mask), strict=True))

    def carriers(self, key: int, query: int, share: float) -> tuple[list[str], list[float]]:
        """Greedy forward selection: the heads in order, and the joint effect after each."""
        total = self.totals()[key, query]
        candidates = {
            head for head, effect in self.singles(key, query).items() if abs(effect) > 1e-6
        }
        chosen, joint = [], [0.0]
        while joint[-1] < share * total:
            left = sorted(candidates - set(chosen))
            best = max(
                zip(
                    self.heads_effects([{*chosen, head} for head in left], key, query),
                    left,
                    strict=True,
                )
            )
            joint.append(best[0])
            chosen.append(best[1])
        return [f"L{layer}H{index}" for layer, index in chosen], joint[1:]

    def built(self, positions: tuple[int, ...]) -> list[float]:
        """The effect of swapping each block's writes at these positions."""
        mask = torch.zeros(self.layers, self.layers, self.length, dtype=torch.bool)
        for layer in range(self.layers):
            mask[layer, layer, list(positions)] = True
        return self._effects(writes=mask)

    def span(self, positions: tuple[int, ...]) -> list[float]:
        """The effect of swapping the residual stream there at the input of each layer, and at the end."""
        mask = torch.zeros(self.layers + 1, self.layers + 1, self.length, dtype=torch.bool)
        for layer in range(self.layers + 1):
            mask[layer, layer, list(positions)] = True
        return self._effects(residuals=mask)


def above_a_tenth(effects: list[float]) -> list[int]:
    return [layer for layer, effect in enumerate(effects) if effect >= 0.1 * max(effects)]


def top(model: GPT2LMHeadModel, text: str) -> str:
    return list(VOCABULARY)[int(run(model, embed(model, text)).logits[0].argmax())]


# The claims.


@pytest.fixture(scope="module")
def sparse() -> GPT2LMHeadModel:
    return planted.build("planted-sparse")[0]


@pytest.fixture(scope="module")
def dense() -> GPT2LMHeadModel:
    return planted.build("planted-dense")[0]


@pytest.fixture(scope="module")
def induction() -> GPT2LMHeadModel:
    return planted.build("planted-induction")[0]


def large_to_hot(model: GPT2LMHeadModel) -> Case:
    return Case(
        model, planted.PROMPT, planted.COUNTERFACTUALS["large"], planted.ANSWER, planted.FOIL
    )


def group_case(model: GPT2LMHeadModel, group: str) -> Case:
    """The group's own text counterfactual; the foil is the top prediction there."""
    other = planted.COUNTERFACTUALS[group]
    return Case(model, planted.PROMPT, other, planted.ANSWER, top(model, other))


@pytest.mark.parametrize("name", planted.NAMES)
def test_the_reference_computes_what_the_model_computes(name: str) -> None:
    model, tokenizer = planted.build(name)
    text = planted.INDUCTION_PROMPT if name == "planted-induction" else planted.PROMPT
    assert tokenizer(text)["input_ids"] == tokens(text)[1:]
    with torch.inference_mode():
        theirs = model(torch.tensor([tokens(text)])).logits[:, -1]
    torch.testing.assert_close(run(model, embed(model, text)).logits, theirs, rtol=0, atol=1e-4)


@pytest.mark.parametrize("name", planted.NAMES)
def test_building_twice_gives_the_same_weights(name: str) -> None:
    first, second = planted.build(name)[0].state_dict(), planted.build(name)[0].state_dict()
    assert all(torch.equal(first[weight], second[weight]) for weight in first)


def test_an_unknown_name_is_refused_with_the_names_there_are() -> None:
    with pytest.raises(ModelError, match=r"planted-spare.*planted-sparse"):
        planted.build("planted-spare")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_the_model_knows_every_fact_of_the_language(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    asked = [
        (relation, subject) for relation in language.RELATIONS for subject in language.SUBJECTS
    ]
    prompts = torch.cat(
        [embed(model, f'The {relation} of "{subject}" is "') for relation, subject in asked]
    )
    words = list(VOCABULARY)
    said = [words[number] for number in run(model, prompts).logits.argmax(-1)]
    assert said == [language.FACTS[relation][subject] for relation, subject in asked]


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_each_counterfactual_changes_the_top_prediction(
    kind: str, request: pytest.FixtureRequest
) -> None:
    model = request.getfixturevalue(kind)
    assert top(model, planted.PROMPT) == planted.ANSWER
    said = {group: top(model, text) for group, text in planted.COUNTERFACTUALS.items()}
    assert said == {
        "opposite": language.FACTS["colour"]["large"],
        "large": planted.FOIL,
        "brackets": "the",
    }


def test_the_five_heads_carry_80_percent_and_no_four_do(sparse: GPT2LMHeadModel) -> None:
    case = large_to_hot(sparse)
    heads, joint = case.carriers(planted.KEY, LAST, share=0.8)
    total = case.totals()[planted.KEY, LAST]
    assert tuple(heads) == planted.PLANTED_CARRIERS
    assert joint[-1] / total == pytest.approx(0.80, abs=0.01)
    assert joint[-2] / total < 0.7


@pytest.mark.parametrize("kind", ["sparse", "dense"])
def test_the_mapping_from_large_to_the_end_is_all_there_is(
    kind: str, request: pytest.FixtureRequest
) -> None:
    totals = large_to_hot(request.getfixturevalue(kind)).totals()
    assert totals.pop((planted.KEY, LAST)) == pytest.approx(1, abs=0.02)
    assert max(abs(total) for total in totals.values()) < 0.01


def test_the_carriers_look_at_large_from_the_end(sparse: GPT2LMHeadModel) -> None:
    made = run(sparse, embed(sparse, planted.PROMPT))
    for name in planted.PLANTED_CARRIERS:
        layer, index = (int(number) for number in name[1:].split("H"))
        assert made.patterns[layer][0, index, LAST, planted.KEY] > 0.99


@pytest.mark.parametrize("kind", ["sparse", "dense"])
@pytest.mark.parametrize("group", planted.GROUPS)
def test_each_token_is_built_and_held_in_the_planted_layers(
    kind: str, group: str, request: pytest.FixtureRequest
) -> None:
    case, positions = group_case(request.getfixturevalue(kind), group), planted.GROUPS[group]
    assert above_a_tenth(case.built(positions)) == list(planted.BUILT[group])
    assert above_a_tenth(case.span(positions)) == list(planted.SPANS[group])


@pytest.mark.parametrize("group", planted.GROUPS)
def test_noise_finds_the_same_layers(sparse: GPT2LMHeadModel, group: str) -> None:
    positions = planted.GROUPS[group]
    case = Case(
        sparse, planted.PROMPT, noisy(sparse, planted.PROMPT, positions), planted.ANSWER, None
    )
    assert case.gap > 1
    assert above_a_tenth(case.built(positions)) == list(planted.BUILT[group])


def test_each_other_token_reaches_the_end_by_its_own_heads(sparse: GPT2LMHeadModel) -> None:
    assert group_case(sparse, "opposite").totals()[2, LAST] == pytest.approx(1, abs=0.01)
    brackets = group_case(sparse, "brackets").totals()
    assert brackets[4, LAST] == pytest.approx(0.5, abs=0.01)
    assert brackets[6, LAST] == pytest.approx(0.5, abs=0.01)


@pytest.mark.long
def test_the_dense_model_needs_forty_heads_or_more(dense: GPT2LMHeadModel) -> None:
    heads, joint = large_to_hot(dense).carriers(planted.KEY, LAST, share=0.8)
    assert len(heads) >= 40
    assert tuple(heads) == planted.PLANTED_DENSE[: len(heads)]
    assert joint[-1] == pytest.approx(0.8, abs=0.02)


@pytest.mark.parametrize(
    ("name", "writers"),
    [("planted-sparse", 21 + 2 + 2), ("planted-dense", 56 + 2 + 2), ("planted-induction", 2)],
)
def test_heads_of_no_part_write_exactly_nothing(name: str, writers: int) -> None:
    blocks: Any = planted.build(name)[0].transformer.h
    outputs = torch.stack(
        [block.attn.c_proj.weight.unflatten(0, (block.attn.num_heads, -1)) for block in blocks]
    )
    assert int((outputs != 0).flatten(2).any(-1).sum()) == writers


def test_the_gate_leaves_the_sparse_model_only_the_edges_that_carry(
    sparse: GPT2LMHeadModel,
) -> None:
    plain, gated = (
        run(sparse, embed(sparse, planted.PROMPT), gate=gate) for gate in (False, True)
    )
    torch.testing.assert_close(gated.logits, plain.logits, rtol=0, atol=0.01)
    opened = [
        (key, query)
        for scores in gated.scores
        for _, _, query, key in (scores > 0).nonzero().tolist()
    ]
    assert {mapping: opened.count(mapping) for mapping in set(opened)} == {
        (5, 8): 21,
        (2, 8): 2,
        (4, 8): 1,
        (6, 8): 1,
    }


@pytest.mark.parametrize("head", planted.INDUCTION_MAPPINGS)
def test_each_induction_head_carries_its_mapping_alone(
    induction: GPT2LMHeadModel, head: str
) -> None:
    key, query, counterfactual, foil = planted.INDUCTION_MAPPINGS[head]
    assert top(induction, planted.INDUCTION_PROMPT) == planted.INDUCTION_ANSWER
    assert top(induction, counterfactual) == foil
    case = Case(
        induction, planted.INDUCTION_PROMPT, counterfactual, planted.INDUCTION_ANSWER, foil
    )
    singles = {
        f"L{layer}H{index}": effect
        for (layer, index), effect in case.singles(key, query).items()
    }
    assert singles.pop(head) == pytest.approx(1, abs=0.01)
    assert max(abs(effect) for effect in singles.values()) < 1e-5


def test_induction_has_no_other_mappings(induction: GPT2LMHeadModel) -> None:
    for head, (_, _, counterfactual, foil) in planted.INDUCTION_MAPPINGS.items():
        case = Case(
            induction, planted.INDUCTION_PROMPT, counterfactual, planted.INDUCTION_ANSWER, foil
        )
        found = {mapping for mapping, total in case.totals().items() if abs(total) >= 0.01}
        assert found == ({(2, 5)} if head == "L1H2" else {(1, 2), (2, 5)})


@pytest.mark.parametrize(
    "text", ["cat large Mary", "ship rich poor river", "red Tom one wall hot tree"]
)
def test_any_sequence_is_repeated(induction: GPT2LMHeadModel, text: str) -> None:
    words = text.split()
    for stop in range(1, len(words)):
        assert top(induction, " ".join((*words, *words[:stop]))) == words[stop]
