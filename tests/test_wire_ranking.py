"""Component edges of a task: estimates are gradients, orders are what they say, curves are exact, files of EAP
are read and written."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pandas
import pyarrow.parquet
import pytest
import torch
from conftest import ARCHITECTURES
from small_models import random_model

from circuits.components import ROUNDING, component_edges
from circuits.engine import Runs, prepare
from circuits.engine.attribution import attribution, integrated_attribution
from circuits.engine.cache import Cache
from circuits.engine.edges import EdgeTable
from circuits.engine.kept import KeptRuns
from circuits.engine.wires import wire_effects
from circuits.errors import CircuitsError, FileError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.show.export import export
from circuits.tasks.compare import compare
from circuits.tasks.curve import MIB_SHARES
from circuits.tasks.eap import from_eap
from circuits.tasks.edges import edge_effects, write_edges
from circuits.tasks.orders import by_size, explained
from circuits.tasks.rank import rank
from circuits.tasks.ranking import ComponentEdge, Ranking, heads_of
from circuits.tasks.task import Item, Task
from circuits.tasks.wires import kept_runs_of
from circuits.wires.measured import circuit_of
from circuits.wires.search import SCALES, SearchResult, search
from circuits.wires.wiring import wiring
from circuits.zoo.language import tokenizer

TEXTS = (
    ('The opposite of "large" is "', "large"),
    ('The colour of the word "wet" is "', "wet"),
)


@pytest.fixture(scope="module")
def loaded() -> dict[str, Model]:
    return {
        name: replace(as_model((random_model(name), tokenizer())), reads_bos=True)
        for name in ARCHITECTURES
    }


def task_of(model: Model) -> Task:
    """Two pairs of two lengths."""
    pairs = [
        to_pair(model, text, swap={word: "hot"}, answer="small", foil="cold")
        for text, word in TEXTS
    ]
    return Task("by hand", tuple(Item(pair, ()) for pair in pairs))


@pytest.fixture(scope="module")
def ranking(loaded: dict[str, Model]) -> Ranking:
    """GPT-2's shape, of whose 262 component edges 60 are measured."""
    task = task_of(loaded["gpt2"])
    return rank(loaded["gpt2"], task, units="wires", order="effect", most=60)


@pytest.fixture(scope="module")
def runs(loaded: dict[str, Model]) -> KeptRuns:
    """The first pair of the task."""
    return kept_runs_of(loaded["gpt2"], task_of(loaded["gpt2"]).items[:1])


@pytest.fixture(scope="module")
def found(runs: KeptRuns) -> SearchResult:
    """All circuits that the search passed on that pair."""
    return search(runs)


@pytest.fixture(scope="module")
def searched_ranking(loaded: dict[str, Model]) -> Ranking:
    """The edges in the order of the search, on that pair."""
    return rank(loaded["gpt2"], task_of(loaded["gpt2"]), units="wires", count=1, most=20)


def one_pair(runs: Runs) -> KeptRuns:
    return KeptRuns.everywhere([(runs, [0])])


def towards_clean(runs: Runs, share: float) -> Runs:
    """The same runs, with a counterfactual whose writers changed by this share of what they do."""

    def mixed(clean: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return clean + share * (other - clean)

    layers = [
        replace(
            other,
            pre=mixed(own.pre, other.pre),
            z=mixed(own.z, other.z),
            mlp=mixed(own.mlp, other.mlp),
        )
        for own, other in zip(
            runs.clean.cache.layers, runs.counterfactual.cache.layers, strict=True
        )
    ]
    cache = Cache(tuple(layers), runs.counterfactual.cache.final)
    return replace(runs, counterfactual=replace(runs.counterfactual, cache=cache))


@pytest.mark.parametrize("gated", [False, True], ids=["dense", "gated"])
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_the_estimate_is_the_slope_of_the_exact_effect(
    loaded: dict[str, Model], architecture: str, gated: bool
) -> None:
    model = replace(loaded[architecture], gated=gated)
    runs = prepare(model, [task_of(model).pairs[0]])
    table, step = EdgeTable.of(runs), 0.02
    up, down = (
        wire_effects(towards_clean(runs, share), table.wires)[0] for share in (step, -step)
    )
    estimated = attribution(one_pair(runs))
    largest = float(estimated.abs().max())
    close = ((up - down) / (2 * step) - estimated).abs() <= 0.01 * largest
    # A gate that opens has no slope.
    assert float(close.double().mean()) >= (0.9 if gated else 1.0)
    exact, _ = wire_effects(runs, table.wires)
    assert np.corrcoef(exact[:, 0].numpy(), estimated[:, 0].numpy())[0, 1] > 0.3


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sets_by_number_explain_what_the_same_wires_do_by_name(
    loaded: dict[str, Model], architecture: str
) -> None:
    model = loaded[architecture]
    runs = prepare(model, [task_of(model).pairs[0]])
    table = EdgeTable.of(runs)
    parallel = architecture == "neox"
    assert table.wires == component_edges(layers=3, heads=4, parallel=parallel)
    draw = torch.Generator().manual_seed(0)
    sets = torch.stack(
        [torch.rand(len(table), generator=draw) < share for share in (0.0, 0.3, 0.9, 1.1)]
    )
    named = []
    for row in sets.tolist():
        named.append([wire for wire, kept in zip(table.wires, row, strict=True) if kept])
    kept = one_pair(runs)
    by_name = torch.stack([circuit_of(kept.table, wires) for wires in named])
    explained = kept.kept(sets)
    torch.testing.assert_close(explained, kept.kept(by_name), atol=1e-5, rtol=0)
    assert explained[[0, -1], 0].tolist() == pytest.approx([0, 1], abs=1e-4)


def test_edges_in_front_are_exact_and_the_others_estimates_that_say_so(
    loaded: dict[str, Model], ranking: Ranking
) -> None:
    model, task = loaded["gpt2"], task_of(loaded["gpt2"])
    assert (ranking.units, ranking.protocol.order, ranking.protocol.measured) == (
        262,
        "front",
        60,
    )
    exact = {each.unit for each in ranking.ranked if each.exact}
    assert len(exact) == 60
    effects, estimated = {}, {}
    for pair in task.pairs:
        runs = prepare(model, [pair])
        for wire, effect, estimate in zip(
            EdgeTable.of(runs).wires,
            wire_effects(runs, EdgeTable.of(runs).wires)[0],
            attribution(one_pair(runs)),
            strict=True,
        ):
            unit = ComponentEdge.of(wire)
            effects.setdefault(unit, []).append(float(effect))
            estimated.setdefault(unit, []).append(float(estimate))
    for each in ranking.ranked:
        wanted = effects if each.exact else estimated
        assert each.effect == pytest.approx(np.mean(wanted[each.unit]), abs=1e-5)
    front = sorted(estimated, key=lambda unit: -abs(np.mean(estimated[unit])))[:60]
    assert exact == set(front)
    values = [each.effect for each in ranking.ranked]
    assert all(first >= second - 2 * ROUNDING for first, second in pairwise(values))


# Orders


@pytest.mark.long
def test_the_order_of_the_search_has_each_of_its_circuits_as_a_beginning(
    runs: KeptRuns, found: SearchResult
) -> None:
    order = found.order()
    assert sorted(order) == list(range(262))
    for stage in found.stages:
        first = set(order[: len(stage)])
        assert first == set(stage.wires.nonzero().flatten().tolist())
    sizes = [len(stage) for stage in found.stages]
    again = explained(runs, order, sizes)
    for row, stage in zip(again, found.stages, strict=True):
        assert row == pytest.approx(stage.kept.numpy(), abs=1e-4)


@pytest.mark.long
def test_edges_that_left_together_stand_by_the_size_of_their_values(
    runs: KeptRuns, found: SearchResult
) -> None:
    together = [pair for pair in pairwise(found.stages) if len(pair[0]) - len(pair[1]) > 1]
    assert together
    for larger, smaller in together:
        left = found.order()[len(smaller) : len(larger)]
        values = runs.values(larger.wires, scales=SCALES).mean(1)[left].abs()
        assert (values[:-1] >= values[1:] - 1e-6).all()


@pytest.mark.long
def test_a_ranking_is_in_the_order_of_the_search_unless_told_otherwise(
    found: SearchResult, searched_ranking: Ranking
) -> None:
    wires = component_edges(layers=3, heads=4)
    names = [str(ComponentEdge.of(wires[number])) for number in found.order()]
    listed = [str(each.unit) for each in searched_ranking.ranked]
    assert listed == names[: len(listed)]  # none is left out between two that are listed
    assert searched_ranking.protocol.order == "search"
    assert "search" in str(searched_ranking.protocol)
    assert {len(stage) for stage in found.stages} <= set(searched_ranking.keep.sizes)
    assert [each.exact for each in searched_ranking.ranked[:21]] == [True] * 20 + [False]


def test_the_search_needs_fewer_edges_than_orders_by_single_scores(
    loaded: dict[str, Model], searched_ranking: Ranking
) -> None:
    model = loaded["gpt2"]
    ours, _, _ = searched_ranking.count()
    assert ours is not None
    for order in ("effect", "eap", "eap-ig"):
        other = rank(model, task_of(model), units="wires", order=order, count=1, most=262)
        count, _, _ = other.count()
        assert count is None or ours < count
        assert searched_ranking.cmd < other.cmd


@pytest.mark.parametrize("order", ["eap", "eap-ig"])
def test_attribution_patching_orders_edges_by_the_size_of_their_scores(
    loaded: dict[str, Model], runs: KeptRuns, order: str
) -> None:
    model = loaded["gpt2"]
    scores = attribution(runs) if order == "eap" else integrated_attribution(runs)
    ranked = rank(model, task_of(model), units="wires", order=order, count=1, most=5)
    first = component_edges(layers=3, heads=4)[int(scores.mean(1).abs().argmax())]
    assert str(ranked.ranked[0].unit) == str(ComponentEdge.of(first))
    numbers = by_size(scores.numpy()).numbers
    sizes = scores.mean(1).abs()[numbers]
    assert (sizes[:-1] >= sizes[1:]).all()
    assert ranked.protocol.order == order and "EAP" in str(ranked.protocol)


@pytest.mark.long
def test_a_circuit_keeps_the_same_alone_and_beside_others(
    runs: KeptRuns, found: SearchResult
) -> None:
    order = found.order()
    sizes = [262, 3, 40, 0, 7, 100]
    together = explained(runs, order, sizes)
    for size, row in zip(sizes, together, strict=True):
        assert row == pytest.approx(explained(runs, order, [size])[0], abs=1e-5)


def test_the_areas_are_those_of_mib(loaded: dict[str, Model], ranking: Ranking) -> None:
    """Ten shares from 0.1%, the metric's means over pairs, trapezoids over the share of edges."""
    model, task = loaded["gpt2"], task_of(loaded["gpt2"])
    everywhere = component_edges(layers=3, heads=4)
    listed = [str(each.unit) for each in ranking.ranked]
    by_name = {str(ComponentEdge.of(wire)): wire for wire in everywhere}
    rest = [wire for name, wire in by_name.items() if name not in listed]
    order = [by_name[str(each.unit)] for each in ranking.ranked]
    negative = [each.effect <= (-ROUNDING if each.exact else 0) for each in ranking.ranked]
    # Edges that change nothing come before those of negative effect.
    split = negative.index(True)
    order = [*order[:split], *rest, *order[split:]]
    changed, gaps = np.zeros(10), 0.0
    for pair in task.pairs:
        runs = prepare(model, [pair])
        gap = float(runs.gap)
        kept = one_pair(runs)
        for number, share in enumerate(MIB_SHARES):
            circuit = circuit_of(kept.table, order[: int(share * 262)])
            changed[number] += gap * float(kept.kept(circuit[None]))
        gaps += gap
    faithful = changed / gaps
    widths, middles = np.diff(MIB_SHARES), (faithful[1:] + faithful[:-1]) / 2
    assert ranking.cpr == pytest.approx(float(widths @ middles), abs=1e-4)
    distance = np.abs(1 - faithful)
    assert ranking.cmd == pytest.approx(
        float(widths @ (distance[1:] + distance[:-1]) / 2), abs=1e-4
    )


def test_the_curve_begins_at_nothing_and_ends_at_everything(ranking: Ranking) -> None:
    assert ranking.keep.explained[0] == pytest.approx(0, abs=1e-4)
    assert ranking.keep.explained[-1] == pytest.approx(1, abs=1e-4)
    count, low, high = ranking.count()
    assert count is not None and low is not None and high is not None and low <= count <= high


def test_two_kinds_of_edges_are_named_apart(ranking: Ranking) -> None:
    text = str(ranking)
    assert "262 component edges" in text and "attention edges" not in text
    assert "estimate" in text and "exact" in text and "MIB" in text


def test_a_ranking_of_wires_is_read_back(ranking: Ranking, tmp_path: Path) -> None:
    assert Ranking.load(ranking.save(tmp_path / "saved")) == ranking


def test_an_eap_file_holds_all_edges_and_gives_back_its_order(
    loaded: dict[str, Model], ranking: Ranking, tmp_path: Path
) -> None:
    file = tmp_path / "ours.json"
    file.write_text(export(ranking, "eap"))
    stored = json.loads(file.read_text())
    assert stored["cfg"] == {
        "n_layers": 3,
        "n_heads": 4,
        "parallel_attn_mlp": False,
        "d_model": 32,
    }
    assert len(stored["edges"]) == 262 and "a0.h1->a2.h3<q>" in stored["edges"]
    inside = {name for name, edge in stored["edges"].items() if edge["in_graph"]}
    assert len(inside) == ranking.count()[0]
    heads = {f"a{head.layer}.h{head.index}" for head in heads_of(ranking)}
    assert heads == {
        name for name, node in stored["nodes"].items() if node["in_graph"] and name[0] == "a"
    }
    graph = from_eap(file)
    assert {wire.eap for wire in graph.wires} == inside
    model = loaded["gpt2"]
    again = rank(model, task_of(model), units="wires", order=graph, most=5)
    assert again.protocol.order == "given" and "order of a file" in str(again.protocol)
    sizes = [abs(stored["edges"][wire.eap]["score"]) for wire in graph.order()]
    assert sizes == sorted(sizes, reverse=True)
    assert str(again.ranked[0].unit) == str(graph.order()[0])
    assert [each.exact for each in again.ranked[:6]] == [True] * 5 + [False]


@pytest.mark.long
def test_a_circuit_of_the_search_goes_out_and_comes_back_with_its_order(
    loaded: dict[str, Model], searched_ranking: Ranking, tmp_path: Path
) -> None:
    file = tmp_path / "searched.json"
    file.write_text(export(searched_ranking, "eap"))
    graph = from_eap(file)
    listed = [str(each.unit) for each in searched_ranking.ranked]
    needed = [str(unit) for unit in searched_ranking.needed()]
    assert {str(wire) for wire in graph.wires} == set(needed)
    assert [str(wire) for wire in graph.order()][: len(listed)] == listed
    model = loaded["gpt2"]
    again = rank(model, task_of(model), units="wires", count=1, order=graph, most=5)
    assert again.count()[0] == searched_ranking.count()[0] == len(graph.wires)
    assert (again.cpr, again.cmd) == pytest.approx(
        (searched_ranking.cpr, searched_ranking.cmd), abs=1e-5
    )


@pytest.mark.long
def test_a_wiring_goes_out_and_comes_back_as_a_circuit_that_keeps_the_same(
    loaded: dict[str, Model], runs: KeptRuns, tmp_path: Path
) -> None:
    found = wiring(loaded["gpt2"], task_of(loaded["gpt2"]), count=1)
    assert not found.places
    file = tmp_path / "wiring.json"
    file.write_text(export(found, "eap"))
    graph = from_eap(file)
    assert set(graph.wires) == {each.wire for each in found.wires}
    assert set(graph.order()[: len(graph.wires)]) == set(graph.wires)
    circuit = circuit_of(runs.table, graph.wires)
    assert float(runs.kept(circuit[None]).mean()) == pytest.approx(found.kept, abs=1e-5)


# The table of all effects


def test_the_table_has_every_exact_effect_and_says_of_what(
    loaded: dict[str, Model], tmp_path: Path
) -> None:
    model = loaded["gpt2"]
    task = task_of(model)
    file = write_edges(edge_effects(model, task, seed=3), tmp_path / "edges.parquet")
    table: Any = pandas.read_parquet(file)
    assert list(table) == ["writer", "reader", "side", "effect", "pair_0", "pair_1"]
    names = []
    for writer, reader, side in zip(
        table["writer"], table["reader"], table["side"], strict=True
    ):
        end = reader if pandas.isna(side) else f"{reader}.{side}"
        names.append(f"{writer}→{end}")
    wires = component_edges(layers=3, heads=4)
    assert names == [str(wire) for wire in wires]
    for number, pair in enumerate(task.pairs):
        effects, _ = wire_effects(prepare(model, [pair]), wires)
        assert table[f"pair_{number}"].tolist() == pytest.approx(
            effects[:, 0].tolist(), abs=1e-5
        )
    means = (table["pair_0"] + table["pair_1"]) / 2
    assert table["effect"].tolist() == pytest.approx(means.tolist())
    facts = json.loads(pyarrow.parquet.read_schema(file).metadata[b"circuits"])
    assert (facts["model"], facts["fingerprint"]) == (model.name, model.fingerprint)
    assert (facts["task"], facts["seed"]) == ("by hand", 3)
    assert [pair["prompt"] for pair in facts["pairs"]] == [text for text, _ in TEXTS]
    assert facts["pairs"][0]["metric"] == str(task.pairs[0].metric)
    gap = float(prepare(model, [task.pairs[1]]).gap)
    assert facts["pairs"][1]["gap"] == pytest.approx(gap, rel=1e-4)


def test_a_table_replaces_its_own_kind_and_no_other_file(
    loaded: dict[str, Model], tmp_path: Path
) -> None:
    table = edge_effects(loaded["gpt2"], task_of(loaded["gpt2"]), count=1)
    file = tmp_path / "edges.parquet"
    write_edges(table, file)
    write_edges(table, file)
    foreign = tmp_path / "elsewhere" / "edges.parquet"
    foreign.parent.mkdir()
    foreign.write_text("mine")
    with pytest.raises(FileError, match="not written by circuits"):
        write_edges(table, foreign)
    assert foreign.read_text() == "mine"
    assert [path.name for path in foreign.parent.iterdir()] == ["edges.parquet"]


def test_networkx_and_graphml_hold_components_and_the_wires_between_them(
    ranking: Ranking,
) -> None:
    graph = nx.node_link_graph(json.loads(export(ranking, "node-link")), edges="links")
    assert graph.number_of_edges() == ranking.count()[0]
    assert nx.is_directed_acyclic_graph(graph) and "logits" in graph
    again = nx.parse_graphml(export(ranking, "graphml"), force_multigraph=True)
    assert again.number_of_edges() == graph.number_of_edges()


@pytest.mark.long
def test_two_models_are_compared_by_component_edges(loaded: dict[str, Model]) -> None:
    model = loaded["llama"]
    sparse, task = replace(model, gated=True), Task("one pair", task_of(model).items[:1])
    both = compare(model, sparse, task=(task, task), units=("wires",), most=20)
    assert both.ratio("wires") is not None
    with pytest.raises(PromptError, match="attention edges"):
        both.ranking("edges")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"units": "wires", "mlps": "held"}, "held"),
        ({"units": "heads", "most": 5}, "component edges"),
        ({"units": "wires", "most": 0}, "at least 1"),
        ({"units": "heads", "order": "search"}, "component edges"),
        ({"units": "fibres"}, "fibres"),
    ],
)
def test_what_does_not_go_together_is_refused(
    loaded: dict[str, Model], options: dict, said: str
) -> None:
    with pytest.raises(PromptError, match=said):
        rank(loaded["gpt2"], task_of(loaded["gpt2"]), **options)


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        ({"cfg": {}}, "`cfg` and `edges`"),
        ({"cfg": {"n_layers": 3}, "edges": {"m0->m1": {}}}, "n_heads"),
        ({"cfg": {"n_layers": 3, "n_heads": 4}, "edges": {"m0": {}}}, "is not a wire"),
        ({"cfg": {"n_layers": 3, "n_heads": 4}, "edges": {"m0@3->m1@3": {}}}, "position"),
        ({"cfg": {"n_layers": 3, "n_heads": 4}, "edges": {"m0->m1": {"score": "x"}}}, "number"),
        (
            {"cfg": {"n_layers": 2, "n_heads": 4}, "edges": {"m0->m1": {"score": 1}}},
            "2 layers of 4 heads",
        ),
        ({"cfg": {"n_layers": 3, "n_heads": 4}, "edges": {"m1->m0": {"score": 1}}}, "M1→M0"),
    ],
)
def test_a_file_that_is_no_circuit_of_this_model_is_refused(
    loaded: dict[str, Model], tmp_path: Path, stored: dict, said: str
) -> None:
    file = tmp_path / "theirs.json"
    file.write_text(json.dumps(stored))
    with pytest.raises(FileError, match=said):
        rank(loaded["gpt2"], task_of(loaded["gpt2"]), units="wires", order=file)


def test_a_misspelt_order_is_told_with_those_that_there_are(loaded: dict[str, Model]) -> None:
    with pytest.raises(FileError, match="search, effect, eap, eap-ig"):
        rank(loaded["gpt2"], task_of(loaded["gpt2"]), units="wires", order="serach")


def test_a_ranking_of_heads_is_no_graph(loaded: dict[str, Model], ranking: Ranking) -> None:
    heads = rank(loaded["gpt2"], task_of(loaded["gpt2"]))
    for to in ("eap", "node-link", "graphml"):
        with pytest.raises(CircuitsError, match="units='wires'"):
            export(heads, to)
    with pytest.raises(FileError, match="one prompt"):
        export(ranking, "neuronpedia")
