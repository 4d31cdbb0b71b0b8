"""Post-training under a constraint: least open edges, subject to a gap to the dense model measured on the same batch.

1. Each step runs the dense model and the gated one on the same rows and minimises `CE + KL(dense‖gated) + λ·penalty`; where the
   constraint is the divergence, without CE, so that nothing can be gained by learning the text.
2. λ rises while the moving average of the gap is within the budget and falls while it is not, at most 2% a step.
3. Rows and noise are drawn from (seed, step), and a checkpoint holds all the rest, so a run that was killed goes on exactly.
4. Several processes divide a step's rows and add up their gradients and losses: the step is the one that one process would take.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float, Int
from safetensors import SafetensorError

from circuits.errors import CircuitsError, FileError
from circuits.sparsify.attention import TrainingGate, attending
from circuits.sparsify.checkpoints import load_checkpoint, save_checkpoint
from circuits.sparsify.processes import Processes
from circuits.sparsify.settings import Settings
from circuits.sparsify.text import Batch, Corpus

LOG_EVERY: Final = 5


@dataclass(frozen=True, slots=True, eq=False)
class Pupil:
    """The model in training and its dense original: a frozen copy, or, with LoRA, the same model with the adapter off."""

    model: Any
    original: Any | None

    @property
    def attended(self) -> Any:
        """The Hugging Face model whose attention is gated."""
        return self.model if self.original is not None else self.model.get_base_model()

    @property
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        return {
            name: parameter for name, parameter in self.model.named_parameters() if parameter.requires_grad
        }

    def to(self, device: torch.device | str | None) -> Pupil:
        """The same models, moved to a device, if there is one to move to."""
        for each in (self.model, self.original):
            if each is not None and device is not None:
                each.to(device)
        return self

    def dense_logits(self, tokens: Int[torch.Tensor, "batch pos"]) -> Float[torch.Tensor, "batch pos vocab"]:
        with torch.no_grad():
            if self.original is not None:
                return self.original(tokens, use_cache=False).logits
            with self.model.disable_adapter():
                return self.model(tokens, use_cache=False).logits


@dataclass(frozen=True, slots=True)
class Progress:
    """Where a run stands after `step` steps; `gap` is the moving average that the multiplier follows, None before the first step."""

    step: int
    multiplier: float
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """What one step measured, in nats; `open_edges` as they would be at evaluation."""

    loss: float
    dense_loss: float
    divergence: float
    penalty: float
    open_edges: float


def train(
    pupil: Pupil,
    corpus: Corpus,
    settings: Settings,
    folder: Path,
    *,
    save_every: float = 180.0,
    processes: Processes | None = None,
) -> None:
    """Run to the end, going on from `folder`'s checkpoint if there is one; a checkpoint every `save_every` seconds.

    Of several processes the main one writes all files; the others read the checkpoint and take their part of each step.
    """
    processes = processes or Processes()
    checkpoint, recipe = (
        folder / "checkpoint.safetensors",
        {"settings": asdict(settings), "text": corpus.name},
    )
    parameters = pupil.parameters
    optimizer = torch.optim.AdamW(parameters.values(), betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    start = _resumed(checkpoint, parameters, optimizer, recipe) or Progress(0, settings.multiplier)
    processes.check_same(start.step)
    steps = _steps(pupil, optimizer, corpus, settings, start, processes)
    if not processes.is_main:
        for _ in steps:
            pass
        return
    with (
        _writing(checkpoint),
        _log(folder / "log.jsonl", start.step) as log,
        _bar(settings.all_steps, start.step) as show,
    ):
        saved = time.monotonic()
        for progress, done in steps:
            show(f"gap {progress.gap:.3f}  open {done.open_edges:.2%}  λ {progress.multiplier:.3g}")
            last = progress.step == settings.all_steps
            if last or progress.step % LOG_EVERY == 0:
                log.write(
                    json.dumps(asdict(progress) | {"measured": asdict(done), "time": time.time()}) + "\n"
                )
                log.flush()
            if last or time.monotonic() - saved >= save_every:
                save_checkpoint(checkpoint, parameters, optimizer, **asdict(progress), recipe=recipe)
                saved = time.monotonic()


def _steps(
    pupil: Pupil, optimizer: Any, corpus: Corpus, settings: Settings, progress: Progress, processes: Processes
) -> Iterator[tuple[Progress, Step]]:
    while progress.step < settings.all_steps:
        done = _step(pupil, optimizer, corpus.batch(progress.step), settings, progress, processes)
        progress = _advanced(progress, done, settings)
        yield progress, done


def _step(
    pupil: Pupil, optimizer: Any, batch: Batch, settings: Settings, progress: Progress, processes: Processes
) -> Step:
    shares = batch.weight[:, 1:] / batch.weight[:, 1:].sum()  # over the rows of all processes
    tokens, share = (processes.part(each).to(pupil.attended.device) for each in (batch.tokens, shares))
    gate = training_gate(settings, progress.step, tokens.device, part=(processes.index, processes.count))
    with attending(pupil.attended, gate):
        logits = pupil.model(tokens, use_cache=False).logits
    gate.check(pupil.attended.config.num_hidden_layers)
    loss, dense_loss, divergence = compare(logits, pupil.dense_logits(tokens), tokens, share)
    penalty = gate.penalty / processes.count
    aim = divergence if settings.constraint == "kl" else loss + divergence
    total = aim + progress.multiplier * penalty
    total.backward()
    open_edges = penalty.new_tensor(gate.open_edges / processes.count)
    sums = torch.stack([total, loss, dense_loss, divergence, penalty, open_edges]).detach()
    processes.add_up([*(each.grad for each in pupil.parameters.values() if each.grad is not None), sums])
    norm = torch.nn.utils.clip_grad_norm_(pupil.parameters.values(), 1.0).item()
    whole, *measured = sums.tolist()
    if not (math.isfinite(whole) and math.isfinite(norm)):
        where = f"loss {whole}, gradient {norm}"
        raise CircuitsError(
            f"training broke at step {progress.step} ({where}); the last checkpoint is whole; try a lower learning rate"
        )
    for group in optimizer.param_groups:
        group["lr"] = settings.rate(progress.step)
    optimizer.step()
    optimizer.zero_grad()
    return Step(*measured)


def training_gate(
    settings: Settings, step: int, device: Any = "cpu", *, part: tuple[int, int] = (0, 1)
) -> TrainingGate:
    """The gate of one step, its noise drawn from (seed, step)."""
    noise = (
        torch.Generator(device).manual_seed(settings.seed * 1_000_003 + step)
        if settings.gates == "sampled"
        else None
    )
    return TrainingGate(noise=noise, bias=settings.bias, part=part)


def compare(
    logits: Float[torch.Tensor, "batch pos vocab"],
    dense_logits: Float[torch.Tensor, "batch pos vocab"],
    tokens: Int[torch.Tensor, "batch pos"],
    share: Float[torch.Tensor, "batch pos-1"],
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gated model's loss, the dense model's loss, and the divergence dense‖gated, in nats: sums over targets, each by its share."""
    targets = tokens[:, 1:, None]
    own, dense = (each[:, :-1].log_softmax(-1) for each in (logits, dense_logits))
    divergence = torch.nn.functional.kl_div(own, dense, log_target=True, reduction="none").sum(-1)
    loss, dense_loss = (-each.gather(-1, targets)[..., 0] for each in (own, dense))
    return (loss * share).sum(), (dense_loss * share).sum(), (divergence * share).sum()


def _advanced(progress: Progress, done: Step, settings: Settings) -> Progress:
    now = done.divergence if settings.constraint == "kl" else done.loss - done.dense_loss
    gap = now if progress.gap is None else settings.memory * progress.gap + (1 - settings.memory) * now
    return Progress(progress.step + 1, settings.next_multiplier(progress.multiplier, gap, progress.step), gap)


def _resumed(
    path: Path, parameters: dict[str, torch.nn.Parameter], optimizer: Any, recipe: dict[str, Any]
) -> Progress | None:
    if not path.exists():
        return None
    try:
        stored = load_checkpoint(path, parameters, optimizer)
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise FileError(
            f"{path} is not a checkpoint of this model ({error}); choose another folder or delete it"
        ) from error
    # A setting that is younger than the checkpoint had its default then.
    if stored["recipe"] | {"settings": asdict(Settings()) | stored["recipe"]["settings"]} != recipe:
        raise FileError(
            f"{path} belongs to another run: {stored['recipe']}; choose another folder or delete it"
        )
    for parameter, state in optimizer.state.items():
        state["step"] = state["step"].to(parameter.device)  # where a fused optimizer counts its steps
    return Progress(stored["step"], stored["multiplier"], stored["gap"])


@contextmanager
def _writing(checkpoint: Path) -> Iterator[None]:
    """A full disk is one line; the half-written file goes, the last good checkpoint stays."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        checkpoint.with_suffix(".unfinished").unlink(missing_ok=True)
        kept = (
            f"the last checkpoint, {checkpoint}, is whole"
            if checkpoint.exists()
            else "there was no checkpoint yet"
        )
        raise FileError(f"cannot write to {checkpoint.parent}: {error}; {kept}") from error


@contextmanager
def _log(path: Path, step: int) -> Iterator[Any]:
    """The log, without lines that a killed run wrote after its last checkpoint."""
    kept = [line for line in read_log(path) if line["step"] <= step]
    path.write_text("".join(json.dumps(line) + "\n" for line in kept))
    with path.open("a") as log:
        yield log


def read_log(path: Path) -> list[dict[str, Any]]:
    """The log's lines; one that was cut off is left out."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


@contextmanager
def _bar(steps: int, start: int) -> Iterator[Any]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
    from rich.progress import Progress as Bar

    columns = (
        TextColumn("sparsify"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        TextColumn("{task.fields[note]}"),
    )
    with Bar(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=steps, completed=start, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
