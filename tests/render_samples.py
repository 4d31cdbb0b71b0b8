"""Hand-written circuits to draw: figure B's, its dense twin, hostile tokens, a deep model, an empty one; and
wirings, of given and of random wires."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np

from circuits.components import Head, Wire
from circuits.prompts import Metric, Noise, Prompt
from circuits.results import sha256_of
from circuits.tracing import Controls, HeadEffect, Mapping, MeasuredModel, Output, Span, Step
from circuits.tracing.parts import FamilyControl
from circuits.tracing.records import Circuit
from circuits.wires.parts import CurvePoint, Member, RandomCircuits, WiredPair, WireValue
from circuits.wires.record import Wiring

WORDS = ("<|endoftext|>", "The", " opposite", " of", ' "', "large", '"', " is", ' "')
CARRIERS = tuple(Head.parse(name) for name in ("L11H7", "L10H1", "L9H7", "L9H1", "L8H6"))
HOSTILE = (
    "<BOS>",
    "<script>alert(1)</script>",
    '"quoted"',
    "back\\slash\\N\\G",
    "new\nline",
    "tab\t",
    "nul\x00\x1b[31m",
    "&amp;&lt;",
    "]]>",
    "🦜🏳️‍🌈",
    "שלום",
    "العربية",
    "\u202eevil",
    "\u2028",
    "   ",
    "",
    "${x}`",
    "</style><img src=x onerror=alert(2)>",
    "漢字",
    "%s{0}|{a|b}",
)


def attention(layers: int, heads: int, length: int, *, seed: int, sparse: bool) -> np.ndarray:
    """Causal maps of the kinds that real heads show; a sparse model's are a few dots."""
    rng = np.random.default_rng(seed)
    causal = np.tril(np.ones((length, length)))
    away = np.arange(length)[:, None] - np.arange(length)[None]
    kinds = (
        np.where(away == 0, 5.0, 0.0),
        np.where(away == 1, 5.0, 0.0),
        np.zeros((length, length)),
        np.where(away == np.arange(length)[:, None], 4.0, 0.0),
    )
    scores = np.stack(
        [kinds[int(pick)] for pick in rng.integers(0, 4, layers * heads)]
    ) + rng.normal(0, 0.8, (layers * heads, length, length))
    weights = np.exp(scores) * causal
    weights /= weights.sum(-1, keepdims=True)
    if sparse:
        weights *= weights > np.quantile(weights[:, away >= 0], 0.9)
    return weights.reshape(layers, heads, length, length).astype(np.float32)


def circuit_of(
    words: tuple[str, ...],
    mappings: tuple[Mapping, ...],
    *,
    name: str,
    layers: int = 12,
    heads: int = 12,
    sparse: bool = True,
    bos: bool = True,
    spans: tuple[Span, ...] = (),
    token: str = "small",
    focus: tuple[int, int] | None = None,
    seed: int = 0,
) -> Circuit:
    patterns = attention(layers, heads, len(words), seed=seed, sparse=sparse)
    for mapping in mappings:
        for known in mapping.heads:
            patterns[known.head.layer, known.head.index, mapping.query, mapping.key] = (
                known.weight
            )
    arrays = {"patterns": patterns}
    prompt = Prompt("".join(words[int(bos) :]), tuple(range(len(words))), words)
    edges = layers * heads * len(words) * (len(words) + 1) // 2
    return Circuit(
        source=MeasuredModel(
            name=name,
            fingerprint="0" * 64,
            layers=layers,
            heads=heads,
            gated=sparse,
            reads_bos=bos,
            width=heads * 64,
            parallel=False,
            open_edges=int((patterns > 0).sum()) if sparse else edges,
            edges=edges,
        ),
        prompt=prompt,
        counterfactual=Noise((mappings[0].key,)) if mappings else Noise((0,)),
        metric=Metric("logit_diff", 1, token, 2, "cold"),
        clean_value=4.2,
        counterfactual_value=-1.1,
        mappings=mappings,
        spans=spans,
        output=Output(token, 0.93, layers),
        focus=focus,
        engine="fast",
        seed=0,
        versions=(("circuits", "0.1.0"),),
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


def mapping_of(
    key: int,
    query: int,
    path: list[tuple[Head, float]],
    *,
    total: float,
    controls: bool = True,
    seed: int = 0,
) -> Mapping:
    """A mapping whose greedy path is given; what each head does alone falls along the path."""
    rng = np.random.default_rng(seed)
    gains = np.diff([0.0, *(joint for _, joint in path)])
    known = [
        HeadEffect(
            head,
            round(float(gain), 4),
            round(float(gain) * 0.9, 4),
            round(float(gain) * 1.1, 4),
            round(float(rng.uniform(0.35, 0.95)), 4),
            0.02,
        )
        for (head, _), gain in zip(path, gains, strict=True)
    ]
    totals = tuple(
        total if at == key else round(float(value), 4)
        for at, value in enumerate(rng.normal(0, 0.02, query + 1))
    )
    told = Controls(0.013, 0.041, 100, totals, 0.79, 0.0) if controls else None
    steps = tuple(Step(head, joint) for head, joint in path)
    return Mapping(
        key,
        query,
        total,
        round(total * 0.97, 4),
        tuple(sorted(known, key=lambda h: -h.effect)),
        steps,
        told,
    )


def span_of(
    label: str,
    positions: tuple[int, ...],
    layers: tuple[int, int] | None,
    built: tuple[tuple[int, int], ...] = (),
    depth: int = 12,
) -> Span:
    return Span(
        label,
        positions,
        layers,
        built,
        0.9,
        tuple([0.9] * (depth + 1)),
        tuple([0.1] * depth),
        "noise",
    )


SPANS = (
    span_of("large", (5,), (0, 3), ((0, 3),)),
    span_of("opposite", (2,), (0, 1), ((0, 1),)),
    span_of("brackets", (4, 6), (0, 10), ((0, 10),)),
)


def planted() -> Circuit:
    """The sparse model of figure B: five heads carry 80% of large → the last quote."""
    more = [Head(10, 4), Head(7, 2), Head(6, 9), Head(3, 3)]
    joints = [0.30, 0.48, 0.61, 0.71, 0.80, 0.86, 0.91, 0.96, 0.99]
    main = mapping_of(5, 8, list(zip([*CARRIERS, *more], joints, strict=True)), total=1.0)
    relation = mapping_of(2, 8, [(Head(8, 6), 0.12), (Head(7, 2), 0.17)], total=0.19, seed=1)
    return circuit_of(WORDS, (main, relation), name="Sparse GPT-2", spans=SPANS, focus=(5, 8))


def dense() -> Circuit:
    """The dense twin: 43 heads for the same 80%."""
    order = np.random.default_rng(3).permutation(144)[:60]
    joints = 1 - np.exp(-np.arange(1, 61) / 26.6)
    path = [
        (Head(int(at) // 12, int(at) % 12), round(float(joint), 4))
        for at, joint in zip(order, joints, strict=True)
    ]
    main = mapping_of(5, 8, path, total=1.0, seed=2)
    relation = mapping_of(2, 8, path[:7], total=0.24, seed=5)
    return circuit_of(
        WORDS, (main, relation), name="GPT-2", sparse=False, spans=SPANS, focus=(5, 8), seed=1
    )


def hostile(words: tuple[str, ...] = HOSTILE) -> Circuit:
    """Tokens that would break a picture that trusts them."""
    last = len(words) - 1
    key = min(1, last)
    main = mapping_of(
        key, last, [(Head(1, 0), 0.5), (Head(0, 1), 0.8)], total=0.9, controls=False
    )
    span = span_of(words[key], (key,), (0, 1), depth=2)
    return circuit_of(
        words,
        (main,),
        name=words[key] or "model",
        layers=2,
        heads=2,
        spans=(span,),
        token=words[-1],
        bos=False,
    )


def deep() -> Circuit:
    """A model of 30 layers of 9 heads without BOS, two mappings in a row, a span built twice."""
    heads = [Head(22, 8), Head(22, 7), Head(29, 7), Head(25, 7)]
    main = mapping_of(4, 7, list(zip(heads, [0.32, 0.58, 0.78, 0.88], strict=True)), total=0.96)
    words = mapping_of(1, 4, [(Head(12, 3), 0.2)], total=0.22, controls=False)
    spans = (
        span_of("large", (4,), (0, 21), ((0, 0), (20, 21)), 30),
        span_of('"', (7,), (22, 30), ((22, 29),), 30),
        span_of("opposite", (1,), (0, 20), ((0, 10),), 30),
    )
    return circuit_of(
        WORDS[1:],
        (main, words),
        name="SmolLM2-135M",
        layers=30,
        heads=9,
        sparse=False,
        bos=False,
        spans=spans,
        focus=(4, 7),
        seed=4,
    )


def long(length: int = 500) -> Circuit:
    """A prompt of many tokens."""
    words = tuple(f" word{at}" for at in range(length))
    main = mapping_of(40, length - 1, [(Head(1, 1), 0.7), (Head(0, 1), 0.9)], total=0.95)
    return circuit_of(
        words,
        (main,),
        name="long",
        layers=2,
        heads=2,
        spans=(span_of("word40", (40,), (0, 1), depth=2),),
        bos=False,
    )


def wide(length: int) -> Circuit:
    """A prompt of long words, with boxes at both ends and carriers in many layers."""
    words = ("<BOS>", *(f" considerable{at}" for at in range(1, length)))
    main = mapping_of(
        1,
        length - 1,
        [(Head(layer, layer % 12), 0.1 * (layer + 1)) for layer in range(2, 10)],
        total=1.0,
    )
    early = mapping_of(2, 3, [(Head(1, 1), 0.2)], total=0.2)
    spans = (
        span_of("considerable1", (1,), (0, 4)),
        span_of("the end", (length - 2, length - 1), (5, 11)),
    )
    return circuit_of(words, (main, early), name="wide", spans=spans, focus=(1, length - 1))


def empty() -> Circuit:
    """A prompt on which nothing is carried."""
    return circuit_of(WORDS, (), name="Nothing", spans=())


# Wirings


def wiring_of(
    wires: Sequence[tuple[str, float]],
    places: tuple[str, ...] = (),
    *,
    layers: int = 6,
    heads: int = 6,
    new: Collection[str] = (),
) -> Wiring:
    """A wiring of these wires with these values; the last two of four pairs are held out."""
    words = ("<s>", *(f" {place}" for place in places[1:])) if places else (" a", " b")
    clean = Prompt("".join(words), tuple(range(len(words))), words)
    other = Prompt("".join(words[:-1]) + " c", (*clean.tokens[:-1], 99), (*words[:-1], " c"))
    metric = Metric("logit_diff", 1, " Tom", 2, " Ben")
    pairs = []
    for kept in (0.8, 0.9, 0.7, 0.6):
        pairs.append(WiredPair(clean, other, metric, 8.0, -4.0, kept, held_out=kept < 0.8))
    source = MeasuredModel("tiny", "0" * 64, layers, heads, False, True, 64, False, 10, 10)
    values = []
    for name, value in wires:
        wire = Wire.parse(name, layers=layers)
        values.append(WireValue(wire, value, value / 2, name in new))
    values.sort(key=lambda each: -each.value)
    return Wiring(
        source=source,
        task="",
        pairs=tuple(pairs[: 1 if places else 4]),
        output=Output(" Tom", 0.98, layers),
        aim="faithful",
        share=0.8,
        places=places,
        wires=tuple(values),
        curve=(CurvePoint(len(values), 0.8, 0.8, 0.2),),
        members=tuple(Member(each.wire, len(values)) for each in values),
        all_wires=2188,
        complement=0.01,
        random=RandomCircuits(0.0, 0.01, 10),
        overlap=None,
        without_heads=(),
        reachable=1.0,
        question=FamilyControl("clear", (), clear=1, weak=0, none=0),
        passes=100,
        seed=0,
        versions=(("circuits", "0.1.0"),),
    )


def random_wiring(seed: int) -> Wiring:
    """10 to 60 random wires, at places or (every other seed) at all positions together. A key or value that
    no node of its head would read is left out."""
    chance = random.Random(seed)
    layers, heads = chance.randint(2, 14), chance.choice((4, 12, 25))
    places = tuple(f"P{number}" for number in range(chance.randint(1, 9))) if seed % 2 else ()
    used = sorted(chance.sample(range(len(places)), min(3, len(places))))
    components = ["embed"]
    for layer in range(layers):
        components += [f"L{layer}H{index}" for index in chance.sample(range(heads), 3)]
        components.append(f"M{layer}")
    names: dict[str, float] = {}
    wanted = chance.randint(10, 60)
    for _ in range(20 * wanted):
        low, high = sorted(chance.choices(range(len(components) + 1), k=2))
        if high >= len(components):
            reader = "logits"
        elif components[high].startswith("L"):
            reader = f"{components[high]}.{chance.choice(('query', 'key', 'value'))}"
        else:
            reader = components[high]
        if low >= len(components) or reader == "embed" or len(names) == wanted:
            continue
        place = f"@{chance.choice(used)}" if places else ""
        parsed = Wire.parse(f"{components[low]}{place}→{reader}", layers=layers)
        if parsed.reader.sees(parsed.writer, parallel=False):
            value = chance.random() ** 3 * chance.choice((1, 1, 1, -1))
            names[str(parsed)] = value
    made = wiring_of(list(names.items()), places, layers=layers, heads=heads)
    while True:
        read = [each for each in made.wires if made.readers_of(each.wire)]
        if len(read) == len(made.wires):
            return made
        made = replace(made, wires=tuple(read))
