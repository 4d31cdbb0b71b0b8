"""`sparsify(model, folder)`: train a sparse twin, a directory that `load` and plain `transformers` open.

1. The model is copied (or, with `lora`, given an adapter) and trained; `folder/training` holds what a restart
   needs. Processes of one `accelerate launch` or `torchrun` train together; the main one writes the twin.
2. Weights are written in fp16, read back, and measured against the dense model on held-out rows.
3. `circuits.json` flags the gate and says how the twin was made; the card shows the table and the figure.
"""

from __future__ import annotations

import copy
import json
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file

from circuits.errors import FileError, ModelError
from circuits.models.folder import FLAGS_FILE, Weights, quiet
from circuits.models.load import find
from circuits.models.placement import Device, to_device
from circuits.results import Progress, silent
from circuits.sparsify.attention import dense, hard, logits_under
from circuits.sparsify.card import draw_training, write_card
from circuits.sparsify.checkpoint import load_checkpoint, read_log
from circuits.sparsify.measure import AnyModel, Sparsity, measure, weights_of
from circuits.sparsify.processes import join
from circuits.sparsify.sampling import Sampling
from circuits.sparsify.settings import LITTLE_LANGUAGE, Settings, settings_for
from circuits.sparsify.small_vocabulary import KeptTokens, shrunk
from circuits.sparsify.text import Corpus, context_of, corpus_for, speaks_little_language
from circuits.sparsify.training import Student, TrainingRun, train
from circuits.zoo.evaluate import Score, score_all, score_stories

_ADAPTER: Final = "adapter_model.safetensors"


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
    which stays as it is. The twin learns from `text`, from what the model writes itself if there is none, or,
    with `own_words`, from both in turn. `sampling` says how the model's own text is sampled, and `prompts`
    what it completes in a share `prompted` of the steps. `after` is the folder of an earlier training, or of a
    finished twin, whose weights this one begins with. One process trains on `device`; of several, each where
    its launcher put it. Twins are trained in fp32.
    """
    processes = join()
    device = to_device(device)
    folder = Path(folder)
    with processes.main_first():
        # One process fetches and converts the model, the others read the result.
        name, weights = weights_of(model)
    if settings is None:
        settings = settings_for(little_language=speaks_little_language(weights))
    if weights.flags.gate:
        raise ModelError(f"{name} is gated already; give its dense original")
    if settings.lora and isinstance(model, tuple):
        remedy = "give the model by name or path, or train all weights with lora=0"
        raise ModelError(f"an adapter must name its base: {remedy}")
    processes.check_rows(settings.batch)
    longest = context_of(weights, settings.length)
    if longest < settings.length:
        raise ModelError(
            f"{name} reads {longest} tokens, fewer than the {settings.length} of a row; give a smaller length"
        )
    state = folder / "training"
    _refuse_other_files(folder, state)
    try:
        state.mkdir(parents=True, exist_ok=True)
        with processes.main_first():
            # One process samples the model's own text.
            corpus = corpus_for(
                weights,
                settings,
                text=None if text is None else Path(text),
                folder=state,
                own_words=own_words,
                sampling=sampling,
                prompts=prompts,
            )
        student = to_student(weights, settings, corpus.vocabulary)
        if after is not None:
            corpus = _begin_with(student, corpus, Path(after))
        run = TrainingRun(student.to(processes.device or device), corpus, settings, processes)
        train(run, state, save_every=save_every, progress=progress)
        measured = _publish(run, weights, folder, name) if processes.is_main else None
        return processes.from_main(measured)
    except (OSError, SafetensorError) as error:
        remedy = (
            f"when that is mended, start again: it resumes from the last checkpoint in {state}"
        )
        raise FileError(f"cannot write to {folder}: {error}; {remedy}") from error


def _refuse_other_files(folder: Path, state: Path) -> None:
    """Refuse a folder that holds something and not the `state` of a training."""
    if folder.is_dir() and any(folder.iterdir()) and not state.is_dir():
        raise FileError(
            f"{folder} holds files that are not of a twin; give it a folder of its own"
        )


def to_student(
    weights: Weights, settings: Settings, vocabulary: KeptTokens | None = None
) -> Student:
    """A trainable copy beside the frozen original, or an adapter on a copy of it; without dropout."""
    original: Any = weights.model.eval()
    original.config._attn_implementation = "sdpa"  # dense runs need no attention patterns
    if not settings.lora:
        trained = copy.deepcopy(original).float().requires_grad_(True)
        return Student(trained, original.requires_grad_(False))
    base: Any = shrunk(weights, vocabulary) if vocabulary else copy.deepcopy(original)
    return Student(_with_adapter(base, settings), None)


def _with_adapter(model: Any, settings: Settings) -> Any:
    try:
        from peft import LoraConfig, get_peft_model
    except ImportError as error:
        remedy = "pip install peft; or train all weights with lora=0"
        raise ModelError(f"training an adapter needs peft: {remedy}") from error
    adapter = LoraConfig(
        r=settings.lora, lora_alpha=2 * settings.lora, target_modules="all-linear"
    )
    with torch.random.fork_rng(), quiet():
        torch.manual_seed(settings.seed)
        return get_peft_model(model, adapter).eval()


def _begin_with(student: Student, corpus: Corpus, earlier: Path) -> Corpus:
    """Take over the weights of an earlier training or of a finished twin, and say so in the name of the text."""
    checkpoint = earlier / "training" / "checkpoint.safetensors"
    if not checkpoint.exists() and (earlier / _ADAPTER).exists():
        _take_adapter(student, earlier / _ADAPTER)
        return replace(corpus, name=f"{corpus.name}, after {earlier.name} as published")
    # The moments belong to the earlier training.
    unused = torch.optim.AdamW(student.parameters.values())
    progress = load_checkpoint(checkpoint, student.parameters, unused)
    return replace(
        corpus, name=f"{corpus.name}, after {progress['step']} steps of {earlier.name}"
    )


def _take_adapter(student: Student, path: Path) -> None:
    """Copy a twin's adapter into the student's, whose rank may be higher.

    An adapter adds B·A to a weight. The further rows of A keep their random values and the further columns of B
    their zeros, so the student begins as exactly that twin.
    """
    stored = load_file(path)
    for name, parameter in student.parameters.items():
        value = stored.get(name.replace(".default.", "."))  # files leave out the adapter's name
        lacking = f"{path} does not fit: it has no {name} of at most this rank"
        if value is None:
            raise FileError(lacking)
        rows, columns = value.shape
        if rows > parameter.shape[0] or columns > parameter.shape[1]:
            raise FileError(lacking)
        parameter.data[:rows, :columns] = value


def _publish(run: TrainingRun, weights: Weights, folder: Path, name: str) -> Sparsity:
    """Write the twin, measure what was written, and write what was measured."""
    flags: dict[str, Any] = {
        "gate": True,
        "bos": weights.flags.bos,
        "original": name,
        "text": run.corpus.name,
        "settings": asdict(run.settings),
    }
    # The mark goes first: a folder with weights and no mark would load as a dense model.
    _write_flags(folder, flags)
    _store(run.student.to("cpu"), weights, folder, name)
    twin = find(str(folder)).model
    measured = measure(
        twin, weights.model, [run.corpus.held_out], name=folder.name, original=name
    )
    log = read_log(folder / "training" / "log.jsonl")
    draw_training(log, run.settings, folder / "training.svg")
    write_card(folder / "README.md", measured, flags, _scores(name, weights, twin), log)
    _write_flags(folder, flags | {"measured": asdict(measured)})
    return measured


def _write_flags(folder: Path, flags: dict[str, Any]) -> None:
    (folder / FLAGS_FILE).write_text(json.dumps(flags, indent=1) + "\n")


def _store(student: Student, weights: Weights, folder: Path, name: str) -> None:
    """Write weights or adapter in fp16, and the tokenizer."""
    options = {}
    if student.teacher is None:
        student.model.peft_config["default"].base_model_name_or_path = name
        # They may have fewer tokens than the whole model's.
        options["save_embedding_layers"] = False
    with quiet():
        student.model.half().save_pretrained(folder, **options)
        weights.tokenizer.save_pretrained(folder)


def _scores(name: str, weights: Weights, twin: Any) -> list[list[Score]]:
    """Both models on the tasks that they know: those of the little language, or of stories."""
    original_logits = partial(logits_under, dense, weights.model)
    twin_logits = partial(logits_under, hard, twin)
    if name == "stories15m":
        return [
            score_stories(logits, weights.tokenizer)
            for logits in (original_logits, twin_logits)
        ]
    length = LITTLE_LANGUAGE.length
    if speaks_little_language(weights) and context_of(weights, length) == length:
        return [score_all(logits) for logits in (original_logits, twin_logits)]
    return []
