"""What every executor does: call one function on each part of a job, in workers that hold the model.

1. The work is called with a loaded model and one part. Work, parts and results must be picklable.
2. A worker loads the model once, by its name, and refuses other weights than those it was promised.
3. Results come in the order in which parts end. What is written to disk is the work's own business, so a job
   that was stopped goes on with the parts that are missing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from circuits.errors import ModelError

if TYPE_CHECKING:
    from circuits.models.model import Model

Work = Callable[["Model", Any], Any]  # called with the model and a part


@dataclass(frozen=True, slots=True)
class ModelSource:
    """How a worker gets the model. A path must lead to the same files on every machine.

    >>> circuits.ModelSource("mini").load().n_heads
    12
    """

    name: str  # what `load` takes
    dtype: str | None = None
    device: str = "cpu"
    gated: bool | None = None  # None: as the model's files say
    reads_bos: bool | None = None
    offload: bool = False
    fingerprint: str | None = None  # of the weights that it must have; None: any

    @classmethod
    def of(cls, model: Model) -> ModelSource:
        """How another process gets the same model; of several GPUs each worker takes its own."""
        return cls(
            name=absolute(model.name),
            dtype=str(model.dtype),
            device="auto" if model.device.type == "cuda" else str(model.device),
            gated=model.gated,
            reads_bos=model.reads_bos,
            offload=model.offload,
            fingerprint=model.fingerprint,
        )

    def load(self, *, number: int = 0) -> Model:
        """Load the model; with the device "auto" a worker takes the GPU that has its number."""
        from circuits.models.load import load
        from circuits.models.placement import to_device

        model = load(
            self.name,
            gate=self.gated,
            bos=self.reads_bos,
            dtype=self.dtype,
            device=to_device(self.device, number=number),
            offload=self.offload,
        )
        if self.fingerprint not in (None, model.fingerprint):
            raise ModelError(
                f"a worker that loads {self.name} finds other weights than this process has; "
                "workers load a model by its name, so save it into a folder and load that"
            )
        return model


def absolute(name: str) -> str:
    """A path that means the same in any folder; other names stay."""
    from circuits.models.known import lookup

    path = Path(name).expanduser()
    is_path = lookup(name) is None and path.exists()
    return str(path.resolve()) if is_path else name


class Executor(Protocol):
    """Whoever runs the parts of a job."""

    def map(
        self, model: Model | ModelSource, work: Work, parts: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        """The number of each part with its result, as soon as it is there."""
        ...


@dataclass(slots=True)
class Worker:
    """A process at work: it loads the model when it gets its first part."""

    source: ModelSource
    work: Work
    number: int = 0  # among the workers on this machine
    model: Model | None = None

    def measure(self, part: Any) -> Any:
        """The result of one part."""
        if self.model is None:
            self.model = self.source.load(number=self.number)
        return self.work(self.model, part)


def source_of(model: Model | ModelSource) -> ModelSource:
    """How a worker gets this model."""
    return model if isinstance(model, ModelSource) else ModelSource.of(model)


def here_and_there(model: Any) -> tuple[Model, Model | ModelSource]:
    """The model for this process, and what an executor gets for its workers."""
    from circuits.models.load import as_model

    if not isinstance(model, ModelSource):
        loaded = as_model(model)
        return loaded, loaded
    loaded = model.load()
    return loaded, replace(model, fingerprint=loaded.fingerprint)
