"""The transcript of docs/agents.md: `python scripts/agent_transcript.py` asks the questions and writes it there.

1. The SDK's own client starts `circuits mcp` over stdio in an empty folder, as an agent does.
2. Each call is printed with its arguments and the lines of its answer that an agent needs next; `…` stands for
   the lines between.
3. With `--check` nothing is written: the exit code is 1 if the page is stale.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import anyio
from mcp import Client, StdioServerParameters, stdio_client

PAGE = Path(__file__).parents[1] / "docs" / "agents.md"
BEGIN, END = "<!-- transcript -->\n", "<!-- end of the transcript -->\n"
PROMPT = 'The opposite of "large" is "'
# What is said before a call, the tool, its arguments, and the first words of the lines to keep.
CALLS: tuple[tuple[str, str, dict[str, Any], tuple[str, ...]], ...] = (
    (
        "Which heads complete this prompt? First: how does the model read it?",
        "tokens",
        {"prompt": PROMPT},
        ("5", "8"),
    ),
    (
        "`large` must reach the last position. Swap it for a word with another opposite.",
        "trace",
        {"prompt": PROMPT, "key": "large", "swap": {"large": "hot"}},
        ("Verdict", "metric", "large(5) →", "Modulated", "random heads", "sufficiency"),
    ),
    (
        "The question is clear and six heads carry it. Why does the first look there?",
        "why",
        {"result": "trace", "head": "L5H1"},
        ("effect", "query (", "key (", "value (", "M0@5"),
    ),
    (
        "It looks there in both runs, and moves what the MLP of layer 0 wrote. Which circuit gives the answer?",
        "wiring",
        {"prompt": PROMPT, "swap": {"large": "hot"}},
        ("Verdict", "kept", "random", "the rest", "nodes"),
    ),
    (
        "Does it come out again?",
        "verify",
        {"result": "wiring"},
        ("wiring on", "Not checked"),
    ),
    ("And the picture.", "render", {"result": "wiring"}, ("of mini", "Picture")),
)
ALWAYS = ("Does not show", "Saved as")


def excerpt(text: str, kept: tuple[str, ...]) -> list[str]:
    """The first line and those that begin with one of these words; dots where lines were left out."""
    lines: list[str] = []
    for number, line in enumerate(text.splitlines()):
        if number == 0 or line.startswith((*kept, *ALWAYS)):
            lines.append(line.rstrip())
        elif lines[-1] != "…":
            lines.append("…")
    return lines


async def transcript(folder: Path) -> str:
    """Every call with its answer, as Markdown."""
    server = StdioServerParameters(
        command=sys.executable,
        args=["-m", "circuits", "mcp", "--folder", str(folder)],
        # With other threads the search for wires may round otherwise, and end with another circuit.
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    parts: list[str] = []
    async with Client(stdio_client(server)) as client:
        for number, (before, tool, arguments, kept) in enumerate(CALLS, 1):
            result = await client.call_tool(tool, arguments)
            texts = [each.text for each in result.content if each.type == "text"]
            if result.is_error:
                sys.exit(texts[0])
            answer = "\n".join(excerpt(texts[0], kept))
            pictures = [each for each in result.content if each.type == "image"]
            picture = f"\n[a PNG of the figure, {pictures[0].mime_type}]" if pictures else ""
            call = f"{tool} {json.dumps(arguments, ensure_ascii=False)}"
            parts.append(f"{number}. {before}\n\n```text\n→ {call}\n\n{answer}{picture}\n```\n")
    return "\n".join(parts)


def written() -> str:
    """The page with a new transcript."""
    with tempfile.TemporaryDirectory() as folder:
        text = anyio.run(transcript, Path(folder))
    page = PAGE.read_text()
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    options.add_argument("--check", action="store_true", help="write nothing, compare")
    check = options.parse_args().check
    page = written()
    if not check:
        PAGE.write_text(page)
    elif page != PAGE.read_text():
        sys.exit("docs/agents.md is stale: run python scripts/agent_transcript.py")


if __name__ == "__main__":
    main()
