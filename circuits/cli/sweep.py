"""`circuits sweep`: every line of a file, by whichever executor."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import COUNT, ModelOptions
from circuits.cli.output import Failure, print_json, print_sections, progress
from circuits.cli.workers import WorkerOptions, workers
from circuits.errors import PromptError, in_one_line
from circuits.sweeps import BATCH

if TYPE_CHECKING:
    from circuits.sweeps.results import Sweep

MOST_ERRORS: Final = 5  # lines of a sweep whose errors are printed


@click.command("sweep")
@argument("prompts", type=options.path, metavar="PROMPTS.jsonl")
@options.model
@options.output("Where the results are, or go.")
@options.share
@option("--batch", type=COUNT, default=BATCH, help="The most pairs that are run together.")
@option(
    "--shard",
    type=COUNT,
    help="Lines that are measured whole or not at all; by default 16 to 256, by the size of the file.",
)
@option(
    "--controls",
    is_flag=True,
    help="Measure the controls of each line too, which takes as long as tracing one by one.",
)
@option(
    "--stability",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Measure each line under N other counterfactuals, too: columns core and overlap.",
)
@options.seed
@option(
    "--plan",
    is_flag=True,
    help="Say what the sweep will take, by a measured sample, and write nothing.",
)
@workers
@options.json_option
@option("--strict", is_flag=True, help="Exit with code 1 if a measured line is not clear.")
def sweep_command(
    prompts: Path,
    model: ModelOptions,
    output: Path | None,
    plan: bool,
    workers: WorkerOptions,
    as_json: bool,
    strict: bool,
    **settings: Any,
) -> None:
    """Trace every line of a jsonl file, or go on where that stopped."""
    from circuits.sweeps.lines import read_lines
    from circuits.sweeps.store import manifest_in

    workers.refuse_what_does_not_fit(model)
    if plan:
        read_lines(prompts)
        count = workers.workers or workers.slurm.get("array_parallelism")
        _print_plan(prompts, model, settings | {"workers": count}, as_json)
        return
    if output is None:
        raise click.UsageError("say where the results go: -o DIR")
    manifest_in(output)
    read_lines(prompts)  # refuses a bad file before a model is loaded
    executor = workers.start(output)
    from circuits.sweeps.sweep import sweep

    with progress() as note:
        measured = workers.model(model, note)
        result = sweep(measured, prompts, output, executor=executor, progress=note, **settings)
    _print_sweep(result, as_json)
    if len(result) and len(result.errors) == len(result):
        raise Failure("no line could be measured: each has an error")
    if strict:
        _refuse_unclear(result)


def _print_plan(
    prompts: Path, model: ModelOptions, settings: dict[str, Any], as_json: bool
) -> None:
    """What the sweep would take, by a sample of its lines."""
    from circuits.executors.executor import ModelSource
    from circuits.show.sections import Section
    from circuits.sweeps.plan import plan_sweep

    source = ModelSource(model.model, model.dtype, model.device)
    with progress() as note:
        planned = plan_sweep(source, prompts, progress=note, **settings)
    if as_json:
        derived = {
            "shards": planned.shards,
            "memory": planned.memory,
            "seconds": {count: planned.seconds(count) for count in planned.counts()},
        }
        print_json(asdict(planned) | derived)
        return
    print_sections(Section(lines=str(planned).splitlines()))


def _refuse_unclear(sweep: Sweep) -> None:
    """Fail with one line if a measured line asks no clear question."""
    for row in sweep.table.to_dict("records"):
        if row["verdict"] != "clear":
            why = (row["reasons"] or ("",))[0]
            raise Failure(
                f"line {row['line']} is {row['verdict'] or 'not judged'}: {in_one_line(why)}"
            )


def _print_sweep(sweep: Sweep, as_json: bool) -> None:
    """The mean over all measured lines, and the first lines that could not be measured."""
    from circuits.show.sections import Section

    errors = sweep.errors.to_dict("records")
    measured = len(sweep) - len(errors)
    if as_json:
        wrong = [{name: row[name] for name in ("line", "id", "error")} for row in errors]
        print_json(
            {
                "folder": str(sweep.folder),
                "complete": sweep.complete,
                "lines": sweep.manifest.lines,
                "measured": measured,
                "errors": len(errors),
                "wrong": wrong,
                "verdicts": sweep.verdicts,
            }
        )
        return
    lines = [in_one_line(str(sweep))]
    if measured:
        lines += _mean_lines(sweep)
    for row in errors[:MOST_ERRORS]:
        lines.append(f"line {row['line']}: {in_one_line(row['error'])[:200]}")
    if len(errors) > MOST_ERRORS:
        lines.append(
            f"and {len(errors) - MOST_ERRORS} more: circuits.open_sweep(…).errors has them all"
        )
    print_sections(Section(lines=lines))


def _mean_lines(sweep: Sweep) -> list[str]:
    """How many lines have each verdict, and the mean, or why there is none."""
    counts = [f"{count} {verdict}" for verdict, count in sweep.verdicts.items()]
    try:
        mean = str(sweep.mean()).splitlines()
    except PromptError as why:
        mean = [f"no mean: {in_one_line(str(why))}"]
    return [f"questions: {', '.join(counts)}", *mean]
