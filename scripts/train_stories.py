"""Train `stories15m-sparse`: `python scripts/train_stories.py DIR`, or resume the training begun in DIR.

1. The dense model writes stories after many openings, half of them empty, at three temperatures.
2. An adapter learns to predict as the dense model does with as few open edges as the divergence allows. A
   quarter of the steps takes short pieces, because figures show short prompts.
3. A second training closes the edges that the healing of the first one opened again. A part of its steps
   takes prompts that one of two names answers: few edges serve them, so training loses them first.
`--sample` does the first step alone, so that another process can train meanwhile.
"""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import permutations
from pathlib import Path

from stages import Stage, parser, train_stages

from circuits.models.load import find
from circuits.sparsify import Settings
from circuits.sparsify.sampling import OwnWords, Sampling

NAMES = (
    "Tom",
    "Ben",
    "Tim",
    "Sam",
    "Max",
    "Anna",
    "Lily",
    "Mia",
    "Sara",
    "Sue",
    "Jack",
    "Lucy",
)
PLACES = ("park", "beach", "zoo", "store")
THINGS = ("ball", "toy", "cake", "book")
SENTENCES = (
    "{a} and {b} went to the {place}.",
    "{a} and {b} went to the {place}. {b} gave the {thing} to",
    "When {a} and {b} went to the {place}, {b} gave a {thing} to",
    "One day, {a} had a {thing}. {b} wanted the {thing} too.",
    "{a} saw a {thing} at the {place}.",
    "{a} is {b}'s friend.",
)
OTHERS = (
    "One day,",
    "Once upon a time,",
    "The",
    "A",
    "She",
    "He",
    "They",
    "Mom said,",
    "It was a",
    "In the",
)

# None of these sentences is one that `circuits.zoo.evaluate` asks: other beginnings, other gifts.
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
GIFTS = (
    "ball",
    "cake",
    "hat",
    "apple",
    "cookie",
    "box",
    "car",
    "doll",
    "stick",
    "leaf",
    "shell",
    "cup",
)
MORE_PLACES = (*PLACES, "farm", "lake", "forest", "house", "room", "yard")
PROMPTS = 4096


def openings() -> tuple[str, ...]:
    """What the sampled stories begin with: half of them nothing, the others a sentence or first words."""
    sentences = []
    for index, (a, b) in enumerate(permutations(NAMES, 2)):
        sentence = SENTENCES[index % len(SENTENCES)]
        place, thing = PLACES[index % 4], THINGS[index // 4 % 4]
        sentences.append(sentence.format(a=a, b=b, place=place, thing=thing))
    beginnings = (*sentences, *OTHERS * 4)
    return ("",) * len(beginnings) + beginnings


def answered_by_a_name() -> tuple[str, ...]:
    """Two names meet, in either order, and one gives something to the other: what follows is its name. In a
    quarter of the prompts, it is the name of a friend."""
    draw = random.Random("gifts")
    prompts = []
    for index in range(PROMPTS):
        one, two = draw.sample(NAMES, 2)
        place = draw.choice(MORE_PLACES)
        if index % 4 == 0:
            prompts.append(draw.choice(FRIENDS).format(a=one, b=two, place=place))
            continue
        meeting = draw.choice(MEETINGS).format(one=one, two=two, place=place)
        giver, article = draw.choice((one, two)), draw.choice(("a", "the"))
        gives, gift = draw.choice(GIVING), draw.choice(GIFTS)
        prompts.append(f"{meeting} {giver} {gives} {article} {gift} to")
    return tuple(prompts)


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
STAGES = (
    Stage("first", SETTINGS, SAMPLING),
    Stage("stories15m-sparse", CLOSING, SAMPLING, ASKED),
)


def main() -> None:
    arguments = parser(__doc__)
    arguments.add_argument(
        "--sample", action="store_true", help="sample the text, and train nothing"
    )
    given = arguments.parse_args()
    if given.sample:
        sample(given.folder)
    else:
        print(train_stages("stories15m", given.folder, STAGES))


def sample(folder: Path) -> None:
    """Write the text of the first stage to the files in which its training looks for it."""
    files = folder / STAGES[0].name / "training" / "own-words"
    own = OwnWords(
        find("stories15m"), SAMPLING, SETTINGS.length, SETTINGS.seed, files, SETTINGS.tokens
    )
    print(f"{len(own.held_out())} rows held out; {own.vocabulary}")
    for index in range(own.chunks):
        print(f"chunk {index} of {own.chunks}: {len(own.chunk(index))} rows", flush=True)


if __name__ == "__main__":
    main()
