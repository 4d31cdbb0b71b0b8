"""Search the built docs for words that a user would type: `make search` fails if another page comes first.

Needs Chromium, and the docs in build/docs (`make docs`): the search runs in the browser, as it does for a reader.
"""

from __future__ import annotations

import sys
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

BUILT = Path(__file__).parents[1] / "build" / "docs"
CHROMIUM = "/usr/bin/chromium"
FIRST = {  # what is typed, and the page that must come first
    "install": "tour",
    "counterfactual": "questions",
    "faithfulness": "theory",
    "noising": "theory",
    "verdict": "trust",
    "agent": "agents",
    "sweep": "sweeps",
    "gallery": "drawn/index",
    "upgrade": "upgrade",
    "logit lens": "instruments",
}


def first_page(page: Page, words: str) -> str:
    """The page that the search puts first."""
    page.goto(f"{(BUILT / 'search.html').as_uri()}?q={words.replace(' ', '+')}")
    link = page.locator("#search-results ul.search li a").first
    link.wait_for(timeout=20_000)
    address = (link.get_attribute("href") or "").partition("?")[0].partition("#")[0]
    return address.removesuffix(".html")


def main() -> None:
    wrong = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        for words, wanted in FIRST.items():
            found = first_page(page, words)
            print(f"{words}: {found}")
            if found != wanted:
                wrong.append(f"{words!r} finds {found} first, not {wanted}")
        browser.close()
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
