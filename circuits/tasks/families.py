"""Candidates for a task, not yet judged by any model: four seeded families, or a user's own jsonl file.

1. `[S1: John]` in a template marks the word ` John` with the role S1, leading space included. Words come from
   the little language of `mini`: plain English that any tokenizer can try.
2. indirect_object: `When Mary and John …, John gave … to` (ABBA) or `When John and Mary …, John …` (BABA),
   answer Mary, foil John. Counterfactual: the second mention S2 becomes the name IO; the answer flips.
3. greater_than: `The war lasted from the year 1732 to the year 17`. Metric: Σp(years > YY) − Σp(years ≤ YY).
   Counterfactual: YY becomes 02, the lowest start year of the little language. Where a tokenizer cuts years
   into digits, the tens digit comes next; YY then ends in 9, so that this digit alone decides what is later.
4. induction: `v w A B C D v w A` → B. Counterfactual: `v w C D A D v w A` → D. The first A has moved: a model
   that looks for its own word flips to D. D also stands where B did: a model that counts positions flips too.
5. A jsonl file has one object a line, prompt and counterfactual (or swap) required; mistakes name their line:
   `{"prompt": …, "counterfactual": … or "swap": {old: new}, "answer": …, "foil": …, "roles": {name: where}}`
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from jaxtyping import Float

from circuits.errors import CircuitsError, FileError, PromptError
from circuits.files import parse_json, read_text, to_record
from circuits.models.model import Model
from circuits.prompts import swap_words, to_prompt
from circuits.zoo import language

Roles = tuple[tuple[str, int], ...]  # (name, position), for example (("S1", 4), ("END", 14))
_MARK: Final = re.compile(r"\[([^:\]]+):([^\]]*)\]")
_INDIRECT_FRAMES: Final = (
    "When{first} and{second} went to the {place},[S2:{third}] gave a {thing} to",
    "After{first} and{second} walked to the {place},[S2:{third}] handed the {thing} to",
    "While{first} and{second} were working at the {place},[S2:{third}] offered a {thing} to",
)
_CENTURIES: Final = range(11, 19)
_FIELDS: Final = "an item has a prompt, a counterfactual or a swap, and if you like answer, foil, roles"


@dataclass(frozen=True, slots=True)
class Marked:
    """A text and where its named words begin and end, in characters."""

    text: str
    words: tuple[tuple[str, int, int], ...] = ()

    @classmethod
    def read(cls, template: str) -> Marked:
        """Take the marks out of a template."""
        text, words, end = "", [], 0
        for mark in _MARK.finditer(template):
            text += template[end : mark.start()]
            words.append((mark[1], len(text), len(text) + len(mark[2])))
            text, end = text + mark[2], mark.end()
        return cls(text + template[end:], tuple(words))


@dataclass(frozen=True, slots=True)
class YearsAfter:
    """The metric of greater_than: the probability of later years minus that of all others, by first token."""

    later: tuple[int, ...]
    others: tuple[int, ...]

    def __call__(self, logits: Float[torch.Tensor, "row vocab"]) -> Float[torch.Tensor, " row"]:
        probability = logits.softmax(-1)
        return probability[:, list(self.later)].sum(-1) - probability[:, list(self.others)].sum(-1)


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
    opposite = language.FACTS["opposite"]
    for subject in draw.sample(language.SUBJECTS, len(language.SUBJECTS)):
        other = draw.choice([word for word in language.SUBJECTS if word not in (subject, opposite[subject])])
        texts = (f'The[RELATION: opposite] of "[SUBJECT:{word}]" is "' for word in (subject, other))
        yield Candidate(*map(Marked.read, texts), answer=opposite[subject], foil=opposite[other])


def indirect_object(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Two names in both orders, in every frame."""
    while True:
        indirect, subject = draw.sample(language.NAMES, 2)
        first, second = draw.sample([f"[IO: {indirect}]", f"[S1: {subject}]"], 2)
        frame, place = draw.choice(_INDIRECT_FRAMES), draw.choice(language.PLACES)
        words = {"first": first, "second": second, "place": place, "thing": draw.choice(language.OBJECTS)}
        texts = (frame.format(third=f" {name}", **words) for name in (subject, indirect))
        yield Candidate(*map(Marked.read, texts), answer=indirect, foil=subject)


def greater_than(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Start years as one token or, where the tokenizer cuts years into digits, by their tens digit."""
    years = [single_token(model, f"{year:02d}") for year in range(100)]
    by_digit = None in years
    numbers = [single_token(model, str(digit)) for digit in range(10)] if by_digit else years
    tokens = [token for token in numbers if token is not None]
    if len(tokens) < len(numbers):
        return
    while True:
        event, century = draw.choice(language.EVENTS), draw.choice(_CENTURIES)
        start = draw.randrange(2, 9) if by_digit else draw.randrange(25, 90)  # a tens digit, or a whole year
        starts = (f"[YY:{start}]9", "[YY:0]2") if by_digit else (f"[YY:{start}]", "[YY:02]")
        texts = (f"The {event} lasted from the year {century}{year} to the year {century}" for year in starts)
        clean, counterfactual = map(Marked.read, texts)
        metric = YearsAfter(tuple(tokens[start + 1 :]), tuple(tokens[: start + 1]))
        yield Candidate(clean, counterfactual, years=metric)


def induction(model: Model, draw: random.Random) -> Iterator[Candidate]:
    """Sequences of words that are one token each."""
    listed = language.SUBJECTS + language.NAMES + language.PLACES + language.OBJECTS + language.THINGS
    words = [word for word in dict.fromkeys(listed) if single_token(model, f" {word}") is not None]
    while len(words) >= 6:
        v, w, a, b, c, d = draw.sample(words, 6)
        middles = (f"[A: {a}][B: {b}][C: {c}][D: {d}]", f"[A: {c}][B: {d}][C: {a}][D: {d}]")
        texts = (f" {v} {w}{middle} {v} {w} {a}" for middle in middles)
        yield Candidate(*map(Marked.read, texts), answer=f" {b}", foil=f" {d}")


def single_token(model: Model, text: str) -> int | None:
    """The token that this text is, if it is one token that the model knows."""
    tokens = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    return tokens[0] if len(tokens) == 1 and tokens[0] != model.tokenizer.unk_token_id else None


Family = Callable[[Model, random.Random], Iterator[Candidate]]
_FAMILIES: Final = (opposites, indirect_object, greater_than, induction)
FAMILIES: Final[dict[str, Family]] = {family.__name__: family for family in _FAMILIES}


@dataclass(frozen=True, slots=True)
class OwnItem:
    """One line of a jsonl file, read by the types of these fields."""

    prompt: str
    counterfactual: str | None = None
    swap: dict[str, str] | None = None
    answer: str | None = None
    foil: str | None = None
    roles: dict[str, int | str] | None = None

    def __post_init__(self) -> None:
        for name in ("prompt", "counterfactual", "answer", "foil"):
            text = getattr(self, name)
            if text is not None and not text.strip():
                raise PromptError(f"{name!r} is empty; give it some text")
        if (self.counterfactual is None) == (not self.swap):
            raise PromptError("give either a 'counterfactual' or a 'swap', one of the two")

    def to_candidate(self, model: Model) -> Candidate:
        """The candidate, with its roles as positions in the model's tokens."""
        text = self.counterfactual or swap_words(self.prompt, self.swap or {})
        roles: Roles = ()
        if self.roles:
            prompt = to_prompt(model, self.prompt)
            positions = ((name, prompt.position(position)) for name, position in self.roles.items())
            roles = tuple(sorted(positions, key=lambda role: role[1]))
        return Candidate(Marked(self.prompt), Marked(text), self.answer, self.foil, roles=roles)


def read_own_task(model: Model, path: Path) -> list[Candidate]:
    """Every line of a jsonl file as a candidate."""
    candidates = []
    for number, line in enumerate(read_text(path).split("\n"), 1):
        if not line.strip():
            continue
        try:
            item = to_record(OwnItem, parse_json(line, "the item"), "the item")
            candidates.append(item.to_candidate(model))
        except CircuitsError as why:
            hint = f"; {_FIELDS}" if isinstance(why, FileError) else ""
            raise PromptError(f"{path.name}, line {number}: {why}{hint}") from why
    if not candidates:
        raise FileError(f"the task {path} has no items; write one JSON object a line: {_FIELDS}")
    return candidates
