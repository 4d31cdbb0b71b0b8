"""The long jobs: `circuits sweep`, `circuits sparsify`, and `circuits sparsity`, which measures the result.

If several processes train, only the first one prints progress and results.
"""

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
from circuits.errors import PromptError, escaped, in_one_line
from circuits.files import read_text
from circuits.sparsify import default_in_words, settings_for
from circuits.sweeps import BATCH

if TYPE_CHECKING:
    from circuits.sparsify.measure import Sparsity
    from circuits.sparsify.sampling import Sampling
    from circuits.sweeps.results import Sweep

MOST_ERRORS: Final = 5  # lines of a sweep whose errors are printed
ROWS: Final = 1024  # that a model writes itself, unless the user says otherwise
FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
NOT_NEGATIVE: Final = click.IntRange(min=0)


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
    type=NOT_NEGATIVE,
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

    if plan:
        read_lines(prompts)
        _print_plan(prompts, model, settings, as_json)
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
        raise Failure(f"none of {len(result)} lines could be measured: each has an error")
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
    with progress():
        planned = plan_sweep(source, prompts, **settings)
    if as_json:
        print_json(asdict(planned) | {"shards": planned.shards, "memory": planned.memory})
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


def setting(*names: str, kind: Any, about: str) -> options.Decorator:
    """A setting of the training; if it is not given, the preset for the model decides."""
    name = names[-1].removeprefix("--")
    return option(*names, type=kind, help=f"{about} [default: {default_in_words(name)}]")


@click.command("sparsify")
@argument("model", type=options.text)
@option(
    "--text",
    type=FILE,
    help="Text or jsonl to train on; by default what the model itself writes.",
)
@option(
    "--own-words",
    is_flag=True,
    help="Take turns between --text and text that the model writes.",
)
@options.output("The folder of the twin.", required=True)
@setting("--steps", kind=COUNT, about="Training steps.")
@setting("--batch", kind=COUNT, about="Rows in a step.")
@setting("--length", kind=click.IntRange(min=2), about="Tokens in a row.")
@setting("--rate", "learning_rate", kind=float, about="Peak learning rate.")
@setting(
    "--gates",
    kind=click.Choice(["sampled", "deterministic"]),
    about="How gates open in training.",
)
@setting(
    "--constraint",
    kind=click.Choice(["loss", "kl"]),
    about="What must stay near the dense model.",
)
@setting("--gap", kind=float, about="How near, in nats.")
@setting(
    "--slack",
    kind=click.FloatRange(min=1),
    about="3 starts with three times the gap and tightens it to one.",
)
@setting(
    "--healing",
    kind=NOT_NEGATIVE,
    about="Further steps with half the gap; fewer with fewer --steps.",
)
@setting("--lora", kind=NOT_NEGATIVE, about="Rank of an adapter; 0 trains all weights.")
@setting(
    "--states", kind=click.FloatRange(min=0), about="Weight of the distance of hidden states."
)
@setting(
    "--short", kind=click.FloatRange(0, 1), about="Share of steps on rows of 8 to 24 tokens."
)
@setting(
    "--tokens",
    kind=NOT_NEGATIVE,
    about="Train an adapter on the likeliest tokens alone; 0: all.",
)
@option("--samples", type=COUNT, default=ROWS, help="Rows that the model writes itself.")
@option("--openings", type=FILE, help="What its rows begin with, one opening a line.")
@option(
    "--temperature",
    "temperatures",
    type=float,
    multiple=True,
    help="Of its own words; repeatable.",
)
@option(
    "--prompts", type=FILE, help="Prompts, one a line; the word after each counts five times."
)
@setting("--prompted", kind=click.FloatRange(0, 1), about="Share of steps on --prompts.")
@setting("--seed", kind=int, about="For rows and noise.")
@options.device
@options.json_option
def sparsify_command(
    model: str,
    output: Path,
    as_json: bool,
    text: Path | None,
    own_words: bool,
    samples: int,
    openings: Path | None,
    temperatures: tuple[float, ...],
    prompts: Path | None,
    device: str,
    **changes: Any,
) -> None:
    """Train a sparse twin of a model, or resume its training."""
    from circuits.sparsify.measure import weights_of
    from circuits.sparsify.processes import join, started_alone
    from circuits.sparsify.text import speaks_little_language
    from circuits.sparsify.twin import sparsify

    processes = join()
    if started_alone():
        several = "accelerate launch --multi_gpu --num_processes 2, without --cpu"
        click.echo(f"one process trains; for two on a CPU: {several}", err=True)
    with processes.main_first():
        _, weights = weights_of(model)
        little_language = speaks_little_language(weights)
    with progress(shown=processes.is_main) as note:
        measured = sparsify(
            model,
            output,
            settings=settings_for(little_language=little_language, **changes),
            text=text,
            own_words=own_words,
            sampling=_own_words(samples, openings, temperatures),
            prompts=_completions(prompts, temperatures),
            device=device,
            progress=note,
        )
    if processes.is_main:
        _print_sparsity(measured, as_json)
    processes.leave()


def _own_words(
    samples: int, openings: Path | None, temperatures: tuple[float, ...]
) -> Sampling | None:
    """How the model's own words are sampled; None if no option says how."""
    from circuits.sparsify.sampling import Sampling

    if samples == ROWS and openings is None and not temperatures:
        return None
    lines = ("",) if openings is None else tuple(read_text(openings).splitlines())
    return Sampling(samples, lines, temperatures or (1.0,))


def _completions(prompts: Path | None, temperatures: tuple[float, ...]) -> Sampling | None:
    """One row for each prompt; the word after the prompt counts five times."""
    from circuits.sparsify.sampling import Sampling

    if prompts is None:
        return None
    lines = tuple(read_text(prompts).splitlines())
    return Sampling(len(lines), lines, temperatures or (1.0,), answers=5.0)


@click.command("sparsity")
@argument("model", type=options.text)
@option(
    "--text",
    type=FILE,
    help="Held-out text or jsonl; speakers of the little language have their own.",
)
@option(
    "--original",
    type=options.text,
    metavar="MODEL",
    help="The dense model, if the twin's files do not name it.",
)
@option("--rows", type=COUNT, default=128, help="At most so many rows of text.")
@option(
    "--length",
    type=COUNT,
    default=128,
    help="Tokens of a row of text, at most; open edges are told by length up to it.",
)
@options.dtype
@options.device
@options.json_option
def sparsity_command(model: str, text: Path | None, as_json: bool, **settings: Any) -> None:
    """Show how sparse a model is, beside its dense original."""
    from circuits.sparsify.measure import measure_sparsity
    from circuits.sparsify.text import read_texts

    with progress():
        texts = None if text is None else read_texts(text)
        measured = measure_sparsity(model, texts, **settings)
    _print_sparsity(measured, as_json, layers=True)


def _print_sparsity(measured: Sparsity, as_json: bool, *, layers: bool = False) -> None:
    """The twin beside its original, by length too; with `layers` also open edges of each layer and head."""
    from circuits.show.sections import Column, Section
    from circuits.sparsify.measure import length_rows

    if as_json:
        derived = {
            "open_edges": measured.open_edges,
            "edges_per_query": measured.edges_per_query,
            "by_length": [asdict(each) for each in measured.by_length],
            "gap": measured.gap,
        }
        print_json(derived | asdict(measured))
        return
    columns = (
        Column(),
        Column(escaped(measured.original), ">"),
        Column(escaped(measured.name), ">"),
    )
    sections = [Section(f"Over {measured.tokens} held-out tokens", (), columns, measured.facts)]
    lengths = [Column("tokens", ">")]
    for name in (measured.original, measured.name):
        lengths += [Column(escaped(name), ">"), Column("a query", ">")]
    lengths.append(Column("last query", ">"))
    title = "Open edges by length of the prompt: of all edges, and of a query and head"
    sections.append(Section(title, (), lengths, length_rows(measured)))
    if layers:
        rows = []
        per_layer = zip(measured.gated.per_layer, measured.gated.per_head, strict=True)
        for layer, (mean, heads) in enumerate(per_layer):
            shares = [f"H{head}={share:.2%}" for head, share in enumerate(heads)]
            rows.append((f"L{layer}", f"{mean:.2%}: {' '.join(shares)}"))
        sections.append(Section("Open edges of each layer and its heads", rows=rows))
    print_sections(*sections)
