"""Every row of docs/instruments.md on a real language model: the page's own snippets, on stories15m."""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from pathlib import Path

import matplotlib
import pytest
from matplotlib.figure import Figure
from test_snippets import snippets

from circuits.instruments.grids import Patching, Paths
from circuits.instruments.reading_records import HeadScores, LogitAttribution, LogitLens

PAGE = Path(__file__).parents[1] / "docs" / "instruments.md"
# The page is about mini. stories15m has six heads a layer and other tokens, so one head and one word take the
# place of others.
IN_THE_PLACE_OF = {'load("mini")': 'load("stories15m")', "L1H11": "L1H3", '"wet"': '"big"'}


def on_stories(code: str) -> str:
    for name, other in IN_THE_PLACE_OF.items():
        code = code.replace(name, other)
    return code


@pytest.mark.real
def test_every_snippet_of_the_page_runs_on_stories15m() -> None:
    matplotlib.use("Agg")
    names: dict[str, object] = {}
    printed: list[str] = []
    kinds: set[type] = set()
    for code, said in snippets(PAGE):
        output = io.StringIO()
        with contextlib.redirect_stdout(output), warnings.catch_warnings():
            warnings.simplefilter("error")
            exec(on_stories(code), names)
        lines = output.getvalue().splitlines()
        # Maps have as many rows as the model has layers, and circuits as many mappings as they find.
        assert bool(lines) == bool(said), code
        assert "nan" not in re.findall(r"\w+", output.getvalue().lower()), code
        printed += lines
        kinds |= {type(value) for value in names.values()}
    assert len(printed) > 40
    assert {Patching, Paths, LogitAttribution, LogitLens, HeadScores} <= kinds
    for value in names.values():
        if isinstance(value, Patching | Paths | HeadScores):
            assert isinstance(value.figure(), Figure)
