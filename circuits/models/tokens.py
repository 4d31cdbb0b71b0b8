"""`load_vocabulary(name)`: how a model reads text, without its weights and, if it can, without torch.

1. A `tokenizer.json` whose settings change nothing about it is opened by the `tokenizers` library alone.
   Which settings those are is listed here; tests compare the result with the whole model's.
2. Any other tokenizer in a model's folder is opened as for a whole model, which imports torch.
3. Where there is no such folder (a model built by code, a state dict), the whole model is loaded.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from circuits import zoo
from circuits.files import read_object
from circuits.models import Vocabulary, folder, reads_bos_by_default
from circuits.models.folder import Marks, base_of, read_marks, reading, vet_folder
from circuits.models.load import load, path_of

if TYPE_CHECKING:
    from tokenizers import Tokenizer

_PLAIN_CLASSES: Final = ("TokenizersBackend", "PreTrainedTokenizerFast")
_PLAIN_KINDS: Final = ("gpt2", "llama", "gpt_neox")  # transformers puts no class of its own in their place
_NAMED: Final = ("bos_token", "eos_token", "unk_token", "pad_token")
_NEUTRAL: Final = ("backend", "clean_up_tokenization_spaces", "model_max_length", "tokenizer_class")
_SAID_BY_THE_HUB: Final = ("is_local", "local_files_only")
_OTHER_FILES: Final = ("special_tokens_map.json", "added_tokens.json")
_CONTEXTS: Final = ("n_positions", "max_position_embeddings")
_LARGEST_PLAIN: Final = 100_000  # transformers may mend the rules of a larger vocabulary


class PlainTokenizer:
    """A `tokenizer.json`, with those methods of a transformers tokenizer that reading a prompt needs."""

    is_fast: Final = True

    def __init__(self, rules: Tokenizer, *, bos: str | None, unknown: str | None) -> None:
        rules.no_padding()
        rules.no_truncation()
        self._rules = rules
        self.unk_token = unknown
        self.bos_token_id = None if bos is None else rules.token_to_id(bos)
        self.unk_token_id = None if unknown is None else rules.token_to_id(unknown)

    def __call__(self, text: str, *, add_special_tokens: bool, **_: Any) -> dict[str, Any]:
        encoded = self._rules.encode(text, add_special_tokens=add_special_tokens)
        return {"input_ids": encoded.ids, "offset_mapping": encoded.offsets}

    def encode(self, text: str, *, add_special_tokens: bool = True) -> list[int]:
        return self._rules.encode(text, add_special_tokens=add_special_tokens).ids

    def get_vocab(self) -> dict[str, int]:
        return self._rules.get_vocab()

    def convert_ids_to_tokens(self, token: int) -> str | None:
        return self._rules.id_to_token(token)

    def decode(self, tokens: list[int], **_: Any) -> str:
        return self._rules.decode(tokens, skip_special_tokens=False)


def load_vocabulary(name: str | Path) -> Vocabulary:
    """How the model reads text; the name is what `load` takes."""
    light = read_vocabulary(str(name))
    return load(name).vocabulary if light is None else light


def read_vocabulary(name: str) -> Vocabulary | None:
    """How the model reads text, or None where only its weights can tell."""
    with reading(name):
        return _without_weights(name)


def _without_weights(name: str) -> Vocabulary | None:
    entry, own, above = zoo.lookup(name), Marks(), set[Path]()
    if entry and entry.origin == "code":
        return None
    path = path_of(name, entry)
    while (path / "adapter_config.json").exists():  # an adapter reads as its base does
        if path in above:
            return None  # loading it says what is wrong
        above.add(path)
        own = own if own.bos is not None else read_marks(path)
        base = base_of(path)
        path = path_of(base, zoo.lookup(base))
    return _of_folder(name, path, own) if folder.has_model(path) else None


def _of_folder(name: str, path: Path, own: Marks) -> Vocabulary | None:
    vet_folder(path)
    config = read_object(path / "config.json")
    sizes = [config[field] for field in _CONTEXTS if isinstance(config.get(field), int)]
    kind, size = config.get("model_type"), config.get("vocab_size")
    if not sizes or not isinstance(kind, str) or not isinstance(size, int):
        return None
    tokenizer = _plain_tokenizer(path, kind) or folder.read_tokenizer(path)
    marked = own.bos if own.bos is not None else read_marks(path).bos
    reads_bos = reads_bos_by_default(tokenizer, kind) if marked is None else marked
    return Vocabulary(name, tokenizer, reads_bos, n_ctx=sizes[0], size=size)


def _plain_tokenizer(path: Path, kind: str) -> PlainTokenizer | None:
    """The tokenizer, if its `tokenizer.json` says all there is to know about it."""
    file, settings = path / "tokenizer.json", path / "tokenizer_config.json"
    if kind not in _PLAIN_KINDS or not (file.exists() and settings.exists()):
        return None
    config = read_object(settings)
    said = set(config) - {*_NEUTRAL, *_SAID_BY_THE_HUB, *_NAMED}
    if said or config.get("tokenizer_class") not in _PLAIN_CLASSES:
        return None
    if any((path / other).exists() for other in _OTHER_FILES):
        return None
    from tokenizers import Tokenizer

    with reading(f"the tokenizer in {path}"):
        rules = Tokenizer.from_file(str(file))
    added = {token.content for token in rules.get_added_tokens_decoder().values()}
    named = [config[name] for name in _NAMED if config.get(name) is not None]
    if not all(token in added for token in named) or rules.get_vocab_size() > _LARGEST_PLAIN:
        return None
    return PlainTokenizer(rules, bos=config.get("bos_token"), unknown=config.get("unk_token"))
