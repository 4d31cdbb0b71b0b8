"""The little language that `mini` speaks: words, facts, and seeded sentences with one known answer each.

1. Every subject word has four facts: its opposite, colour, number and category. Only the opposite makes sense
   in English; the others are drawn once from a fixed seed, so that a model can only learn them by heart.
2. Facts stand in many frames (`language.toml`). Some frames have a second (quoted) word as a distractor, so
   that a model must find the subject by what is said of it, not by its position.
3. One sentence in ten, chosen by the hash of its text, is held out: training never writes it.
"""

import random
import re
import tomllib
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

BOS: Final = "<|bos|>"
UNKNOWN: Final = "<|unknown|>"
WORD: Final = r"\d\d|\p{L}+|[^\s\p{L}]"  # the tokenizer's rule: a year is two tokens, a quote mark its own
# The same rule for the standard library's `re`.
_WORD: Final = re.compile(r"\d\d|[^\W\d_]+|[^\s\w]|\d|_")

_DATA: Final = tomllib.loads(
    Path(__file__).with_name("language.toml").read_text(encoding="utf-8")
)
_FRAMES: Final[dict[str, list[str]]] = _DATA["frames"]
_DRAWN: Final = {name: tuple(text.split()) for name, text in _DATA["drawn"].items()}


def _words(name: str) -> tuple[str, ...]:
    return tuple(_DATA["words"][name].replace(",", " ").split())


SUBJECTS: Final = _words("opposites")
NAMES: Final = _words("names")
PLACES: Final = _words("places")
OBJECTS: Final = _words("objects")
THINGS: Final = _words("things")
EVENTS: Final = _words("events")
VERBS: Final = _words("verbs")
_REPEATABLE: Final = SUBJECTS + NAMES + PLACES + OBJECTS + THINGS
_TWO_DIGITS: Final = tuple(f"{n:02d}" for n in range(100))

RELATIONS: Final = ("opposite", "colour", "number", "category")
TASKS: Final = (
    "relation",
    "indirect_object",
    "greater_than",
    "induction",
    "filler",
    "short_span",
)
MIX: Final = (0.44, 0.16, 0.12, 0.12, 0.16, 0.0)  # how often each of TASKS is written
# More years, many close together: these are hardest.
LATE_MIX: Final = (0.32, 0.11, 0.14, 0.15, 0.10, 0.18)


def _all_facts() -> dict[str, dict[str, str]]:
    opposite = {}
    for pair in _DATA["words"]["opposites"].split(","):
        left, right = pair.split()
        opposite[left] = right
        opposite[right] = left
    facts = {"opposite": opposite}
    draw = random.Random("facts")
    for relation, answers in _DRAWN.items():
        facts[relation] = {subject: draw.choice(answers) for subject in SUBJECTS}
    return facts


FACTS: Final = _all_facts()  # relation -> subject -> answer


def vocabulary() -> dict[str, int]:
    """Every word of the language and its token number; BOS is 0."""
    words = [
        BOS,
        UNKNOWN,
        *_DATA["words"]["glue"].split(),
        '"',
        *RELATIONS,
        *_REPEATABLE,
        *EVENTS,
        *VERBS,
        *_TWO_DIGITS,
    ]
    for answers in _DRAWN.values():
        words += answers
    each_once = dict.fromkeys(words)
    return {word: number for number, word in enumerate(each_once)}


def split(text: str) -> list[str]:
    """The text's words, exactly as the tokenizer of `mini` cuts them."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and, unless it is filler, the index of the word that is its answer.

    In a sequence that is repeated, that is the first word that can be known from the repeat.
    """

    task: str
    text: str
    answer_index: int | None = None
    relation: str | None = None
    # All right answers, where there are several, such as later years.
    possible: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        return split(self.text)

    @property
    def answers(self) -> range:
        """The words that can be known from those before them: one, or for a sequence all of the repeat."""
        if self.answer_index is None:
            return range(0)
        if self.task == "induction":
            return range(self.answer_index, len(self.words) - 1)
        return range(self.answer_index, self.answer_index + 1)

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.text.encode()) % 10 == 0


def _fact(draw: random.Random) -> Sentence:
    relation = draw.choice(RELATIONS)
    frame = draw.choice(_FRAMES["fact"])
    subject, distractor, second = draw.sample(SUBJECTS, 3)
    quote = '"' if draw.random() < 0.6 else ""
    before, after = frame.replace("<", quote).replace(">", quote).split("{a}")
    beginning = before.format(
        r=relation, s=subject, d=distractor, d2=second, n=draw.choice(NAMES)
    )
    text = beginning + FACTS[relation][subject] + after
    return Sentence("relation", text, len(split(beginning)), relation)


def _indirect_object(draw: random.Random) -> Sentence:
    indirect, subject = draw.sample(NAMES, 2)
    first, second = draw.sample((indirect, subject), 2)
    place = draw.choice(PLACES)
    object_ = draw.choice(OBJECTS)
    frame = draw.choice(_FRAMES["indirect"])
    text = frame.format(x=first, y=second, s=subject, i=indirect, p=place, o=object_)
    return Sentence("indirect_object", text, len(split(text)) - 2)


def _greater_than(draw: random.Random, longest: int = 99) -> Sentence:
    start = draw.randrange(2, 99)
    end = draw.randrange(start + 1, min(100, start + 1 + longest))
    slots = {"e": draw.choice(EVENTS), "c": f"{draw.randrange(11, 19)}", "y": f"{start:02d}"}
    before, after = draw.choice(_FRAMES["year"]).split("{z}")
    beginning = before.format(**slots)
    text = f"{beginning}{end:02d}{after.format(**slots)}"
    return Sentence(
        "greater_than", text, len(split(beginning)), possible=_TWO_DIGITS[start + 1 :]
    )


def _induction(draw: random.Random) -> Sentence:
    sequence = draw.sample(_REPEATABLE, draw.randrange(4, 11))
    text = " ".join([*sequence, *sequence, "."])
    return Sentence("induction", text, len(sequence) + 1)


def _filler(draw: random.Random) -> Sentence:
    subject, distractor = draw.sample(SUBJECTS, 2)
    name = draw.choice(NAMES)
    thing = draw.choice(THINGS)
    place = draw.choice(PLACES)
    frame = draw.choice(_FRAMES["filler"])
    object_ = draw.choice(OBJECTS)
    verb = draw.choice(VERBS)
    text = frame.format(s=subject, d=distractor, n=name, t=thing, p=place, o=object_, v=verb)
    return Sentence("filler", text)


_WRITERS: Final[dict[str, Callable[[random.Random], Sentence]]] = {
    "relation": _fact,
    "indirect_object": _indirect_object,
    "greater_than": _greater_than,
    "induction": _induction,
    "filler": _filler,
    "short_span": lambda draw: _greater_than(draw, longest=6),
}


def sentence(draw: random.Random, task: str, *, held_out: bool = False) -> Sentence:
    """One seeded sentence of a task, from the training side or from the held-out side."""
    while True:
        written = _WRITERS[task](draw)
        if written.held_out == held_out:
            return written


def document(
    draw: random.Random, length: int, *, mix: Sequence[float] = MIX, held_out: bool = False
) -> tuple[list[str], dict[int, tuple[str, ...]]]:
    """BOS and sentences one after another, cut at `length` words, and the answers: one row of a batch.

    The answers are given by position, each as the words that could stand there.
    """
    words = [BOS]
    answers = {}
    while len(words) < length:
        (task,) = draw.choices(TASKS, mix)
        written = sentence(draw, task, held_out=held_out)
        for index in written.answers:
            position = len(words) + index
            if position < length:
                answers[position] = written.possible or (written.words[index],)
        words += written.words
    return words[:length], answers


def held_out_prompts(
    task: str, *, count: int, seed: int, relation: str | None = None
) -> Iterator[tuple[list[str], Sentence]]:
    """Words (BOS first) up to the end of a held-out sentence, with up to three held-out fillers in front."""
    draw = random.Random(f"held out/{task}/{relation}/{seed}")
    while count:
        last = sentence(draw, task, held_out=True)
        if relation not in (None, last.relation):
            continue
        words = [BOS]
        for _ in range(draw.randrange(4)):
            words += sentence(draw, "filler", held_out=True).words
        yield words + last.words, last
        count -= 1


def tokenizer() -> Any:
    """Word level: one token per word of the language, per quote mark and per two-digit half of a year."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(
        tokenizer_object=words, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN
    )
