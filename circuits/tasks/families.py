"""The four families: seeded texts with marked words, before any model has judged them.

1. `[S1: John]` in a template marks the word ` John` with the role S1. Leading spaces stand inside the mark, as tokenizers want them.
2. Words come from the little language of `mini`; they are plain English, so that any tokenizer can try them.
3. opposites: `The opposite of "large" is "`. Counterfactual: another subject, whose opposite is the foil.
4. indirect_object: ABBA (`When Mary and John … , John gave … to`) and BABA (`When John and Mary … , John …`), answer Mary, foil John.
   Counterfactual: the second mention swapped (S2 becomes the name IO), so that the answer flips.
5. greater_than: `The war lasted from the year 1732 to the year 17`. Metric: Σp(years > YY) − Σp(years ≤ YY).
   Counterfactual: YY becomes 02, the lowest start that the little language writes. Where a tokenizer cuts years into single digits
   the tens digit is what comes next; YY then ends in 9, so that this digit alone decides whether the year is later.
6. induction: words `v w A B C D v w A` → B. Counterfactual: `v w C D A D v w A` → D. The first A has moved, so that a model which looks for
   its own word flips to D, and D stands in the place of B, so that a model which counts places flips as well.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

import torch
from jaxtyping import Float

from circuits.models.model import Model
from circuits.zoo import language

_MARK: Final = re.compile(r"\[([^:\]]+):([^\]]*)\]")
_INDIRECT_FRAMES: Final = (
    "When{first} and{second} went to the {place},[S2:{third}] gave a {thing} to",
    "After{first} and{second} walked to the {place},[S2:{third}] handed the {thing} to",
    "While{first} and{second} were working at the {place},[S2:{third}] offered a {thing} to",
)
_LOWEST: Final = 2
_CENTURIES: Final = range(11, 19)


@dataclass(frozen=True, slots=True)
class Marked:
    """A text and where its named words begin and end, in characters."""

    text: str
    words: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def read(cls, marked: str) -> Marked:
        """Take the marks out of a text."""
        text, words, seen = "", [], 0
        for found in _MARK.finditer(marked):
            text += marked[seen : found.start()]
            words.append((found[1], len(text), len(text) + len(found[2])))
            text, seen = text + found[2], found.end()
        return cls(text + marked[seen:], tuple(words))


@dataclass(frozen=True, slots=True)
class YearsAfter:
    """The metric of greater_than: the probability of all later years minus that of all others (by their first token)."""

    later: tuple[int, ...]
    others: tuple[int, ...]

    def __call__(self, logits: Float[torch.Tensor, "row vocab"]) -> Float[torch.Tensor, " row"]:
        probability = logits.softmax(-1)
        return probability[:, list(self.later)].sum(-1) - probability[:, list(self.others)].sum(-1)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair before any model has judged it. What is not given is read off the model's predictions."""

    clean: Marked
    other: Marked
    answer: str | None = None
    foil: str | None = None
    years: YearsAfter | None = None
    roles: tuple[tuple[str, int], ...] | None = None  # given as positions, not as marks


def opposites(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Every subject once."""
    opposite = language.FACTS["opposite"]
    for subject in draw.sample(language.SUBJECTS, len(language.SUBJECTS)):
        other = draw.choice([word for word in language.SUBJECTS if word not in (subject, opposite[subject])])
        texts = (
            Marked.read(f'The[RELATION: opposite] of "[SUBJECT:{word}]" is "') for word in (subject, other)
        )
        yield Candidate(*texts, answer=opposite[subject], foil=opposite[other])


def indirect_object(model: Model, draw: random.Random) -> Iterator[Candidate]:
    while True:
        indirect, subject = draw.sample(language.NAMES, 2)
        marks = [f"[IO: {indirect}]", f"[S1: {subject}]"]
        first, second = draw.sample(marks, 2)
        frame, place, thing = (
            draw.choice(_INDIRECT_FRAMES),
            draw.choice(language.PLACES),
            draw.choice(language.OBJECTS),
        )
        texts = (
            frame.format(first=first, second=second, third=f" {name}", place=place, thing=thing)
            for name in (subject, indirect)
        )
        yield Candidate(*map(Marked.read, texts), answer=indirect, foil=subject)


def greater_than(model: Model, draw: random.Random) -> Iterator[Candidate]:
    years = [_single(model, f"{year:02d}") for year in range(100)]
    digits = [_single(model, str(digit)) for digit in range(10)]
    by_digit = None in years
    known = [token for token in (digits if by_digit else years) if token is not None]
    if len(known) < len(digits if by_digit else years):
        return
    while True:
        event, century = draw.choice(language.EVENTS), draw.choice(_CENTURIES)
        start = draw.randrange(2, 9) if by_digit else draw.randrange(25, 90)  # a tens digit, or a whole year
        clean, other = (
            (f"[YY:{start}]9", f"[YY:0]{_LOWEST}") if by_digit else (f"[YY:{start}]", f"[YY:{_LOWEST:02d}]")
        )
        told, changed = (
            Marked.read(f"The {event} lasted from the year {century}{year} to the year {century}")
            for year in (clean, other)
        )
        yield Candidate(told, changed, years=YearsAfter(tuple(known[start + 1 :]), tuple(known[: start + 1])))


def induction(model: Model, draw: random.Random) -> Iterator[Candidate]:
    listed = language.SUBJECTS + language.NAMES + language.PLACES + language.OBJECTS + language.THINGS
    words = [word for word in dict.fromkeys(listed) if _single(model, f" {word}") is not None]
    while len(words) >= 6:
        v, w, a, b, c, d = draw.sample(words, 6)
        orders = (((a, "A"), (b, "B"), (c, "C"), (d, "D")), ((c, "A"), (d, "B"), (a, "C"), (d, "D")))
        texts = (
            f" {v} {w}{''.join(f'[{role}: {word}]' for word, role in order)} {v} {w} {a}" for order in orders
        )
        yield Candidate(*map(Marked.read, texts), answer=f" {b}", foil=f" {d}")


def _single(model: Model, text: str) -> int | None:
    """The token that this text is, if it is one known token."""
    tokens = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens[0] if len(tokens) == 1 and tokens[0] != model.tokenizer.unk_token_id else None


FAMILIES: Final[dict[str, Callable[[Model, random.Random], Iterator[Candidate]]]] = {
    "opposites": opposites,
    "indirect_object": indirect_object,
    "greater_than": greater_than,
    "induction": induction,
}
ABOUT: Final = {
    "opposites": "counterfactual: another subject",
    "indirect_object": "counterfactual: the second mention swapped, so that the answer flips",
    "greater_than": "counterfactual: the start year becomes 02; metric: p(later years) − p(all others)",
    "induction": "counterfactual: the first A moves and D takes the place of B, so that the answer flips",
}
