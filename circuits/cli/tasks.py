"""The commands on tasks: `circuits rank`, `circuits edges`, and `circuits heads`, which also takes a prompt.

The attention maps that are drawn of a task are those of its first prompt.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import ModelOptions, ResultOptions
from circuits.cli.output import fail_unless_clear, print_files, print_result, progress
from circuits.cli.workers import WorkerOptions, workers
from circuits.errors import FileError, PromptError
from circuits.files import to_json
from circuits.results import Saved
from circuits.tasks import TASKS
from circuits.tracing import CARRIES

if TYPE_CHECKING:
    from circuits.models.model import Model
    from circuits.results import Progress
    from circuits.show.grids import Panel
    from circuits.tasks.patterns import PanelFigures
    from circuits.tasks.ranking import Ranking
    from circuits.tasks.task import Task
    from circuits.tracing.records import Circuit

UNITS: Final = ("heads", "edges", "wires")
TASK_EPILOG: Final = (
    f"TASK is {', '.join(TASKS)}, or the path of a .jsonl file with items of your own."
)

count_option = option(
    "-n",
    "count",
    type=options.COUNT,
    help="Pairs to measure: by default 64 for heads, 16 for edges and wires.",
)
mlps_option = option(
    "--mlps",
    type=click.Choice(["computed", "held", "swapped"]),
    default="computed",
    help="MLPs see what is kept, write as in the clean run, or as in the counterfactual.",
)
most_option = option(
    "--most",
    type=options.COUNT,
    help="Wires that are measured exactly: by default the first 400, or 4,000 to order by effect.",
)


@click.command("rank", epilog=TASK_EPILOG)
@argument("task", type=options.task)
@options.model
@count_option
@option(
    "--units",
    type=click.Choice(UNITS),
    default="heads",
    help="What is ranked: heads, (attention) edges, or wires, which are component edges.",
)
@mlps_option
@most_option
@option(
    "--order",
    type=options.path,
    metavar="NAME|FILE",
    help="The order of wires: search (default), effect, eap, eap-ig, or a circuit of EAP-IG or MIB.",
)
@options.ablation
@option("--seed", type=int, default=0, help="For the pairs, resamples and random orders.")
@workers
@options.result_without_page("Write the ranking, its curve and its grid of heads here.")
@options.strict
def rank_command(
    task: str,
    model: ModelOptions,
    count: int | None,
    seed: int,
    workers: WorkerOptions,
    result: ResultOptions,
    strict: bool,
    **protocol: Any,
) -> None:
    """Rank the heads or edges of a task; say how many it takes."""
    from circuits.instruments.head_scores import head_scores
    from circuits.show.task_tables import ranking_sections, ranking_values
    from circuits.tasks.patterns import measure_panel
    from circuits.tasks.rank import rank
    from circuits.tasks.task import PAIRS, to_task

    if protocol["order"] is not None:
        protocol["order"] = str(protocol["order"])
        if "units" not in options.typed():
            protocol["units"] = "wires"
    workers.refuse_what_does_not_fit(model)
    if not workers.is_this_process:
        if protocol["units"] != "wires":
            raise PromptError(
                "--executor and --workers go with --units wires; heads and edges take seconds without"
            )
        protocol["executor"] = workers.start(result.output or Path())
    with progress() as note:
        loaded = model.load(note)
        pairs = to_task(loaded, task, count=count or PAIRS, seed=seed, progress=note)
        ranking = rank(loaded, pairs, count=count, seed=seed, progress=note, **protocol)
        panel = measure_panel(loaded, pairs)
        scores = head_scores(loaded)
    values = ranking_values(ranking, panel)

    def fill(folder: Path) -> None:
        save_with(folder / "ranking.json", ranking, values)
        _draw_ranking(folder, ranking, loaded, pairs)

    print_result(
        result, ranking_sections(ranking, scores), to_text=partial(to_json, values), fill=fill
    )
    if strict:
        fail_unless_clear(ranking)


def _draw_ranking(folder: Path, ranking: Ranking, model: Model, task: Task) -> None:
    from circuits.show import head_grid, keep_curves, save_figure
    from circuits.show.grids import ranking_panel
    from circuits.tasks.patterns import maps_of
    from circuits.tasks.ranking import heads_of

    heads = heads_of(ranking)
    example = task.pairs[0]
    maps = maps_of(model, example.clean, heads)
    save_figure(keep_curves(ranking), folder, name="curve")
    panel = ranking_panel(ranking, heads, maps, prompt=example.clean, pair=example)
    save_figure(head_grid(panel), folder, name="heads")


def save_with(file: Path, result: Saved, beside: dict[str, Any]) -> None:
    """Write a result with further values beside it for other readers; its own class ignores them."""
    file.write_bytes(result.to_json(beside).encode())


@click.command("edges", epilog=TASK_EPILOG)
@argument("task", type=options.task)
@options.model
@option("-n", "count", type=options.COUNT, default=16, help="Pairs to measure.")
@option("--seed", type=int, default=0, help="For the pairs.")
@option(
    "-o",
    "output",
    type=options.path,
    required=True,
    metavar="FILE",
    help="The Parquet file to write, such as edges.parquet.",
)
@workers
@options.json_option
def edges_command(
    task: str,
    model: ModelOptions,
    count: int,
    seed: int,
    output: Path,
    workers: WorkerOptions,
    as_json: bool,
) -> None:
    """Write the exact effects of all component edges as a table."""
    from circuits.files import check_folder
    from circuits.tasks.edges import edge_effects, write_edges

    if output.is_dir():
        raise FileError(
            f"cannot write to {output}: it is a folder; name a file, such as edges.parquet"
        )
    check_folder(output.parent)
    workers.refuse_what_does_not_fit(model)
    executor = None if workers.is_this_process else workers.start(output.parent)
    with progress() as note:
        measured = workers.model(model, note)
        table = edge_effects(
            measured, task, count=count, seed=seed, executor=executor, progress=note
        )
        written = write_edges(table, output)
    print_files([written], as_json=as_json)


@click.command("heads", epilog=TASK_EPILOG)
@argument("prompt", type=options.prompt, required=False)
@option("--task", type=options.task, help="A task, instead of a prompt.")
@option("--all", "all_heads", is_flag=True, help="Every head, not only those that matter.")
@options.model
@count_option
@options.question
@options.share
@options.seed
@options.result_without_page("Write the grid of heads here.")
@options.strict
def heads_command(
    prompt: str | None,
    task: str | None,
    all_heads: bool,
    model: ModelOptions,
    count: int | None,
    result: ResultOptions,
    strict: bool,
    **question: Any,
) -> None:
    """Show the attention maps of the heads that matter, in order."""
    if (prompt is None) == (task is None):
        raise click.UsageError("give a prompt or a --task, one of the two")
    if prompt is None:
        options.refuse(options.QUESTION | {"share"}, "goes with a prompt, not with --task")
    else:
        options.refuse({"count"}, "goes with --task, not with a prompt")
    with progress() as note:
        loaded = model.load(note)
        if prompt is not None:
            judged, panel, figures = _heads_of_prompt(loaded, prompt, question, all_heads, note)
        else:
            judged, panel, figures = _heads_of_task(
                loaded, task or "", count, question["seed"], all_heads, note
            )
    _print_heads(judged, panel, figures, result)
    if strict:
        fail_unless_clear(judged)


def _print_heads(
    judged: Circuit | Ranking, panel: Panel, figures: PanelFigures, result: ResultOptions
) -> None:
    """Print a line for each head of the panel, below the verdict on the question, and draw the panel."""
    from circuits.show import head_grid, save_figure
    from circuits.show.sections import Column, Section
    from circuits.show.words import verdict_lines, verdict_values

    verdict = verdict_values(judged)["verdict"]
    values = []
    rows = []
    measured = zip(panel.heads, panel.effects, figures.patterns, strict=True)
    for number, (head, effect, pattern) in enumerate(measured, 1):
        values.append(
            {"head": str(head), "effect": effect, "verdict": verdict, **asdict(pattern)}
        )
        rows.append((number, head, effect, pattern.kind))
    columns = (Column(), Column("head"), Column("effect", "z.3f"), Column("whole map"))
    facts = " · ".join(f"{name} {value}" for name, value in panel.facts)
    lines = [*verdict_lines(judged), facts]
    section = Section(f"{panel.title}: {panel.note}", lines, columns, rows)
    print_result(
        result,
        [section],
        to_text=partial(to_json, values),
        fill=lambda folder: save_figure(head_grid(panel), folder, name="heads"),
    )


def _heads_of_prompt(
    model: Model, prompt: str, question: dict[str, Any], all_heads: bool, note: Progress
) -> tuple[Circuit, Panel, PanelFigures]:
    """The heads of a circuit, the strongest first, and then, if asked for, all others."""
    from circuits.engine.runs import every_head
    from circuits.show.grids import to_panel
    from circuits.show.task_tables import panel_facts
    from circuits.show.words import verdict_in_short
    from circuits.tasks.patterns import measure_panel
    from circuits.tracing.circuit import circuit

    measured = circuit(model, prompt, progress=note, **question)
    heads = list(measured.heads())
    words = f"heads with an effect of {CARRIES:g} or more"
    if all_heads:
        heads += [head for head in every_head(model) if head not in heads]
        words = "all heads"
    figures = measure_panel(model, [measured.prompt], heads=heads)
    panel = to_panel(measured, figures.heads, note=f"{words}{verdict_in_short(measured)}")
    return measured, replace(panel, facts=tuple(panel_facts(figures).items())), figures


def _heads_of_task(
    model: Model, task: str, count: int | None, seed: int, all_heads: bool, note: Progress
) -> tuple[Ranking, Panel, PanelFigures]:
    """The heads that explain 90% of a task, or all heads, in ranked order."""
    from circuits.components import Head
    from circuits.show.grids import ranking_panel
    from circuits.tasks.patterns import maps_of, measure_panel
    from circuits.tasks.rank import rank
    from circuits.tasks.ranking import heads_of
    from circuits.tasks.task import PAIRS, to_task

    pairs = to_task(model, task, count=count or PAIRS, seed=seed, progress=note)
    ranking = rank(model, pairs, count=count, seed=seed, progress=note)
    heads = heads_of(ranking)
    if all_heads:
        heads = tuple(each.unit for each in ranking.ranked if isinstance(each.unit, Head))
    figures = measure_panel(model, pairs, heads=heads)
    example = pairs.pairs[0]
    maps = maps_of(model, example.clean, figures.heads)
    panel = ranking_panel(
        ranking, figures.heads, maps, prompt=example.clean, pair=example, figures=figures
    )
    return ranking, panel, figures
