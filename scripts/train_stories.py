"""Train `stories15m-sparse`: `python scripts/train_stories.py DIR`; what was begun in DIR goes on.

1. The dense model writes stories after many openings, most of them empty, at three temperatures.
2. An adapter learns to say the same with fewer open edges: as few as the divergence allows. A quarter of the
   steps take short pieces, since short prompts are what figures show.
3. A second training closes what the first one's healing opened again. A part of its steps takes prompts in
   which one of two names is the answer: few edges serve them, so they are the first to be lost.
`--sample` does the first step alone, so that another process can train meanwhile.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import product

from stages import Stage, parser, train_stages

from circuits.models.load import find
from circuits.sparsify import Settings
from circuits.sparsify.sampling import OwnWords, Sampling

NAMES = ("Tom", "Ben", "Tim", "Sam", "Max", "Anna", "Lily", "Mia", "Sara", "Sue", "Jack", "Lucy")
PLACES, THINGS = ("park", "beach", "zoo", "store"), ("ball", "toy", "cake", "book")
SENTENCES = (
    "{a} and {b} went to the {place}.",
    "{a} and {b} went to the {place}. {b} gave the {thing} to",
    "When {a} and {b} went to the {place}, {b} gave a {thing} to",
    "One day, {a} had a {thing}. {b} wanted the {thing} too.",
    "{a} saw a {thing} at the {place}.",
    "{a} is {b}'s friend.",
)
OTHERS = ("One day,", "Once upon a time,", "The", "A", "She", "He", "They", "Mom said,", "It was a", "In the")

# The prompts have none of the sentences that `circuits.zoo.evaluate` asks: other beginnings, other gifts.
MEETINGS = (
    "{one} and {two} went to the {place}.",
    "{one} and {two} were at the {place}.",
    "{one} and {two} sat in the {place}.",
    "{one} and {two} ran to the {place}.",
    "{one} saw {two} at the {place}.",
    "{one} found {two} in the {place}.",
    "{one} and {two} were happy.",
    "{one} and {two} were friends.",
)
FRIENDS = (
    '{a} was a nice child. {b} saw {a} at the {place}. "Hi,',
    "There was a girl named {b}. She had a brother named {a}. Every day, {b} and",
    "{b} knew a boy called {a}. {b} liked to walk with",
)
GIVING = ("gave", "handed", "passed", "brought", "took", "rolled", "sent")
GIFTS = ("ball", "cake", "hat", "apple", "cookie", "box", "car", "doll", "stick", "leaf", "shell", "cup")
MORE_PLACES = (*PLACES, "farm", "lake", "forest", "house", "room", "yard")
PROMPTS = 4096


def openings() -> tuple[str, ...]:
    """Half of them empty, the others sentences about pairs of names, and first words."""
    pairs = [(a, b) for a, b in product(NAMES, NAMES) if a != b]
    told = []
    for index, (a, b) in enumerate(pairs):
        place, thing = PLACES[index % 4], THINGS[index // 4 % 4]
        told.append(SENTENCES[index % len(SENTENCES)].format(a=a, b=b, place=place, thing=thing))
    others = OTHERS * 4
    return ("",) * (len(told) + len(others)) + tuple(told) + others


def answered_by_a_name() -> tuple[str, ...]:
    """Two names meet, in either order, and one gives something to the other: what follows is its name. In a
    quarter of the prompts, it is the name of a friend."""
    draw, told = random.Random("gifts"), []
    for index in range(PROMPTS):
        (one, two), place = draw.sample(NAMES, 2), draw.choice(MORE_PLACES)
        if index % 4 == 0:
            told.append(draw.choice(FRIENDS).format(a=one, b=two, place=place))
            continue
        meeting = draw.choice(MEETINGS).format(one=one, two=two, place=place)
        giver, article = draw.choice((one, two)), draw.choice(("a", "the"))
        told.append(f"{meeting} {giver} {draw.choice(GIVING)} {article} {draw.choice(GIFTS)} to")
    return tuple(told)


SAMPLING = Sampling(rows=16 * 512, openings=openings(), temperatures=(0.7, 0.85, 1.0))
ASKED = Sampling(rows=PROMPTS, openings=answered_by_a_name(), answers=5.0)
SETTINGS = Settings(
    steps=3400,
    healing=200,
    batch=4,
    length=128,
    learning_rate=1e-3,
    warmup=40,
    gap=0.13,
    slack=2.0,
    lora=32,
    short=0.25,
    states=20.0,
    tokens=4096,
)
CLOSING = replace(
    SETTINGS,
    steps=700,
    healing=0,
    learning_rate=4e-4,
    warmup=1,
    gap=0.1,
    slack=1.0,
    multiplier=4.0,
    short=0.2,
    prompted=0.3,
)
STAGES = (Stage("first", SETTINGS, SAMPLING), Stage("stories15m-sparse", CLOSING, SAMPLING, ASKED))


def main() -> None:
    asking = parser(__doc__)
    asking.add_argument("--sample", action="store_true", help="sample the text, and train nothing")
    asked = asking.parse_args()
    if not asked.sample:
        print(train_stages("stories15m", asked.folder, STAGES))
        return
    folder = asked.folder / STAGES[0].name / "training" / "own-words"
    own = OwnWords(find("stories15m"), SAMPLING, SETTINGS.length, SETTINGS.seed, folder, SETTINGS.tokens)
    print(f"{len(own.held_out())} rows held out; {own.vocabulary}")
    for index in range(own.chunks):
        print(f"chunk {index} of {own.chunks}: {len(own.chunk(index))} rows", flush=True)


if __name__ == "__main__":
    main()
