"""The commands on tasks: `circuits rank`, and the side of `circuits compare` that takes `--task`; heavy imports inside.

1. What was measured is printed as tables or, with `--json`, as one JSON value.
2. With `-o` the records, the keep curves and the grids of heads are written, all or none. The maps are those of the task's first prompt.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click.core import ParameterSource

from circuits.cli.options import JSON, MODEL, PATH, WORDS, options, to_folder
from circuits.cli.terminal import progress, say, say_files, say_json
from circuits.errors import NoPairError, PromptError
from circuits.files import SIGNATURE, to_json, write_folder

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from circuits.models.model import Model
    from circuits.prompts import Prompt
    from circuits.tasks.compare import TaskComparison
    from circuits.tasks.patterns import PanelFigures
    from circuits.tasks.ranking import Ranking

_PAIRS: Final = click.option(
    "-n", "count", type=click.IntRange(min=1), help="Pairs to measure: by default 64 for heads, 16 for edges."
)
_MLPS: Final = click.option(
    "--mlps",
    type=click.Choice(["computed", "held", "swapped"]),
    default="computed",
    show_default=True,
    help="MLPs see what is kept, write as in the clean run, or as in the counterfactual.",
)
TASKS: Final = options(
    click.option(
        "--task",
        "--tasks",
        "tasks",
        type=WORDS,
        multiple=True,
        metavar="NAME,NAME",
        help="Tasks to rank, instead of a prompt; repeatable.",
    ),
    _PAIRS,
    click.option(
        "--units",
        type=click.Choice(["heads", "edges", "both"]),
        default="both",
        show_default=True,
        help="What a task is cut into.",
    ),
    _MLPS,
)


_OF_PROMPTS: Final = (
    "prompt",
    "key",
    "query",
    "swap",
    "counterfactual",
    "answer",
    "foil",
    "metric",
    "share",
    "open_page",
)
_OF_TASKS: Final = ("count", "units", "mlps")


@click.command("rank")
@click.argument("task", type=WORDS)
@MODEL
@_PAIRS
@click.option(
    "--units",
    type=click.Choice(["heads", "edges"]),
    default="heads",
    show_default=True,
    help="What is ranked.",
)
@_MLPS
@click.option(
    "--seed", type=int, default=0, show_default=True, help="For the pairs, resamples and random orders."
)
@click.option(
    "-o",
    "output",
    type=PATH,
    callback=to_folder,
    metavar="DIR",
    help="Write the ranking, its curve and its grid of heads here.",
)
@JSON
def rank_command(
    task: str,
    model: str,
    count: int | None,
    units: Any,
    mlps: Any,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Rank the heads or edges of a task; say how many it takes."""
    from circuits.models.load import load
    from circuits.show.task_tables import ranking_sections, ranking_values
    from circuits.tasks.patterns import measure_panel
    from circuits.tasks.rank import rank
    from circuits.tasks.task import PAIRS, to_task

    with progress() as note:
        known = load(model)
        asked = to_task(known, task, count=PAIRS if count is None else count, seed=seed, progress=note)
        found = rank(known, asked, units=units, mlps=mlps, count=count, seed=seed, progress=note)
        panel = measure_panel(known, asked)
    written = []
    if output is not None:
        written = write_folder(
            output, lambda room: _fill_with_ranking(room, found, panel, known, asked.pairs[0].clean)
        )
    if as_json:
        say_json(ranking_values(found, panel))
    else:
        say(*ranking_sections(found, panel))
    say_files(written, aside=as_json)


def compare_tasks(
    tasks: Sequence[str],
    models: Sequence[str],
    *,
    count: int | None,
    units: str,
    mlps: Any,
    seed: int,
    output: Path | None,
    as_json: bool,
) -> None:
    """Two models on the same tasks: one table of all, and of a single task what is behind it.

    The pairs of all tasks are drawn before any is ranked, so that a mistake in the last name costs nothing. Of several tasks, one of
    which a model can be asked nothing is told and left out.
    """
    from circuits.models.load import load
    from circuits.show.task_tables import task_comparison_sections, task_comparison_values
    from circuits.tasks.compare import compare, to_same_task
    from circuits.tasks.ranking import UNITS

    if len(models) != 2:
        raise PromptError(
            f"--task compares two models, not {len(models)}; name both as --models mini,mini-sparse"
        )
    kinds: Any = UNITS if units == "both" else (units,)
    with progress() as note:
        first, second = (load(name) for name in models)
        asked, missing = [], []
        for task in tasks:
            try:
                asked.append(to_same_task((first, second), task, count=count, seed=seed, progress=note))
            except NoPairError as why:
                missing.append(why)
        if not asked:
            raise missing[0]
        found = [
            compare(first, second, task=task, units=kinds, mlps=mlps, count=count, seed=seed, progress=note)
            for task in asked
        ]
    for why in missing:
        click.echo(f"circuits: left out: {why}", err=True)
    written = []
    if output is not None:
        written = write_folder(output, lambda room: _fill_with_contrasts(room, found))
    if as_json:
        say_json([task_comparison_values(each) for each in found])
    else:
        say(*task_comparison_sections(found))
    say_files(written, aside=as_json)


def about_tasks() -> bool:
    """Whether this call of `compare` asks about tasks; what belongs to the other kind of call is refused, and so is a call of neither."""
    call = click.get_current_context()
    given = {
        param.name: param
        for param in call.command.params
        if call.get_parameter_source(param.name or "") is ParameterSource.COMMANDLINE
    }
    by_task = "tasks" in given
    for name, param in given.items():
        if name in (_OF_PROMPTS if by_task else _OF_TASKS):
            raise click.UsageError(
                f"{_spelt(param)} goes with {'a prompt' if by_task else '--task'}, not with {'--task' if by_task else 'a prompt'}"
            )
    missing = (
        []
        if by_task
        else [
            param
            for param in call.command.params
            if param.name in ("prompt", "key") and call.params[param.name] is None
        ]
    )
    if missing:
        raise click.UsageError(f"Missing {_spelt(missing[0])}, or name a --task")
    return by_task


def _spelt(param: click.Parameter) -> str:
    return param.opts[0] if isinstance(param, click.Option) else "PROMPT"


def to_names(given: Sequence[str]) -> list[str]:
    """`--task a,b --task c` as three names, each once; a path may not hold a comma."""
    return list(dict.fromkeys(name.strip() for each in given for name in each.split(",") if name.strip()))


# Files


def _fill_with_ranking(room: Path, found: Ranking, panel: PanelFigures, model: Model, prompt: Prompt) -> None:
    from circuits.show import head_grid, keep_curves, save_figure
    from circuits.show.figure import put
    from circuits.show.grids import ranking_panel
    from circuits.show.task_tables import ranking_values
    from circuits.tasks.patterns import maps_of
    from circuits.tasks.ranking import heads_of

    heads = heads_of(found)
    put(room / "ranking.json", _to_file(ranking_values(found, panel)))
    save_figure(_figure(keep_curves(found)), room, name="curve")
    save_figure(head_grid(ranking_panel(found, heads, maps_of(model, prompt, heads))), room, name="heads")


def _fill_with_contrasts(room: Path, found: Sequence[TaskComparison]) -> None:
    """The files of one task, or a folder for each of several."""
    for number, each in enumerate(found):
        name = re.sub(r"[^\w.-]+", "-", each.task).strip("-.")[-60:] or "task"
        inner = (
            room if len(found) == 1 else room / (name if not (room / name).exists() else f"{name}-{number}")
        )
        _fill_with_contrast(inner, each)


def _fill_with_contrast(room: Path, found: TaskComparison) -> None:
    from circuits.show import comparison_grid, keep_curves, save_figure
    from circuits.show.figure import put
    from circuits.show.task_tables import task_comparison_values, ranking_values

    room.mkdir(exist_ok=True)
    put(room / "comparison.json", _to_file(task_comparison_values(found)))
    for couple in found.rankings:
        units = couple[0].protocol.units
        for side, ranking in zip(("first", "second"), couple, strict=True):
            put(room / f"ranking-{units}-{side}.json", _to_file(ranking_values(ranking)))
        save_figure(_figure(keep_curves(couple)), room, name=f"curve-{units}")
    save_figure(comparison_grid(found), room, name="heads")


def _figure(axes: Axes) -> Figure:
    return axes.get_figure(root=True)  # type: ignore[return-value]


def _to_file(values: dict[str, Any]) -> str:
    """Values as the text of a file that says who wrote it."""
    return to_json({"written_by": SIGNATURE} | values) + "\n"
