"""A circuit prints itself: all that was measured is said, and a token can do nothing but be read."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import render_samples as samples

from circuits.components import Head
from circuits.show import tables
from circuits.show.comparison_tables import comparison_section
from circuits.show.sections import Column, Section, section_html
from circuits.tracing import HeadEffect, Mapping
from circuits.tracing.records import Circuit


def with_front(circuit: Circuit, **changes: object) -> Circuit:
    first, *others = circuit.mappings
    return replace(circuit, mappings=(replace(first, **changes), *others))


def line_with(text: str, words: str) -> str:
    return next(line for line in text.split("\n") if line.startswith(words))


def has(text: str, *parts: str) -> bool:
    """Whether a text has these parts, in this order."""
    return re.search(".*".join(map(re.escape, parts)), text, re.DOTALL) is not None


def head_rows(text: str) -> dict[str, list[str]]:
    """The cells of every row that begins with a head."""
    rows = [line.split() for line in text.split("\n") if re.match(r"L\d+H\d+ ", line)]
    return {name: cells for name, *cells in rows}


def test_the_text_opens_with_the_question() -> None:
    text = str(samples.planted())
    assert has(
        text.split("\n")[0], "Sparse GPT-2", "12 layers", "12 heads", "gated", "of 6480 edges"
    )
    assert line_with(text, "prompt").endswith(
        '(0) The(1) opposite(2) of(3) "(4) large(5) "(6) is(7) "(8)'
    )
    assert has(line_with(text, "counterfactual"), "noise at 5", "8 draws")
    assert has(
        line_with(text, "metric"),
        "small",
        "cold",
        "clean 4.20",
        "counterfactual -1.10",
        "gap 5.30",
    )
    assert has(line_with(text, "output"), "small", "0.93", "layer 12")


def test_a_counterfactual_in_words_is_told_by_what_differs() -> None:
    circuit = samples.planted()
    words = (*circuit.prompt.words[:5], "hot", *circuit.prompt.words[6:])
    other = replace(circuit.prompt, text="another", words=words)
    line = line_with(str(replace(circuit, counterfactual=other)), "counterfactual ")
    assert line.endswith("large(5) → hot")


def test_the_mapping_in_front_is_told_with_its_carriers_and_the_next_strongest_heads() -> None:
    text = str(samples.planted())
    assert has(line_with(text, "large(5) → "), '"(8)', "total 1.00", "restore 0.97")
    assert has(line_with(text, "Modulated at 80% by"), "L11H7, L10H1, L9H7, L9H1, L8H6")
    rows = head_rows(text)
    assert list(rows) == [
        "L11H7",
        "L10H1",
        "L9H7",
        "L9H1",
        "L8H6",
        "L10H4",
        "L7H2",
        "L6H9",
        "L3H3",
    ]
    effect, restore, loading, *attention, joint = rows["L10H1"]
    assert (effect, restore, loading, joint) == ("0.180", "0.162", "0.198", "0.480")
    assert attention == ["0.51", "→", "0.02"]


def test_every_control_is_in_the_text() -> None:
    text = str(samples.planted())
    assert has(line_with(text, "random heads"), "0.013", "0.041", "100 draws", "5 heads")
    assert re.search(r"best other key +\S+\(\d\) .* -?0\.\d{3}\n", text)
    assert "(5) with a total" not in text  # the key itself is no other key
    assert line_with(text, "sufficiency  ").split()[1] == "0.79"
    assert "below 1e-05" in line_with(text, "identity")
    assert "fast" in line_with(text, "engine")
    assert has(line_with(text, "loading  "), "5 heads", "80%", "3 for 50%", "8 for 95%")


def test_a_mapping_without_controls_says_so() -> None:
    assert "not measured on this mapping" in str(with_front(samples.planted(), controls=None))


def test_heads_against_the_answer_are_reported_as_such() -> None:
    circuit = samples.planted()
    against = HeadEffect(Head(2, 4), -0.07, -0.06, -0.05, 0.4, 0.4)
    printed = str(with_front(circuit, heads=(*circuit.mappings[0].heads, against)))
    assert line_with(str(circuit), "against the answer").endswith("no head")
    assert line_with(printed, "against the answer").endswith("L2H4 -0.070")


def test_the_other_mappings_take_a_row_each() -> None:
    row = line_with(str(samples.planted()), 'opposite(2) → "(8)')
    assert row.split()[3:] == ["0.190", "0.184", "89%", "L8H6,", "L7H2", "0.041", "0.79"]


def test_spans_are_told_with_layers_built_and_counterfactual() -> None:
    text = str(samples.deep())
    _, *cells = line_with(text, "large(4)  ").split()
    assert cells == ["layer", "0-21", "0,", "20-21", "0.90", "1.00", "noise"]
    assert line_with(str(samples.planted()), "brackets(4, 6)").split()[2:5] == [
        "layer",
        "0-10",
        "0-10",
    ]


def test_a_circuit_without_mappings_says_so_in_words() -> None:
    assert "no mapping carries 0.05" in str(samples.empty())


def test_a_mapping_without_carriers_is_an_answer() -> None:
    circuit = samples.planted()
    nothing = Mapping(5, 8, 0.004, 0.003, circuit.mappings[0].heads)
    assert "Carried by no head" in str(replace(circuit, mappings=(nothing,)))


def test_carriers_that_fall_short_of_the_share_say_so() -> None:
    circuit = samples.planted()
    short = with_front(circuit, path=circuit.mappings[0].path[:3])
    assert has(str(short), "Modulated at 61% by L11H7, L10H1, L9H7", "80% is not reached")


def test_many_carriers_are_all_named_and_the_table_stays_short() -> None:
    text = " ".join(str(samples.dense()).split())
    named = re.search(r"Modulated at 80% by ([LH\d, ]+) the first 16 of 43 carriers", text)
    assert named is not None and len(named[1].split(", ")) == 43


def test_the_share_of_the_text_is_the_share_of_the_controls() -> None:
    controls = samples.planted().mappings[0].controls
    assert controls is not None
    half = with_front(samples.planted(), controls=replace(controls, share=0.5))
    assert "Modulated at 61% by L11H7, L10H1, L9H7\n" in str(half)
    assert "3 heads" in line_with(str(half), "random heads")


@pytest.mark.parametrize(
    "circuit",
    [samples.hostile(), samples.dense(), samples.long(500)],
    ids=["hostile", "dense", "long"],
)
def test_text_holds_no_control_characters_and_no_line_is_too_wide(circuit: Circuit) -> None:
    text = str(circuit)
    assert all(letter.isprintable() or letter in "\n\u200d" for letter in text)
    assert max(map(len, text.split("\n"))) <= 100
    assert text == str(circuit)


def test_markup_in_tokens_stays_text() -> None:
    circuit = samples.hostile(("[bold]a[/bold]", "[link=x]", ":smile:", "[/]"))
    assert "[bold]a[/bold](0) [link=x](1) :smile:(2) [/](3)" in str(circuit)


def test_a_notebook_shows_the_diagram_above_the_tables() -> None:
    page = samples.planted()._repr_html_()
    assert has(page, "<svg", "</svg>", "<td", "Modulated at 80% by L11H7, L10H1")
    assert page.count("<table>") == page.count("</table>") > 0


def test_a_notebook_escapes_hostile_tokens() -> None:
    page = tables.to_html(samples.hostile())
    assert "<script" not in page and "<img" not in page and "\x1b" not in page
    assert "&lt;script&gt;alert(1)&lt;/script&gt;(1)" in page


def test_a_notebook_without_graphviz_shows_the_tables_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "pygraphviz.py").write_text("raise ImportError")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("PATH", "")
    page = tables.to_html(samples.planted())
    assert "<svg" not in page and "Modulated at 80% by" in page


def test_two_models_are_compared_row_by_row() -> None:
    first, second = comparison_section([samples.dense(), samples.planted()], share=0.8).rows
    assert (first[0], first[3], second[0], second[3]) == ("GPT-2", 43, "Sparse GPT-2", 5)
    assert second[-1] == "1 head L10H1"


def test_models_of_different_shape_have_no_overlap() -> None:
    _, second = comparison_section([samples.deep(), samples.planted()], share=0.8).rows
    assert second[-1] == "not comparable"


# Tables


def test_a_cell_is_written_by_the_format_of_its_column() -> None:
    assert (
        Column("effect", "z.3f").cell(-0.0001) == "0.000"
        and Column("head").cell(Head(2, 4)) == "L2H4"
    )
    assert (
        Column("joint", ".3f").cell(None) == ""
        and Column("loading", ".3f").cell("none") == "none"
    )


def test_text_and_html_align_words_to_the_left_and_numbers_to_the_right() -> None:
    rows = [("L1H1", 0.5), ("L10H11", -12.0)]
    section = Section("Effects", ["of heads"], (Column("head"), Column("effect", ".1f")), rows)
    assert str(section).split("\n")[-2:] == ["L1H1        0.5", "L10H11    -12.0"]
    page = section_html(section)
    assert has(
        page, "<h4>Effects", "<p>of heads", "<th>head", "left", "L1H1", "right", "0.5", "-12.0"
    )


def test_marked_rows_stand_apart_from_the_others() -> None:
    lines = str(
        Section(columns=[Column("head")], rows=[["L1H1"], ["L2H2"], ["L3H3"]], marked=2)
    ).split("\n")
    assert lines[-4:] == ["L1H1", "L2H2", "", "L3H3"]
