"""The engine is exact: the fast path, the plain path and hooks written out by hand agree, and the identities
hold."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from small_models import random_model

from circuits.components import Edge, Head
from circuits.engine import DIRECTIONS, Direction, Row, Runs, prepare
from circuits.engine.block import Block
from circuits.engine.cache import Layer
from circuits.engine.loadings import loadings, scan
from circuits.engine.rows import Change, check_rows
from circuits.engine.selection import WHOLE, Mapped, mapping_row, select, select_over
from circuits.errors import EdgeError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import FunctionMetric, Pair, Prompt, to_pair
from circuits.zoo.language import tokenizer

KEY, MIDDLE, LAST = 5, 6, 8
# Noise has runs of its own: tests/test_ablation.py.
OF_PREPARED: tuple[Direction, ...] = tuple(kind for kind in DIRECTIONS if kind != "noise")
CLOSE = 1e-4


@pytest.fixture
def model(model: Model) -> Model:
    """Every architecture with BOS in front, so that `large` is at 5 in all of them."""
    return replace(model, reads_bos=True)


def gated(model: Model) -> Model:
    return replace(model, gated=True)


def pairs_of(model: Model) -> list[Pair]:
    """Two pairs of one length that differ at the key; the metric's gap is wide enough to divide by."""
    texts = ('The opposite of "large" is "', 'The number of "rich" is "')
    return [
        to_pair(model, text, swap={word: "hot"}, metric="logprob")
        for text, word in zip(texts, ("large", "rich"), strict=True)
    ]


def single_rows(model: Model, query: int) -> list[Row]:
    return [
        Row.of_edges([Edge(Head(layer, head), KEY, query)])
        for layer in range(model.n_layers)
        for head in range(model.n_heads)
    ]


def joint_rows(model: Model, length: int, *, count: int = 12) -> list[Row]:
    """Random sets of edges over several layers, keys and queries."""
    draw = random.Random(1)

    def edge() -> Edge:
        query = draw.randrange(length)
        return Edge(
            Head(draw.randrange(model.n_layers), draw.randrange(model.n_heads)),
            draw.randrange(query + 1),
            query,
        )

    return [Row.of_edges({edge() for _ in range(draw.randrange(1, 9))}) for _ in range(count)]


def site_rows(length: int) -> list[Row]:
    """Heads, block writes, residual streams, and all of them mixed."""
    mixed = (
        Change(0, 5, "residual"),
        Change(1, 6, "edge", 1, 5),
        Change(1, 7, "attention"),
        Change(2, 7, "residual"),
        Change(2, 8, "mlp"),
    )
    return [
        Row.of_heads([Head(1, 2), Head(2, 3)], [5, 8]),
        Row.of_writes(1, [5, 7]),
        Row.of_residual(2, [5, 6]),
        Row.of_residual(3, [8]),
        Row.of_residual(0, range(length)),
        Row(tuple(sorted(mixed))),
        Row((Change(0, 5, "edge", 1, 5), Change(3, 8, "residual"))),
        Row((Change(0, 5, "edge", 1, 5), Change(1, 6, "residual"))),
    ]


def by_hand(runs: Runs, edges: list[Edge], direction: Direction) -> float:
    """One hooked forward of the first pair, with the definition of each direction written out."""
    model, pair = runs.model, runs.pairs[0]
    base, other = (
        (runs.counterfactual, runs.clean)
        if direction == "restore"
        else (runs.clean, runs.counterfactual)
    )
    group = model.n_heads // model.n_key_value_heads

    def noted(tokens: torch.Tensor) -> dict[str, torch.Tensor]:
        kept: dict[str, torch.Tensor] = {}
        names = [
            f"blocks.{layer}.attn.hook_{part}"
            for layer in range(model.n_layers)
            for part in ("pattern", "v")
        ]
        with (
            model.hooked(
                [
                    (name, lambda value, hook, name=name: kept.update({name: value.clone()}))
                    for name in names
                ]
            ),
            torch.no_grad(),
        ):
            model.forward(tokens)
        return kept

    def message(kept: dict[str, torch.Tensor], edge: Edge, row: int) -> torch.Tensor:
        where = f"blocks.{edge.head.layer}.attn.hook_"
        return (
            kept[where + "pattern"][row, edge.head.index, edge.query, edge.key]
            * kept[where + "v"][row, edge.key, edge.head.index // group]
        )

    source, now = noted(other.tokens[:1]), {}
    family = noted(runs.clean.tokens)

    def new(edge: Edge) -> torch.Tensor:
        if direction == "mean":
            return torch.stack(
                [message(family, edge, row) for row in range(len(runs.clean.tokens))]
            ).mean(0)
        return torch.zeros(model.d_head) if direction == "zero" else message(source, edge, 0)

    def note(value: torch.Tensor, hook: object, name: str) -> None:
        now[name] = value.clone()

    def replaced(z: torch.Tensor, hook: object, layer: int) -> torch.Tensor:
        z = z.clone()
        for edge in (edge for edge in edges if edge.head.layer == layer):
            z[0, edge.query, edge.head.index] += new(edge) - message(now, edge, 0)
        return z

    def shut(scores: torch.Tensor, hook: object, layer: int) -> torch.Tensor:
        scores = scores.clone()
        for edge in (edge for edge in edges if edge.head.layer == layer):
            scores[0, edge.head.index, edge.query, edge.key] = -torch.inf
        return scores

    hooks = []
    for layer in range(model.n_layers):
        where = f"blocks.{layer}.attn.hook_"
        if direction == "knockout":
            hooks.append(
                (where + "attn_scores", lambda s, hook, layer=layer: shut(s, hook, layer))
            )
            continue
        hooks += [
            (where + part, lambda v, hook, name=where + part: note(v, hook, name))
            for part in ("pattern", "v")
        ]
        hooks.append((where + "z", lambda z, hook, layer=layer: replaced(z, hook, layer)))
    with model.hooked(hooks), torch.no_grad():
        patched = model.forward(base.tokens[:1])[0, -1].log_softmax(-1)[pair.metric.answer]
    clean, counter = (
        float(side.logits[0, -1].log_softmax(-1)[pair.metric.answer])
        for side in (runs.clean, runs.counterfactual)
    )
    return (float(patched) - counter if direction == "restore" else clean - float(patched)) / (
        clean - counter
    )


@pytest.mark.parametrize("gate", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("direction", OF_PREPARED)
def test_fast_and_plain_agree_on_all_heads_joint_rows_and_a_batch_of_pairs(
    model: Model, gate: bool, direction: Direction
) -> None:
    model = gated(model) if gate else model
    pairs = pairs_of(model)
    rows = [
        *single_rows(model, LAST),
        *single_rows(model, MIDDLE),
        *joint_rows(model, len(pairs[0])),
    ]
    fast, plain = (prepare(model, pairs, family=pairs, path=path) for path in ("fast", "plain"))
    assert (fast.path, plain.path) == ("fast", "plain")
    mine, own = (
        fast.effects(rows, direction=direction),
        plain.effects(rows, direction=direction),
    )
    assert mine.abs().max() > 0.01
    torch.testing.assert_close(mine, own, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("gate", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("direction", OF_PREPARED)
def test_both_paths_agree_with_hooks_written_out_by_hand(
    model: Model, gate: bool, direction: Direction
) -> None:
    model = gated(model) if gate else model
    pairs = pairs_of(model)
    runs = prepare(model, pairs, family=pairs)
    together = [
        Edge(Head(0, 1), 5, 6),
        Edge(Head(1, 2), 6, 8),
        Edge(Head(1, 2), 5, 8),
        Edge(Head(2, 3), 5, 8),
    ]
    for edges in ([Edge(Head(1, 0), KEY, LAST)], [Edge(Head(0, 3), KEY, MIDDLE)], together):
        measured = float(runs.effects([Row.of_edges(edges)], direction=direction)[0, 0])
        assert measured == pytest.approx(by_hand(runs, edges, direction), abs=CLOSE)


@pytest.mark.parametrize("direction", ["swap", "restore", "zero", "mean"])
def test_every_site_agrees_between_the_paths(model: Model, direction: Direction) -> None:
    pairs = pairs_of(model)
    fast, plain = (prepare(model, pairs, family=pairs, path=path) for path in ("fast", "plain"))
    rows = site_rows(len(pairs[0]))
    torch.testing.assert_close(
        fast.effects(rows, direction=direction),
        plain.effects(rows, direction=direction),
        rtol=1e-4,
        atol=CLOSE,
    )


def test_noise_counterfactuals_agree_between_the_paths(model: Model) -> None:
    pair = to_pair(model, 'The opposite of "large" is "', noise_at=(KEY,))
    rows = single_rows(model, LAST)
    fast, plain = (
        prepare(model, [pair], path=path).effects(rows) for path in ("fast", "plain")
    )
    torch.testing.assert_close(fast, plain, rtol=0, atol=CLOSE)


@pytest.mark.parametrize("metric", ["logit_diff", "kl"])
def test_every_metric_agrees_between_the_paths(model: Model, metric: str) -> None:
    options: dict[str, Any] = {"swap": {"large": "hot"}, "metric": metric}
    if metric == "logit_diff":
        options |= {"answer": "small", "foil": "cold"}
    pair = to_pair(model, 'The opposite of "large" is "', **options)
    fast, plain = (
        prepare(model, [pair], path=path).effects(single_rows(model, LAST))
        for path in ("fast", "plain")
    )
    torch.testing.assert_close(fast, plain, rtol=1e-4, atol=CLOSE)


@pytest.mark.parametrize("positions", ["all", 3])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_a_function_of_several_positions_is_what_hooks_by_hand_give(
    model: Model, path: Any, positions: Any
) -> None:
    """The metric is read at every position, so a head that writes at an early one has an effect there."""

    def wobble(logits: torch.Tensor) -> torch.Tensor:
        places = torch.arange(logits.shape[1], dtype=logits.dtype) + 1
        return (logits[:, :, 82] * places).sum(1) - logits[:, :, 78].logsumexp(1)

    text = 'The opposite of "large" is "'
    metric = FunctionMetric(wobble, positions)
    pair = to_pair(model, text, swap={"large": "hot"}, metric=metric)
    head, at = Head(1, 2), 6
    effect = float(prepare(model, [pair], path=path).effects([Row.of_heads([head], [at])]))
    assert isinstance(pair.counterfactual, Prompt)
    clean, other = (torch.tensor([side.tokens]) for side in (pair.clean, pair.counterfactual))
    count = len(pair) if positions == "all" else positions
    written = []

    def keep(tensor: torch.Tensor, hook: Any) -> None:
        written.append(tensor[:, at, head.index].clone())

    def put(tensor: torch.Tensor, hook: Any) -> torch.Tensor:
        tensor = tensor.clone()
        tensor[:, at, head.index] = written[0]
        return tensor

    name = f"blocks.{head.layer}.attn.hook_z"
    with model.hooked([(name, keep)]):
        value_of_other = float(wobble(model.logits(other)[:, -count:]))
    value = float(wobble(model.logits(clean)[:, -count:]))
    with model.hooked([(name, put)]):
        patched = float(wobble(model.logits(clean)[:, -count:]))
    expected = (value - patched) / (value - value_of_other)
    assert effect == pytest.approx(expected, abs=CLOSE)
    assert abs(effect) > 100 * CLOSE


@pytest.mark.long
@settings(
    max_examples=25,
    deadline=None,
    suppress_health_check=[
        HealthCheck.too_slow,
        HealthCheck.data_too_large,
        HealthCheck.filter_too_much,
    ],
)
@given(
    data=st.data(),
    architecture=st.sampled_from(["gpt2", "llama", "neox"]),
    seed=st.integers(0, 3),
    gate=st.booleans(),
)
def test_any_edges_of_any_small_model_agree_between_the_paths(
    data: st.DataObject, architecture: str, seed: int, gate: bool
) -> None:
    model = _random(architecture, seed, gate)
    words = data.draw(
        st.lists(
            st.sampled_from(["large", "hot", "rich", "house", "John", "is", '"']),
            min_size=2,
            max_size=8,
        )
    )
    changed = data.draw(st.integers(0, len(words) - 1))
    other = [*words[:changed], "door", *words[changed + 1 :]]
    pair = to_pair(
        model, " ".join(words), counterfactual=" ".join(other), metric="logprob", answer="small"
    )
    length = len(pair)
    queries = st.integers(0, length - 1)
    edges = st.tuples(st.integers(0, 2), st.integers(0, 3), queries, st.integers(0, 100)).map(
        lambda drawn: Edge(Head(drawn[0], drawn[1]), drawn[3] % (drawn[2] + 1), drawn[2])
    )
    rows = data.draw(
        st.lists(
            st.sets(edges, min_size=1, max_size=6).map(Row.of_edges), min_size=1, max_size=5
        )
    )
    direction: Direction = data.draw(st.sampled_from(("swap", "restore", "zero", "knockout")))
    try:
        fast, plain = (
            prepare(model, [pair], path=path, smallest_gap=0.05) for path in ("fast", "plain")
        )
    except PromptError:
        return  # the counterfactual moves nothing, so there is nothing to compare
    torch.testing.assert_close(
        fast.effects(rows, direction=direction),
        plain.effects(rows, direction=direction),
        rtol=1e-3,
        atol=CLOSE,
    )


_known: dict[tuple[str, int], Model] = {}


def _random(architecture: str, seed: int, gate: bool) -> Model:
    if (architecture, seed) not in _known:
        _known[architecture, seed] = as_model(
            (random_model(architecture, seed=seed), tokenizer()), bos=True
        )
    found = _known[architecture, seed]
    return gated(found) if gate else found


def test_clean_patched_into_clean_changes_nothing(model: Model) -> None:
    runs = prepare(model, pairs_of(model))
    rows = joint_rows(model, runs.length)
    assert max(runs.identity(row) for row in rows) < 1e-5


def test_swapping_everything_gives_the_counterfactual_run(model: Model) -> None:
    runs = prepare(model, pairs_of(model))
    heads = [
        Head(layer, head) for layer in range(model.n_layers) for head in range(model.n_heads)
    ]
    everywhere = range(runs.length)
    row = Row(
        (*Row.of_residual(0, everywhere).changes, *Row.of_heads(heads, everywhere).changes)
    )
    torch.testing.assert_close(runs.effects([row]), torch.ones(1, 2), rtol=0, atol=CLOSE)
    torch.testing.assert_close(
        runs.measure([row])[:, 0], runs.values(runs.counterfactual), rtol=0, atol=CLOSE
    )
    torch.testing.assert_close(
        runs.effects([row], direction="restore"), torch.ones(1, 2), rtol=0, atol=CLOSE
    )


def test_a_rows_effect_does_not_depend_on_its_company(model: Model) -> None:
    runs = prepare(model, pairs_of(model))
    rows = [*single_rows(model, LAST), *joint_rows(model, runs.length), *site_rows(runs.length)]
    together = runs.effects(rows)
    alone = torch.cat([runs.effects([row]) for row in rows])
    in_small_chunks = replace(runs, budget=1).effects(rows)
    torch.testing.assert_close(together, alone, rtol=0, atol=5e-5)
    torch.testing.assert_close(together, in_small_chunks, rtol=0, atol=5e-5)


@pytest.mark.parametrize("gate", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("query", [MIDDLE, LAST])
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_a_greedy_path_is_that_of_trying_every_head_at_every_step(
    model: Model, gate: bool, query: int, path: Any
) -> None:
    runs = prepare(gated(model) if gate else model, pairs_of(model), path=path)
    rows = [mapping_row([head], KEY, query) for head in runs.heads]
    effects = runs.effects([*rows, mapping_row(runs.heads, KEY, query)])
    measured: dict[str, Any] = {"effects": effects[:-1], "totals": effects[-1]}
    for_all = select_over([Mapped(runs, KEY, query)], **measured)
    for_each = select(runs, KEY, query, **measured)
    groups = [runs, runs.only([0]), runs.only([1])]
    for group, found in zip(groups, [for_all, *for_each], strict=True):
        expected = greedy_by_hand(group, query)
        assert [head for head, _ in found] == [head for head, _ in expected]
        assert [joint for _, joint in found] == pytest.approx(
            [joint for _, joint in expected], abs=CLOSE
        )


def greedy_by_hand(runs: Runs, query: int) -> list[tuple[Head, float]]:
    """Every remaining head is tried with those taken so far, in a row each."""

    def joints(sets: list[list[Head]]) -> list[float]:
        return (
            runs.effects([mapping_row(heads, KEY, query) for heads in sets])
            .double()
            .mean(1)
            .tolist()
        )

    path: list[tuple[Head, float]] = []
    (total,) = joints([list(runs.heads)])
    while total >= 0.01 and (not path or path[-1][1] < WHOLE * total):
        taken = [head for head, _ in path]
        left = [head for head in runs.heads if head not in taken]
        tried = zip(joints([[*taken, head] for head in left]), left, strict=True)
        best = max((joint, -head.layer, -head.index, head) for joint, head in tried)
        if path and best[0] <= path[-1][1] + 1e-6:
            break
        path.append((best[3], best[0]))
    return path


def test_both_runs_are_the_models_own(model: Model) -> None:
    """Everything that may be read, beside what hooks note in the model's own forward."""
    fast, plain = (prepare(model, pairs_of(model), path=path) for path in ("fast", "plain"))
    for mine, own in ((fast.clean, plain.clean), (fast.counterfactual, plain.counterfactual)):
        torch.testing.assert_close(mine.logits, own.logits, rtol=0, atol=CLOSE)
        torch.testing.assert_close(mine.cache.final, own.cache.final, rtol=0, atol=CLOSE)
        for layer, expected in zip(mine.cache.layers, own.cache.layers, strict=True):
            torch.testing.assert_close(layer.pattern(), expected.pattern(), rtol=0, atol=CLOSE)
            for name in ("pre", "value", "z", "attention", "mlp"):
                torch.testing.assert_close(
                    getattr(layer, name), getattr(expected, name), rtol=0, atol=CLOSE
                )


def test_writes_that_the_last_position_cannot_read_are_exactly_zero(model: Model) -> None:
    runs, top = prepare(model, pairs_of(model)), model.n_layers - 1
    unread = [
        Row.of_edges([Edge(Head(top, 1), KEY, MIDDLE)]),
        Row.of_writes(top, [MIDDLE]),
        Row.of_residual(top + 1, [KEY, MIDDLE]),
    ]
    read = [
        Row.of_edges([Edge(Head(top, 1), KEY, LAST)]),
        Row.of_edges([Edge(Head(top - 1, 1), KEY, MIDDLE)]),
        Row.of_residual(top, [KEY]),
    ]
    assert runs.effects(read).ne(0).all()
    assert runs.effects(unread).eq(0).all()


def test_a_row_whose_gates_are_shut_in_both_runs_is_exactly_zero(model: Model) -> None:
    model = gated(model)
    runs = prepare(model, pairs_of(model)[:1])
    shut = [
        Edge(Head(layer, head), key, LAST)
        for layer in range(model.n_layers)
        for head in range(model.n_heads)
        for key in range(LAST + 1)
        if all(
            side.cache.layers[layer].pattern()[0, head, LAST, key] == 0
            for side in (runs.clean, runs.counterfactual)
        )
    ]
    assert shut
    assert (
        runs.effects([Row.of_edges([edge]) for edge in shut] + [Row.of_edges(shut)]).eq(0).all()
    )


def test_edges_before_the_first_difference_are_exactly_zero(model: Model) -> None:
    runs = prepare(model, pairs_of(model)[:1])
    assert runs.effects([Row.of_edges([Edge(Head(1, 1), 2, 4)])]).eq(0).all()
    assert runs.effects([Row.of_edges([Edge(Head(1, 1), 2, 4)])], direction="zero").ne(0).all()


def test_scan_measures_every_edge_of_a_short_prompt(model: Model) -> None:
    runs = prepare(model, pairs_of(model)[:1])
    found = scan(runs)
    assert found.exact
    for edge, effect in found.top(5):
        assert effect == pytest.approx(
            float(runs.effects([Row.of_edges([edge])])[0, 0]), abs=1e-5
        )


def test_scan_of_a_long_prompt_measures_the_leading_edges_and_says_which(model: Model) -> None:
    runs = prepare(model, pairs_of(model)[:1])
    whole, part = scan(runs), scan(runs, most=60)
    assert not part.exact
    assert int(part.measured.sum()) == 60
    torch.testing.assert_close(
        part.effect[part.measured], whole.effect[part.measured], rtol=0, atol=1e-5
    )
    assert part.effect[~part.measured].eq(0).all()


def test_scan_measures_edges_alone_also_where_few_of_them_can_change_anything(
    model: Model,
) -> None:
    """Before the first difference all estimates are 0, as they are where there is no edge."""
    runs = prepare(model, pairs_of(model)[:1])
    edges = model.n_layers * model.n_heads * len(runs.pairs[0]) * (len(runs.pairs[0]) + 1) // 2
    part = scan(runs, most=edges - 1)
    assert int(part.measured.sum()) == edges - 1
    torch.testing.assert_close(part.effect, scan(runs).effect, rtol=0, atol=1e-5)


def test_loadings_are_the_messages_times_the_gradient_of_the_frozen_model(model: Model) -> None:
    """At the last layer the way from a message to the metric is short enough to be written out."""
    runs = prepare(
        model,
        [
            to_pair(
                model,
                'The opposite of "large" is "',
                swap={"large": "hot"},
                answer="small",
                foil="cold",
            )
        ],
    )
    measured = loadings(runs)[-1, :, LAST, KEY]
    layer, layout = runs.clean.cache.layers[-1], runs.layout
    assert layout is not None
    top = runs.clean.cache.final[0, -1]
    direction = (
        layout.unembed[runs.pairs[0].metric.answer]
        - layout.unembed[runs.pairs[0].metric.foil or 0]
    )
    scale = _frozen_scale(layout.final_norm.module, top)
    block = layout.blocks[-1]
    for head in range(model.n_heads):
        z = torch.zeros(model.n_heads, model.d_head)
        z[head] = layer.pattern()[0, head, LAST, KEY] * layer.value[0, head, KEY]
        written = (block.write(z[None]) - block.write(torch.zeros_like(z)[None]))[0]
        reached = written if layout.parallel else written + _mlp_change(block, layer, written)
        predicted = float((scale(reached) @ direction).detach() / runs.gap[0])
        assert float(measured[head]) == pytest.approx(predicted, rel=1e-3, abs=1e-5)


def _frozen_scale(norm: Any, at: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    centre = isinstance(norm, torch.nn.LayerNorm)
    eps = norm.eps if centre else norm.variance_epsilon
    centred = at - at.mean() if centre else at
    scale = (centred.pow(2).mean() + eps).rsqrt()
    return lambda change: (change - change.mean() if centre else change) * scale * norm.weight


def _mlp_change(block: Block, layer: Layer, written: torch.Tensor) -> torch.Tensor:
    """The MLP's response to a small write, with its norm's scale frozen, by forward differentiation."""
    middle = (layer.pre + layer.attention)[0, -1].clone()
    return torch.func.jvp(
        block.mlp,
        (block.mlp_norm(middle),),
        (_frozen_scale(block.mlp_norm.module, middle)(written),),
    )[1]


@pytest.mark.parametrize(
    ("row", "direction", "says"),
    [
        (Row((Change(0, 9, "edge", 0, 5),)), "swap", "position 9"),
        (Row((Change(3, 8, "edge", 0, 5),)), "swap", "layer 3"),
        (Row((Change(0, 8, "edge", 4, 5),)), "swap", "L0H4"),
        (Row((Change(0, 5, "edge", 0, 8),)), "swap", "backwards"),
        (Row((Change(0, 5, "mlp"),)), "knockout", "knockout"),
    ],
)
def test_a_change_that_does_not_exist_is_refused_before_running(
    models: dict[str, Model], row: Row, direction: Direction, says: str
) -> None:
    runs = prepare(models["gpt2"], pairs_of(models["gpt2"])[:1])
    with pytest.raises(EdgeError, match=says):
        runs.effects([row], direction=direction)


def test_a_direction_that_does_not_exist_is_refused() -> None:
    with pytest.raises(EdgeError, match="no ablation 'sideways'; there are swap"):
        check_rows([], direction="sideways", layers=1, heads=1, length=1)


def test_an_interrupted_measurement_leaves_the_model_as_it_was(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["gpt2"]
    tokens = torch.tensor([model.tokenize('The opposite of "large" is "')])
    before = model.logits(tokens)
    runs = prepare(model, pairs_of(model)[:1], path="plain")

    def stopped(*args: object, **kwargs: object) -> torch.Tensor:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(type(model.bridge), "forward", stopped)
        with pytest.raises(KeyboardInterrupt):
            runs.effects(single_rows(model, LAST))
    assert torch.equal(model.logits(tokens), before)


def test_a_gap_too_small_to_divide_by_is_refused(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    pair = to_pair(
        model,
        'The opposite of "large" is "',
        swap={"large": "hot"},
        metric=lambda logits: logits.sum(-1) * 0,
    )
    with pytest.raises(PromptError, match="too little to divide by"):
        prepare(model, [pair])


def test_pairs_of_different_length_are_not_run_together(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    short = to_pair(model, "large house", swap={"large": "hot"}, metric="logprob")
    with pytest.raises(PromptError, match="same number of tokens"):
        prepare(model, [*pairs_of(model), short])


def test_a_family_is_needed_for_means(models: dict[str, Model]) -> None:
    runs = prepare(models["gpt2"], pairs_of(models["gpt2"])[:1])
    with pytest.raises(PromptError, match="family"):
        runs.effects(single_rows(models["gpt2"], LAST), direction="mean")


@pytest.mark.parametrize("gate", [False, pytest.param(True, marks=pytest.mark.long)])
def test_attending_in_windows_of_queries_changes_nothing(model: Model, gate: bool) -> None:
    """A budget of one byte lets one query of one row attend at a time, as in a very long prompt."""
    model = gated(model) if gate else model
    pairs = pairs_of(model)
    rows = [*single_rows(model, MIDDLE), *joint_rows(model, LAST + 1), *site_rows(LAST + 1)]
    whole = prepare(model, pairs, family=pairs)
    in_windows = prepare(model, pairs, family=pairs, budget=1)
    for direction in OF_PREPARED:
        some = rows[: -len(site_rows(LAST + 1))] if direction == "knockout" else rows
        expected, got = (
            runs.effects(some, direction=direction) for runs in (whole, in_windows)
        )
        torch.testing.assert_close(got, expected, atol=CLOSE, rtol=CLOSE)
    torch.testing.assert_close(loadings(in_windows), loadings(whole), atol=CLOSE, rtol=CLOSE)
