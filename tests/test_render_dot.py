"""The Graphviz diagram: what it says, that it is always drawn, and that a token stays text."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_samples import (
    CARRIERS,
    HOSTILE,
    deep,
    dense,
    empty,
    hostile,
    long,
    mapping_of,
    planted,
)

from circuits.components import Head
from circuits.errors import CircuitsError, FileError
from circuits.show import canvas
from circuits.show import dot as diagram
from circuits.show.dot import draw
from circuits.show.graph import kept_positions
from circuits.show.scene import to_scene
from circuits.show.words import LONGEST_WORD, spell
from circuits.tracing.records import Circuit


def to_dot(circuit: Circuit, **options: Any) -> str:
    return diagram.to_dot(circuit, **options).source


def elements(dot: str) -> list[tuple[str, float, str]]:
    """Every piece of text in the drawn diagram, with its place across the page and its size."""
    data = draw(dot, "svg")
    assert isinstance(data, bytes)
    found = ElementTree.fromstring(data).iter("{http://www.w3.org/2000/svg}text")
    return [
        ((one.text or "").replace("\xa0", " "), float(one.attrib["x"]), one.attrib["font-size"])
        for one in found
    ]


def texts(dot: str) -> list[str]:
    return [text for text, _, _ in elements(dot)]


def sentence(dot: str) -> list[str]:
    """The words of the sentence from left to right: no other text is as large."""
    words = [(x, text) for text, x, size in elements(dot) if size == "13.00"]
    return [text for _, text in sorted(words)]


def test_the_planted_diagram_says_all_that_figure_b_says() -> None:
    said = texts(to_dot(planted()))
    assert '5 of 144 heads carry 80% of large(5) → "(8)' in said
    assert to_scene(planted()).question() in " ".join(said)
    assert {"Q", "K", *map(str, CARRIERS)} <= set(said)
    assert {
        "opposite",
        "layer 0-1",
        "large",
        "layer 0-3",
        "brackets",
        "layer 0-10",
        "small",
        "layer 12",
        "p = 0.93",
    } <= set(said)
    assert "Modulated at 80% by" in said
    assert "L11H7 L10H1 L9H7" in said and "L9H1 L8H6" in said
    assert sentence(to_dot(planted())) == [
        "<|endoftext|>",
        "The",
        "opposite",
        "of",
        '"',
        "large",
        '"',
        "is",
        '"',
    ]
    # With BOS.
    assert sorted(word for word in said if word.isdigit()) == [str(at) for at in range(9)]


def test_only_the_key_of_the_sentence_is_red() -> None:
    tokens = "".join(line for line in to_dot(planted()).split("\n") if '"token ' in line)
    assert re.findall(rf'COLOR="{canvas.RED}" POINT-SIZE="13"><B>([^<]*)<', tokens) == ["large"]


def test_each_map_has_its_red_cell_at_the_query_row_and_the_key_column() -> None:
    maps = "".join(
        line for line in to_dot(planted()).split("\n") if '"head L' in line and "TABLE" in line
    )
    tiles = re.findall(r'FIXEDSIZE="TRUE" WIDTH="\d+" HEIGHT="\d+">(<TR>.*?)</TABLE>', maps)
    tiles = [tile for tile in tiles if canvas.RED in tile]
    assert len(tiles) == 5
    for tile in tiles:
        rows = [re.findall(r"<TD ([^>]*)>", row) for row in tile.split("</TR>")[:-1]]
        queries_up = enumerate(reversed(rows))
        marked = [
            (key, query)
            for query, row in queries_up
            for key, cell in enumerate(row)
            if canvas.RED in cell
        ]
        assert marked == [(5, 8)]


def test_what_reads_itself_is_named_in_its_box_and_mappings_are_counted() -> None:
    own = mapping_of(5, 5, [(Head(3, 4), 0.4)], total=0.4, controls=False)
    said = texts(to_dot(replace(planted(), mappings=(*planted().mappings, own))))
    assert (
        "reads itself: L3H4" in said and "All 3 mappings with a total of 0.05 or more" in said
    )


def test_an_svg_has_the_size_of_print_and_a_png_is_finer() -> None:
    dot = to_dot(planted())
    svg, png = draw(dot, "svg"), draw(dot, "png")
    assert isinstance(svg, bytes) and isinstance(png, bytes)
    width = re.search(rb'<svg width="(\d+)pt"', svg)
    assert width and int.from_bytes(png[16:20]) == pytest.approx(
        int(width[1]) * 192 / 72, abs=4
    )


def test_the_same_circuit_gives_the_same_text_and_the_same_pictures() -> None:
    dot = to_dot(planted())
    assert dot == to_dot(planted())
    assert diagram.to_dot(to_scene(planted())).source == dot  # a scene is drawn as it is
    for form in ("svg", "png", "pdf"):
        assert draw(dot, form) == draw(dot, form)


def test_a_lower_share_names_fewer_carriers_and_no_maps_can_be_asked_for() -> None:
    said = texts(to_dot(planted(), share=0.4, maps=False))
    assert "Modulated at 48% by" in said and "L11H7 L10H1" in said
    assert "These 5 of 144 heads map key 5 to query 8" not in said


def test_many_carriers_are_counted_instead_of_drawn_one_by_one() -> None:
    said = texts(to_dot(dense()))
    assert "and 31 more heads" in said and "and 31 more" in said


def test_a_box_stands_above_its_token_and_carriers_are_as_wide_as_what_they_add() -> None:
    dot = to_dot(planted())
    for token, box in ((5, "5"), (2, "2"), (4, '"4+6"'), (6, '"4+6"')):
        assert f'"token {token}":n -> {box}:s' in dot
    assert re.search(r'"token 5" \[.*group="column 5"\]', dot) and re.search(
        r'\n\t5 \[.*group="column 5"', dot
    )
    widths = [
        float(width) for width in re.findall(r'5 -> "head L\d+H\d+":s .*penwidth=([\d.]+)', dot)
    ]
    assert widths == pytest.approx([0.8 + 4 * gain for gain in (0.3, 0.18, 0.13, 0.1, 0.09)])


def test_a_total_is_the_width_of_its_arrow() -> None:
    widths = [
        float(width)
        for width in re.findall(
            r"-> output .*?penwidth=([\d.]+) weight=[13]\]", to_dot(planted(), maps=False)
        )
    ]
    assert max(widths) == pytest.approx(0.8 + 4 * 1.0)
    assert any(width == pytest.approx(0.8 + 4 * 0.19) for width in widths)


def test_a_span_that_is_built_twice_says_so_and_stands_between_key_and_output() -> None:
    dot = to_dot(deep())
    said = texts(dot)
    assert {"layer 0-21", "built in 0, 20-21", "layer 22-30", "layer 30"} <= set(said)
    assert (
        '4 -> "head L22H8":s' in dot and '"head L22H8":n -> 7' in dot and "7 -> output" in dot
    )
    assert "4 -> 7" in to_dot(deep(), maps=False)
    assert "0" in said  # no BOS: the sentence starts at position 0


def test_nothing_carried_is_drawn_without_maps_and_says_what_was_asked() -> None:
    assert "head L" not in to_dot(empty())
    said = texts(to_dot(empty()))
    assert {"small", "The"} <= set(said)
    assert "logit(small) − logit(cold)" in " ".join(said) and "Q" not in said


def test_a_circuit_whose_focus_is_not_in_the_file_is_drawn_without_an_arrow() -> None:
    said = texts(to_dot(replace(planted(), mappings=(), focus=(3, 4))))
    assert "small" in said and "Modulated at 80% by" not in said


def test_a_prompt_of_500_tokens_keeps_what_matters_and_stays_small() -> None:
    dot = to_dot(long(500))
    said = texts(dot)
    assert len(dot) < 40_000
    assert {"word39", "word40", "word41", "word498", "word499", "…"} <= set(said)
    assert "word200" not in said


def test_a_prompt_of_24_tokens_is_shown_whole() -> None:
    said = texts(to_dot(long(24 + 17)))
    assert "…" in said
    whole = hostile(tuple(f"w{at}" for at in range(24)))
    assert {f"w{at}" for at in range(24)} <= set(texts(to_dot(whole)))


def test_hostile_tokens_stay_text() -> None:
    said = texts(to_dot(hostile()))
    for word in HOSTILE:
        assert spell(word) in said


@pytest.mark.long
@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=20))
def test_any_tokens_give_a_diagram_that_graphviz_takes_with_their_text_intact(
    words: list[str],
) -> None:
    said = texts(to_dot(hostile(tuple(words))))
    for word in words:
        assert spell(word).replace("\xa0", " ") in said


@given(st.text())
def test_a_spelled_token_is_never_empty_and_never_invisible(word: str) -> None:
    shown = spell(word)
    assert shown and len(shown) <= LONGEST_WORD
    assert not any(ord(letter) < 32 or ord(letter) == 127 for letter in shown)


@given(st.integers(1, 400), st.lists(st.integers(0, 399), max_size=40), st.integers(4, 30))
def test_kept_positions_are_in_order_with_a_gap_wherever_something_is_missing(
    length: int, anchors: list[int], most: int
) -> None:
    kept = kept_positions(length, [at for at in anchors if at < length], most=most)
    positions = [at for at in kept if at is not None]
    assert positions == sorted(set(positions))
    if length <= most:
        assert kept == list(range(length))
    padded = [-1, *kept, length]
    for before, after in pairwise(padded):
        assert before is not None or after is not None
        if before is not None and after is not None:
            assert after == before + 1


def test_a_file_is_written_by_its_ending(tmp_path) -> None:
    path = draw(to_dot(planted()), tmp_path / "deep" / "circuit.png")
    assert path == tmp_path / "deep" / "circuit.png"
    assert (tmp_path / "deep" / "circuit.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(FileError, match="svg, png, pdf"):
        draw(to_dot(planted()), tmp_path / "circuit.gif")


def test_a_diagram_can_be_restyled_before_it_is_rendered() -> None:
    page = diagram.to_dot(planted())
    page.graph_attr["bgcolor"] = "#fafafa"
    page.node("mine", "my note")
    assert "my note" in texts(page.source) and b"#fafafa" in draw(page, "svg")  # type: ignore[operator]


def test_text_that_is_not_dot_is_refused_in_one_line() -> None:
    with pytest.raises(CircuitsError, match="Graphviz refused"):
        draw("digraph {", "svg")


def test_drawing_works_with_no_dot_on_the_path(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    monkeypatch.setenv("PATH", "")
    for form in ("svg", "png", "pdf"):
        assert draw(to_dot(planted()), form)


def test_without_any_graphviz_it_says_so_in_one_line(
    monkeypatch: pytest.MonkeyPatch, tmp_path
) -> None:
    (tmp_path / "pygraphviz.py").write_text("raise ImportError")
    monkeypatch.setenv("PATH", "")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(CircuitsError, match="pip install pygraphviz"):
        draw(to_dot(planted()), "svg")


def test_importing_the_package_imports_no_drawing_library() -> None:
    code = (
        "import sys, circuits.show; names = ('matplotlib', 'graphviz', 'pygraphviz', 'torch')"
    )
    code += "; print([name for name in names if name in sys.modules])"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "[]"


@pytest.mark.parametrize("sample", [planted, dense, deep, long, empty, hostile])
def test_every_sample_is_drawn_as_svg_png_and_pdf(sample) -> None:
    circuit: Circuit = sample()
    starts = {"svg": b"<?xml", "png": b"\x89PNG", "pdf": b"%PDF"}
    for form, start in starts.items():
        data = draw(to_dot(circuit), form)
        assert isinstance(data, bytes) and data.startswith(start)
