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
# That a task may take, where the options do not say; submitit's own default is 5.
MINUTES: Final = 60
_WEEK: Final = 7 * 24 * 60  # minutes: tasks on this machine are not to run out of time
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
        """The number of each part with its result, as soon as it is there. If tasks failed, an error
        says so when all others have ended."""
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
            raise ExecutorError(
                f"{len(failures)} of {len(jobs)} tasks failed; what is finished is kept, and running the "
                f"same again submits the others; logs are in {self.folder}; the first {_reason(failures[0])}"
            )

    def _parameters(self) -> dict[str, Any]:
        """The options as submitit takes them; on this machine they have no meaning."""
        if self.cluster == "local":
            return {"timeout_min": _WEEK}
        options = {"time": MINUTES} | dict(self.options)
        return {f"slurm_{name}": value for name, value in options.items()}


def _reason(failure: Exception) -> str:
    """What happened to a task: the last line of its traceback, around which submitit puts words of its own."""
    from submitit.core.utils import UncompletedJobError

    if isinstance(failure, UncompletedJobError):
        return "ended without a result: it was killed, or ran out of memory or time"
    traceback = str(failure).partition("You can check full logs")[0]
    lines = [line for line in traceback.splitlines() if line.strip("- ")]
    return f"said: {in_one_line(lines[-1])[:300]}"


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
