"""A real browser for tests of pages: Chromium without a window, no network but for what a test allows."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = Path("/usr/bin/chromium")
AXE = Path(__file__).parents[1] / ".venv" / "axe.min.js"
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
)


@contextmanager
def launched() -> Iterator[Browser]:
    if not CHROMIUM.exists():
        pytest.fail(
            "no Chromium on this machine; the browser tests need it: apt-get install chromium"
        )
    from playwright.sync_api import sync_playwright

    with sync_playwright() as play:
        opened = play.chromium.launch(executable_path=str(CHROMIUM), args=FLAGS.split())
        yield opened
        opened.close()


def serious_faults(page: Page) -> list[str]:
    """What axe-core finds that keeps people out, serious or worse."""
    if not AXE.exists():
        pytest.fail(f"{AXE} is missing; `make browser` fetches it with npm")
    page.evaluate(AXE.read_text(encoding="utf-8"))
    result = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    return [
        f"{fault['id']}: {node['target']} {node['failureSummary']}"
        for fault in result["violations"]
        if fault["impact"] in ("serious", "critical")
        for node in fault["nodes"]
    ]
