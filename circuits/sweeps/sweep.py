"""The verb `sweep`: every line of a file measured exactly once, whatever stops it, whoever works.

1. Lines are cut into shards. Which lines are in a shard, and so what it is called, depends on the file and
   the size of shards alone.
2. A shard that is on the disk, undamaged and of this sweep, is skipped. All others go to an executor
   (`circuits.executors`): it decides who measures them, where, and how often it is tried.
3. Whoever measures a shard writes it. So this process and every worker may be killed at any moment: the same
   command does the rest.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from circuits.errors import PromptError, check_whole
from circuits.executors.executor import Executor, ModelSource
from circuits.executors.local import Local
from circuits.files import to_path
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.sweeps import BATCH, store
from circuits.sweeps.lines import Lines, Shard, read_lines
from circuits.sweeps.manifest import Manifest
from circuits.sweeps.results import Sweep, open_sweep
from circuits.sweeps.rows import measure_lines
from circuits.tracing import SHARE, check_share

SHARDS: Final = 16  # that a file is cut into, where their size allows
SMALLEST_SHARD: Final = 16  # lines
LARGEST_SHARD: Final = 256


@dataclass(frozen=True, slots=True)
class SweepSettings:
    """What decides the numbers of a sweep, and how its lines are cut."""

    share: float = SHARE
    seed: int = 0
    controls: bool = False
    stability: int = 0  # other counterfactuals of each line
    batch: int = BATCH  # pairs that are run together, at most
    shard: int | None = None  # lines; None: by the number of lines

    def __post_init__(self) -> None:
        check_share(self.share)
        for name in ("seed", "stability", "batch"):
            check_whole(name, getattr(self, name))
        if self.shard is not None:
            check_whole("shard", self.shard)
        if self.stability < 0:
            raise PromptError(
                f"stability= is a number of counterfactuals, not {self.stability}"
            )
        if self.batch < 1:
            raise PromptError(f"a batch must hold at least 1 pair, not {self.batch}")
        if self.shard is not None and self.shard < 1:
            raise PromptError(f"a shard must hold at least 1 line, not {self.shard}")

    def lines_a_shard(self, count: int) -> int:
        """The size of the shards of a file with so many lines."""
        if self.shard is not None:
            return self.shard
        return min(LARGEST_SHARD, max(SMALLEST_SHARD, count // SHARDS))


def sweep(
    model: Any,
    prompts: str | Path,
    folder: str | Path,
    *,
    share: float = SHARE,
    seed: int = 0,
    controls: bool = False,
    stability: int = 0,
    batch: int = BATCH,
    shard: int | None = None,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> Sweep:
    """Trace every line of a jsonl file into a folder, or go on with it.

    `controls` measures the controls of each line, `stability` its carriers under so many other
    counterfactuals of the same kind. `batch` is the most pairs that run together, `shard` how many lines are
    measured whole or not at all.
    `executor` says who works: by default this process. Other executors load the model by its name in every
    worker; with a `ModelSource` in place of the model this process need not keep it.

        >>> lines = folder / "lines.jsonl"
        >>> _ = lines.write_text(json.dumps({"prompt": TEXT, "key": 5, "swap": {"large": "hot"}}))
        >>> swept = circuits.sweep(model, lines, folder / "swept")
        >>> swept.table["total"].round(2).tolist()
        [1.0]
    """
    settings = SweepSettings(share, seed, controls, stability, batch, shard)
    folder = to_path(folder)
    store.manifest_in(folder)  # refuses a folder of something else before a model is loaded
    lines = read_lines(prompts)
    source = model if isinstance(model, ModelSource) else as_model(model)
    manifest = store.begin(folder, manifest_of(source, lines, settings))
    if isinstance(source, ModelSource):
        source = replace(source, fingerprint=manifest.fingerprint)
    shards = lines.shards(manifest.shard)
    missing = [each for each in shards if not store.holds(folder, manifest, each.numbers)]
    work = MeasureShard(folder.resolve(), manifest, batch)
    done = len(lines) - sum(map(len, missing))
    progress("lines", done, len(lines))
    for number, _ in (executor or Local()).map(source, work, missing):
        done += len(missing[number])
        progress("lines", done, len(lines))
    store.end(folder, manifest)
    return open_sweep(folder)


def manifest_of(model: Model | ModelSource, lines: Lines, settings: SweepSettings) -> Manifest:
    """What is to be measured. A model that is only named is loaded for its fingerprint, and not kept."""
    if isinstance(model, ModelSource):
        return manifest_of(replace(model, device="cpu").load(), lines, settings)
    return Manifest(
        share=float(settings.share),
        seed=settings.seed,
        controls=settings.controls,
        stability=settings.stability,
        input=lines.name,
        sha256=lines.sha256,
        lines=len(lines),
        model=model.name,
        fingerprint=model.fingerprint,
        gated=model.gated,
        reads_bos=model.reads_bos,
        layers=model.n_layers,
        heads=model.n_heads,
        shard=settings.lines_a_shard(len(lines)),
    )


@dataclass(frozen=True, slots=True)
class MeasureShard:
    """Measure a shard and write it: what every worker does."""

    folder: Path
    manifest: Manifest
    batch: int

    def __call__(self, model: Model, shard: Shard) -> None:
        """Measure and write the shard, unless another worker has done so meanwhile."""
        if store.holds(self.folder, self.manifest, shard.numbers):
            return
        rows = measure_lines(model, shard.lines(), self.manifest, batch=self.batch)
        store.put(self.folder, self.manifest, rows)
