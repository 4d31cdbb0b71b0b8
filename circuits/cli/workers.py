"""Options that say who measures: this process, several, a Ray cluster, or SLURM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import option

from circuits.cli import options
from circuits.cli.options import COUNT, Decorator, ModelOptions, gathered, stacked
from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.executors.executor import Executor, ModelSource
    from circuits.models.model import Model
    from circuits.results import Progress

# Options of sbatch that are passed on, with their kinds. submitit knows them by these names.
SLURM: Final[dict[str, tuple[Any, str]]] = {
    "partition": (options.text, "The partition of the tasks."),
    "account": (options.text, "The account that pays."),
    "qos": (options.text, "The quality of service."),
    "time": (COUNT, "Minutes that a task may take; by default 60."),
    "mem": (options.text, "The memory of a task, such as 32GB."),
    "cpus-per-task": (COUNT, "Cores of a task."),
    "gpus-per-node": (COUNT, "GPUs of a task."),
    "constraint": (options.text, "Features that a machine must have."),
    "array-parallelism": (COUNT, "Tasks that run at the same time, at most."),
}


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """Who measures."""

    executor: str
    workers: int | None
    address: str | None
    gpus: float
    slurm_cluster: str
    slurm: Mapping[str, Any]

    @property
    def is_this_process(self) -> bool:
        return self.executor == "local" and (self.workers or 1) == 1

    def start(self, folder: Path) -> Executor:
        """The executor, refused before any work if something that it needs is not here. SLURM's logs and
        tasks go into a part of this folder."""
        if self.executor == "ray":
            from circuits.executors.on_ray import OnRay, check_ray

            check_ray()
            return OnRay(self.workers, self.address, self.gpus)
        if self.executor == "slurm":
            from circuits.executors.on_slurm import OnSlurm, check_slurm

            cluster = "local" if self.slurm_cluster == "local" else "slurm"
            check_slurm(cluster)
            return OnSlurm(folder / "slurm", self.slurm, cluster)
        from circuits.executors.local import Local

        return Local(self.workers or 1)

    def model(self, model: ModelOptions, note: Progress) -> Model | ModelSource:
        """The model, loaded if this process measures; else how workers load it."""
        if self.is_this_process:
            return model.load(note)
        from circuits.executors.executor import ModelSource, absolute

        return ModelSource(absolute(model.model), model.dtype, model.device)

    def refuse_what_does_not_fit(self, model: ModelOptions) -> None:
        """Refuse options of another executor than the one that was chosen, and GPUs that would lie idle."""
        if self.executor != "ray" and (self.address is not None or self.gpus):
            raise PromptError("--address and --gpus go with --executor ray")
        if self.executor != "slurm" and self.slurm_cluster != "slurm":
            raise PromptError("--slurm-cluster goes with --executor slurm")
        if self.executor != "slurm" and self.slurm:
            name = next(iter(self.slurm)).replace("_", "-")
            raise PromptError(f"--slurm-{name} goes with --executor slurm")
        if self.executor == "slurm" and self.workers is not None:
            raise PromptError(
                "SLURM starts a task for each shard: leave --workers out; "
                "--slurm-array-parallelism says how many run at the same time"
            )
        if model.device == "cpu" and (self.gpus or self.slurm.get("gpus_per_node")):
            asked = "--gpus" if self.gpus else "--slurm-gpus-per-node"
            raise PromptError(
                f"{asked} reserves GPUs, and --device cpu leaves them idle: add --device auto"
            )


def _slurm_options(command: Any) -> Any:
    """Add an option `--slurm-NAME` for each of `SLURM`; those that are given are passed as one dict."""

    @wraps(command)
    def with_dict(**values: Any) -> Any:
        given = {}
        for name in SLURM:
            keyword = name.replace("-", "_")
            value = values.pop(f"slurm_{keyword}")
            if value is not None:
                given[keyword] = value
        return command(slurm=given, **values)

    for name, (kind, about) in reversed(SLURM.items()):
        with_dict = option(f"--slurm-{name}", type=kind, help=about)(with_dict)
    return with_dict


workers: Final[Decorator] = stacked(
    option(
        "--executor",
        type=click.Choice(["local", "ray", "slurm"]),
        default="local",
        help="Who measures: this machine, a Ray cluster, or SLURM.",
    ),
    option(
        "--workers",
        type=COUNT,
        help="Processes of this machine, or actors of Ray, with a model each; by default 1, or all of Ray.",
    ),
    option(
        "--address",
        type=options.text,
        help="The Ray cluster; without it one is started on this machine.",
    ),
    option(
        "--gpus",
        type=click.FloatRange(min=0),
        default=0.0,
        help="GPUs of each Ray actor, such as 0.5; goes with --device auto.",
    ),
    option(
        "--slurm-cluster",
        type=click.Choice(["slurm", "local"]),
        default="slurm",
        help="local runs the tasks as processes of this machine, to try it.",
    ),
    _slurm_options,
    gathered(WorkerOptions, "workers"),
)
