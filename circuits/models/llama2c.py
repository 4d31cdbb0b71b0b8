"""A llama2.c checkpoint (`stories15M.bin` with `tokenizer.bin`) as a Hugging Face Llama with its tokenizer.

1. The header, seven int32, says how large each matrix is. It must account for the file to the byte before
   anything of its size is read; what follows the last matrix must be the tokenizer, whole (a bundle).
   Otherwise the tokenizer is the `tokenizer.bin` beside the file.
2. A negative vocabulary means an output matrix of its own, after the rotary tables, which are skipped: their
   base is always 10000.
3. llama2.c rotates neighbouring numbers, Hugging Face numbers half a head apart: the rows of queries and keys
   are reordered to match.
4. A token is a float32 score, an int32 length and its text. Ids 0, 1, 2 are unknown, BOS and EOS, ids 3 to
   258 the bytes, whatever their text says. The score of a token is the rank of every merge that makes it.
"""

from __future__ import annotations

import hashlib
import math
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from einops import rearrange

from circuits.errors import ModelError
from circuits.files import check_regular, read_bytes
from circuits.models.folder import NO_LIMIT, quiet, reading

if TYPE_CHECKING:
    import torch
    from tokenizers import Tokenizer

_OTHER_FORMATS: Final = re.compile(rb"PK\x03\x04|\x80[\x02-\x05][^\x00]")  # a zip (torch.save), a pickle
_MAGIC: Final = b"24ka"  # llama2.c's later formats, which begin with the number 0x616b3432
_HEADER: Final = struct.Struct("<7i")
_TOKEN: Final = struct.Struct("<fi")
_SPECIAL: Final = ("<unk>", "<s>", "</s>")
_FIRST_PIECE: Final = len(_SPECIAL) + 256
_LARGEST: Final = {"layers": 1000, "heads": 1024, "vocabulary": 2**20, "context": 2**20}
_LARGEST_TOKENIZER: Final = 64 * 2**20  # bytes
_LONGEST_PIECE: Final = 512  # bytes
_LARGEST_OTHERWISE: Final = 2**17


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
        """Every matrix in the order of the file."""
        layers, dim, hidden = self.layers, self.dim, self.hidden
        keys, rotation = self.key_heads * self.d_head, (self.context, self.d_head // 2)
        shapes: dict[str, tuple[int, ...]] = {"embedding": (self.vocabulary, dim), "norm1": (layers, dim)}
        shapes |= {"q": (layers, dim, dim), "k": (layers, keys, dim), "v": (layers, keys, dim)}
        shapes |= {"o": (layers, dim, dim), "norm2": (layers, dim), "gate": (layers, hidden, dim)}
        shapes |= {"down": (layers, dim, hidden), "up": (layers, hidden, dim), "norm": (dim,)}
        shapes |= {"cosines": rotation, "sines": rotation}
        return shapes if self.tied else shapes | {"output": (self.vocabulary, dim)}

    @property
    def size(self) -> int:
        """Bytes of a whole checkpoint."""
        return _HEADER.size + 4 * sum(map(math.prod, self.shapes.values()))


def is_checkpoint(file: Path) -> bool:
    """Whether to read a file as a llama2.c checkpoint: it is a .bin or .data, and neither zip nor pickle."""
    if file.suffix not in (".bin", ".data"):
        return False
    check_regular(file, most=NO_LIMIT)
    with file.open("rb") as opened:
        return not _OTHER_FORMATS.match(opened.read(4))


def read_header(file: Path) -> Header:
    """The header of a checkpoint, refused unless it describes a Llama that fits into its file."""
    size = file.stat().st_size
    with file.open("rb") as opened:
        raw = opened.read(_HEADER.size)
    if raw.startswith(_MAGIC):
        raise ModelError(f"{file} is of a later llama2.c format; export it again with --version 0")
    if len(raw) < _HEADER.size:
        raise ModelError(f"{file} has {size} bytes; a llama2.c checkpoint has more")
    dim, hidden, layers, heads, key_heads, vocabulary, context = _HEADER.unpack(raw)
    header = Header(dim, hidden, layers, heads, key_heads, abs(vocabulary), context, tied=vocabulary > 0)
    for name in ("dim", "hidden", "layers", "heads", "key_heads", "vocabulary", "context"):
        value, most = getattr(header, name), _LARGEST.get(name, _LARGEST_OTHERWISE)
        if not 0 < value <= most:
            wrong = f"its header says {name} {value}, which must be 1 to {most}"
            raise ModelError(f"{file} is not a llama2.c checkpoint: {wrong}")
    if header.dim % (2 * header.heads) or header.heads % header.key_heads:
        shape = f"{header.heads} heads ({header.key_heads} for keys) on {header.dim} numbers"
        raise ModelError(f"{file} is not a llama2.c checkpoint: {shape} do not divide evenly")
    if size < header.size:
        raise ModelError(f"{file} is cut off: it has {size} of the {header.size} bytes its header describes")
    return header


def digests(file: Path) -> dict[str, str]:
    """The sha256 of a checkpoint without its tokenizer, and of its tokenizer."""
    tokenizer = read_tokenizer_bytes(file)
    checkpoint = np.memmap(file, np.uint8, "r", shape=(read_header(file).size,))
    parts = {"checkpoint": checkpoint, "tokenizer": tokenizer}
    return {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}


def read_tokenizer_bytes(file: Path) -> bytes:
    """The tokenizer of a checkpoint: what follows it in a bundle, or the tokenizer.bin beside it."""
    header = read_header(file)
    if extra := file.stat().st_size - header.size:
        if extra > _LARGEST_TOKENIZER:
            described = f"{extra} bytes more than its header describes"
            raise ModelError(f"{file} has {described}; no tokenizer is that large")
        with file.open("rb") as opened:
            opened.seek(header.size)
            return opened.read(extra)
    beside = file.with_name("tokenizer.bin")
    if not beside.exists():
        raise ModelError(f"{file} has no tokenizer; put its tokenizer.bin beside it")
    return read_bytes(beside, most=_LARGEST_TOKENIZER)


def convert(file: Path, target: Path) -> None:
    """Write a checkpoint and its tokenizer into the folder `target`, as Hugging Face keeps a Llama."""
    from safetensors.torch import save_file
    from transformers import LlamaConfig, PreTrainedTokenizerFast

    with reading(file), quiet():
        header = read_header(file)
        pieces = read_pieces(read_tokenizer_bytes(file), header.vocabulary, file)
        marks = dict(zip(("unk_token", "bos_token", "eos_token"), _SPECIAL, strict=True))
        PreTrainedTokenizerFast(tokenizer_object=to_tokenizer(pieces), **marks).save_pretrained(target)
        sizes = {"hidden_size": header.dim, "intermediate_size": header.hidden}
        sizes |= {"num_hidden_layers": header.layers, "num_attention_heads": header.heads}
        sizes |= {"num_key_value_heads": header.key_heads, "max_position_embeddings": header.context}
        sizes |= {"vocab_size": header.vocabulary}
        rest: dict[str, Any] = {"rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2}
        rest |= {"tie_word_embeddings": header.tied}
        LlamaConfig(**sizes, **rest, architectures=["LlamaForCausalLM"]).save_pretrained(target)
        save_file(to_llama(file, header), target / "model.safetensors", metadata={"format": "pt"})


def to_llama(file: Path, header: Header) -> dict[str, torch.Tensor]:
    """The matrices under Hugging Face's names."""
    import torch

    stored, start = {}, _HEADER.size
    for name, shape in header.shapes.items():
        mapped = np.memmap(file, "<f4", "r", start, shape)
        start += mapped.nbytes
        if name not in ("cosines", "sines") and not np.isfinite(mapped).all():
            raise ModelError(f"{file} holds numbers in {name} that are not finite")
        stored[name] = torch.from_numpy(mapped.astype(np.float32))  # a copy: safetensors wants its own
    for name in "qk":  # neighbours (even, odd) of a head → its first half, its second half
        pairs = "layer (head half side) dim -> layer (head side half) dim"
        stored[name] = rearrange(stored[name], pairs, half=header.d_head // 2, side=2)
    outer = {"model.embed_tokens.weight": stored["embedding"], "model.norm.weight": stored["norm"]}
    if not header.tied:
        outer["lm_head.weight"] = stored["output"]
    inner = {"input_layernorm": "norm1", "post_attention_layernorm": "norm2"}
    inner |= {f"self_attn.{side}_proj": side for side in "qkvo"}
    inner |= {f"mlp.{part}_proj": part for part in ("gate", "up", "down")}
    blocks = {
        f"model.layers.{layer}.{name}.weight": stored[part][layer].contiguous()
        for layer in range(header.layers)
        for name, part in inner.items()
    }
    return outer | blocks


def read_pieces(raw: bytes, vocabulary: int, file: Path) -> list[tuple[str, float]]:
    """Text and score of each token, the special ones and the bytes under their usual names."""
    refused = f"the tokenizer of {file}"
    pieces, start = [], 4  # after the length of the longest, which nothing here needs
    for token in range(vocabulary):
        if start + _TOKEN.size > len(raw):
            raise ModelError(f"{refused} is cut off at token {token} of {vocabulary}")
        score, length = _TOKEN.unpack_from(raw, start)
        start += _TOKEN.size
        if not 0 <= length <= min(_LONGEST_PIECE, len(raw) - start) or not math.isfinite(score):
            raise ModelError(f"{refused} is damaged: token {token} has length {length} and score {score:g}")
        pieces.append((_spelled(raw[start : start + length], token, refused), score))
        start += length
    if start != len(raw):
        raise ModelError(f"{refused} has {len(raw) - start} bytes after its {vocabulary} tokens")
    if len({text for text, _ in pieces}) < len(pieces):
        raise ModelError(f"{refused} has the same text for two tokens")
    return pieces


def _spelled(text: bytes, token: int, refused: str) -> str:
    if token < _FIRST_PIECE:
        return _SPECIAL[token] if token < len(_SPECIAL) else f"<0x{token - len(_SPECIAL):02X}>"
    try:
        return text.decode().replace(" ", "▁")
    except UnicodeDecodeError as why:
        raise ModelError(f"{refused} is damaged: token {token} is not UTF-8") from why


def to_tokenizer(pieces: list[tuple[str, float]]) -> Tokenizer:
    """Byte-pair merges in the order of the scores of what they make; unknown characters become bytes."""
    from tokenizers import AddedToken, Tokenizer, decoders, normalizers
    from tokenizers.models import BPE
    from tokenizers.processors import TemplateProcessing

    ids = {text: token for token, (text, _) in enumerate(pieces)}
    ranked = sorted(pieces[_FIRST_PIECE:], key=lambda piece: -piece[1])  # of equals, the earlier token
    merges = [
        (text[:cut], text[cut:])
        for text, _ in ranked
        for cut in range(1, len(text))
        if ids.get(text[:cut], -1) >= _FIRST_PIECE and ids.get(text[cut:], -1) >= _FIRST_PIECE
    ]
    tokenizer = Tokenizer(BPE(ids, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    tokenizer.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    spaces = (decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse())
    tokenizer.decoder = decoders.Sequence([*spaces, decoders.Strip(" ", 1, 0)])
    tokenizer.add_special_tokens([AddedToken(text, special=True, normalized=False) for text in _SPECIAL])
    tokenizer.post_processor = TemplateProcessing("<s> $A", "<s> $A <s> $B", [("<s>", 1)])
    return tokenizer
