"""The exact effect of every component edge of a task, as one table.

A row is an edge. Its columns are

- `writer`: `embed`, a head `L4H4` or an MLP `M3`;
- `reader`: the head or MLP that reads, or `logits`;
- `side`: `query`, `key` or `value` of a head; empty (null) for MLPs and logits;
- `effect`: the share of the gap that is lost when this edge alone is swapped to the counterfactual at all
  positions, mean over the pairs;
- `pair_0`, `pair_1`, …: the same on each pair.

The table's metadata has under `circuits` a JSON text: the model and its fingerprint, the task, its seed, and
of each pair the two prompts, the metric and the gap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from circuits import __version__
from circuits.errors import PromptError, check_whole
from circuits.executors.executor import Executor, here_and_there
from circuits.files import SIGNATURE, to_json, write_folder
from circuits.models.model import Model
from circuits.results import Progress, silent
from circuits.tasks.measurement import to_numpy
from circuits.tasks.task import Task, to_task
from circuits.tasks.wires import effects_by_workers, exact_effects, kept_runs_of

if TYPE_CHECKING:
    import pyarrow as pa

    from circuits.components import Wire
    from circuits.engine.kept import KeptRuns

PAIRS: Final = 16  # of a task, unless the user says otherwise


def edge_effects(
    model: Any,
    task: Task | str | Path,
    *,
    count: int = PAIRS,
    seed: int = 0,
    executor: Executor | None = None,
    progress: Progress = silent,
) -> pa.Table:
    """The exact effect of every component edge on every pair of a task, a row for each edge.

    `task` is a Task, a name of TASKS, or the path of a jsonl file, of which `count` pairs are measured.
    `table.to_pandas()` is a data frame; `circuits edges TASK -o edges.parquet` writes the table. An
    `executor` divides the pairs between workers.

        >>> table = circuits.edge_effects(model, "opposites", count=1)
        >>> table.num_rows, table.column_names[:4]
        (32491, ['writer', 'reader', 'side', 'effect'])
    """
    check_whole("seed", seed)
    check_whole("count", count)
    if count < 1:
        raise PromptError(f"count= is how many pairs are measured, at least 1, not {count}")
    model, source = here_and_there(model)
    if not isinstance(task, Task):
        task = to_task(model, task, count=count, seed=seed, progress=progress)
    measured = Task(task.name, task.items[:count])
    if not measured.items:
        raise PromptError(f"the task {task.name} has no pairs to measure")
    kept = kept_runs_of(model, measured.items)
    wires = kept.table.edges.wires
    if executor is None:
        effects = exact_effects(kept, wires, progress)
    else:
        effects = effects_by_workers(
            source, measured.items, wires, executor=executor, progress=progress
        )
    columns = _names(wires) | {"effect": effects.mean(1)}
    for number in range(len(measured.items)):
        columns[f"pair_{number}"] = effects[:, number]
    return _table(columns, _facts(model, measured, kept, seed))


def _names(wires: tuple[Wire, ...]) -> dict[str, Any]:
    """The columns that name the edges."""
    readers = []
    sides = []
    for wire in wires:
        component = wire.reader.component
        readers.append("logits" if component is None else str(component))
        is_side = wire.reader.kind in ("query", "key", "value")
        sides.append(wire.reader.kind if is_side else None)
    return {"writer": [str(wire.writer) for wire in wires], "reader": readers, "side": sides}


def _facts(model: Model, task: Task, kept: KeptRuns, seed: int) -> dict[str, Any]:
    """What a reader of the file must know about the numbers."""
    gaps = np.zeros(kept.pairs)
    for batch in kept.batches:
        gaps[batch.pairs] = to_numpy(batch.runs.gap)
    pairs = []
    for pair, gap in zip(task.pairs, gaps.tolist(), strict=True):
        pairs.append(
            {
                "prompt": pair.clean.text,
                "counterfactual": str(pair.counterfactual),
                "metric": str(pair.metric),
                "gap": gap,
            }
        )
    return {
        "creator": SIGNATURE,
        "version": __version__,
        "model": model.name,
        "fingerprint": model.fingerprint,
        "gated": model.gated,
        "task": task.name,
        "seed": seed,
        "pairs": pairs,
    }


def _table(columns: dict[str, Any], facts: dict[str, Any]) -> pa.Table:
    import pyarrow as pa

    table = pa.table(columns)
    return table.replace_schema_metadata({"circuits": to_json(facts, indent=None)})


def write_edges(table: pa.Table, file: str | Path) -> Path:
    """Write the table as Parquet, whole or not at all."""
    import pyarrow.parquet as pq

    target = Path(file)
    written = write_folder(
        target.parent,
        lambda aside: pq.write_table(table, aside / target.name, compression="zstd"),
    )
    return written[0]
