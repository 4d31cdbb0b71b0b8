"""Whatever a notebook shows for an object is one short line that says what it is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import circuits
from circuits.errors import CircuitsError
from circuits.models.model import Model

TEXT = 'The opposite of "large" is "'
# A word that each kind of result says, beside its own name.
SAID = {
    "circuit": "total",
    "traced": "large(5)",
    "mapping": "5→8",
    "family": "4 pairs",
    "comparison": "against",
    "verification": "holds",
    "ranking": "opposites",
    "task_comparison": "mini with mini-sparse",
    "panel": "maps",
    "sweep": "4 measured",
    "mean": "mean of 4 lines",
    "why": "reads large(5)",
    "stability": "3 counterfactuals",
    "patch": "residual, swap: strongest at",
    "paths": "paths, swap: strongest at sender",
    "attribution": "logit(small) − logit(cold)",
    "lens": "small is",
    "head_scores": "scores highest",
    "neurons": "M1@5: effect",
}


def is_short(text: str) -> bool:
    return "\n" not in text and text.isprintable() and len(text) < 200


@pytest.mark.parametrize("kind", SAID)
def test_a_result_is_one_short_line(results: dict[str, Any], kind: str) -> None:
    shown = repr(results[kind])
    assert is_short(shown)
    assert shown.startswith(f"<{type(results[kind]).__name__} ") and SAID[kind] in shown


def test_a_hostile_name_or_token_stays_on_its_line(results: dict[str, Any]) -> None:
    traced = results["traced"]
    words = ("\x1b[2J" + "long\n" * 100, *traced.prompt.words[1:])
    source = replace(traced.source, name="a\x1b[31m\n" + "b" * 500)
    prompt = replace(traced.prompt, words=words, text="text\n" * 200)
    assert is_short(repr(replace(traced, source=source, prompt=prompt)))
    assert is_short(repr(prompt))


def test_names_are_their_own_reprs() -> None:
    names = ["L5H1", "L5H1:5→8", "M3", "L5H1.query", "L4H4@13→L5H1@13.query"]
    parsed = [
        circuits.Head.parse(names[0]),
        circuits.Edge.parse(names[1]),
        circuits.Component.parse(names[2]),
        circuits.Reader.parse(names[3], layers=6),
        circuits.Wire.parse(names[4], layers=6),
    ]
    assert repr(parsed) == f"[{', '.join(names)}]"


def test_what_the_engine_holds_is_one_short_line(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    pair = circuits.to_pair(model, TEXT * 3, swap={"large": "hot"})
    runs = circuits.prepare(model, [pair])
    heads = circuits.Row.of_heads(runs.heads, range(runs.length))
    held = [pair, pair.clean, runs, runs.clean, runs.clean.cache, runs.clean.cache.layers[0]]
    for each in (*held, heads, circuits.Row(()), runs.layout, circuits.scan(runs), model):
        assert is_short(repr(each)), type(each)


# What a row of each table is about, and a column of its numbers.
TABLES = {
    "traced": ("head", "effect"),
    "circuit": ("head", "effect"),
    "mapping": ("head", "loading"),
    "family": ("head", "low"),
    "comparison": ("head", "effect"),
    "ranking": ("head", "effect"),
    "panel": ("head", "peak"),
    "mean": ("head", "effect"),
    "stability": ("head", "carries"),
}


@pytest.mark.parametrize("kind", TABLES)
def test_a_result_about_heads_is_a_table_and_an_array(
    results: dict[str, Any], kind: str
) -> None:
    result = results[kind]
    name, column = TABLES[kind]
    table = result.to_dataframe()
    array = result.head_array(column)
    assert array.ndim == 2 and len(table) > 0
    if kind in ("traced", "circuit"):
        table = result.mapping().to_dataframe()
    for row in table.to_dict("records"):
        head = circuits.Head.parse(row[name])
        assert array[head.layer, head.index] == row[column]
    assert np.isfinite(array).sum() == len(table)
    with pytest.raises(CircuitsError, match="nonsense"):
        result.head_array("nonsense")


def test_other_results_are_tables(results: dict[str, Any]) -> None:
    why = results["why"]
    table = why.to_dataframe()
    assert set(table["side"]) == {"query", "key", "value"}
    of_heads = table[(table["side"] == "value") & table["writer"].str.contains("H")]
    assert np.nansum(why.head_array("value")) == pytest.approx(of_heads["effect"].sum())
    assert len(results["sweep"].to_dataframe()) == 4
    assert results["verification"].to_dataframe().empty
    rows = results["task_comparison"].to_dataframe()
    assert set(rows["model"]) == {"mini", "mini-sparse"}
