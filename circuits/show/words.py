"""Words that pictures, pages and tables share: tokens spelled out, and short phrases about a result."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from circuits.components import ROUNDING
from circuits.errors import escaped

if TYPE_CHECKING:
    from circuits.instruments.grids import OfPairs
    from circuits.prompts import Noise, Pair, Prompt
    from circuits.tracing.neuron_record import Neurons
    from circuits.tracing.records import Circuit
    from circuits.tracing.why_record import Why
    from circuits.wires.record import Wiring

_NAMES_IN_A_ROW: Final = 4  # at most
LONGEST_WORD: Final = 32  # characters of a token that is shown whole


def spell(word: str, *, longest: int = LONGEST_WORD) -> str:
    """A token's text as a reader can see it.

    Spaces around it are dropped, characters without a shape become escapes (`\\n`), and a text of more than
    `longest` characters is cut. A token of spaces alone becomes `␣`, so the result is never empty.
    """
    bare = word.strip(" ")
    if not bare:
        return "␣" * max(1, min(len(word), 4))
    shown = escaped(bare)
    return shown if len(shown) <= longest else f"{shown[: longest - 1]}…"


def task_words(name: str) -> str:
    """The name of a task as it is written in a sentence: `indirect-object`."""
    return spell(name).replace("_", "-")


def identity_words(identity: float) -> str:
    """How much clean patched into clean changes, without the digits that are rounding."""
    return f"below {ROUNDING:.0e}" if identity < ROUNDING else f"{identity:.1e}"


def metric_words(
    result: Circuit | Why | Wiring | Neurons | OfPairs | Pair, *, longest: int = LONGEST_WORD
) -> str:
    """The metric with its tokens spelled."""
    metric = result.metric
    if metric.kind == "custom":
        return "custom metric"
    answer = spell(metric.answer_text, longest=longest)
    foil = None if metric.foil_text is None else spell(metric.foil_text, longest=longest)
    return str(replace(metric, answer_text=answer, foil_text=foil))


def counterfactual_words(
    result: Circuit | Why | Wiring | Neurons | OfPairs,
    *,
    longest: int = LONGEST_WORD,
    most: int = 8,
    roles: Mapping[int, str] | None = None,
) -> str:
    """The tokens that the counterfactual changes: `large(5) → hot`; noise describes itself.

    Positions in `roles` are named: `Ben(S2) → Tom`.
    """
    return _changed_words(
        result.prompt, result.counterfactual, longest=longest, most=most, roles=roles
    )


def _changed_words(
    prompt: Prompt,
    counterfactual: Prompt | Noise,
    *,
    longest: int,
    most: int,
    roles: Mapping[int, str] | None = None,
) -> str:
    words = getattr(counterfactual, "words", None)
    if words is None:
        return str(counterfactual)
    names = roles or {}
    changes = []
    for position, (clean, other) in enumerate(zip(prompt.words, words, strict=True)):
        if clean != other:
            old, new = spell(clean, longest=longest), spell(other, longest=longest)
            changes.append(f"{old}({names.get(position, position)}) → {new}")
    return listed(changes, most=most)


def question_words(
    result: Circuit | Why | Wiring | Neurons | OfPairs,
    name: str,
    *,
    roles: Mapping[int, str] | None = None,
    more: str = "",
) -> str:
    """What was asked: counterfactual, metric and model: `large(5) → hot; logit(small) − logit(cold); mini`."""
    changed = counterfactual_words(result, longest=12, most=2, roles=roles)
    family = getattr(result, "family", None)
    if family is not None:
        more += f", mean of {len(family.counted)} pairs"
    return f"{changed}{more}; {metric_words(result, longest=12)}; {spell(name, longest=40)}"


def pair_words(pair: Pair, *, others: int = 0, kind: str = "pair") -> str:
    """The question of one pair: `large(5) → hot; logit(small) − logit(cold)`. With others of its kind:
    `large(5) → hot and 5 pairs like it; …`."""
    changed = _changed_words(pair.clean, pair.counterfactual, longest=12, most=2)
    if others:
        changed += f" and {plural(others, kind)} like it"
    return f"{changed}; {metric_words(pair, longest=12)}"


def verdict_words(result: Any) -> str:
    """`a weak question: …` with its reasons; empty where the question is clear or was not judged."""
    question = getattr(result, "question", None)
    if question is None or question.verdict == "clear":
        return ""
    kind = "a weak question" if question.verdict == "weak" else "no question"
    reasons = [spell(reason, longest=400) for reason in question.reasons]
    return f"{kind}: {'; '.join(reasons)}"


def verdict_lines(result: Any) -> list[str]:
    """The line that a print-out begins with, also where the question is clear, and the notes of the result."""
    question = getattr(result, "question", None)
    verdict = "not judged"  # a file of an earlier version
    reasons: tuple[str, ...] = ()
    if question is not None:
        verdict = verdict_words(result) or "clear"
        reasons = question.reasons
    lines = [f"Verdict: {verdict}"]
    for note in getattr(result, "notes", ()):
        if note not in reasons:  # the verdict has named its reasons
            lines.append(note_line(note))
    return lines


def verdict_in_short(result: Any) -> str:
    """`, a weak question` at the end of a title; empty where the question is clear or was not judged."""
    kind, _, _ = verdict_words(result).partition(":")
    return f", {kind}" if kind else ""


def note_line(note: str) -> str:
    return f"Note: {spell(note, longest=400)}"


def verdict_values(result: Any) -> dict[str, Any]:
    """The verdict for the files of other tools: what it is, why, and why a modulation is withheld."""
    question = getattr(result, "question", None)
    if question is None:
        return {"verdict": "not judged", "reasons": [], "withheld": []}
    reasons = [escaped(reason) for reason in question.reasons]
    withheld = [escaped(reason) for reason in question.withheld]
    front = getattr(result, "front", None)
    if front is not None:  # a circuit withholds for reasons of its mapping, too
        withheld = [escaped(doubt) for doubt in front.doubts]
    return {"verdict": question.verdict, "reasons": reasons, "withheld": withheld}


def plural(count: int, name: str) -> str:
    """`1 head`, `2 heads`."""
    return f"{count} {name}" if count == 1 else f"{count} {name}s"


def heads_carry(count: int) -> str:
    """`1 head carries`, `2 heads carry`."""
    return f"{plural(count, 'head')} {'carries' if count == 1 else 'carry'}"


def listed(texts: Sequence[str], *, most: int) -> str:
    """`a, b and 3 more`."""
    first = ", ".join(texts[:most])
    return f"{first} and {len(texts) - most} more" if len(texts) > most else first


def name_rows(names: Sequence[str], *, most: int) -> list[str]:
    """The first `most` names in rows of about equal length, and a last row that counts the others."""
    shown = names[:most]
    if not shown:
        return []
    rows = -(-len(shown) // _NAMES_IN_A_ROW)
    width = -(-len(shown) // rows)
    lines = [" ".join(shown[first : first + width]) for first in range(0, len(shown), width)]
    if len(names) > most:
        lines.append(f"and {len(names) - most} more")
    return lines
