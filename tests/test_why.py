"""`why`: the sides of a head, the writers of each, and the QK attribution of its score."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from click.testing import CliRunner
from conftest import ARCHITECTURES
from small_models import PROMPT, loaded

import circuits
from circuits.cli import main
from circuits.components import Component, Edge, Head, Wire
from circuits.engine import Row, prepare
from circuits.engine.selection import Mapped
from circuits.engine.wires import wire_effects
from circuits.errors import CircuitsError, EdgeError
from circuits.models.model import Model
from circuits.show.export import export
from circuits.tracing.measure import side_effects
from circuits.tracing.why import explain, score_parts

SWAP = {"large": "hot"}


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


@pytest.fixture(scope="module")
def found(mini: Model) -> circuits.Circuit:
    return circuits.trace(mini, PROMPT, key="large", swap=SWAP)


@pytest.fixture(scope="module")
def answer(mini: Model, found: circuits.Circuit) -> circuits.Why:
    return circuits.why(found, "L5H1", model=mini)


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.parametrize("path", ["fast", "plain"])
def test_pattern_and_value_are_the_two_halves_of_a_message(
    models: dict[str, Model], name: str, path: str
) -> None:
    """Set by hand at the head's output: the other run's weight on the clean value, and the clean weight on
    the other run's value."""
    model, head = replace(models[name], reads_bos=True), Head(1, 2)
    pair = circuits.to_pair(model, PROMPT, swap=SWAP, answer="small", foil="cold")
    runs = prepare(model, [pair], path=path)  # type: ignore[arg-type]
    (sides,) = side_effects(runs, [head], 5, 8)
    clean, other = (side.cache.layers[1] for side in (runs.clean, runs.counterfactual))
    for own, weight, value in (("pattern", other, clean), ("value", clean, other)):
        message = weight.pattern()[:, 2, 8, 5, None] * value.value[:, 2, 5]
        z = (
            clean.z[:, 8, 2]
            - clean.pattern()[:, 2, 8, 5, None] * clean.value[:, 2, 5]
            + message
        )
        row = replace(Row.of_heads([head], [8]).changes[0], given=0)
        expected = float(runs.effects([Row((row,))], given={"head": z[:, None]}))
        assert getattr(sides, own) == pytest.approx(expected, abs=1e-5)
    edge = float(runs.effects([Row.of_edges([Edge(head, 5, 8)])]))
    assert explain([Mapped(runs, 5, 8)], head).effect == pytest.approx(edge, abs=1e-6)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_the_parts_of_a_score_add_up_to_the_score(models: dict[str, Model], name: str) -> None:
    model = replace(models[name], reads_bos=True)
    runs = prepare(
        model, [circuits.to_pair(model, PROMPT, swap=SWAP, answer="small", foil="cold")]
    )
    for head in (Head(0, 1), Head(2, 3)):
        measured = score_parts(runs, head, 5, 8)
        assert float(measured.parts.sum()) == pytest.approx(measured.score, rel=1e-5, abs=1e-5)
        assert len(measured.parts) == len(measured.writers) + 1 == 1 + 5 * head.layer + 1


def test_the_trace_has_the_sides_of_every_carrier(found: circuits.Circuit) -> None:
    mapping = found.mapping()
    assert tuple(each.head for each in mapping.sides) == mapping.carriers(found.share)
    for each in (
        mapping.sides
    ):  # on mini these heads look the same way in both runs: they differ in what they move
        assert each.value == pytest.approx(mapping.effect_of(each.head).effect, abs=0.01)
        assert abs(each.query) + abs(each.key) < 0.01
    assert "query" in str(found) and "value" in str(found)


def test_a_trace_with_its_sides_is_saved_and_read_back(
    found: circuits.Circuit, tmp_path: Path
) -> None:
    assert circuits.Circuit.load(found.save(tmp_path)) == found


def test_writers_are_in_order_and_are_those_of_single_wires(
    mini: Model, answer: circuits.Why
) -> None:
    runs = prepare(mini, [circuits.Pair(answer.prompt, answer.counterfactual, answer.metric)])
    for side in answer.sides:
        effects = [abs(each.effect) for each in side.writers]
        assert effects == sorted(effects, reverse=True) and len(effects) == 1 + 5 * 13
    first = answer.side("value").writers[0]
    wire = Wire.parse(f"{first}→L5H1@8.value", layers=12)
    assert float(wire_effects(runs, [wire])[0]) == pytest.approx(first.effect, abs=1e-6)
    # What L5H1 moves was written by the first MLP at `large`.
    assert first.writer == Component(0, "mlp")


def test_the_answer_is_saved_read_back_printed_and_drawn(
    answer: circuits.Why, tmp_path: Path
) -> None:
    assert circuits.Why.load(answer.save(tmp_path)) == answer
    text = str(answer)
    assert "why L5H1 reads large(5)" in text and "M0@5" in text and "QK attribution" in text
    assert "<table" in answer._repr_html_()
    titles = [axis.get_title("left") for axis in answer.figure().axes]
    # A side without effect takes a line, not a panel.
    assert titles[0] == "attention" and any("value" in title for title in titles[1:])


def test_a_file_that_is_no_answer_is_refused_in_one_line(
    found: circuits.Circuit, tmp_path: Path
) -> None:
    with pytest.raises(CircuitsError, match="is not an explanation"):
        circuits.Why.load(found.save(tmp_path))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--head", "L5H99", "--key", "large"], "no head L5H99 in mini, which has L0H0…L11H11"),
        (["--head", "loud", "--key", "large"], "'loud' is not the name of a head"),
        (["--head", "L5H1"], "name the key that the head reads"),
        (["--head", "L5H1", "--key", "8", "--query", "5"], "key 8 stands after query 5"),
    ],
)
def test_a_question_that_cannot_be_answered_is_one_line(options: list[str], said: str) -> None:
    result = CliRunner().invoke(main, ["why", PROMPT, "--swap", "large=hot", *options])
    assert result.exit_code == 1 and said in result.output and "Traceback" not in result.output


@pytest.mark.long
def test_the_command_gives_the_same_numbers_on_a_prompt_and_on_a_saved_circuit(
    found: circuits.Circuit, answer: circuits.Why, tmp_path: Path
) -> None:
    found.save(tmp_path / "circuit")
    asked = (
        ["why", str(tmp_path / "circuit")],
        ["why", PROMPT, "--key", "large", "--swap", "large=hot"],
    )
    for call in asked:
        result = CliRunner().invoke(main, [*call, "--head", "L5H1", "--json"])
        assert result.exit_code == 0, result.output
        record = json.loads(result.stdout)
        assert record["effect"] == pytest.approx(answer.effect, abs=1e-6)
        assert record["sides"][2]["writers"][0]["writer"] == "M0"


def test_a_wire_that_cannot_be_is_refused_before_anything_runs(mini: Model) -> None:
    runs = prepare(mini, [circuits.to_pair(mini, PROMPT, swap=SWAP)])
    for name, said in (
        ("L9H0@8→L5H1@8.query", "runs downwards"),
        ("L4H99@8→L5H1@8.query", "no L4H99 in this model"),
        ("M3@5→L5H1@30.value", "outside the prompt"),
        ("M3@5→logits", "the logits are read at the last position"),
    ):
        with pytest.raises(EdgeError, match=said):
            wire_effects(runs, [Wire.parse(name, layers=12)])
    for name, said in (
        ("L4H4@7→L5H1@8.query", "reads where its writer stands"),
        ("M3@8→L5H1@5.value", "runs backwards"),
        ("noise@5→L5H1.query", "is not a component"),
        ("M3@5→L5H1", "is not a reader"),
    ):
        with pytest.raises(EdgeError, match=said):
            Wire.parse(name, layers=12)
    with pytest.raises(EdgeError, match="knockout means nothing for a wire"):
        wire_effects(runs, [Wire.parse("M3@8→L5H1@8.query", layers=12)], direction="knockout")


def test_clean_into_clean_changes_nothing(mini: Model) -> None:
    pair = circuits.to_pair(mini, PROMPT, swap=SWAP)
    runs = prepare(mini, [pair])
    same = replace(runs, counterfactual=runs.clean)
    object.__setattr__(same, "gap", torch.ones(1))
    wires = [
        Wire.parse(name, layers=12)
        for name in ("M3@8→L5H1@8.query", "all@5→L4H0@8.value", "M0→M4")
    ]
    assert wire_effects(same, wires)[0].abs().max() < 1e-5


@pytest.mark.long
def test_a_neuronpedia_graph_holds_the_writers_and_the_parts_of_the_score(
    found: circuits.Circuit, answer: circuits.Why
) -> None:
    plain, told = (json.loads(export(found, "neuronpedia", why=why)) for why in ((), (answer,)))
    nodes = {node["node_id"]: node for node in told["nodes"]}
    ends = [(link["source"], link["target"]) for link in told["links"]]
    assert len(ends) == len(set(ends)) > len(plain["links"])
    assert {name for end in ends for name in end} <= nodes.keys()
    head = nodes[f"{answer.head.layer + 1}_{answer.head.index}_{answer.query}"]
    results = head["qk_tracing_results"]
    assert answer.qk_attribution is not None
    parts = [
        part.part
        for part in answer.qk_attribution.parts
        if "biases" not in (part.query_writer, part.key_writer)
    ]
    assert [score for *_, score in results["pair_wise_contributors"]][-len(parts) :] == parts
    for kind, summed in (
        ("top_q_marginal_contributors", answer.qk_attribution.by_query_writer),
        ("top_k_marginal_contributors", answer.qk_attribution.by_key_writer),
    ):
        largest = max(
            (each for each in summed if each[0] != "biases"), key=lambda each: abs(each[1])
        )
        name, score = results[kind][0]
        assert (nodes[name]["clerp"] if largest[0] != "embed" else "embed", score) == largest
    with pytest.raises(CircuitsError, match="go with the format neuronpedia"):
        export(found, "eap", why=[answer])


def test_an_explanation_is_drawn_and_saved_by_the_ending_of_the_path(
    answer: circuits.Why, tmp_path: Path
) -> None:
    for ending in ("svg", "html", "dot"):
        assert answer.save(tmp_path / f"why.{ending}").stat().st_size > 500
    assert "L5H1.value" in answer.to_dot().source
