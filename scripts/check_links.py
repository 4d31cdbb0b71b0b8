"""Find dead links in the pages of the repository: `python scripts/check_links.py` names each with its line.

1. A relative link to a page or a picture must lead to a file or a folder of the repository.
2. The anchor of a link (`page.md#heading`) must be a heading of that page, spelled as GitHub spells it.
3. Links to other sites are not followed, so that no test needs the network. Code is not searched for links.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).parents[1]
PAGES = (
    "README.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    "docs/*.md",
    "docs/cards/*.md",
    "case_studies/*.md",
    "benchmarks/*.md",
)
_LINK = re.compile(r"\]\(<?([^()\s<>]*(?:\([^()\s]*\))?[^()\s<>]*)>?(?: \"[^\"]*\")?\)")
_ELSEWHERE = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)
_CODE = re.compile(r"`[^`]*`")
_HEADING = re.compile(r"#{1,6} +(.*?)[ #]*$")


def pages(root: Path = ROOT) -> list[Path]:
    """Every page that is checked."""
    found = []
    for pattern in PAGES:
        found += sorted(root.glob(pattern))
    return found


def dead_links(page: Path) -> Iterator[str]:
    """A line for each link of a page that leads nowhere."""
    for number, line in _prose(page):
        for link in _LINK.findall(_CODE.sub("", line)):
            if _ELSEWHERE.match(link):
                continue
            path, _, anchor = unquote(link).partition("#")
            target = page.parent / path if path else page
            if not target.exists():
                yield f"{page}:{number}: {link} leads to no file"
            elif anchor and target.suffix == ".md" and anchor not in anchors(target):
                yield f"{page}:{number}: {link} leads to no heading of {target.name}"


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings; that of a second heading of the same name ends with -1."""
    seen: Counter[str] = Counter()
    found = set()
    for _, line in _prose(page):
        heading = _HEADING.match(line)
        if heading is None:
            continue
        slug = _slug(heading[1])
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def _slug(heading: str) -> str:
    """A heading as GitHub spells it in a link: the text of its links, small letters, no punctuation."""
    without_links = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
    words = re.sub(r"[^\w\- ]", "", without_links.strip().lower())
    return words.replace(" ", "-")


def _prose(page: Path) -> Iterator[tuple[int, str]]:
    """The numbered lines of a page that are not in a fenced block."""
    fence = ""
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        opened = re.match(r" *(`{3,}|~{3,})", line)
        if opened and (not fence or line.strip().startswith(fence)):
            fence = "" if fence else opened[1]
        elif not fence:
            yield number, line


def main() -> None:
    dead: list[str] = []
    for page in pages():
        dead += dead_links(page)
    sys.exit("\n".join(dead) if dead else 0)


if __name__ == "__main__":
    main()
