"""The table of claims counts what it says, is measured once, and circuits are compared with chance beside."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import pytest
import torch
from claims_table import (
    Claim,
    Count,
    claim,
    count_each,
    counted,
    figure_claims,
    held,
    measured_once,
    task_claims,
)
from matplotlib.axes import Axes
from small_models import loaded
from transplant import Overlap, same_writers, transplant, transplant_figure

from circuits.components import ROUNDING
from circuits.models import ZOO
from circuits.models.model import Model
from circuits.tasks.compare import to_same_task
from circuits.tasks.rank import rank
from circuits.tasks.ranking import Units
from circuits.tasks.task import Task

CARRIES = Path(__file__).parents[1] / "case_studies" / "addition" / "carries.jsonl"
CARRY = {"counterfactual": "3 6 + 2 1 = 0", "answer": "6", "foil": "5", "key": 5}


@pytest.fixture(scope="module")
def adders() -> tuple[Model, Model]:
    return loaded("addition"), loaded("addition-sparse")


@pytest.fixture(scope="module")
def carries(adders: tuple[Model, Model]) -> tuple[Task, Task]:
    return to_same_task(adders, CARRIES, count=2)


def test_the_largest_are_counted_until_they_hold_the_share() -> None:
    values = torch.tensor([[-5.0, 1.0], [3.0, 1.0]])
    assert [held(values, share) for share in (0.5, 0.79, 0.8, 0.81, 1.0)] == [1, 2, 2, 3, 4]


def test_a_line_gives_both_numbers_their_ratio_and_the_control() -> None:
    sides = (Count(9, 8, 10), Count.median([2, 1, 6]))
    line = claim("a-sparse", "n90 heads", "one order", sides, published="2.2×", control="0.1")
    assert (
        str(line)
        == "| a-sparse | n90 heads | one order | 9 [8, 10] | 2 [1, 6] | 4.5× | 2.2× | 0.1 |"
    )


def test_what_is_kept_in_a_file_is_not_measured_again(tmp_path: Path) -> None:
    keep, line = tmp_path / "claims.jsonl", Claim("a", "b", "c", "1", "2", "0.5×", "–")
    times = []

    def measure() -> list[Claim]:
        times.append(1)
        return [line, replace(line, quantity="d")]

    first, again, other = (measured_once(keep, key, measure) for key in ("one", "one", "two"))
    assert first == again == other
    assert len(times) == 2
    assert measured_once(None, "one", measure) == first
    assert len(times) == 3


def test_edges_that_change_nothing_are_not_counted(
    adders: tuple[Model, Model], carries: tuple[Task, Task]
) -> None:
    ranking = rank(adders[1], carries[1], units="edges", count=2)
    idle = ranking.units - len(ranking.ranked)
    first = sum(each.effect > -ROUNDING for each in ranking.ranked)
    assert idle > ranking.units / 2  # most gates are shut
    sizes = (0, first, first + 1, first + idle, first + idle + 1, ranking.units)
    expected = [0, first, first, first, first + 1, len(ranking.ranked)]
    assert [counted(ranking, size) for size in sizes] == expected
    assert counted(ranking, None) is None


@pytest.mark.parametrize("units", ["heads", "edges"])
def test_an_order_of_its_own_is_what_a_ranking_of_one_pair_counts(
    units: Units, adders: tuple[Model, Model], carries: tuple[Task, Task]
) -> None:
    alone = [replace(carries[0], items=(item,)) for item in carries[0].items]
    found = [rank(adders[0], task, units=units, count=1) for task in alone]
    assert count_each(adders[0], carries[0], units=units) == [
        counted(each, each.count()[0]) for each in found
    ]


def test_the_figures_mapping_is_counted_by_effect_and_by_loading(
    adders: tuple[Model, Model],
) -> None:
    open_edges, a_query, by_effect, by_loading = figure_claims(
        "addition-sparse", adders, "3 6 + 2 8 = 0", **CARRY
    )
    assert open_edges.sparse == "2.152"
    stored = json.loads((ZOO / "addition-sparse" / "circuits.json").read_text())
    per_query = stored["measured"]["gated"]["per_query"]
    assert float(a_query.sparse) == pytest.approx(sum(per_query) / len(per_query), rel=1e-3)
    assert (by_effect.dense, by_effect.sparse) == ("3", "1")
    assert by_effect.control.startswith("as many random: ")
    assert by_loading.control == "of 16 and 16 heads"


@pytest.mark.long
def test_every_quantity_of_a_task_gives_its_lines(adders: tuple[Model, Model]) -> None:
    lines = {
        quantity: task_claims("addition-sparse", adders, CARRIES, quantity, count=2, most=50)
        for quantity in ("loading", "heads", "edges", "wires")
    }
    assert [len(each) for each in lines.values()] == [2, 3, 3, 2]
    fewer, more = lines["wires"]
    assert fewer.quantity == "carries: n80 component edges"
    assert more.quantity == "carries: n90 component edges"
    assert more.protocol == "one order, 2 pairs, by the search"


def test_a_task_that_a_model_cannot_do_says_so_once(adders: tuple[Model, Model]) -> None:
    (line,) = task_claims("addition-sparse", adders, "opposites", "loading", count=2, most=50)
    assert (line.dense, line.sparse, line.ratio) == ("–", "–", "–")
    assert "opposites" in line.quantity
    assert line.control
    assert task_claims("addition-sparse", adders, "opposites", "heads", count=2, most=50) == []


def test_chance_is_that_of_all_ways_to_choose() -> None:
    shared = Overlap.between({0, 1, 2}, {1, 2, 3, 4}, of=7)
    ways = [len({0, 1, 2} & {*chosen}) for chosen in combinations(range(7), 4)]
    assert shared.both == 2
    assert shared.expected == pytest.approx(sum(ways) / len(ways))
    assert shared.chance == pytest.approx(sum(both >= 2 for both in ways) / math.comb(7, 4))


@pytest.mark.parametrize("units", ["heads", "edges"])
def test_a_model_holds_its_own_circuit_and_not_a_random_one(
    units: Units, adders: tuple[Model, Model], carries: tuple[Task, Task]
) -> None:
    same = transplant((adders[0], adders[0]), (carries[0], carries[0]), units)
    assert same.shared.both == same.shared.sizes[0] == same.shared.sizes[1]
    assert same.twins == pytest.approx(same.own)
    assert same.twins >= 0.9 - ROUNDING
    assert same.random < same.twins - 0.2


def test_a_model_names_the_same_writers_as_itself(adders: tuple[Model, Model]) -> None:
    sides = same_writers((adders[1], adders[1]), "3 6 + 2 8 = 0", **CARRY)
    # What is read of the query does not differ.
    assert [side.side for side in sides] == ["key", "value"]
    assert all(side.first[0] == side.first[1] for side in sides)
    assert any(side.shared.sizes[0] for side in sides)
    assert all(side.shared.both == side.shared.sizes[0] for side in sides)


def test_the_figure_has_three_bars_for_each_model(
    adders: tuple[Model, Model], carries: tuple[Task, Task]
) -> None:
    found = transplant(adders, carries, "heads")
    axes: list[Axes] = transplant_figure({"addition": [found], "again": [found]}).axes
    heights = [[bar.get_height() for bar in bars] for bars in axes[0].containers]
    assert heights == [[value, value] for value in (found.twins, found.own, found.random)]
