"""Take the pictures of docs/explore.md: the page of a circuit, and the live page before and after an answer.

Needs Chromium and the extra `explore`; the circuits are measured on `mini`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

from PIL import Image
from playwright.sync_api import Page, sync_playwright

import circuits

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "explore"
PROMPT = 'The opposite of "large" is "'
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
PATIENCE = 300_000  # milliseconds for an answer


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    model = circuits.load("mini")
    found = circuits.circuit(model, PROMPT, swap={"large": "hot"})
    whys = [circuits.why(found, head, model=model) for head in found.carriers()[:2]]
    with TemporaryDirectory() as temporary, sync_playwright() as play:
        file = Path(temporary) / "page.html"
        file.write_text(found.page(why=whys), encoding="utf-8")
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
        for name, width, scheme in (
            ("page", 1300, "light"),
            ("page-dark", 1300, "dark"),
            ("page-narrow", 400, "light"),
        ):
            page = browser.new_page(
                viewport={"width": width, "height": 1100}, color_scheme=scheme
            )
            page.goto(file.as_uri())
            page.locator(".tile").first.click()
            save_screenshot(page, folder / f"{name}.png")
            page.close()
        page = browser.new_page(viewport={"width": 1300, "height": 1100}, color_scheme="light")
        page.set_default_timeout(PATIENCE)
        with circuits.explore(model) as live:
            page.goto(live.address)
            ask_and_look(page, folder)
        browser.close()


def ask_and_look(page: Page, folder: Path) -> None:
    """The live page as it opens, with an answer, with a head explained, and with the head knocked out."""
    page.locator("#ask-examples button").first.wait_for()
    save_screenshot(page, folder / "live-opening.png", height=420)
    page.locator("#ask-examples button", has_text="opposite").click()
    page.locator("#ask-said", has_text="answered in").wait_for()
    page.locator("#ask-next .next").first.wait_for()
    save_screenshot(page, folder / "live-answer.png")
    page.locator(".chip-head.front").first.click()
    page.locator(".inspector .actions button", has_text="Why?").click()
    page.locator(".tree .writer").first.wait_for()
    page.wait_for_timeout(300)
    save_screenshot(page, folder / "live-why.png", of=".inspector")
    page.locator(".diagram .actions button", has_text="Without").click()
    page.locator(".column").nth(1).wait_for()
    page.keyboard.press("Escape")
    save_screenshot(page, folder / "live-without.png", of=".columns", height=640)


def save_screenshot(page: Page, file: Path, *, of: str = "", height: int = 1100) -> None:
    """Save the window, or one thing from its upper left corner, as a PNG."""
    page.mouse.move(1, 1)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(300)
    clip = {"x": 0.0, "y": 0.0, "width": page.evaluate("innerWidth"), "height": height}
    if of:
        box = page.locator(of).first.bounding_box()
        assert box is not None
        clip = dict(box) | {"height": min(box["height"], height)}
    page.screenshot(path=file, clip=clip, full_page=True)  # type: ignore[arg-type]
    # All colours are kept: a palette of 256 drew rectangles that are not on the page.
    Image.open(file).convert("RGB").save(file, optimize=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else FOLDER)
