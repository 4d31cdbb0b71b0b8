"""A circuit survives the disk unchanged, refuses what is not whole, answers questions, becomes a graph."""

from __future__ import annotations

import json
from pathlib import Path

import networkx as nx
import pytest
from render_samples import dense, hostile
from render_samples import planted as sketch
from small_models import loaded

from circuits.components import Edge, Head
from circuits.errors import EdgeError, FileError, PromptError
from circuits.show import OUTPUT, to_graph
from circuits.show.export import EXPORTS, export
from circuits.tasks.compare import compare
from circuits.tracing import Circuit
from circuits.tracing.circuit import circuit
from circuits.tracing.trace import trace
from circuits.zoo import planted


@pytest.fixture(scope="module")
def measured() -> Circuit:
    own = {label: text for label, text in planted.COUNTERFACTUALS.items() if label != "large"}
    how = {"groups": {"brackets": (4, 6)}, "counterfactuals": own}
    return circuit(loaded("planted-sparse"), planted.PROMPT, swap=planted.SWAP, **how)


@pytest.fixture(scope="module")
def induction() -> Circuit:
    _, _, counterfactual, foil = planted.INDUCTION_MAPPINGS["L0H1"]
    return circuit(
        loaded("planted-induction"),
        planted.INDUCTION_PROMPT,
        counterfactual=counterfactual,
        answer="dog",
        foil=foil,
    )


@pytest.fixture(scope="module")
def noisy() -> Circuit:
    return trace(loaded("planted-sparse"), planted.PROMPT, key="large")


# Files


LONGER = [pytest.param(name, marks=pytest.mark.long) for name in ("induction", "noisy")]


@pytest.mark.parametrize("name", ["measured", *LONGER])
def test_a_measured_circuit_survives_the_disk(
    name: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    known: Circuit = request.getfixturevalue(name)
    stored = known.save(tmp_path / "deep" / "folder")
    assert Circuit.load(stored) == Circuit.load(stored.parent) == known
    assert (Circuit.load(stored).pattern("L1H2") == known.pattern("L1H2")).all()


@pytest.mark.parametrize(
    "known", [sketch(), dense(), hostile()], ids=["sparse", "dense", "hostile"]
)
def test_a_written_circuit_survives_the_disk(known: Circuit, tmp_path: Path) -> None:
    assert Circuit.load(known.save(tmp_path)) == known


def test_saving_twice_gives_the_same_bytes(measured: Circuit, tmp_path: Path) -> None:
    first, second = (measured.save(tmp_path / name) for name in "ab")
    assert first.read_bytes() == second.read_bytes()
    assert (
        first.with_suffix(".safetensors").read_bytes()
        == second.with_suffix(".safetensors").read_bytes()
    )


def _edit(file: Path, change: str) -> None:
    stored = json.loads(file.read_text())
    match change:
        case "number":
            stored["mappings"][0]["total"] = 0.5
        case "schema":
            stored["schema"] = Circuit.SCHEMA + 1
        case "no schema":
            del stored["schema"]
        case "list":
            stored = [stored]
        case "type":
            stored["mappings"] = "none"
    file.write_text(json.dumps(stored))


def test_an_edited_file_is_the_users_own_and_is_read_with_a_warning(
    measured: Circuit, tmp_path: Path
) -> None:
    file = measured.save(tmp_path)
    _edit(file, "number")
    with pytest.warns(UserWarning, match="edited"):
        assert Circuit.load(file).mappings[0].total == 0.5


@pytest.mark.filterwarnings("ignore:.*was edited")
@pytest.mark.parametrize("change", ["schema", "no schema", "list", "type"])
def test_an_edited_file_that_is_no_circuit_any_more_is_refused_with_one_line(
    measured: Circuit, tmp_path: Path, change: str
) -> None:
    file = measured.save(tmp_path)
    _edit(file, change)
    with pytest.raises(FileError) as refused:
        Circuit.load(file)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("size", [0, 1, 100, -2])
@pytest.mark.parametrize("ending", [".json", ".safetensors"])
def test_a_truncated_file_is_refused_with_one_line(
    measured: Circuit, tmp_path: Path, size: int, ending: str
) -> None:
    file = measured.save(tmp_path).with_suffix(ending)
    file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(FileError) as refused:
        Circuit.load(tmp_path)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["{" * 100_000, '{"schema": NaN}', "\x00", '{"schema": 1, "sha256": 3}', "null"]
)
def test_nonsense_is_refused_with_one_line(tmp_path: Path, text: str) -> None:
    (tmp_path / "circuit.json").write_text(text)
    with pytest.raises(FileError):
        Circuit.load(tmp_path)


def test_a_folder_that_is_a_file_is_refused_and_left_alone(
    measured: Circuit, tmp_path: Path
) -> None:
    taken = tmp_path / "taken"
    taken.write_text("mine")
    with pytest.raises(FileError, match="taken"):
        measured.save(taken)
    assert taken.read_text() == "mine"


# Questions


def test_queries_read_like_the_question(measured: Circuit) -> None:
    five = tuple(map(Head.parse, planted.PLANTED_CARRIERS))
    assert measured.carriers("large", -1, share=0.8) == five
    assert measured.heads(min_effect=0.05) == five
    assert [m.key for m in measured.into(8)] == [5]
    assert measured.into("opposite") == ()
    edge, effect = measured.edges(head="L11H7")[0]
    assert (edge, effect.head) == (Edge(Head(11, 7), 5, 8), Head(11, 7))
    assert measured.paths("large", "small") == (("large", '"', "small"),)
    assert measured.paths("opposite", "large") == ()


def test_the_dataframe_has_a_row_for_every_measured_edge(measured: Circuit) -> None:
    table = measured.to_dataframe()
    assert len(table) == 144
    assert table.iloc[0]["edge"] == "L11H7:5→8"
    assert table["effect"].tolist() == sorted(
        table["effect"].tolist(), key=lambda effect: -abs(effect)
    )


@pytest.mark.parametrize("wrong", ["L12H0", "L0H12"])
def test_a_head_that_does_not_exist_is_refused(measured: Circuit, wrong: str) -> None:
    with pytest.raises(EdgeError, match="no head"):
        measured.edges(head=wrong)


def test_a_mapping_that_was_not_found_is_refused_with_those_that_were(
    measured: Circuit,
) -> None:
    with pytest.raises(PromptError, match="it has 5→8"):
        measured.carriers("opposite", -1)


def test_notebooks_get_escaped_html() -> None:
    assert "<script" not in hostile()._repr_html_()


# Comparison


@pytest.mark.long
def test_dense_needs_many_more_heads_than_sparse(measured: Circuit) -> None:
    dense = trace(loaded("planted-dense"), planted.PROMPT, key="large", swap=planted.SWAP)
    found = compare(dense, measured)
    assert (len(found.carriers[0]), len(found.carriers[1])) == (43, 5)
    assert set(map(str, dense.carriers())) <= set(planted.PLANTED_DENSE)
    assert found.ratio == pytest.approx(8.6)
    assert set(found.overlap) == set(found.carriers[0]) & set(found.carriers[1])
    assert found.open_edges[1] < found.open_edges[0]
    # Every carrier of either model.
    moved = {str(each.head) for each in found.moved}
    assert moved == {str(head) for side in found.carriers for head in side}
    assert "heads for 80%" in str(found)


def test_circuits_of_different_prompts_are_not_compared(
    measured: Circuit, induction: Circuit
) -> None:
    with pytest.raises(PromptError, match="same prompt"):
        compare(measured, induction)


# Graphs and exports


@pytest.mark.parametrize("name", ["measured", "induction", "noisy"])
def test_the_graph_is_acyclic_and_its_numbers_can_be_recomputed(
    name: str, request: pytest.FixtureRequest
) -> None:
    known: Circuit = request.getfixturevalue(name)
    graph = to_graph(known)
    assert nx.is_directed_acyclic_graph(graph)
    attention = [data for *_, data in graph.edges(data=True) if data["kind"] == "attention"]
    within = [
        data for _, node in graph.nodes(data=True) for data in node.get("self_attention", [])
    ]
    assert len(attention) + len(within) == len(known.mappings)
    for data in (*attention, *within):
        mapping = known.mapping(data["from_position"], data["to_position"])
        assert data["total"] == mapping.total
        carriers = mapping.carriers(known.share)
        assert (
            tuple(map(Head.parse, data["heads"]))
            == tuple(map(Head.parse, data["joint"]))
            == carriers
        )
        assert data["heads"] == {str(head): mapping.effect_of(head).effect for head in carriers}
        joint = [step.joint for step in mapping.path[: len(carriers)]]
        assert list(data["joint"].values()) == joint
        assert (joint[-1] if joint else 0.0) / data["total"] == pytest.approx(
            data["modulation"]
        )


def test_the_planted_figure_is_the_graph(measured: Circuit) -> None:
    graph = to_graph(measured)
    labels = {node["label"]: node for _, node in graph.nodes(data=True)}
    assert {"opposite", "brackets", "large", "small"} <= labels.keys()
    assert labels["brackets"]["positions"] == [4, 6]
    assert graph.nodes[OUTPUT]["layers"] == [12]
    assert graph.has_edge("5", "8")


def test_node_link_json_is_read_back_by_networkx(measured: Circuit) -> None:
    again = nx.node_link_graph(json.loads(export(measured, "node-link")), edges="links")
    assert nx.utils.graphs_equal(again, to_graph(measured))


def test_graphml_is_read_back_by_networkx(measured: Circuit) -> None:
    again = nx.parse_graphml(export(measured, "graphml"))
    assert set(again.nodes) == set(to_graph(measured).nodes)


def test_an_eap_circuit_names_every_head_and_marks_the_carriers(measured: Circuit) -> None:
    stored = json.loads(export(measured, "eap"))
    assert stored["cfg"] == {
        "n_layers": 12,
        "n_heads": 12,
        "parallel_attn_mlp": False,
        "d_model": 192,
    }
    kept = {
        name
        for name, node in stored["nodes"].items()
        if node["in_graph"] and name.startswith("a")
    }
    assert kept == {f"a{head.layer}.h{head.index}" for head in measured.carriers("large")}
    assert stored["edges"]["a11.h7->logits"]["score"] == pytest.approx(0.172, abs=0.01)


def test_a_neuronpedia_graph_keeps_the_schema_and_its_viewers_traps(measured: Circuit) -> None:
    stored = json.loads(export(measured, "neuronpedia"))
    assert {"metadata", "qParams", "nodes", "links"} <= stored.keys()
    assert {"slug", "scan", "prompt_tokens", "prompt"} <= stored["metadata"].keys()
    assert len(stored["metadata"]["prompt_tokens"]) == len(measured.prompt)
    required = {"node_id", "feature", "layer", "ctx_idx", "feature_type", "jsNodeId", "clerp"}
    ids = [node["node_id"] for node in stored["nodes"]]
    assert len(ids) == len(set(ids))
    for node in stored["nodes"]:
        assert required <= node.keys()
        assert node["feature"] is None or isinstance(node["feature"], int)
        assert isinstance(node["layer"], str | int)
        assert 0 <= node["ctx_idx"] < len(measured.prompt)
    logits = [node for node in stored["nodes"] if node["feature_type"] == "logit"]
    assert len(logits) == 1
    assert "(p=0." in logits[0]["clerp"]
    assert any(
        node["feature_type"] == "unknown" and int(node["layer"]) >= 1
        for node in stored["nodes"]
        if node["layer"] != "E"
    )
    assert all(
        node["node_id"].startswith("E_")
        for node in stored["nodes"]
        if node["feature_type"] == "embedding"
    )
    ends = [(link["source"], link["target"]) for link in stored["links"]]
    assert len(ends) == len(set(ends))
    for link in stored["links"]:
        assert {link["source"], link["target"]} <= set(ids)
        assert isinstance(link["weight"], float)
    for node in stored["nodes"]:
        for query, key, score in node.get("qk_tracing_results", {}).get(
            "pair_wise_contributors", []
        ):
            assert {query, key} <= set(ids)
            assert isinstance(score, float)


@pytest.mark.parametrize("to", EXPORTS)
def test_every_export_is_the_same_twice(measured: Circuit, to: str) -> None:
    assert export(measured, to) == export(measured, to)


def test_an_unknown_format_is_refused_with_those_there_are(measured: Circuit) -> None:
    with pytest.raises(FileError, match="node-link, graphml, neuronpedia, eap"):
        export(measured, "dot")
