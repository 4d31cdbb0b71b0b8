"""The page: one safe file that holds the circuit's numbers and answers to the mouse and the keyboard."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import chromium
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from render_samples import (
    CARRIERS,
    HOSTILE,
    circuit_of,
    deep,
    dense,
    empty,
    hostile,
    long,
    mapping_of,
    planted,
    span_of,
    wide,
)
from small_models import loaded

from circuits.components import Head
from circuits.errors import PromptError
from circuits.models.model import Model
from circuits.show import canvas, spell, to_graph
from circuits.show.bundle import bundle
from circuits.show.page import to_page
from circuits.tracing import QuestionControl
from circuits.tracing.records import Circuit
from circuits.tracing.trace import trace
from circuits.tracing.why import why as explain
from circuits.zoo import planted as planted_model

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page


class Elements(HTMLParser):
    """The elements of a page, the attributes of each, and the text in the data block and the title."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.inside: list[str] = []
        self.text: dict[str, str] = {}
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.found.append((tag, dict(attrs)))
        self.inside.append(dict(attrs).get("id") or tag)

    def handle_endtag(self, tag: str) -> None:
        self.inside.append("")

    def handle_data(self, data: str) -> None:
        where = self.inside[-1] if self.inside else ""
        self.text[where] = self.text.get(where, "") + data


def data_of(page: str) -> dict[str, Any]:
    return json.loads(Elements(page).text["data"])


# The file


def test_a_page_of_two_models_is_small_and_asks_for_nothing_from_outside() -> None:
    page = to_page([dense(), planted()])
    assert len(page.encode()) < 2_000_000
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", page)
    for _, attributes in Elements(page).found:
        assert not {"src", "href", "srcset", "style", "onclick"} & set(attributes)


def test_the_policy_allows_this_style_and_this_script_and_nothing_else() -> None:
    page = to_page(planted())
    parsed = Elements(page)
    policy = next(
        attributes["content"]
        for tag, attributes in parsed.found
        if tag == "meta" and "http-equiv" in attributes
    )
    assert policy and policy.startswith("default-src 'none'; ")
    for name in ("style", "script"):
        digest = base64.b64encode(hashlib.sha256(parsed.text[name].encode()).digest()).decode()
        assert f"{name}-src 'sha256-{digest}'" in policy
    assert "unsafe" not in policy


def test_every_number_of_the_circuit_is_in_the_page() -> None:
    circuit = planted()
    (packed,) = data_of(to_page(circuit))["circuits"]
    mapping, stored = circuit.mapping(), packed["mappings"][0]
    assert (stored["key"], stored["query"], stored["total"]) == (5, 8, mapping.total)
    path = [(f"L{head // 12}H{head % 12}", joint) for head, joint in stored["path"]]
    assert path == [(str(step.head), step.joint) for step in mapping.path]
    for known, row in zip(mapping.heads, stored["heads"], strict=True):
        assert row == [
            known.head.layer * 12 + known.head.index,
            known.effect,
            known.restore,
            known.loading,
            known.weight,
            known.counterfactual_weight,
        ]
    assert stored["controls"]["random_p95"] == 0.041
    assert packed["words"] == list(circuit.prompt.words)


def test_attention_maps_survive_packing_to_within_one_step() -> None:
    circuit = dense()
    maps = data_of(to_page(circuit))["circuits"][0]["maps"]
    weights = np.frombuffer(base64.b64decode(maps["data"]), dtype=np.uint8).reshape(
        len(maps["heads"]), -1
    )
    assert len(maps["heads"]) == 144
    rows, columns = np.tril_indices(9)
    for head, row in zip(maps["heads"], weights, strict=True):
        assert (
            np.abs(
                row / 255 - circuit.pattern(f"L{head // 12}H{head % 12}")[rows, columns]
            ).max()
            < 1 / 255
        )


@pytest.mark.long
def test_maps_that_would_make_the_page_too_large_are_left_out_least_important_first() -> None:
    packed = data_of(to_page([long(1400)]))["circuits"][0]
    assert packed["maps"]["heads"] == [3]
    assert len(to_page([long(1400)])) < 2_000_000


@pytest.mark.long
def test_a_page_stays_under_two_megabytes_for_a_long_prompt_with_every_mapping() -> None:
    path = [
        (Head(at // 12, at % 12), joint)
        for at, joint in enumerate(np.sort(np.random.default_rng(0).random(144)).tolist())
    ]
    mappings = tuple(mapping_of(key, 63, path, total=1.0, seed=key) for key in range(63))
    circuit = circuit_of(
        tuple(f" w{at}" for at in range(64)), mappings, name="large", sparse=False
    )
    assert len(to_page([circuit, circuit])) < 2_000_000


@pytest.mark.parametrize("circuit", [planted(), dense(), deep(), wide(40), long(120), empty()])
def test_every_arrow_has_a_height_in_its_row_at_every_share_at_which_heads_carry(
    circuit: Circuit,
) -> None:
    (packed,) = data_of(to_page(circuit))["circuits"]
    picture = packed["picture"]
    assert len(picture["stage_at"]) == 100
    for percent, number in enumerate(picture["stage_at"], 1):
        rows = {row[0]: row for row in picture["stages"][number]}
        for mapping, arrows in zip(circuit.mappings, picture["arrows"], strict=True):
            carriers = mapping.carriers(percent / 100)
            layers = {layer for layer, _, steps, *_ in arrows if steps[0] <= len(carriers)}
            assert layers == {head.layer for head in carriers}
            for layer, lane, *_ in arrows:
                if layer in layers:
                    _, last, top, bottom, heights = rows[layer]
                    assert last == layer and top < heights[lane] < bottom


def test_the_same_circuit_gives_the_same_page() -> None:
    assert to_page([dense(), planted()]) == to_page([dense(), planted()])


def test_hostile_tokens_and_titles_stay_text() -> None:
    plain = [tag for tag, _ in Elements(to_page(planted())).found]
    page = to_page(hostile(), title="</title><script>alert(3)</script>")
    assert [tag for tag, _ in Elements(page).found] == plain
    assert "</title><script>" not in page and "alert(1)</script>" not in page
    assert data_of(page)["circuits"][0]["words"] == list(HOSTILE)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(max_size=12), min_size=1, max_size=12))
def test_any_tokens_give_a_page_that_parses_with_their_text_intact(words: list[str]) -> None:
    parsed = Elements(to_page(hostile(tuple(words))))
    assert [tag for tag, _ in parsed.found].count("script") == 2
    assert json.loads(parsed.text["data"])["circuits"][0]["words"] == words


def test_circuits_of_one_prompt_stand_side_by_side_and_others_are_picked() -> None:
    several = [dense(), planted(), long(60), deep()]
    groups = [circuit["group"] for circuit in data_of(to_page(several))["circuits"]]
    assert groups == [0, 0, 2, 0]


def test_the_script_is_small() -> None:
    assert (
        len(to_page(empty()).encode()) - len(Elements(to_page(empty())).text["data"]) < 300_000
    )


@pytest.mark.parametrize("entry", ["main", "live"])
def test_each_module_of_the_script_comes_once_and_after_all_that_it_imports(entry: str) -> None:
    script = bundle(entry)
    defined = re.findall(r"^const module_(\w+) = ", script, re.MULTILINE)
    assert len(defined) == len(set(defined)) and defined[-1] == entry
    for imported in re.finditer(r"^const \{[^}]*\} = module_(\w+);", script, re.MULTILINE):
        assert script.index(f"const module_{imported[1]} = ") < imported.start()
    assert not re.search(r"^(import|export)\b", script, re.MULTILINE)


def test_a_page_needs_a_circuit() -> None:
    with pytest.raises(PromptError, match="at least one circuit"):
        to_page([])


# In a browser


@pytest.fixture(scope="module")
def sparse() -> Model:
    return loaded("planted-sparse")


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Open a page of these circuits; at the end there was no complaint and no request but for the file."""
    page = browser.new_page(viewport={"width": 1440, "height": 2400})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
    page.on("request", lambda request: asked.append(request.url))

    def open_page(*circuits: Any, **options: Any) -> Page:
        (tmp_path / "page.html").write_text(to_page(circuits, **options), encoding="utf-8")
        page.goto((tmp_path / "page.html").as_uri())
        return page

    yield open_page
    page.close()
    assert said == []
    assert {url for url in asked if not url.startswith(("data:", "blob:"))} == {
        (tmp_path / "page.html").as_uri()
    }


def names(page: Page, column: int = 0) -> list[str]:
    return page.locator(".column").nth(column).locator(".tile .name").all_inner_texts()


def token(page: Page, at: int, column: int = 0):
    return page.locator(".column").nth(column).locator(f'.token[data-position="{at}"]')


def box_of(thing: Any) -> dict[str, float]:
    """Where a thing is on the screen."""
    return thing.bounding_box()


def pixel(page: Page, x: int, y: int) -> list[int]:
    """The colour of a cell of the large map, read from a copy."""
    script = """([x, y]) => {
        const copy = document.createElement("canvas").getContext("2d");
        copy.drawImage(document.querySelector(".inspector canvas"), -x, -y);
        return [...copy.getImageData(0, 0, 1, 1).data].slice(0, 3);
    }"""
    return page.evaluate(script, [x, y])


@pytest.mark.browser
def test_the_slider_adds_and_removes_carriers_along_the_path(show) -> None:
    page = show(dense(), planted())
    assert names(page, 1) == [str(head) for head in CARRIERS]
    assert len(names(page)) == 43
    for share in (30, 48, 100):
        page.locator("#share").fill(str(share))
        assert names(page, 1) == [str(head) for head in planted().carriers(share=share / 100)]
        assert names(page) == [str(head) for head in dense().carriers(share=share / 100)]
    assert page.locator("#share-value").inner_text() == "100%"


@pytest.mark.browser
def test_the_diagram_says_what_the_figure_says(show) -> None:
    page = show(planted())
    said = set(page.locator(".picture text").all_text_contents())
    assert {"opposite", "large", "small", "layer 12", "Modulated at 80% by"} <= said
    assert "brackets: layers 0–10, built 0–10" in said
    assert {str(head) for head in CARRIERS} <= said
    assert (
        page.locator(".status").inner_text()
        == '5 of 144 heads carry 80% of the total of large (5) → " (8); its total is 1.00 of the gap.'
    )
    page.locator("#share").fill("30")
    assert "Modulated at 30% by" in page.locator(".picture text").all_text_contents()


@pytest.mark.browser
def test_boxes_and_arrows_are_drawn_where_the_graph_has_them(show) -> None:
    for circuit in (planted(), deep()):
        page, graph = show(circuit), to_graph(circuit)
        script = "(items) => items.map((item) => [item.dataset.positions, item.dataset.layers])"
        drawn = {tuple(each) for each in page.locator(".box").evaluate_all(script)}
        spans = [node for node in graph.nodes.values() if node["kind"] == "span"]
        assert drawn == {
            ("+".join(map(str, node["positions"])), "-".join(map(str, node["layers"])))
            for node in spans
        }
        arrows = page.locator(".item.arrow").evaluate_all(
            "(items) => items.map((i) => i.dataset.item)"
        )
        assert set(arrows) == {
            f"arrow:{data['from_position']}-{data['to_position']}"
            for *_, data in graph.edges(data=True)
            if data["kind"] == "attention"
        }
        centres = {
            at: box_of(token(page, at).locator(".word"))
            for node in spans
            for at in node["positions"]
        }
        for number in range(page.locator(".box").count()):
            box = box_of(page.locator(".box").nth(number).locator(".frame"))
            middle = box["x"] + box["width"] / 2
            assert any(
                abs(word["x"] + word["width"] / 2 - middle) < 2 for word in centres.values()
            )


@pytest.mark.browser
def test_clicking_tokens_changes_the_mapping_in_every_column_of_the_prompt(show) -> None:
    page = show(dense(), planted())
    token(page, 2).click()
    for column, circuit in enumerate((dense(), planted())):
        assert names(page, column) == [str(head) for head in circuit.carriers(2, 8)]
    assert "key" in str(token(page, 2, 1).get_attribute("class"))
    token(page, 3).click()
    assert names(page) == []
    assert "its heads were not measured" in page.locator(".status").first.inner_text()
    page.locator("#pick-query").check()
    token(page, 1).click()
    assert "runs backwards" in page.locator(".status").first.inner_text()
    page.locator(".chip").first.click()
    assert names(page, 1) == [str(head) for head in CARRIERS]


@pytest.mark.browser
def test_hovering_a_head_shows_its_map_its_numbers_and_the_same_head_of_the_twin(show) -> None:
    page = show(dense(), planted())
    page.locator(".column").nth(1).locator(".tile").nth(1).hover()
    inspector = page.locator(".column").nth(1).locator(".inspector")
    assert inspector.locator("h3").inner_text() == "L10H1"
    assert inspector.locator(".role").inner_text() == "carrier 2 of 5"
    assert inspector.locator(".labels.keys span").all_text_contents() == [
        spell(word) for word in planted().prompt.words
    ]
    assert inspector.locator(".labels.keys .chosen").inner_text() == "large"
    known = planted().mapping().effect_of("L10H1")
    shown = dict(
        zip(
            inspector.locator("dt").all_inner_texts(),
            inspector.locator(".value").all_inner_texts(),
            strict=True,
        )
    )
    assert shown == {
        "Effect": "0.18",
        "Restore": "0.16",
        "Loading": "0.20",
        "Weight": f"{known.weight:.2f} → 0.02",
    }
    assert page.locator(".column").nth(0).locator(".inspector h3").inner_text() == "L10H1"
    assert {"Total", "Random heads", "Sufficiency", "Identity"} <= set(
        page.locator(".controls").nth(1).locator("dt").all_inner_texts()
    )


@pytest.mark.browser
def test_a_map_has_a_red_frame_around_its_cell_and_the_weight_is_seen_in_it(show) -> None:
    page = show(planted())
    shade = [*bytes.fromhex(canvas.shade(float(planted().pattern(CARRIERS[0])[8, 5]))[1:])]
    assert pixel(page, 5, 0) == pytest.approx(shade, abs=3)  # query 8 is the uppermost row
    assert pixel(page, 8, 8) == [255, 255, 255]
    for where in (".inspector", ".tile >> nth=0"):
        map_box, spot = (
            box_of(page.locator(where).locator(part)) for part in ("canvas", ".marker")
        )
        cell = map_box["width"] / 9
        assert spot["width"] == pytest.approx(cell, abs=0.1)
        assert spot["x"] == pytest.approx(map_box["x"] + 5 * cell, abs=0.1)
        assert spot["y"] == pytest.approx(map_box["y"], abs=0.1)
    look = "(spot) => [getComputedStyle(spot).outlineColor, getComputedStyle(spot).backgroundColor]"
    frame, fill = page.locator(".inspector .marker").evaluate(look)
    assert frame == "rgb(214, 40, 57)"
    assert [int(part) for part in re.findall(r"\d+", fill)] == pytest.approx(shade, abs=3)
    page.emulate_media(color_scheme="dark")
    for _ in range(50):  # the page hears of the change with one of the next frames
        if pixel(page, 8, 8) == [23, 29, 38]:
            return
        page.wait_for_timeout(100)
    raise AssertionError("the map was not painted again for the dark")


@pytest.mark.browser
def test_the_mouse_reads_the_weight_of_the_cell_under_it_with_the_query_up(show) -> None:
    page = show(planted())
    box = page.locator(".inspector canvas").bounding_box()
    cell = box["width"] / 9
    for key, query in ((0, 0), (2, 7), (5, 8)):
        page.mouse.move(
            box["x"] + (key + 0.5) * cell, box["y"] + box["height"] - (query + 0.5) * cell
        )
        words = [spell(planted().prompt.words[position]) for position in (key, query)]
        weight = f"{planted().pattern(CARRIERS[0])[query, key]:.2f}"
        reading = page.locator(".reading").inner_text()
        assert reading == f"{words[0]} ({key}) → {words[1]} ({query}): weight {weight}"
    assert page.locator(".corner").inner_text().split() == ["Q", "↑", "K", "→"]
    queries = page.locator(".labels.queries span")
    tops = {
        queries.nth(number).inner_text(): queries.nth(number).bounding_box()["y"]
        for number in (1, 5)
    }
    assert tops["The"] > tops["large"]


@pytest.mark.browser
def test_the_page_opens_at_the_share_of_the_circuit(show) -> None:
    first, *others = planted().mappings
    assert first.controls is not None
    measured = replace(first, controls=replace(first.controls, share=0.5))
    page = show(replace(planted(), mappings=(measured, *others)))
    assert names(page) == [str(head) for head in CARRIERS[:3]]
    assert page.locator("#share").input_value() == "50"
    assert page.locator("#share-value").inner_text() == "50%"


def things(page: Page, column: int = 0) -> Any:
    return page.locator(".column").nth(column).locator(".picture .item")


@pytest.mark.browser
def test_the_keyboard_reaches_everything(show) -> None:
    page = show(dense(), planted())
    reached = []
    for _ in range(60):
        page.keyboard.press("Tab")
        script = "[document.activeElement.id || document.activeElement.getAttribute('class')]"
        (place,) = page.evaluate(script)
        if not place:
            break
        reached.append(place.split()[0])
    assert reached[:4] == ["pick-key", "share", "search", "link"]
    assert reached[4:] == ([*["tool"] * 6, "item", "chip", "tile", "cell", "tool"]) * 2
    page.locator("#pick-key").focus()
    page.keyboard.press("ArrowRight")
    assert page.locator("#pick-query").is_checked()
    page.keyboard.press("ArrowLeft")
    token(page, 5).focus()
    for _ in range(3):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Enter")
    assert names(page, 1) == [str(head) for head in planted().carriers(2, 8)]
    page.locator("#share").focus()
    page.keyboard.press("End")
    assert page.locator("#share-value").inner_text() == "100%"
    cell = page.locator(".column").nth(1).locator('.cell[data-item="head:0"]')
    cell.focus()
    page.keyboard.press("ArrowUp")  # layer 0 is at the bottom
    page.keyboard.press("ArrowRight")
    assert page.locator(".column").nth(1).locator(".inspector h3").inner_text() == "L1H1"


@pytest.mark.browser
def test_the_arrow_keys_reach_every_box_arrow_head_and_token_and_each_says_its_numbers(
    show,
) -> None:
    page = show(planted())
    wanted = {
        things(page).nth(number).get_attribute("data-item")
        for number in range(things(page).count())
    }
    assert {
        "output",
        "box:5",
        "box:2",
        "box:4+6",
        "arrow:5-8",
        "arrow:2-8",
        "token:0",
    } <= wanted
    assert {f"head:{head.layer * 12 + head.index}" for head in CARRIERS} <= wanted
    things(page).first.focus()
    page.keyboard.press("Home")
    reached = set()
    for _ in range(things(page).count()):
        focused = page.locator(":focus")
        reached.add(focused.get_attribute("data-item"))
        assert len(focused.get_attribute("aria-label") or "") > 5
        assert page.locator(".tooltip").inner_text() != ""
        page.keyboard.press("ArrowRight")
    assert reached == wanted
    page.locator('[data-item="box:5"]').focus()
    page.keyboard.press("Enter")
    assert page.locator(".inspector h3").inner_text() == "large"
    assert "layer 0-3" in page.locator(".inspector .text").inner_text()
    page.locator('[data-item="arrow:2-8"]').first.focus()
    page.keyboard.press("Enter")
    assert page.locator(".inspector h3").inner_text() == 'opposite (2) to " (8)'
    assert names(page) == [str(head) for head in planted().carriers(2, 8)]


# Pinning


@pytest.mark.browser
def test_a_pinned_head_stays_while_the_mouse_crosses_others_until_escape(show) -> None:
    page = show(dense(), planted())
    column = page.locator(".column").nth(1)
    shown, pinned = column.locator(".inspector h3"), column.locator(".tile").nth(2)
    pinned.click()
    page.mouse.move(1, 1)
    assert shown.inner_text() == "L9H7" and page.locator(".tooltip").is_hidden()
    for other in (
        column.locator(".tile").nth(0),
        column.locator(".cell").nth(40),
        column.locator('[data-item="output"]'),
    ):
        other.hover()
        assert shown.inner_text() == "L9H7"
        assert page.locator(
            ".tooltip"
        ).is_visible()  # what is passed over still says its numbers
    assert page.locator(".column").first.locator(".inspector h3").inner_text() == "L9H7"
    assert column.locator(".cell.pinned").get_attribute("data-item") == f"head:{9 * 12 + 7}"
    page.keyboard.press("Escape")
    column.locator(".tile").nth(0).hover()
    assert shown.inner_text() == "L11H7"
    pinned.click()
    pinned.click()  # a second click frees it, too
    column.locator(".tile").nth(1).hover()
    assert shown.inner_text() == "L10H1"


@pytest.mark.browser
def test_a_link_shows_what_was_seen(show, browser: Browser) -> None:
    page = show(dense(), planted(), long(60))
    page.locator("#share").fill("61")
    page.locator("#pick-query").check()
    page.locator(".chip").nth(1).click()
    page.locator(".column").nth(1).locator(".tile").first.click()
    page.locator(".tool", has_text="+").first.click()
    page.wait_for_url(re.compile("view="))
    other = browser.new_page(viewport={"width": 1440, "height": 900})
    other.goto(page.url)
    assert (
        other.locator("#share").input_value() == "61"
        and other.locator("#pick-query").is_checked()
    )
    assert other.locator(".inspector.is-pinned").count() == 2
    for where in (".status", ".inspector h3"):
        assert other.locator(where).all_inner_texts() == page.locator(where).all_inner_texts()
    for place in ("x", "y", "width"):
        one, same = box_of(token(page, 8))[place], box_of(token(other, 8))[place]
        assert same == pytest.approx(one, abs=2)
    other.close()


@pytest.mark.browser
@pytest.mark.parametrize(
    "wild",
    [
        "#pin=9~head:99999&pair=77-1",
        "#group=x&share=999&view=0~a~b~c",
        "#%%%&pin=0~writer:1-2-3",
    ],
)
def test_a_wild_address_opens_the_page_as_it_is(show, wild: str) -> None:
    page = show(planted())
    page.goto(page.url.split("#")[0] + wild)
    page.reload()
    assert names(page)[:2] == ["L11H7", "L10H1"]
    assert page.locator(".is-pinned").count() == 0


# Zoom, pan, fit


def inside(page: Page, thing: Any) -> bool:
    """Whether a thing is wholly within the frame of the diagram."""
    frame, box = box_of(page.locator(".viewport")), box_of(thing)
    within_x = (
        frame["x"] - 1 <= box["x"]
        and box["x"] + box["width"] <= frame["x"] + frame["width"] + 1
    )
    return (
        within_x
        and frame["y"] - 1 <= box["y"]
        and box["y"] + box["height"] <= frame["y"] + frame["height"] + 1
    )


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1300])
@pytest.mark.parametrize("length", [14, 40])
def test_a_wide_prompt_can_be_zoomed_dragged_and_fitted_and_nothing_is_out_of_reach(
    show, width: int, length: int
) -> None:
    page = show(wide(length))
    page.set_viewport_size({"width": width, "height": 900})
    every = [things(page).nth(number) for number in range(things(page).count())]
    assert len(every) >= length
    page.locator(".tool", has_text="Fit").click()
    assert all(inside(page, each) for each in every)
    for _ in range(8):
        page.locator(".tool", has_text="+").click()
    assert not all(inside(page, each) for each in every)
    for place in (0, length // 2, length - 1):
        token(page, place).focus()
        page.keyboard.press("ArrowLeft" if place else "ArrowRight")
        page.keyboard.press("ArrowRight" if place else "ArrowLeft")
        assert inside(page, page.locator(":focus"))
    frame = box_of(page.locator(".viewport"))
    before = box_of(token(page, length - 1))["x"]
    page.mouse.move(frame["x"] + 150, frame["y"] + 60)
    page.mouse.down()
    page.mouse.move(frame["x"] + 210, frame["y"] + 60, steps=4)
    page.mouse.up()
    assert box_of(token(page, length - 1))["x"] > before
    assert page.locator(".is-pinned").count() == 0  # what moved is no click
    page.locator(".viewport").hover()
    page.keyboard.down("Control")
    page.mouse.wheel(0, 400)
    page.keyboard.up("Control")
    page.locator(".tool", has_text="Fit").click()
    assert all(inside(page, each) for each in every)


@pytest.mark.browser
def test_zooming_keeps_the_point_under_the_mouse(show) -> None:
    page = show(wide(40))
    # A picture that is larger than its frame can be scrolled both ways.
    for _ in range(8):
        page.locator(".tool", has_text="+").click()
    word = token(page, 20).locator(".word")
    word.scroll_into_view_if_needed()
    page.wait_for_timeout(200)
    box = box_of(word)
    point = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(*point)
    page.keyboard.down("Control")
    for _ in range(3):
        page.mouse.wheel(0, -100)
    page.keyboard.up("Control")
    page.wait_for_timeout(200)
    after = box_of(word)
    assert after["width"] > 1.5 * box["width"]
    assert after["x"] + after["width"] / 2 == pytest.approx(point[0], abs=3)
    assert after["y"] + after["height"] / 2 == pytest.approx(point[1], abs=3)


@pytest.mark.browser
def test_a_picture_too_wide_to_be_read_opens_with_both_ends_of_its_mapping(show) -> None:
    page = show(wide(40))
    frame = box_of(page.locator(".viewport"))
    for position in wide(40).focus or ():
        box = box_of(token(page, position).locator(".word"))
        assert frame["x"] - 1 <= box["x"]
        assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1


# Search, verdict, downloads


@pytest.mark.browser
def test_search_finds_heads_and_tokens_and_pins_them(show) -> None:
    page = show(planted())
    for typed, shown in (("9.7", "L9H7"), ("L10H1", "L10H1"), ("larg", "large")):
        page.keyboard.press("Escape")
        page.locator("#search").fill(typed)
        page.keyboard.press("Enter")
        assert page.locator(".inspector.is-pinned h3").inner_text() == shown
    page.locator("#search").fill("elephant")
    assert page.locator("#found").inner_text() == "no head or token of this name"


@pytest.mark.browser
def test_the_verdict_comes_first_with_its_reasons(show) -> None:
    weak = QuestionControl("weak", ("the gap is only 0.03",), (0.1,), 0.5, ("a", "b"))
    doubted = replace(planted().mappings[0], doubts=("another key, 2, carries more (0.40)",))
    page = show(replace(planted(), question=weak, mappings=(doubted, planted().mappings[1])))
    verdict = page.locator(".verdict")
    assert (
        "A weak question" in verdict.inner_text()
        and "the gap is only 0.03" in verdict.inner_text()
    )
    assert "another key, 2, carries more (0.40)" in verdict.inner_text()
    assert verdict.bounding_box()["y"] < page.locator(".diagram").bounding_box()["y"]
    assert "modulation withheld" in page.locator(".status").inner_text()
    assert "Modulated at 80% by" not in page.locator(".picture text").all_text_contents()
    clear = QuestionControl("clear", (), (0.1,), 0.9, ("small", "cold"))
    page = show(replace(planted(), question=clear))
    assert page.locator(".verdict.clear").inner_text().startswith("A clear question")


@pytest.mark.browser
def test_a_picker_chooses_among_prompts(show) -> None:
    page = show(planted(), long(60), wide(14))
    assert page.locator("#prompts option").count() == 3 and page.locator(".column").count() == 1
    page.locator("#prompts").select_option(index=1)
    assert names(page) == ["L1H1", "L0H1"]
    page.locator("#after").click()
    assert page.locator("h2").inner_text() == "wide"
    page.locator("#after").click()
    assert page.locator("h2").inner_text() == "Sparse GPT-2"
    assert not show(planted()).locator("#picker").is_visible()


@pytest.mark.browser
def test_a_head_stands_beside_random_heads_and_with_the_writers_of_its_sides(
    show, sparse: Model, tmp_path: Path
) -> None:
    found = trace(sparse, planted_model.PROMPT, key="large", swap=planted_model.SWAP)
    told = explain(found, found.carriers()[0], model=sparse)
    page = show(found, why=[told])
    assert page.locator(".verdict").inner_text().startswith("A clear question")
    beside = page.locator(".chance .meaning").inner_text()
    assert beside.startswith("above what a random head does")
    # One head beside one: each head that is no carrier, alone.
    carriers = found.carriers()
    alone = [each.effect for each in found.mapping().heads if each.head not in carriers]
    alone.sort()
    assert f"each of the {len(alone)} other heads" in beside
    assert f"95th percentile {alone[int(0.95 * (len(alone) - 1))]:.2f}" in beside
    sides = page.locator(".tree .side .name").all_text_contents()
    assert sides == ["query", "key", "value"]
    best = max(told.sides[2].writers, key=lambda writer: abs(writer.effect))
    words = f"writes into the value: effect {best.effect:.2f}"
    writer = page.locator(".tree .writer").and_(page.locator(f'[aria-label*="{words}"]')).first
    where = writer.locator("text").all_text_contents()
    assert where == [str(best), f"{best.effect:.3f}"]
    writer.click()
    assert page.locator(".inspector.is-pinned").count() == 1


@pytest.mark.browser
def test_what_is_shown_can_be_downloaded(show, tmp_path: Path, browser: Browser) -> None:
    page = show(planted())
    files = {}
    for kind in ("SVG", "PNG", "CSV"):
        with page.expect_download() as waited:
            page.locator(".tool", has_text=kind).click()
        files[kind] = tmp_path / waited.value.suggested_filename
        waited.value.save_as(files[kind])
    drawing = ElementTree.parse(files["SVG"]).getroot()
    said = {text.text for text in drawing.iter("{http://www.w3.org/2000/svg}text")}
    assert {"large", "small", "Modulated at 80% by", *map(str, CARRIERS)} <= said
    assert files["PNG"].read_bytes().startswith(b"\x89PNG")
    rows = list(csv.DictReader(files["CSV"].read_text(encoding="utf-8-sig").splitlines()))
    known = {str(each.head): each for each in planted().mapping().heads}
    first = [row for row in rows if row["key"] == "5"]
    assert {row["head"]: float(row["effect"]) for row in first} == {
        name: each.effect for name, each in known.items()
    }
    assert [row["head"] for row in first if row["carrier"] == "1"] == [
        str(head) for head in CARRIERS
    ]
    alone = browser.new_page()
    alone.goto(files["SVG"].as_uri())
    assert alone.locator("text").count() > 20
    alone.close()


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_no_serious_fault_of_accessibility(show, scheme: str) -> None:
    page = show(dense(), planted(), long(60))
    page.emulate_media(color_scheme=scheme)
    page.locator(".tile").first.click()
    page.wait_for_timeout(200)
    assert chromium.serious_faults(page) == []


@pytest.mark.browser
def test_a_hostile_prompt_stays_text(show) -> None:
    page = show(hostile())
    spelled = [spell(word, longest=16) for word in HOSTILE]
    assert page.locator(".token .word").all_text_contents() == spelled
    assert page.locator("h1 *").count() == 0
    assert page.locator("img, iframe, object").count() == 0
    assert page.evaluate("document.scripts.length") == 2


@pytest.mark.browser
def test_a_long_prompt_is_elided_and_its_gaps_open(show) -> None:
    page = show(long(120))
    assert page.locator(".token:not(.gap)").count() < 20
    page.locator(".token.gap").first.click()
    page.locator(".tool", has_text="Fit").click()
    token(page, 20).click()
    assert "its heads were not measured" in page.locator(".status").inner_text()
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.locator(".diagram .actions button").click()
    program = page.evaluate("navigator.clipboard.readText()")
    assert "key=20, query=119" in program
    compile(program, "copied", "exec")


@pytest.mark.browser
@pytest.mark.parametrize("width", [380, 800, 1440])
def test_the_page_is_never_wider_than_the_window(show, width: int) -> None:
    for circuits in ((dense(), planted()), (deep(),), (empty(),), (hostile(),)):
        page = show(*circuits)
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


@pytest.mark.browser
def test_an_empty_circuit_and_a_model_without_bos_are_shown(show) -> None:
    page = show(empty(), deep())
    assert names(page) == [] and names(page, 1) == ["L22H8", "L22H7", "L29H7"]
    assert page.locator(".column").nth(1).locator(".cell").count() == 270
    assert token(page, 0, 1).locator(".word").text_content() == "The"


@pytest.mark.browser
def test_a_prompt_of_one_token_is_shown(show) -> None:
    page = show(hostile(("<b>",)))
    assert page.locator(".token .word").all_text_contents() == ["<b>"]
    assert names(page) == ["L1H0", "L0H1"]


@pytest.mark.browser
def test_on_paper_the_page_is_light_and_without_its_toolbar(show) -> None:
    page = show(planted())
    page.emulate_media(media="print", color_scheme="dark")
    page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
    assert not page.locator(".toolbar").is_visible()
    assert (
        page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    )
    assert pixel(page, 8, 8) == [255, 255, 255]


# Long prompts and deep models


def long_and_deep() -> Circuit:
    """42 tokens and 30 layers: a mapping from far back, and boxes and heads in many layers."""
    words = tuple(f" word{at}" for at in range(42))
    heads = [Head(layer, layer % 9) for layer in (28, 23, 20, 15, 9, 3)]
    path = [(head, 0.15 * (number + 1)) for number, head in enumerate(heads)]
    main = mapping_of(5, 41, path, total=0.95, controls=False)
    near = mapping_of(
        30, 33, [(Head(12, 3), 0.2), (Head(12, 4), 0.3)], total=0.3, controls=False
    )
    spans = [span_of(f"word{at}", (at,), (0, at // 2), ((0, 1),), 30) for at in (5, 20, 30, 33)]
    spans.append(span_of("word41", (41,), (20, 29), ((22, 25),), 30))
    shape: dict[str, Any] = {"layers": 30, "heads": 9, "bos": False}
    options = {"name": "deep", "spans": tuple(spans), "focus": (5, 41)}
    return circuit_of(words, (main, near), **options, **shape)


@pytest.mark.browser
@pytest.mark.parametrize("width", [400, 1300, 2000])
def test_a_long_prompt_opens_with_key_query_and_output_in_sight(show, width: int) -> None:
    page = show(long_and_deep())
    page.set_viewport_size({"width": width, "height": 900})
    page.reload()
    for fit in (False, True):
        if fit:
            page.get_by_role("button", name="Fit the whole picture").first.click()
        frame = box_of(page.locator(".viewport").first)
        in_sight = [token(page, 5), token(page, 41), page.locator(".output").first]
        in_sight += [page.locator(f'.box[data-positions="{at}"] .frame') for at in (5, 41)]
        in_sight += [page.locator(".axis-layer").nth(at) for at in (0, -1)]
        for thing in in_sight:
            box = box_of(thing)
            if width >= 1300:  # on a phone the diagram stands below its question
                assert box["y"] >= 0 and box["y"] + box["height"] <= 900
            assert frame["x"] - 1 <= box["x"]
            assert box["x"] + box["width"] <= frame["x"] + frame["width"] + 1
            assert frame["y"] - 1 <= box["y"]
            assert box["y"] + box["height"] <= frame["y"] + frame["height"] + 1


@pytest.mark.browser
def test_no_name_of_a_head_lies_on_a_box_of_the_page(show) -> None:
    for circuit in (planted(), deep(), wide(9), long_and_deep()):
        page = show(circuit)
        overlaps = page.evaluate(
            """() => {
              const area = (node) => node.getBBox();
              const boxes = [...document.querySelectorAll(".box .frame")].map(area);
              const pills = [...document.querySelectorAll(".chip-head rect")].map(area);
              const touches = (one, other) =>
                Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x) > 0.5 &&
                Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y) > 0.5;
              const covering = pills.filter((pill) => boxes.some((box) => touches(pill, box)));
              return [boxes.length, pills.length, covering.length];
            }"""
        )
        assert overlaps[0] and overlaps[1] and not overlaps[2]
