"""What the page says where little or nothing was found, and of what each of its percentages is a share."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from matplotlib.axes import Axes
from render_samples import mapping_of, planted, span_of

from circuits.components import Head
from circuits.prompts import Prompt
from circuits.show import effect_map
from circuits.show.page import to_page
from circuits.tracing import QuestionControl
from circuits.tracing.records import Circuit

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CLEAR = QuestionControl("clear", (), (), 0.9, ("small", "cold"))


def null() -> Circuit:
    """A question about a word that does nothing: every head has an effect of 0.001."""
    path = [(Head(layer, 1), 0.001 * (layer + 1)) for layer in range(3)]
    doubt = "a total of 0.00 carries next to nothing (less than 0.05)"
    mapping = replace(mapping_of(5, 8, path, total=0.003), doubts=(doubt,))
    return replace(planted(), mappings=(mapping,), question=CLEAR, focus=(5, 8))


def test_the_scale_of_a_figure_of_nothing_ends_at_five_percent_of_the_gap() -> None:
    (image,) = [image for axes in effect_map(null()).axes for image in _images(axes)]
    assert image.get_clim() == pytest.approx((-0.05, 0.05))
    strong = effect_map(planted()).axes
    (image,) = [image for axes in strong for image in _images(axes)]
    largest = max(abs(each.effect) for each in planted().mapping().heads)
    assert image.get_clim() == pytest.approx((-largest, largest))


def _images(axes: Axes) -> list[Any]:
    images: list[Any] = list(axes.images)
    return [image for image in images if np.ndim(image.get_array()) == 2]


def show(browser: Browser, circuit: Circuit, folder: Path, **changed: Any) -> Page:
    """The page of a circuit, with some values of its data changed."""
    html = to_page(circuit)
    for name, value in changed.items():
        given = f'"{name}":{json.dumps(value)},'
        html = html.replace('{"circuits":[{', '{"circuits":[{' + given, 1)
    (folder / "page.html").write_text(html)
    page = browser.new_page()
    page.goto((folder / "page.html").as_uri())
    return page


@pytest.mark.browser
def test_a_null_question_is_drawn_on_a_scale_that_shows_it_as_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    page = show(browser, null(), tmp_path)
    assert page.inner_text(".scale").split() == ["−0.05", "+0.05"]
    colour = "getComputedStyle(document.querySelector('.cell.carrier, .cell')).backgroundColor"
    strongest = page.evaluate(colour)
    lightness = [int(part) for part in re.findall(r"\d+", strongest)[:3]]
    assert min(lightness) > 200  # nearly the colour of nothing


@pytest.mark.browser
def test_no_green_verdict_stands_above_a_modulation_that_is_withheld(
    browser: Browser, tmp_path: Path
) -> None:
    page = show(browser, null(), tmp_path)
    assert "withheld" in page.inner_text(".verdict")
    assert "clear" not in (page.get_attribute(".verdict", "class") or "").split()
    page = show(browser, replace(planted(), question=CLEAR), tmp_path)
    assert "clear" in (page.get_attribute(".verdict", "class") or "").split()


@pytest.mark.browser
def test_while_it_is_measured_nothing_is_said_to_carry_nothing(
    browser: Browser, tmp_path: Path
) -> None:
    empty = replace(planted().mapping(), path=(), heads=(), controls=None, sides=())
    circuit = replace(planted(), mappings=(empty,), focus=(5, 8), question=None)
    content = "getComputedStyle(document.querySelector('.tiles'), '::after').content"
    page = show(browser, circuit, tmp_path, unfinished=True)
    assert "measuring…" in page.evaluate(content)
    assert "measuring…" in page.inner_text(".verdict") and "measuring…" in page.inner_text(
        ".facts"
    )
    assert "o head carries" not in page.inner_text("body")
    page = show(browser, circuit, tmp_path)
    assert "No head carries" in page.evaluate(content)


@pytest.mark.browser
def test_every_share_says_of_what(browser: Browser, tmp_path: Path) -> None:
    page = show(browser, replace(planted(), question=CLEAR), tmp_path)
    meanings = page.locator(".controls dd.meaning, .controls .meaning").all_inner_texts()
    shares = [text for text in meanings if "clean patched into clean" not in text]
    assert len(shares) >= 5 and all(text.startswith("share of the ") for text in shares)
    assert "of the total" in page.inner_text(".status")
    assert "of the gap" in page.inner_text(".status")
    for title in ("Carriers", "Greedy path", "Effect of every head"):
        heading = page.locator("h3", has_text=title).first.inner_text()
        assert "share of the" in heading


@pytest.mark.browser
@pytest.mark.parametrize(
    "word", ["=HYPERLINK(1)", "+1", "-2", "@SUM(1)", "\tx", "\rx", ' ="a",1', "plain"]
)
def test_a_cell_that_a_spreadsheet_would_run_is_made_harmless(
    word: str, browser: Browser, tmp_path: Path
) -> None:
    known = replace(planted(), mappings=planted().mappings[:1])
    words = list(known.prompt.words)
    words[5] = word
    prompt = Prompt(known.prompt.text, known.prompt.tokens, tuple(words))
    page = show(browser, replace(known, prompt=prompt), tmp_path)
    with page.expect_download() as downloading:
        page.click("text=CSV")
    file = tmp_path / "numbers.csv"
    downloading.value.save_as(file)
    with file.open(encoding="utf-8-sig", newline="") as opened:
        rows = list(csv.DictReader(opened))
    expected = word if word == "plain" else f"'{word}"
    assert {row["key_token"] for row in rows} == {expected}
    effects = sorted(float(row["effect"]) for row in rows)
    assert effects == sorted(each.effect for each in known.mapping().heads)


@pytest.mark.browser
def test_layers_that_write_beyond_those_that_hold_are_ticks_as_in_the_figure(
    browser: Browser, tmp_path: Path
) -> None:
    span = span_of("large", (5,), (2, 6), ((0, 8),))
    page = show(browser, replace(planted(), spans=(span,)), tmp_path)
    inside = page.locator(".picture .box .built:not(.tick)").bounding_box()
    frame = page.locator(".picture .box .frame").bounding_box()
    assert inside and frame
    assert inside["height"] == pytest.approx(frame["height"], abs=4)
    ticks = [tick.bounding_box() for tick in page.locator(".picture .box .tick").all()]
    below, above = sorted((tick["y"] for tick in ticks if tick), reverse=True)
    assert above < frame["y"] and below > frame["y"] + frame["height"]
