"""`sparsify(model, folder)`: train a sparse twin, a directory that `load` and plain `transformers` open.

1. The model is copied (or, with `lora`, given an adapter) and trained; `folder/training` holds what a restart
   needs. Processes of one `accelerate launch` or `torchrun` train together; the main one writes the twin.
2. What is stored is measured: weights in fp16, read back, against the dense model on held-out rows.
3. `circuits.json` marks the gate and says how the twin was made; the card shows the table and the figure.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError

from circuits.errors import FileError, ModelError
from circuits.models.folder import MARKS, Weights, quiet
from circuits.models.load import Device, find, to_device
from circuits.results import Progress, silent
from circuits.sparsify import LITTLE_LANGUAGE, Settings, settings_for
from circuits.sparsify.attention import dense, hard, logits_under
from circuits.sparsify.measure import AnyModel, Sparsity, draw_training, measure, weights_of, write_card
from circuits.sparsify.sampling import KeptTokens, Sampling, shrunk
from circuits.sparsify.text import Corpus, context_of, corpus_for, speaks_little_language
from circuits.sparsify.training import Student, TrainingRun, join, load_checkpoint, read_log, train
from circuits.zoo.evaluate import Score, score_all, score_stories


def sparsify(
    model: AnyModel | tuple[Any, Any],
    folder: str | Path,
    *,
    settings: Settings | None = None,
    text: str | Path | None = None,
    own_words: bool = False,
    sampling: Sampling | None = None,
    prompts: Sampling | None = None,
    after: str | Path | None = None,
    device: Device = "cpu",
    save_every: float = 180.0,
    progress: Progress = silent,
) -> Sparsity:
    """Make the sparse twin of a model in `folder`, resuming what was begun there; returns what was measured.

    `model` is a name, a path, a `Model` (read again by its name) or a Hugging Face model with its tokenizer,
    which stays as it is. The twin learns from `text`, from the model's own words if there is none, or, with
    `own_words`, from both in turn. `sampling` says how the model's own words are sampled, and `prompts` what
    it completes in a share `prompted` of the steps. `after` is the folder of an earlier training whose
    weights this one begins with. One process trains on `device`; of several, each where its launcher put it.
    Twins are trained in fp32.
    """
    processes, device = join(), to_device(device)
    with processes.main_first():  # what must be fetched or converted is so once
        name, weights = weights_of(model)
    chosen = settings or settings_for(little_language=speaks_little_language(weights))
    if weights.marks.gate:
        raise ModelError(f"{name} is gated already; give its dense original")
    if chosen.lora and isinstance(model, tuple):
        remedy = "give the model by name or path, or train all weights with lora=0"
        raise ModelError(f"an adapter must name its base: {remedy}")
    processes.check_rows(chosen.batch)
    folder = Path(folder)
    state = folder / "training"
    if folder.is_dir() and any(folder.iterdir()) and not state.is_dir():
        raise FileError(f"{folder} holds files that are not of a twin; give it a folder of its own")
    try:
        state.mkdir(parents=True, exist_ok=True)
        file = None if text is None else Path(text)
        with processes.main_first():  # the model's own words are sampled once
            given: dict[str, Any] = {"own_words": own_words, "sampling": sampling, "prompts": prompts}
            corpus = corpus_for(weights, chosen, text=file, folder=state, **given)
        student = to_student(weights, chosen, corpus.vocabulary)
        if after is not None:
            corpus = _begin_with(student, corpus, Path(after))
        run = TrainingRun(student.to(processes.device or device), corpus, chosen, processes)
        train(run, state, save_every=save_every, progress=progress)
        return processes.from_main(_publish(run, weights, folder, name) if processes.is_main else None)
    except (OSError, SafetensorError) as error:
        remedy = f"when that is mended, start again: it resumes from the last checkpoint in {state}"
        raise FileError(f"cannot write to {folder}: {error}; {remedy}") from error


def _begin_with(student: Student, corpus: Corpus, earlier: Path) -> Corpus:
    """Take over the weights of an earlier training, and say so in the name of the text."""
    checkpoint = earlier / "training" / "checkpoint.safetensors"
    unused = torch.optim.AdamW(student.parameters.values())  # its moments belong to the earlier training
    done = load_checkpoint(checkpoint, student.parameters, unused)
    return replace(corpus, name=f"{corpus.name}, after {done['step']} steps of {earlier.name}")


def to_student(weights: Weights, settings: Settings, vocabulary: KeptTokens | None = None) -> Student:
    """A trainable copy beside the frozen original, or an adapter on a copy of it; without dropout."""
    original: Any = weights.model.eval()
    if settings.lora:
        own: Any = shrunk(weights, vocabulary) if vocabulary else copy.deepcopy(original)
        student = Student(_with_adapter(own, settings), None)
        own.config._attn_implementation = "sdpa"
    else:
        trained = copy.deepcopy(original).float().requires_grad_(True)
        student = Student(trained, original.requires_grad_(False))
    original.config._attn_implementation = "sdpa"  # the dense runs need no patterns
    return student


def _with_adapter(model: Any, settings: Settings) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        remedy = "pip install peft; or train all weights with lora=0"
        raise ModelError(f"training an adapter needs peft: {remedy}") from error
    adapter = LoraConfig(r=settings.lora, lora_alpha=2 * settings.lora, target_modules="all-linear")
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(settings.seed)
        return get_peft_model(model, adapter).eval()


def _publish(run: TrainingRun, weights: Weights, folder: Path, name: str) -> Sparsity:
    settings, text = run.settings, run.corpus.name
    marks: dict[str, Any] = {"gate": True, "bos": weights.marks.bos, "original": name, "text": text}
    marks["settings"] = asdict(settings)
    # The mark goes first: a folder with weights and no mark would load as a dense model.
    (folder / MARKS).write_text(json.dumps(marks, indent=1) + "\n")
    _store(run.student.to("cpu"), weights, folder, name)
    twin, original = find(str(folder)).model, weights.model
    measured = measure(twin, original, [run.corpus.held_out], name=folder.name, original=name)
    log = read_log(folder / "training" / "log.jsonl")
    draw_training(log, settings, folder / "training.svg")
    write_card(folder / "README.md", measured, marks, _scores(name, weights, original, twin), log)
    (folder / MARKS).write_text(json.dumps(marks | {"measured": asdict(measured)}, indent=1) + "\n")
    return measured


def _store(student: Student, weights: Weights, folder: Path, name: str) -> None:
    """Weights or adapter in fp16, and the tokenizer."""
    with quiet():
        kept = {}
        if student.teacher is None:
            student.model.peft_config["default"].base_model_name_or_path = name
            kept = {"save_embedding_layers": False}  # they may have fewer tokens than the whole model
        student.model.half().save_pretrained(folder, **kept)
        weights.tokenizer.save_pretrained(folder)


def _scores(name: str, weights: Weights, original: Any, twin: Any) -> list[list[Score]]:
    """Both models on the tasks that they know: those of the little language, or of stories."""
    length = LITTLE_LANGUAGE.length
    runs = (partial(logits_under, dense, original), partial(logits_under, hard, twin))
    if name == "stories15m":
        return [score_stories(logits, weights.tokenizer) for logits in runs]
    if not speaks_little_language(weights) or context_of(weights, length) < length:
        return []
    return [score_all(logits) for logits in runs]
