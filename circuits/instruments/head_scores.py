"""`head_scores`: what each head does on random sequences, by the scores that the field knows.

1. Seeded random tokens are drawn and repeated: s₁ … sₙ s₁ … sₙ, after BOS where the model reads one. On such
   sequences only the heads' own habits show.
2. *previous token*: the mean attention weight on the token before. In the second half, *duplicate token*: the
   weight on the same token's first place; *induction*: on the token after that place. A head that writes
   nothing, wherever it looks, scores 0.
3. *copying*: a head that attends to one token alone writes something that predicts the token itself, among
   the first five of all tokens (`engine.readout`). The share of random tokens for which that holds.
4. *successor*: the same for pairs such as Monday and Tuesday or 7 and 8: the share of words whose successor
   has the largest logit of its series. It is absent where the vocabulary has no such series.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import torch

from circuits.engine import plain
from circuits.engine.cache import Cache
from circuits.engine.layout import Layout
from circuits.engine.prepare import known_layout
from circuits.engine.readout import head_outputs, is_in_top, is_largest_of
from circuits.engine.whole import whole_run
from circuits.errors import ModelError, check_whole, names_its_keywords
from circuits.instruments.grids import Axis
from circuits.instruments.reading_records import HeadScores
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.results import sha256_of

SEQUENCES: Final = 8
LENGTH: Final = 24  # tokens before the repetition
WORDS: Final = 100  # tokens that are tried for copying
SHORTEST: Final = 4  # tokens; in fewer the places that the scores look at coincide
# Of the largest number in the stream: a head that writes less writes nothing.
_SILENT: Final = 1e-6
FEWEST: Final = 5  # words of a series that must be single tokens
_NUMBERS: Final = (
    "one two three four five six seven eight nine ten eleven twelve",
    "first second third fourth fifth sixth seventh eighth ninth tenth",
    " ".join(map(str, range(1, 31))),
)
_CALENDAR: Final = (
    "Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    "January February March April May June July August September October November December",
)
_LETTERS: Final = (
    " ".join("ABCDEFGHIJKLMNOPQRSTUVWXYZ"),
    " ".join("abcdefghijklmnopqrstuvwxyz"),
)
SERIES: Final = (*_NUMBERS, *_CALENDAR, *_LETTERS)


@names_its_keywords
@torch.inference_mode()
def head_scores(
    model: Any, *, sequences: int = SEQUENCES, length: int | None = None, seed: int = 0
) -> HeadScores:
    """Induction, previous-token, duplicate-token, copying and successor score of every head: readings.

    `length` is that of a sequence before it is repeated, by default 24 or what the model's context holds.

        >>> scores = circuits.head_scores(circuits.load("planted-induction"))
        >>> f"{scores.score('previous token')[0, 1]:.2f}"
        '1.00'
    """
    check_whole("seed", seed)
    model = as_model(model)
    length = _checked_length(model, length, sequences)
    tokens = random_sequences(model, sequences, length, seed)
    cache, layout = _run(model, tokens)
    scores = attention_scores(cache, layout, length)
    words = successions = 0
    if layout is not None:
        drawn = _words(model, WORDS, random.Random(f"copying/{seed}"))
        words = len(drawn)
        scores["copying"] = copying_scores(model, layout, drawn)
        series = known_series(model)
        successions = sum(len(each) - 1 for each in series)
        if successions:
            scores["successor"] = successor_scores(model, layout, series)
    arrays = {"values": np.stack(list(scores.values()))[None]}
    return HeadScores(
        model=model.name,
        fingerprint=model.fingerprint,
        length=length,
        sequences=sequences,
        words=words,
        successions=successions,
        seed=seed,
        axes=(
            Axis("score", tuple(scores)),
            Axis("layer", tuple(map(str, range(model.n_layers)))),
            Axis("head", tuple(map(str, range(model.n_heads)))),
        ),
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


def _checked_length(model: Model, length: int | None, sequences: int) -> int:
    """The length of a sequence before it is repeated, if the model's context holds it twice."""
    longest = (model.n_ctx - int(model.reads_bos)) // 2
    length = min(LENGTH, longest) if length is None else length
    check_whole("length", length)
    check_whole("sequences", sequences)
    if not SHORTEST <= length <= longest or sequences < 1:
        raise ModelError(
            f"sequences of {length} tokens twice cannot be scored: {model.name} takes "
            f"{SHORTEST} to {longest}, and at least one sequence"
        )
    return length


def _run(model: Model, tokens: torch.Tensor) -> tuple[Cache, Layout | None]:
    """The run of some prompts by our own forward, or by the model's where its layout is not known."""
    layout = known_layout(model, tokens[:1])
    if layout is None:
        return plain.run(model, tokens, None)[0], None
    return whole_run(layout, layout.embed(tokens)), layout


# Random tokens


def random_sequences(model: Model, count: int, length: int, seed: int) -> torch.Tensor:
    """(sequence, pos): BOS if the model reads it, then random tokens twice."""
    draw = random.Random(f"head scores/{seed}")
    begin = [model.tokenizer.bos_token_id] if model.reads_bos else []
    rows = []
    for _ in range(count):
        drawn = _words(model, length, draw)
        rows.append([*begin, *drawn, *drawn])
    return torch.tensor(rows, device=model.device)


def _words(model: Model, count: int, draw: random.Random) -> list[int]:
    """Random tokens that are not special, each once if the vocabulary has so many."""
    special = set(model.tokenizer.all_special_ids)
    size = min(model.vocab_size, len(model.tokenizer))
    ordinary = [token for token in range(size) if token not in special]
    if len(ordinary) >= count:
        return draw.sample(ordinary, count)
    return draw.choices(ordinary, k=count)


# Scores of attention


def attention_scores(cache: Cache, layout: Layout | None, length: int) -> dict[str, np.ndarray]:
    """(layer, head) each, from runs of sequences of which the last `length` tokens repeat those before."""
    names = ("induction", "previous token", "duplicate token")
    layers: dict[str, list[np.ndarray]] = {name: [] for name in names}
    positions = cache.final.shape[1]
    second = range(positions - length, positions)  # the repetition
    for number, layer in enumerate(cache.layers):
        # (sequence, pos, head, d_model); without a layout a head's `z` stands for what it writes.
        written = layer.z if layout is None else layout.blocks[number].head_writes(layer.z)
        writes = written.abs().amax((0, 1, 3)) > _SILENT * layer.pre.abs().max()  # (head)
        pattern = layer.pattern() * writes[:, None, None]  # (sequence, head, query, key)
        layers["induction"].append(_mean_weight(pattern, second, length - 1))
        layers["previous token"].append(_mean_weight(pattern, range(1, positions), 1))
        layers["duplicate token"].append(_mean_weight(pattern, second, length))
    return {name: np.stack(values) for name, values in layers.items()}


def _mean_weight(pattern: torch.Tensor, queries: range, back: int) -> np.ndarray:
    """The mean weight of each head on the key so many tokens before each query, (head)."""
    query = torch.tensor(queries, device=pattern.device)
    weights = pattern[:, :, query, query - back]  # (sequence, head, query)
    return weights.double().mean((0, 2)).cpu().numpy()


# Scores of what is written


def _outputs(model: Model, layout: Layout, tokens: Sequence[int]) -> list[torch.Tensor]:
    """For each layer what its heads write when they attend to one token alone, (token, head, d_model)."""
    begin = [model.tokenizer.bos_token_id] if model.reads_bos else []
    prompts = torch.tensor([[*begin, token] for token in tokens], device=model.device)
    cache = whole_run(layout, layout.embed(prompts))
    blocks = layout.on_prompt(cache.final)
    return [head_outputs(blocks, cache, layer) for layer in range(model.n_layers)]


def copying_scores(model: Model, layout: Layout, words: Sequence[int]) -> np.ndarray:
    """The share of words that each head copies, (layer, head)."""
    shares = []
    for written in _outputs(model, layout, words):
        own = torch.tensor(words, device=written.device).repeat_interleave(model.n_heads)
        copied = is_in_top(layout, written.flatten(0, 1), own)  # (token and head)
        by_head = copied.unflatten(0, (-1, model.n_heads))  # (token, head)
        shares.append(by_head.double().mean(0).cpu().numpy())
    return np.stack(shares)


def known_series(model: Model) -> list[list[int]]:
    """The series of words that are single tokens here, with a space in front or without."""
    found: list[list[int]] = []
    for text in SERIES:
        for space in ("", " "):
            tokens = [_single_token(model, space + word) for word in text.split()]
            run = _longest_run(tokens)
            if len(run) >= FEWEST and run not in found:
                found.append(run)
    return found


def _single_token(model: Model, text: str) -> int | None:
    """The token that is this text, if there is one."""
    ids = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    if len(ids) != 1 or ids[0] in model.tokenizer.all_special_ids:
        return None
    return ids[0] if model.spell(ids[0]).strip() == text.strip() else None


def _longest_run(tokens: Sequence[int | None]) -> list[int]:
    """The longest part of a series without a gap."""
    longest: list[int] = []
    run: list[int] = []
    for token in tokens:
        run = [] if token is None else [*run, token]
        if len(run) > len(longest):
            longest = run
    return longest


def successor_scores(
    model: Model, layout: Layout, series: Sequence[Sequence[int]]
) -> np.ndarray:
    """The share of words of all series of which each head writes the successor, (layer, head)."""
    hits = np.zeros((model.n_layers, model.n_heads))
    for each in series:
        tokens = torch.tensor(each, device=model.device)
        following = tokens[1:].repeat_interleave(model.n_heads)
        for layer, written in enumerate(_outputs(model, layout, each[:-1])):
            is_next = is_largest_of(layout, written.flatten(0, 1), following, tokens)
            by_head = is_next.unflatten(0, (-1, model.n_heads))  # (token, head)
            hits[layer] += by_head.sum(0).cpu().numpy()
    return hits / sum(len(each) - 1 for each in series)
