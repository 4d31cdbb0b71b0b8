"""What a twin is trained and measured on: rows of tokens, each step's drawn from (seed, step) alone, and rows held out.

1. Speakers of the little language get its seeded sentences; what is held out there is held out here.
2. A text file or a jsonl (field "text") is one stream of tokens; rows are windows of it, the last tenth is held out.
3. With no text the dense model writes its own, once, seeded, and it is kept beside the checkpoint; the last tenth is held out.
"""

from __future__ import annotations

import json
import random
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from safetensors.torch import load_file, save_file

from circuits.errors import FileError, PromptError
from circuits.models import reads_bos_by_default
from circuits.sources.weights import Weights, quiet
from circuits.sparsify.settings import Settings
from circuits.zoo import language

Tokens = Int[torch.Tensor, "batch pos"]
OTHER_WORDS: Final = 0.2  # what a word of the little language that is no answer counts; most of them are chance
HELD_OUT_ROWS: Final = 128
SAMPLED_ROWS: Final = 2048


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """Rows of one step, and how much each word counts as a target."""

    tokens: Tokens
    weight: Float[torch.Tensor, "batch pos"]


@dataclass(frozen=True, slots=True, eq=False)
class Corpus:
    """`name` says what it is, in words; `batch(step)` gives a step's rows."""

    name: str
    batch: Callable[[int], Batch]
    held_out: Tokens


def context_of(weights: Weights, most: int) -> int:
    """How many tokens a row can have, at most `most`."""
    return min(most, int(getattr(weights.model.config, "max_position_embeddings", most)))


def speaks_little_language(weights: Weights) -> bool:
    return weights.tokenizer.get_vocab() == language.vocabulary()


def corpus_for(weights: Weights, settings: Settings, *, text: Path | None, folder: Path) -> Corpus:
    """The text that was asked for, or the best there is without one."""
    if text is not None:
        return _windows(weights, read_texts(text), settings, name=text.name)
    return little_language(settings) if speaks_little_language(weights) else _own_words(weights, settings, folder)


def little_language(settings: Settings) -> Corpus:
    """Documents of the little language, half of them with the mix of sentences that training ends with; answers count most."""

    def rows(count: int, draw: random.Random, **chosen: Any) -> Batch:
        words = language.vocabulary()
        documents = [language.document(draw, settings.length, **chosen) for _ in range(count)]
        tokens = torch.tensor([[words[word] for word in spoken] for spoken, _ in documents])
        weight = torch.full(tokens.shape, OTHER_WORDS)
        for row, (_, answers) in enumerate(documents):
            weight[row, list(answers)] = 1.0
        return Batch(tokens, weight)

    def batch(step: int) -> Batch:
        mix = language.LATE_MIX if step % 2 else language.MIX
        return rows(settings.batch, random.Random(f"sparsify/{settings.seed}/{step}"), mix=mix)

    held_out = rows(HELD_OUT_ROWS, random.Random("sparsify/held out"), held_out=True).tokens
    return Corpus("seeded sentences of the little language", batch, held_out)


def read_texts(path: Path) -> list[str]:
    """The texts of a file: one per line of a jsonl (field "text"), else the whole file."""
    try:
        content = path.read_text(encoding="utf-8")
        texts = [json.loads(line)["text"] for line in content.splitlines() if line.strip()] if path.suffix == ".jsonl" else [content]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise FileError(f'cannot read {path} as text (or, if it ends in .jsonl, as lines with a field "text"): {error}') from error
    if not any(text.strip() for text in texts):
        raise FileError(f"{path} holds no text")
    return texts


def to_rows(weights: Weights, texts: Sequence[str], *, length: int) -> list[Tokens]:
    """Texts cut into rows of at most `length` tokens, BOS first where the model reads it; equal lengths share a tensor."""
    bos = _start(weights)
    step = length - len(bos)
    by_length: dict[int, list[list[int]]] = {}
    for text in texts:
        tokens = _numbers(weights, text)
        for start in range(0, len(tokens), step):
            row = bos + tokens[start : start + step]
            by_length.setdefault(len(row), []).append(row)
    return [torch.tensor(rows) for width, rows in sorted(by_length.items(), reverse=True) if width > 1]


def _start(weights: Weights) -> list[int]:
    bos: Any = weights.tokenizer.bos_token_id
    return [bos] if reads_bos_by_default(weights) else []


def _numbers(weights: Weights, text: str) -> list[int]:
    with quiet():
        tokens: list[int] = weights.tokenizer(text, add_special_tokens=False)["input_ids"]  # pyright: ignore[reportAssignmentType]
    unknown = sum(token == weights.tokenizer.unk_token_id for token in tokens)
    if tokens and unknown > len(tokens) / 100:
        raise PromptError(f"{unknown} of the text's {len(tokens)} words are unknown to this model; give it text in its own language")
    return tokens


def _even(tokens: Tokens) -> Batch:
    return Batch(tokens, torch.ones(tokens.shape))


def _windows(weights: Weights, texts: Sequence[str], settings: Settings, *, name: str) -> Corpus:
    between = [] if weights.tokenizer.eos_token_id is None else [weights.tokenizer.eos_token_id]
    stream = torch.tensor([token for text in texts for token in (*_numbers(weights, text), *between)])
    bos = torch.tensor(_start(weights), dtype=stream.dtype)
    width = settings.length - len(bos)
    train, held_out = stream[: len(stream) * 9 // 10], stream[len(stream) * 9 // 10 :]
    if len(held_out) < width:
        raise PromptError(f"{name} has {len(stream)} tokens; rows of {settings.length} need at least {10 * settings.length}")

    def batch(step: int) -> Batch:
        draw = random.Random(f"sparsify/{settings.seed}/{step}")
        starts = [draw.randrange(len(train) - width + 1) for _ in range(settings.batch)]
        return _even(torch.stack([torch.cat((bos, train[start : start + width])) for start in starts]))

    rows = held_out[: len(held_out) // width * width].view(-1, width)[:HELD_OUT_ROWS]
    mark = zlib.crc32(stream.numpy().tobytes())
    return Corpus(f"{name} ({len(stream)} tokens, crc {mark:08x})", batch, torch.cat((bos.expand(len(rows), -1), rows), dim=1))


def _own_words(weights: Weights, settings: Settings, folder: Path) -> Corpus:
    path = folder / "samples.safetensors"
    rows = load_file(path)["rows"] if path.exists() else _sample(weights, settings)
    if not path.exists():
        save_file({"rows": rows}, path.with_suffix(".unfinished"))
        path.with_suffix(".unfinished").replace(path)
    cut = len(rows) * 9 // 10

    def batch(step: int) -> Batch:
        draw = random.Random(f"sparsify/{settings.seed}/{step}")
        return _even(rows[draw.sample(range(cut), min(cut, settings.batch))])

    return Corpus(f"{len(rows)} rows sampled from the dense model, seed {settings.seed}", batch, rows[cut:][:HELD_OUT_ROWS])


def _sample(weights: Weights, settings: Settings, *, at_once: int = 64) -> Tokens:
    """Rows that the dense model writes from BOS, or, where it reads none, from a first token drawn evenly."""
    model: Any = weights.model
    bos, rows = _start(weights), []
    with torch.random.fork_rng(), torch.inference_mode(), quiet():
        torch.manual_seed(settings.seed)
        for start in range(0, SAMPLED_ROWS, at_once):
            count = min(at_once, SAMPLED_ROWS - start)
            first = torch.tensor([bos] * count) if bos else torch.randint(len(weights.tokenizer), (count, 1))
            rows.append(_continued(model, first, settings.length))
    return torch.cat(rows)


def _continued(model: Any, tokens: Tokens, length: int) -> Tokens:
    cache = None
    while tokens.shape[1] < length:
        output = model(tokens if cache is None else tokens[:, -1:], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        tokens = torch.cat((tokens, torch.multinomial(output.logits[:, -1].float().softmax(-1), 1)), dim=1)
    return tokens
