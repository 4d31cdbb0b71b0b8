"""One training in several processes: which of them this is, and the few things that they do together.

Processes of one `accelerate launch` or `torchrun` find each other through `accelerate`. Each takes its part
of a step's rows; gradients and losses are sums over rows, so the parts add up to what one process would
have (a wrapper of the model would take a mean of means). The main process writes files; the others follow
it, or wait.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch

from circuits.errors import CircuitsError
from circuits.models.folder import one_line, quiet

TIMEOUT: Final = timedelta(hours=12)  # the others wait while the main process samples text or measures
_COUNTS: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LAUNCHED: Final = (*_COUNTS, "LOCAL_RANK", "ACCELERATE_MIXED_PRECISION")  # a launcher sets one of these


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
