"""What a dense model writes itself, sampled in batches and kept in chunks: sampling can stop and go on.

1. All rows of a batch grow together, one token a step, with keys and values cached. A row begins with BOS (or
   a random token, where the model reads none) and one of the openings, and has its own temperature.
2. A chunk is a file of rows that depends on (seed, index of the chunk) alone. It is written whole or not at
   all, by whichever process needs it first: a killed run finds what it had, and goes on with the same rows.
3. Most of a small model's work is the chance of words that it never says. A survey of rows that it wrote
   gives the mean chance of every token; embedding and output matrix keep the likeliest tokens and those that
   the openings need (`KeptTokens`). All else is untouched, so an adapter trained on the smaller model fits
   the whole one. What is held out is always written, and measured, by the whole model.
4. Training draws from chunks 0 to n, and n grows with the steps: text is sampled when it is needed.
"""

from __future__ import annotations

import copy
import os
import random
import zlib
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Final, cast

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from circuits.errors import CircuitsError, FileError, ModelError
from circuits.files import check_regular, write_whole
from circuits.models import reads_bos_by_default
from circuits.models.folder import Weights, quiet

Tokens = Int[torch.Tensor, "batch pos"]
CHUNK_ROWS: Final = 512
HELD_OUT_ROWS: Final = 128
_SURVEYED_ROWS: Final = 64
_TOGETHER: Final = 256  # rows sampled in one batch
_AFTER_PROMPTS: Final = 3  # tokens that follow the longest prompt


@dataclass(frozen=True, slots=True, eq=False)
class KeptTokens:
    """The tokens that a smaller model has, in order: `kept[i]` is the whole model's id of its token i."""

    kept: Int[torch.Tensor, " kept"]
    size: int  # of the whole vocabulary
    coverage: float  # the mean chance of all kept tokens together

    def __str__(self) -> str:
        return f"{len(self.kept)} of {self.size} tokens ({self.coverage:.3%} of the chance)"

    def shrink(self, tokens: Int[torch.Tensor, "*batch pos"]) -> Int[torch.Tensor, "*batch pos"]:
        """The whole model's ids as the smaller one's."""
        lookup = torch.full((self.size,), -1)
        lookup[self.kept] = torch.arange(len(self.kept))
        small = lookup[tokens]
        if small.min() < 0:
            raise ModelError(f"token {int(tokens[small < 0][0])} is not among the {len(self.kept)} kept")
        return small


def survey(model: Any, rows: Int[torch.Tensor, "batch pos"], *, most: int, needed: set[int]) -> KeptTokens:
    """The `most` tokens with the largest mean chance after the rows' tokens, and those that are needed."""
    chances = torch.zeros(model.config.vocab_size, dtype=torch.float64)
    with torch.inference_mode():
        for chunk in rows.split(4):
            logits = model(chunk.to(model.device), use_cache=False).logits
            chances += logits.float().softmax(-1).sum((0, 1)).double().cpu()
    chances /= rows.numel()
    ranked = chances.clone()
    ranked[torch.tensor(sorted(needed | set(rows.unique().tolist())))] = 2.0
    kept = ranked.topk(min(most, len(ranked))).indices.sort().values
    if lost := [token for token in needed if not (kept == token).any()]:
        raise ModelError(f"the openings need {len(lost)} tokens more than the {most} that are kept")
    return KeptTokens(kept, len(chances), chances[kept].sum().item())


def shrunk(weights: Weights, vocabulary: KeptTokens) -> Any:
    """A copy of the model that has the kept tokens alone."""
    model = cast(Any, copy.deepcopy(weights.model))
    embedding, output = model.get_input_embeddings(), model.get_output_embeddings()
    tied = output.weight is embedding.weight
    if getattr(output, "bias", None) is not None:
        raise ModelError("a model whose output has a bias cannot be trained with fewer tokens")
    for layer in (embedding,) if tied else (embedding, output):
        layer.weight = torch.nn.Parameter(layer.weight.detach()[vocabulary.kept].clone(), requires_grad=False)
    if tied:
        output.weight = embedding.weight
    embedding.num_embeddings = output.out_features = model.config.vocab_size = len(vocabulary.kept)
    embedding.padding_idx = None
    return model


@dataclass(frozen=True, slots=True)
class Sampling:
    """How a model's own words are sampled: how many rows, after which openings, at which temperatures."""

    rows: int = 1024
    openings: tuple[str, ...] = ("",)
    temperatures: tuple[float, ...] = (1.0,)
    openings_count: bool = True  # whether what the model says of an opening's own tokens is learnt too
    answers: float = 1.0  # how much the first token after an opening counts; every other token counts 1

    def __post_init__(self) -> None:
        if self.rows < 1 or not self.openings or not self.temperatures:
            raise CircuitsError("sampling needs at least one row, one opening and one temperature")
        if not all(0 < temperature <= 10 for temperature in self.temperatures):
            raise CircuitsError(f"temperatures must be above 0 and at most 10, not {self.temperatures}")
        if self.answers < 0:
            raise CircuitsError(f"answers must not count less than nothing, not {self.answers:g}")

    def __str__(self) -> str:
        words = f"{self.rows} rows sampled from the dense model"
        if self.openings != ("",):
            crc = zlib.crc32("\n".join(self.openings).encode())
            words += f" after {len(self.openings)} openings (crc {crc:08x})"
            words += "" if self.openings_count else ", which do not count,"
            words += "" if self.answers == 1 else f", whose answers count {self.answers:g} times,"
        if self.temperatures != (1.0,):
            words += f" at temperatures {', '.join(f'{each:g}' for each in self.temperatures)}"
        return words.removesuffix(",")


def bos_of(weights: Weights) -> list[int]:
    """What every row begins with: BOS, or nothing."""
    bos: Any = weights.tokenizer.bos_token_id
    return [bos] if reads_bos_by_default(weights.tokenizer, weights.model.config.model_type) else []


def to_tokens(weights: Weights, text: str) -> list[int]:
    """The tokens of a text, without BOS."""
    with quiet():
        encoding: Any = weights.tokenizer(text, add_special_tokens=False)
    return encoding["input_ids"]


def sample_rows(
    weights: Weights,
    *,
    count: int,
    length: int,
    seed: int | str,
    sampling: Sampling | None = None,
    vocabulary: KeptTokens | None = None,
) -> Tokens:
    """Rows of tokens that the dense model writes, of a smaller vocabulary if one is given."""
    chosen, draw = sampling or Sampling(), random.Random(f"sampling/{seed}")
    kept = vocabulary.kept if vocabulary else torch.arange(len(weights.tokenizer))
    rows = torch.full((count, length), -1)
    for row, text in zip(rows, draw.choices(chosen.openings, k=count), strict=True):
        tokens = torch.tensor(opening(weights, text) or [int(kept[draw.randrange(len(kept))])])[:length]
        row[: len(tokens)] = vocabulary.shrink(tokens) if vocabulary else tokens
    heat = torch.tensor(draw.choices(chosen.temperatures, k=count))
    noise = torch.Generator().manual_seed(draw.getrandbits(60))
    model = shrunk(weights, vocabulary) if vocabulary else weights.model
    for part in range(0, count, _TOGETHER):
        _grow(model, rows[part : part + _TOGETHER], heat[part : part + _TOGETHER], noise)
    return kept[rows]


def opening(weights: Weights, text: str) -> list[int]:
    """The tokens that a row begins with: BOS, if the model reads it, and a text."""
    return bos_of(weights) + (to_tokens(weights, text) if text else [])


def _grow(model: Any, rows: Tokens, heat: torch.Tensor, noise: torch.Generator) -> None:
    """Fill in the unknown tokens (-1) of every row, all rows together."""
    read, cache = 0, None
    with torch.inference_mode():
        while (filled := int((rows >= 0).all(0).long().cumprod(0).sum())) < rows.shape[1]:
            unread = rows[:, read:filled].to(model.device)
            output = model(unread, past_key_values=cache, use_cache=True, logits_to_keep=1)
            cache, read = output.past_key_values, filled
            drawn = _draw(output.logits[:, -1].float().cpu() / heat[:, None], noise)
            rows[:, filled] = torch.where(rows[:, filled] < 0, drawn, rows[:, filled])


def _draw(logits: torch.Tensor, noise: torch.Generator) -> torch.Tensor:
    """One token a row, by the sum of chances up to it: much faster than multinomial over many tokens."""
    sums = logits.softmax(-1).cumsum(-1)
    aim = torch.rand(len(sums), 1, generator=noise) * sums[:, -1:]
    return torch.searchsorted(sums, aim, right=True)[:, 0].clamp_max(sums.shape[1] - 1)


@dataclass(slots=True, eq=False)
class OwnWords:
    """Rows that a dense model writes, in chunk files of a folder; sampled once, when first asked for."""

    weights: Weights
    sampling: Sampling
    length: int
    seed: int
    folder: Path
    tokens: int = 0  # how many different ones are sampled and trained on; 0: all
    needed: tuple[str, ...] = ()  # texts whose tokens must be among them, besides the openings
    _read: dict[str, Tokens] = field(default_factory=dict)
    _vocabulary: KeptTokens | None = None
    _openings: set[tuple[int, ...]] | None = None

    @property
    def chunks(self) -> int:
        return -(-self.sampling.rows // CHUNK_ROWS)

    def __str__(self) -> str:
        return f"{self.sampling}, seed {self.seed}"

    @property
    def vocabulary(self) -> KeptTokens | None:
        """The likeliest tokens, if not all of them are used."""
        if self.tokens and self._vocabulary is None:
            texts = (*self.sampling.openings, *self.needed)
            needed = {token for text in texts for token in opening(self.weights, text)}
            ends = (self.weights.tokenizer.bos_token_id, self.weights.tokenizer.eos_token_id)
            needed |= {token for token in ends if isinstance(token, int)}
            rows = self._rows("survey", _SURVEYED_ROWS)
            self._vocabulary = survey(self.weights.model, rows, most=self.tokens, needed=needed)
        return self._vocabulary

    def counted(self, rows: Tokens) -> Float[torch.Tensor, "batch pos"]:
        """How much each token counts as a target: 1, unless the row's longest opening says otherwise."""
        weight = torch.ones(rows.shape)
        if self.sampling.openings_count and self.sampling.answers == 1:
            return weight
        if self._openings is None:
            self._openings = {tuple(opening(self.weights, text)) for text in self.sampling.openings}
        lengths = sorted({len(tokens) for tokens in self._openings}, reverse=True)
        for row, weights in zip(rows.tolist(), weight, strict=True):
            end = next((length for length in lengths if tuple(row[:length]) in self._openings), 0)
            weights[:end] *= self.sampling.openings_count
            weights[end : end + 1] *= self.sampling.answers if end else 1.0
        return weight

    def after_prompts(self, prompts: Sampling) -> OwnWords:
        """What the same model writes after prompts, in rows just long enough for them, of the same tokens."""
        longest = max(len(opening(self.weights, text)) for text in prompts.openings)
        length = min(self.length, longest + _AFTER_PROMPTS)
        given = {"tokens": self.tokens, "_vocabulary": self.vocabulary}
        return OwnWords(self.weights, prompts, length, self.seed, self.folder / "prompts", **given)

    def held_out(self) -> Tokens:
        """Rows by the whole model that are never trained on."""
        return self._rows("held-out", HELD_OUT_ROWS)

    def chunk(self, index: int) -> Tokens:
        """The rows of one chunk; all have the same number, the last one what is left."""
        count = min(CHUNK_ROWS, self.sampling.rows - CHUNK_ROWS * index)
        return self._rows(f"{index:04}", count, self.vocabulary)

    def upto(self, done: float) -> list[Tokens]:
        """The chunks that training draws from when a share `done` of its steps is behind it."""
        return [self.chunk(index) for index in range(min(self.chunks, 1 + int(done * self.chunks)))]

    def _rows(self, name: str, count: int, vocabulary: KeptTokens | None = None) -> Tokens:
        """Rows read from the file of this name, or sampled into it."""
        if name not in self._read:
            path = self.folder / f"{name}.safetensors"
            if not path.exists():
                self.folder.mkdir(parents=True, exist_ok=True)
                given: dict[str, Any] = {"sampling": self.sampling, "vocabulary": vocabulary}
                seed = f"{self.seed}/{name}"
                rows = sample_rows(self.weights, count=count, length=self.length, seed=seed, **given)
                aside = path.with_name(f"{name}-{os.getpid()}.unfinished")  # others may sample the same
                write_whole(path, partial(save_file, {"rows": rows.contiguous()}), aside=aside)
            self._read[name] = _read_rows(path, len(self.weights.tokenizer), self.length)
        return self._read[name]


def _read_rows(path: Path, vocabulary: int, length: int) -> Tokens:
    check_regular(path)
    try:
        rows = load_file(path)["rows"]
    except (OSError, SafetensorError, KeyError, ValueError) as why:
        raise FileError(f"{path} does not hold what the dense model wrote ({why}); delete it") from why
    whole = rows.ndim == 2 and rows.dtype == torch.int64 and rows.shape[1] == length and len(rows)
    if not whole or not 0 <= int(rows.min()) <= int(rows.max()) < vocabulary:
        raise FileError(f"{path} does not hold rows of this model's tokens; delete it")
    return rows
