"""Random questions: how many are called clear, weak or none, and how often random heads rival the carriers.

Each question takes a sentence, a random word of it as key, and a random word of the vocabulary in its place.
`python benchmarks/questions.py [model] [count]`
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import circuits
from circuits.errors import CircuitsError
from circuits.tracing.trust import RANDOM, words_like

SENTENCES = (
    'The opposite of "large" is "',
    "When Mary and John went to the store, John gave a drink to",
    "The table was near the",
)
STORIES = (
    "Tom and Ben went to the park. Ben gave the ball to",
    "Once upon a time, there was a little girl named",
    "Tim had a red ball. He liked to play with his",
)


def main(name: str = "mini", count: str = "100") -> None:
    model, draw = circuits.load(name), random.Random(0)
    verdicts: Counter[str] = Counter()
    doubtful = half = as_well = 0
    for _ in range(int(count)):
        text = draw.choice(STORIES if name.startswith("stories") else SENTENCES)
        prompt = circuits.to_prompt(model, text)
        key = draw.randrange(int(model.reads_bos), len(prompt))
        words = words_like(model, prompt.tokens[key], draw, 1)
        try:
            swap = {key: model.spell(words[0]).strip()} if words else None
            found = circuits.trace(model, text, key=key, swap=swap, metric="logprob")
        except CircuitsError:
            verdicts["refused"] += 1
            continue
        assert found.question is not None
        verdicts[found.question.verdict] += 1
        mapping = found.mapping()
        controls = mapping.controls
        if found.question.verdict == "clear" and controls is not None and mapping.path:
            doubtful += bool(mapping.doubts)
            joint = mapping.modulation(controls.share) * mapping.total
            half += controls.random_p95 >= RANDOM * joint
            as_well += controls.random_p95 >= joint
    shares = ", ".join(f"{verdict} {number}" for verdict, number in sorted(verdicts.items()))
    print(f"{name}, {count} random questions: {shares}")
    said = f"modulation withheld {doubtful}, random heads reach half of it {half}, do as well {as_well}"
    print(f"of the clear ones: {said}")


if __name__ == "__main__":
    main(*sys.argv[1:])
