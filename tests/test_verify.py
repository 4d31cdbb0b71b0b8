"""A saved result is measured again: it holds, or what differs is said; how it is run changes no carrier."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from small_models import PROMPT, loaded

from circuits import verify
from circuits.cli import main
from circuits.components import Head
from circuits.engine import prepare
from circuits.engine.selection import best_candidate, mapping_rows, select
from circuits.errors import FileError, ModelError
from circuits.models.model import Model
from circuits.prompts import Pair
from circuits.tasks.task import to_task
from circuits.tracing import Circuit, Step
from circuits.tracing.circuit import circuit
from circuits.tracing.trace import trace
from circuits.tracing.why import why
from circuits.wires.wiring import wiring

SWAP = {"large": "hot"}


@pytest.fixture(scope="module")
def tiny(models: dict[str, Model]) -> Model:
    return models["gpt2"]


@pytest.fixture(scope="module")
def traced(tiny: Model) -> Circuit:
    return trace(tiny, PROMPT, key="large", swap=SWAP, answer="small", foil="cold", share=0.7)


# What holds


@pytest.mark.long
@pytest.mark.parametrize("name", ["gpt2", "llama", "neox"])
def test_what_was_measured_holds(name: str, models: dict[str, Model], tmp_path: Path) -> None:
    model = models[name]
    words: dict[str, Any] = {"answer": "small", "foil": "cold"}
    own = {"opposite": PROMPT.replace("opposite", "the")}
    whole = circuit(
        model, PROMPT, swap=SWAP, groups={"brackets": (3, 5)}, counterfactuals=own, **words
    )
    found = trace(model, PROMPT, key="large", swap=SWAP, **words)
    results: list[Any] = [whole, found, wiring(model, "The large", swap=SWAP, **words)]
    results += [why(found, "L1H2", model=model), trace(model, PROMPT, key="large", seed=3)]
    for number, result in enumerate(results):
        result.save(tmp_path / str(number))
        again = verify(tmp_path / str(number), model=model)
        assert again.holds and again.compared > 50, str(again)
        assert f"{again.compared} of {again.compared} facts are the same" in str(again)


def test_what_does_not_hold_is_said_one_line_each(tiny: Model, traced: Circuit) -> None:
    mapping = traced.mapping()
    first, *others = mapping.heads
    bent = replace(first, effect=first.effect + 0.01)
    path = (replace(mapping.path[0], head=others[-1].head), *mapping.path[1:])
    wrong = replace(traced, mappings=(replace(mapping, heads=(bent, *others), path=path),))
    found = verify(wrong, model=tiny)
    place = "mappings[5→8]"
    effects = f"was {bent.effect:.4f}, is {first.effect:.4f}"
    assert f"{place}.heads[{first.head}].effect: {effects}" in found.differences
    forged = f"{place}.path[{path[0].head}]"
    assert not found.holds
    assert any(line.startswith(f"{forged}: was {{") for line in found.differences)
    assert any(line.endswith("is not there") for line in found.differences)


@pytest.mark.long
def test_the_command_says_whether_it_holds_by_its_exit_code(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    told = [
        "trace",
        PROMPT,
        "--key",
        "large",
        "--swap",
        "large=hot",
        "--model",
        str(directories["gpt2"]),
    ]
    assert CliRunner().invoke(main, [*told, "-o", str(tmp_path / "out")]).exit_code == 0
    done = CliRunner().invoke(main, ["verify", str(tmp_path / "out")])
    assert done.exit_code == 0 and re.match(r"circuit on \S+/gpt2 holds: ", done.stdout), (
        done.output
    )
    stored = Circuit.load(tmp_path / "out")
    (mapping,) = stored.mappings
    replace(stored, mappings=(replace(mapping, restore=mapping.restore + 0.01),)).save(
        tmp_path / "out"
    )
    done = CliRunner().invoke(main, ["verify", str(tmp_path / "out"), "--json"])
    assert done.exit_code == 1 and "does not hold: 1 of " in done.stderr
    assert json.loads(done.stdout)["differences"][0].startswith("mappings[5→8].restore: was ")


def test_other_weights_and_folders_without_a_result_are_refused(
    models: dict[str, Model], traced: Circuit, tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match="other weights"):
        verify(traced, model=models["llama"])
    with pytest.raises(FileError, match="holds none of them"):
        verify(tmp_path)


# The same carriers everywhere


def test_of_equal_heads_the_lowest_is_taken_whatever_the_rounding() -> None:
    candidates = torch.ones(4, dtype=torch.bool)
    for noise in product((-4e-6, 4e-6), repeat=4):
        joint = torch.tensor([0.1, 0.5, 0.5, 0.2], dtype=torch.float64) + torch.tensor(noise)
        assert best_candidate(joint, candidates, reached=0.0) == 1
        # What adds no more than rounding does not help, as the first head or later.
        assert best_candidate(torch.tensor(noise), candidates, reached=0.0) is None
        assert best_candidate(0.5 + torch.tensor(noise), candidates, reached=0.5) is None


def test_a_share_that_is_reached_but_for_rounding_is_reached(traced: Circuit) -> None:
    first, second = traced.mapping().heads[:2]
    for nudge in (-4e-6, 4e-6):
        path = (Step(first.head, 0.5 + nudge), Step(second.head, 0.9))
        assert replace(traced.mapping(), total=1.0, path=path).carriers(0.5) == (first.head,)


@pytest.mark.long
def test_carriers_hang_neither_on_threads_nor_on_chunks_nor_on_batches() -> None:
    """benchmarks/same_answer.py asks the same of 200 questions."""
    mini, before = loaded("mini"), torch.get_num_threads()
    pairs = to_task(mini, "opposites", count=2).pairs
    answers = []
    try:
        for threads, megabytes, batch in ((1, 64, 2), (2, 4, 1)):
            torch.set_num_threads(threads)
            batches = (pairs[start : start + batch] for start in range(0, len(pairs), batch))
            answers.append(
                [heads for each in batches for heads in carriers(mini, each, megabytes)]
            )
    finally:
        torch.set_num_threads(before)
    assert answers[0] == answers[1] and all(answers[0])


def carriers(model: Model, pairs: Sequence[Pair], megabytes: int) -> list[list[Head]]:
    runs = prepare(model, pairs, budget=megabytes * 2**20)
    ends = pairs[0].differs_at[0], runs.length - 1
    effects = runs.effects(mapping_rows(runs.heads, *ends))
    paths = select(runs, *ends, effects=effects[:-1], totals=effects[-1], share=0.8)
    return [[head for head, _ in path] for path in paths]
