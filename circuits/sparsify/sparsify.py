"""`sparsify(model, folder)`: train a sparse twin of a model and write it as a directory that `load` and plain `transformers` open.

1. The model is copied (or, with `lora`, given an adapter) and trained; all that a restart needs lies in `folder/training`.
   Processes that were started together by `accelerate launch` or `torchrun` train together; the main one writes the twin.
2. What is stored is measured: weights in fp16, read back, against the dense model on held-out rows.
3. `circuits.json` marks the gate and says how the twin was made; the card shows the table and the training figure.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from circuits.errors import FileError, ModelError
from circuits.models.folder import MARKS, Marks, Weights, quiet
from circuits.models.load import find
from circuits.sparsify.attention import Rule, attending, dense, hard
from circuits.sparsify.card import draw_training, write_card
from circuits.sparsify.measure import Source, Sparsity, measure, weights_of
from circuits.sparsify.processes import join
from circuits.sparsify.settings import LITTLE_LANGUAGE, Settings, settings_for
from circuits.sparsify.text import Corpus, context_of, corpus_for, speaks_little_language
from circuits.sparsify.training import Pupil, read_log, train
from circuits.zoo.evaluate import Score, score_all


def sparsify(
    model: Source | tuple[Any, Any],
    folder: str | Path,
    *,
    settings: Settings | None = None,
    text: str | Path | None = None,
    own_words: bool = False,
    save_every: float = 180.0,
) -> Sparsity:
    """Make the sparse twin of a model in `folder`, going on from there if it was begun; returns what was measured on held-out rows.

    `model` is a name, a path, a `Model` (found again by its name) or a Hugging Face model with its tokenizer, which stays as it is.
    It learns from `text`, or from its own words if there is none, or with `own_words` from both in turn.
    """
    processes = join()
    with processes.main_first():  # what must be fetched or converted is so once
        name, weights = _named(*model) if isinstance(model, tuple) else weights_of(model)
    chosen = settings or settings_for(little_language=speaks_little_language(weights))
    if weights.marks.gate:
        raise ModelError(f"{name} is gated already; give its dense original")
    if chosen.lora and isinstance(model, tuple):
        raise ModelError(
            "an adapter must name its base: give the model by name or path, or train all weights with lora=0"
        )
    processes.check_rows(chosen.batch)
    room, state = Path(folder), Path(folder) / "training"
    if room.is_dir() and any(room.iterdir()) and not state.is_dir():
        raise FileError(f"{room} holds files that are not of a twin; give it a folder of its own")
    try:
        state.mkdir(parents=True, exist_ok=True)
        with processes.main_first():  # the model's own words are sampled once
            corpus = corpus_for(
                weights, chosen, text=None if text is None else Path(text), folder=state, own_words=own_words
            )
        pupil = to_pupil(weights, chosen).to(processes.device)
        train(pupil, corpus, chosen, state, save_every=save_every, processes=processes)
        measured = (
            _publish(pupil.to("cpu"), weights, corpus, chosen, room=room, name=name)
            if processes.is_main
            else None
        )
        return processes.from_main(measured)
    except (OSError, SafetensorError) as error:
        raise FileError(f"cannot write to {room}: {error}; what was trained is kept in {state}") from error


def _named(model: Any, tokenizer: Any) -> tuple[str, Weights]:
    name = str(getattr(model.config, "_name_or_path", "")) or type(model).__name__
    return name, Weights(copy.deepcopy(model), tokenizer, Marks())


def to_pupil(weights: Weights, settings: Settings) -> Pupil:
    """A trainable copy beside the frozen original, or an adapter put on the original. Dropout stays off in both."""
    original: Any = weights.model.eval()
    model = (
        _with_adapter(original, settings)
        if settings.lora
        else copy.deepcopy(original).float().requires_grad_(True)
    )
    if not settings.lora:
        original.requires_grad_(False)
    original.config._attn_implementation = "sdpa"  # the dense runs need no patterns
    return Pupil(model, None if settings.lora else original)


def _with_adapter(model: Any, settings: Settings) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        raise ModelError(
            "training an adapter needs peft: pip install peft; or train all weights with lora=0"
        ) from error
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(settings.seed)
        return get_peft_model(
            model, LoraConfig(r=settings.lora, lora_alpha=2 * settings.lora, target_modules="all-linear")
        ).eval()


def _publish(
    pupil: Pupil, weights: Weights, corpus: Corpus, settings: Settings, *, room: Path, name: str
) -> Sparsity:
    made: dict[str, Any] = {
        "gate": True,
        "bos": weights.marks.bos,
        "original": name,
        "text": corpus.name,
        "settings": asdict(settings),
    }
    # The mark goes first: a folder with weights and no mark would load as a dense model.
    (room / MARKS).write_text(json.dumps(made, indent=1) + "\n")
    _store(pupil, weights, room, name)
    stored, original = find(str(room)).model, find(name).model if settings.lora else weights.model
    measured = measure(stored, original, [corpus.held_out], name=room.name, original=name)
    scores = _scores(weights, original, stored)
    log = read_log(room / "training" / "log.jsonl")
    draw_training(log, settings, room / "training.svg")
    write_card(room / "README.md", measured, made, scores, log)
    (room / MARKS).write_text(json.dumps(made | {"measured": asdict(measured)}, indent=1) + "\n")
    return measured


def _store(pupil: Pupil, weights: Weights, room: Path, name: str) -> None:
    """Weights or adapter in fp16, and the tokenizer."""
    with quiet():
        if pupil.original is None:
            pupil.model.peft_config["default"].base_model_name_or_path = name
            for parameter in pupil.parameters.values():
                parameter.data = parameter.data.half()
            pupil.model.save_pretrained(room)
        else:
            pupil.model.half().save_pretrained(room)
        weights.tokenizer.save_pretrained(room)


def _scores(weights: Weights, original: Any, twin: Any) -> list[list[Score]]:
    """Both models on the tasks of the little language, if they speak it and can read its prompts."""
    if (
        not speaks_little_language(weights)
        or context_of(weights, LITTLE_LANGUAGE.length) < LITTLE_LANGUAGE.length
    ):
        return []
    return [score_all(_runner(*each)) for each in ((original, dense), (twin, hard))]


def _runner(model: Any, rule: Rule) -> Callable[[torch.Tensor], torch.Tensor]:
    def logits(tokens: torch.Tensor) -> torch.Tensor:
        with attending(model, rule):
            return model(tokens, use_cache=False).logits

    return logits
