"""Several processes that train one twin together: who this one is, and what all of them do at once.

1. A launcher (`accelerate launch`, `torchrun`, `mpirun`) tells each process in its environment which one it
   is; `accelerate` reads that and connects them.
2. Each process takes its part of a step's rows. Losses and gradients are sums over rows, so the parts add up
   to what one process would have computed. (A wrapper of the model would take a mean of means.)
3. The main process writes all files; the others wait for it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs, broadcast_object_list
from accelerate.utils.environment import get_cpu_distributed_information

from circuits.errors import CircuitsError
from circuits.models.folder import one_line, quiet

# How long the others wait while the main process samples or measures.
TIMEOUT: Final = timedelta(hours=12)


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """This process, number `index` of `count`, which computes on `device` (None: where the user says)."""

    index: int = 0
    count: int = 1
    device: torch.device | None = None
    accelerator: Any = None  # None where this process trains alone

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
        """Replace each tensor by its sum over all processes. They are sent as one message."""
        if self.count == 1:
            return
        message = torch.cat([tensor.flatten() for tensor in tensors])
        summed = _collectively(self.accelerator.reduce, message, "sum")
        sizes = [tensor.numel() for tensor in tensors]
        for tensor, total in zip(tensors, summed.split(sizes), strict=True):
            tensor.copy_(total.view_as(tensor))

    def check_same(self, step: int) -> None:
        """Refuse to resume from checkpoints of different steps."""
        if self.count == 1:
            return
        own = torch.tensor([step], device=self.device)
        steps = _collectively(self.accelerator.gather, own).tolist()
        if len(set(steps)) > 1:
            wrong = f"the processes have checkpoints of different steps, {steps}"
            raise CircuitsError(f"{wrong}; give a folder that all of them share")

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process runs this block first, and the others then use the files it wrote.

        If the main process fails, the others go on and fail in the same way.
        """
        if not self.is_main:
            self._wait()
        try:
            yield
        finally:
            if self.is_main:
                self._wait()

    def _wait(self) -> None:
        if self.count > 1:
            _collectively(self.accelerator.wait_for_everyone)

    def from_main(self, value: Any) -> Any:
        """The main process's value, in every process. The others wait for it."""
        if self.count == 1:
            return value
        return _collectively(broadcast_object_list, [value])[0]

    def leave(self) -> None:
        """Close the connections, when nothing is left to do together."""
        if self.accelerator is not None:
            self.accelerator.end_training()


def _collectively(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call what needs all processes. If another one died, say so in one line."""
    try:
        return call(*arguments)
    except RuntimeError as error:
        remedy = "start the same command again, it resumes from the last checkpoint"
        raise CircuitsError(
            f"lost another process of this training; {remedy} ({one_line(error)})"
        ) from error


def join() -> Processes:
    """This process among those that were started with it; alone, if no launcher started it."""
    started = get_cpu_distributed_information().world_size
    by_accelerate = "ACCELERATE_MIXED_PRECISION" in os.environ
    if started == 1 and not by_accelerate:
        return Processes()
    patience = InitProcessGroupKwargs(timeout=TIMEOUT)
    with quiet():
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(), kwargs_handlers=[patience]
        )
    check_launch(accelerator, started)
    return Processes(
        accelerator.process_index, accelerator.num_processes, accelerator.device, accelerator
    )


def check_launch(accelerator: Any, started: int) -> None:
    """Refuse a launch that asks for what this training does not do."""
    joined = accelerator.num_processes
    if joined != started:
        wrong = f"{started} processes were started and {joined} joined on {accelerator.device}"
        raise CircuitsError(f"{wrong}; to train on the CPU set ACCELERATE_USE_CPU=true")
    precision = accelerator.mixed_precision
    if precision != "no":
        raise CircuitsError(
            f"twins are trained in fp32, not {precision}; launch with --mixed_precision no"
        )
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        wrong = "processes share the rows of a step, not the weights of a model"
        raise CircuitsError(f"{wrong}; launch without {kind}")


def started_alone() -> bool:
    """Whether this is the one process that `accelerate launch --cpu` starts, however many it is asked for."""
    by_cpu_launch = "MASTER_ADDR" in os.environ and "ACCELERATE_USE_CPU" in os.environ
    return by_cpu_launch and get_cpu_distributed_information().world_size == 1
