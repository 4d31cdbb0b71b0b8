"""Post-training under a constraint: as few open edges as the gap to the dense teacher, on equal rows, allows.

1. Each step runs the dense teacher and the gated student on the same rows and minimises
   `CE + KL(teacher‖student) + λ·penalty`. Where the constraint is the divergence, CE is left out, so that
   nothing can be gained by learning the text. With `states`, the distance between their
   hidden states is added: each layer learns to write what it wrote, which is a nearer aim.
2. λ rises while the moving average of the gap is within the budget and falls while it is not, by at most 2%.
3. Rows and noise depend on (seed, step) alone, a checkpoint holds the rest, so a killed run resumes exactly.
4. Processes of one `accelerate launch` or `torchrun` find each other through `accelerate`. Each takes its
   part of a step's rows; gradients and losses are sums over rows, so the parts add up to what one process
   would have (a wrapper of the model would take a mean of means). The main process writes files; the others
   follow it, or wait.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from circuits.errors import CircuitsError, FileError
from circuits.files import check_regular, parse_json, write_whole
from circuits.models.folder import NO_LIMIT, one_line, quiet
from circuits.results import Progress, silent
from circuits.sparsify import Settings
from circuits.sparsify.attention import TrainingGate, attending
from circuits.sparsify.text import Corpus, Tokens

TIMEOUT: Final = timedelta(hours=12)  # the others wait while the main process samples text or measures
_COUNTS: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LAUNCHED: Final = (*_COUNTS, "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")  # a launcher sets one of these
Logits = Float[torch.Tensor, "batch pos vocab"]
Parameters = dict[str, torch.nn.Parameter]
LOG_EVERY: Final = 5
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter, besides the step
_REMEDY: Final = "choose another folder or delete it"


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """This process, number `index` of `count`, computing on `device` (None: where the model is)."""

    index: int = 0
    count: int = 1
    device: torch.device | None = None
    accelerator: Any = None

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def check_rows(self, rows: int) -> None:
        """Refuse a number of rows that the processes cannot divide evenly."""
        if rows % self.count:
            wrong = f"{rows} rows in a step cannot be divided among {self.count} processes"
            raise CircuitsError(f"{wrong}; give a multiple of {self.count}")

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows that this process takes."""
        self.check_rows(len(rows))
        return rows.chunk(self.count)[self.index]

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one message."""
        if self.count == 1:
            return
        flat = torch.cat([tensor.flatten() for tensor in tensors])
        sums = _together(self.accelerator.reduce, flat, "sum")
        for tensor, total in zip(tensors, sums.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def check_same(self, step: int) -> None:
        """Refuse to resume from checkpoints of different steps."""
        if self.count == 1:
            return
        steps = _together(self.accelerator.gather, torch.tensor([step], device=self.device)).tolist()
        if len(set(steps)) > 1:
            wrong = f"the processes have checkpoints of different steps, {steps}"
            raise CircuitsError(f"{wrong}; give a folder that all of them share")

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process does this first, the others then use what it wrote; if it fails, so do they."""
        wait = partial(_together, self.accelerator.wait_for_everyone) if self.count > 1 else lambda: None
        if not self.is_main:
            wait()
        try:
            yield
        finally:
            if self.is_main:
                wait()

    def from_main(self, value: Any) -> Any:
        """The main process's value, in all processes; the others wait for it."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        return _together(broadcast_object_list, [value])[0]

    def leave(self) -> None:
        """End the joint work in order, when nothing is left to do."""
        if self.accelerator is not None:
            self.accelerator.end_training()


def _together(call: Callable[..., Any], *given: Any) -> Any:
    """Call what all processes take part in; report the death of another one in one line."""
    try:
        return call(*given)
    except RuntimeError as error:
        remedy = "start the same command again, it resumes from the last checkpoint"
        raise CircuitsError(f"lost another process of this training; {remedy} ({one_line(error)})") from error


def join() -> Processes:
    """This process among those started with it; alone, if no launcher started it."""
    if not any(name in os.environ for name in _LAUNCHED):
        return Processes()
    started = int(next((os.environ[name] for name in _COUNTS if name in os.environ), 1))
    try:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs
    except ImportError as error:
        if started == 1:
            return Processes()
        wrong = f"{started} processes can only train together through accelerate"
        raise CircuitsError(f"{wrong}: pip install accelerate") from error
    patient, on_cpu = InitProcessGroupKwargs(timeout=TIMEOUT), not torch.accelerator.is_available()
    with quiet():
        accelerator = Accelerator(cpu=on_cpu, kwargs_handlers=[patient])
    check_launch(accelerator, started)
    return Processes(accelerator.process_index, accelerator.num_processes, accelerator.device, accelerator)


def check_launch(accelerator: Any, started: int) -> None:
    """Refuse a launch that asks for what this training does not do."""
    if (joined := accelerator.num_processes) != started:
        wrong = f"{started} processes were started and {joined} joined on {accelerator.device}"
        raise CircuitsError(f"{wrong}; to train on the CPU set ACCELERATE_USE_CPU=true")
    if (precision := accelerator.mixed_precision) != "no":
        raise CircuitsError(f"twins are trained in fp32, not {precision}; launch with --mixed_precision no")
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        shared = "processes share the rows of a step, not the weights of a model"
        raise CircuitsError(f"{shared}; launch without {kind}")


def started_alone() -> bool:
    """Whether this is the one process that `accelerate launch --cpu` starts, however many it is asked for."""
    by_cpu_launch = "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ
    return by_cpu_launch and not any(name in os.environ for name in _COUNTS)


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
        """Those in training, by name."""
        return {name: value for name, value in self.model.named_parameters() if value.requires_grad}

    def to(self, device: torch.device | str | None) -> Student:
        """The same models, moved to a device, if there is one."""
        for model in filter(None, (self.model, self.teacher) if device else ()):
            model.to(device)
        return self

    def taught(self, tokens: Tokens, **wanted: Any) -> Any:
        """What the teacher says: the library's output, with its logits."""
        with torch.no_grad():
            if self.teacher is not None:
                return self.teacher(tokens, use_cache=False, **wanted)
            with self.model.disable_adapter():
                return self.model(tokens, use_cache=False, **wanted)


@dataclass(frozen=True, slots=True, eq=False)
class TrainingRun:
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


def train(run: TrainingRun, folder: Path, *, save_every: float = 180.0, progress: Progress = silent) -> None:
    """Train to the end, from `folder`'s checkpoint if it has one; a checkpoint every `save_every` seconds.

    Of several processes the main one writes all files; the others read the checkpoint and do their part.
    """
    settings, parameters = run.settings, run.student.parameters
    checkpoint, log_file = folder / "checkpoint.safetensors", folder / "log.jsonl"
    recipe = {"settings": asdict(settings), "text": run.corpus.name}
    optimizer = torch.optim.AdamW(parameters.values(), betas=(0.9, 0.98), weight_decay=0.0, fused=True)
    start = TrainingState(0, settings.multiplier)
    if checkpoint.exists():
        stored = load_checkpoint(checkpoint, parameters, optimizer)
        saved = stored.get("recipe", {})
        # A setting that is younger than the checkpoint had its default then.
        if saved | {"settings": asdict(Settings()) | saved.get("settings", {})} != recipe:
            raise FileError(f"{checkpoint} belongs to another run: {saved}; {_REMEDY}")
        start = TrainingState(stored["step"], stored["multiplier"], stored["gap"])
    run.processes.check_same(start.step)
    steps = _steps(run, optimizer, start)
    if not run.processes.is_main:
        for _ in steps:
            pass
        return
    kept = [line for line in read_log(log_file) if line["step"] <= start.step]  # a killed run wrote on
    log_file.write_text("".join(json.dumps(line) + "\n" for line in kept))
    with log_file.open("a") as log:
        saved = time.monotonic()
        for state, done in steps:
            reached = f"gap {state.gap:.3f}, open {done.open_edges:.2%}, λ {state.multiplier:.3g}"
            progress(f"training: {reached}", state.step, settings.all_steps)
            last = state.step == settings.all_steps
            if last or state.step % LOG_EVERY == 0:
                log.write(json.dumps(asdict(state) | {"measured": asdict(done), "time": time.time()}) + "\n")
                log.flush()
            if last or time.monotonic() - saved >= save_every:
                save_checkpoint(checkpoint, parameters, optimizer, **asdict(state), recipe=recipe)
                saved = time.monotonic()


def _steps(run: TrainingRun, optimizer: Any, state: TrainingState) -> Iterator[tuple[TrainingState, StepLog]]:
    settings = run.settings
    while state.step < settings.all_steps:
        done = _step(run, optimizer, state)
        now = done.divergence if settings.constraint == "kl" else done.loss - done.dense_loss
        gap = now if state.gap is None else settings.memory * state.gap + (1 - settings.memory) * now
        multiplier = settings.next_multiplier(state.multiplier, gap, state.step)
        state = TrainingState(state.step + 1, multiplier, gap)
        yield state, done


def _step(run: TrainingRun, optimizer: Any, state: TrainingState) -> StepLog:
    student, processes, rows = run.student, run.processes, run.corpus.batch(state.step)
    shares = rows.weight[:, 1:] / rows.weight[:, 1:].sum()  # over the rows of all processes
    tokens, share = (processes.part(each).to(student.base.device) for each in (rows.tokens, shares))
    gate = training_gate(run.settings, state.step, tokens.device, part=(processes.index, processes.count))
    wanted: dict[str, Any] = {"output_hidden_states": True} if run.settings.states else {}
    with attending(student.base, gate):
        output = student.model(tokens, use_cache=False, **wanted)
    gate.check(student.base.config.num_hidden_layers)
    taught = student.taught(tokens, **wanted)
    per_target = losses(output.logits, taught.logits, tokens)
    loss, dense_loss, divergence = (per_target * share).sum((1, 2))
    penalty = gate.penalty / processes.count
    aim = divergence if run.settings.constraint == "kl" else loss + divergence
    total = aim + state.multiplier * penalty
    if run.settings.states:
        total = total + run.settings.states * _distance(output, taught, share)
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


def _distance(output: Any, taught: Any, share: torch.Tensor) -> torch.Tensor:
    """The mean over layers of the states' squared distance, relative to the size of the teacher's."""
    pairs = zip(output.hidden_states[1:], taught.hidden_states[1:], strict=True)
    apart = [(own - aim).square().sum(-1) / aim.square().sum(-1) for own, aim in pairs]
    return (torch.stack(apart).mean(0)[:, 1:] * share).sum()


def training_gate(
    settings: Settings, step: int, device: Any = "cpu", *, part: tuple[int, int] = (0, 1)
) -> TrainingGate:
    """The gate of one step, its noise drawn from (seed, step)."""
    seed = settings.seed * 1_000_003 + step
    noise = torch.Generator(device).manual_seed(seed) if settings.gates == "sampled" else None
    return TrainingGate(noise=noise, bias=settings.bias, part=part)


def losses(logits: Logits, dense_logits: Logits, tokens: Tokens) -> Float[torch.Tensor, "3 batch pos-1"]:
    """The gated model's loss, the dense one's, and KL(dense‖gated) at each target, in nats."""
    own, dense = (each[:, :-1].log_softmax(-1) for each in (logits, dense_logits))
    divergence = torch.nn.functional.kl_div(own, dense, log_target=True, reduction="none").sum(-1)
    loss, dense_loss = (-each.gather(-1, tokens[:, 1:, None])[..., 0] for each in (own, dense))
    return torch.stack([loss, dense_loss, divergence])


def save_checkpoint(path: Path, parameters: Parameters, optimizer: Any, **progress: Any) -> None:
    """Write parameters, AdamW's moments and `progress` (plain values, with `step`), whole or not at all."""
    tensors = {}
    for name, parameter in parameters.items():
        state = {"value": parameter.detach()} | optimizer.state.get(parameter, {})
        kept = [kind for kind in ("value", *_MOMENTS) if kind in state]
        tensors |= {f"{kind}/{name}": state[kind].contiguous() for kind in kept}
    write_whole(path, lambda file: save_file(tensors, file, metadata={"progress": json.dumps(progress)}))


def load_checkpoint(path: Path, parameters: Parameters, optimizer: Any) -> dict[str, Any]:
    """Restore a checkpoint and return its `progress`; one that does not fit changes nothing."""
    check_regular(path, most=NO_LIMIT)
    try:
        with safe_open(path, framework="pt") as stored:
            progress = parse_json((stored.metadata() or {}).get("progress", ""), f"the progress in {path}")
            tensors = {name: stored.get_tensor(name).float() for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError, RuntimeError) as why:
        raise FileError(f"{path} is not a whole checkpoint ({why}); {_REMEDY}") from why
    if not isinstance(progress, dict) or type(progress.get("step")) is not int or progress["step"] < 0:
        raise FileError(f"{path} is not a checkpoint: it does not say how many steps are done")
    states, refused = {}, f"{path} is not a checkpoint of this model"
    for name, parameter in parameters.items():  # its value and, if it was trained, its moments
        state = [tensors[key] for kind in ("value", *_MOMENTS) if (key := f"{kind}/{name}") in tensors]
        if len(state) not in (1, 3) or f"value/{name}" not in tensors:
            raise FileError(f"{refused}: it lacks {name}; {_REMEDY}")
        if any(each.shape != parameter.shape for each in state):
            raise FileError(f"{refused}: {name} has another shape; {_REMEDY}")
        states[name] = state
    for name, parameter in parameters.items():
        value, *moments = (each.to(parameter) for each in states[name])
        parameter.data.copy_(value)
        if moments:
            step = torch.tensor(float(progress["step"]), device=parameter.device)
            optimizer.state[parameter] = {"step": step, **dict(zip(_MOMENTS, moments, strict=True))}
    return progress


def read_log(path: Path) -> list[dict[str, Any]]:
    """The log's lines, without one that was cut off."""
    lines = []
    for line in path.read_text().splitlines() if path.exists() else ():
        try:
            lines.append(json.loads(line))
        except ValueError:
            continue
    return lines
