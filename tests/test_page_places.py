"""Nothing on the page stands on anything else, and all of its words can be read, in light and in dark colours."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from render_samples import dense, planted
from test_render_figures import random_circuit

from circuits.show.page import to_page

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.browser
CIRCUITS = 200
SHARES = (30, 80, 100)

# For every prompt of the page and every share: the names that stand on a box, the output or another name.
FIND_OVERLAPS = """(shares) => {
  const prompts = document.getElementById("prompts");
  const slider = document.getElementById("share");
  const faults = [];
  const counts = { pictures: 0, names: 0, boxes: 0 };
  const touch = (one, other) =>
    Math.min(one.x + one.width, other.x + other.width) - Math.max(one.x, other.x) > 0.5 &&
    Math.min(one.y + one.height, other.y + other.height) - Math.max(one.y, other.y) > 0.5;
  const areas = (picture, selector) => [...picture.querySelectorAll(selector)].map((each) => each.getBBox());
  for (const group of [...prompts.options].map((option) => option.value)) {
    prompts.value = group;
    prompts.dispatchEvent(new Event("change"));
    for (const share of shares) {
      slider.value = share;
      slider.dispatchEvent(new Event("input"));
      for (const picture of document.querySelectorAll(".picture")) {
        const names = areas(picture, ".chip-head rect");
        const boxes = areas(picture, ".box .frame, .output rect");
        counts.pictures += 1;
        counts.names += names.length;
        counts.boxes += boxes.length;
        names.forEach((name, index) => {
          const others = names.slice(index + 1);
          if ([...boxes, ...others].some((area) => touch(name, area))) faults.push([group, share, index]);
        });
      }
    }
  }
  return [counts, faults];
}"""


def test_no_name_of_a_head_lies_on_a_box_or_another_name_in_two_hundred_random_circuits(
    browser: Browser, tmp_path: Path
) -> None:
    page = browser.new_page()
    pictures = 0
    for first in range(0, CIRCUITS, 50):
        circuits = [random_circuit(seed) for seed in range(first, first + 50)]
        (tmp_path / "page.html").write_text(to_page(circuits), encoding="utf-8")
        page.goto((tmp_path / "page.html").as_uri())
        counts, faults = page.evaluate(FIND_OVERLAPS, list(SHARES))
        assert counts["names"] and counts["boxes"]
        assert faults == [], first
        pictures += counts["pictures"]
    assert pictures == CIRCUITS * len(SHARES)
    page.close()


# Every text of the diagrams, with the colour of its letters and of what it stands on.
READ_COLOURS = """() => {
  const colour = (node, name) => getComputedStyle(node)[name];
  const isSeen = (paint) => paint !== "none" && !/rgba\\(.*, 0\\)|transparent/.test(paint);
  return [...document.querySelectorAll(".picture text, .tree text, .curve text")].map((text) => {
    const rect = text.parentElement.querySelector(":scope > rect");
    const own = rect && colour(rect, "fill");
    const card = colour(text.closest(".card"), "backgroundColor");
    return [text.textContent, colour(text, "fill"), own && isSeen(own) ? own : card];
  });
}"""


def luminance(colour: str) -> float:
    """The relative luminance of `rgb(…)`, as WCAG defines it."""
    channels = []
    for part in colour[colour.index("(") + 1 : -1].split(",")[:3]:
        share = float(part) / 255
        channels.append(share / 12.92 if share <= 0.04045 else ((share + 0.055) / 1.055) ** 2.4)
    red, green, blue = channels
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_word_of_a_diagram_can_be_read(
    scheme: Any, browser: Browser, tmp_path: Path
) -> None:
    """Accessibility tools look at HTML alone; this is the same rule, 4.5 to 1, for the text of drawings."""
    page = browser.new_page(color_scheme=scheme)
    (tmp_path / "page.html").write_text(to_page([dense(), planted()]), encoding="utf-8")
    page.goto((tmp_path / "page.html").as_uri())
    read = page.evaluate(READ_COLOURS)
    assert len(read) > 60
    faint = []
    for text, letters, ground in read:
        if contrast(letters, ground) < 4.5:
            faint.append((text, letters, ground, round(contrast(letters, ground), 2)))
    assert faint == []
    page.close()
