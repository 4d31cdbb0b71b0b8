"""Parts measured by SLURM: one job array, one part a task, submitted by submitit.

1. Every task loads the model, so parts should take minutes. The array's logs and pickled tasks are in a
   folder on the shared disk, where submitit keeps them.
2. This process waits for the tasks and may be stopped: tasks that are queued go on. Running the same again
   submits what is still missing.
3. The cluster "local" runs all tasks at once as processes of this machine: a way to try it without SLURM.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from circuits.errors import ExecutorError, in_one_line
from circuits.executors.executor import ModelSource, Work, Worker, source_of

if TYPE_CHECKING:
    from circuits.models.model import Model

POLL: Final = 1.0  # seconds between two looks at the tasks
Cluster = Literal["slurm", "local"]


@dataclass(frozen=True, slots=True)
class OnSlurm:
    """Tasks of a job array. `options` are those of sbatch, as submitit names them.

    >>> circuits.OnSlurm(folder / "tasks", {"partition": "gpu", "gpus_per_node": 1}).cluster
    'slurm'
    """

    folder: Path
    options: Mapping[str, Any] = field(default_factory=dict)
    cluster: Cluster = "slurm"

    def map(
        self, model: Model | ModelSource, work: Work, parts: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The number of each part with its result, as soon as it is there. Tasks that failed are told when
        all others have ended."""
        if not parts:
            return
        check_slurm(self.cluster)
        import submitit
        import submitit.helpers

        executor = submitit.AutoExecutor(self.folder.resolve(), cluster=self.cluster)
        executor.update_parameters(name="circuits", **self._parameters())
        worker = Worker(source_of(model), work)
        jobs = executor.map_array(worker.measure, parts)
        number_of = {job.job_id: number for number, job in enumerate(jobs)}
        failures = []
        for job in submitit.helpers.as_completed(jobs, poll_frequency=POLL):
            failure = job.exception()
            if failure is None:
                yield number_of[job.job_id], job.result()
            else:
                failures.append(failure)
        if failures:
            said = in_one_line(str(failures[0]))[-300:]
            raise ExecutorError(
                f"{len(failures)} of {len(jobs)} tasks failed; what is finished is kept, and running the "
                f"same again submits the others; logs are in {self.folder}; the first said: {said}"
            )

    def _parameters(self) -> dict[str, Any]:
        """The options as submitit takes them; on this machine they have no meaning."""
        if self.cluster == "local":
            return {}
        return {f"slurm_{name}": value for name, value in self.options.items()}


def check_slurm(cluster: Cluster) -> None:
    """Refuse to begin where submitit is not installed, or where no job can be submitted."""
    if find_spec("submitit") is None:
        raise ExecutorError(
            "submitit is not installed here: pip install '.[slurm]' in a clone of circuits"
        )
    if cluster == "slurm" and shutil.which("sbatch") is None:
        raise ExecutorError(
            "there is no sbatch here: run this where jobs are submitted, or try it on this machine "
            "with the cluster 'local' (--slurm-cluster local)"
        )
