"""Parts measured on a Ray cluster: an actor holds the model, on a core or on a GPU or a part of one.

1. With an address, the cluster of that address is used as it is, with its own authentication. Its machines
   must have this package, the model, and the folder of the results on a shared disk.
2. Without one, Ray is started on this machine for the time of the job. It listens on the loopback interface
   alone and has no token: Ray would otherwise write one into the home directory.
3. An actor that dies, or whose machine does, is started again elsewhere, and its part is tried again. A part
   whose actor died every time ends the job.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from circuits.errors import CircuitsError, ExecutorError, in_one_line
from circuits.executors.executor import ModelSource, Work, Worker, source_of

if TYPE_CHECKING:
    from circuits.models.model import Model

RETRIES: Final = 3  # of a part whose actor died
LOOPBACK: Final = "127.0.0.1"
_OBJECT_STORE: Final = 128 * 2**20  # bytes; only parts and results pass through it
# Ray reads them when it is imported. The second keeps it on the loopback interface, on Linux too; the last
# lets actors have as much of the processor as other processes.
_OWN_CLUSTER: Final = {
    "RAY_AUTH_MODE": "disabled",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_worker_niceness": "0",
}


@dataclass(frozen=True, slots=True)
class OnRay:
    """Actors on a Ray cluster: `workers` of them, or as many as it has cores (with `gpus`, GPUs) for.

    >>> circuits.OnRay(address="ray-head:6379", gpus=0.5).gpus  # two actors on each GPU
    0.5
    """

    workers: int | None = None
    address: str | None = None  # None: a cluster of this machine alone
    gpus: float = 0.0  # of each actor; 0.5 lets two actors share a GPU

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 1:
            raise ExecutorError(f"at least 1 worker is needed, not {self.workers}")
        if self.gpus < 0 or (self.gpus > 1 and self.gpus != int(self.gpus)):
            raise ExecutorError(
                f"an actor takes a fraction of one GPU or a whole number of GPUs, not {self.gpus:g}"
            )

    def map(
        self, model: Model | ModelSource, work: Work, parts: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The number of each part with its result, as soon as it is there."""
        if not parts:
            return
        with self._cluster() as ray:
            from ray.exceptions import RayActorError, RayTaskError
            from ray.util import ActorPool

            actor = ray.remote(_Actor).options(
                num_cpus=1,
                num_gpus=self.gpus,
                max_restarts=-1,
                max_task_retries=RETRIES,
            )
            source = source_of(model)
            count = min(len(parts), self.workers or self._places(ray))
            pool = ActorPool([actor.remote(source, work) for _ in range(count)])
            for numbered in enumerate(parts):
                pool.submit(lambda actor, part: actor.measure.remote(*part), numbered)
            try:
                while pool.has_next():
                    number, result = pool.get_next_unordered()
                    yield number, result
            except RayTaskError as why:  # the work raised
                if isinstance(why.cause, CircuitsError):
                    raise why.cause from why
                raise ExecutorError(f"a worker failed: {in_one_line(str(why.cause))}") from why
            except RayActorError as why:
                raise ExecutorError(
                    f"the workers of one part died {RETRIES + 1} times, or could not start; what is "
                    "finished is kept: run the same again, with smaller shards or batches if memory is "
                    f"short; Ray says: {in_one_line(str(why))[-300:]}"
                ) from why

    @contextmanager
    def _cluster(self) -> Iterator[Any]:
        """Ray, connected; what was started here is shut down at the end of the `with`."""
        with _environment({} if self.address else _OWN_CLUSTER):
            check_ray()
            import ray

            if ray.is_initialized():
                yield ray
                return
            how: dict[str, Any] = {"address": self.address} if self.address else self._own()
            try:
                ray.init(log_to_driver=False, configure_logging=False, **how)
            except Exception as why:  # what Ray itself raises if it starts too slowly
                raise ExecutorError(
                    f"cannot reach Ray at {self.address or LOOPBACK}: {in_one_line(str(why))}"
                ) from why
            try:
                if self.address is None:
                    _check_loopback(ray)
                yield ray
            finally:
                ray.shutdown()

    def _own(self) -> dict[str, Any]:
        """How a cluster of this machine alone is started."""
        return {
            "num_cpus": max(self.workers or 1, os.cpu_count() or 1),
            "include_dashboard": False,
            "object_store_memory": _OBJECT_STORE,
            "_node_ip_address": LOOPBACK,
        }

    def _places(self, ray: Any) -> int:
        """How many actors the cluster can hold at once."""
        there = ray.cluster_resources()
        places = int(there.get("CPU", 1))
        if self.gpus:
            places = min(places, int(there.get("GPU", 0) / self.gpus))
        if places < 1:
            raise ExecutorError(
                f"the Ray cluster has {there.get('GPU', 0):g} GPUs, too few for an actor of {self.gpus:g}"
            )
        return places


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Within this `with`, the environment has these values; afterwards it is as it was."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def check_ray() -> None:
    """Refuse to begin where Ray is not installed. (Importing it takes a second, finding it does not.)"""
    if find_spec("ray") is None:
        raise ExecutorError(
            "Ray is not installed here: pip install '.[ray]' in a clone of circuits"
        )


def _check_loopback(ray: Any) -> None:
    """Refuse a cluster of ours that other machines could reach: anyone there could run code."""
    if ray.util.get_node_ip_address() != LOOPBACK:
        raise ExecutorError(
            "Ray was imported before this job, so it would listen on every interface; call ray.init "
            "yourself before, or give the address of a cluster"
        )


class _Actor:
    """A worker that Ray places."""

    def __init__(self, source: ModelSource, work: Work) -> None:
        self.worker = Worker(source, work)

    def measure(self, number: int, part: Any) -> tuple[int, Any]:
        """The number of a part, and its result."""
        return number, self.worker.measure(part)
