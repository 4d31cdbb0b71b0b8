"""Rows of text that a dense model writes itself, sampled in batches and kept in files.

1. All rows of a batch grow together, one token at a time, with keys and values cached. A row begins with BOS
   (or a random token, where the model reads none) and one of the openings, and has its own temperature.
2. A chunk is a file of rows that depends on (seed, index of the chunk) alone. It is written whole or not at
   all, by whichever process needs it first, so a killed training finds its rows again.
3. With a smaller vocabulary (`small_vocabulary`) rows are written by the smaller model, held-out rows always by
   the whole one.
4. Training draws from chunks 0 to n, and n grows with the steps: text is sampled when it is needed.
"""

from __future__ import annotations

import os
import random
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from circuits.errors import CircuitsError, FileError
from circuits.files import check_regular, write_whole
from circuits.models import reads_bos_by_default
from circuits.models.folder import Weights, quiet
from circuits.sparsify.small_vocabulary import KeptTokens, Tokens, shrunk, survey

CHUNK_ROWS: Final = 512
HELD_OUT_ROWS: Final = 128
_SURVEYED_ROWS: Final = 64
_BATCH_ROWS: Final = 256  # sampled together
_AFTER_PROMPTS: Final = 3  # tokens that follow the longest prompt


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a model's own text is sampled: how many rows, after which openings, at which temperatures."""

    rows: int = 1024
    openings: tuple[str, ...] = ("",)
    temperatures: tuple[float, ...] = (1.0,)
    openings_count: bool = True  # whether an opening's own tokens are targets too
    # The weight of the first token after an opening; every other token has weight 1.
    answers: float = 1.0

    def __post_init__(self) -> None:
        if self.rows < 1 or not self.openings or not self.temperatures:
            raise CircuitsError(
                "sampling needs at least one row, one opening and one temperature"
            )
        for temperature in self.temperatures:
            if not 0 < temperature <= 10:  # NaN is not
                raise CircuitsError(
                    f"temperatures must be above 0 and at most 10, not {temperature:g}"
                )
        if self.answers < 0:
            raise CircuitsError(
                f"answers must not count less than nothing, not {self.answers:g}"
            )

    def __str__(self) -> str:
        words = f"{self.rows} rows sampled from the dense model"
        if self.openings != ("",):
            crc = zlib.crc32("\n".join(self.openings).encode())
            words += f" after {len(self.openings)} openings (crc {crc:08x})"
            if not self.openings_count:
                words += ", which do not count,"
            if self.answers != 1:
                words += f", whose answers count {self.answers:g} times,"
        if self.temperatures != (1.0,):
            listed = ", ".join(f"{temperature:g}" for temperature in self.temperatures)
            words += f" at temperatures {listed}"
        return words.removesuffix(",")


def bos_of(weights: Weights) -> list[int]:
    """What every row begins with: BOS, or nothing."""
    bos: Any = weights.tokenizer.bos_token_id
    reads_bos = reads_bos_by_default(weights.tokenizer, weights.model.config.model_type)
    return [bos] if reads_bos else []


def to_tokens(weights: Weights, text: str) -> list[int]:
    """The tokens of a text, without BOS."""
    with quiet():
        encoding: Any = weights.tokenizer(text, add_special_tokens=False)
    return encoding["input_ids"]


def opening_tokens(weights: Weights, text: str) -> list[int]:
    """The tokens that a row begins with: BOS, if the model reads it, and an opening."""
    tokens = bos_of(weights)
    return tokens + to_tokens(weights, text) if text else tokens


def sample_rows(
    weights: Weights,
    *,
    count: int,
    length: int,
    seed: int | str,
    sampling: Sampling | None = None,
    vocabulary: KeptTokens | None = None,
) -> Tokens:
    """Rows of tokens that the dense model writes; with `vocabulary`, of these tokens alone."""
    sampling = sampling or Sampling()
    draw = random.Random(f"sampling/{seed}")
    if vocabulary is None:
        model = weights.model
        kept = torch.arange(len(weights.tokenizer))
    else:
        model = shrunk(weights, vocabulary)
        kept = vocabulary.kept
    rows = torch.full((count, length), -1)  # -1: not written yet
    for row, text in zip(rows, draw.choices(sampling.openings, k=count), strict=True):
        tokens = opening_tokens(weights, text)
        if not tokens:
            tokens = [int(kept[draw.randrange(len(kept))])]
        tokens = torch.tensor(tokens[:length])
        row[: len(tokens)] = tokens if vocabulary is None else vocabulary.shrink(tokens)
    temperatures = torch.tensor(draw.choices(sampling.temperatures, k=count))
    noise = torch.Generator().manual_seed(draw.getrandbits(60))
    for start in range(0, count, _BATCH_ROWS):
        batch = slice(start, start + _BATCH_ROWS)
        _complete(model, rows[batch], temperatures[batch], noise)
    return kept[rows]


def _complete(
    model: Any,
    rows: Tokens,
    temperatures: Float[torch.Tensor, " batch"],
    noise: torch.Generator,
) -> None:
    """Replace every -1 in the rows by a sampled token, one column after the other."""
    is_written = (rows >= 0).all(0)
    start = int(is_written.long().cumprod(0).sum())  # the columns that all openings fill
    read = 0  # columns whose keys and values are in the cache
    cache = None
    with torch.inference_mode():
        for column in range(start, rows.shape[1]):
            unread = rows[:, read:column].to(model.device)
            output = model(unread, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache = output.past_key_values
            read = column
            sampled = _sample(output.logits[:, -1].float().cpu() / temperatures[:, None], noise)
            rows[:, column] = torch.where(rows[:, column] < 0, sampled, rows[:, column])


def _sample(
    logits: Float[torch.Tensor, "batch vocab"], noise: torch.Generator
) -> Int[torch.Tensor, " batch"]:
    """One token a row, by its cumulative probability: much faster than multinomial over many tokens."""
    cumulative = logits.softmax(-1).cumsum(-1)
    drawn = torch.rand(len(logits), 1, generator=noise) * cumulative[:, -1:]
    return torch.searchsorted(cumulative, drawn, right=True)[:, 0].clamp_max(
        logits.shape[1] - 1
    )


@dataclass(slots=True, eq=False)
class OwnWords:
    """Rows that a dense model writes, in files of a folder, each sampled when it is first needed."""

    weights: Weights
    sampling: Sampling
    length: int
    seed: int
    folder: Path
    tokens: int = 0  # the size of the vocabulary; 0: all of it
    needed: tuple[str, ...] = ()  # texts whose tokens must be in it, besides the openings
    _files: dict[str, Tokens] = field(default_factory=dict)  # those that were read, by name
    _vocabulary: KeptTokens | None = None
    _openings: set[tuple[int, ...]] | None = None  # the openings as tokens

    @property
    def chunks(self) -> int:
        """How many files the rows are in; the last one may be shorter."""
        return -(-self.sampling.rows // CHUNK_ROWS)

    def __str__(self) -> str:
        return f"{self.sampling}, seed {self.seed}"

    @property
    def vocabulary(self) -> KeptTokens | None:
        """The likeliest tokens, if not all of them are used."""
        if self.tokens and self._vocabulary is None:
            ends = (self.weights.tokenizer.bos_token_id, self.weights.tokenizer.eos_token_id)
            needed = {token for token in ends if isinstance(token, int)}
            for text in (*self.sampling.openings, *self.needed):
                needed.update(opening_tokens(self.weights, text))
            rows = self._rows("survey", _SURVEYED_ROWS)
            self._vocabulary = survey(self.weights.model, rows, most=self.tokens, needed=needed)
        return self._vocabulary

    def weight(self, rows: Tokens) -> Float[torch.Tensor, "batch pos"]:
        """The weight of each token as a target: 1, unless `sampling` weighs openings or answers otherwise."""
        weight = torch.ones(rows.shape)
        if self.sampling.openings_count and self.sampling.answers == 1:
            return weight
        if self._openings is None:
            self._openings = {
                tuple(opening_tokens(self.weights, text)) for text in self.sampling.openings
            }
        for row, tokens in enumerate(rows.tolist()):
            end = _longest_start(tokens, self._openings)
            if not self.sampling.openings_count:
                weight[row, :end] = 0.0
            if end:
                weight[row, end : end + 1] *= self.sampling.answers
        return weight

    def after_prompts(self, prompts: Sampling) -> OwnWords:
        """What the same model writes after prompts, in rows just long enough for them, of the same tokens."""
        longest = max(len(opening_tokens(self.weights, text)) for text in prompts.openings)
        length = min(self.length, longest + _AFTER_PROMPTS)
        folder = self.folder / "prompts"
        own = OwnWords(self.weights, prompts, length, self.seed, folder, self.tokens)
        own._vocabulary = self.vocabulary
        return own

    def held_out(self) -> Tokens:
        """Rows by the whole model that are never trained on."""
        return self._rows("held-out", HELD_OUT_ROWS)

    def chunk(self, index: int) -> Tokens:
        """The rows of one chunk."""
        count = min(CHUNK_ROWS, self.sampling.rows - CHUNK_ROWS * index)
        return self._rows(f"{index:04}", count, self.vocabulary)

    def upto(self, done: float) -> list[Tokens]:
        """The chunks that training draws from after a share `done` of its steps."""
        count = min(self.chunks, 1 + int(done * self.chunks))
        return [self.chunk(index) for index in range(count)]

    def _rows(self, name: str, count: int, vocabulary: KeptTokens | None = None) -> Tokens:
        """Rows read from the file of this name, or sampled into it."""
        if name in self._files:
            return self._files[name]
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            self.folder.mkdir(parents=True, exist_ok=True)
            rows = sample_rows(
                self.weights,
                count=count,
                length=self.length,
                seed=f"{self.seed}/{name}",
                sampling=self.sampling,
                vocabulary=vocabulary,
            )
            # Others may sample the same rows.
            aside = path.with_name(f"{name}-{os.getpid()}.unfinished")
            write_whole(path, partial(save_file, {"rows": rows.contiguous()}), aside=aside)
        self._files[name] = _read_rows(path, len(self.weights.tokenizer), self.length)
        return self._files[name]


def _longest_start(tokens: list[int], openings: set[tuple[int, ...]]) -> int:
    """The length of the longest opening that a row begins with; 0 if there is none."""
    lengths = {len(opening) for opening in openings}
    starts = [length for length in lengths if tuple(tokens[:length]) in openings]
    return max(starts, default=0)


def _read_rows(path: Path, vocabulary: int, length: int) -> Tokens:
    check_regular(path)
    try:
        rows = load_file(path)["rows"]
    except (OSError, SafetensorError, KeyError) as why:
        raise FileError(
            f"{path} does not hold what the dense model wrote ({why}); delete it"
        ) from why
    if rows.ndim != 2 or rows.shape[1] != length or rows.max() >= vocabulary:
        raise FileError(f"{path} does not hold rows of this model's tokens; delete it")
    return rows
