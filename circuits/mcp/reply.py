"""The form of every answer: verdict, controls, what it does not show, where it was saved, and the main numbers.

Every tool answers in this form, so that an agent finds the verdict where it found the last one. No model
library is imported here: the server lists its tools, with the schema of this form, before any is called.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from pydantic import BaseModel, Field

LIMITS: Final = {  # what each tool does not show
    "load": "That the hooks work says nothing yet about what the model computes.",
    "tokens": "Tokens are how the model reads the text; the model was not run.",
    "trace": (
        "One prompt against one counterfactual: other prompts may use other heads, and greedy "
        "selection finds a small set of heads, not provably the smallest."
    ),
    "circuit": (
        "One prompt against one counterfactual; what MLPs compute between the mappings is not "
        "taken apart."
    ),
    "why": (
        "Effects of single writers need not add up, and the QK attribution is a reading with the "
        "norms held fixed, not an effect."
    ),
    "wiring": (
        "Another circuit may keep as much; what this one keeps on prompts of another kind was not "
        "measured."
    ),
    "patch": (
        "Each place is patched alone: places that stand in for each other look unimportant, and an "
        "effect does not say by which path it reaches the output."
    ),
    "rank": (
        "The order is that of single effects on the pairs of this task; another counterfactual or "
        "task may give another order."
    ),
    "verify": (
        "That the numbers come out again does not make the question a good one: the verdict judges "
        "that."
    ),
    "render": "The picture shows what was measured; it adds no evidence.",
}


class ToolAnswer(BaseModel):
    """The structured answer of every tool."""

    verdict: str | None = Field(
        description="Of the question: clear, weak, none or not judged; null where no question was asked."
    )
    reasons: list[str] = Field(description="Why the question is not clear.")
    withheld: list[str] = Field(description="Why a modulation is withheld.")
    controls: list[str] = Field(description="What says how far to trust the numbers.")
    does_not_show: str = Field(description="What must not be concluded from it.")
    result: str | None = Field(
        description="The name under which it was saved, for why, verify and render."
    )
    numbers: dict[str, Any] = Field(description="The main numbers.")


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, its text for a reader, and perhaps a picture."""

    answer: ToolAnswer
    text: str
    picture: bytes | None = None  # a PNG


def fact(tool: str, numbers: dict[str, Any], controls: list[str], text: str) -> Reply:
    """The reply of a tool that asks no question of a model."""
    answer = ToolAnswer(
        verdict=None,
        reasons=[],
        withheld=[],
        controls=controls,
        does_not_show=LIMITS[tool],
        result=None,
        numbers=numbers,
    )
    return Reply(answer, to_text("\n".join([text, *controls]), answer))


def to_text(measured: str, answer: ToolAnswer) -> str:
    """What was measured, what it does not show, and where it was saved."""
    lines = [measured.rstrip(), "", f"Does not show: {answer.does_not_show}"]
    if answer.result is not None:
        lines.append(f"Saved as: {answer.result}")
    return "\n".join(lines)
