"""What a twin is trained and measured on: each step's rows, drawn from (seed, step) alone, and held-out rows.

1. Models of the little language get its seeded sentences; what is held out there is held out here.
2. A text file or a jsonl (field "text") is one stream of tokens; rows are windows of it.
3. Without a text, the dense model writes rows itself, which are kept beside the checkpoint (`sampling`).
4. Of these rows, a share of the steps takes short pieces: BOS and what follows it, or follows a full stop.
   Another share, where prompts are given, takes what the model writes after them: the answers count most.
Of 2 the last tenth is held out. A source is a function that returns a `Corpus`; `corpus_for` chooses.
"""

from __future__ import annotations

import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.errors import FileError, PromptError
from circuits.files import parse_json, read_text
from circuits.models.folder import Weights
from circuits.sparsify import SHORT_ROWS, Settings
from circuits.sparsify.sampling import (
    HELD_OUT_ROWS,
    KeptTokens,
    OwnWords,
    Sampling,
    Tokens,
    bos_of,
    to_tokens,
)
from circuits.zoo import language

OTHER_WORDS: Final = 0.2  # the weight of words of the little language that are no answers; most are chance


@dataclass(frozen=True, slots=True, eq=False)
class WeightedRows:
    """The rows of one step, and how much each token counts as a target."""

    tokens: Tokens
    weight: Float[torch.Tensor, "batch pos"]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """`name` says in words what the text is; `batch(step)` gives a step's rows, in `vocabulary`, if any."""

    name: str
    batch: Callable[[int], WeightedRows]
    held_out: Tokens
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
    """The text of a file, with `own_words` in turn with the model's own; without one, the best there is."""
    if (prompts is None) != (settings.prompted == 0):
        raise PromptError("prompts and the share of steps that take them (prompted) need each other")
    if text is None and sampling is None and speaks_little_language(weights):
        return little_language(settings)
    kept_in, needed = folder / "own-words", prompts.openings if prompts else ()
    chosen = sampling or Sampling()
    own = OwnWords(weights, chosen, settings.length, settings.seed, kept_in, settings.tokens, needed)
    if text is None:
        return own_corpus(own, settings, prompts)
    if prompts:
        raise PromptError("prompts are for training on the model's own words; leave out the text")
    if settings.tokens:
        raise PromptError("fewer tokens are for training on the model's own words; leave out the text")
    windows = _windows(weights, read_texts(text), settings, name=text.name)
    return _in_turn(windows, own_corpus(own, settings)) if own_words else windows


def _draw(settings: Settings, step: int) -> random.Random:
    return random.Random(f"sparsify/{settings.seed}/{step}")


def _in_turn(even: Corpus, odd: Corpus) -> Corpus:
    """Two corpora, one for the even steps, one for the odd."""
    name = f"{even.name}, in turn with {odd.name}"
    held_out = torch.cat([corpus.held_out[: HELD_OUT_ROWS // 2] for corpus in (even, odd)])
    return Corpus(name, lambda step: (odd if step % 2 else even).batch(step), held_out)


def little_language(settings: Settings) -> Corpus:
    """Documents of the little language, in odd steps with the late mix of sentences; answers count most."""

    def batch(step: int) -> WeightedRows:
        mix = language.LATE_MIX if step % 2 else language.MIX
        return _documents(settings.batch, settings.length, _draw(settings, step), mix=mix)

    held_out = _documents(HELD_OUT_ROWS, settings.length, random.Random("sparsify/held out"), held_out=True)
    return Corpus("seeded sentences of the little language", batch, held_out.tokens)


def _documents(count: int, length: int, draw: random.Random, **choices: Any) -> WeightedRows:
    vocabulary = language.vocabulary()
    documents = [language.document(draw, length, **choices) for _ in range(count)]
    tokens = torch.tensor([[vocabulary[word] for word in words] for words, _ in documents])
    weight = torch.full(tokens.shape, OTHER_WORDS)
    for row, (_, answers) in enumerate(documents):
        weight[row, list(answers)] = 1.0
    return WeightedRows(tokens, weight)


def read_texts(path: Path) -> list[str]:
    """The texts of a file: one per line of a jsonl (field "text"), else the whole file."""
    texts = [read_text(path)]
    if path.suffix == ".jsonl":
        lines = [(number, line) for number, line in enumerate(texts.pop().split("\n"), 1) if line.strip()]
        for number, line in lines:
            stored = parse_json(line, where := f"{path}, line {number}")
            if not isinstance(stored, dict) or not isinstance(stored.get("text"), str):
                raise FileError(f'{where} must be a JSON object whose field "text" holds text')
            texts.append(stored["text"])
    if not any(text.strip() for text in texts):
        raise FileError(f"{path} holds no text")
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
    return [torch.tensor(rows) for length, rows in sorted(by_length.items(), reverse=True) if length > 1]


def _tokenize(weights: Weights, text: str) -> list[int]:
    tokens = to_tokens(weights, text)
    unknown = sum(token == weights.tokenizer.unk_token_id for token in tokens)
    if tokens and unknown > len(tokens) / 100:
        wrong = f"{unknown} of the text's {len(tokens)} words are unknown to this model"
        raise PromptError(f"{wrong}; give it text in its own language")
    return tokens


def _windows(weights: Weights, texts: Sequence[str], settings: Settings, *, name: str) -> Corpus:
    end: Any = weights.tokenizer.eos_token_id
    separator = [] if end is None else [end]
    stream = torch.tensor([token for text in texts for token in (*_tokenize(weights, text), *separator)])
    bos = torch.tensor(bos_of(weights), dtype=stream.dtype)
    width = settings.length - len(bos)
    cut = len(stream) * 9 // 10
    train, held_out = stream[:cut], stream[cut:]
    if len(held_out) < width:
        needed = f"rows of {settings.length} need at least {10 * settings.length}"
        raise PromptError(f"{name} has {len(stream)} tokens; {needed}")

    def batch(step: int) -> WeightedRows:
        draw = _draw(settings, step)
        starts = [draw.randrange(len(train) - width + 1) for _ in range(settings.batch)]
        tokens = torch.stack([torch.cat((bos, train[start : start + width])) for start in starts])
        return WeightedRows(tokens, torch.ones(tokens.shape))

    rows = held_out[: len(held_out) // width * width].view(-1, width)[:HELD_OUT_ROWS]
    label = f"{name} ({len(stream)} tokens, crc {zlib.crc32(stream.numpy().tobytes()):08x})"
    return Corpus(label, batch, torch.cat((bos.expand(len(rows), -1), rows), dim=1))


def own_corpus(own: OwnWords, settings: Settings, prompts: Sampling | None = None) -> Corpus:
    """Rows that the dense model wrote, more of them as training goes on; some steps take short pieces."""
    vocabulary = own.vocabulary
    prompted = own.after_prompts(prompts) if prompts else None
    ends = torch.tensor(sentence_ends(own.weights))
    width = len(bos_of(own.weights))

    def batch(step: int) -> WeightedRows:
        draw, done = _draw(settings, step), step / settings.all_steps
        kind = draw.random()
        source = prompted if prompted and 0 <= kind - settings.short < settings.prompted else own
        rows = torch.cat(source.upto(done))
        if kind < settings.short:
            length = min(settings.length, draw.randint(*SHORT_ROWS))
            chosen = rows[draw.choices(range(len(rows)), k=settings.batch * (settings.length // length))]
            tokens = torch.stack([_piece(row, length, ends, width, draw) for row in chosen])
        else:
            count = settings.batch * (settings.length // source.length)
            tokens = rows[draw.sample(range(len(rows)), min(len(rows), count))]
        return WeightedRows(vocabulary.shrink(tokens) if vocabulary else tokens, source.counted(tokens))

    label = str(own) + (f", with {prompts}" if prompts else "") + (f", {vocabulary}" if vocabulary else "")
    return Corpus(label, batch, own.held_out(), vocabulary)


def sentence_ends(weights: Weights) -> list[int]:
    """The tokens that end a sentence."""
    return [weights.tokenizer.get_vocab()[mark] for mark in ".!?" if mark in weights.tokenizer.get_vocab()]


def _piece(
    row: torch.Tensor, length: int, ends: torch.Tensor, width: int, draw: random.Random
) -> torch.Tensor:
    """BOS, if the model reads it, and a piece of the row: its start or what follows a full stop."""
    after = [stop + 1 for stop in torch.isin(row, ends).nonzero()[:, 0].tolist() if stop + length < len(row)]
    start = draw.choice(after) if after and draw.random() < 0.5 else width
    return torch.cat((row[:width], row[start : start + length - width]))
