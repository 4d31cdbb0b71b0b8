"""Wild input for every reader of files and names: valid input with parts deleted, doubled, replaced by wild
values, or its bytes changed.

`READERS` names each reader with its inputs; `attempt` tells whether an input was accepted. A reader may only
raise a CircuitsError.
"""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import re
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal
from unittest.mock import patch

import torch
from hypothesis import HealthCheck
from hypothesis import strategies as st
from render_samples import circuit_of, mapping_of, span_of
from safetensors.torch import save as pack
from small_models import random_model, save
from test_sources import to_lens_layout

from circuits.checks.verify import verify
from circuits.components import Edge, Head
from circuits.errors import CircuitsError, PromptError
from circuits.files import parse_json, to_json
from circuits.models import adapter, folder, hub, state_dict
from circuits.models.load import as_model
from circuits.prompts import Prompt, swap_words, to_pair
from circuits.results import Pictured, open_result
from circuits.show import to_dot, to_page
from circuits.show.export import EXPORTS, export
from circuits.sparsify.checkpoint import load_checkpoint, save_checkpoint
from circuits.sparsify.text import read_texts
from circuits.sweeps.lines import read_lines
from circuits.sweeps.manifest import read_manifest
from circuits.tasks.compare import compare
from circuits.tasks.ranking import Curve, Protocol, Ranked, Ranking, RoleEdge
from circuits.tracing.family import trace_family
from circuits.tracing.records import Circuit
from circuits.tracing.trace import trace
from circuits.tracing.why import why
from circuits.tracing.why_record import Why
from circuits.wires.record import Wiring
from circuits.wires.wiring import wiring
from circuits.zoo.language import tokenizer

Inputs = st.SearchStrategy[Any]
# What a terminal obeys, save the end of a line.
CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e]")
SLOW_IS_FINE = (
    HealthCheck.too_slow,
    HealthCheck.data_too_large,
    HealthCheck.large_base_example,
)

# Wild values, mutations

RAW = {  # JSON that no Python value stands for
    f"\x00{number}": text
    for number, text in enumerate(
        (
            "NaN",
            "-Infinity",
            "1e999",
            "9" * 5000,
            "[" * 500 + "]" * 500,
            '{"a":' * 3000,
            '"\\ud800"',
            '{"a":1,"a":2}',
            "01",
            "'x'",
            "",
            "1e-999",
        )
    )
}
WORDS = (
    "",
    "large",
    "L0H0",
    "0",
    "\x00",
    "\x1b[31m",
    "<script>",
    "../../etc/passwd",
    "/etc/passwd",
    "]]>",
    "\u202e",
    "é" * 300,
    "x" * 20_000,
)
WILD: Inputs = st.one_of(
    st.sampled_from(
        [
            None,
            True,
            False,
            0,
            1,
            -1,
            2**31,
            2**63,
            2**70,
            -(2**65),
            0.0,
            1e308,
            -1e-308,
            1.5,
            [],
            {},
            [[]],
            [1, "a"],
            {"a": 1},
            *RAW,
            *WORDS,
        ]
    ),
    st.integers(-3, 12),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
)


def to_wild_json(value: Any) -> str:
    """JSON text, the marks of `RAW` replaced by what they stand for."""
    text = json.dumps(value, indent=1, sort_keys=True)
    for mark, raw in RAW.items():
        text = text.replace(json.dumps(mark), raw)
    return text


@st.composite
def mutated(draw: st.DrawFn, valid: Any, *, most: int = 3) -> Any:
    """A value with a few of its parts replaced, deleted, doubled or renamed."""
    value = {"all": copy.deepcopy(valid)}
    for _ in range(draw(st.integers(1, most))):
        _change(draw, value)
    return value.get("all")


def _change(draw: st.DrawFn, value: Any) -> None:
    while True:
        keys = list(value) if isinstance(value, dict) else list(range(len(value)))
        key = draw(st.sampled_from(keys)) if keys else None
        inner = None if key is None else value[key]
        if (
            key is None
            or not isinstance(inner, dict | list)
            or not inner
            or draw(st.integers(0, 3)) == 0
        ):
            break
        value = inner
    action = draw(st.sampled_from(("replace", "nudge", "nudge", "delete", "double", "add")))
    if key is None or action == "add":
        wild = copy.deepcopy(draw(WILD))
        value.append(wild) if isinstance(value, list) else value.update(
            {draw(st.sampled_from(WORDS)): wild}
        )
    elif action == "replace":
        value[key] = copy.deepcopy(draw(WILD))
    elif action == "nudge":
        value[key] = _nudged(draw, inner)
    elif action == "delete":
        del value[key]
    elif isinstance(value, list):
        value.insert(key, copy.deepcopy(value[key]))
    else:
        value[f"{key}2"] = copy.deepcopy(value[key])


def _nudged(draw: st.DrawFn, value: Any) -> Any:
    """Another value of the same type, as a reader might well accept it."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + draw(st.sampled_from((-1, 1, 2, 1000)))
    if isinstance(value, float):
        return draw(st.floats(-2, 2) | st.sampled_from((0.0, -0.0, 1e15, 1e-300)))
    return draw(st.text(max_size=8) | st.sampled_from(WORDS)) if isinstance(value, str) else []


@st.composite
def damaged(draw: st.DrawFn, valid: bytes) -> bytes:
    """Bytes with some flipped, cut off, put in or taken out; or no relation to what is valid at all."""
    data = bytearray(valid)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        match draw(
            st.sampled_from(("set", "flip", "cut", "insert", "take", "double", "other"))
        ):
            case "set":
                data[at : at + 1] = draw(st.binary(min_size=1, max_size=8))
            case "flip" if data:
                data[at] ^= 1 << draw(st.integers(0, 7))
            case "cut":
                del data[at:]
            case "insert":
                data[at:at] = draw(
                    st.sampled_from(
                        [
                            b"\x00",
                            b"\xff" * 8,
                            b"\xef\xbb\xbf",
                            b"\r\n",
                            b"\xe2\x80\xa8",
                            b"NaN",
                            b"{" * 100,
                        ]
                    )
                )
            case "take":
                del data[at : at + draw(st.integers(1, 64))]
            case "double":
                data[at:at] = data[at : at + 64]
            case "other":
                data = bytearray(draw(st.binary(max_size=64)))
    return bytes(data)


# What each reader is given


@cache
def small_circuit() -> Circuit:
    """Two layers of two heads, three tokens; every kind of record is in it."""
    main = mapping_of(1, 2, [(Head(1, 0), 0.5), (Head(0, 1), 0.8)], total=0.9)
    return circuit_of(
        (" a", " b", " c"),
        (main,),
        name="small",
        layers=2,
        heads=2,
        spans=(span_of("b", (1,), (0, 1), ((0, 1),), 2),),
        focus=(1, 2),
    )


@cache
def folder_of_model() -> dict[str, bytes]:
    """The files of a tiny GPT-2."""
    with TemporaryDirectory() as room:
        return {
            path.name: path.read_bytes()
            for path in save(random_model("gpt2"), Path(room)).iterdir()
        }


@cache
def state_bytes() -> bytes:
    stream = io.BytesIO()
    torch.save(to_lens_layout(random_model("gpt2")), stream)
    return stream.getvalue()


def _unsigned(text: str) -> Any:
    """A result's JSON without its sha256."""
    return {name: value for name, value in json.loads(text).items() if name != "sha256"}


def _signed(value: Any) -> bytes:
    """A result's JSON with the sha256 that fits it, so that the checksum hides nothing behind it."""
    text = to_wild_json(value)
    try:
        plain = to_json(parse_json(text, "it"), sort_keys=True)
        return (
            plain[:-2] + f',\n "sha256": "{hashlib.sha256(plain.encode()).hexdigest()}"\n}}\n'
        ).encode()
    except CircuitsError:
        return text.encode("utf-8", "surrogatepass")


def _read_circuit(given: tuple[bytes, bytes], room: Path) -> None:
    content, packed = given
    (room / "circuit.json").write_bytes(content)
    (room / "circuit.safetensors").write_bytes(packed)
    known = Circuit.load(room)
    assert not CONTROL.search(str(known)), "a table must not pass control characters on"
    known.to_json(), to_dot(known), to_page(known), known.to_dataframe()
    for form in EXPORTS:
        export(known, form)


def _circuit_inputs() -> Inputs:
    packed = {"patterns": torch.from_numpy(small_circuit().arrays["patterns"])}
    plain = _unsigned(small_circuit().to_json())
    arrays = st.sampled_from(
        [
            pack({"patterns": packed["patterns"]}),
            pack({}),
            pack({"patterns": packed["patterns"].half()}),
            pack({"patterns": packed["patterns"].bfloat16()}),
            pack({"patterns": packed["patterns"][0]}),
            pack({"patterns": packed["patterns"] * torch.nan}),
            pack({"patterns": packed["patterns"].int(), "more": torch.zeros(3)}),
        ]
    )
    known = {data: hashlib.sha256(data).hexdigest() for data in [pack(packed)]}
    whole = st.tuples(
        (mutated(plain) | mutated(plain, most=1)).map(_signed), st.just(next(iter(known)))
    )
    other = arrays.map(
        lambda data: (
            _signed(plain | {"arrays_sha256": hashlib.sha256(data).hexdigest()}),
            data,
        )
    )
    bent = damaged(pack(packed)).map(
        lambda data: (
            _signed(plain | {"arrays_sha256": hashlib.sha256(data).hexdigest()}),
            data,
        )
    )
    loose = st.tuples(damaged(small_circuit().to_json().encode()), st.just(pack(packed)))
    return st.one_of(whole, whole, whole, other, bent, loose)


@cache
def small_results() -> dict[str, str]:
    """Results as they are written, of a tiny model."""
    model = as_model((random_model("gpt2"), tokenizer_once()))
    pair: dict[str, Any] = {"swap": {"large": "hot"}, "metric": "logprob"}
    wired = wiring(model, "The large", roles={"END": -1}, **pair)
    found = trace(model, "The large", key="large", **pair)
    family = trace_family(model, [to_pair(model, "The large", **pair)], key="large")
    listed = (
        wired,
        why(found, "L1H2", model=model),
        family,
        compare(found, found),
        verify(found, model=model),
    )
    return {f"{each.KIND}.json": each.to_json() for each in listed}


def _read_wiring(given: bytes, room: Path) -> None:
    (room / "wiring.json").write_bytes(given)
    known = Wiring.load(room)
    assert not CONTROL.search(str(known)), "a wiring must not pass control characters on"
    known.to_json(), known.to_graph(), known.to_dot(), known.page()


def _read_why(given: bytes, room: Path) -> None:
    (room / "why.json").write_bytes(given)
    known = Why.load(room)
    assert not CONTROL.search(str(known)), "an answer must not pass control characters on"
    known.to_json(), known.figure(), known.page()


def _read_result(given: bytes, room: Path) -> None:
    (room / "result.json").write_bytes(given)
    known = open_result(room / "result.json")
    assert not CONTROL.search(str(known)), "a result must not pass control characters on"
    known.to_json()
    if isinstance(known, Pictured):
        known.figure(), known.to_dot(), known.page()


def _other_inputs() -> Inputs:
    return st.one_of(
        *(_result_inputs(f"{kind}.json") for kind in ("family", "comparison", "verification"))
    )


def _result_inputs(name: str) -> Inputs:
    text = small_results()[name]
    plain = _unsigned(text)
    whole = (mutated(plain) | mutated(plain, most=1)).map(_signed)
    return st.one_of(whole, whole, damaged(text.encode()))


@cache
def small_ranking(units: Literal["heads", "edges"]) -> Ranking:
    """Three units, three sizes, two pairs."""
    names = (Head(0, 0), Head(0, 1), Head(1, 0))
    listed = names if units == "heads" else tuple(RoleEdge(head, "S1", "END") for head in names)
    curve = Curve((0, 1, 3), (0.0, 0.85, 1.0), (0.0, 0.8, 1.0), (0.0, 0.9, 1.0))
    return Ranking(
        task="words",
        model="mini",
        fingerprint="0",
        gated=True,
        protocol=Protocol(units),
        pairs=2,
        left_out=(("are too long", 1),),
        units=3,
        ranked=tuple(Ranked(unit, 0.5, 0.4, 0.6) for unit in listed),
        keep=curve,
        random=curve,
        cpr=0.7,
        cmd=0.3,
        seed=0,
        each=((0.0, 0.0), (0.8, 0.9), (1.0, 1.0)),
    )


def _read_ranking(given: bytes, room: Path) -> None:
    (room / "ranking.json").write_bytes(given)
    known = Ranking.load(room)
    assert not CONTROL.search(str(known)), "a ranking must not pass control characters on"
    known.count(), known.needed(), known.random_at(2), known.to_values()


def _ranking_inputs() -> Inputs:
    plain = [
        _unsigned(small_ranking(units).to_json()) | {"counts": {}}
        for units in ("heads", "edges")
    ]
    whole = (
        st.sampled_from(plain)
        .flatmap(lambda value: mutated(json.loads(json.dumps(value))))
        .map(_signed)
    )
    return st.one_of(whole, damaged(_signed(plain[1])))


def _read_jsonl(given: bytes, room: Path) -> None:
    (room / "text.jsonl").write_bytes(given)
    for text in read_texts(room / "text.jsonl"):
        tokenizer_once()(text)


@cache
def tokenizer_once() -> Any:
    return tokenizer()


def _jsonl_inputs() -> Inputs:
    lines = st.lists(
        mutated({"text": "The opposite of large", "id": 3}, most=2).map(to_wild_json),
        min_size=1,
        max_size=4,
    )
    packed = lines.map(
        lambda each: "\n".join(" ".join(line.split("\n")) for line in each).encode(
            "utf-8", "surrogatepass"
        )
    )
    return st.one_of(
        packed,
        damaged(b'{"text": "The opposite of \\"large\\" is"}\n{"text": "small"}\n'),
        st.binary(max_size=80),
    )


def _read_state(given: bytes, room: Path) -> None:
    (room / "final.pth").write_bytes(given)
    with patch.object(
        state_dict, "_read_tokenizer", lambda folder: tokenizer_once()
    ):  # reading it anew each time would take all the time
        state_dict.read(room / "final.pth")


def _state_inputs() -> Inputs:
    return st.one_of(damaged(state_bytes()), damaged(state_bytes()[:2000]), _state_dicts())


NEW_NAMES = (
    "blocks.99999999.ln1.w",
    "blocks.7.attn.W_Q",
    5,
    "",
    "model",
    "state_dict",
    "embed.W_E.embed.W_E",
)


@st.composite
def _state_dicts(draw: st.DrawFn) -> bytes:
    """State dicts with a tensor or two that are not as they must be."""
    state: dict[Any, Any] = dict(to_lens())
    for _ in range(draw(st.integers(1, 2))):
        name = draw(st.sampled_from(sorted(map(str, state))))
        old = state.get(name)
        shape = draw(st.lists(st.integers(0, 5), max_size=3))
        match draw(
            st.sampled_from(("shape", "type", "drop", "rename", "expand", "value", "integers"))
        ):
            case "shape":
                state[name] = torch.zeros(shape)
            case "type":
                state[name] = draw(st.sampled_from([None, 3, "x", [1], {}, b"x"]))
            case "drop":
                state.pop(name, None)
            case "rename":
                state[draw(st.sampled_from(NEW_NAMES))] = old
            case "expand":
                state[name] = torch.zeros(1).expand(10**6, 10**6)
            case "value":
                state[name] = torch.full(shape, float("nan"))
            case "integers":
                state[name] = torch.zeros(shape, dtype=torch.int64)
    stream = io.BytesIO()
    torch.save(state, stream)
    return stream.getvalue()


@cache
def to_lens() -> dict[str, torch.Tensor]:
    return to_lens_layout(random_model("gpt2"))


def _folder_inputs() -> Inputs:
    files = folder_of_model()
    texts = (
        "config.json",
        "tokenizer_config.json",
        "generation_config.json",
        "circuits.json",
        "model.safetensors.index.json",
    )
    valid = {name: json.loads(files[name]) for name in texts if name in files} | {
        "circuits.json": {"gate": True, "bos": None}
    }
    valid["model.safetensors.index.json"] = {
        "metadata": {},
        "weight_map": {"wte.weight": "model.safetensors", "wpe.weight": "b.safetensors"},
    }
    whole = [
        st.tuples(
            st.just(name),
            mutated(value)
            .map(to_wild_json)
            .map(lambda text: text.encode("utf-8", "surrogatepass")),
        )
        for name, value in valid.items()
    ]
    bent = [
        st.tuples(st.just(name), damaged(json.dumps(value).encode()))
        for name, value in valid.items()
    ]
    header = st.tuples(st.just("model.safetensors"), damaged(files["model.safetensors"][:4000]))
    return st.one_of(*whole, *bent, header)


def _vet(given: tuple[str, bytes], room: Path) -> None:
    name, content = given
    (room / name).write_bytes(content)
    try:
        folder.vet_folder(room)
        folder.read_flags(room)
    finally:
        (room / name).unlink()


def _read_folder(given: tuple[str, bytes], room: Path) -> None:
    for name, content in folder_of_model().items():
        (room / name).write_bytes(content)
    (room / given[0]).write_bytes(given[1])
    try:
        folder.read(room)
    finally:
        (room / given[0]).unlink()


def _adapter_inputs() -> Inputs:
    plain = {
        "peft_type": "LORA",
        "r": 4,
        "base_model_name_or_path": "../base",
        "target_modules": ["c_attn"],
        "rank_pattern": {},
        "megatron_config": None,
    }
    return (
        mutated(plain, most=2)
        .map(to_wild_json)
        .map(lambda text: text.encode("utf-8", "surrogatepass"))
    )


def _vet_adapter(given: bytes, room: Path) -> None:
    (room / "adapter_model.safetensors").write_bytes(pack({"lora_A": torch.zeros(4, 32)}))
    (room / "adapter_config.json").write_bytes(given)
    adapter.base_of(room)


def _read_cache(given: bytes, room: Path) -> None:
    def make(folder: Path) -> None:
        (folder / "weights").write_bytes(b"0123")

    with patch.dict(os.environ, {"CIRCUITS_CACHE": str(room)}), redirect_stderr(io.StringIO()):
        kept = hub.cached_folder("tiny", make)
        (kept / "sha256.json").write_bytes(given)
        assert (hub.cached_folder("tiny", make) / "weights").read_bytes() == b"0123"


def _read_checkpoint(given: bytes, room: Path) -> None:
    (room / "checkpoint.safetensors").write_bytes(given)
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    load_checkpoint(room / "checkpoint.safetensors", {"a": weight}, torch.optim.AdamW([weight]))


@cache
def checkpoint_bytes() -> bytes:
    weight = torch.nn.Parameter(torch.zeros(2, 2))
    optimizer = torch.optim.AdamW([weight])
    weight.sum().backward()
    optimizer.step()
    with TemporaryDirectory() as room:
        save_checkpoint(Path(room) / "it", {"a": weight}, optimizer, step=1, gap=0.5)
        return (Path(room) / "it").read_bytes()


def _line_inputs() -> Inputs:
    plain = {
        "prompt": "The opposite of large",
        "key": "large",
        "query": -1,
        "swap": {"large": "hot"},
        "answer": "small",
        "id": "a",
        "note": [1],
    }
    line = (
        mutated(plain, most=2)
        .map(to_wild_json)
        .map(lambda text: " ".join(text.split("\n")).encode("utf-8", "surrogatepass"))
    )
    return st.one_of(
        st.lists(line, max_size=4).map(b"\n".join),
        damaged(json.dumps(plain).encode()),
        st.binary(max_size=80),
    )


def _read_lines(given: bytes, room: Path) -> None:
    (room / "lines.jsonl").write_bytes(given)
    lines = read_lines(room / "lines.jsonl")
    (shard,) = lines.shards(len(lines))
    wrong = [line.error for line in shard.lines() if line.error is not None]
    if wrong:
        # A line that is wrong gets its error, and the others are read.
        raise PromptError(wrong[0])


def _manifest_inputs() -> Inputs:
    plain = dict.fromkeys(("seed", "lines", "layers", "heads", "schema"), 1) | {
        "share": 0.5,
        "kind": "circuits sweep",
    }
    plain |= dict.fromkeys(("controls", "gated", "reads_bos"), True) | dict.fromkeys(
        ("input", "sha256", "model", "fingerprint"), "a"
    )
    return (
        mutated(plain).map(to_wild_json).map(lambda text: text.encode("utf-8", "surrogatepass"))
    )


def _read_manifest(given: bytes, room: Path) -> None:
    (room / "manifest.json").write_bytes(given)
    read_manifest(room)


NAMES = st.one_of(
    st.text(max_size=12),
    st.sampled_from(
        ["large", "5", "-1", "The", "opposite", "L0H1", "11.7", "a1.h2", "L1H2:3→4", "0.0:0->5"]
    ),
    st.from_regex(r"\A[La]?-?\d{1,40}[.Hh:-]{0,3}\d{0,30}(:\d{0,30}(→|->)\d{0,30})?\Z"),
    st.sampled_from(
        [
            "9" * 5000,
            "--5",
            "-",
            "٣",
            "²",
            "L" + "9" * 5000 + "H0",
            "L0H0:5→",
            "L0H0:" + "1" * 4999 + "->2",
            *WORDS,
        ]
    ),
)
SPOKEN = Prompt(
    'The opposite of "large"',
    (0, 1, 2, 3, 4, 5),
    ("<s>", "The", " opposite", ' "', "large", '"'),
)


def _read_names(given: tuple[int, str, str], room: Path) -> None:
    which, name, other = given
    match which:
        case 0:
            SPOKEN.position(name)
        case 1:
            Head.parse(name)
        case 2:
            Edge.parse(name)
        case _:
            swap_words(SPOKEN.text, {name: other, other: name})


# The readers


@dataclass(frozen=True, slots=True)
class Reader:
    """A reader, what it is given, and how many inputs it gets when there is time."""

    name: str
    inputs: Callable[[], Inputs]
    read: Callable[[Any, Path], None]
    many: int


READERS = (
    Reader("circuit.json + safetensors", _circuit_inputs, _read_circuit, 6000),
    Reader("ranking.json", _ranking_inputs, _read_ranking, 4000),
    Reader("wiring.json", lambda: _result_inputs("wiring.json"), _read_wiring, 2000),
    Reader("why.json", lambda: _result_inputs("why.json"), _read_why, 2000),
    Reader("family, comparison, verification", _other_inputs, _read_result, 2000),
    Reader("jsonl text", _jsonl_inputs, _read_jsonl, 4000),
    Reader(".pth state dict", _state_inputs, _read_state, 2000),
    Reader(
        "converted GGUF in the cache",
        lambda: st.one_of(damaged(b'{"weights": "1"}'), st.binary(max_size=40)),
        _read_cache,
        1500,
    ),
    Reader("model folder, vetting", _folder_inputs, _vet, 4000),
    Reader("model folder, whole", _folder_inputs, _read_folder, 300),
    Reader("adapter config", _adapter_inputs, _vet_adapter, 1500),
    Reader("checkpoint", lambda: damaged(checkpoint_bytes()), _read_checkpoint, 1500),
    Reader("lines of a sweep", _line_inputs, _read_lines, 3000),
    Reader("manifest of a sweep", _manifest_inputs, _read_manifest, 1000),
    Reader(
        "positions, heads, edges, swaps",
        lambda: st.tuples(st.integers(0, 3), NAMES, NAMES),
        _read_names,
        4000,
    ),
)


def attempt(reader: Reader, given: Any, room: Path) -> bool:
    """Whether the reader accepted the input; a refusal is one line. Anything but a CircuitsError passes
    through."""
    try:
        reader.read(given, room)
    except CircuitsError as why:
        assert str(why) and str(why).isprintable(), (
            "a refusal is one line that a terminal can show"
        )
        return False
    return True
