"""What a twin is trained and measured on: the rows of each step, and held-out rows.

A step's rows are drawn from (seed, step) alone. They come from one of three sources:
1. Models of the little language get its seeded sentences; what is held out there is held out here.
2. A text file, or a jsonl with a field "text", is one stream of tokens. Rows are windows of its first nine
   tenths; the last tenth is held out.
3. Without a text, the dense model writes the rows itself; they are kept beside the checkpoint (`sampling`).
   A share of the steps takes short pieces of them: BOS and what follows it, or what follows a full stop.
   Where prompts are given, another share takes what the model writes after these.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float, Int

from circuits.errors import FileError, PromptError
from circuits.files import parse_json, read_text
from circuits.models.folder import Weights
from circuits.sparsify.sampling import (
    HELD_OUT_ROWS,
    OwnWords,
    Sampling,
    bos_of,
    to_tokens,
)
from circuits.sparsify.settings import SHORT_ROWS, Settings
from circuits.sparsify.small_vocabulary import KeptTokens, Tokens
from circuits.zoo import language

# The weight of words of the little language that are no answers; most are chance.
OTHER_WORDS: Final = 0.2


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """The rows of one step, and the weight of each token as a target."""

    tokens: Tokens
    weight: Float[torch.Tensor, "batch pos"]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """Where rows come from: `batch(step)` gives those of a step, as ids of `vocabulary` if there is one."""

    name: str  # the text in words, for the card and for checkpoints
    batch: Callable[[int], WeightedRows]
    held_out: Tokens  # as ids of the whole model
    vocabulary: KeptTokens | None = None


def context_of(weights: Weights, most: int) -> int:
    """How many tokens a row can have, at most `most`."""
    return min(most, int(getattr(weights.model.config, "max_position_embeddings", most)))


def speaks_little_language(weights: Weights) -> bool:
    return weights.tokenizer.get_vocab() == language.vocabulary()


def corpus_for(
    weights: Weights,
    settings: Settings,
    *,
    text: Path | None,
    folder: Path,
    own_words: bool = False,
    sampling: Sampling | None = None,
    prompts: Sampling | None = None,
) -> Corpus:
    """The text of a file (with `own_words` in turn with the model's own), or else the best there is.

    Without a file that is the little language, for models that speak it, or what the model writes itself.
    """
    if (prompts is None) != (settings.prompted == 0):
        raise PromptError(
            "prompts and the share of steps that take them (prompted) need each other"
        )
    if text is None and sampling is None and speaks_little_language(weights):
        return little_language(settings)
    if text is not None and prompts:
        raise PromptError(
            "prompts are for training on the model's own words; leave out the text"
        )
    if text is not None and settings.tokens:
        raise PromptError(
            "fewer tokens are for training on the model's own words; leave out the text"
        )
    own = OwnWords(
        weights,
        sampling or Sampling(),
        settings.length,
        settings.seed,
        folder / "own-words",
        tokens=settings.tokens,
        needed=prompts.openings if prompts else (),
    )
    if text is None:
        return own_corpus(own, settings, prompts)
    windows = _windows(weights, read_texts(text), settings, name=text.name)
    return _in_turn(windows, own_corpus(own, settings)) if own_words else windows


def _draw(settings: Settings, step: int) -> random.Random:
    return random.Random(f"sparsify/{settings.seed}/{step}")


def _in_turn(even: Corpus, odd: Corpus) -> Corpus:
    """Two corpora, one for the even steps, one for the odd."""

    def batch(step: int) -> WeightedRows:
        return odd.batch(step) if step % 2 else even.batch(step)

    half = HELD_OUT_ROWS // 2
    held_out = torch.cat([even.held_out[:half], odd.held_out[:half]])
    return Corpus(f"{even.name}, in turn with {odd.name}", batch, held_out)


# The little language


def little_language(settings: Settings) -> Corpus:
    """Documents of the little language, in odd steps with the late mix of sentences; answers count most."""

    def batch(step: int) -> WeightedRows:
        mix = language.LATE_MIX if step % 2 else language.MIX
        return _documents(settings.batch, settings.length, _draw(settings, step), mix=mix)

    held_out = _documents(
        HELD_OUT_ROWS, settings.length, random.Random("sparsify/held out"), held_out=True
    )
    return Corpus("seeded sentences of the little language", batch, held_out.tokens)


def _documents(count: int, length: int, draw: random.Random, **choices: Any) -> WeightedRows:
    """Rows of sentences, in which answers have weight 1 and other words `OTHER_WORDS`."""
    vocabulary = language.vocabulary()
    tokens = torch.empty(count, length, dtype=torch.int64)
    weight = torch.full((count, length), OTHER_WORDS)
    for row in range(count):
        words, answers = language.document(draw, length, **choices)
        tokens[row] = torch.tensor([vocabulary[word] for word in words])
        weight[row, list(answers)] = 1.0
    return WeightedRows(tokens, weight)


# Files


def read_texts(path: Path) -> list[str]:
    """The texts of a file: one per line of a jsonl (field "text"), else the whole file."""
    content = read_text(path)
    texts = _texts_of_lines(content, path) if path.suffix == ".jsonl" else [content]
    if not any(text.strip() for text in texts):
        raise FileError(f"{path} holds no text")
    return texts


def _texts_of_lines(content: str, path: Path) -> list[str]:
    texts = []
    for number, line in enumerate(content.split("\n"), 1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        stored = parse_json(line, where)
        if not isinstance(stored, dict) or not isinstance(stored.get("text"), str):
            raise FileError(f'{where} must be a JSON object whose field "text" holds text')
        texts.append(stored["text"])
    return texts


def to_rows(weights: Weights, texts: Sequence[str], *, length: int) -> list[Tokens]:
    """Texts in rows of at most `length` tokens, with BOS where the model reads it; one tensor per length."""
    bos = bos_of(weights)
    width = length - len(bos)
    by_length: dict[int, list[list[int]]] = {}
    for text in texts:
        tokens = _tokenize(weights, text)
        for start in range(0, len(tokens), width):
            row = bos + tokens[start : start + width]
            by_length.setdefault(len(row), []).append(row)
    longest_first = sorted(by_length, reverse=True)
    return [torch.tensor(by_length[size]) for size in longest_first if size > 1]


def _tokenize(weights: Weights, text: str) -> list[int]:
    """The tokens of a text, most of which the model must know."""
    tokens = to_tokens(weights, text)
    unknown_id: Any = weights.tokenizer.unk_token_id
    unknown = tokens.count(unknown_id)
    if unknown > len(tokens) / 100:
        wrong = f"{unknown} of the text's {len(tokens)} words are unknown to this model"
        raise PromptError(f"{wrong}; give it text in its own language")
    return tokens


def _windows(
    weights: Weights, texts: Sequence[str], settings: Settings, *, name: str
) -> Corpus:
    """Windows of all texts as one stream of tokens."""
    end: Any = weights.tokenizer.eos_token_id
    tokens: list[int] = []
    for text in texts:
        tokens += _tokenize(weights, text)
        if end is not None:
            tokens.append(end)
    stream = torch.tensor(tokens)
    bos = torch.tensor(bos_of(weights), dtype=stream.dtype)
    width = settings.length - len(bos)
    cut = len(stream) * 9 // 10
    train, held_out = stream[:cut], stream[cut:]
    if len(held_out) < width:
        needed = f"rows of {settings.length} need at least {10 * settings.length}"
        raise PromptError(f"{name} has {len(stream)} tokens; {needed}")

    def batch(step: int) -> WeightedRows:
        draw = _draw(settings, step)
        rows = []
        for _ in range(settings.batch):
            start = draw.randrange(len(train) - width + 1)
            rows.append(torch.cat((bos, train[start : start + width])))
        return WeightedRows(torch.stack(rows), torch.ones(settings.batch, settings.length))

    rows = held_out[: len(held_out) // width * width].view(-1, width)[:HELD_OUT_ROWS]
    label = f"{name} ({len(stream)} tokens, crc {zlib.crc32(stream.numpy().tobytes()):08x})"
    return Corpus(label, batch, torch.cat((bos.expand(len(rows), -1), rows), dim=1))


# What the model writes


def own_corpus(own: OwnWords, settings: Settings, prompts: Sampling | None = None) -> Corpus:
    """Rows that the dense model wrote, more of them as training goes on; some steps take short pieces."""
    vocabulary = own.vocabulary
    after_prompts = own.after_prompts(prompts) if prompts else None

    def batch(step: int) -> WeightedRows:
        draw = _draw(settings, step)
        kind = draw.random()
        is_short = kind < settings.short
        is_prompted = not is_short and kind < settings.short + settings.prompted
        source = after_prompts if after_prompts and is_prompted else own
        rows = torch.cat(source.upto(step / settings.all_steps))
        if is_short:
            tokens = _short_pieces(own, rows, settings, draw)
        else:
            count = settings.batch * (settings.length // source.length)
            tokens = rows[draw.sample(range(len(rows)), min(len(rows), count))]
        weight = source.weight(tokens)
        return WeightedRows(vocabulary.shrink(tokens) if vocabulary else tokens, weight)

    label = str(own)
    if prompts:
        label += f", with {prompts}"
    if vocabulary:
        label += f", {vocabulary}"
    return Corpus(label, batch, own.held_out(), vocabulary)


def _short_pieces(
    own: OwnWords, rows: Tokens, settings: Settings, draw: random.Random
) -> Tokens:
    """Pieces of one length, about as many tokens as `batch` rows have."""
    length = min(settings.length, draw.randint(*SHORT_ROWS))
    count = settings.batch * (settings.length // length)
    bos = len(bos_of(own.weights))
    ends = torch.tensor(sentence_ends(own.weights))
    chosen = rows[draw.choices(range(len(rows)), k=count)]
    return torch.stack([_piece(row, length, ends, bos, draw) for row in chosen])


def sentence_ends(weights: Weights) -> list[int]:
    """The tokens that end a sentence."""
    vocabulary = weights.tokenizer.get_vocab()
    return [vocabulary[mark] for mark in ".!?" if mark in vocabulary]


def _piece(
    row: Int[torch.Tensor, " pos"],
    length: int,
    ends: Int[torch.Tensor, " end"],
    bos: int,
    draw: random.Random,
) -> Int[torch.Tensor, " length"]:
    """The row's first `bos` tokens, then what follows them or, half of the time, what follows a full stop."""
    stops = torch.isin(row, ends).nonzero()[:, 0].tolist()
    starts = [stop + 1 for stop in stops if stop + length < len(row)]
    start = draw.choice(starts) if starts and draw.random() < 0.5 else bos
    return torch.cat((row[:bos], row[start : start + length - bos]))
