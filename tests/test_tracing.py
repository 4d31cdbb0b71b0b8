"""Known circuits are the judge: what was planted is what is found, exactly, with its controls."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from small_models import loaded

from circuits.components import Head
from circuits.engine import Row, gaps_of_noise, prepare
from circuits.engine.prepare import memory_warning, time_warning
from circuits.engine.selection import Mapped, mapping_row, mapping_rows
from circuits.errors import CircuitsError, ModelError, PromptError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair, to_pair
from circuits.tracing import Circuit
from circuits.tracing.aligned import Aligned
from circuits.tracing.circuit import circuit, ends_that_can_matter, notes_on_search
from circuits.tracing.family import bootstrap, trace_family
from circuits.tracing.measure import measure_mapping
from circuits.tracing.spans import held, measure_rows, ranges
from circuits.tracing.trace import trace
from circuits.zoo import planted

LARGE, LAST = planted.KEY, planted.QUERY


@pytest.fixture(scope="module")
def sparse() -> Model:
    return loaded("planted-sparse")


@pytest.fixture(scope="module")
def whole(sparse: Model) -> Circuit:
    return circuit(
        sparse,
        planted.PROMPT,
        swap=planted.SWAP,
        groups={"brackets": (4, 6)},
        counterfactuals=_own_texts(),
    )


@pytest.fixture(scope="module")
def asked(sparse: Model) -> Circuit:
    return trace(sparse, planted.PROMPT, key="large", query=-1, swap=planted.SWAP)


def _own_texts() -> dict[str, str]:
    return {label: text for label, text in planted.COUNTERFACTUALS.items() if label != "large"}


def test_the_five_planted_heads_carry_80_percent(asked: Circuit) -> None:
    assert tuple(map(str, asked.carriers())) == planted.PLANTED_CARRIERS
    assert asked.mapping().modulation() == pytest.approx(0.80, abs=0.01)
    assert asked.mapping().total == pytest.approx(1, abs=0.01)


@pytest.mark.long
def test_no_other_mapping_carries_anything(sparse: Model, whole: Circuit) -> None:
    assert [(m.key, m.query) for m in whole.mappings] == [(LARGE, LAST)]
    everything = circuit(sparse, planted.PROMPT, swap=planted.SWAP, least=0.01)
    assert [(m.key, m.query) for m in everything.mappings] == [(LARGE, LAST)]


@pytest.mark.long
def test_tokens_are_built_in_the_planted_layers(whole: Circuit) -> None:
    built = {span.label: span.built for span in whole.spans}
    for label, layers in planted.BUILT.items():
        assert built[label] == ((layers[0], layers[-1]),)


def test_spans_end_below_their_last_reader_and_begin_at_the_first_at_the_query(
    whole: Circuit,
) -> None:
    spans = {span.label: span.layers for span in whole.spans}
    for label, inputs in planted.SPANS.items():
        assert spans[label] == (0, inputs[-1] - 1)
    assert spans['"'] == (7, 11)


@pytest.mark.parametrize("head", planted.INDUCTION_MAPPINGS)
def test_induction_is_the_previous_token_head_and_the_induction_head(head: str) -> None:
    key, query, counterfactual, foil = planted.INDUCTION_MAPPINGS[head]
    model = loaded("planted-induction")
    found = circuit(
        model,
        planted.INDUCTION_PROMPT,
        counterfactual=counterfactual,
        answer=planted.INDUCTION_ANSWER,
        foil=foil,
    )
    carried = {(m.key, m.query): tuple(map(str, m.carriers())) for m in found.mappings}
    assert carried[key, query] == (head,)
    assert set(carried) == ({(1, 2), (2, 5)} if head == "L0H1" else {(2, 5)})
    assert all(heads in (("L0H1",), ("L1H2",)) for heads in carried.values())


def test_every_control_is_in_the_record_and_in_the_printed_table(asked: Circuit) -> None:
    controls = asked.mapping().controls
    assert controls is not None
    assert controls.random_mean < 0.05
    assert controls.random_draws == 100
    assert controls.random_mean <= controls.random_p95
    assert controls.identity < 1e-5
    assert controls.sufficiency == pytest.approx(0.80, abs=0.01)
    assert [key for key, total in enumerate(controls.key_totals) if abs(total) >= 0.01] == [
        LARGE
    ]
    assert asked.mapping().restore == pytest.approx(1, abs=0.01)
    printed = str(asked)
    for word in ("random", "sufficien", "identity", "restore", "other key", "fast"):
        assert word in printed, word


def test_any_share_is_read_off_the_stored_path(asked: Circuit) -> None:
    assert len(asked.carriers(share=0.5)) == 4
    assert (
        len(asked.carriers(share=0.95))
        == len({step.head for step in asked.mapping().path if step.joint < 0.95}) + 1
    )
    with pytest.raises(PromptError, match="share"):
        asked.carriers(share=0)


@pytest.mark.long
def test_the_greedy_path_is_what_trying_every_head_at_every_step_gives(sparse: Model) -> None:
    runs = prepare(sparse, [to_pair(sparse, planted.PROMPT, swap=planted.SWAP)])
    found = measure_mapping([Mapped(runs, LARGE, LAST)], controls=False)
    taken: list[Head] = []
    for step in found.path[:3]:
        left = [head for head in runs.heads if head not in taken]
        effects = runs.effects([mapping_row([*taken, head], LARGE, LAST) for head in left])[
            :, 0
        ].tolist()
        tried = dict(zip(left, effects, strict=True))
        assert tried[step.head] == pytest.approx(max(tried.values()), abs=1e-5)
        assert step.joint == pytest.approx(tried[step.head], abs=1e-5)
        taken.append(step.head)


def test_a_mapping_that_carries_nothing_has_no_carriers(sparse: Model) -> None:
    found = trace(sparse, planted.PROMPT, key="opposite", query=-1, swap=planted.SWAP)
    assert found.carriers() == ()
    assert found.mapping().modulation() == 0


@pytest.mark.long
def test_a_circuit_without_a_head_is_measured_again(asked: Circuit, sparse: Model) -> None:
    less = asked.without("L11H7", model=sparse)
    was, now = asked.mapping(), less.mapping()
    assert now.effect_of("L11H7").effect == 0
    assert now.total == pytest.approx(was.total - was.effect_of("L11H7").effect, abs=0.01)
    # Without a model at hand it is loaded by its name.
    assert asked.without("L11H7").mapping() == now


def test_without_refuses_other_weights(asked: Circuit) -> None:
    with pytest.raises(ModelError, match="other weights"):
        asked.without("L11H7", model=loaded("planted-dense"))


def test_noise_is_the_counterfactual_where_none_is_given(sparse: Model) -> None:
    found = trace(sparse, planted.PROMPT, key="large")
    assert str(found.counterfactual).startswith("noise at 5")
    assert found.metric.kind == "logprob"
    assert str(found.carriers()[0]) in planted.PLANTED_CARRIERS
    assert found.mapping().total > 0.5


def test_a_mapping_before_the_first_difference_is_zero_and_its_ends_are_not_noised(
    sparse: Model,
) -> None:
    found = trace(sparse, planted.PROMPT, key="opposite", query="of", swap=planted.SWAP)
    assert (found.mapping().total, found.mapping().path, found.spans) == (0, (), ())


def test_noise_on_single_tokens_moves_the_metric_as_a_pair_of_its_own_does(
    sparse: Model,
) -> None:
    runs, draws = prepare(sparse, [to_pair(sparse, planted.PROMPT, swap=planted.SWAP)]), 3
    (gaps,) = gaps_of_noise(runs, (2, LARGE), draws=draws, seed=1).tolist()
    for position, gap in zip((2, LARGE), gaps, strict=True):
        noise = Pair(runs.pairs[0].clean, Noise((position,), draws=draws, seed=1), runs.metric)
        assert gap == pytest.approx(
            float(prepare(sparse, [noise], smallest_gap=0).gap[0]), abs=1e-4
        )


@pytest.mark.long
def test_the_search_of_a_long_prompt_misses_no_mapping_of_a_circuit_and_a_note_says_how_it_went() -> (
    None
):
    model, question = (
        loaded("mini"),
        {"swap": {"Mary": "Anna"}, "answer": "Mary", "foil": "Anna"},
    )
    text = "When Mary and John went to the store , John gave a drink to"
    every = circuit(model, text, **question)
    assert not any("sought" in note for note in every.notes)
    runs = prepare(model, [to_pair(model, text, **question)])
    queries = range(runs.first_difference, runs.length)
    sought = ends_that_can_matter([Aligned.whole(runs)], queries, 0.025, keys_at_once=3)
    assert {mapping.ends for mapping in every.mappings} <= set(sought)
    assert len(sought) < sum(query + 1 for query in queries)
    assert notes_on_search(64) == () and "sought" in notes_on_search(65)[0]


@pytest.mark.long
def test_mappings_against_the_answer_are_left_out_of_a_circuit_and_named() -> None:
    model, text = loaded("mini"), "When Mary and John went to the store , John gave a drink to"
    found = circuit(model, text, swap={10: "Mary"})
    assert all(mapping.total > 0 for mapping in found.mappings)
    (note,) = [note for note in found.notes if note.startswith("works against the answer")]
    runs = prepare(model, [to_pair(model, text, swap={10: "Mary"})])
    total = measure_mapping([Mapped(runs, 14, 14)], controls=False).total
    assert total < -0.05 and f"14→14 ({total:.2f})" in note


def test_a_mapping_before_the_first_difference_is_exactly_nothing(sparse: Model) -> None:
    runs = prepare(sparse, [to_pair(sparse, planted.PROMPT, swap=planted.SWAP)])
    assert not runs.effects(mapping_rows(runs.heads, 1, LARGE - 1)).any()


def test_runs_that_take_half_of_the_free_memory_are_announced() -> None:
    needed, free = 3 * 10**9, 5 * 10**9
    warning = memory_warning(900, needed, free)
    assert warning is not None and "3.0 GB of 5.0 free" in warning
    assert memory_warning(900, needed, 3 * free) is None
    assert memory_warning(9, 10**6, 10**6) is None  # a little is never worth a warning


def test_runs_that_take_more_than_a_minute_are_announced() -> None:
    warning = time_warning(900, 180.0)
    assert warning is not None and "900 tokens" in warning and "3 minutes" in warning
    assert time_warning(900, 50.0) is None


@pytest.mark.long
def test_two_runs_give_the_same_record(sparse: Model, asked: Circuit) -> None:
    again = trace(sparse, planted.PROMPT, key="large", query=-1, swap=planted.SWAP)
    assert again == asked
    assert again.to_json() == asked.to_json()


def test_a_key_after_its_query_is_refused(sparse: Model) -> None:
    with pytest.raises(PromptError, match="stands after query"):
        trace(sparse, planted.PROMPT, key=-1, query=5, swap=planted.SWAP)


def test_progress_is_told(sparse: Model) -> None:
    told: list[str] = []
    circuit(
        sparse,
        planted.PROMPT,
        swap=planted.SWAP,
        progress=lambda stage, done, total: told.append(stage),
    )
    assert {"totals", "mappings", "spans"} <= set(told)


def test_a_circuit_can_be_watched_as_it_grows(sparse: Model, asked: Circuit) -> None:
    seen: list[Circuit] = []
    found = trace(sparse, planted.PROMPT, key="large", swap=planted.SWAP, watch=seen.append)
    assert found == asked
    total, carriers, controls, span = (each.mapping() for each in seen)
    final = replace(found.mapping(), doubts=())
    assert (total.total, total.path, total.heads) == (final.total, (), ())
    assert carriers == replace(final, controls=None, sides=())
    assert controls == span == final
    assert [each.spans for each in seen] == [(), (), (), found.spans[:1]]


def test_what_a_watcher_raises_ends_the_work_and_leaves_the_model_as_it_was(
    sparse: Model, asked: Circuit
) -> None:
    def stop(partial: Circuit) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        trace(sparse, planted.PROMPT, key="large", swap=planted.SWAP, watch=stop)
    assert trace(sparse, planted.PROMPT, key="large", swap=planted.SWAP) == asked


def test_a_family_gives_means_with_intervals(sparse: Model) -> None:
    swaps = {"large": "hot", "rich": "hot", "tall": "cold", "fast": "wet"}
    pairs = [
        to_pair(sparse, f'The opposite of "{old}" is "', swap={old: new})
        for old, new in swaps.items()
    ]
    found = trace(sparse, pairs, key=LARGE)
    assert set(map(str, found.carriers())) == set(planted.PLANTED_CARRIERS)
    assert found.total.low <= found.total.mean <= found.total.high
    assert found.total.mean == pytest.approx(1, abs=0.02)
    assert found == trace_family(sparse, pairs, key=LARGE)


def test_a_bootstrap_interval_holds_its_mean_and_shrinks_with_agreement() -> None:
    spread, same = bootstrap(np.array([[0.0, 1.0, 2.0, 3.0], [1.5] * 4]))
    assert spread.low < spread.mean == 1.5 < spread.high
    assert same.low == same.mean == same.high == 1.5


@pytest.mark.parametrize(
    ("effects", "span"),
    [
        ([1, 1, 0.5, 0.05], (0, 1)),
        ([0, 0, 0.2, 1], (1, 2)),
        ([0.2, 0.05, 1, 0.3], (1, 2)),
        ([1, 0], (0, 0)),
        ([0, 0], None),
        ([-1, -0.5], None),
    ],
)
def test_a_span_is_the_contiguous_range_of_layers_that_leave_the_token_needed(
    effects: list[float], span: tuple[int, int] | None
) -> None:
    assert held(effects) == span


def test_built_layers_may_be_several_ranges() -> None:
    assert ranges([1, 0, 0.05, 0.2, 0.3, 0]) == ((0, 0), (3, 4))
    assert ranges([0, 0]) == ()


@pytest.mark.long
def test_user_objects_are_taken_where_a_model_is(sparse: Model, asked: Circuit) -> None:
    from_bridge = trace(sparse.bridge, planted.PROMPT, key="large", swap=planted.SWAP)
    assert from_bridge.carriers() == asked.carriers()


@pytest.mark.parametrize(
    "wrong",
    [
        {"swap": {"huge": "hot"}},
        {"counterfactual": "The opposite"},
        {"swap": {"large": "large"}},
        {"metric": "speed"},
    ],
)
def test_a_pair_that_does_not_fit_is_refused_with_one_line(sparse: Model, wrong: dict) -> None:
    with pytest.raises(CircuitsError) as refused:
        trace(sparse, planted.PROMPT, key="large", **wrong)
    assert "\n" not in str(refused.value)


def test_rows_measured_in_parts_are_those_measured_at_once_and_progress_is_reported(
    sparse: Model,
) -> None:
    runs = prepare(sparse, [to_pair(sparse, planted.PROMPT, swap=planted.SWAP)])
    rows = [Row.of_residual(layer, [LARGE]) for layer in range(sparse.n_layers)]
    reported: list[tuple[str, int, int]] = []
    parts = measure_rows(
        runs, rows, at_once=5, progress=lambda *report: reported.append(report)
    )
    torch.testing.assert_close(parts, measure_rows(runs, rows, at_once=12), rtol=0, atol=1e-5)
    assert reported == [("spans", done, 12) for done in (0, 5, 10, 12)]
