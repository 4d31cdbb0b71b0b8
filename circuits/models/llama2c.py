"""A llama2.c checkpoint (`stories15M.bin` with `tokenizer.bin`) as a Hugging Face Llama with its tokenizer.

1. The header, seven int32, says how large each matrix is. It must account for the file to the byte before
   anything is read; what follows the last matrix is the tokenizer (the file is then a bundle of both).
   Otherwise the tokenizer is the `tokenizer.bin` beside the file.
2. A negative vocabulary means that the output matrix is not the embedding. It then stands after the rotary
   tables, which are skipped: their base is always 10000.
3. llama2.c rotates neighbouring dimensions, Hugging Face dimensions half a head apart: the rows of queries
   and keys are reordered to match.
4. A token is a float32 score, an int32 length and its text. Ids 0, 1, 2 are unknown, BOS and EOS, ids 3 to
   258 the bytes, whatever their text says. The score of a token is the rank of every merge that makes it.
"""

from __future__ import annotations

import hashlib
import math
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from einops import rearrange

from circuits.errors import ModelError
from circuits.files import check_regular
from circuits.models.folder import NO_LIMIT, quiet, reading, saved_by_torch

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

# The number 0x616b3432, with which llama2.c's later formats begin.
_LATER_FORMAT: Final = b"24ka"
_HEADER: Final = struct.Struct("<7i")
_TOKEN: Final = struct.Struct("<fi")
_SPECIAL: Final = ("<unk>", "<s>", "</s>")
_NAMED: Final = (*_SPECIAL, *(f"<0x{byte:02X}>" for byte in range(256)))
_FIRST_PIECE: Final = len(_NAMED)
_MATRICES: Final = {  # what the matrices of a layer are called by Hugging Face
    "norm1": "input_layernorm",
    "q": "self_attn.q_proj",
    "k": "self_attn.k_proj",
    "v": "self_attn.v_proj",
    "o": "self_attn.o_proj",
    "norm2": "post_attention_layernorm",
    "gate": "mlp.gate_proj",
    "down": "mlp.down_proj",
    "up": "mlp.up_proj",
}


@dataclass(frozen=True, slots=True)
class Header:
    """What the first 28 bytes say. `tied`: the embedding is the output matrix too."""

    dim: int
    hidden: int
    layers: int
    heads: int
    key_heads: int
    vocabulary: int
    context: int
    tied: bool

    @property
    def d_head(self) -> int:
        return self.dim // self.heads

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """The shape of every matrix, in the order of the file."""
        layers, dim, hidden = self.layers, self.dim, self.hidden
        keys = self.key_heads * self.d_head
        rotations = (self.context, self.d_head // 2)
        shapes: dict[str, tuple[int, ...]] = {
            "embedding": (self.vocabulary, dim),
            "norm1": (layers, dim),
            "q": (layers, dim, dim),
            "k": (layers, keys, dim),
            "v": (layers, keys, dim),
            "o": (layers, dim, dim),
            "norm2": (layers, dim),
            "gate": (layers, hidden, dim),
            "down": (layers, dim, hidden),
            "up": (layers, hidden, dim),
            "norm": (dim,),
            "cosines": rotations,
            "sines": rotations,
        }
        if not self.tied:
            shapes["output"] = (self.vocabulary, dim)
        return shapes

    @property
    def size(self) -> int:
        """The bytes of a whole checkpoint: four for each number."""
        return _HEADER.size + 4 * sum(math.prod(shape) for shape in self.shapes.values())


def is_checkpoint(file: Path) -> bool:
    """Whether to read a file as a llama2.c checkpoint: it is a .bin or .data, and neither zip nor pickle."""
    if file.suffix not in (".bin", ".data"):
        return False
    check_regular(file, most=NO_LIMIT)
    return not saved_by_torch(file)


def read_header(file: Path) -> Header:
    """The header of a checkpoint, refused unless it describes a Llama that fits into its file."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        raw = opened.read(_HEADER.size)
    if raw.startswith(_LATER_FORMAT):
        raise ModelError(
            f"{file} is of a later llama2.c format; export it again with --version 0"
        )
    if len(raw) < _HEADER.size:
        raise ModelError(f"{file} has {size} bytes; a llama2.c checkpoint has more")
    dim, hidden, layers, heads, key_heads, vocabulary, context = _HEADER.unpack(raw)
    header = Header(
        dim, hidden, layers, heads, key_heads, abs(vocabulary), context, tied=vocabulary > 0
    )
    if min(dim, hidden, layers, heads, key_heads, header.vocabulary, context) <= 0:
        raise ModelError(
            f"{file} is not a llama2.c checkpoint: not all sizes are positive in its {header}"
        )
    if dim % (2 * heads) or heads % key_heads:
        shape = f"{heads} heads ({key_heads} for keys) on {dim} numbers"
        raise ModelError(f"{file} is not a llama2.c checkpoint: {shape} do not divide evenly")
    if size < header.size:
        raise ModelError(
            f"{file} is cut off: it has {size} of the {header.size} bytes its header describes"
        )
    return header


def digests(file: Path) -> dict[str, str]:
    """The sha256 of a checkpoint without its tokenizer, and of its tokenizer."""
    checkpoint: Any = np.memmap(file, np.uint8, "r", shape=(read_header(file).size,))
    tokenizer = read_tokenizer_bytes(file)
    return {
        "checkpoint": hashlib.sha256(checkpoint).hexdigest(),
        "tokenizer": hashlib.sha256(tokenizer).hexdigest(),
    }


def read_tokenizer_bytes(file: Path) -> bytes:
    """The tokenizer of a checkpoint: what follows it in a bundle, or the tokenizer.bin beside it."""
    with file.open("rb") as opened:
        opened.seek(read_header(file).size)
        bundled = opened.read()
    if bundled:
        return bundled
    beside = file.with_name("tokenizer.bin")
    if not beside.exists():
        raise ModelError(f"{file} has no tokenizer; put its tokenizer.bin beside it")
    check_regular(beside, most=NO_LIMIT)
    return beside.read_bytes()


def convert(file: Path, target: Path) -> None:
    """Write a checkpoint and its tokenizer into the folder `target`, as Hugging Face keeps a Llama."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    with reading(file), quiet():
        header = read_header(file)
        pieces = read_pieces(read_tokenizer_bytes(file), header.vocabulary, file)
        unknown, bos, eos = _SPECIAL
        tokenizer = PreTrainedTokenizerFast(
            tokenizer_object=to_tokenizer(pieces),
            unk_token=unknown,
            bos_token=bos,
            eos_token=eos,
        )
        tokenizer.save_pretrained(target)
        config = LlamaConfig(
            hidden_size=header.dim,
            intermediate_size=header.hidden,
            num_hidden_layers=header.layers,
            num_attention_heads=header.heads,
            num_key_value_heads=header.key_heads,
            max_position_embeddings=header.context,
            vocab_size=header.vocabulary,
            rms_norm_eps=1e-5,
            bos_token_id=1,
            eos_token_id=2,
            tie_word_embeddings=header.tied,
            architectures=["LlamaForCausalLM"],
        )
        config.save_pretrained(target)
        save_file(
            to_llama(file, header), target / "model.safetensors", metadata={"format": "pt"}
        )


def to_llama(file: Path, header: Header) -> dict[str, torch.Tensor]:
    """The matrices under Hugging Face's names."""
    stored = _read_matrices(file, header)
    for name in ("q", "k"):
        # Neighbours (even, odd) of a head → its first half, its second half.
        pairs = "layer (head half side) dim -> layer (head side half) dim"
        stored[name] = rearrange(stored[name], pairs, half=header.d_head // 2, side=2)
    state = {
        "model.embed_tokens.weight": stored["embedding"],
        "model.norm.weight": stored["norm"],
    }
    if not header.tied:
        state["lm_head.weight"] = stored["output"]
    for layer in range(header.layers):
        for name, new_name in _MATRICES.items():
            state[f"model.layers.{layer}.{new_name}.weight"] = stored[name][layer].contiguous()
    return state


def _read_matrices(file: Path, header: Header) -> dict[str, torch.Tensor]:
    import torch

    stored = {}
    start = _HEADER.size
    for name, shape in header.shapes.items():
        mapped = np.memmap(file, "<f4", "r", start, shape)
        start += mapped.nbytes
        if name not in ("cosines", "sines") and not np.isfinite(mapped).all():
            raise ModelError(f"{file} holds numbers in {name} that are not finite")
        # A copy: safetensors wants its own.
        stored[name] = torch.from_numpy(mapped.astype(np.float32))
    return stored


def read_pieces(raw: bytes, vocabulary: int, file: Path) -> list[tuple[str, float]]:
    """The text and score of each token. The special tokens and the bytes get their usual names."""
    damaged = f"the tokenizer of {file} is damaged"
    pieces = []
    start = 4  # after the length of the longest token, which nothing here needs
    for token in range(vocabulary):
        if start + _TOKEN.size > len(raw):
            raise ModelError(f"{damaged}: it is cut off at token {token} of {vocabulary}")
        score, length = _TOKEN.unpack_from(raw, start)
        start += _TOKEN.size
        if not 0 <= length <= len(raw) - start or not math.isfinite(score):
            raise ModelError(
                f"{damaged}: token {token} has length {length} and score {score:g}"
            )
        if token < _FIRST_PIECE:
            text = _NAMED[token]
        else:
            try:
                text = raw[start : start + length].decode().replace(" ", "▁")
            except UnicodeDecodeError as why:
                raise ModelError(f"{damaged}: token {token} is not UTF-8") from why
        pieces.append((text, score))
        start += length
    if start != len(raw):
        raise ModelError(
            f"{damaged}: it has {len(raw) - start} bytes after its {vocabulary} tokens"
        )
    if len({text for text, _ in pieces}) < len(pieces):
        raise ModelError(f"{damaged}: two tokens have the same text")
    return pieces


def to_tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    """Byte-pair merges in the order of the scores of what they make; unknown characters become bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing

    ids = {text: token for token, (text, _) in enumerate(pieces)}
    mergeable = {text for text, _ in pieces[_FIRST_PIECE:]}
    # Of equals, the earlier token.
    best_first = sorted(pieces[_FIRST_PIECE:], key=lambda piece: -piece[1])
    merges = []
    for text, _ in best_first:
        for cut in range(1, len(text)):
            if text[:cut] in mergeable and text[cut:] in mergeable:
                merges.append((text[:cut], text[cut:]))
    tokenizer = Tokenizer(
        BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True)
    )
    tokenizer.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    tokenizer.add_special_tokens(
        [AddedToken(text, special=True, normalized=False) for text in _SPECIAL]
    )
    tokenizer.post_processor = TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer
