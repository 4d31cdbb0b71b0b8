"""Without its weights a model reads text exactly as it does with them."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import ARCHITECTURES
from small_models import PROMPT, loaded, random_model, save
from tokenizers.processors import TemplateProcessing

from circuits.errors import CircuitsError, ModelError
from circuits.models import PlainTokenizer, Vocabulary
from circuits.models.load import load, load_vocabulary
from circuits.models.model import Model
from circuits.zoo.language import tokenizer

TEXTS = (
    PROMPT,
    "  The war\nlasted from 17  32\t",
    "<|bos|> The opposite",
    "The<|bos|>opposite <|unknown|>",
    "the larg houses",
    "",
    "\u200b",
    "a " * 400,
    "naïve café 日本 ✓ 1234,5  two  spaces",
)


def read(vocabulary: Vocabulary, text: str) -> object:
    """The tokens and their spellings, or what was said instead."""
    try:
        return [(token, vocabulary.spell(token)) for token in vocabulary.tokenize(text)]
    except CircuitsError as why:
        return str(why)


def assert_same(light: Vocabulary, model: Model) -> None:
    whole = model.vocabulary
    assert (light.reads_bos, light.n_ctx, light.size) == (
        whole.reads_bos,
        whole.n_ctx,
        whole.size,
    )
    assert light.tokenizer.get_vocab() == whole.tokenizer.get_vocab()
    for text in TEXTS:
        assert read(light, text) == read(whole, text)
    for token in (-1, 0, 1, whole.size - 1, whole.size):
        assert spelled(light, token) == spelled(whole, token)


def spelled(vocabulary: Vocabulary, token: int) -> str:
    try:
        return vocabulary.spell(token)
    except CircuitsError as why:
        return str(why)


def test_mini_reads_text_without_its_weights() -> None:
    light = load_vocabulary("mini")
    assert isinstance(light.tokenizer, PlainTokenizer) and light.reads_bos
    assert_same(light, loaded("mini"))


@pytest.mark.real
@pytest.mark.parametrize("name", ["smollm2", "smollm2-sparse", "stories15m"])
def test_real_models_read_text_without_their_weights(name: str) -> None:
    light = load_vocabulary(name)
    assert isinstance(light.tokenizer, PlainTokenizer) and light.reads_bos == (
        name == "stories15m"
    )
    assert_same(light, load(name))


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_a_folder_reads_text_without_its_weights(
    architecture: str, models: dict[str, Model], directories: dict[str, Path]
) -> None:
    light = load_vocabulary(directories[architecture])
    assert isinstance(light.tokenizer, PlainTokenizer) and light.reads_bos == (
        architecture == "gpt2"
    )
    assert_same(light, models[architecture])


def test_a_tokenizer_that_adds_bos_is_followed(tmp_path: Path) -> None:
    random_model("llama").save_pretrained(tmp_path)
    adds_bos = tokenizer()
    adds_bos.backend_tokenizer.post_processor = TemplateProcessing(
        single="<|bos|> $A", special_tokens=[("<|bos|>", adds_bos.bos_token_id)]
    )
    adds_bos.save_pretrained(tmp_path)
    light = load_vocabulary(tmp_path)
    assert isinstance(light.tokenizer, PlainTokenizer) and light.reads_bos
    assert_same(light, load(tmp_path))


@pytest.mark.parametrize(
    "change",
    [
        {"add_bos_token": True},
        {"extra_special_tokens": ["large"]},
        {"unk_token": "<not there yet>"},
        {"tokenizer_class": "GPT2Tokenizer"},
    ],
    ids=str,
)
def test_settings_that_change_the_rules_are_left_to_transformers(
    change: dict[str, object], tmp_path: Path
) -> None:
    folder = save(random_model("llama"), tmp_path / "model")
    file = folder / "tokenizer_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | change))
    light = load_vocabulary(folder)
    assert not isinstance(light.tokenizer, PlainTokenizer)
    assert_same(light, load(folder))


def test_a_mark_about_bos_is_followed(directories: dict[str, Path], tmp_path: Path) -> None:
    for file in directories["llama"].iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "circuits.json").write_text('{"bos": true}')
    assert load_vocabulary(tmp_path).reads_bos


@pytest.mark.parametrize("spoiled", ["tokenizer.json", "tokenizer_config.json", "config.json"])
def test_a_spoiled_file_is_one_line(spoiled: str, tmp_path: Path) -> None:
    folder = save(random_model("gpt2"), tmp_path / "model")
    (folder / spoiled).write_text("{")
    with pytest.raises(ModelError, match="cannot read") as caught:
        load_vocabulary(folder)
    assert "\n" not in str(caught.value)


def test_a_model_built_by_code_is_built() -> None:
    assert load_vocabulary("planted-induction").tokenize(PROMPT) == loaded(
        "planted-induction"
    ).tokenize(PROMPT)


def test_the_command_imports_no_model_library() -> None:
    script = f"""
import sys
from click.testing import CliRunner
from circuits.cli import main
result = CliRunner().invoke(main, ["tokens", "mini", {PROMPT!r}])
assert result.exit_code == 0 and "5 = large" in result.output, result.output
print({{"torch", "transformers", "transformer_lens", "pandas"}} & set(sys.modules))
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )
    assert done.stdout == "set()\n"
