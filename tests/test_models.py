"""Any source of weights gives the same model; what cannot be trusted is refused in one line."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import ARCHITECTURES
from safetensors.torch import load_file, save_file
from small_models import PROMPT, random_model, save
from transformer_lens.hook_points import HookPoint
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

import circuits
from circuits import models
from circuits.errors import ModelError, PromptError
from circuits.models.hooks import EDITED, check_hooks
from circuits.models.load import as_model, load
from circuits.models.model import Model
from circuits.zoo.language import tokenizer


def prompt_of(model: Model) -> torch.Tensor:
    return torch.tensor([model.tokenize(PROMPT)])


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_directory_gives_the_logits_of_hugging_face(
    architecture: str, models: dict[str, Model]
) -> None:
    model = models[architecture]
    rows = [model.tokenize(text) for text in (PROMPT, 'The colour of "hot" is "')]
    tokens = torch.tensor(rows)
    expected = random_model(architecture)(tokens).logits
    torch.testing.assert_close(model.logits(tokens), expected, atol=1e-5, rtol=1e-5)
    assert expected.std() > 0.5  # far from the uniform predictions of small weights


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_sizes_are_those_of_the_config(architecture: str, models: dict[str, Model]) -> None:
    model = models[architecture]
    assert (model.n_layers, model.n_heads, model.d_head, model.d_model, model.n_ctx) == (
        3,
        4,
        8,
        32,
        32,
    )
    assert model.n_key_value_heads == (2 if architecture == "llama" else 4)
    assert model.vocab_size == len(tokenizer())
    assert (model.device, model.dtype) == (torch.device("cpu"), torch.float32)
    assert str(model).startswith(model.name)
    assert "3 layers of 4 heads" in str(model) and "\n" not in repr(model)


def test_gpt2_reads_bos_first_and_the_others_follow_their_tokenizer(
    models: dict[str, Model],
) -> None:
    spelled = ["The", "opposite", "of", '"', "large", '"', "is", '"']
    for name, model in models.items():
        start = [model.tokenizer.bos_token] if name == "gpt2" else []
        assert [model.spell(token) for token in model.tokenize(PROMPT)] == start + spelled


def test_the_caller_decides_about_bos(directories: dict[str, Path]) -> None:
    without, first = load(directories["gpt2"], bos=False), load(directories["llama"], bos=True)
    assert len(without.tokenize(PROMPT)) == 8 and len(first.tokenize(PROMPT)) == 9
    written = f"{first.tokenizer.bos_token} {PROMPT}"
    # A BOS that is written out is not doubled.
    assert first.tokenize(written) == first.tokenize(PROMPT)


def test_a_tokenizer_that_adds_bos_is_followed() -> None:
    from tokenizers.processors import TemplateProcessing

    adds_bos = tokenizer()
    adds_bos.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", adds_bos.bos_token_id)]
    )
    model = as_model((random_model("llama"), adds_bos))
    assert model.reads_bos and len(model.tokenize(PROMPT)) == 9


MISFITS = {
    "": "empty",
    "  \n": "empty",
    "The opposite of larg": "'larg'.* large",
    "a " * 40: r"41 .* at most 32",
}


@pytest.mark.parametrize(("text", "says"), MISFITS.items())
def test_prompts_that_do_not_fit_are_refused(
    text: str, says: str, models: dict[str, Model]
) -> None:
    with pytest.raises(PromptError, match=says):
        models["gpt2"].tokenize(text)


def test_a_token_outside_the_vocabulary_has_no_spelling(models: dict[str, Model]) -> None:
    with pytest.raises(PromptError, match="0 to 511"):
        models["gpt2"].spell(512)


def test_an_edit_bites_at_every_kind_of_hook_and_leaves_nothing_behind(model: Model) -> None:
    tokens = prompt_of(model)
    before = model.logits(tokens)
    for kind in EDITED:
        edit = (
            kind.format(1),
            lambda tensor, hook: tensor * torch.linspace(0, 2, tensor.shape[-1]),
        )
        with model.hooked([edit]):
            assert not torch.equal(model.logits(tokens), before), kind
        assert torch.equal(model.logits(tokens), before), kind


@pytest.mark.parametrize("interruption", [ValueError, KeyboardInterrupt])
def test_hooks_come_off_however_a_run_ends(
    interruption: type[BaseException], models: dict[str, Model]
) -> None:
    model = models["llama"]
    tokens = prompt_of(model)
    before = model.logits(tokens)

    def fail(tensor: torch.Tensor, hook: object) -> torch.Tensor:
        raise interruption

    zero = ("blocks.0.attn.hook_z", lambda tensor, hook: torch.zeros_like(tensor))
    failing, absent = ("blocks.2.attn.hook_pattern", fail), ("blocks.9.attn.hook_z", fail)
    with pytest.raises(interruption), model.hooked([zero]), model.hooked([failing]):
        model.logits(tokens)
    with pytest.raises(ModelError, match=r"no hook 'blocks\.9"), model.hooked([zero, absent]):
        pass
    assert torch.equal(model.logits(tokens), before)


def test_leaving_takes_off_only_our_own_hooks(directories: dict[str, Path]) -> None:
    model = load(directories["gpt2"])
    tokens, calls = prompt_of(model), []
    model.bridge.add_hook("blocks.0.attn.hook_z", lambda tensor, hook: calls.append(1))
    with model.hooked([("blocks.0.attn.hook_z", lambda tensor, hook: None)]):
        model.logits(tokens)
    model.logits(tokens)
    assert len(calls) == 2


def test_a_bridge_that_discards_edits_of_scores_is_taken_but_not_gated(
    directories: dict[str, Path],
) -> None:
    from transformer_lens.config import TransformerBridgeConfig

    sizes: dict[str, Any] = {
        "d_model": 16,
        "d_head": 4,
        "n_heads": 4,
        "n_layers": 2,
        "d_mlp": 32,
    }
    sizes |= {"n_ctx": 16, "d_vocab": 512}
    config = TransformerBridgeConfig(
        **sizes, act_fn="gelu", architecture="TransformerLensNative"
    )
    boot_native = getattr(TransformerBridge, "boot_native")  # noqa: B009 (put there by the library at import)
    bridge = boot_native(config, tokenizer=AutoTokenizer.from_pretrained(directories["gpt2"]))
    assert not as_model(bridge).edits_attention
    with pytest.raises(ModelError, match="cannot be gated"):
        as_model(bridge, gate=True)


def silenced() -> Model:
    """A model whose heads write nothing, which is refused."""
    silent: Any = random_model("gpt2")
    with torch.no_grad():
        for block in silent.transformer.h:
            block.attn.c_proj.weight.zero_()
    return as_model((silent, tokenizer()))


def test_edits_of_anything_else_must_reach_the_logits_or_the_first_hook_is_named() -> None:
    with pytest.raises(ModelError, match=r"blocks\.2\.attn\.hook_q"):
        silenced()


def test_an_edit_may_move_any_position_and_not_the_last(models: dict[str, Model]) -> None:
    """As in a compiled program in which nothing that attention writes reaches the last position."""
    model = models["gpt2"]

    def forward(tokens: torch.Tensor) -> torch.Tensor:
        logits = model.forward(tokens)
        return torch.cat((logits[:, :-1], torch.ones_like(logits[:, -1:])), 1)

    prompt = prompt_of(model)[0]
    assert check_hooks(forward, model._points, prompt, n_layers=model.n_layers)


def test_of_several_hooks_that_never_fire_the_first_is_named(models: dict[str, Model]) -> None:
    """In the order of `EDITED` and of layers, so that the message is the same in every run."""
    model = models["gpt2"]
    aside = [
        "blocks.0.attn.hook_z",
        "blocks.2.attn.hook_v",
        "blocks.1.attn.hook_v",
        "blocks.0.hook_mlp_out",
    ]
    points = model._points | {name: HookPoint() for name in aside}
    with pytest.raises(ModelError, match=r"hook blocks\.1\.attn\.hook_v never fires"):
        check_hooks(model.forward, points, prompt_of(model)[0], n_layers=model.n_layers)


def test_a_setting_that_the_bridge_does_not_know_is_refused(tmp_path: Path) -> None:
    model: Any = random_model("gpt2")
    model.config.scale_attn_weights = False
    with pytest.raises(ModelError, match="otherwise than Hugging Face"):
        load(save(model, tmp_path))


def test_a_setting_that_the_bridge_knows_is_measured(tmp_path: Path) -> None:
    model: Any = random_model("gpt2")
    model.config.scale_attn_by_inverse_layer_idx = True
    loaded, tokens = load(save(model, tmp_path)), torch.arange(9)[None]
    with torch.no_grad():
        own = type(model).from_pretrained(tmp_path).eval()(tokens).logits
    torch.testing.assert_close(loaded.logits(tokens), own, rtol=0, atol=1e-4)


def test_weights_of_more_layers_than_the_config_names_are_refused(tmp_path: Path) -> None:
    settings = save(random_model("llama"), tmp_path) / "config.json"
    settings.write_text(
        settings.read_text().replace('"num_hidden_layers": 3', '"num_hidden_layers": 2')
    )
    with pytest.raises(ModelError, match="more layers"):
        load(tmp_path)


def test_tensors_that_belong_to_no_part_are_mentioned(tmp_path: Path) -> None:
    file = save(random_model("llama"), tmp_path) / "model.safetensors"
    save_file(
        {**load_file(file), "reward.weight": torch.ones(3)}, file, metadata={"format": "pt"}
    )
    with pytest.warns(UserWarning, match=r"reward\.weight"):
        load(tmp_path)


def test_weights_that_are_not_numbers_are_refused() -> None:
    broken: Any = random_model("gpt2")
    with torch.no_grad():
        broken.transformer.h[1].mlp.c_fc.bias[0] = torch.nan
    with pytest.raises(ModelError, match="not finite"):
        as_model((broken, tokenizer()))


def test_what_the_user_has_is_taken_as_it_is(
    directories: dict[str, Path], models: dict[str, Model]
) -> None:
    own = random_model("gpt2").train()
    trainable = [parameter.requires_grad for parameter in own.parameters()]
    wrapped = as_model((own, tokenizer()))
    booted = as_model(
        TransformerBridge.boot_transformers(str(directories["gpt2"]), device="cpu")
    )
    tokens = prompt_of(wrapped)
    for model in (wrapped, booted, as_model((own, tokenizer())), as_model(wrapped)):
        torch.testing.assert_close(
            model.logits(tokens), models["gpt2"].logits(tokens), atol=1e-5, rtol=1e-5
        )
        assert model.tokenize(PROMPT) == models["gpt2"].tokenize(PROMPT)
        assert model.fingerprint == models["gpt2"].fingerprint
    assert as_model(wrapped) is wrapped
    assert own.training and own.transformer.h[0].attn.training  # type: ignore[union-attr]
    assert all(trainable) and all(parameter.requires_grad for parameter in own.parameters())


@pytest.mark.parametrize("as_bridge", [False, True], ids=["hugging face", "bridge"])
def test_a_model_in_train_mode_is_measured_without_dropout_and_stays_in_train_mode(
    directories: dict[str, Path], models: dict[str, Model], as_bridge: bool
) -> None:
    """Parts that are in another mode than the whole keep theirs, also after an exception."""
    own: Any = random_model("gpt2")
    given: Any = (own, tokenizer())
    if as_bridge:
        given = TransformerBridge.boot_transformers(str(directories["gpt2"]), device="cpu")
        own = given.original_model
    own.train()
    own.transformer.h[1].eval()
    before = [(part, part.training) for part in own.modules()]
    model = as_model(given)
    tokens = prompt_of(model)
    for path in ("fast", "plain"):
        traced = circuits.prepare(
            model, [circuits.to_pair(model, PROMPT, swap={"large": "hot"})], path=path
        )
        torch.testing.assert_close(
            traced.clean.logits[0, -1],
            models["gpt2"].logits(tokens)[0, -1],
            atol=1e-4,
            rtol=1e-4,
        )

    def fails(tensor: torch.Tensor, hook: Any) -> None:
        raise RuntimeError("in the middle of a run")

    with (
        pytest.raises(RuntimeError, match="middle"),
        model.hooked([("blocks.0.hook_resid_pre", fails)]),
    ):
        model.logits(tokens)
    assert all(part.training == training for part, training in before)
    assert own.training and not own.transformer.h[1].training  # by what stands there now, too


def test_a_part_with_dropout_inside_is_left_to_the_models_own_forward() -> None:
    """Such as an adapter in training: the fast path calls single parts, in the mode in which they are."""
    own: Any = random_model("gpt2")
    for block in own.transformer.h:
        block.mlp.c_proj = torch.nn.Sequential(block.mlp.c_proj, torch.nn.Dropout(0.5))
    model = as_model((own.train(), tokenizer()))
    runs = circuits.prepare(model, [circuits.to_pair(model, PROMPT, swap={"large": "hot"})])
    assert runs.path == "plain" and own.training
    expected = model.logits(prompt_of(model))[0, -1]
    torch.testing.assert_close(runs.clean.logits[0, -1], expected, atol=1e-5, rtol=1e-5)


def test_precision_is_the_models_own() -> None:
    model = as_model((random_model("llama").double(), tokenizer()))
    assert (
        model.dtype == torch.float64 and model.logits(prompt_of(model)).dtype == torch.float64
    )


def test_the_fingerprint_is_that_of_the_weights(models: dict[str, Model]) -> None:
    changed: Any = random_model("gpt2")
    with torch.no_grad():
        changed.transformer.h[2].attn.c_proj.weight[0, 0] += 1e-3
    prints = {
        as_model((changed, tokenizer())).fingerprint,
        *(model.fingerprint for model in models.values()),
    }
    assert len(prints) == 4 and all(len(one) == 64 for one in prints)


@pytest.mark.parametrize("thing", ["gpt2", None, (1, 2, 3), torch.nn.Linear(2, 2)])
def test_other_things_are_not_models(thing: object) -> None:
    with pytest.raises(ModelError, match="expected a Model"):
        as_model(thing)  # pyright: ignore[reportArgumentType]


LOCAL = [
    entry.name
    for entry in models.TABLE
    if entry.origin in ("package", "code") and not entry.base
]


@pytest.mark.parametrize("name", LOCAL)
def test_the_zoo_is_what_its_table_says(name: str) -> None:
    entry = models.lookup(name)
    assert entry is not None
    model = load(name)
    assert (model.n_layers, model.n_heads) == (entry.layers, entry.heads)
    assert (model.gated, model.reads_bos) == (entry.gated, True)
    if name.startswith("addition"):
        assert [model.spell(token).strip() for token in model.tokenize("3 6 + 2 8 =")][1:] == [
            *"36+28="
        ]
    else:
        assert [model.spell(token) for token in model.tokenize(PROMPT)][5::3] == ["large", '"']


def test_the_table_costs_no_heavy_import() -> None:
    code = "import sys; from circuits.models import available; [entry.here for entry in available()]; "
    code += "assert not {'torch', 'transformers'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


def test_names_are_unique_and_found_by_repository_too() -> None:
    assert len({entry.name for entry in models.TABLE}) == len(models.TABLE)
    assert models.lookup("ansonisl/SparseGPT2") is models.lookup("sparse-gpt2")
    assert models.lookup("") is None


def test_loading_says_nothing(
    directories: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    load(directories["neox"])
    as_model((random_model("gpt2"), tokenizer()))
    assert capfd.readouterr() == ("", "")


@pytest.mark.real
def test_smollm2_speaks_without_a_network(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CIRCUITS_CACHE", str(tmp_path))
    monkeypatch.setattr(
        "socket.socket.connect", lambda *_: pytest.fail("the network was asked")
    )
    model = load("smollm2")
    tokens = model.tokenize("The capital of France is")
    assert [model.spell(token) for token in tokens] == [
        "The",
        " capital",
        " of",
        " France",
        " is",
    ]
    assert model.spell(int(model.logits(torch.tensor([tokens]))[0, -1].argmax())) == " Paris"
    assert [model.spell(token) for token in model.tokenize("in 1984")] == [
        "in",
        " ",
        "1",
        "9",
        "8",
        "4",
    ]
    assert (model.n_layers, model.n_heads, model.n_key_value_heads) == (30, 9, 3)
    assert not model.reads_bos and not model.gated
    assert "once" in capfd.readouterr().err

    again = load("smollm2")  # from the cache: nothing is converted, and nothing is said
    assert capfd.readouterr() == ("", "")
    assert again.fingerprint == model.fingerprint
