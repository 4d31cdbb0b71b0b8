"""How the docs are built: `make docs` writes them to build/docs. Warnings are errors."""

import re

project = "circuits"
author = "the authors of circuits"
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.doctest"]
html_theme = "furo"
html_title = "circuits"
exclude_patterns = ["architecture.dot"]
myst_heading_anchors = 3
nb_execution_mode = (
    "off"  # the outputs kept in the notebooks are those of a run: tests/test_notebooks.py
)
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_inherit_docstrings = False
suppress_warnings = ["mystnb.unknown_mime_type"]

# Pages whose text is kept elsewhere in the repository, and is read there too.
ELSEWHERE = {
    "../benchmarks/README.md": "benchmarks.md",
    "../case_studies/README.md": "case_studies.md",
}
CARD = re.compile(r"\]\((?:\.\./)+circuits/zoo/([\w-]+)/README\.md\)")


def to_pages(app: object, name: str, source: list[str]) -> None:
    """Links that leave the docs lead to the page that holds the same text."""
    up = "../" * name.count("/")
    text = CARD.sub(rf"]({up}cards/\1.md)", source[0])
    for path, page in ELSEWHERE.items():
        text = text.replace(f"]({path})", f"]({up}{page})")
    source[0] = text


def setup(app: object) -> None:
    app.connect("source-read", to_pages)  # type: ignore[attr-defined]
