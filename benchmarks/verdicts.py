"""What the verdicts are worth: right answers must not be withheld, and words that do nothing must not be clear.

1. `controls`: random clear questions. How many are withheld because as many random heads reach half of what
   the carriers do, drawn from all heads (as version 0.2 did) and from those that are no carriers; and on the
   first 10 of them, how many have one and the same verdict, and the same doubts, under 20 seeds.
2. `nothing`: questions about a word that does nothing. A trained model reads a sentence that has nothing to do
   with what follows, and a word of it is swapped; by a plain forward pass the model must predict the same and
   give it the same probability to 0.05. In a model of random weights no word means anything. How many
   questions does each verb call clear? `refused` counts those that end in an error. `wiring`, which takes
   longest, is asked the first ten that are measured, or as many as a third number says.

`python benchmarks/verdicts.py controls stories15m 200`
`python benchmarks/verdicts.py nothing mini 100` (or stories15m, random; `nothing smollm2 20 2`)
"""

from __future__ import annotations

import itertools
import json
import random
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
)

import circuits
from circuits.engine.selection import mapping_row
from circuits.errors import CircuitsError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.tracing.other_words import words_like
from circuits.tracing.trust import RANDOM
from circuits.zoo.language import tokenizer

SEEDS = 20
SEEDED = 10  # questions that are asked again under every seed
WIRED = "10"  # questions to `wiring`, which takes longest
CLEAN = (
    "The {girl} was very happy because",
    "{Tom} and {Ben} went to the park. {Ben} gave the ball to",
    "Once upon a time, there was a little {girl} named",
    "{Tim} had a red ball. He liked to play with his",
    "The {dog} was sad. It wanted to find its",
    "One day, a {boy} saw a big {tree}. He wanted to",
    "{Lily} was scared of the {dark}. She went to her",
    "The {bird} could not fly. It asked the {cat} for",
)
PREFACES = {
    "mini": ("The {} was near the door .", "The {} was in the garden ."),
    "stories15m": ("There was a {} there.", "They saw a {} far away."),
    "smollm2": ("There was a {} there.", "They saw a {} far away."),
}
NOUNS = {
    "mini": ("table", "horse", "lamp", "cup", "chair", "bottle", "drink", "book"),
    "stories15m": ("tree", "house", "car", "door", "lamp", "table", "cup", "chair"),
    "smollm2": ("tree", "house", "car", "door", "lamp", "table", "cup", "chair"),
}
PROMPTS = {
    "mini": tuple(
        f'The opposite of "{word}" is "'
        for word in ("large", "hot", "rich", "old", "wet", "fast", "happy", "dark")
    ),
    "stories15m": (
        "Tom and Ben went to the park. Ben gave the ball to",
        "Once upon a time, there was a little girl named",
        "Tim had a red ball. He liked to play with his",
        "The girl was very happy because",
    ),
    "smollm2": (
        'The opposite of "large" is "',
        "When Mary and John went to the store, John gave a drink to",
        "The capital of France is",
    ),
}


# Controls on clear questions


def controls(name: str, count: str) -> None:
    model = circuits.load(name)
    start = time.monotonic()
    wanted = int(count)
    asked = 0
    clear: list[tuple[dict[str, Any], circuits.Circuit]] = []
    for question in _random_questions(model):
        asked += 1
        try:
            found = circuits.trace(model, **question)
        except CircuitsError:
            continue
        if found.question and found.question.verdict == "clear" and found.mapping().path:
            clear.append((question, found))
        if len(clear) == wanted:
            break
    old = sum(_random_reach_half(model, found) for _, found in clear)
    new = [found for _, found in clear if _says(found, "random heads")]
    withheld = [found for _, found in clear if found.mapping().doubts]
    print(f"{name}: {asked} random questions until {len(clear)} were clear and had carriers")
    print(f"  random heads of all reach half of the carriers: {old} ({old / len(clear):.1%})")
    print(f"  random heads that are no carriers: {len(new)} ({len(new) / len(clear):.1%})")
    share = f"{len(withheld) / len(clear):.1%}"
    print(f"  withheld for any reason: {len(withheld)} ({share})", flush=True)
    one_verdict = one_doubt = 0
    for question, _ in clear[:SEEDED]:
        answers = [circuits.trace(model, **question, seed=seed) for seed in range(SEEDS)]
        verdicts = {found.question.verdict for found in answers if found.question}
        one_verdict += len(verdicts) == 1
        one_doubt += len({bool(found.mapping().doubts) for found in answers}) == 1
    number = min(SEEDED, len(clear))
    print(f"  under {SEEDS} seeds {one_verdict} of {number} have one verdict,", end=" ")
    print(f"{one_doubt} are always or never withheld ({time.monotonic() - start:.0f} s)")


def _random_questions(model: Model) -> Iterator[dict[str, Any]]:
    """One of the sentences, one of its marked words, a random word that is written like it."""
    draw = random.Random(0)
    while True:
        marked = draw.choice(CLEAN)
        words = [part.split("}")[0] for part in marked.split("{")[1:]]
        text = marked.replace("{", "").replace("}", "")
        prompt = circuits.to_prompt(model, text)
        key = draw.choice([p for p, word in enumerate(prompt.words) if word.strip() in words])
        (other,) = words_like(model, prompt.tokens[key], draw, 1) or (None,)
        if other is not None:
            yield {"text": text, "key": key, "swap": {key: model.spell(other).strip()}}


def _random_reach_half(model: Model, found: circuits.Circuit) -> bool:
    """Whether as many random heads of all, carriers included, reach half of what the carriers do."""
    mapping = found.mapping()
    pair = circuits.Pair(found.prompt, found.counterfactual, found.metric)
    runs = circuits.prepare(model, [pair])
    carriers = mapping.carriers()
    draw = random.Random("random heads/0")
    rows = [
        mapping_row(draw.sample(runs.heads, len(carriers)), *mapping.ends) for _ in range(100)
    ]
    effects = sorted(runs.effects(rows)[:, 0].tolist())
    return effects[int(0.95 * 99)] >= RANDOM * mapping.modulation() * mapping.total


def _says(found: circuits.Circuit, words: str) -> bool:
    return any(words in doubt for doubt in found.mapping().doubts)


# Words that do nothing


@dataclass(frozen=True)
class Nothing:
    """A prompt that begins with a sentence about something else, and a word of that sentence to swap."""

    text: str
    key: str
    other: str
    named: dict[str, Any]  # the metric, or answer and foil
    noise: bool  # on the word, in the place of another word; a task has pairs of words alone

    @property
    def question(self) -> dict[str, Any]:
        swap = {} if self.noise else {"swap": {self.key: self.other}}
        return {"key": self.key, **swap, **self.named}


def nothing(name: str, count: str, wired: str = WIRED) -> None:
    columns = ("trace", "family", "sweep", "why", "rank", "wiring")
    print(f"{'model':24}{'asked':>7}" + "".join(f"{column:>20}" for column in columns))
    for label, model, kind in _models(name):
        start = time.monotonic()
        questions = list(itertools.islice(_nothings(model, kind), int(count)))
        told = _ask(model, questions, int(wired))
        cells = []
        for column in columns:
            verdicts = told[column]
            refused = f", {verdicts['refused']} refused" if verdicts["refused"] else ""
            cells.append(f"{verdicts['clear']}/{verdicts.total()}{refused}")
        print(
            f"{label:24}{len(questions):>7}" + "".join(f"{cell:>20}" for cell in cells), end=""
        )
        print(f"  {time.monotonic() - start:.0f} s", flush=True)
    print("clear / asked; an error refuses a question")


def _models(name: str) -> Iterator[tuple[str, Model, str]]:
    if name != "random":
        yield name, circuits.load(name), name
        return
    for label, build in RANDOM_MODELS.items():
        torch.manual_seed(0)
        yield label, as_model((build().eval(), tokenizer())), "mini"


def _shared(initializer_range: float) -> dict[str, Any]:
    return {
        "vocab_size": len(tokenizer()),
        "bos_token_id": 0,
        "eos_token_id": 0,
        "initializer_range": initializer_range,
    }


_SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 128,
    "max_position_embeddings": 64,
}
RANDOM_MODELS: dict[str, Callable[[], Any]] = {
    "GPT-2, weights of 0.2": lambda: GPT2LMHeadModel(
        GPT2Config(n_embd=64, n_layer=4, n_head=4, n_positions=64, **_shared(0.2))
    ),
    "Llama, weights of 0.5": lambda: LlamaForCausalLM(LlamaConfig(**_SIZES, **_shared(0.5))),
    "NeoX, weights of 1.0": lambda: GPTNeoXForCausalLM(GPTNeoXConfig(**_SIZES, **_shared(1.0))),
}


def _nothings(model: Model, kind: str) -> Iterator[Nothing]:
    """Seeded questions in which the swapped word has nothing to do with the answer."""
    draw = random.Random(0)
    trained = model.name == kind
    metrics = itertools.cycle(("logprob", "two best", "noise", "default"))
    for _ in range(10_000):
        key, other = draw.sample(NOUNS[kind], 2)
        preface = draw.choice(PREFACES[kind])
        prompt = draw.choice(PROMPTS[kind])
        clean, swapped = (f"{preface.format(word)} {prompt}" for word in (key, other))
        sides = [circuits.to_prompt(model, text).tokens for text in (clean, swapped)]
        if len(sides[0]) != len(sides[1]):
            continue
        logits = model.logits(torch.tensor(sides, device=model.device))[:, -1].float()
        before, after = logits.softmax(-1)
        best, second = before.topk(2).indices.tolist()
        does_nothing = best == int(after.argmax()) and abs(before[best] - after[best]) < 0.05
        if trained and not does_nothing:
            continue
        named: dict[str, Any] = {}
        metric = next(metrics)
        if metric == "logprob":
            named = {"metric": "logprob"}
        elif metric == "two best":
            named = {"answer": model.spell(best).strip(), "foil": model.spell(second).strip()}
        yield Nothing(clean, key, other, named, noise=metric == "noise")


def _ask(model: Model, questions: list[Nothing], wired: int) -> dict[str, Counter[str]]:
    """How many questions have each verdict, by verb; `wiring` is asked the first `wired`."""
    told: dict[str, Counter[str]] = defaultdict(Counter)
    for question in questions:
        try:
            found = circuits.trace(model, question.text, **question.question)
        except CircuitsError:
            for verb in ("trace", "why"):
                told[verb]["refused"] += 1
            continue
        told["trace"][_verdict(found)] += 1
        told["why"][
            _verdict(circuits.why(found, found.mapping().heads[0].head, model=model))
        ] += 1
        options = {name: value for name, value in question.question.items() if name != "key"}
        if told["wiring"].total() < wired and not question.noise:
            told["wiring"][_verdict(circuits.wiring(model, question.text, **options))] += 1
    for family in _families(model, questions):
        told["family"][family] += 1
    with tempfile.TemporaryDirectory() as folder:
        told["sweep"] = _sweep(model, questions, Path(folder))
        told["rank"] = _rank(model, questions, Path(folder))
    return told


def _verdict(result: Any) -> str:
    question = getattr(result, "question", None)
    return "not judged" if question is None else question.verdict


def _families(model: Model, questions: list[Nothing]) -> Iterator[str]:
    """The verdicts on families of up to four questions that can run together."""
    alike: dict[Any, list[Nothing]] = defaultdict(list)
    for question in questions:
        prompt = circuits.to_prompt(model, question.text)
        place = prompt.position(question.key)
        alike[len(prompt), place, "metric" in question.named, "foil" in question.named].append(
            question
        )
    for group in alike.values():
        for start in range(0, len(group), 4):
            part = group[start : start + 4]
            try:
                pairs = [_to_pair(model, question) for question in part]
                place = circuits.to_prompt(model, part[0].text).position(part[0].key)
                yield _verdict(circuits.trace(model, pairs, key=place))
            except CircuitsError:
                yield "refused"


def _to_pair(model: Model, question: Nothing) -> circuits.Pair:
    options = {name: value for name, value in question.question.items() if name != "key"}
    place = circuits.to_prompt(model, question.text).position(question.key)
    return circuits.to_pair(model, question.text, noise_at=(place,), **options)


def _sweep(model: Model, questions: list[Nothing], folder: Path) -> Counter[str]:
    lines = [json.dumps({"prompt": each.text, **each.question}) + "\n" for each in questions]
    (folder / "lines.jsonl").write_text("".join(lines))
    swept = circuits.sweep(model, folder / "lines.jsonl", folder / "swept")
    verdicts = swept.rows["verdict"].fillna("refused")
    return Counter(verdicts.tolist())


def _rank(model: Model, questions: list[Nothing], folder: Path) -> Counter[str]:
    """The verdicts on the pairs of one task; candidates that the task leaves out are refused."""
    lines = []
    for each in questions:
        item = {"prompt": each.text, "swap": {each.key: each.other}, **each.named}
        item.pop("metric", None)
        lines.append(json.dumps(item) + "\n")
    (folder / "items.jsonl").write_text("".join(lines))
    try:
        ranking = circuits.rank(model, folder / "items.jsonl", count=len(lines))
    except CircuitsError:
        return Counter(refused=len(lines))
    judged = ranking.question
    left_out = len(lines) - ranking.pairs
    return Counter(clear=judged.clear, weak=judged.weak, none=judged.none, refused=left_out)


if __name__ == "__main__":
    {"controls": controls, "nothing": nothing}[sys.argv[1]](*sys.argv[2:])
