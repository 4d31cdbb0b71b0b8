"""Find words that no dictionary knows in the pages and the docstrings: `python scripts/check_spelling.py`.

1. It reads all pages of prose, the docstrings of the package and of the scripts, and every sentence that the
   package prints: errors, help, captions. It skips code: fenced blocks, backticks, links, examples.
2. A word has at least three letters and nothing else; names with digits, dots or capitals inside are skipped.
3. A word is known if it is in pyspellchecker's English dictionary or in scripts/words.txt, which holds names,
   spellings and terms that the dictionary lacks. A word there that nothing uses is named, too.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from check_links import ROOT, pages
from spellchecker import SpellChecker

OWN = Path(__file__).with_name("words.txt")
_FENCED = re.compile(r"^ *```.*?^ *```|^ *~~~.*?^ *~~~", re.DOTALL | re.MULTILINE)
_CODE = re.compile(r"`[^`]*`|\]\([^)]*\)|https?://\S+|\$\$?[^$\n]*\$|<[^>\n]*>")
_EXAMPLE = re.compile(r"^ *>>>.*?(?=^ *$|\Z)|^ {4,}.*?$", re.DOTALL | re.MULTILINE)
_WORD = re.compile(r"[A-Za-z]?[a-z]{2,}(?:['’][a-z]+)?")
_SENTENCE = re.compile(r"\w+ \w+ \w+")  # three words in a row: a sentence, not a name
_AROUND = "\"'“”‘’()[]{}*.,;:!?…"
# Scripts/write_reference.py writes these from docstrings, which are checked.
WRITTEN = ("cli.md", "api.md")


def prose(root: Path = ROOT) -> Iterator[tuple[Path, str]]:
    """Every file with the text in it that is prose."""
    for page in (*pages(root), *sorted(root.glob("circuits/zoo/*/README.md"))):
        if page.name not in WRITTEN:
            yield page, _FENCED.sub("", page.read_text(encoding="utf-8"))
    for file in (*sorted(root.glob("circuits/**/*.py")), *sorted(root.glob("scripts/*.py"))):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
                yield file, _EXAMPLE.sub("", ast.get_docstring(node) or "")
                continue
            text = node.value if isinstance(node, ast.Constant) else None
            if isinstance(text, str) and _SENTENCE.search(text):
                yield file, _EXAMPLE.sub("", text)


def words(text: str) -> Iterator[str]:
    """The words of a text as a dictionary has them: in small letters, and without an 's."""
    for token in re.split(r"[\s/—–→=+|-]+", _CODE.sub(" ", text)):
        bare = token.strip(_AROUND)
        if _WORD.fullmatch(bare):
            yield re.sub(r"['’].*", "", bare).lower()


def own_words() -> set[str]:
    return set(OWN.read_text(encoding="utf-8").split())


def first_uses(texts: Iterator[tuple[Path, str]]) -> dict[str, Path]:
    """Every word with the first file that has it."""
    first: dict[str, Path] = {}
    for file, text in texts:
        for word in words(text):
            first.setdefault(word, file)
    return first


def unknown(used: dict[str, Path]) -> dict[str, Path]:
    """The words that are in no dictionary, each with the first file that has it."""
    strange = SpellChecker().unknown([word for word in used if len(word) > 2]) - own_words()
    return {word: used[word] for word in sorted(strange)}


def main() -> None:
    used = first_uses(prose())
    wrong = [
        f"{file.relative_to(ROOT)}: {word!r} is in no dictionary; correct it, or add what is right to {OWN.name}"
        for word, file in unknown(used).items()
    ]
    wrong += [
        f"{OWN.name}: nothing uses {word!r}; remove it"
        for word in sorted(own_words() - used.keys())
    ]
    sys.exit("\n".join(wrong) if wrong else 0)


if __name__ == "__main__":
    main()
