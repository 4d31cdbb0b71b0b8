"""Random questions: how many are called clear, weak or none, and how often random heads rival the carriers.

1. Each question takes one of three sentences, a random word of it as key, and a random word of the vocabulary
   that is written like it in its place, with the log-probability of what the model says as metric: seeded.
2. Of those called clear and answered with carriers: how often the modulation is withheld, and how often the
   95th percentile of 100 sets of as many random heads reaches half of what the carriers do, or all of it.

`python benchmarks/questions.py [model] [count]`
"""

from __future__ import annotations

import random
import sys
from collections import Counter

import circuits
from circuits.errors import CircuitsError
from circuits.tracing.other_words import words_like
from circuits.tracing.trust import RANDOM

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
    answered = doubtful = half = 0
    as_well: list[str] = []
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
            answered, doubtful = answered + 1, doubtful + bool(mapping.doubts)
            joint = mapping.modulation(controls.share) * mapping.total
            half += controls.random_p95 >= RANDOM * joint
            if controls.random_p95 >= joint:
                said = "withheld" if mapping.doubts else "not withheld"
                as_well.append(f"  {text!r}, {key}={swap[key] if swap else ''}: {said}")
    shares = ", ".join(f"{verdict} {number}" for verdict, number in sorted(verdicts.items()))
    print(f"{name}, {count} random questions: {shares}")
    clear = verdicts["clear"]
    print(
        f"of the {clear} clear ones {answered} have carriers: modulation withheld {doubtful}",
        end=", ",
    )
    share = f"{len(as_well) / max(1, clear):.1%}"
    print(
        f"random heads reach half of it {half}, do as well {len(as_well)} ({share} of the clear ones)"
    )
    print(*as_well, sep="\n", end="\n" if as_well else "")


if __name__ == "__main__":
    main(*sys.argv[1:])
