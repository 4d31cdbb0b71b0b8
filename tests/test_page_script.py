"""The modules of the page's script, each on its own: what needs no page is tested without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import chromium
import pytest
from render_samples import CARRIERS, deep, dense, mapping_of, planted, span_of, wide

from circuits.components import Head
from circuits.show import to_scene
from circuits.show.layout import lay_out
from circuits.show.page import PURE, asset, pack, pack_maps
from circuits.tracing.records import Circuit

pytestmark = pytest.mark.browser
Run = Callable[..., Any]


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Run an expression with the pure modules in scope; `circuit` is the sample given."""
    with chromium.launched() as browser:
        page = browser.new_page()
        modules = "\n".join(asset(name) for name in PURE)

        def evaluate(expression: str, circuit: Circuit | None = None, **values: Any) -> Any:
            packed = None
            if circuit is not None:
                packed = json.loads(
                    json.dumps(pack(to_scene(circuit)) | {"maps": pack_maps(to_scene(circuit))})
                )
            names = ", ".join(["packed", *values])
            body = f"{modules}\nconst circuit = packed && unpack(packed);\nreturn {expression};"
            body = f"({{{names}}}) => {{ {body} }}"
            return page.evaluate(body, {"packed": packed, **values})

        yield evaluate


def crossed() -> Circuit:
    """A short arrow whose name is wider than it, so that it stands over the box of another token."""
    head = mapping_of(6, 8, [(Head(3, 1), 0.5), (Head(3, 2), 0.7), (Head(3, 4), 0.9)], total=0.9)
    spans = tuple(span_of("x", (position,), (0, 3)) for position in (3, 4, 5, 6))
    return replace(planted(), mappings=(head,), spans=spans, focus=(6, 8))


MEASURE = "(text, size) => text.length * size * 0.6"
LAYOUT = f"layOut(circuit, {{shown: withGaps(circuit), pair, share, measure: {MEASURE}}})"


@pytest.mark.parametrize("share", [0.3, 0.61, 0.8, 1.0])
def test_carriers_are_those_of_the_package(run: Run, share: float) -> None:
    expression = "carriersOf(mappingOf(circuit, [5, 8]), share).map(([head]) => nameOf(circuit, head))"
    for circuit in (planted(), dense()):
        assert run(expression, circuit, share=share) == [str(head) for head in circuit.carriers(share=share)]


def test_a_map_is_read_back_within_one_step(run: Run) -> None:
    circuit, head = planted(), CARRIERS[0]
    number = head.layer * 12 + head.index
    weights = run(
        "[[8, 5], [7, 2], [3, 3], [2, 6]].map(([q, k]) => weightAt(circuit, head, q, k))",
        circuit,
        head=number,
    )
    exact = [circuit.pattern(head)[place] for place in ((8, 5), (7, 2), (3, 3))]
    assert weights[3] == 0  # nothing reads what comes after it
    assert [weight / 255 for weight in weights[:3]] == pytest.approx(exact, abs=1 / 255)


def test_numbers_are_said_in_words(run: Run) -> None:
    say = "(() => { const m = mappingOf(circuit, [5, 8]); const c = carriersOf(m, 0.8); return SAY; })()"
    head = run(say.replace("SAY", "sayHead(circuit, m, 11 * 12 + 7, c)"), planted())
    assert head == "L11H7, carrier 1 of 5, joint 30% of the total, effect 0.30"
    arrow = run(say.replace("SAY", "sayArrow(circuit, m, c)"), planted())
    assert arrow == 'large (5) to " (8): total 1.00, modulated at 80% by L11H7 L10H1 L9H7 L9H1 L8H6'
    box = run("sayBox(circuit.spans.find((span) => span.name === '4+6'))", planted())
    assert box == "brackets, positions 4 and 6, layer 0-10, largest effect 0.90"
    assert run("[number(-0.126), number(null), percent(0.805)]") == ["−0.13", "–", "81%"]
    assert run("[number(-0.0004), number(-0.0004, 3), number(-0.0006, 3)]") == ["0.00", "0.000", "−0.001"]
    status = "statusOf(circuit, circuit.mappings[0], carriersOf(circuit.mappings[0], share), [5, 8])"
    assert run(status, planted(), share=0.2).startswith("1 of 144 heads carries 30% of large (5)")
    assert run(status, planted(), share=0.8).startswith("5 of 144 heads carry 80% of large (5)")


def test_what_is_doubted_has_no_share_in_words(run: Run) -> None:
    doubted = replace(planted().mappings[0], doubts=("restore (−0.30) has the other sign",))
    circuit = replace(planted(), mappings=(doubted,))
    words = run(
        "statusOf(circuit, circuit.mappings[0], carriersOf(circuit.mappings[0], 0.8), [5, 8])", circuit
    )
    assert "modulation withheld, restore (−0.30) has the other sign" in words and "%" not in words


def test_an_address_holds_all_that_is_chosen_and_gives_it_back(run: Run) -> None:
    state = {
        "group": "3",
        "share": 0.61,
        "picking": "query",
        "pairs": {"3": [2, 8]},
        "pinned": {"id": "7", "thing": "arrow:2-8"},
        "views": {"7": {"x": -1.5, "y": 2, "scale": 0.5}},
    }
    back = run("fromFragment('#' + toFragment(state))", state=state)
    assert back == {
        "group": "3",
        "pair": [2, 8],
        "share": 0.61,
        "picking": "query",
        "pinned": {"id": "7", "thing": "arrow:2-8"},
        "views": {"7": {"x": -1.5, "y": 2, "scale": 0.5}},
    }


@pytest.mark.parametrize(
    "wild", ["", "#", "#pair=a-b&share=x&pin=~&view=0~1~2~0,", "#=&==&%zz", "#pick=both"]
)
def test_a_wild_address_is_read_as_nothing(run: Run, wild: str) -> None:
    assert run("fromFragment(wild)", wild=wild) == {"views": {}}


def test_fitting_shows_all_and_zooming_keeps_the_point_under_the_mouse(run: Run) -> None:
    size, frame = {"width": 2000, "height": 500}, {"width": 400, "height": 300}
    assert run("isWhole(fitView(size, frame), size, frame)", size=size, frame=frame)
    moved = run(
        "(() => { const a = {x: 10, y: 20, scale: 0.5}; const b = zoomAt(a, 2, 100, 50);"
        " return [a.x + 100 / a.scale, b.x + 100 / b.scale, a.y + 50 / a.scale, b.y + 50 / b.scale]; })()"
    )
    assert moved[0] == pytest.approx(moved[1]) and moved[2] == pytest.approx(moved[3])
    assert run("openingView(size, frame, 1900).scale", size=size, frame=frame) == pytest.approx(0.62)
    seen = run("viewWith({x: 0, y: 0, scale: 1}, frame, {x: 900, y: 10, width: 20, height: 20})", frame=frame)
    assert seen["x"] == 900 + 20 + 12 - 400 and seen["y"] == -2


@pytest.mark.parametrize("circuit", [planted(), dense(), wide(40)], ids=["planted", "dense", "wide"])
def test_nothing_in_a_layer_overlaps_and_every_carrier_stands_in_its_layer(
    run: Run, circuit: Circuit
) -> None:
    focus = circuit.focus
    assert focus is not None
    layout = run(LAYOUT, circuit, pair=list(focus), share=0.8)
    items = layout["items"]
    heads = {chip["head"] for item in items if item["front"] for chip in item["chips"]} - {None}
    more = sum(
        int(chip["text"][1:])
        for item in items
        for chip in item["chips"]
        if chip["head"] is None and item["front"]
    )
    assert len(heads) + more == len(circuit.carriers())
    rows = {row["first"]: row for row in layout["rows"]}
    for item in items:
        assert rows[item["layer"]]["top"] < item["y"] < rows[item["layer"]]["bottom"]
        for other in items:
            if other is not item and other["y"] == item["y"]:
                assert item["right"] < other["left"] or other["right"] < item["left"]


def test_arrows_are_as_wide_as_what_their_heads_add_to_the_joint_effect(run: Run) -> None:
    items = run(LAYOUT, planted(), pair=[5, 8], share=0.8)["items"]
    drawn = {item["layer"]: item["effect"] for item in items if item["front"]}
    figure = lay_out(to_scene(planted()), 480).lanes
    assert drawn == pytest.approx({item.layer: item.effect for item in figure if item.front})


def test_boxes_reach_from_their_first_layer_to_their_last(run: Run) -> None:
    layout = run(LAYOUT, planted(), pair=[5, 8], share=0.8)
    rows = {row["first"]: row for row in layout["rows"]}
    boxes = {(box["span"]["name"], box["at"]): box for box in layout["boxes"]}
    assert set(boxes) == {("5", 5), ("2", 2), ("4+6", 4), ("4+6", 6)}
    assert boxes["5", 5]["top"] == rows[3]["top"] + 1.5 and boxes["5", 5]["bottom"] == rows[0]["bottom"] - 1.5
    assert [group["text"] for group in layout["groups"]["items"]] == ["brackets"]


@pytest.mark.parametrize(
    "circuit", [planted(), dense(), deep(), crossed()], ids=["planted", "dense", "deep", "crossed"]
)
def test_what_a_box_says_of_its_layers_lies_under_no_name_and_no_arrow(run: Run, circuit: Circuit) -> None:
    layout = run(LAYOUT, circuit, pair=list(circuit.front.ends if circuit.front else (0, 0)), share=0.8)
    boxes = {(box["at"], box["x"]): box for box in layout["boxes"]}
    assert layout["words"] and len(layout["words"]) <= len(boxes)
    for words in layout["words"]:
        half = len(words["text"]) * 10 * 0.6 / 2
        left, right, top, bottom = words["x"] - half, words["x"] + half, words["y"] - 8, words["y"]
        assert any(
            box["at"] == words["at"] and box["top"] <= top + 3 and bottom <= box["bottom"]
            for box in boxes.values()
        )
        for item in layout["items"]:
            for chip in item["chips"]:
                across = min(right, chip["x"] + chip["width"]) - max(left, chip["x"])
                assert across <= 0 or min(bottom, item["y"] + 9) - max(top, item["y"] - 9) <= 0
            if min(right, item["end"]) - max(left, item["start"]) > 0:
                assert not top < item["y"] < bottom


def test_search_takes_names_of_heads_in_several_spellings_and_parts_of_tokens(run: Run) -> None:
    for typed in ("L11H7", "l11h7", "11.7", "a11.h7"):
        assert run("found(circuit, typed)[0]", planted(), typed=typed) == f"head:{11 * 12 + 7}"
    assert run("found(circuit, 'larg')", planted()) == ["token:5"]
    assert len(run("found(circuit, 'L1')", planted())) == 3 * 12
    assert run("found(circuit, '   ')", planted()) == []


def test_numbers_as_csv_keep_quotes_and_line_ends(run: Run) -> None:
    text = run("toCsv(circuit, 0.8)", planted())
    assert text.splitlines()[1].startswith('Sparse GPT-2,5,large,8," """,1,L11H7,0.3,')
    assert text.count("\r\n") == 1 + sum(len(mapping.heads) for mapping in planted().mappings)


def test_ends_are_found_again_in_a_model_that_reads_no_bos(run: Run) -> None:
    one = {"words": ["<BOS>", "The", " large"], "bos": 1}
    other = {"words": ["The", " large"], "bos": 0}
    assert run("alignedPair(one, other, [1, 2])", one=one, other=other) == [0, 1]
    assert run("alignedPair(one, other, [0, 2])", one=one, other=other) is None
    cut = {"words": ["The", " lar", "ge"], "bos": 0}
    assert run("alignedPair(one, other, [1, 2])", one=one, other=cut) is None
