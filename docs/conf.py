"""How the docs are built: `make docs` writes them to build/docs. Warnings are errors.

1. Pages whose text is kept elsewhere in the repository are read from there.
2. The reference gets a sentence for each parameter from scripts/parameters.py, and for each field of a record
   from the comment beside it.
3. Types and defaults in the reference stand by their names, without the modules they come from.
4. The gallery runs the scripts of docs/gallery and shows what they draw.
"""

import re
import sys
from pathlib import Path

from docutils import nodes
from sphinx import addnodes

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "scripts"), str(ROOT)]

import parameters  # noqa: E402

import circuits  # noqa: E402

project = "circuits"
author = "the authors of circuits"
copyright = "2026, the authors of circuits"
extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.doctest",
    "sphinx_gallery.gen_gallery",
]
html_theme = "furo"
html_title = "circuits"
html_static_path = ["static"]
html_css_files = ["docs.css"]
html_search_scorer = str(Path(__file__).with_name("static") / "scorer.js")
default_role = "code"  # what docstrings write in single backticks
# The page that the first page shows in a frame.
html_extra_path = ["../case_studies/opposite_of_large/page.html"]
exclude_patterns = ["architecture.dot", "gallery", "drawn/*.ipynb", "**sg_execution_times.rst"]
myst_heading_anchors = 3
nb_execution_mode = (
    "off"  # the outputs kept in the notebooks are those of a run: tests/test_notebooks.py
)
nb_merge_streams = True
autodoc_member_order = "bysource"
autodoc_typehints = "description"
# The type of a parameter stands beside its sentence; that of what comes back has a line of its own.
autodoc_typehints_description_target = "documented_params"
autodoc_inherit_docstrings = False
# How files are read and checked: for who writes a new kind of result, in the source.
autodoc_default_options = {
    "exclude-members": "check, check_pairs, check_values, file_name, from_stored, header"
}
suppress_warnings = ["mystnb.unknown_mime_type"]
sphinx_gallery_conf = {
    "examples_dirs": "gallery",
    "gallery_dirs": "drawn",
    "filename_pattern": r"\.py$",
    "image_scrapers": ("gallery_figures",),
    "within_subsection_order": "FileNameSortKey",
    "download_all_examples": False,
    "show_memory": False,
    "show_signature": False,
    "min_reported_time": 10**9,
    "write_computation_times": False,
    "abort_on_example_error": True,
}

# Pages whose text is kept elsewhere in the repository, and is read there too.
ELSEWHERE = {
    "../benchmarks/README.md": "benchmarks.md",
    "../case_studies/README.md": "case_studies.md",
}
# Words that a reader types, and the page that is about them: scripts/check_search.py looks for them.
ABOUT = {
    "agents": ("agent", "MCP"),
    "questions": ("counterfactual", "swap"),
    "sweeps": ("sweep", "batch"),
    "theory": ("faithfulness", "noising", "denoising", "exact"),
    "tour": ("install",),
    "trust": ("verdict", "controls"),
    "instruments": ("logit lens", "patching map"),
    "upgrade": ("upgrade", "renamed"),
}
HOME = re.compile(r"~(?:\w+\.)+")  # where a class is defined, before its name
FUNCTION = re.compile(r"<function (\w+)>")
TYPES = (nodes.emphasis, addnodes.literal_emphasis, addnodes.desc_parameter)
CARD = re.compile(r"\]\((?:\.\./)+circuits/zoo/([\w-]+)/README\.md\)")


def to_pages(app: object, name: str, source: list[str]) -> None:
    """Links that leave the docs lead to the page that holds the same text; words that a page is about are
    put into the index, which the search reads."""
    up = "../" * name.count("/")
    text = CARD.sub(rf"]({up}cards/\1.md)", source[0])
    for path, page in ELSEWHERE.items():
        text = text.replace(f"]({path})", f"]({up}{page})")
    words = ABOUT.get(name)
    if words:
        entries = "\n".join(f"! single: {word}" for word in words)
        text += f"\n```{{eval-rst}}\n.. index::\n   {entries.replace(chr(10), chr(10) + '   ')}\n```\n"
    source[0] = text


def add_sentences(
    app: object, what: str, name: str, offered: object, options: object, lines: list[str]
) -> None:
    """Add a sentence for every parameter of a function, and for every field of a record."""
    public = name.removeprefix("circuits.").removeprefix("show.")
    if what in ("function", "method"):
        for parameter in parameters.parameters_of(offered):
            sentence = parameters.sentence_for(public, parameter)
            if sentence is not None:
                lines += ["", f":param {parameter}: {to_rst(sentence)}"]
    if what == "class" and isinstance(offered, type):
        comments = parameters.field_comments(offered)
        if comments:
            lines += ["", "Fields with a remark:", ""]
            lines += [f"- ``{field}``: {to_rst(said)}" for field, said in comments.items()]


def short_signature(
    app: object,
    what: str,
    name: str,
    offered: object,
    options: object,
    signature: str | None,
    returned: str | None,
) -> tuple[str | None, str | None]:
    """A signature with the names of classes and of functions alone."""
    return (signature and short_types(signature)), (returned and short_types(returned))


def short_types(text: str) -> str:
    """`~typing.Any` as `Any`, and a function that is a default by its name."""
    return FUNCTION.sub(r"\1", HOME.sub("", text))


def shorten_types(app: object, page: nodes.document) -> None:
    """The same where Sphinx leaves the modules: in what follows `Literal[…]`, and in overloaded signatures."""
    for text in list(page.findall(nodes.Text)):
        if isinstance(text.parent, TYPES):
            text.parent.replace(text, nodes.Text(short_types(text)))


def to_rst(sentence: str) -> str:
    """Code in a sentence as reStructuredText marks it; a public name leads to its place in the reference."""
    return re.sub(r"`([^`]+)`", lambda found: linked(found[1]), sentence)


def linked(code: str) -> str:
    return f":py:obj:`{code} <circuits.{code}>`" if code in circuits.__all__ else f"``{code}``"


def setup(app: object) -> None:
    app.connect("source-read", to_pages)  # type: ignore[attr-defined]
    app.connect("autodoc-process-docstring", add_sentences)  # type: ignore[attr-defined]
    app.connect("autodoc-process-signature", short_signature)  # type: ignore[attr-defined]
    app.connect("doctree-read", shorten_types)  # type: ignore[attr-defined]
