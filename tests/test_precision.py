"""Models in half precision are measured in fp32 unless asked otherwise, and say so in one line."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from conftest import ARCHITECTURES
from small_models import PROMPT, random_model, save
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

from circuits.cli import main
from circuits.errors import ModelError
from circuits.models.load import as_model, load, to_dtype
from circuits.models.placement import to_device
from circuits.sparsify.measure import measure_sparsity
from circuits.tracing.records import Circuit
from circuits.tracing.trace import trace
from circuits.zoo.language import tokenizer

HALVES = (torch.float16, torch.bfloat16)
QUESTION: Any = {"key": "large", "swap": {"large": "hot"}, "answer": "small", "foil": "cold"}


def half(architecture: str, dtype: torch.dtype) -> Any:
    model: Any = random_model(architecture)
    return model.to(dtype)


def measured(circuit: Circuit) -> list[tuple[str, float, float | None]]:
    return [(str(each.head), each.effect, each.loading) for each in circuit.mapping().heads]


@pytest.mark.parametrize("dtype", HALVES, ids=str)
@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_half_precision_object_is_measured_as_a_copy_in_fp32(
    architecture: str, dtype: torch.dtype
) -> None:
    theirs = half(architecture, dtype)
    with pytest.warns(UserWarning, match="copy in float32") as said:
        model = as_model((theirs, tokenizer()))
    assert len(said) == 1 and said[0].filename == __file__ and "\n" not in str(said[0].message)
    assert theirs.dtype == dtype and model.dtype == torch.float32
    # The user's own stays as it was.
    assert not any("hook" in name for name, _ in theirs.named_modules())
    tokens = torch.tensor([model.tokenize(PROMPT)])
    torch.testing.assert_close(
        model.logits(tokens), half(architecture, dtype).float()(tokens).logits
    )


def test_a_half_precision_object_can_be_traced_at_once() -> None:
    with pytest.warns(UserWarning, match="float16"):
        circuit = trace((half("gpt2", torch.float16), tokenizer()), PROMPT, **QUESTION)
    rounded = as_model((half("gpt2", torch.float16).float(), tokenizer()))
    assert circuit.engine == "fast"
    assert measured(circuit) == measured(trace(rounded, PROMPT, **QUESTION))


@pytest.mark.parametrize("dtype", HALVES, ids=str)
def test_a_folder_stored_in_half_precision_is_measured_in_fp32(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    folder = save(half("llama", dtype), tmp_path / "half")
    name = str(dtype).removeprefix("torch.")
    with pytest.warns(UserWarning, match=f"stored in {name}") as said:
        model = load(folder)
    assert model.dtype == torch.float32 and said[0].filename == __file__
    with warnings.catch_warnings(action="default"):
        told = CliRunner().invoke(
            main, ["trace", PROMPT, "--key", "large", "--model", str(folder)]
        )
    assert f"Warning: {folder} is stored in {name}" in told.stderr


@pytest.mark.parametrize(
    ("architecture", "dtype"),
    [*zip(ARCHITECTURES, HALVES * 2, strict=False), ("gpt2", HALVES[1])],
    ids=str,
)
@pytest.mark.long
def test_half_precision_that_was_asked_for_is_measured_as_it_is(
    architecture: str, dtype: torch.dtype, tmp_path: Path
) -> None:
    """Effects are those of the same model by the same path, rounded: logits to 8 or 11 bits."""
    folder = save(random_model(architecture), tmp_path / "model")
    with warnings.catch_warnings(action="error"):
        model, whole = load(folder, dtype=str(dtype)), load(folder)
    assert model.dtype == dtype
    rounded, exact = (trace(each, PROMPT, **QUESTION) for each in (model, whole))
    assert rounded.engine == exact.engine == "fast"
    largest = float(whole.logits(torch.tensor([whole.tokenize(PROMPT)])).abs().max())
    tolerance = 8 * torch.finfo(dtype).eps * largest / abs(exact.gap)
    effects = {head: effect for head, effect, _ in measured(exact)}
    for head, effect, _ in measured(rounded):
        assert effect == pytest.approx(effects[head], abs=tolerance)
    assert any(loading for _, _, loading in measured(rounded))


def test_an_object_keeps_the_dtype_that_is_asked_for() -> None:
    theirs = half("llama", torch.bfloat16)
    with warnings.catch_warnings(action="error"):
        assert as_model((theirs, tokenizer()), dtype="bf16").dtype == torch.bfloat16
        assert (
            as_model((random_model("llama"), tokenizer()), dtype=torch.float64).dtype
            == torch.float64
        )


def test_a_bridge_in_half_precision_says_so(directories: dict[str, Path]) -> None:
    own = AutoTokenizer.from_pretrained(directories["llama"])
    model = half("llama", torch.bfloat16)
    bridge = TransformerBridge.boot_transformers(
        "own", hf_model=model, tokenizer=own, device="cpu", dtype=torch.bfloat16
    )
    with pytest.warns(UserWarning, match="bfloat16"):
        assert as_model(bridge).dtype == torch.bfloat16
    with pytest.raises(ModelError, match="float32"):
        as_model(bridge, dtype="float32")


def test_every_source_takes_a_dtype() -> None:
    with warnings.catch_warnings(action="error"):
        assert load("planted-induction", dtype="bf16").dtype == torch.bfloat16
        # Whose edits overflow on the way up.
        assert load("mini", dtype="fp16").dtype == torch.float16
        # Stored in fp16, which is the package's own business.
        assert load("mini").dtype == torch.float32


def test_devices_and_dtypes_go_by_name() -> None:
    assert to_device("auto") == ("cuda:0" if torch.cuda.is_available() else "cpu")
    assert (
        to_dtype("bf16") is to_dtype("bfloat16") is to_dtype(torch.bfloat16) is torch.bfloat16
    )
    for wrong in ("int8", torch.int8, "half"):
        with pytest.raises(ModelError, match="fp32"):
            to_dtype(wrong)
    with pytest.raises(ModelError, match="abacus"):
        to_device("abacus")


@pytest.mark.parametrize(
    "call",
    [["sparsity", "planted-sparse"], ["sparsify", "planted-dense", "-o", "twin"]],
    ids=lambda call: call[0],
)
def test_commands_that_train_and_measure_twins_take_a_device(
    call: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refused = CliRunner().invoke(main, [*call, "--device", "abacus"])
    assert refused.exit_code == 1 and "abacus" in refused.stderr
    assert not (tmp_path / "twin").exists()


def test_sparsity_is_measured_in_the_dtype_that_is_asked_for() -> None:
    single, double = (
        measure_sparsity("planted-sparse", rows=2, dtype=dtype) for dtype in (None, "float64")
    )
    assert single.open_edges == pytest.approx(double.open_edges, abs=1e-3)
    assert single.loss == pytest.approx(double.loss, abs=1e-3) and single.loss != double.loss
