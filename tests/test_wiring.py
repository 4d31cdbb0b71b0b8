"""Small circuits of components: the planted one is found, controls hold, results are saved and queried."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from click.testing import CliRunner
from small_models import loaded

import circuits
from circuits.cli import main
from circuits.components import Component
from circuits.engine import prepare
from circuits.engine.kept import KeptRuns
from circuits.engine.wires import wire_effects
from circuits.errors import CircuitsError, EdgeError, FileError, ModelError, PromptError
from circuits.models.load import as_model, load
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.show.export import export, load_saved
from circuits.show.wiring_grid import to_grid
from circuits.tasks.eap import from_eap
from circuits.wires.parts import LOGITS, Node
from circuits.wires.random_circuits import random_circuit
from circuits.wires.record import Wiring
from circuits.wires.search import merit, search
from circuits.wires.wiring import wiring
from circuits.zoo.language import tokenizer, vocabulary
from circuits.zoo.planted import (
    _OTHERS,
    _POSITIONS,
    INDUCTION_PROMPT,
    PLANTED_CARRIERS,
    PROMPT,
    SWAP,
    _Draft,
)

# A planted model. L1H0 reads at the last word: its query was written by L0H0, which copied what is sought;
# its key, at 4, by L0H1, which copied the name of what is found there; its value by L0H2, which copied what
# is to be said. L0H3 copies that word, too, to a feature that nothing reads, and L1H1 moves it to nowhere.
SOUGHT, NAME, SAID, FOUND, LAST = 1, 2, 3, 4, 5
TEXT, OTHER = "red red dog cat cat", "green blue house cat cat"
WORDS = ("red", "green", "blue", "dog", "house", "cat")
PLANTED = {
    "L1H0@5→logits",
    "L0H0@5→L1H0@5.query",
    "L0H1@4→L1H0.key",
    "L0H2@4→L1H0.value",
    "embed@1→L0H0.value",
    "embed@2→L0H1.value",
    "embed@3→L0H2.value",
}


def look(*edges: tuple[int, int]) -> torch.Tensor:
    """Scores by position alone: these (key, query), and BOS, which writes nothing, from everywhere else."""
    scores = torch.full((_POSITIONS, _POSITIONS), -24.0)
    scores[:, 0] = 0.0
    for key, query in edges:
        scores[query, key] = 24.0
    return scores


@torch.no_grad()
def compose() -> Any:
    sizes = dict.fromkeys(("word", "sought", "name", "moved", "unread", "said"), len(WORDS))
    draft = _Draft(sizes | {"position": _POSITIONS, "constant": 1}, layers=2, heads=4)
    known, model = [vocabulary()[word] for word in WORDS], draft.model
    model.transformer.wte.weight.copy_(
        draft.write("word")[torch.arange(len(vocabulary())) % len(WORDS)]
    )
    model.transformer.wte.weight[0] = 0  # so that reading BOS says nothing
    model.transformer.wte.weight[known] = draft.write("word")
    for head in range(4):
        draft.set_scores((1, head), look())
    copies = {0: (SOUGHT, LAST, "sought"), 1: (NAME, FOUND, "name")}
    copies |= {2: (SAID, FOUND, "moved"), 3: (SAID, FOUND, "unread")}
    for head, (key, query, written) in copies.items():
        draft.set_scores((0, head), look((key, query)))
        draft.set_values((0, head), draft.read("word"), draft.write(written))
    # Score: 60 for a match, less 30; BOS gets 0, so that it is read where nothing matches.
    rest = 30 * draft.position()[:, :1] - 30 * draft.constant()
    query = torch.cat([draft.read("sought"), draft.constant()], dim=1)
    draft.set_attention((1, 0), query, torch.cat([60 * draft.read("name"), rest], dim=1))
    draft.set_values((1, 0), draft.read("moved"), draft.write("said"))
    draft.set_scores((1, 1), look((FOUND, LAST)))
    draft.set_values((1, 1), draft.read("unread"), draft.write("unread"))
    model.lm_head.weight[known] = 16 * draft.read("said").T
    model.lm_head.weight[vocabulary()["."]] = 8 * draft.constant().squeeze(1)
    return model.eval()


@pytest.fixture(scope="module")
def planted() -> Model:
    return replace(as_model((compose(), tokenizer())), reads_bos=True)


@pytest.fixture(scope="module")
def induction() -> Model:
    return load("planted-induction")


QUESTION: Any = {"counterfactual": OTHER, "answer": "dog", "foil": "house"}


@pytest.fixture(scope="module")
def found(planted: Model) -> Wiring:
    return wiring(planted, TEXT, roles={"S": SOUGHT, "END": -1}, share=0.99, **QUESTION)


@pytest.fixture(scope="module")
def family(planted: Model) -> Wiring:
    """Component edges, on four prompts that say other words; one of them is held out."""
    asked = []
    for said in ("dog", "house", "cat", "blue"):
        other = "house" if said == "dog" else "dog"
        counterfactual = f"green blue {other} cat cat"
        asked.append(
            {
                "prompt": f"red red {said} cat cat",
                "counterfactual": counterfactual,
                "answer": said,
                "foil": other,
            }
        )
    sought = [("red red dog cat cat", "green red dog cat cat")]
    return wiring(planted, asked, share=0.95, against=sought)


def names(wires: Any) -> set[str]:
    return {str(each.wire) for each in wires}


# What is found


def test_a_planted_composition_is_recovered_wire_by_wire_and_no_wire_more(
    found: Wiring,
) -> None:
    assert names(found.wires) == PLANTED
    assert found.kept == pytest.approx(1, abs=0.02) and found.enough


@pytest.mark.long
@pytest.mark.parametrize(
    ("counterfactual", "expected"),
    [
        ("red house blue cat red", {"embed@2→L1H2.value", "L1H2@5→logits"}),
        (
            "green dog blue cat red",
            {"embed@1→L0H1.value", "L0H1@2→L1H2.key", "L1H2@5→logits"},
        ),
    ],
)
def test_the_planted_induction_circuit_is_found_and_no_wire_more(
    induction: Model, counterfactual: str, expected: set[str]
) -> None:
    """What was changed passes by the value of the second head, or by its key, which the first head wrote."""
    asked: Any = {"counterfactual": counterfactual, "answer": "dog"}
    got = wiring(induction, INDUCTION_PROMPT, share=0.99, **asked)
    assert names(got.wires) == expected and got.kept == pytest.approx(1, abs=0.01)


@pytest.mark.studies
def test_the_planted_facts_pass_by_the_planted_mlps_and_heads_and_no_edge_more() -> None:
    """Four MLPs write the answers at the subject, 21 heads move them to the end."""
    got = wiring(loaded("planted-sparse"), PROMPT, swap=SWAP, positions=False, share=0.999)
    mlps = [f"M{layer}" for layer in range(4)]
    heads = {*PLANTED_CARRIERS, *(f"L{layer}H{index}" for layer, index in _OTHERS)}
    expected = {f"embed→{mlp}" for mlp in mlps} | {f"{head}→logits" for head in heads}
    for head in heads:
        written = [mlp for mlp in mlps if int(mlp[1:]) < int(head[1:].partition("H")[0])]
        expected |= {f"{mlp}→{head}.value" for mlp in written}
    assert names(got.wires) == expected


@pytest.mark.long
def test_a_family_gives_the_same_circuit_as_component_edges(family: Wiring) -> None:
    assert names(family.wires) == {re.sub(r"@\d", "", name) for name in PLANTED}
    assert not family.places and len(family.held_out) == 1
    assert family.held_out[0].kept == pytest.approx(1, abs=0.05)


@pytest.mark.long
def test_the_circuit_of_another_behaviour_keeps_it_and_not_this_one(
    planted: Model, family: Wiring
) -> None:
    """Which word is sought passes by the query alone: of the other circuit's wires three are needed here."""
    other = family.against
    assert other is not None and other.pairs[0].kept == pytest.approx(1, abs=0.05)
    assert other.kept < 0.05 and 3 <= other.shared <= other.wires <= len(family.wires)
    with pytest.raises(PromptError, match="positions=False"):
        wiring(planted, TEXT, against="opposites", **QUESTION)


@pytest.mark.long
def test_a_circuit_that_keeps_less_of_pairs_that_it_did_not_see_says_so_at_once(
    family: Wiring,
) -> None:
    assert family.generalises and "37%" not in str(family)
    unseen = tuple(replace(pair, kept=0.37) for pair in family.held_out)
    worse = replace(family, pairs=(*family.seen, *unseen))
    assert not worse.generalises
    assert any("37%" in line for line in str(worse).splitlines()[:4])


def test_random_circuits_keep_nothing_and_the_rest_without_the_circuit_neither(
    found: Wiring,
) -> None:
    assert found.random.draws == 10 and found.random.mean < 0.05 and found.random.largest < 0.2
    assert found.complement < 0.05


@pytest.mark.parametrize("gone", ["L0H0@5→L1H0@5.query", "L0H1@4", "embed@3", "L1H0"])
def test_every_wire_of_the_planted_circuit_is_needed(
    planted: Model, found: Wiring, gone: str
) -> None:
    less = found.without(gone, model=planted)
    assert less.kept < 0.02 and names(less.wires) < names(found.wires)
    assert not less.enough and "less than the 99% asked for" in str(less).splitlines()[0]


def test_the_value_of_a_wire_is_what_is_kept_less_without_it(
    planted: Model, found: Wiring
) -> None:
    for each in found.wires:
        less = found.without(str(each.wire), model=planted)
        assert each.value == pytest.approx(found.kept - less.kept, abs=1e-5)


def test_the_effect_of_a_wire_is_its_exact_single_effect(planted: Model, found: Wiring) -> None:
    runs = prepare(planted, [to_pair(planted, TEXT, **QUESTION)])
    effects, _ = wire_effects(runs, [each.wire for each in found.wires])
    expected = effects[:, 0].tolist()
    assert [each.effect for each in found.wires] == pytest.approx(expected, abs=1e-5)


def test_the_curve_falls_in_size_and_every_circuit_of_it_was_run(
    planted: Model, found: Wiring
) -> None:
    sizes = [point.wires for point in found.curve]
    assert sizes == sorted(set(sizes), reverse=True) and sizes[0] == found.all_wires
    assert found.curve[0].kept == pytest.approx(1, abs=1e-4)
    for point in found.curve[-4:]:
        again = found.at(edges=point.wires, model=planted)
        assert len(again.wires) == point.wires
        assert again.kept == pytest.approx(point.kept, abs=1e-4)


def test_another_share_is_another_circuit_of_the_same_search(
    planted: Model, found: Wiring
) -> None:
    assert names(found.at(0.99, model=planted).wires) == PLANTED
    with pytest.raises(PromptError, match="one of the two"):
        found.at(model=planted)
    with pytest.raises(PromptError, match="the smallest circuit"):
        found.at(edges=0, model=planted)


def test_a_circuit_is_measured_on_other_questions(planted: Model, found: Wiring) -> None:
    pair = (TEXT.replace("dog", "blue"), OTHER)
    (kept,) = found.keeps([pair], model=planted, answer="blue", foil="house")
    assert kept == pytest.approx(1, abs=0.05)


@pytest.mark.long
def test_without_a_head_that_has_no_backup_nothing_is_kept(planted: Model) -> None:
    """L1H0 is the only reader of what is said."""
    less = wiring(planted, TEXT, without=["L1H0"], **QUESTION)
    assert less.reachable == pytest.approx(0, abs=0.05)
    assert all(each.wire.writer != Component.parse("L1H0") for each in less.wires)


@pytest.mark.long
def test_heads_that_join_only_without_another_are_marked(models: dict[str, Model]) -> None:
    asked: Any = {"swap": {"large": "hot"}, "answer": "small", "foil": "cold"}
    text = 'The opposite of "large" is "'
    usual = wiring(models["gpt2"], text, positions=False, **asked)
    gone = usual.heads[-1]
    less = wiring(models["gpt2"], text, positions=False, without=[gone], **asked)
    assert gone not in less.heads and not any(each.new for each in usual.wires)
    joined = heads_of(less.nodes) - heads_of(usual.nodes)
    assert joined
    for each in less.wires:
        ends = {Node.written(each.wire), *less.readers_of(each.wire)}
        assert each.new == bool(heads_of(ends) & joined)


def heads_of(nodes: Iterable[Node]) -> set[str]:
    return {str(node) for node in nodes if node.component and node.component.kind == "head"}


@pytest.mark.long
def test_resamples_say_which_wires_every_circuit_has(planted: Model) -> None:
    asked = [(f"red red {said} cat cat", OTHER) for said in ("dog", "cat", "blue")]
    got = wiring(planted, asked, foil="house", share=0.95, resamples=2)
    assert got.overlap is not None and got.overlap.jaccard == pytest.approx(1)
    assert set(map(str, got.overlap.core)) == names(got.wires)


@pytest.mark.long
def test_wires_at_roles_serve_prompts_of_different_lengths(planted: Model) -> None:
    """The planted model reads fixed positions, so only what the roles share can be compared: the circuits of
    two prompts of one length, named by role, are those by position."""
    roles = {"SAID": SAID, "END": -1}
    asked = [(f"red red {said} cat cat", OTHER) for said in ("dog", "blue")]
    got = wiring(planted, asked, foil="house", positions=True, roles=roles, share=0.95)
    assert "END" in got.places and {got.wire_name(each.wire) for each in got.wires} >= {
        "L1H0@END→logits",
        "embed@SAID→L0H2.value",
    }
    # Where a longer prompt has a place that the first does not have, it is the last in the list.
    longer = replace(got, places=(*got.places, "SAID+9"))
    assert longer.output_place == got.places.index("END")
    grid = to_grid(longer)
    (last,) = [node for node in longer.nodes if longer.node_name(node) == "L1H0@END"]
    assert grid.column[LOGITS] == grid.column[last]


def test_random_ways_reach_from_the_embedding_to_the_logits(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    text = 'The opposite of "large" is "'
    pair = to_pair(model, text, swap={"large": "hot"}, answer="small", foil="cold")
    runs = prepare(model, [pair])
    for kept in (
        KeptRuns.everywhere([(runs, [0])]),
        KeptRuns.at_places([(runs, [0])], [[str(at) for at in range(runs.length)]]),
    ):
        none = torch.zeros(len(kept.table), dtype=torch.bool)
        drawn = random_circuit(kept.table, 30, besides=none, seed="a")
        assert bool((kept.table.alive(drawn) == drawn).all()) and int(drawn.sum()) >= 30
        again = random_circuit(kept.table, 30, besides=drawn, seed="a")
        assert not (again & drawn).any()


@pytest.mark.long
@pytest.mark.parametrize("aim", ["faithful", "performance"])
def test_on_a_random_model_the_search_beats_single_effects_and_edge_attribution(
    models: dict[str, Model], aim: Any
) -> None:
    """At every size that the search passed, by its own aim, against the first so many edges of each order."""
    model = models["llama"]
    text = 'The opposite of "large" is "'
    pair = to_pair(model, text, swap={"large": "hot"}, answer="small", foil="cold")
    kept = KeptRuns.everywhere([(prepare(model, [pair]), [0])])
    stages = search(kept, aim=aim).stages
    effects = wire_effects(kept.batches[0].runs, kept.table.edges.wires)[0].mean(1)
    estimates = kept.values(torch.ones(len(kept.table), dtype=torch.bool)).mean(1)
    for order in (effects.argsort(descending=True), estimates.abs().argsort(descending=True)):
        rank = order.argsort()
        sizes = [len(stage) for stage in stages]
        theirs = merit(kept.kept(torch.stack([rank < size for size in sizes])), aim)
        ours = merit(torch.stack([stage.kept for stage in stages]), aim)
        assert float((ours >= theirs - 1e-4).float().mean()) > 0.8
        assert float(ours.mean()) > float(theirs.mean())


def test_around_the_share_every_size_is_tried_and_each_circuit_has_the_next(
    models: dict[str, Model],
) -> None:
    model = models["gpt2"]
    text = 'The opposite of "large" is "'
    pair = to_pair(model, text, swap={"large": "hot"}, answer="small", foil="cold")
    kept = KeptRuns.everywhere([(prepare(model, [pair]), [0])])
    searched = search(kept)
    large = [stage for stage in searched.stages if len(stage) > 60]
    share = float(large[-1].kept.mean())  # a round that loses several wires follows
    stages = searched.refined(kept, share).stages
    assert len(stages) > len(searched.stages)
    assert stages[-1] is searched.stages[-1]
    for larger, smaller in pairwise(stages):
        assert len(smaller) < len(larger) and not (smaller.wires & ~larger.wires).any()
    between = next(
        stage for stage in stages if all(stage is not known for known in searched.stages)
    )
    assert float((kept.kept(between.wires[None])[0] - between.kept).abs().max()) < 1e-6


# Questions and forms


def test_a_wiring_says_what_runs_into_and_out_of_a_place(found: Wiring) -> None:
    assert names(found.into("L1H0@5")) == {name for name in PLANTED if "→L1H0" in name}
    assert names(found.into("L1H0@END.query")) == {"L0H0@5→L1H0@5.query"}
    assert names(found.into("L1H0.key")) == {"L0H1@4→L1H0.key"}
    assert names(found.into("logits")) == names(found.out_of("1.0")) == {"L1H0@5→logits"}
    assert names(found.out_of("embed@S")) == {"embed@1→L0H0.value"}
    assert found.into("L0H0@4") == found.out_of("M1") == ()


def test_paths_run_along_the_wires(found: Wiring) -> None:
    assert found.paths("embed@3") == (("embed@3", "L0H2@4", "L1H0@5", "logits"),)
    assert len(found.paths("embed")) == 3
    assert found.paths("embed@1", "L0H1") == ()


def test_the_graph_has_what_a_picture_needs(found: Wiring) -> None:
    graph = found.to_graph()
    assert nx.is_directed_acyclic_graph(graph) and len(graph.edges) == len(PLANTED)
    assert (
        graph.nodes["L1H0@5"].items()
        >= {
            "kind": "head",
            "layer": 1,
            "place": 5,
            "label": "L1H0",
            "name": "END",
        }.items()
    )
    assert graph.nodes["logits"]["kind"] == "logits" and graph.nodes["logits"]["layer"] == 2
    ((_, _, wire),) = graph.in_edges("logits", data=True)
    assert wire["value"] == pytest.approx(found.into("logits")[0].value)
    sides = {side for *_, side in graph.in_edges("L1H0@5", data="side")}
    assert sides == {"query", "key", "value"}


def test_print_names_places_by_role_and_leads_with_what_is_kept(found: Wiring) -> None:
    text = str(found)
    assert text.splitlines()[0].startswith("7 of ") and "keep" in text.splitlines()[0]
    assert "L1H0@END" in text and "embed@S" in text and "S is red(1), END is cat(5)" in text
    table = found.to_dataframe()
    assert len(table) == 7 and set(table["place"]) >= {"END", "S"}


@pytest.mark.long
def test_a_wiring_survives_the_disk_and_gives_the_same_bytes(
    found: Wiring, family: Wiring, tmp_path: Path
) -> None:
    for name, result in (("one", found), ("family", family)):
        file = result.save(tmp_path / name)
        assert Wiring.load(file) == Wiring.load(file.parent) == result
        first = file.read_bytes()
        assert Wiring.load(file).save(tmp_path / name).read_bytes() == first


def test_a_wiring_of_an_earlier_schema_is_refused_in_one_line(
    found: Wiring, tmp_path: Path
) -> None:
    file = found.save(tmp_path)
    record = json.loads(file.read_text()) | {"schema": 1}
    file.write_text(json.dumps(record))
    with pytest.raises(FileError, match=r"schema 1.*measure it again") as refused:
        Wiring.load(file)
    assert "\n" not in str(refused.value)


def test_a_wiring_goes_to_eap_and_back_and_to_graphs_that_networkx_reads(
    found: Wiring, tmp_path: Path
) -> None:
    found.save(tmp_path)
    assert load_saved(tmp_path) == load_saved(tmp_path / "wiring.json") == found
    (tmp_path / "eap.json").write_text(export(found, "eap"))
    drawn = {(each.wire.writer, each.wire.reader): each.value for each in found.wires}
    read = {
        (edge.wire.writer, edge.wire.reader): edge
        for edge in from_eap(tmp_path / "eap.json").edges
    }
    assert {ends: edge.score for ends, edge in read.items() if edge.in_graph} == drawn
    assert all(edge.score == 0 for ends, edge in read.items() if ends not in drawn)
    (tmp_path / "wiring.graphml").write_text(export(found, "graphml"))
    assert set(nx.read_graphml(tmp_path / "wiring.graphml")) == {
        str(node) for node in found.nodes
    }
    with pytest.raises(FileError, match="a wiring takes eap or graphml"):
        export(found, "neuronpedia")


@pytest.mark.long
def test_the_command_prints_writes_and_names_roles(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    call = ["wiring", 'The opposite of "large" is "', "--model", str(directories["gpt2"])]
    call += ["--swap", "large=hot", "--answer", "small", "--foil", "cold", "--no-positions"]
    ran = CliRunner().invoke(main, [*call, "--role", "END=-1", "-o", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "component edges keep" in ran.stdout and "wiring.json" in ran.stdout
    assert "component edges keep" in (tmp_path / "wiring.html").read_text()
    printed = CliRunner().invoke(main, [*call, "--role", "END=-1", "--json"])
    assert json.loads(printed.stdout) == json.loads((tmp_path / "wiring.json").read_text())


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"share": 0}, "share must be above 0"),
        ({"aim": "small"}, "faithful and performance"),
        ({"held_out": 1}, "below 1"),
        ({"resamples": -1}, "0 or more"),
        ({"without": ["L7H0"]}, "no head L7H0"),
        ({"roles": {"A@B": 1}}, "cannot name a position"),
        ({"roles": {"END": 99}}, "outside the prompt"),
        ({"threshold": 0.1}, "wiring has no 'threshold'"),
        ({"counterfactual": None}, "no counterfactual"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    planted: Model, options: Any, message: str
) -> None:
    with pytest.raises(PromptError, match=message) as refused:
        circuits.wiring(planted, TEXT, **{**QUESTION, **options})
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("given", [[], 5, [5], [("a", "b", "c")], [{"text": "red"}]])
def test_what_is_no_question_is_refused_in_one_line(planted: Model, given: Any) -> None:
    with pytest.raises(PromptError, match=r"question|prompt") as refused:
        circuits.wiring(planted, given)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda found: found.into("L9H0@5"), "no L9H0 in"),
        (lambda found: found.out_of("M7"), "no M7 in"),
        (lambda found: found.into("L1H0@99"), "outside the prompt"),
        (lambda found: found.into("nose"), "is not a component"),
        (lambda found: found.into("M1@5.key"), "M1 has no key side"),
        (lambda found: found.out_of("L1H0@5.key"), "is a side, where wires end"),
        (lambda found: found.without("L0H3@4"), "L0H3@4 is not in this wiring; it has logits"),
    ],
)
def test_a_question_about_what_is_not_there_is_refused(
    found: Wiring, ask: Any, message: str
) -> None:
    with pytest.raises((EdgeError, PromptError), match=message):
        ask(found)


def test_measuring_again_needs_the_same_weights(
    found: Wiring, models: dict[str, Model]
) -> None:
    with pytest.raises(ModelError, match="other weights"):
        found.without("L1H0", model=models["gpt2"])


def test_a_model_of_unknown_layout_is_refused_in_one_line(planted: Model) -> None:
    runs = prepare(planted, [to_pair(planted, TEXT, **QUESTION)], path="plain")
    with pytest.raises(ModelError, match="gradients need the layout"):
        search(KeptRuns.everywhere([(runs, [0])]))


@pytest.mark.filterwarnings("ignore:.*was edited")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda record: record.pop("curve"), "is not a wiring"),
        (lambda record: record.update(schema=9), "schema 9"),
        (lambda record: record.pop("complement"), "complement is missing"),
        (lambda record: record.update(share=0), "share"),
        (lambda record: record["wires"][0].update(wire="nose"), "is not a wire"),
        (lambda record: record["wires"][0].update(wire="M1@5→L1H0.query"), "runs downwards"),
        (lambda record: record["wires"][0].update(wire="L0H9@5→logits"), "lacks"),
        (lambda record: record["wires"][0].update(wire="L0H0@99→logits"), "place"),
        (lambda record: record["wires"][0].update(wire="L0H0→logits"), "place"),
        (lambda record: record["wires"][0].update(wire="all@5→logits"), "no writer"),
        (lambda record: record["wires"][0].update(effect="much"), "effect"),
        (lambda record: record["wires"].append(record["wires"][0]), "twice"),
        (lambda record: record["curve"].reverse(), "does not fall"),
        (lambda record: record.update(pairs=[]), "no pairs"),
    ],
)
def test_a_file_that_is_not_whole_is_refused(
    found: Wiring, edit: Any, message: str, tmp_path: Path
) -> None:
    file = found.save(tmp_path)
    record = json.loads(file.read_text())
    edit(record)
    file.write_text(json.dumps(record))
    with pytest.raises(FileError, match=message) as refused:
        Wiring.load(file)
    assert "\n" not in str(refused.value)


def test_other_files_are_refused(tmp_path: Path) -> None:
    (tmp_path / "wiring.json").write_text("[1]")
    with pytest.raises(CircuitsError, match="JSON object"):
        Wiring.load(tmp_path)
