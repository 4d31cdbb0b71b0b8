"""The commands on tasks: `circuits rank`, `circuits heads`, and `circuits compare`, also on a prompt.

With `-o` the records, the keep curves and the grids of heads are written, all or none. The attention maps are
those of the task's first prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields, replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option
from click.core import ParameterSource

import circuits.cli.options as options
from circuits.cli import traced
from circuits.cli.options import ModelOptions, PairOptions, ResultOptions, progress, say_result, together
from circuits.errors import NoPairError, PromptError
from circuits.files import new_folder, to_json
from circuits.results import Saved
from circuits.tasks import TASKS
from circuits.tracing import CARRIES

if TYPE_CHECKING:
    from circuits.models.model import Model
    from circuits.show.grids import Panel
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.ranking import Ranking
    from circuits.tasks.task import Task


@dataclass(frozen=True, slots=True)
class TaskOptions:
    """Which tasks two models are compared on, and how."""

    tasks: tuple[list[str], ...]
    count: int | None
    units: str
    mlps: Any
    most: int | None
    all_heads: bool


_WITH_PROMPTS: Final = {"prompt", "key", "query", "open_page"} | {field.name for field in fields(PairOptions)}
_WITH_TASKS: Final = {field.name for field in fields(TaskOptions)}
_FILES: Final = "Write the ranking, its curve and its grid of heads here."
_RANKED: Final = "What is ranked: heads, (attention) edges, or wires, which are component edges."
_TASK: Final = f"TASK is {', '.join(TASKS)}, or the path of a .jsonl file with items of your own."
_ORDER: Final = "Take the order of wires from a circuit of EAP-IG or MIB, and evaluate that."
_MODELS: Final = "Two models or more, such as mini,planted-sparse."
_COUNT: Final = "Pairs to measure: by default 64 for heads, 16 for edges and wires."
_PAIRS: Final = option("-n", "count", type=options.COUNT, help=_COUNT)
_KEPT: Final = "MLPs see what is kept, write as in the clean run, or as in the counterfactual."
_WAYS: Final = click.Choice(["computed", "held", "swapped"])
_MLPS: Final = option("--mlps", type=_WAYS, default="computed", help=_KEPT)
_EXACT: Final = "Wires that are measured exactly, by default the 4,000 that an estimate puts in front."
_MOST: Final = option("--most", type=options.COUNT, help=_EXACT)
_TASKS: Final = "Tasks to rank, instead of a prompt; repeatable. `circuits rank --help` names them."
_UNITS: Final = ("heads", "edges", "wires")
_CUT: Final = "What a task is cut into; wires are component edges, both are heads and (attention) edges."
_ON_TASKS: Final = together(
    option("--task", "--tasks", "tasks", type=options.names, multiple=True, metavar="NAME,NAME", help=_TASKS),
    _PAIRS,
    option("--units", type=click.Choice([*_UNITS, "both"]), default="both", help=_CUT),
    _MLPS,
    _MOST,
    option("--all", "all_heads", is_flag=True, help="Draw every head of a task, not only those it takes."),
    task=TaskOptions,
)


@click.command("rank", epilog=_TASK)
@argument("task", type=options.task)
@together(options.MODEL, _PAIRS)
@option("--units", type=click.Choice(_UNITS), default="heads", help=_RANKED)
@_MLPS
@_MOST
@option("--order", type=options.path, metavar="FILE", help=_ORDER)
@option("--seed", type=int, default=0, help="For the pairs, resamples and random orders.")
@together(options.output(_FILES), options.JSON, result=ResultOptions)
def rank_command(
    task: str, model: ModelOptions, count: int | None, seed: int, result: ResultOptions, **protocol: Any
) -> None:
    """Rank the heads or edges of a task; say how many it takes."""
    from circuits.show.task_tables import ranking_sections, ranking_values
    from circuits.tasks.patterns import measure_panel
    from circuits.tasks.rank import rank
    from circuits.tasks.task import PAIRS, to_task

    if protocol["order"] is not None:
        protocol["units"] = "wires"
    with progress() as note:
        loaded = model.load(note)
        pairs = to_task(loaded, task, count=count or PAIRS, seed=seed, progress=note)
        ranking = rank(loaded, pairs, count=count, seed=seed, progress=note, **protocol)
        panel = measure_panel(loaded, pairs)
    values = ranking_values(ranking, panel)
    fill = partial(_fill_with_ranking, values=values, ranking=ranking, model=loaded, task=pairs)
    say_result(result, partial(to_json, values), ranking_sections(ranking, panel), fill)


@click.command("heads", epilog=_TASK)
@argument("prompt", type=options.prompt, required=False)
@option("--task", type=options.task, help="A task, instead of a prompt.")
@option("--all", "all_heads", is_flag=True, help="Every head, not only those that matter.")
@together(options.MODEL, _PAIRS, options.PAIR)
@together(options.output("Write the grid of heads here."), options.JSON, result=ResultOptions)
def heads_command(
    prompt: str | None,
    task: str | None,
    all_heads: bool,
    model: ModelOptions,
    count: int | None,
    pair: PairOptions,
    result: ResultOptions,
) -> None:
    """Show the attention maps of the heads that matter, in order."""
    from circuits.components import Head
    from circuits.show.grids import facts_of, ranking_panel, to_panel
    from circuits.show.tables import Section
    from circuits.tasks.patterns import maps_of, measure_panel
    from circuits.tasks.rank import rank
    from circuits.tasks.ranking import heads_of
    from circuits.tasks.task import PAIRS, to_task
    from circuits.tracing.circuit import circuit

    if (prompt is None) == (task is None):
        raise click.UsageError("give a prompt or a --task, one of the two")
    with progress() as note:
        loaded = model.load(note)
        if task is not None:
            pairs = to_task(loaded, task, count=count or PAIRS, seed=pair.seed, progress=note)
            ranking = rank(loaded, pairs, count=count, seed=pair.seed, progress=note)
            every = [each.unit for each in ranking.ranked if isinstance(each.unit, Head)]
            heads = every if all_heads else heads_of(ranking)
            figures = measure_panel(loaded, pairs, heads=heads)
            maps = maps_of(loaded, pairs.pairs[0].clean, figures.heads)
            panel = ranking_panel(ranking, figures.heads, maps, figures=figures)
        else:
            measured = circuit(loaded, prompt or "", progress=note, **asdict(pair))
            every = [Head(*index) for index in product(range(loaded.n_layers), range(loaded.n_heads))]
            heads = [*measured.heads(), *(every if all_heads else ())]
            figures = measure_panel(loaded, [measured.prompt], heads=list(dict.fromkeys(heads)))
            words = "all heads" if all_heads else f"heads with an effect of {CARRIES:g} or more"
            panel = replace(to_panel(measured, figures.heads, note=words), facts=facts_of(figures))
    rows = zip(panel.heads, panel.effects, figures.patterns, strict=True)
    values = [{"head": str(head), "effect": effect} | asdict(pattern) for head, effect, pattern in rows]
    table = [
        (str(n), each["head"], f"{each['effect']:z.3f}", each["kind"]) for n, each in enumerate(values, 1)
    ]
    columns = ("", "head", "effect", "map")
    section = Section(f"{panel.title}: {panel.note}", (panel.facts,), columns, tuple(table))
    say_result(result, partial(to_json, values), [section], partial(_fill_with_grid, panel))


def _fill_with_grid(panel: Panel, folder: Path) -> None:
    from circuits.show import head_grid, save_figure

    save_figure(head_grid(panel), folder, name="heads")


@click.command("compare")
@argument("prompt", type=options.prompt, required=False)
@together(options.OPTIONAL_KEY, options.QUERY)
@option("--models", required=True, type=options.names, metavar="NAME,NAME", help=_MODELS)
@together(options.RUNNING, _ON_TASKS, options.PAIR, options.RESULT)
def compare_command(
    prompt: str,
    key: str,
    query: str | None,
    models: list[str],
    dtype: str | None,
    device: str,
    task: TaskOptions,
    pair: PairOptions,
    result: ResultOptions,
) -> None:
    """Set models side by side on one mapping or on whole tasks."""
    from circuits.show.figure import fill_with_several
    from circuits.show.tables import comparison_section, comparison_values
    from circuits.tasks.compare import compare

    if len(models) < 2:
        raise PromptError(f"--models takes two names or more, separated by commas, not {','.join(models)!r}")
    chosen = [ModelOptions(model, dtype, device) for model in models]
    if _is_about_tasks():
        return _compare_tasks(chosen, task, pair.seed, result)
    with progress() as note:
        circuits = [traced(model, prompt, (key, query), pair, note) for model in chosen]
    values = comparison_values(circuits, share=pair.share)
    table = comparison_section(circuits, share=pair.share)

    def fill(folder: Path) -> None:
        fill_with_several(folder, circuits, pair.share)
        alike = {(len(circuit.prompt), circuit.focus) for circuit in circuits}
        if len(circuits) == 2 and len(alike) == 1:
            compare(*circuits, share=pair.share).save(folder)

    return say_result(result, partial(to_json, values), [table], fill)


def _compare_tasks(
    models: Sequence[ModelOptions], task: TaskOptions, seed: int, result: ResultOptions
) -> None:
    """Two models on the same tasks: one table of all, and of a single task what is behind it.

    The pairs of all tasks are drawn before any is ranked, so that a task without pairs is known early. Such a
    task is left out with a warning, unless it is the only one.
    """
    from circuits.show.task_tables import task_comparison_sections, task_comparison_values
    from circuits.tasks.compare import BOTH, compare, to_same_task

    names = list(dict.fromkeys(options.task(name) for listed in task.tasks for name in listed))
    if len(models) != 2 or not names:
        wrong = f"--task compares two models, not {len(models)}, on at least one task"
        raise PromptError(f"{wrong}; name them as --models mini,mini-sparse --task opposites")
    kinds: Any = BOTH if task.units == "both" else (task.units,)
    drawn, missing = [], []
    with progress() as note:
        both = models[0].load(note), models[1].load(note)
        for name in names:
            try:
                drawn.append(to_same_task(both, name, count=task.count, seed=seed, progress=note))
            except NoPairError as error:
                missing.append(error)
        if not drawn:
            raise missing[0]
        protocol: Any = {"units": kinds, "mlps": task.mlps, "count": task.count, "seed": seed}
        protocol["most"] = task.most
        comparisons = [compare(*both, task=each, progress=note, **protocol) for each in drawn]
    for error in missing:
        click.echo(f"Warning: left out: {error}", err=True)
    to_text = partial(to_json, [task_comparison_values(each) for each in comparisons])
    fill = partial(_fill_with_comparisons, comparisons, task.all_heads)
    say_result(result, to_text, task_comparison_sections(comparisons), fill)


def _is_about_tasks() -> bool:
    """Whether this call of `compare` is about tasks; options that go with a prompt alone are refused then."""
    context = click.get_current_context()
    source = context.get_parameter_source
    typed = {name for name in context.params if source(name) is ParameterSource.COMMANDLINE} - {"seed"}
    about_tasks = "tasks" in typed
    here, there = ("--task", "a prompt") if about_tasks else ("a prompt", "--task")
    misplaced = typed & (_WITH_PROMPTS if about_tasks else _WITH_TASKS)
    for parameter in context.command.params:
        spelled = parameter.opts[0] if isinstance(parameter, click.Option) else "PROMPT"
        if parameter.name in misplaced:
            raise click.UsageError(f"{spelled} goes with {there}, not with {here}")
        if parameter.name in ("prompt", "key") and parameter.name not in typed and not about_tasks:
            raise click.UsageError(f"Missing {spelled}, or name a --task")
    return about_tasks


# Files


def _fill_with_ranking(folder: Path, values: Any, ranking: Ranking, model: Model, task: Task) -> None:
    from circuits.show import head_grid, keep_curves, save_figure
    from circuits.show.grids import ranking_panel
    from circuits.tasks.patterns import maps_of
    from circuits.tasks.ranking import heads_of

    heads = heads_of(ranking)
    maps = maps_of(model, task.pairs[0].clean, heads)
    _put(folder / "ranking.json", ranking, values)
    save_figure(keep_curves(ranking), folder, name="curve")
    save_figure(head_grid(ranking_panel(ranking, heads, maps)), folder, name="heads")


def _fill_with_comparisons(comparisons: Sequence[TaskComparison], all_heads: bool, folder: Path) -> None:
    """The files of one task, or a folder for each of several."""
    from circuits.show import comparison_grid, keep_curves, save_figure
    from circuits.show.task_tables import ranking_values, task_comparison_values

    for comparison in comparisons:
        own = folder if len(comparisons) == 1 else new_folder(folder, comparison.task)
        comparison.save(own)
        _put(own / "comparison.json", comparison, {"summary": task_comparison_values(comparison)})
        for rankings in comparison.rankings:
            units = rankings[0].protocol.units
            for ranking, name in zip(rankings, _file_names(comparison.models), strict=True):
                _put(own / f"ranking-{units}-{name}.json", ranking, ranking_values(ranking))
            save_figure(keep_curves(rankings), own, name=f"curve-{units}")
        save_figure(comparison_grid(comparison, all_heads=all_heads), own, name="heads")


def _file_names(models: Sequence[str]) -> list[str]:
    """Both models as parts of a file name, never the same twice."""
    names = [re.sub(r"[^\w.-]+", "-", model).strip("-.")[-60:] or "unnamed" for model in models]
    return names if names[0] != names[1] else [f"{name}-{number}" for number, name in enumerate(names, 1)]


def _put(file: Path, result: Saved, beside: dict[str, Any]) -> None:
    """Write a result with values beside it that other readers want; its own class reads it back."""
    file.write_bytes(result.to_json(beside).encode())
