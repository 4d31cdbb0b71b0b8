"""One training in several processes: which of them this is, and the few things that they do together.

1. Processes that `accelerate launch` or `torchrun` started find each other and their devices through `accelerate`; else there is one.
2. Each takes its part of a step's rows; gradients and losses are sums over rows, so adding up the parts gives what one process has.
   The sum is written out, not left to a wrapper of the model: the loss is one mean over all rows and not a mean of means, its figures
   travel in the same message, and the model stays the plain one that is run with its adapter on and off.
3. The main process writes files; the others come after it, or wait.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

import torch

from circuits.errors import CircuitsError
from circuits.models.folder import one_line, quiet

PATIENCE: Final = timedelta(
    hours=12
)  # the main process may sample text or measure the twin for long while the others wait
_COUNTS: Final = ("WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE")
_LAUNCHED: Final = (
    *_COUNTS,
    "LOCAL_RANK",
    "ACCELERATE_MIXED_PRECISION",
)  # any of these: a launcher started this process


@dataclass(frozen=True, slots=True, eq=False)
class Processes:
    """This process, number `index` of `count`, computing on `device`, or where the model is."""

    index: int = 0
    count: int = 1
    device: torch.device | None = None
    accelerator: Any = None

    @property
    def is_main(self) -> bool:
        return self.index == 0

    def check_rows(self, rows: int) -> None:
        if rows % self.count:
            raise CircuitsError(
                f"{rows} rows in a step cannot be divided among {self.count} processes; give a multiple of {self.count}"
            )

    def part(self, rows: torch.Tensor) -> torch.Tensor:
        """The rows that this process takes."""
        self.check_rows(len(rows))
        return rows.chunk(self.count)[self.index]

    def add_up(self, tensors: Sequence[torch.Tensor]) -> None:
        """Replace each tensor by its sum over all processes, in one message."""
        if self.count == 1:
            return
        with _company():
            sums = self.accelerator.reduce(
                torch.cat([tensor.flatten() for tensor in tensors]), reduction="sum"
            )
        for tensor, total in zip(tensors, sums.split([tensor.numel() for tensor in tensors]), strict=True):
            tensor.copy_(total.view_as(tensor))

    def check_same(self, step: int) -> None:
        """All must go on from the same checkpoint."""
        if self.count == 1:
            return
        with _company():
            steps = self.accelerator.gather(torch.tensor([step], device=self.device)).tolist()
        if len(set(steps)) > 1:
            raise CircuitsError(
                f"the processes found checkpoints of different steps, {steps}; the folder must be one that all share"
            )

    @contextmanager
    def main_first(self) -> Iterator[None]:
        """The main process does this before the others, so that they find what it wrote; if it fails, they try and fail as well."""
        if not self.is_main:
            self._wait()
        try:
            yield
        finally:
            if self.is_main:
                self._wait()

    def from_main(self, value: Any) -> Any:
        """What the main process has, for all; the others wait for it."""
        if self.count == 1:
            return value
        from accelerate.utils import broadcast_object_list

        with _company():
            return broadcast_object_list([value], from_process=0)[0]

    def leave(self) -> None:
        """Say goodbye, when nothing is left to do together."""
        if self.accelerator is not None:
            self.accelerator.end_training()

    def _wait(self) -> None:
        if self.count > 1:
            with _company():
                self.accelerator.wait_for_everyone()


@contextmanager
def _company() -> Iterator[None]:
    """Another process that died is one line."""
    try:
        yield
    except RuntimeError as error:
        again = "start the same command again, it goes on from the last checkpoint"
        raise CircuitsError(f"lost another process of this training; {again} ({one_line(error)})") from error


def join() -> Processes:
    """This process among those that were started with it; one alone, if no launcher started it."""
    if not any(name in os.environ for name in _LAUNCHED):
        return Processes()
    started = int(next((os.environ[name] for name in _COUNTS if name in os.environ), 1))
    try:
        from accelerate import Accelerator
        from accelerate.utils import InitProcessGroupKwargs
    except ImportError as error:
        if started == 1:
            return Processes()
        raise CircuitsError(
            f"{started} processes train together through accelerate: pip install accelerate"
        ) from error
    with quiet():
        accelerator = Accelerator(
            cpu=not torch.accelerator.is_available(),
            kwargs_handlers=[InitProcessGroupKwargs(timeout=PATIENCE)],
        )
    check_launch(accelerator, started)
    return Processes(accelerator.process_index, accelerator.num_processes, accelerator.device, accelerator)


def check_launch(accelerator: Any, started: int) -> None:
    """Refuse a launch that asks for what this training does not do."""
    if accelerator.num_processes != started:
        here = (
            f"{started} processes were started and {accelerator.num_processes} joined on {accelerator.device}"
        )
        raise CircuitsError(f"{here}; to train on the CPU set ACCELERATE_USE_CPU=true")
    if accelerator.mixed_precision != "no":
        raise CircuitsError(
            f"twins are trained in fp32, not {accelerator.mixed_precision}; launch with --mixed_precision no"
        )
    kind = accelerator.distributed_type.value
    if kind != "NO" and not kind.startswith("MULTI_"):
        raise CircuitsError(
            f"processes divide the rows of a step, not the weights of a model; launch without {kind}"
        )


def started_alone() -> bool:
    """Were several processes asked of `accelerate launch --cpu`, which starts only one, whatever it was asked?"""
    return (
        "MASTER_ADDR" in os.environ
        and "ACCELERATE_USE_CPU" in os.environ
        and not any(name in os.environ for name in _COUNTS)
    )
