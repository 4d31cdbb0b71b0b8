"""The circuit of components: exact where it is planted, checked, saved, queried, refused in one line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
import torch
from click.testing import CliRunner

import circuits
from circuits.cli import main
from circuits.components import ALL, Wire
from circuits.engine import prepare
from circuits.engine.wires import wire_effects
from circuits.errors import CircuitsError, EdgeError, FileError, ModelError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.results import silent
from circuits.show.export import export, load_saved
from circuits.show.wiring import wiring_scene
from circuits.tasks.wires import from_eap
from circuits.tracing import Node, Wiring
from circuits.tracing.wiring import Readers, Search, kept_again, random_wires, wiring
from circuits.zoo.language import tokenizer, vocabulary
from circuits.zoo.planted import _POSITIONS, _Draft

# A planted model. L1H0 reads at the last word: its query was written by L0H0, which copied what is sought;
# its key, at 4, by L0H1, which copied the name of what is found there; its value by L0H2, which copied what
# is to be said. L0H3 copies that word, too, to a feature that nothing reads, and L1H1 moves it to nowhere.
SOUGHT, NAME, SAID, FOUND, LAST = 1, 2, 3, 4, 5
TEXT, OTHER = "red red dog cat cat", "green blue house cat cat"
WORDS = ("red", "green", "blue", "dog", "house", "cat")
PLANTED = {
    "L1H0@5→logits",
    "L0H0@5→L1H0@5.query",
    "L0H1@4→L1H0@5.key",
    "L0H2@4→L1H0@5.value",
    "embed@1→L0H0@5.value",
    "embed@2→L0H1@4.value",
    "embed@3→L0H2@4.value",
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
def found(planted: Model) -> Wiring:
    roles = {"S": SOUGHT, "END": -1}
    return wiring(planted, TEXT, counterfactual=OTHER, answer="dog", foil="house", roles=roles)


def names(effects: Any) -> set[str]:
    return {str(each.wire) for each in effects}


# What is found


def test_a_planted_composition_is_recovered_wire_by_wire(found: Wiring) -> None:
    assert names(found.wires) == PLANTED
    assert not found.cut


def test_a_wire_that_is_there_but_carries_nothing_is_not_drawn(
    planted: Model, found: Wiring
) -> None:
    """L0H3 writes the same word at the same place, and L1H1 reads it."""
    runs = prepare(
        planted, [to_pair(planted, TEXT, counterfactual=OTHER, answer="dog", foil="house")]
    )
    idle = [
        Wire.parse(name, layers=2) for name in ("L0H3@4→L1H0@5.value", "L0H3@4→L1H1@5.value")
    ]
    assert wire_effects(runs, idle)[0].abs().max() < 0.005
    assert not {"L0H3@4", "L1H1@5"} & set(map(str, found.nodes))


def test_the_planted_circuit_explains_the_gap_and_random_ones_do_not(found: Wiring) -> None:
    assert found.kept == pytest.approx(1, abs=0.01)
    assert found.random.draws == 10 and found.random.mean < 0.05 and found.random.largest < 0.2


@pytest.mark.parametrize("gone", ["L0H0@5→L1H0@5.query", "L0H1@4", "embed@3", "L1H0"])
def test_every_wire_of_the_planted_circuit_is_needed(
    planted: Model, found: Wiring, gone: str
) -> None:
    less = found.without(gone, model=planted)
    assert less.kept < 0.01 and len(less.wires) < len(found.wires)
    assert less.wires == tuple(each for each in found.wires if each in less.wires)


@pytest.mark.parametrize("architecture", ["gpt2", "llama", "neox"])
def test_on_random_models_exactly_the_wires_above_the_threshold_are_drawn(
    models: dict[str, Model], architecture: str
) -> None:
    """Every side of every node that is drawn is measured again, by itself."""
    model, text = models[architecture], 'The opposite of "large" is "'
    pair = to_pair(model, text, swap={"large": "hot"}, answer="small", foil="cold")
    got = wiring(
        model, text, swap={"large": "hot"}, answer="small", foil="cold", least=0.2, most=6
    )
    runs = prepare(model, [pair])
    readers, nodes = Readers(runs), [node for node in got.nodes if node not in got.cut]
    sides = [side for node in nodes for side in readers.sides(node)]
    whole = dict(zip(sides, wire_effects(runs, sides)[0][:, 0].tolist(), strict=True))
    followed = [side for side in sides if abs(whole[side]) >= 0.2]
    assert {each.wire for each in got.sides} == set(followed)
    singles = [
        replace(side, writer=writer) for side in followed for writer in readers.writers(side)
    ]
    effects = dict(zip(singles, wire_effects(runs, singles)[0][:, 0].tolist(), strict=True))
    drawn = {wire: effect for wire, effect in effects.items() if abs(effect) >= 0.2}
    assert {each.wire: each.effect for each in got.wires} == pytest.approx(drawn, abs=1e-4)
    assert all((each.wire.position or 0) >= runs.first_difference for each in got.wires)


def test_wires_climb_together_or_one_by_one_to_the_same_effects(planted: Model) -> None:
    pair = to_pair(planted, TEXT, counterfactual=OTHER, answer="dog", foil="house")
    wires = [Wire.parse(name, layers=2) for name in sorted(PLANTED)]
    said: list[tuple[int, int]] = []
    together, _ = wire_effects(
        prepare(planted, [pair]), wires, progress=lambda *done: said.append(done)
    )
    assert said == [(7, 7)]
    alone, _ = wire_effects(
        prepare(planted, [pair], budget=1), wires, progress=lambda *done: said.append(done)
    )
    assert len(said) > 4 and said[-1] == (7, 7)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=0)


@pytest.mark.long
def test_both_paths_draw_the_same(planted: Model, found: Wiring) -> None:
    pair = to_pair(planted, TEXT, counterfactual=OTHER, answer="dog", foil="house")
    runs = prepare(planted, [pair], path="plain")
    search = Search(runs, found.least, found.most, silent)
    search.run()
    assert set(map(str, search.wires)) == PLANTED
    assert kept_again(found, runs).kept == pytest.approx(found.kept, abs=1e-4)


def test_a_walk_that_is_cut_says_what_it_left(planted: Model) -> None:
    cut = wiring(planted, TEXT, counterfactual=OTHER, answer="dog", foil="house", most=1)
    assert set(map(str, cut.cut)) == {"L0H0@5", "L0H1@4", "L0H2@4"}
    assert "3 nodes not explored, as the limit of 1 " in str(cut)
    assert names(cut.wires) == {name for name in PLANTED if "L1H0" in name}


def test_random_circuits_reach_the_logits_and_have_as_many_wires(
    models: dict[str, Model],
) -> None:
    model = models["gpt2"]
    pair = to_pair(
        model,
        'The opposite of "large" is "',
        swap={"large": "hot"},
        answer="small",
        foil="cold",
    )
    readers = Readers(prepare(model, [pair]))
    wires = random_wires(readers, 40, seed="a")
    assert len(set(wires)) == 40 and wires == random_wires(readers, 40, seed="a")
    graph = nx.DiGraph((str(Node.written(wire)), str(Node.read(wire))) for wire in wires)
    assert nx.ancestors(graph, "logits") | {"logits"} == set(graph)
    assert all(
        wire.position is not None and wire.position >= 5 and wire.writer != ALL
        for wire in wires
    )


# Questions and forms


def test_a_wiring_says_what_runs_into_and_out_of_a_place(found: Wiring) -> None:
    assert names(found.into("L1H0@5")) == {name for name in PLANTED if "→L1H0" in name}
    assert names(found.into("L1H0@END.query")) == {"L0H0@5→L1H0@5.query"}
    assert names(found.into("L1H0.key")) == {"L0H1@4→L1H0@5.key"}
    assert names(found.into("logits")) == names(found.out_of("1.0")) == {"L1H0@5→logits"}
    assert names(found.out_of("embed@S")) == {"embed@1→L0H0@5.value"}
    assert found.into("L0H0@4") == found.out_of("M1") == ()
    (side,) = found.side("L1H0@5.key")
    assert side.wire.position == 4 and side.effect == pytest.approx(
        found.into("L1H0.key")[0].effect, abs=0.02
    )


def test_paths_run_along_the_wires(found: Wiring) -> None:
    assert found.paths("embed@3") == (("embed@3", "L0H2@4", "L1H0@5", "logits"),)
    assert len(found.paths("embed")) == 3
    assert found.paths("embed@1", "L0H1") == ()


def test_the_graph_has_what_a_picture_needs(found: Wiring) -> None:
    graph = found.to_graph()
    assert nx.is_directed_acyclic_graph(graph) and len(graph.edges) == len(PLANTED)
    expected = {
        "kind": "head",
        "layer": 1,
        "position": 5,
        "label": "L1H0",
        "role": "END",
        "token": "cat",
    }
    assert graph.nodes["L1H0@5"].items() >= expected.items()
    assert graph.nodes["embed@1"]["label"] == "red" and graph.nodes["embed@1"]["layer"] == -1
    assert graph.nodes["logits"]["kind"] == "logits" and graph.nodes["logits"]["layer"] == 2
    ((_, _, wire),) = graph.in_edges("logits", data=True)
    assert wire["side"] == "logits" and wire["effect"] == pytest.approx(
        found.into("logits")[0].effect
    )
    assert {side for *_, side in graph.in_edges("L1H0@5", data="side")} == {
        "query",
        "key",
        "value",
    }


def test_print_names_positions_by_role_and_says_how_much_is_explained(found: Wiring) -> None:
    text = str(found)
    assert "L1H0@END" in text and "embed@S" in text and "S is red(1), END is cat(5)" in text
    assert f"{found.kept:.3f} of the gap is left" in text and "value of 4" in text
    assert "L1H0@END" in found._repr_html_() and "smaller least" not in text


def test_a_wiring_survives_the_disk_and_gives_the_same_bytes(
    found: Wiring, tmp_path: Path
) -> None:
    file = found.save(tmp_path / "deep")
    assert Wiring.load(file) == Wiring.load(file.parent) == found
    first = file.read_bytes()
    assert Wiring.load(file).save(tmp_path / "deep").read_bytes() == first


def test_a_wiring_goes_to_eap_and_back_and_to_graphs_that_networkx_reads(
    found: Wiring, tmp_path: Path
) -> None:
    found.save(tmp_path)
    assert load_saved(tmp_path) == load_saved(tmp_path / "wiring.json") == found
    (tmp_path / "eap.json").write_text(export(found, "eap"))
    drawn = {(each.wire.writer, each.wire.reader): each.effect for each in found.wires}
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


def test_the_command_prints_writes_and_names_roles(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    call = ["wiring", 'The opposite of "large" is "', "--model", str(directories["gpt2"])]
    call += [
        "--swap",
        "large=hot",
        "--answer",
        "small",
        "--foil",
        "cold",
        "--least",
        "0.3",
        "--most",
        "2",
    ]
    ran = CliRunner().invoke(main, [*call, "--role", "END=-1", "-o", str(tmp_path)])
    assert ran.exit_code == 0, ran.output
    assert "@END" in ran.stdout and "wiring.json" in ran.stdout
    printed = CliRunner().invoke(main, [*call, "--role", "END=-1", "--json"])
    assert json.loads(printed.stdout) == json.loads((tmp_path / "wiring.json").read_text())


# What is refused


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"least": 0}, "least is a share of the gap"),
        ({"least": -0.1}, "least is a share of the gap"),
        ({"least": float("nan")}, "least is a share of the gap"),
        ({"most": 0}, "at least 1, not 0"),
        ({"roles": {"A@B": 1}}, "cannot name a position"),
        ({"roles": {"END": 99}}, "outside the prompt"),
        ({"threshold": 0.1}, "wiring has no 'threshold'"),
        ({"counterfactual": None}, "no counterfactual"),
    ],
)
def test_a_wrong_call_is_refused_in_one_line(
    planted: Model, options: Any, message: str
) -> None:
    given = {"counterfactual": OTHER, "answer": "dog", "foil": "house"} | options
    with pytest.raises(PromptError, match=message) as refused:
        circuits.wiring(planted, TEXT, **given)
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
        (
            lambda found: found.without("L0H3@4"),
            "L0H3@4 is not in this wiring; it has logits, L1H0@5",
        ),
        (
            lambda found: found.without("L0H0@5→L1H0@5.value"),
            "runs|is not in this wiring|two positions",
        ),
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


@pytest.mark.filterwarnings("ignore:.*was edited")
@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda record: record.pop("measured"), "is not a wiring"),
        (lambda record: record.update(schema=9), "schema 9"),
        (lambda record: record.pop("kept"), "kept is missing"),
        (lambda record: record.update(least=0), "least"),
        (lambda record: record["wires"][0].update(wire="nose"), "is not a wire"),
        (lambda record: record["wires"][0].update(wire="M1@5→L1H0@5.query"), "runs downwards"),
        (lambda record: record["wires"][0].update(wire="L0H9@5→logits"), "lacks"),
        (lambda record: record["wires"][0].update(wire="L0H0@99→logits"), "outside its prompt"),
        (lambda record: record["wires"][0].update(wire="L0H0→logits"), "no position"),
        (lambda record: record["wires"][0].update(wire="all@5→logits"), "without a writer"),
        (lambda record: record["wires"][0].update(effect="much"), "effect"),
        (lambda record: record["wires"].append(record["wires"][0]), "twice"),
        (lambda record: record.update(roles=[["END", 70]]), "outside its prompt"),
        (lambda record: record.update(cut=["L0H0"]), "is not a node"),
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


def test_a_wiring_is_drawn_on_the_scale_of_layers_with_its_strongest_way_filled(
    found: Wiring, tmp_path: Path
) -> None:
    scene = wiring_scene(found)
    front = [(start, end) for start, end, wire in scene.graph.edges(data=True) if wire["front"]]
    assert front and {start.partition("@")[0] for start, _ in front} & {"embed"}
    assert [end for _, end in front if end == "output"] == ["output"]
    said = {text.get_text() for text in found.figure().axes[0].texts}
    shown = {
        node["label"]
        for _, node in scene.graph.nodes(data=True)
        if node["kind"] in ("head", "mlp")
    }
    assert shown <= said
    for ending in ("svg", "html", "dot"):
        assert found.save(tmp_path / f"w.{ending}").stat().st_size > 500
    assert found.to_dot().source.count("->") == len(found.wires)
