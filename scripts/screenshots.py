"""Take the pictures of docs/explore.md: the page and the live page, light and dark, at three widths.

Needs Chromium and the extra `explore`; the circuits are measured on `mini`.
"""

from __future__ import annotations

import sys
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Page, sync_playwright

import circuits

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "docs" / "explore"
WIDTHS = {400: 1100, 1300: 1100, 2000: 1200}
PROMPT = 'The opposite of "large" is "'
FLAGS = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"


def main() -> None:
    FOLDER.mkdir(parents=True, exist_ok=True)
    model = circuits.load("mini")
    found = circuits.circuit(model, PROMPT, swap={"large": "hot"})
    whys = [circuits.why(found, head, model=model) for head in found.carriers()[:2]]
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "/tmp") / "page.html"
    file.write_text(found.page(why=whys), encoding="utf-8")
    with sync_playwright() as play, circuits.explore(model) as live:
        browser = play.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS.split())
        for scheme in ("light", "dark"):
            for width, height in WIDTHS.items():
                page = open_page(browser, file.as_uri(), scheme, width, height)
                page.locator(".tile").first.click()
                save_screenshot(page, f"page-{scheme}-{width}")
                page = open_page(browser, live.address, scheme, width, height)
                ask(page)
                save_screenshot(page, f"live-{scheme}-{width}")
        browser.close()


def open_page(browser: Browser, address: str, scheme: str, width: int, height: int) -> Page:
    page = browser.new_page(viewport={"width": width, "height": height}, color_scheme=scheme)  # type: ignore[arg-type]
    page.goto(address)
    return page


def ask(page: Page) -> None:
    page.locator("#prompt").fill(PROMPT)
    page.locator('.ask-chip[data-position="5"]').click()
    page.locator(".proposal").first.wait_for()
    page.locator("#ask-go").click()
    page.locator("#ask-said", has_text="answered in").wait_for()
    page.locator("#ask-next .next").first.wait_for()
    page.locator(".tile").first.click()


def save_screenshot(page: Page, name: str) -> None:
    """Save a PNG of 224 colours, which keeps the repository small."""
    page.mouse.move(1, 1)
    page.evaluate("scrollTo(0, 0)")
    page.wait_for_timeout(200)
    file = FOLDER / f"{name}.png"
    page.screenshot(path=file)
    Image.open(file).convert("RGB").quantize(224).save(file, optimize=True)
    page.close()


if __name__ == "__main__":
    main()
