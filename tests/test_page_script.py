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
from circuits.show.bundle import web_file
from circuits.show.layout import lay_out
from circuits.show.page import pack, pack_maps
from circuits.tracing.records import Circuit

pytestmark = pytest.mark.browser
Run = Callable[..., Any]
MODULES = ["circuit", "text", "address", "layout"]  # those that need no page
SCRIPT = """async ({modules, expression, packed, values}) => {
    const imported = await Promise.all(modules.map((name) => import(`/${name}.js`)));
    const scope = Object.assign({}, ...imported, values);
    scope.circuit = packed && scope.unpack(packed);
    return new Function(...Object.keys(scope), `return ${expression}`)(...Object.values(scope));
}"""


def serve(route: Any) -> None:
    name = route.request.url.rsplit("/", 1)[1]
    if name:
        route.fulfill(body=web_file(name), content_type="text/javascript")
    else:
        route.fulfill(body="<!doctype html>", content_type="text/html")


@pytest.fixture(scope="module")
def run() -> Iterator[Run]:
    """Evaluate an expression with what the modules export in scope; `circuit` is the sample given."""
    with chromium.launched() as browser:
        page = browser.new_page()
        page.route("http://page.test/**", serve)
        page.goto("http://page.test/")

        def evaluate(expression: str, circuit: Circuit | None = None, **values: Any) -> Any:
            packed = None
            if circuit is not None:
                scene = to_scene(circuit)
                packed = json.loads(json.dumps(pack(scene) | {"maps": pack_maps(scene)}))
            given = {
                "modules": MODULES,
                "expression": expression,
                "packed": packed,
                "values": values,
            }
            return page.evaluate(SCRIPT, given)

        yield evaluate


def crossed() -> Circuit:
    """A short arrow whose name is wider than it, so that it stands over the box of another token."""
    head = mapping_of(
        6, 8, [(Head(3, 1), 0.5), (Head(3, 2), 0.7), (Head(3, 4), 0.9)], total=0.9
    )
    spans = tuple(span_of("x", (position,), (0, 3)) for position in (3, 4, 5, 6))
    return replace(planted(), mappings=(head,), spans=spans, focus=(6, 8))


MEASURE = "(text, size) => text.length * size * 0.6"
LAYOUT = (
    f"layOut(circuit, {{shown: shownPositions(circuit), pair, percentage, measure: {MEASURE}}})"
)


@pytest.mark.parametrize("percentage", [1, 30, 61, 80, 100])
def test_carriers_are_those_of_the_package(run: Run, percentage: int) -> None:
    heads = "carriersOf(mappingOf(circuit, [5, 8]), percentage).map(({head}) => nameOf(circuit, head))"
    for circuit in (planted(), dense()):
        expected = [str(head) for head in circuit.carriers(share=percentage / 100)]
        assert run(heads, circuit, percentage=percentage) == expected


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


MAPPING = "circuit.mappings[0]"
STATUS = f"statusText(circuit, {MAPPING}, carriersOf({MAPPING}, percentage), [5, 8])"


def test_numbers_are_said_in_words(run: Run) -> None:
    head = run(
        f"headText(circuit, {MAPPING}, 11 * 12 + 7, carriersOf({MAPPING}, 80))", planted()
    )
    assert head == "L11H7, carrier 1 of 5, joint 30% of the total, effect 0.30"
    arrow = run(f"arrowText(circuit, {MAPPING}, 80)", planted())
    assert (
        arrow
        == 'large (5) to " (8): total 1.00, modulated at 80% by L11H7 L10H1 L9H7 L9H1 L8H6'
    )
    box = run("boxText(circuit.spans.find((span) => span.name === '4+6'))", planted())
    assert box == "brackets, positions 4 and 6, layer 0-10, largest effect 0.90"
    assert run("[number(-0.126), number(null), percent(0.805)]") == ["−0.13", "–", "81%"]
    assert run("[number(-0.0004), number(-0.0004, 3), number(-0.0006, 3)]") == [
        "0.00",
        "0.000",
        "−0.001",
    ]
    assert run(STATUS, planted(), percentage=20).startswith(
        "1 of 144 heads carries 30% of large (5)"
    )
    assert run(STATUS, planted(), percentage=80).startswith(
        "5 of 144 heads carry 80% of large (5)"
    )


def test_what_is_doubted_has_no_share_in_words(run: Run) -> None:
    doubted = replace(planted().mappings[0], doubts=("restore (−0.30) has the other sign",))
    words = run(STATUS, replace(planted(), mappings=(doubted,)), percentage=80)
    assert (
        "modulation withheld, restore (−0.30) has the other sign" in words and "%" not in words
    )


def test_an_address_holds_all_that_is_chosen_and_gives_it_back(run: Run) -> None:
    state = {
        "group": "3",
        "percentage": 61,
        "picking": "query",
        "pairs": {"3": [2, 8]},
        "pinned": {"id": "7", "item": "arrow:2-8"},
        "views": {"7": {"x": -1.5, "y": 2, "scale": 0.5}},
    }
    back = run("fromFragment('#' + toFragment(state))", state=state)
    assert back == {
        "group": "3",
        "pair": [2, 8],
        "percentage": 61,
        "picking": "query",
        "pinned": {"id": "7", "item": "arrow:2-8"},
        "views": {"7": {"x": -1.5, "y": 2, "scale": 0.5}},
    }


@pytest.mark.parametrize(
    "wild", ["", "#", "#pair=a-b&share=x&pin=~&view=0~1~2~0,", "#=&==&%zz", "#pick=both"]
)
def test_a_wild_address_is_read_as_nothing(run: Run, wild: str) -> None:
    assert run("fromFragment(wild)", wild=wild) == {"views": {}}


@pytest.mark.parametrize(
    "circuit", [planted(), dense(), wide(40)], ids=["planted", "dense", "wide"]
)
def test_nothing_in_a_layer_overlaps_and_every_carrier_stands_in_its_layer(
    run: Run, circuit: Circuit
) -> None:
    focus = circuit.focus
    assert focus is not None
    layout = run(LAYOUT, circuit, pair=list(focus), percentage=80)
    items = layout["arrows"]
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
    items = run(LAYOUT, planted(), pair=[5, 8], percentage=80)["arrows"]
    drawn = {item["layer"]: item["effect"] for item in items if item["front"]}
    figure = lay_out(to_scene(planted()), 480).lanes
    assert drawn == pytest.approx({item.layer: item.effect for item in figure if item.front})


def test_boxes_reach_from_their_first_layer_to_their_last(run: Run) -> None:
    layout = run(LAYOUT, planted(), pair=[5, 8], percentage=80)
    rows = {row["first"]: row for row in layout["rows"]}
    boxes = {(box["span"]["name"], box["position"]): box for box in layout["boxes"]}
    assert set(boxes) == {("5", 5), ("2", 2), ("4+6", 4), ("4+6", 6)}
    assert (
        boxes["5", 5]["top"] == rows[3]["top"] + 1.5
        and boxes["5", 5]["bottom"] == rows[0]["bottom"] - 1.5
    )
    assert [group["text"] for group in layout["groups"]] == ["brackets"]


@pytest.mark.parametrize(
    "circuit",
    [planted(), dense(), deep(), crossed()],
    ids=["planted", "dense", "deep", "crossed"],
)
def test_what_a_box_says_of_its_layers_lies_under_no_name_and_no_arrow(
    run: Run, circuit: Circuit
) -> None:
    layout = run(
        LAYOUT,
        circuit,
        pair=list(circuit.front.ends if circuit.front else (0, 0)),
        percentage=80,
    )
    boxes = {(box["position"], box["x"]): box for box in layout["boxes"]}
    assert layout["boxLabels"] and len(layout["boxLabels"]) <= len(boxes)
    for label in layout["boxLabels"]:
        half = len(label["text"]) * 10 * 0.6 / 2
        left, right, top, bottom = (
            label["x"] - half,
            label["x"] + half,
            label["y"] - 8,
            label["y"],
        )
        assert any(
            box["position"] == label["position"]
            and box["top"] <= top + 3
            and bottom <= box["bottom"]
            for box in boxes.values()
        )
        for item in layout["arrows"]:
            for chip in item["chips"]:
                across = min(right, chip["x"] + chip["width"]) - max(left, chip["x"])
                assert across <= 0 or min(bottom, item["y"] + 9) - max(top, item["y"] - 9) <= 0
            if min(right, item["end"]) - max(left, item["start"]) > 0:
                assert not top < item["y"] < bottom


def test_search_takes_names_of_heads_in_several_spellings_and_parts_of_tokens(run: Run) -> None:
    for typed in ("L11H7", "l11h7", "11.7", "a11.h7"):
        assert run("search(circuit, typed)[0]", planted(), typed=typed) == f"head:{11 * 12 + 7}"
    assert run("search(circuit, 'larg')", planted()) == ["token:5"]
    assert len(run("search(circuit, 'L1')", planted())) == 3 * 12
    assert run("search(circuit, '   ')", planted()) == []


def test_numbers_as_csv_keep_quotes_and_line_ends(run: Run) -> None:
    text = run("toCsv(circuit, 80)", planted())
    assert text.splitlines()[1].startswith('Sparse GPT-2,5,large,8," """,1,L11H7,0.3,')
    assert text.count("\r\n") == 1 + sum(len(mapping.heads) for mapping in planted().mappings)


def test_ends_are_found_again_in_a_model_that_reads_no_bos(run: Run) -> None:
    one = {"words": ["<BOS>", "The", " large"], "bos": 1}
    other = {"words": ["The", " large"], "bos": 0}
    assert run("alignedPositions(one, other, [1, 2])", one=one, other=other) == [0, 1]
    assert run("alignedPositions(one, other, [0, 2])", one=one, other=other) is None
    cut = {"words": ["The", " lar", "ge"], "bos": 0}
    assert run("alignedPositions(one, other, [1, 2])", one=one, other=cut) is None
