"""`circuits compare`: several models on one mapping of a prompt, or two models on whole tasks."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import ModelOptions, ResultOptions
from circuits.cli.output import fail_unless_clear, print_result, progress
from circuits.cli.prompts import trace_one
from circuits.cli.tasks import UNITS, count_option, mlps_option, most_option, save_with
from circuits.errors import NoPairError, PromptError
from circuits.files import new_folder, to_json

if TYPE_CHECKING:
    from circuits.tasks.comparison import TaskComparison
    from circuits.tracing.records import Circuit

WITH_PROMPT: Final = {"prompt", "key", "query", "open_page", "share"} | options.QUESTION
WITH_TASK: Final = {"tasks", "count", "units", "mlps", "most", "all_heads"}


@click.command("compare")
@argument("prompt", type=options.prompt, required=False)
@options.key(required=False)
@options.query
@option(
    "--models",
    required=True,
    type=options.names,
    metavar="NAME,NAME",
    help="Two models or more, such as mini,planted-sparse.",
)
@options.dtype
@options.device
@option(
    "--task",
    "--tasks",
    "tasks",
    type=options.names,
    multiple=True,
    metavar="NAME,NAME",
    help="Tasks to rank, instead of a prompt; repeatable. `circuits rank --help` names them.",
)
@count_option
@option(
    "--units",
    type=click.Choice([*UNITS, "both"]),
    default="both",
    help="What a task is cut into; wires are component edges, both are heads and (attention) edges.",
)
@mlps_option
@most_option
@option(
    "--all",
    "all_heads",
    is_flag=True,
    help="Draw every head of a task, not only those it takes.",
)
@options.question
@options.share
@options.seed
@options.result
@options.strict
def compare_command(
    prompt: str,
    key: str,
    query: str | None,
    models: list[str],
    dtype: str | None,
    device: str,
    tasks: tuple[list[str], ...],
    count: int | None,
    units: str,
    mlps: str,
    most: int | None,
    all_heads: bool,
    result: ResultOptions,
    strict: bool,
    **question: Any,
) -> None:
    """Set models side by side on one mapping or on whole tasks."""
    if len(models) < 2:
        raise PromptError(
            f"--models takes two names or more, separated by commas, not {','.join(models)!r}"
        )
    chosen = [ModelOptions(model, dtype, device) for model in models]
    _check_options()
    if tasks:
        kinds = ("heads", "edges") if units == "both" else (units,)
        how = {
            "units": kinds,
            "mlps": mlps,
            "most": most,
            "count": count,
            "seed": question["seed"],
        }
        comparisons = _compare_tasks(chosen, tasks, how)
        _print_comparisons(comparisons, result, all_heads=all_heads)
        judged: list[Any] = []
        for comparison in comparisons:
            for both in comparison.rankings:
                judged += both
    else:
        judged = _compare_mappings(chosen, prompt, key, query, question, result)
    if strict:
        fail_unless_clear(*judged)


def _check_options() -> None:
    """Refuse options of a prompt where tasks are compared, and the other way round."""
    typed = options.typed()
    if "tasks" in typed:
        options.refuse(WITH_PROMPT, "goes with a prompt, not with --task")
        return
    options.refuse(WITH_TASK, "goes with --task, not with a prompt")
    for name, shown in (("prompt", "PROMPT"), ("key", "--key")):
        if name not in typed:
            raise click.UsageError(f"Missing {shown}, or name a --task")


# On one mapping


def _compare_mappings(
    models: Sequence[ModelOptions],
    prompt: str,
    key: str,
    query: str | None,
    question: dict[str, Any],
    result: ResultOptions,
) -> list[Circuit]:
    """Trace the prompt on each model, print one table of all, and give the circuits back."""
    from circuits.show.comparison_tables import comparison_section, comparison_values
    from circuits.show.folders import fill_with_several
    from circuits.tasks.compare import compare

    share = question["share"]
    with progress() as note:
        circuits = [
            trace_one(model, prompt, key, query, question, note=note) for model in models
        ]

    def fill(folder: Path) -> None:
        fill_with_several(folder, circuits, share)
        first, second = circuits[:2]
        same_prompt = len(first.prompt) == len(second.prompt) and first.focus == second.focus
        if len(circuits) == 2 and same_prompt:
            compare(first, second, share=share).save(folder)

    values = comparison_values(circuits, share=share)
    table = comparison_section(circuits, share=share)
    print_result(result, [table], to_text=partial(to_json, values), fill=fill)
    return circuits


# On tasks


def _compare_tasks(
    models: Sequence[ModelOptions], tasks: Sequence[list[str]], how: dict[str, Any]
) -> list[TaskComparison]:
    """Rank each task on both models; `how` has keyword arguments of `circuits.compare`.

    The pairs of all tasks are drawn before any task is ranked, so that a task without pairs is known early.
    Such a task is left out with a warning, unless there is no other.
    """
    from circuits.tasks.compare import compare, to_same_task

    names = [options.task(name) for name in chain.from_iterable(tasks)]
    if len(models) != 2 or not names:
        wrong = f"--task compares two models, not {len(models)}, on at least one task"
        raise PromptError(f"{wrong}; name them as --models mini,mini-sparse --task opposites")
    drawn = []
    missing = []
    with progress() as note:
        first, second = (model.load(note) for model in models)
        for name in dict.fromkeys(names):
            try:
                pairs = to_same_task(
                    (first, second), name, count=how["count"], seed=how["seed"], progress=note
                )
                drawn.append(pairs)
            except NoPairError as error:
                missing.append(error)
        if not drawn:
            raise missing[0]
        comparisons = [
            compare(first, second, task=task, progress=note, **how) for task in drawn
        ]
    for error in missing:
        click.echo(f"Warning: left out: {error}", err=True)
    return comparisons


def _print_comparisons(
    comparisons: Sequence[TaskComparison], result: ResultOptions, *, all_heads: bool
) -> None:
    """Print one table of all tasks; write the files of one task, or a folder for each of several."""
    from circuits.show.task_tables import task_comparison_sections, task_comparison_values

    def fill(folder: Path) -> None:
        for comparison in comparisons:
            own = folder if len(comparisons) == 1 else new_folder(folder, comparison.task)
            _save_comparison(own, comparison, all_heads=all_heads)

    values = [task_comparison_values(comparison) for comparison in comparisons]
    sections = task_comparison_sections(comparisons)
    print_result(result, sections, to_text=partial(to_json, values), fill=fill)


def _save_comparison(folder: Path, comparison: TaskComparison, *, all_heads: bool) -> None:
    """The comparison, both rankings of each kind of unit with their curves, and the grid of heads."""
    from circuits.show import comparison_grid, keep_curves, save_figure
    from circuits.show.task_tables import ranking_values, task_comparison_values

    comparison.save(folder)
    save_with(
        folder / "comparison.json", comparison, {"summary": task_comparison_values(comparison)}
    )
    names = file_names(comparison.models)
    for rankings in comparison.rankings:
        units = rankings[0].protocol.units
        for ranking, name in zip(rankings, names, strict=True):
            save_with(folder / f"ranking-{units}-{name}.json", ranking, ranking_values(ranking))
        save_figure(keep_curves(rankings), folder, name=f"curve-{units}")
    save_figure(comparison_grid(comparison, all_heads=all_heads), folder, name="heads")


def file_names(models: Sequence[str]) -> list[str]:
    """Both models as parts of a file name; numbered if they would be the same."""
    names = [re.sub(r"[^\w.-]+", "-", model).strip("-.")[-60:] or "unnamed" for model in models]
    if names[0] == names[1]:
        return [f"{names[0]}-1", f"{names[1]}-2"]
    return names
