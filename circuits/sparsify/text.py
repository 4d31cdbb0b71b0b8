"""What a twin is trained and measured on: rows of tokens, each step's drawn from (seed, step) alone, and rows held out.

1. Speakers of the little language get its seeded sentences; what is held out there is held out here.
2. A text file or a jsonl (field "text") is one stream of tokens; rows are windows of it, the last tenth is held out.
3. With no text the dense model writes its own, once, seeded, and it is kept beside the checkpoint; the last tenth is held out.
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
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from circuits.errors import FileError, PromptError
from circuits.files import check_regular, parse_json, read_text
from circuits.models.folder import Weights, quiet
from circuits.models.load import reads_bos_by_default
from circuits.sparsify.settings import Settings
from circuits.zoo import language

Tokens = Int[torch.Tensor, "batch pos"]
OTHER_WORDS: Final = (
    0.2  # what a word of the little language that is no answer counts; most of them are chance
)
HELD_OUT_ROWS: Final = 128
SAMPLED_ROWS: Final = 1024


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


def corpus_for(
    weights: Weights, settings: Settings, *, text: Path | None, folder: Path, own_words: bool = False
) -> Corpus:
    """The text that was asked for, mixed with the model's `own_words` if they were too, or the best there is without one."""
    if text is not None:
        given = _windows(weights, read_texts(text), settings, name=text.name)
        return _in_turn(given, _own_words(weights, settings, folder)) if own_words else given
    return (
        little_language(settings)
        if speaks_little_language(weights)
        else _own_words(weights, settings, folder)
    )


def _in_turn(even: Corpus, odd: Corpus) -> Corpus:
    """Two corpora, a step of one after a step of the other."""
    held_out = torch.cat([corpus.held_out[: HELD_OUT_ROWS // 2] for corpus in (even, odd)])
    return Corpus(
        f"{even.name}, in turn with {odd.name}",
        lambda step: (odd if step % 2 else even).batch(step),
        held_out,
    )


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
    content = read_text(path)
    texts = (
        [_text_of(line, f"{path}, line {number}") for number, line in _lines(content)]
        if path.suffix == ".jsonl"
        else [content]
    )
    if not any(text.strip() for text in texts):
        raise FileError(f"{path} holds no text")
    return texts


def _lines(content: str) -> list[tuple[int, str]]:
    return [(number, line) for number, line in enumerate(content.split("\n"), 1) if line.strip()]


def _text_of(line: str, where: str) -> str:
    stored = parse_json(line, where)
    if not isinstance(stored, dict) or not isinstance(stored.get("text"), str):
        raise FileError(f'{where} must be a JSON object with a field "text" that holds text')
    return stored["text"]


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
        raise PromptError(
            f"{unknown} of the text's {len(tokens)} words are unknown to this model; give it text in its own language"
        )
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
        raise PromptError(
            f"{name} has {len(stream)} tokens; rows of {settings.length} need at least {10 * settings.length}"
        )

    def batch(step: int) -> Batch:
        draw = random.Random(f"sparsify/{settings.seed}/{step}")
        starts = [draw.randrange(len(train) - width + 1) for _ in range(settings.batch)]
        return _even(torch.stack([torch.cat((bos, train[start : start + width])) for start in starts]))

    rows = held_out[: len(held_out) // width * width].view(-1, width)[:HELD_OUT_ROWS]
    mark = zlib.crc32(stream.numpy().tobytes())
    return Corpus(
        f"{name} ({len(stream)} tokens, crc {mark:08x})",
        batch,
        torch.cat((bos.expand(len(rows), -1), rows), dim=1),
    )


def _own_words(weights: Weights, settings: Settings, folder: Path) -> Corpus:
    path = folder / "samples.safetensors"
    if not path.exists():
        sampled = sample_rows(weights, count=SAMPLED_ROWS, length=settings.length, seed=settings.seed)
        save_file({"rows": sampled}, path.with_suffix(".unfinished"))
        path.with_suffix(".unfinished").replace(path)
    rows = _read_rows(path, len(weights.tokenizer))
    cut = len(rows) * 9 // 10

    def batch(step: int) -> Batch:
        draw = random.Random(f"sparsify/{settings.seed}/{step}")
        return _even(rows[draw.sample(range(cut), min(cut, settings.batch))])

    return Corpus(
        f"{len(rows)} rows sampled from the dense model, seed {settings.seed}",
        batch,
        rows[cut:][:HELD_OUT_ROWS],
    )


def _read_rows(path: Path, vocabulary: int) -> Tokens:
    check_regular(path)
    try:
        rows = load_file(path)["rows"]
    except (OSError, SafetensorError, KeyError, ValueError) as why:
        raise FileError(f"{path} does not hold what the dense model wrote ({why}); delete it") from why
    whole = rows.ndim == 2 and rows.dtype == torch.int64 and rows.numel() > 0
    if not whole or not 0 <= int(rows.min()) <= int(rows.max()) < vocabulary:
        raise FileError(f"{path} does not hold rows of this model's tokens; delete it")
    return rows


def sample_rows(weights: Weights, *, count: int, length: int, seed: int, at_once: int = 64) -> Tokens:
    """Rows that the dense model writes from BOS, or, where it reads none, from a first token drawn evenly."""
    model: Any = weights.model
    bos, rows = _start(weights), []
    with torch.random.fork_rng(), torch.inference_mode(), quiet():
        torch.manual_seed(seed)
        for start in range(0, count, at_once):
            size = min(at_once, count - start)
            first = torch.tensor([bos] * size) if bos else torch.randint(len(weights.tokenizer), (size, 1))
            rows.append(_continued(model, first, length))
    return torch.cat(rows)


def _continued(model: Any, tokens: Tokens, length: int) -> Tokens:
    cache = None
    while tokens.shape[1] < length:
        output = model(tokens if cache is None else tokens[:, -1:], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        tokens = torch.cat((tokens, torch.multinomial(output.logits[:, -1].float().softmax(-1), 1)), dim=1)
    return tokens
