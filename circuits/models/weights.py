"""What every source hands over, and the care all of them take: quiet libraries, one-line errors, marks read from `circuits.json`."""

from __future__ import annotations

import logging
import pickle
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from circuits.errors import CircuitsError, FileError, ModelError
from circuits.files import read_object

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

MARKS: Final = "circuits.json"


@dataclass(frozen=True, slots=True)
class Marks:
    """What a model's own files say: is it gated, does it read BOS. None where they say nothing."""

    gate: bool | None = None
    bos: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Weights:
    """A Hugging Face model in fp32 on the CPU, its tokenizer, and its marks."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    marks: Marks


def read_marks(folder: Path) -> Marks:
    """Read `circuits.json` of a model's folder, e.g. `{"gate": true}`; no such file, no marks."""
    if not (folder / MARKS).exists():
        return Marks()
    try:
        stored = read_object(folder / MARKS)
    except FileError as error:
        raise ModelError(
            f'{folder / MARKS} must be a JSON object such as {{"gate": true}}: {error}'
        ) from error
    for key in ("gate", "bos"):
        if not isinstance(stored.get(key), bool | None):
            raise ModelError(f'{folder / MARKS}: "{key}" must be true or false, not {stored[key]!r}')
    return Marks(stored.get("gate"), stored.get("bos"))


def one_line(error: BaseException) -> str:
    """The first line of an error's text, or its type if it has none."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[0] if lines else type(error).__name__


@contextmanager
def reading(what: object) -> Iterator[None]:
    """Turn whatever a library raises while it reads `what` into one line of ours; the original stays as the cause."""
    try:
        yield
    except CircuitsError:
        raise
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{what}: a pickle that holds more than tensors is not opened; ask for safetensors instead"
        ) from error
    except (
        Exception
    ) as error:  # the libraries below raise a dozen unrelated types for a file they cannot read
        raise ModelError(f"cannot read {what}: {one_line(error)}") from error
    except BaseException as error:  # a library written in Rust that gives up does so past `Exception`
        if type(error).__name__ != "PanicException":
            raise
        raise ModelError(f"cannot read {what}: {one_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """Keep progress bars, warnings and log lines of the model libraries off the terminal. Errors still come out as exceptions."""
    from transformers.utils import logging as transformers_logging

    level, bars = logging.root.manager.disable, transformers_logging.is_progress_bar_enabled()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        transformers_logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.disable(level)
            if bars:
                transformers_logging.enable_progress_bar()
