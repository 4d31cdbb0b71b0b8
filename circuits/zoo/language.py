"""The little language that `mini` speaks: words, facts, and seeded sentences with one known answer each.

1. Every subject word has four facts: its opposite, colour, number and category. Only the opposite makes sense
   in English; the others are drawn once from a fixed seed, so that they can be known but not guessed.
2. A sentence tells a fact, an indirect object, a span of years or a repeated sequence, or is filler. Facts
   stand in many frames, some with a second (quoted) word as a distractor, so that the subject has to be found
   by what is said of it, not by where it stands.
3. One sentence in ten, chosen by the hash of its text, is held out: training never writes it, evaluation
   writes nothing else.
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
WORD: Final = r"\d\d|\p{L}+|[^\s\p{L}]"  # the tokenizer's rule: a year is two tokens, a quote mark its own
_WORD: Final = re.compile(r"\d\d|[^\W\d_]+|[^\s\w]|\d|_")  # the same rule for the standard library's `re`


def _words(text: str) -> tuple[str, ...]:
    return tuple(text.replace(",", " ").split())


_OPPOSITES: Final = """
large small, hot cold, rich poor, tall short, fast slow, light dark, loud quiet, happy sad, young old,
strong weak, wet dry, hard soft, open closed, full empty, early late, near far, high low, deep shallow,
wide narrow, thick thin, heavy weightless, clean dirty, smooth rough, sharp blunt, sweet bitter, bright dim,
brave cowardly, calm nervous, cheap costly, clever foolish, common rare, cruel gentle, alive dead,
awake asleep, easy difficult, fair unjust, false true, fat lean, fierce tame, firm loose, flat steep,
fresh stale, friendly hostile, generous greedy, guilty innocent, healthy sick, honest lying, humble proud,
idle busy, inner outer, junior senior, kind mean, lazy eager, legal forbidden, liquid solid, local foreign,
major minor, mild severe, modern ancient, moist arid, natural artificial, neat messy, noisy silent,
normal strange, public private, pure mixed, ripe raw, rural urban, safe dangerous, same different,
secret known, simple complex, sober drunk, sour sugary, stable shaky, straight crooked, tight slack,
tiny giant, upper lower, urgent trivial, useful useless, vague exact, visible hidden, warm cool, wild civil,
wise silly
"""
SUBJECTS: Final = _words(_OPPOSITES)
NAMES: Final = _words("""
Mary John Anna Tom Paul Lucy Peter Jane David Sarah James Emma Mark Laura Henry Alice George Clara Frank
Helen Simon Julia Oliver Nora Martin Sophie Daniel Ruth Edward Grace Victor Rosa Leo Ida Walter Eva
""")
PLACES: Final = _words("""
store park school station garden office market library harbour museum bakery church castle forest village
bridge theatre farm beach hotel
""")
OBJECTS: Final = _words("""
drink book ring letter basket ball key flower lamp coin bottle map hat pear knife clock bag rope candle
mirror
""")
THINGS: Final = _words("""
house dog river table horse door tree road train window ship wall cat boat stone bird chair tower cup field
""")
EVENTS: Final = _words("""
war siege treaty famine voyage dynasty strike trial campaign drought pilgrimage reign blockade truce crusade
plague project tour
""")
VERBS: Final = _words("slept waited sang worked rested talked stayed laughed walked played")
_GLUE: Final = """
The the of is , . ; says that not but wrote If you ask for answer word words and a an Unlike For which
beside has with said it It its When went to gave After walked handed While were working at offered met sold
Then had a long day decided give lasted from year started in ended began From until there was There saw near
on Yesterday time looked chose In read again some
"""
_DRAWN: Final = {
    "colour": _words("red blue green yellow black white brown pink purple orange grey golden"),
    "number": _words("one two three four five six seven eight nine ten eleven twelve"),
    "category": _words("animal plant tool metal food cloth music weather sport planet fruit game"),
}
_REPEATABLE: Final = SUBJECTS + NAMES + PLACES + OBJECTS + THINGS
_TWO_DIGITS: Final = tuple(f"{n:02d}" for n in range(100))

RELATIONS: Final = ("opposite", "colour", "number", "category")
TASKS: Final = ("relation", "indirect_object", "greater_than", "induction", "filler", "short_span")
MIX: Final = (0.44, 0.16, 0.12, 0.12, 0.16, 0.0)  # how often each of TASKS is written
LATE_MIX: Final = (0.32, 0.11, 0.14, 0.15, 0.10, 0.18)  # more years, many close together: these are hardest

# {r} relation, {s} subject, {a} answer, {d} distractor, {n} name; <…> is quoted in most of the sentences.
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


def _all_facts() -> dict[str, dict[str, str]]:
    opposite = {}
    for left, right in (pair.split() for pair in _OPPOSITES.replace("\n", " ").split(",")):
        opposite[left], opposite[right] = right, left
    draw = random.Random("facts")
    drawn = {name: {word: draw.choice(answers) for word in SUBJECTS} for name, answers in _DRAWN.items()}
    return {"opposite": opposite} | drawn


FACTS: Final = _all_facts()  # relation -> subject -> answer


def vocabulary() -> dict[str, int]:
    """Every word of the language and its token number; BOS is 0."""
    names_and_things = (*SUBJECTS, *NAMES, *PLACES, *OBJECTS, *THINGS, *EVENTS, *VERBS)
    answers = (word for answers in _DRAWN.values() for word in answers)
    words = (BOS, UNKNOWN, *_GLUE.split(), '"', *RELATIONS, *names_and_things, *_TWO_DIGITS, *answers)
    return {word: number for number, word in enumerate(dict.fromkeys(words))}


def split(text: str) -> list[str]:
    """The text's words, exactly as the tokenizer of `mini` cuts them."""
    return _WORD.findall(text)


@dataclass(frozen=True, slots=True)
class Sentence:
    """A sentence and, unless it is filler, the word at which its answer stands.

    In a sequence that is repeated, this is where the repeat becomes certain.
    """

    task: str
    text: str
    answer_index: int | None = None
    relation: str | None = None
    possible: tuple[str, ...] = ()  # where chance decides between several answers: all of them

    @property
    def words(self) -> list[str]:
        return split(self.text)

    @property
    def answers(self) -> range:
        """The words that can be known from those before them: one, or for a sequence all of the repeat."""
        if self.answer_index is None:
            return range(0)
        end = len(self.words) - 1 if self.task == "induction" else self.answer_index + 1
        return range(self.answer_index, end)

    @property
    def held_out(self) -> bool:
        return zlib.crc32(self.text.encode()) % 10 == 0


def _fact(draw: random.Random) -> Sentence:
    relation, frame = draw.choice(RELATIONS), draw.choice(_FACT_FRAMES)
    subject, distractor, second = draw.sample(SUBJECTS, 3)
    mark = '"' if draw.random() < 0.6 else ""
    before, after = frame.replace("<", mark).replace(">", mark).split("{a}")
    slots = {"r": relation, "s": subject, "d": distractor, "d2": second, "n": draw.choice(NAMES)}
    beginning = before.format(**slots)
    text = beginning + FACTS[relation][subject] + after
    return Sentence("relation", text, len(split(beginning)), relation)


def _indirect_object(draw: random.Random) -> Sentence:
    indirect, subject = draw.sample(NAMES, 2)
    first, second = draw.sample((indirect, subject), 2)
    slots = {"x": first, "y": second, "s": subject, "i": indirect}
    slots |= {"p": draw.choice(PLACES), "o": draw.choice(OBJECTS)}
    text = draw.choice(_INDIRECT_FRAMES).format(**slots)
    return Sentence("indirect_object", text, len(split(text)) - 2)


def _greater_than(draw: random.Random, longest: int = 99) -> Sentence:
    start = draw.randrange(2, 99)
    end = draw.randrange(start + 1, min(100, start + 1 + longest))
    slots = {"e": draw.choice(EVENTS), "c": f"{draw.randrange(11, 19)}", "y": f"{start:02d}"}
    before, after = draw.choice(_YEAR_FRAMES).split("{z}")
    beginning = before.format(**slots)
    text = f"{beginning}{end:02d}{after.format(**slots)}"
    return Sentence("greater_than", text, len(split(beginning)), possible=_TWO_DIGITS[start + 1 :])


def _induction(draw: random.Random) -> Sentence:
    sequence = draw.sample(_REPEATABLE, draw.randrange(4, 11))
    return Sentence("induction", " ".join((*sequence, *sequence, ".")), len(sequence) + 1)


def _filler(draw: random.Random) -> Sentence:
    subject, distractor = draw.sample(SUBJECTS, 2)
    name, thing, place = draw.choice(NAMES), draw.choice(THINGS), draw.choice(PLACES)
    frame, object_, verb = draw.choice(_FILLER_FRAMES), draw.choice(OBJECTS), draw.choice(VERBS)
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
    while (written := _WRITERS[task](draw)).held_out != held_out:
        pass
    return written


def document(
    draw: random.Random, length: int, *, mix: Sequence[float] = MIX, held_out: bool = False
) -> tuple[list[str], dict[int, tuple[str, ...]]]:
    """BOS and sentences one after another, cut at `length` words, and the answers: one row of a batch.

    The answers are given by position, each as the words that could stand there.
    """
    words, answers = [BOS], {}
    while len(words) < length:
        written = sentence(draw, draw.choices(TASKS, mix)[0], held_out=held_out)
        new = written.words
        answers |= {len(words) + index: written.possible or (new[index],) for index in written.answers}
        words += new
    kept = {position: possible for position, possible in answers.items() if position < length}
    return words[:length], kept


def held_out_prompts(
    task: str, *, count: int, seed: int, relation: str | None = None
) -> Iterator[tuple[list[str], Sentence]]:
    """Words (BOS first) up to the end of a held-out sentence, with up to three held-out fillers in front."""
    draw = random.Random(f"held out/{task}/{relation}/{seed}")
    while count:
        last = sentence(draw, task, held_out=True)
        if relation in (None, last.relation):
            fillers = [sentence(draw, "filler", held_out=True) for _ in range(draw.randrange(4))]
            yield [BOS, *(word for filler in fillers for word in filler.words), *last.words], last
            count -= 1


def tokenizer() -> Any:
    """Word level: one token per word of the language, per quote mark and per two-digit half of a year."""
    from tokenizers import Regex, Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel(vocabulary(), unk_token=UNKNOWN))
    words.pre_tokenizer = pre_tokenizers.Split(Regex(WORD), behavior="removed", invert=True)
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token=BOS, eos_token=BOS, unk_token=UNKNOWN)
