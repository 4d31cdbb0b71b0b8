"""Candidates for a task, before a model judges them: four seeded families, or a user's own jsonl file.

1. `[S1: John]` in a template marks the word ` John` with the role S1, leading space included. Words come from
   the little language of `mini`: plain English that any tokenizer can try.
2. indirect_object: `When Mary and John …, John gave … to` (ABBA) or `When John and Mary …, John …` (BABA),
   answer Mary, foil John. Counterfactual: the second mention S2 becomes the name IO; the answer flips.
3. greater_than: `The war lasted from the year 1732 to the year 17`. Metric: Σp(years > YY) − Σp(years ≤ YY).
   Counterfactual: YY becomes 02, the lowest start year of the little language. Where a tokenizer cuts years
   into digits, the tens digit comes next; YY then ends in 9, so that this digit alone decides what is later.
4. induction: `v w A B C D v w A` → B. Counterfactual: `v w C D A D v w A` → D. The first A has moved: a model
   that looks for its own word flips to D. D also stands where B did: a model that counts positions flips too.
5. A jsonl file has one object a line, the same as a sweep takes; prompt and counterfactual (or swap) are
   required, mistakes name their line:
   `{"prompt": …, "counterfactual": … or "swap": {old: new}, "answer": …, "foil": …, "roles": {name: where}}`
   A task is measured at all positions, so key and query are not used; fields of other names are metadata. A list
   of dicts and a pandas table are read the same way.
"""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.errors import CircuitsError, FileError, PromptError, shortened
from circuits.files import parse_json, read_text, to_record
from circuits.models.model import Model
from circuits.prompts import to_prompt
from circuits.prompts.answer import given_answers
from circuits.prompts.prompt import swapped
from circuits.tracing.asked import is_text_with_counterfactual
from circuits.zoo import language

Roles = tuple[tuple[str, int], ...]  # (name, position), for example (("S1", 4), ("END", 14))
_MARK: Final = re.compile(r"\[([^:\]]+):([^\]]*)\]")
_INDIRECT_FRAMES: Final = (
    "When{first} and{second} went to the {place},[S2:{third}] gave a {thing} to",
    "After{first} and{second} walked to the {place},[S2:{third}] handed the {thing} to",
    "While{first} and{second} were working at the {place},[S2:{third}] offered a {thing} to",
)
_CENTURIES: Final = range(11, 19)
_FIELDS: Final = (
    "an item has a prompt, a counterfactual or a swap, and if you like answer, foil, roles"
)
_UNUSED: Final = ("key", "query")  # of a line that a sweep takes, too
_WAYS: Final = (
    "give one of its names, a jsonl file, or a list of dicts with prompt and counterfactual, of "
    "(prompt, counterfactual), or a pandas table"
)


@dataclass(frozen=True, slots=True)
class Marked:
    """A text and where its named words begin and end, in characters."""

    text: str
    words: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def read(cls, template: str) -> Marked:
        """Take the marks out of a template."""
        text = ""
        words = []
        end = 0  # of the last mark
        for mark in _MARK.finditer(template):
            name, word = mark.groups()
            text += template[end : mark.start()]
            words.append((name, len(text), len(text) + len(word)))
            text += word
            end = mark.end()
        return cls(text + template[end:], tuple(words))


@dataclass(frozen=True, slots=True)
class YearsAfter:
    """The metric of greater_than: the probability of later years minus that of all others, by first token."""

    later: tuple[int, ...]
    others: tuple[int, ...]

    def __call__(self, logits: Float[torch.Tensor, "row vocab"]) -> Float[torch.Tensor, " row"]:
        probability = logits.softmax(-1)
        of_later = probability[:, list(self.later)].sum(-1)
        of_others = probability[:, list(self.others)].sum(-1)
        return of_later - of_others


@dataclass(frozen=True, slots=True)
class Candidate:
    """A pair before any model has judged it. What is None is read off the model's predictions."""

    clean: Marked
    counterfactual: Marked
    answer: str | None = None
    foil: str | None = None
    years: YearsAfter | None = None
    roles: Roles | None = None  # given as positions; None where the texts are marked


def opposites(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Every subject once."""
    template = 'The[RELATION: opposite] of "[SUBJECT:{}]" is "'
    opposite = language.FACTS["opposite"]
    for subject in draw.sample(language.SUBJECTS, len(language.SUBJECTS)):
        others = [
            word for word in language.SUBJECTS if word not in (subject, opposite[subject])
        ]
        other = draw.choice(others)
        clean = Marked.read(template.format(subject))
        counterfactual = Marked.read(template.format(other))
        yield Candidate(clean, counterfactual, answer=opposite[subject], foil=opposite[other])


def indirect_object(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Two names in both orders, in every frame."""
    while True:
        indirect, subject = draw.sample(language.NAMES, 2)
        first, second = draw.sample([f"[IO: {indirect}]", f"[S1: {subject}]"], 2)
        frame = draw.choice(_INDIRECT_FRAMES)
        place = draw.choice(language.PLACES)
        thing = draw.choice(language.OBJECTS)
        words = {"first": first, "second": second, "place": place, "thing": thing}
        clean = Marked.read(frame.format(third=f" {subject}", **words))
        counterfactual = Marked.read(frame.format(third=f" {indirect}", **words))
        yield Candidate(clean, counterfactual, answer=indirect, foil=subject)


def greater_than(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Start years as one token or, where the tokenizer cuts years into digits, by their tens digit."""
    template = "The {event} lasted from the year {century}{year} to the year {century}"
    tokens = _all_tokens(model, [f"{year:02d}" for year in range(100)])
    by_digit = tokens is None
    if by_digit:
        tokens = _all_tokens(model, [str(digit) for digit in range(10)])
    if tokens is None:
        return
    while True:
        words = {"event": draw.choice(language.EVENTS), "century": draw.choice(_CENTURIES)}
        if by_digit:
            start = draw.randrange(2, 9)  # the tens digit
            clean = template.format(year=f"[YY:{start}]9", **words)
            counterfactual = template.format(year="[YY:0]2", **words)
        else:
            start = draw.randrange(25, 90)
            clean = template.format(year=f"[YY:{start}]", **words)
            counterfactual = template.format(year="[YY:02]", **words)
        metric = YearsAfter(later=tuple(tokens[start + 1 :]), others=tuple(tokens[: start + 1]))
        yield Candidate(Marked.read(clean), Marked.read(counterfactual), years=metric)


def _all_tokens(model: Model, texts: list[str]) -> list[int] | None:
    """The token of each text, or None if one of them is not a single token."""
    tokens = []
    for text in texts:
        token = single_token(model, text)
        if token is None:
            return None
        tokens.append(token)
    return tokens


def induction(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Sequences of words that are one token each."""
    listed = [*language.SUBJECTS, *language.NAMES, *language.PLACES]
    listed += [*language.OBJECTS, *language.THINGS]
    words = []
    for word in dict.fromkeys(listed):
        if single_token(model, f" {word}") is not None:
            words.append(word)
    while len(words) >= 6:
        v, w, a, b, c, d = draw.sample(words, 6)
        clean = Marked.read(f" {v} {w}[A: {a}][B: {b}][C: {c}][D: {d}] {v} {w} {a}")
        counterfactual = Marked.read(f" {v} {w}[A: {c}][B: {d}][C: {a}][D: {d}] {v} {w} {a}")
        yield Candidate(clean, counterfactual, answer=f" {b}", foil=f" {d}")


def single_token(model: Model, text: str) -> int | None:
    """The token that this text is, if it is one token that the model knows."""
    tokens = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    is_one_known_token = len(tokens) == 1 and tokens[0] != model.tokenizer.unk_token_id
    return tokens[0] if is_one_known_token else None


FAMILIES: Final[dict[str, Callable[[Model, random.Random], Iterator[Candidate]]]] = {
    "opposites": opposites,
    "indirect_object": indirect_object,
    "greater_than": greater_than,
    "induction": induction,
}


@dataclass(frozen=True, slots=True)
class OwnItem:
    """One line of a jsonl file, read by the types of these fields."""

    prompt: str
    counterfactual: str | None = None
    swap: dict[str, str] | None = None
    answer: str | list[str] | None = None
    foil: str | list[str] | None = None
    roles: dict[str, int | str] | None = None
    metric: str | None = None
    key: int | str | None = None
    query: int | str | None = None
    id: int | str | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "counterfactual"):
            text = getattr(self, name)
            if text is not None and not text.strip():
                raise PromptError(f"{name!r} is empty; give it some text")
        for name in ("answer", "foil"):
            if len(given_answers(getattr(self, name))) > 1:
                raise PromptError(f"{name!r} has several words; an item of a task takes one")
        if self.metric not in (None, "logit_diff"):
            raise PromptError(f"a task is measured by logit_diff, not by {self.metric!r}")
        if (self.counterfactual is None) == (not self.swap):
            raise PromptError("give either a 'counterfactual' or a 'swap', one of the two")

    def to_candidate(self, model: Model) -> Candidate:
        """The candidate, with its roles as positions in the model's tokens."""
        text = self.counterfactual or swapped(model, self.prompt, self.swap or {})
        roles = []
        if self.roles:
            prompt = to_prompt(model, self.prompt)
            roles = [(name, prompt.position(position)) for name, position in self.roles.items()]
            roles.sort(key=lambda role: role[1])
        answer, foil = _only(self.answer), _only(self.foil)
        return Candidate(Marked(self.prompt), Marked(text), answer, foil, roles=tuple(roles))


def _only(words: str | list[str] | None) -> str | None:
    """The one answer that was given, if any."""
    answers = given_answers(words)
    return answers[0] if answers else None


def _read_item(line: str) -> OwnItem:
    """The item of a line of JSON."""
    stored = parse_json(line, "the item")
    if not isinstance(stored, dict):
        raise FileError("the item is not a JSON object")
    return _to_item(stored)


def _to_item(stored: Mapping[str, Any]) -> OwnItem:
    """The item with these fields; null (in a table: not a number) counts as not given, and a field of another
    name as metadata."""
    known = [field.name for field in fields(OwnItem)]
    values = {}
    for name, value in stored.items():
        is_given = value is not None and value == value
        if name in known and is_given:
            values[name] = value
        close = get_close_matches(str(name), known, n=1, cutoff=0.8)
        if name not in known and close:
            raise FileError(f"the item has no {name!r}; did you mean {close[0]}?")
    return to_record(OwnItem, values, "the item")


def to_own_task(model: Model, given: Any) -> list[Candidate]:
    """Every entry of a list, or line of a pandas table, as a candidate: dicts such as the lines of a jsonl
    file, or (prompt, counterfactual)."""
    if hasattr(given, "to_dict") and hasattr(given, "columns"):
        given = given.to_dict("records")
    if not isinstance(given, Sequence) or not given:
        raise PromptError(f"a task is not {shortened(given)}; {_WAYS}")
    candidates = []
    for number, entry in enumerate(given, 1):
        if is_text_with_counterfactual(entry):
            entry = dict(zip(("prompt", "counterfactual"), entry, strict=True))
        if not isinstance(entry, Mapping):
            raise PromptError(f"entry {number} of a task is not {shortened(entry)}; {_WAYS}")
        try:
            candidates.append(_to_item(entry).to_candidate(model))
        except CircuitsError as why:
            raise PromptError(f"entry {number}: {why}") from why
    return candidates


def read_own_task(model: Model, path: Path) -> list[Candidate]:
    """Every line of a jsonl file as a candidate."""
    candidates = []
    unused: set[str] = set()
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = _read_item(line)
            candidates.append(item.to_candidate(model))
            unused |= {name for name in _UNUSED if getattr(item, name) is not None}
        except CircuitsError as why:
            hint = f"; {_FIELDS}" if isinstance(why, FileError) else ""
            raise PromptError(f"{path.name}, line {number}: {why}{hint}") from why
    if not candidates:
        raise FileError(
            f"the task {path} has no items; write one JSON object a line: {_FIELDS}"
        )
    if unused:
        given = " and ".join(name for name in _UNUSED if name in unused)
        warnings.warn(
            f"{path.name}: {given} of its lines are for sweeps; a task is measured at all positions",
            stacklevel=2,
        )
    return candidates
