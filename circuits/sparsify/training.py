"""Post-training under a constraint: as few open edges as the gap to the dense teacher, on equal rows, allows.

1. Each step runs the dense teacher and the gated student on the same rows and minimises
   `CE + KL(teacher‖student) + λ·penalty`. Where the constraint is the divergence, CE is left out, so that
   nothing can be gained by learning the text.
2. λ rises while the moving average of the gap is within the budget and falls while it is not, by at most 2%.
3. Rows and noise depend on (seed, step) alone, a checkpoint holds the rest, so a killed run resumes exactly.
4. Several processes divide a step's rows and add up gradients and losses: they take the step of one process.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.errors import CircuitsError, FileError
from circuits.sparsify.attention import TrainingGate, attending
from circuits.sparsify.checkpoints import load_checkpoint, save_checkpoint
from circuits.sparsify.processes import Processes
from circuits.sparsify.settings import Settings
from circuits.sparsify.text import Corpus, Tokens

Logits = Float[torch.Tensor, "batch pos vocab"]
LOG_EVERY: Final = 5


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
    def parameters(self) -> dict[str, torch.nn.Parameter]:
        """Those in training, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def to(self, device: torch.device | str | None) -> Student:
        """The same models, moved to a device, if there is one."""
        for model in (self.model, self.teacher):
            if model is not None and device is not None:
                model.to(device)
        return self

    def teacher_logits(self, tokens: Tokens) -> Logits:
        with torch.no_grad():
            if self.teacher is not None:
                return self.teacher(tokens, use_cache=False).logits
            with self.model.disable_adapter():
                return self.model(tokens, use_cache=False).logits


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """One training: who learns, from what, how, and in which of several processes."""

    student: Student
    corpus: Corpus
    settings: Settings
    processes: Processes = field(default_factory=Processes)


@dataclass(frozen=True, slots=True)
class TrainingState:
    """After `step` steps; the multiplier follows `gap`, a moving average, None before the first step."""

    step: int
    multiplier: float
    gap: float | None = None


@dataclass(frozen=True, slots=True)
class StepLog:
    """What one step measured, in nats; `open_edges` as they would be at evaluation."""

    loss: float
    dense_loss: float
    divergence: float
    penalty: float
    open_edges: float


def train(run: Run, folder: Path, *, save_every: float = 180.0) -> None:
    """Train to the end, from `folder`'s checkpoint if it has one; a checkpoint every `save_every` seconds.

    Of several processes the main one writes all files; the others read the checkpoint and do their part.
    """
    settings, parameters = run.settings, run.student.parameters
    checkpoint, log_file = folder / "checkpoint.safetensors", folder / "log.jsonl"
    recipe = {"settings": asdict(settings), "text": run.corpus.name}
    optimizer = torch.optim.AdamW(parameters.values(), betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    start = TrainingState(0, settings.multiplier)
    if checkpoint.exists():
        start = _resume(checkpoint, load_checkpoint(checkpoint, parameters, optimizer), recipe)
    run.processes.check_same(start.step)
    steps = _steps(run, optimizer, start)
    if not run.processes.is_main:
        for _ in steps:
            pass
        return
    _cut_log(log_file, start.step)
    with log_file.open("a") as log, _bar(settings.all_steps, start.step) as show:
        saved = time.monotonic()
        for state, done in steps:
            show(f"gap {state.gap:.3f}  open {done.open_edges:.2%}  λ {state.multiplier:.3g}")
            last = state.step == settings.all_steps
            if last or state.step % LOG_EVERY == 0:
                log.write(json.dumps(asdict(state) | {"measured": asdict(done), "time": time.time()}) + "\n")
                log.flush()
            if last or time.monotonic() - saved >= save_every:
                save_checkpoint(checkpoint, parameters, optimizer, **asdict(state), recipe=recipe)
                saved = time.monotonic()


def _resume(path: Path, stored: dict[str, Any], recipe: dict[str, Any]) -> TrainingState:
    saved = stored.get("recipe", {})
    # A setting that is younger than the checkpoint had its default then.
    if saved | {"settings": asdict(Settings()) | saved.get("settings", {})} != recipe:
        raise FileError(f"{path} belongs to another run: {saved}; choose another folder or delete it")
    return TrainingState(stored["step"], stored["multiplier"], stored["gap"])


def _steps(run: Run, optimizer: Any, state: TrainingState) -> Iterator[tuple[TrainingState, StepLog]]:
    settings = run.settings
    while state.step < settings.all_steps:
        done = _step(run, optimizer, state)
        now = done.divergence if settings.constraint == "kl" else done.loss - done.dense_loss
        gap = now if state.gap is None else settings.memory * state.gap + (1 - settings.memory) * now
        state = TrainingState(
            state.step + 1, settings.next_multiplier(state.multiplier, gap, state.step), gap
        )
        yield state, done


def _step(run: Run, optimizer: Any, state: TrainingState) -> StepLog:
    student, processes, rows = run.student, run.processes, run.corpus.batch(state.step)
    shares = rows.weight[:, 1:] / rows.weight[:, 1:].sum()  # over the rows of all processes
    tokens, share = (processes.part(each).to(student.base.device) for each in (rows.tokens, shares))
    gate = training_gate(run.settings, state.step, tokens.device, part=(processes.index, processes.count))
    with attending(student.base, gate):
        logits = student.model(tokens, use_cache=False).logits
    gate.check(student.base.config.num_hidden_layers)
    loss, dense_loss, divergence = losses(logits, student.teacher_logits(tokens), tokens, share)
    penalty = gate.penalty / processes.count
    aim = divergence if run.settings.constraint == "kl" else loss + divergence
    total = aim + state.multiplier * penalty
    total.backward()
    open_edges = penalty.new_tensor(gate.open_edges / processes.count)
    sums = torch.stack([total, loss, dense_loss, divergence, penalty, open_edges]).detach()
    processes.add_up([*(each.grad for each in student.parameters.values() if each.grad is not None), sums])
    norm = torch.nn.utils.clip_grad_norm_(student.parameters.values(), 1.0).item()
    whole, *measured = sums.tolist()
    if not (math.isfinite(whole) and math.isfinite(norm)):
        broken = f"training broke at step {state.step} (loss {whole}, gradient {norm})"
        raise CircuitsError(f"{broken}; the last checkpoint is whole; try a lower learning rate")
    for group in optimizer.param_groups:
        group["lr"] = run.settings.rate(state.step)
    optimizer.step()
    optimizer.zero_grad()
    return StepLog(*measured)


def training_gate(
    settings: Settings, step: int, device: Any = "cpu", *, part: tuple[int, int] = (0, 1)
) -> TrainingGate:
    """The gate of one step, its noise drawn from (seed, step)."""
    seed = settings.seed * 1_000_003 + step
    noise = torch.Generator(device).manual_seed(seed) if settings.gates == "sampled" else None
    return TrainingGate(noise=noise, bias=settings.bias, part=part)


def losses(
    logits: Logits, dense_logits: Logits, tokens: Tokens, share: Float[torch.Tensor, "batch pos-1"]
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The student's loss, the teacher's, and KL(teacher‖student), in nats: sums over targets, by share."""
    targets = tokens[:, 1:, None]
    own, dense = (each[:, :-1].log_softmax(-1) for each in (logits, dense_logits))
    divergence = torch.nn.functional.kl_div(own, dense, log_target=True, reduction="none").sum(-1)
    loss, dense_loss = (-each.gather(-1, targets)[..., 0] for each in (own, dense))
    return (loss * share).sum(), (dense_loss * share).sum(), (divergence * share).sum()


def read_log(path: Path) -> list[dict[str, Any]]:
    """The log's lines, without one that was cut off."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines


def _cut_log(path: Path, step: int) -> None:
    """Drop the lines that a killed run wrote after its last checkpoint."""
    path.write_text("".join(json.dumps(line) + "\n" for line in read_log(path) if line["step"] <= step))


@contextmanager
def _bar(steps: int, start: int) -> Iterator[Callable[[str], None]]:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    columns = ("sparsify", BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), "{task.fields[note]}")
    with Progress(*columns, console=Console(stderr=True), disable=not sys.stderr.isatty()) as bar:
        task = bar.add_task("", total=steps, completed=start, note="")
        yield lambda note: bar.update(task, advance=1, note=note)
