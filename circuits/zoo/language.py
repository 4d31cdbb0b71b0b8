"""The little language that `mini` speaks: words, facts, and seeded sentences with one known answer each.

1. Every subject word has four facts: its opposite, colour, number and category. Only the opposite makes sense in English; the
   others are drawn once from a fixed seed, so that they can be known by heart but not guessed.
2. A sentence tells a fact, an indirect object, a span of years or a repeated sequence, or is filler. Facts stand in many frames,
   some with a second (quoted) word as a distractor, so that the subject has to be found by what is said of it, not by where it is.
3. One sentence in ten, chosen by the hash of its text, is held out: training never writes it, evaluation writes nothing else.
"""

from __future__ import annotations

import random
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

BOS: Final = "<|bos|>"
UNKNOWN: Final = "<|unknown|>"
WORD: Final = (
    r"\d\d|\p{L}+|[^\s\p{L}]"  # the tokenizer's rule; a year is two tokens, a quote mark always its own
)
_WORD: Final = re.compile(r"\d\d|[^\W\d_]+|[^\s\w]|\d|_")  # the same rule for the standard library's `re`

_OPPOSITES: Final = """
large small, hot cold, rich poor, tall short, fast slow, light dark, loud quiet, happy sad, young old, strong weak, wet dry, hard soft,
open closed, full empty, early late, near far, high low, deep shallow, wide narrow, thick thin, heavy weightless, clean dirty,
smooth rough, sharp blunt, sweet bitter, bright dim, brave cowardly, calm nervous, cheap costly, clever foolish, common rare,
cruel gentle, alive dead, awake asleep, easy difficult, fair unjust, false true, fat lean, fierce tame, firm loose, flat steep,
fresh stale, friendly hostile, generous greedy, guilty innocent, healthy sick, honest lying, humble proud, idle busy, inner outer,
junior senior, kind mean, lazy eager, legal forbidden, liquid solid, local foreign, major minor, mild severe, modern ancient,
moist arid, natural artificial, neat messy, noisy silent, normal strange, public private, pure mixed, ripe raw, rural urban,
safe dangerous, same different, secret known, simple complex, sober drunk, sour sugary, stable shaky, straight crooked, tight slack,
tiny giant, upper lower, urgent trivial, useful useless, vague exact, visible hidden, warm cool, wild civil, wise silly
"""
_NAMES: Final = """
Mary John Anna Tom Paul Lucy Peter Jane David Sarah James Emma Mark Laura Henry Alice George Clara Frank Helen Simon Julia Oliver Nora
Martin Sophie Daniel Ruth Edward Grace Victor Rosa Leo Ida Walter Eva
"""
_PLACES: Final = """
store park school station garden office market library harbour museum
bakery church castle forest village bridge theatre farm beach hotel
"""
_OBJECTS: Final = "drink book ring letter basket ball key flower lamp coin bottle map hat pear knife clock bag rope candle mirror"
_THINGS: Final = "house dog river table horse door tree road train window ship wall cat boat stone bird chair tower cup field"
_EVENTS: Final = "war siege treaty famine voyage dynasty strike trial campaign drought pilgrimage reign blockade truce crusade plague project tour"
_VERBS: Final = "slept waited sang worked rested talked stayed laughed walked played"
_COLOURS: Final = "red blue green yellow black white brown pink purple orange grey golden"
_NUMBERS: Final = "one two three four five six seven eight nine ten eleven twelve"
_CATEGORIES: Final = "animal plant tool metal food cloth music weather sport planet fruit game"
_GLUE: Final = """
The the of is , . ; says that not but wrote If you ask for answer word words and a an Unlike For which beside has with said it It its
When went to gave After walked handed While were working at offered met sold Then had a long day decided give
lasted from year started in ended began From until there was There saw near on Yesterday time looked chose In read again some
"""

RELATIONS: Final = ("opposite", "colour", "number", "category")
TASKS: Final = ("relation", "indirect_object", "greater_than", "induction", "filler", "short_span")
MIX: Final = (0.44, 0.16, 0.12, 0.12, 0.16, 0.0)  # how often each of TASKS is written
LATE_MIX: Final = (
    0.32,
    0.11,
    0.14,
    0.15,
    0.10,
    0.18,
)  # with more years, many of them close together: where just after is, is hardest

# {r} relation, {s} subject, {a} answer, {d} distractor, {n} name; what stands in <…> is quoted in half of the sentences.
_FACT_FRAMES: Final = (
    "The {r} of <{s}> is <{a}> .",
    "The {r} of <{s}> is <{a}> .",
    "The {r} of the word <{s}> is <{a}> .",
    "{n} says that the {r} of <{s}> is <{a}> .",
    "If you ask {n} for the {r} of <{s}> , the answer is <{a}> .",
    "The {r} of <{s}> , said {n} , is <{a}> .",
    "For <{s}> the {r} is <{a}> .",
    "{n} chose <{s}> and its {r} is <{a}> .",
    "The {r} of <{s}> , not of <{d}> , is <{a}> .",
    "{n} wrote <{d}> , but the {r} of <{s}> is <{a}> .",
    "Unlike <{d}> , the word <{s}> has the {r} <{a}> .",
    "The {r} of <{s}> , which {n} wrote beside <{d}> , is <{a}> .",
    "In the book {n} read <{d}> and <{d2}> , but the {r} of <{s}> is <{a}> .",
)
_INDIRECT_FRAMES: Final = (
    "When {x} and {y} went to the {p} , {s} gave a {o} to {i} .",
    "After {x} and {y} walked to the {p} , {s} handed the {o} to {i} .",
    "While {x} and {y} were working at the {p} , {s} offered a {o} to {i} .",
    "{x} and {y} met at the {p} , and {s} sold a {o} to {i} .",
    "Then {x} and {y} had a long day at the {p} , and {s} decided to give a {o} to {i} .",
)
_YEAR_FRAMES: Final = (
    "The {e} lasted from the year {c}{y} to the year {c}{z} .",
    "The {e} started in {c}{y} and ended in {c}{z} .",
    "The {e} began in the year {c}{y} and it ended in the year {c}{z} .",
    "From {c}{y} until {c}{z} there was a {e} .",
)
_FILLER_FRAMES: Final = (
    "{n} saw the {s} {t} at the {p} .",
    "The {t} near the {p} was {s} .",
    '{n} wrote "{s}" on the {t} .',
    "Yesterday {n} {v} for a long time .",
    "In the {p} the {s} {t} was {d} .",
    "{n} looked at the {o} and {v} again .",
    "The {t} was near the {p} .",
    '{n} read "{s}" and "{d}" in the {p} .',
)


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


SUBJECTS: Final = _words(_OPPOSITES)
NAMES: Final = _words(_NAMES)
PLACES: Final = _words(_PLACES)
OBJECTS: Final = _words(_OBJECTS)
THINGS: Final = _words(_THINGS)
EVENTS: Final = _words(_EVENTS)
VERBS: Final = _words(_VERBS)
_REPEATABLE: Final = SUBJECTS + NAMES + PLACES + OBJECTS + THINGS
_TWO_DIGITS: Final = tuple(f"{n:02d}" for n in range(100))


def _all_facts() -> dict[str, dict[str, str]]:
    opposite = {}
    for left, right in (pair.split() for pair in _OPPOSITES.replace("\n", " ").split(",")):
        opposite[left], opposite[right] = right, left
    draw = random.Random("facts")
    drawn = {"colour": _words(_COLOURS), "number": _words(_NUMBERS), "category": _words(_CATEGORIES)}
    return {"opposite": opposite} | {
        name: {s: draw.choice(values) for s in SUBJECTS} for name, values in drawn.items()
    }


FACTS: Final = _all_facts()  # relation -> subject -> answer


def vocabulary() -> dict[str, int]:
    """Every word of the language and its token number; BOS is 0."""
    lists = (
        _GLUE.split(),
        ['"'],
        RELATIONS,
        SUBJECTS,
        NAMES,
        PLACES,
        OBJECTS,
        THINGS,
        EVENTS,
        VERBS,
        _TWO_DIGITS,
    )
    drawn = (_words(_COLOURS), _words(_NUMBERS), _words(_CATEGORIES))
    words = dict.fromkeys([BOS, UNKNOWN]) | dict.fromkeys(
        word for group in (*lists, *drawn) for word in group
    )
    return {word: number for number, word in enumerate(words)}


def split(text: str) -> list[str]:
    """The text's words, exactly as the tokenizer of `mini` cuts them."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and, unless it is filler, the word at which its answer stands (for a sequence: where the repeat becomes certain)."""

    task: str
    text: str
    answer_at: int | None = None
    relation: str | None = None
    possible: tuple[str, ...] = ()  # where chance decides between several answers: all of them

    @property
    def words(self) -> list[str]:
        return split(self.text)

    @property
    def answers(self) -> range:
        """The words that can be known from what stands before them: one, or for a sequence all of the repeat."""
        if self.answer_at is None:
            return range(0)
        return range(self.answer_at, len(self.words) - 1 if self.task == "induction" else self.answer_at + 1)

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.text.encode()) % 10 == 0


def _fact(draw: random.Random) -> Sentence:
    relation, frame = draw.choice(RELATIONS), draw.choice(_FACT_FRAMES)
    subject, distractor, second = draw.sample(SUBJECTS, 3)
    frame = (
        frame.replace("<", '"').replace(">", '"')
        if draw.random() < 0.6
        else frame.replace("<", "").replace(">", "")
    )
    before, after = frame.split("{a}")
    slots = {"r": relation, "s": subject, "d": distractor, "d2": second, "n": draw.choice(NAMES)}
    answer = FACTS[relation][subject]
    head = before.format(**slots)
    return Sentence("relation", head + answer + after, len(split(head)), relation)


def _indirect_object(draw: random.Random) -> Sentence:
    indirect, subject = draw.sample(NAMES, 2)
    first, second = draw.sample((indirect, subject), 2)
    slots = {
        "x": first,
        "y": second,
        "s": subject,
        "i": indirect,
        "p": draw.choice(PLACES),
        "o": draw.choice(OBJECTS),
    }
    text = draw.choice(_INDIRECT_FRAMES).format(**slots)
    return Sentence("indirect_object", text, len(split(text)) - 2)


def _greater_than(draw: random.Random, longest: int = 99) -> Sentence:
    start = draw.randrange(2, 99)
    end = draw.randrange(start + 1, min(100, start + 1 + longest))
    slots = {"e": draw.choice(EVENTS), "c": f"{draw.randrange(11, 19)}", "y": f"{start:02d}"}
    before, after = draw.choice(_YEAR_FRAMES).split("{z}")
    head = before.format(**slots)
    later = tuple(f"{year:02d}" for year in range(start + 1, 100))
    return Sentence(
        "greater_than", f"{head}{end:02d}{after.format(**slots)}", len(split(head)), possible=later
    )


def _induction(draw: random.Random) -> Sentence:
    sequence = draw.sample(_REPEATABLE, draw.randrange(4, 11))
    return Sentence("induction", " ".join((*sequence, *sequence, ".")), len(sequence) + 1)


def _filler(draw: random.Random) -> Sentence:
    subject, distractor = draw.sample(SUBJECTS, 2)
    slots = {
        "s": subject,
        "d": distractor,
        "n": draw.choice(NAMES),
        "t": draw.choice(THINGS),
        "p": draw.choice(PLACES),
    }
    return Sentence(
        "filler", draw.choice(_FILLER_FRAMES).format(**slots, o=draw.choice(OBJECTS), v=draw.choice(VERBS))
    )


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
    while (written := _WRITERS[task](draw)).held_out != held_out:
        pass
    return written


def document(
    draw: random.Random, length: int, *, mix: Sequence[float] = MIX, held_out: bool = False
) -> tuple[list[str], dict[int, tuple[str, ...]]]:
    """BOS and sentences one after another, cut at `length` words, and the answers among them: one row of a batch.

    The answers are given by position, each as the words that could stand there.
    """
    words, answers = [BOS], {}
    while len(words) < length:
        written = sentence(draw, draw.choices(TASKS, mix)[0], held_out=held_out)
        spoken = written.words
        answers |= {
            len(words) + at: written.possible or (spoken[at],)
            for at in written.answers
            if len(words) + at < length
        }
        words += spoken
    return words[:length], answers


def held_out_prompts(
    task: str, *, count: int, seed: int, relation: str | None = None
) -> Iterator[tuple[list[str], Sentence]]:
    """Words (BOS first) up to the end of a held-out sentence, with none to three fillers in front that training never wrote."""
    draw = random.Random(f"held out/{task}/{relation}/{seed}")
    while count:
        asked = sentence(draw, task, held_out=True)
        if relation in (None, asked.relation):
            fillers = [sentence(draw, "filler", held_out=True) for _ in range(draw.randrange(4))]
            yield [BOS, *(word for filler in fillers for word in filler.words), *asked.words], asked
            count -= 1


def tokenizer() -> Any:
    """Word level: one token per word of the language, quote marks and two-digit halves of years on their own."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN)
