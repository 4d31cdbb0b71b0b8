"""The page: one safe file that holds the circuit's numbers and answers to the mouse and the keyboard."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
)

from circuits.errors import PromptError
from circuits.heads import Head
from circuits.show import scene
from circuits.show.page import to_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


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
    assert [[f"L{head // 12}H{head % 12}", joint] for head, joint in stored["path"]] == [
        [str(step.head), step.joint] for step in mapping.path
    ]
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
    weights = np.frombuffer(base64.b64decode(maps["data"]), dtype=np.uint8).reshape(len(maps["heads"]), -1)
    assert len(maps["heads"]) == 144
    rows, columns = np.tril_indices(9)
    for head, row in zip(maps["heads"], weights, strict=True):
        assert (
            np.abs(row / 255 - circuit.pattern(f"L{head // 12}H{head % 12}")[rows, columns]).max() < 1 / 255
        )


def test_maps_that_would_make_the_page_too_large_are_left_out_least_important_first() -> None:
    packed = data_of(to_page([long(1400)]))["circuits"][0]
    assert packed["maps"]["heads"] == [3]
    assert len(to_page([long(1400)])) < 2_000_000


def test_a_page_stays_under_two_megabytes_for_a_long_prompt_with_every_mapping() -> None:
    path = [
        (Head(at // 12, at % 12), joint)
        for at, joint in enumerate(np.sort(np.random.default_rng(0).random(144)).tolist())
    ]
    mappings = tuple(mapping_of(key, 63, path, total=1.0, seed=key) for key in range(63))
    circuit = circuit_of(tuple(f" w{at}" for at in range(64)), mappings, name="large", sparse=False)
    assert len(to_page([circuit, circuit])) < 2_000_000


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


def test_circuits_of_one_prompt_share_what_is_chosen_and_others_do_not() -> None:
    groups = [circuit["group"] for circuit in data_of(to_page([dense(), planted(), deep()]))["circuits"]]
    assert groups == [0, 0, 2]


def test_a_page_needs_a_circuit() -> None:
    with pytest.raises(PromptError, match="at least one circuit"):
        to_page([])


# In a browser


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.fail("no Chromium on this machine; the browser tests need it: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield opened
        opened.close()


@pytest.fixture
def show(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Open a page of these circuits; at the end there was no complaint and no request but for the file."""
    page = browser.new_page(viewport={"width": 1440, "height": 900})
    said: list[str] = []
    asked: list[str] = []
    page.on("console", lambda message: said.append(message.text))
    page.on("pageerror", lambda error: said.append(str(error)))
    page.on("dialog", lambda dialog: said.append(dialog.message) or dialog.dismiss())
    page.on("request", lambda request: asked.append(request.url))

    def open_page(*circuits: Any) -> Page:
        (tmp_path / "page.html").write_text(to_page(circuits), encoding="utf-8")
        page.goto((tmp_path / "page.html").as_uri())
        return page

    yield open_page
    page.close()
    assert said == []
    assert set(asked) == {(tmp_path / "page.html").as_uri()}


def names(page: Page, column: int = 0) -> list[str]:
    return page.locator(".column").nth(column).locator(".tile .name").all_inner_texts()


def token(page: Page, at: int, column: int = 0):
    return page.locator(".column").nth(column).locator(f'.token[data-at="{at}"]')


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
    said = page.locator(".picture text").all_text_contents()
    assert {
        "opposite",
        "layer 0-1",
        "large",
        "layer 0-3",
        "brackets",
        "layer 0-10",
        "small",
        "layer 12",
        "Modulated at 80% by",
    } <= set(said)
    assert (
        page.locator(".status").inner_text()
        == '5 of 144 heads carry 80% of large (5) → " (8); its total is 1.00 of the gap.'
    )
    page.locator("#share").fill("30")
    assert "Modulated at 30% by" in page.locator(".picture text").all_text_contents()


@pytest.mark.browser
def test_clicking_tokens_changes_the_mapping_in_every_column_of_the_prompt(show) -> None:
    page = show(dense(), planted())
    token(page, 2).click()
    for column, circuit in enumerate((dense(), planted())):
        assert names(page, column) == [str(head) for head in circuit.carriers(2, 8)]
    assert "key" in str(token(page, 2, 1).get_attribute("class"))
    token(page, 3).click()
    assert names(page) == []
    assert "not in this file" in page.locator(".status").first.inner_text()
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
        scene.spell(word) for word in planted().prompt.words
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
        page.locator(".trust").nth(1).locator("dt").all_inner_texts()
    )


@pytest.mark.browser
def test_a_map_is_painted_with_its_red_cell(show) -> None:
    page = show(planted())
    assert pixel(page, 5, 0) == [214, 40, 57]  # query 8 is the uppermost row
    assert pixel(page, 8, 8) == [255, 255, 255]
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
        page.mouse.move(box["x"] + (key + 0.5) * cell, box["y"] + box["height"] - (query + 0.5) * cell)
        words = [scene.spell(planted().prompt.words[position]) for position in (key, query)]
        weight = f"{planted().pattern(CARRIERS[0])[query, key]:.2f}"
        reading = page.locator(".reading").inner_text()
        assert reading == f"{words[0]} ({key}) → {words[1]} ({query}): weight {weight}"
    assert page.locator(".corner").inner_text().split() == ["Q", "↑", "K", "→"]
    queries = page.locator(".labels.queries span")
    tops = {queries.nth(number).inner_text(): queries.nth(number).bounding_box()["y"] for number in (1, 5)}
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


@pytest.mark.browser
def test_the_keyboard_reaches_everything(show) -> None:
    page = show(dense(), planted())
    reached = []
    for _ in range(40):
        page.keyboard.press("Tab")
        place = page.evaluate("document.activeElement.id || document.activeElement.className.split(' ')[0]")
        if place == "" or place == "BODY":
            break
        reached.append(place)
    assert reached[:2] == ["pick-key", "share"]
    assert reached[2:] == ["token", "chip", "tile", "cell"] * 2
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
    cell = page.locator(".column").nth(1).locator('.cell[data-head="0"]')
    cell.focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowRight")
    assert page.locator(".column").nth(1).locator(".inspector h3").inner_text() == "L1H1"


@pytest.mark.browser
def test_a_hostile_prompt_stays_text(show) -> None:
    page = show(hostile())
    assert page.locator(".token .word").all_text_contents() == [scene.spell(word) for word in HOSTILE]
    assert page.locator("h1 *").count() == 0
    assert page.locator("img, iframe, object").count() == 0
    assert page.evaluate("document.scripts.length") == 2


@pytest.mark.browser
def test_a_long_prompt_is_elided_and_its_gaps_open(show) -> None:
    page = show(long(120))
    assert page.locator(".token:not(.gap)").count() < 20
    page.locator(".token.gap").first.click()
    assert token(page, 20).is_visible()
    token(page, 20).click()
    assert "not in this file" in page.locator(".status").inner_text()


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
    assert token(page, 0, 1).locator(".word").inner_text() == "The"


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
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert pixel(page, 8, 8) == [255, 255, 255]
