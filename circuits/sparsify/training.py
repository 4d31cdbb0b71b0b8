"""Post-training under a constraint: as few open edges as the gap to the dense model allows.

Each step:
1. The dense teacher and the gated student run on the same rows.
2. The student minimises `KL(teacher‖student) + λ·penalty`, where the penalty is the expected share of open
   edges. With `states`, the distance between both models' hidden states is added: each layer learns to write
   what it wrote, which teaches faster than the logits alone. Where the constraint is the loss, the student's
   cross-entropy is added; where it is the divergence, it is left out, so that nothing is gained by learning
   the text.
3. λ rises by at most 2% while the moving average of the gap is within the budget, and falls while it is not.
Rows and noise depend on (seed, step) alone and a checkpoint holds everything else, so a killed training
resumes with the same numbers.
"""

from __future__ import annotations

import json
import math
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.errors import CircuitsError, FileError
from circuits.files import write_whole
from circuits.results import Progress, silent
from circuits.sparsify.attention import TrainingGate, attending
from circuits.sparsify.checkpoint import (
    REMEDY,
    Parameters,
    load_checkpoint,
    read_log,
    save_checkpoint,
)
from circuits.sparsify.processes import Processes
from circuits.sparsify.settings import Settings
from circuits.sparsify.small_vocabulary import Tokens
from circuits.sparsify.text import Corpus

Logits = Float[torch.Tensor, "batch pos vocab"]
LOG_EVERY: Final = 5  # steps


@dataclass(frozen=True, slots=True, eq=False)
class Student:
    """The gated model in training and its dense teacher: a frozen copy, or (None) itself without adapter."""

    model: Any
    teacher: Any | None

    @property
    def base(self) -> Any:
        """The Hugging Face model whose attention is gated."""
        return self.model if self.teacher is not None else self.model.get_base_model()

    @property
    def parameters(self) -> Parameters:
        """The parameters in training, by name."""
        return {
            name: value for name, value in self.model.named_parameters() if value.requires_grad
        }

    def to(self, device: torch.device | str) -> Student:
        """Move both models to a device."""
        self.model.to(device)
        if self.teacher is not None:
            self.teacher.to(device)
        return self

    def dense_output(self, tokens: Tokens, **options: Any) -> Any:
        """The library's output of the teacher, with its logits."""
        with torch.no_grad():
            if self.teacher is not None:
                return self.teacher(tokens, use_cache=False, **options)
            with self.model.disable_adapter():
                return self.model(tokens, use_cache=False, **options)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun:
    """One training: who learns, from what, how, and in which of several processes."""

    student: Student
    corpus: Corpus
    settings: Settings
    processes: Processes = field(default_factory=Processes)


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one step measured, in nats; `open_edges` is the share that would be open at evaluation."""

    loss: float
    dense_loss: float
    divergence: float
    penalty: float
    open_edges: float


@dataclass(frozen=True, slots=True)
class TrainingState:
    """Where a training is after `step` steps; `gap` is a moving average, None before the first step."""

    step: int
    multiplier: float
    gap: float | None = None

    def after(self, measured: StepLog, settings: Settings) -> TrainingState:
        """The state after one more step: the new moving average, and the multiplier that follows from it."""
        loss_gap = measured.loss - measured.dense_loss
        gap = measured.divergence if settings.constraint == "kl" else loss_gap
        if self.gap is not None:
            gap = settings.memory * self.gap + (1 - settings.memory) * gap
        multiplier = settings.next_multiplier(self.multiplier, gap, self.step)
        return TrainingState(self.step + 1, multiplier, gap)


def train(
    run: TrainingRun, folder: Path, *, save_every: float = 180.0, progress: Progress = silent
) -> None:
    """Train to the end, from the checkpoint in `folder` if there is one.

    The main process writes the log, and a checkpoint every `save_every` seconds.
    """
    settings = run.settings
    parameters = run.student.parameters
    checkpoint = folder / "checkpoint.safetensors"
    recipe = {"settings": asdict(settings), "text": run.corpus.name}
    optimizer = torch.optim.AdamW(
        parameters.values(), betas=(0.9, 0.98), weight_decay=0.0, fused=True
    )
    state = TrainingState(0, settings.multiplier)
    if checkpoint.exists():
        stored = load_checkpoint(checkpoint, parameters, optimizer)
        _check_recipe(stored.get("recipe", {}), recipe, checkpoint)
        state = TrainingState(stored["step"], stored["multiplier"], stored["gap"])
    run.processes.check_same(state.step)
    if run.processes.is_main:
        _shorten_log(folder / "log.jsonl", state.step)
    saved = time.monotonic()
    while state.step < settings.all_steps:
        measured = _step(run, optimizer, state)
        state = state.after(measured, settings)
        if not run.processes.is_main:
            continue
        reached = (
            f"gap {state.gap:.3f}, open {measured.open_edges:.2%}, λ {state.multiplier:.3g}"
        )
        progress(f"training: {reached}", state.step, settings.all_steps)
        is_last = state.step == settings.all_steps
        if is_last or state.step % LOG_EVERY == 0:
            line = asdict(state) | {"measured": asdict(measured), "time": time.time()}
            with (folder / "log.jsonl").open("a") as log:
                log.write(json.dumps(line) + "\n")
        if is_last or time.monotonic() - saved >= save_every:
            save_checkpoint(checkpoint, parameters, optimizer, **asdict(state), recipe=recipe)
            saved = time.monotonic()


def _check_recipe(stored: dict[str, Any], recipe: dict[str, Any], checkpoint: Path) -> None:
    """Refuse to go on with other settings or another text."""
    # A setting that did not exist when the checkpoint was written had its default then.
    settings = asdict(Settings()) | stored.get("settings", {})
    before = settings | {"text": stored.get("text")}
    now = recipe["settings"] | {"text": recipe["text"]}
    changed = []
    for name in before | now:
        if before.get(name) != now.get(name):
            changed.append(f"{name} {before.get(name)!r}, not {now.get(name)!r}")
    if changed:
        raise FileError(f"{checkpoint} belongs to another run: {', '.join(changed)}; {REMEDY}")


def _shorten_log(path: Path, step: int) -> None:
    """Remove the lines that a killed process wrote after its last checkpoint, or the log of one that was
    killed before its first."""
    kept = [json.dumps(line) + "\n" for line in read_log(path) if line["step"] <= step]
    if kept:
        write_whole(path, lambda file: file.write_text("".join(kept)))
    else:
        path.unlink(missing_ok=True)


def _step(run: TrainingRun, optimizer: Any, state: TrainingState) -> StepLog:
    """One step of the recipe in the module's docstring."""
    sums = _backward(run, state)
    parameters = list(run.student.parameters.values())
    gradients = [each.grad for each in parameters if each.grad is not None]
    run.processes.add_up([*gradients, sums])
    norm = torch.nn.utils.clip_grad_norm_(parameters, 1.0).item()
    total_loss, *measured = sums.tolist()
    if not (math.isfinite(total_loss) and math.isfinite(norm)):
        broken = f"training broke at step {state.step} (loss {total_loss}, gradient {norm})"
        raise CircuitsError(
            f"{broken}; the last checkpoint is whole; try a lower learning rate"
        )
    for group in optimizer.param_groups:
        group["lr"] = run.settings.rate(state.step)
    optimizer.step()
    optimizer.zero_grad()
    return StepLog(*measured)


def _backward(run: TrainingRun, state: TrainingState) -> Float[torch.Tensor, " sum"]:
    """Run both models on this process's rows and add up gradients. Returns this process's part of the
    objective and of the fields of a `StepLog`, in their order."""
    student, settings, processes = run.student, run.settings, run.processes
    rows = run.corpus.batch(state.step)
    # Each target's share, over all processes' rows.
    weight = rows.weight[:, 1:] / rows.weight[:, 1:].sum()
    tokens = processes.part(rows.tokens).to(student.base.device)
    weight = processes.part(weight).to(student.base.device)

    gate = training_gate(
        settings, state.step, tokens.device, part=(processes.index, processes.count)
    )
    options = {"output_hidden_states": True} if settings.states else {}
    with attending(student.base, gate):
        output = student.model(tokens, use_cache=False, **options)
    gate.check(student.base.config.num_hidden_layers)
    dense_output = student.dense_output(tokens, **options)

    per_target = losses(output.logits, dense_output.logits, tokens)  # (3, batch, pos - 1)
    loss, dense_loss, divergence = (per_target * weight).sum((1, 2))
    penalty = gate.penalty / processes.count
    objective = divergence if settings.constraint == "kl" else loss + divergence
    total = objective + state.multiplier * penalty
    if settings.states:
        total = total + settings.states * _states_distance(output, dense_output, weight)
    total.backward()

    open_edges = penalty.new_tensor(gate.open_edges / processes.count)
    return torch.stack([total, loss, dense_loss, divergence, penalty, open_edges]).detach()


def training_gate(
    settings: Settings, step: int, device: Any = "cpu", *, part: tuple[int, int] = (0, 1)
) -> TrainingGate:
    """The gate of one step; its noise is drawn from (seed, step)."""
    noise = None
    if settings.gates == "sampled":
        noise = torch.Generator(device).manual_seed(settings.seed * 1_000_003 + step)
    return TrainingGate(noise=noise, bias=settings.bias, part=part)


def losses(
    logits: Logits, dense_logits: Logits, tokens: Tokens
) -> Float[torch.Tensor, "3 batch pos-1"]:
    """The gated model's loss, the dense one's, and KL(dense‖gated) at each target, in nats."""
    gated = logits[:, :-1].log_softmax(-1)
    dense = dense_logits[:, :-1].log_softmax(-1)
    targets = tokens[:, 1:, None]
    loss = -gated.gather(-1, targets)[..., 0]
    dense_loss = -dense.gather(-1, targets)[..., 0]
    divergence = torch.nn.functional.kl_div(
        gated, dense, log_target=True, reduction="none"
    ).sum(-1)
    return torch.stack([loss, dense_loss, divergence])


def _states_distance(
    output: Any, dense_output: Any, weight: Float[torch.Tensor, "batch pos-1"]
) -> torch.Tensor:
    """The squared distance of hidden states, relative to the dense model's, as a mean over layers."""
    distances = []
    for gated, dense in zip(
        output.hidden_states[1:], dense_output.hidden_states[1:], strict=True
    ):
        distances.append((gated - dense).square().sum(-1) / dense.square().sum(-1))
    mean = torch.stack(distances).mean(0)  # (batch, pos)
    return (mean[:, 1:] * weight).sum()
