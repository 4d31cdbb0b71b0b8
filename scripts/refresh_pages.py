"""Give the pages that are kept of case studies the style and the script of today; their numbers stay.

Run it after a change in `circuits/show/web/`: no study is measured again. A page's policy names its own style and
script by their hashes, so a page that is edited by hand shows nothing.
"""

from __future__ import annotations

import html
import json
from pathlib import Path

from circuits.show.page import fill_page

STUDIES = Path(__file__).parents[1] / "case_studies"


def pages() -> list[Path]:
    """Every page that is kept."""
    return sorted(STUDIES.glob("*/*.html"))


def refreshed(text: str) -> str:
    """A page with the same title and numbers as this one."""
    title = _between(text, "<title>", "</title>")
    data = _between(text, '<script type="application/json" id="data">', "</script>")
    return fill_page(json.loads(data), html.unescape(title))


def _between(text: str, start: str, end: str) -> str:
    return text.partition(start)[2].partition(end)[0]


if __name__ == "__main__":
    for page in pages():
        page.write_text(refreshed(page.read_text(encoding="utf-8")), encoding="utf-8")
        print(page)
