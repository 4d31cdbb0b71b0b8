"""The modules of the page's script, each on its own: what needs no page is tested without one."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

import pytest
from render_samples import CARRIERS, deep, dense, long, mapping_of, planted, span_of, wide

from circuits.components import Head
from circuits.show import to_scene
from circuits.show.bundle import web_file
from circuits.show.layout import lay_out
from circuits.show.page import pack, pack_maps
from circuits.show.page_layout import PAGE
from circuits.tracing.records import Circuit

if TYPE_CHECKING:
    from playwright.sync_api import Browser

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
def run(browser: Browser) -> Iterator[Run]:
    """Evaluate an expression with what the modules export in scope; `circuit` is the sample given."""
    page = browser.new_page()
    page.route("http://page.test/**", serve)
    page.goto("http://page.test/")

    def evaluate(expression: str, circuit: Circuit | None = None, **values: Any) -> Any:
        packed = None
        if circuit is not None:
            scene = to_scene(circuit)
            packed = json.loads(json.dumps(pack(scene) | {"maps": pack_maps(scene)}))
        given = {"modules": MODULES, "expression": expression}
        return page.evaluate(SCRIPT, given | {"packed": packed, "values": values})

    yield evaluate
    page.close()


def crossed() -> Circuit:
    """A short arrow whose name is wider than it, so that it stands over the box of another token."""
    head = mapping_of(
        6, 8, [(Head(3, 1), 0.5), (Head(3, 2), 0.7), (Head(3, 4), 0.9)], total=0.9
    )
    spans = tuple(span_of("x", (position,), (0, 3)) for position in (3, 4, 5, 6))
    return replace(planted(), mappings=(head,), spans=spans, focus=(6, 8))


def crowded() -> Circuit:
    """More mappings than get an arrow, all by heads of one layer and from one token or to the last one."""
    ends = [(5, 8)] + [(key, 8) for key in range(5)] + [(0, query) for query in range(1, 8)]
    ends += [(1, query) for query in range(2, 8)] + [(2, query) for query in range(3, 8)]
    ends += [(3, query) for query in range(4, 8)]
    mappings = []
    for number, (key, query) in enumerate(ends):
        total = 1 - 0.02 * number
        mappings.append(
            mapping_of(key, query, [(Head(3, number % 12), 0.9 * total)], total=total)
        )
    return replace(planted(), mappings=tuple(mappings))


LAYOUT = "layOut(circuit, {shown: circuit.picture.columns, pair, percentage})"
OPENED = """layOut(circuit, {shown: circuit.words.map((_, position) => position), pair, percentage})"""


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
        "1 of 144 heads carries 30% of the total of large (5)"
    )
    assert run(STATUS, planted(), percentage=80).startswith(
        "5 of 144 heads carry 80% of the total of large (5)"
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
        "beside": "5",
        "percentage": 61,
        "picking": "query",
        "pairs": {"3": [2, 8]},
        "pinned": {"id": "7", "item": "arrow:2-8"},
        "views": {"7": {"x": -1.5, "y": 2, "scale": 0.5}},
    }
    back = run("fromFragment('#' + toFragment(state))", state=state)
    assert back == {
        "group": "3",
        "beside": "5",
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


def reach(item: dict[str, Any]) -> tuple[float, float]:
    """How far an arrow and the names beside it reach to the left and to the right."""
    left = item["names"]["left"]
    names = [f"L{head // 12}H{head % 12}" for head in item["heads"][: item["names"]["named"]]]
    if len(names) < len(item["heads"]):
        names.append("+99")
    return min(item["start"], left), max(item["end"], left + PAGE.names_width(names))


@pytest.mark.parametrize("percentage", [10, 80, 100])
@pytest.mark.parametrize("places", [LAYOUT, OPENED], ids=["closed", "opened"])
@pytest.mark.parametrize(
    "circuit",
    [planted(), dense(), wide(40), crossed(), long(120)],
    ids=["planted", "dense", "wide", "crossed", "long"],
)
def test_nothing_in_a_layer_overlaps_and_every_carrier_stands_in_its_layer(
    run: Run, circuit: Circuit, places: str, percentage: int
) -> None:
    front = circuit.front
    assert front is not None
    layout = run(places, circuit, pair=list(front.ends), percentage=percentage)
    items = layout["arrows"]
    heads = [head for item in items if item["front"] for head in item["heads"]]
    expected = [
        each.layer * circuit.source.heads + each.index
        for each in front.carriers(percentage / 100)
    ]
    assert sorted(heads) == sorted(expected)
    rows = {row["first"]: row for row in layout["rows"]}
    for item in items:
        row = rows[item["layer"]]
        assert row["top"] < item["y"] < row["bottom"]
        left, right = reach(item)
        assert layout["columns"][0]["left"] <= left and right <= layout["width"]
        for other in items:
            if other is not item and other["y"] == item["y"]:
                assert right < reach(other)[0] or reach(other)[1] < left


def test_arrows_are_as_wide_as_what_their_heads_add_to_the_joint_effect(run: Run) -> None:
    items = run(LAYOUT, planted(), pair=[5, 8], percentage=80)["arrows"]
    drawn = {item["layer"]: item["effect"] for item in items if item["front"]}
    figure = lay_out(to_scene(planted()), 480).lanes
    expected = {item.layer: item.effect for item in figure if item.front}
    assert drawn == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "circuit", [planted(), dense(), deep()], ids=["planted", "dense", "deep"]
)
def test_the_page_has_the_rows_of_the_figure(run: Run, circuit: Circuit) -> None:
    pair = list(circuit.front.ends) if circuit.front else []
    layout = run(LAYOUT, circuit, pair=pair, percentage=80)
    rows = {(row["first"], row["last"]) for row in layout["rows"]}
    assert rows == set(lay_out(to_scene(circuit), 480).rows)
    below, *_, above = [row["top"] for row in layout["rows"]]
    assert above == 92 and below > above  # layer 0 is the lowest


def test_a_mapping_that_is_drawn_only_in_front_has_a_place_there(run: Run) -> None:
    circuit = crowded()
    drawn = set(to_scene(circuit).drawn)
    hidden = [mapping.ends for mapping in circuit.mappings if mapping.ends not in drawn]
    assert hidden
    for pair in ((5, 8), *hidden):
        arrows = run(LAYOUT, circuit, pair=list(pair), percentage=80)["arrows"]
        ends = [(each["mapping"]["key"], each["mapping"]["query"]) for each in arrows]
        assert set(ends) == drawn | {pair}
        for one, other in combinations(arrows, 2):
            if one["y"] == other["y"]:
                assert reach(one)[1] < reach(other)[0] or reach(other)[1] < reach(one)[0]


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
