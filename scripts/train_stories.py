"""Train `stories15m-sparse`: `python scripts/train_stories.py DIR`; what was begun in DIR goes on.

1. The dense model writes stories after many openings, most of them empty, at three temperatures.
2. An adapter learns to say the same with fewer open edges: as few as the divergence allows.
3. A quarter of the steps take short pieces, since short prompts are what figures show.
`--sample` does the first step alone, so that another process can train meanwhile.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from itertools import product
from pathlib import Path

from circuits.models.load import find
from circuits.sparsify import sparsify
from circuits.sparsify.sampling import OwnWords, Sampling
from circuits.sparsify.settings import Settings

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


def openings() -> tuple[str, ...]:
    """Half of them empty, the others sentences about pairs of names, and first words."""
    pairs = [(a, b) for a, b in product(NAMES, NAMES) if a != b]
    told = []
    for index, (a, b) in enumerate(pairs):
        place, thing = PLACES[index % 4], THINGS[index // 4 % 4]
        told.append(SENTENCES[index % len(SENTENCES)].format(a=a, b=b, place=place, thing=thing))
    others = OTHERS * 4
    return ("",) * (len(told) + len(others)) + tuple(told) + others


SAMPLING = Sampling(rows=16 * 512, openings=openings(), temperatures=(0.7, 0.85, 1.0))
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

# The first training ends with a smaller budget than is needed, which opens edges again: a second one takes
# what is left of it.
CLOSING = replace(
    SETTINGS, steps=260, healing=0, learning_rate=2e-4, warmup=1, gap=0.12, slack=1.0, multiplier=6.0
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--sample", action="store_true", help="sample the text, and train nothing")
    asked = parser.parse_args()
    if asked.sample:
        folder = asked.folder / "first" / "training" / "own-words"
        own = OwnWords(find("stories15m"), SAMPLING, SETTINGS.length, SETTINGS.seed, folder, SETTINGS.tokens)
        print(f"{len(own.held_out())} rows held out; {own.vocabulary}")
        for index in range(own.chunks):
            print(f"chunk {index} of {own.chunks}: {len(own.chunk(index))} rows", flush=True)
        return
    first = asked.folder / "first"
    sparsify("stories15m", first, settings=SETTINGS, sampling=SAMPLING, save_every=60)
    last = asked.folder / "stories15m-sparse"
    print(sparsify("stories15m", last, settings=CLOSING, sampling=SAMPLING, after=first, save_every=60))


if __name__ == "__main__":
    main()
