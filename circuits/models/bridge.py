"""A TransformerLens bridge: hook points inside a Hugging Face model, whose logits must stay the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from transformer_lens.model_bridge import TransformerBridge
from transformers import AutoTokenizer

from circuits.errors import ModelError
from circuits.models.folder import Weights, has_tokenizer, quiet
from circuits.models.placement import is_split, refuse_offloaded


def to_bridge(name: str, weights: Weights, device: str | torch.device) -> TransformerBridge:
    """Put hook points into a model, in place. One whose logits change by that is refused. A model that
    accelerate has placed on several devices stays where it is."""
    model: Any = weights.model
    refuse_offloaded(model)
    tokenizer = weights.tokenizer
    with quiet(), TemporaryDirectory() as temporary:
        # The bridge opens the tokenizer a second time, from its folder: there must be one.
        if not tokenizer.name_or_path or not has_tokenizer(Path(tokenizer.name_or_path)):
            tokenizer.save_pretrained(temporary)
            tokenizer = AutoTokenizer.from_pretrained(temporary, trust_remote_code=False)
        if not model.config.architectures:
            model.config.architectures = [type(model).__name__]
        if not is_split(model):
            model.to(device)
        with _keeping_modes(model):
            probe = _probe(model)
            with torch.inference_mode():
                expected = model(probe, use_cache=False).logits
            bridge = _boot(name, tokenizer, model, device)
            with torch.inference_mode():
                logits = bridge(probe, return_type="logits")
    bridge.training = model.training
    _refuse_other_logits(logits, expected)
    return bridge


@contextmanager
def _keeping_modes(model: torch.nn.Module) -> Iterator[None]:
    """Within this `with`, a model is in eval mode. Afterwards its parts are in the mode in which they were. A
    part that was put around another meanwhile has the mode of that one, any other new part that of the
    whole."""
    before = {part: part.training for part in model.modules()}
    model.eval()
    try:
        yield
    finally:
        model.train(before[model])
        for part in model.modules():
            inner = getattr(part, "original_component", part)
            part.training = before.get(inner, part.training)
        for part, training in before.items():
            part.training = training


def _boot(name: str, tokenizer: Any, model: Any, device: str | torch.device) -> Any:
    """The bridge; an architecture that TransformerLens does not know is refused in one short line."""
    where = None if is_split(model) else device
    try:
        bridge = TransformerBridge.boot_transformers(
            name, tokenizer=tokenizer, hf_model=model, device=where, dtype=model.dtype
        )
    except ValueError as why:
        if "architecture" not in str(why):
            raise
        known = "it knows GPT-2, Llama, GPT-NeoX, Gemma, Qwen and most others that write text"
        raise ModelError(
            f"TransformerLens does not know the architecture {model.config.architectures[0]}; {known}"
        ) from why
    return bridge.eval()


def _probe(model: Any) -> torch.Tensor:
    """A dozen different tokens (1, pos), or as many as the model reads."""
    config = model.config.get_text_config()
    tokens = torch.randperm(config.vocab_size, generator=torch.Generator().manual_seed(0))
    n_ctx = getattr(config, "max_position_embeddings", None) or 12
    return tokens[None, : min(12, n_ctx)].to(model.device)


def _refuse_other_logits(logits: Any, expected: torch.Tensor) -> None:
    difference = (logits - expected).abs().max().item()
    largest = expected.abs().max().item()
    if difference > max(1e-3, 16 * torch.finfo(expected.dtype).eps) * largest:
        differ = f"logits differ by {difference:.2g}, the largest is {largest:.2g}"
        unknown = "a setting in its config.json is not known there"
        raise ModelError(
            f"TransformerLens runs this model otherwise than Hugging Face ({differ}): {unknown}"
        )
