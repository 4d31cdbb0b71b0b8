"""The commands that ask a model about one prompt, and those that show what there is to ask.

What the tokenizer alone can tell to be wrong is refused before the weights are read.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import ModelOptions, ResultOptions
from circuits.cli.output import (
    fail_unless_clear,
    print_json,
    print_result,
    print_sections,
    progress,
)
from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.engine import Runs
    from circuits.models.known import Entry
    from circuits.results import Progress
    from circuits.tracing.records import Circuit


@click.command("models")
@options.json_option
def models_command(as_json: bool) -> None:
    """List the models known by name and whether each is here now."""
    from circuits import models
    from circuits.show.sections import Column, Section

    entries = models.available()
    if as_json:
        print_json([_entry_values(entry) for entry in entries])
        return
    columns = [Column("model"), Column("size", ">"), Column("layers×heads", ">")]
    columns += [Column("gate"), Column("licence"), Column("source"), Column("here", ">")]
    rows = []
    for entry in entries:
        gate = "gated" if entry.gated else "dense"
        here = "yes" if entry.here else "no"
        shape = f"{entry.layers}×{entry.heads}"
        rows.append((entry.name, entry.size, shape, gate, entry.licence, entry.source, here))
    print_sections(Section(columns=columns, rows=rows))


def _entry_values(entry: Entry) -> dict[str, Any]:
    """What `models --json` says of one model."""
    names = ("name", "size", "layers", "heads", "gated", "licence", "source", "here", "about")
    return {name: getattr(entry, name) for name in names}


@click.command("tokens")
@argument("words", type=options.text, nargs=-1, metavar="PROMPT", required=True)
@option(
    "--model",
    type=options.text,
    help=f"A name of `circuits models`, a path or a hub id, by default {options.MODEL}.",
)
@options.json_option
def tokens_command(words: tuple[str, ...], model: str | None, as_json: bool) -> None:
    """Print the tokens of a prompt with their positions."""
    from circuits.models.load import load_vocabulary
    from circuits.show.sections import Section
    from circuits.show.tables import visible

    model, prompt = _model_and_prompt(words, model)
    with progress():
        vocabulary = load_vocabulary(model)
    ids = vocabulary.tokenize(prompt)
    spelled = [vocabulary.spell(token) for token in ids]
    if as_json:
        values = []
        for position, (word, token) in enumerate(zip(spelled, ids, strict=True)):
            values.append({"position": position, "token": word, "id": token})
        print_json(values)
        return
    width = len(str(len(ids)))
    lines = []
    for position, word in enumerate(spelled):
        bare = word.lstrip(" ")
        # `visible` shows a word of spaces alone.
        spaces = "␣" * (len(word) - len(bare)) if bare else ""
        lines.append(f"{position:>{width}} = {spaces}{visible(word)}")
    print_sections(Section(lines=lines))


def _model_and_prompt(words: tuple[str, ...], model: str | None) -> tuple[str, str]:
    """The model and the prompt of `tokens`. Version 0.2 took both as arguments, the model first."""
    if len(words) == 2 and model is None:
        return words[0], options.prompt(words[1])
    if len(words) != 1:
        raise click.UsageError(
            "give one prompt, in quotes: circuits tokens --model mini 'The cat'"
        )
    return options.MODEL if model is None else model, options.prompt(words[0])


@click.command("trace")
@options.prompt_argument
@options.key(required=True)
@options.query
@options.model
@options.question
@options.ablation
@options.share
@options.seed
@options.result
@options.strict
@option(
    "--stability",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Repeat it under N other counterfactuals: which heads carry in most of them?",
)
def trace_command(
    prompt: str,
    key: str,
    query: str | None,
    model: ModelOptions,
    result: ResultOptions,
    strict: bool,
    stability: int,
    **question: Any,
) -> None:
    """Find the heads that carry one mapping from a key to a query."""
    with progress() as note:
        circuit = trace_one(model, prompt, key, query, question, note=note, stability=stability)
    _print_circuit(circuit, question["share"], result, strict=strict)


@click.command("circuit")
@options.prompt_argument
@option(
    "--key",
    type=options.text,
    help="The position of the noise, if neither --swap nor --counterfactual is given.",
)
@options.model
@options.question
@options.ablation
@options.share
@options.seed
@options.repeatable(
    "--group",
    options.to_groups,
    metavar="NAME=4,6",
    help="Positions that share a span; repeatable.",
)
@options.repeatable(
    "--own",
    options.to_pairs,
    metavar="NAME=TEXT",
    help="A counterfactual for the span of one token or group, in place of noise; repeatable.",
)
@options.result
@options.strict
def circuit_command(
    prompt: str,
    key: str | None,
    model: ModelOptions,
    group: dict[str, list[str]],
    own: dict[str, str] | None,
    result: ResultOptions,
    strict: bool,
    **question: Any,
) -> None:
    """Find every mapping of a prompt and where its tokens are held."""
    from circuits.tracing.circuit import circuit

    if question["swap"] is not None or question["counterfactual"] is not None:
        options.refuse({"key"}, "is where noise is added: leave it out beside a counterfactual")
    with progress() as note:
        named = chain.from_iterable(group.values())
        check_question(model.model, prompt, question, noise=key, positions=named)
        loaded = model.load(note)
        measured = circuit(
            loaded,
            prompt,
            key=key,
            groups=group,
            counterfactuals=own,
            progress=note,
            **question,
        )
    _print_circuit(measured, question["share"], result, strict=strict)


@click.command("why")
@argument("question", type=options.prompt, metavar="PROMPT|DIR|circuit.json")
@option(
    "--head",
    required=True,
    type=options.text,
    help="The head, such as L5H1; or an MLP, such as M3@9, for its neurons.",
)
@options.key(required=False)
@options.query
@option(
    "--every-key", is_flag=True, help="Take the key and value sides of all keys, not of one."
)
@options.model
@options.question
@options.seed
@options.result
@options.strict
def why_command(
    question: str,
    head: str,
    key: str | None,
    query: str | None,
    every_key: bool,
    model: ModelOptions,
    result: ResultOptions,
    strict: bool,
    **spec: Any,
) -> None:
    """Say why a head looks where it looks, and who wrote what it moves."""
    from circuits.components import Head
    from circuits.engine.selection import Mapped
    from circuits.show.why import fill_with_why, why_sections
    from circuits.tracing.neurons import is_mlp
    from circuits.tracing.records import Circuit
    from circuits.tracing.why import explain, why

    if _is_saved(question):
        options.refuse(
            options.QUESTION | options.RUN,
            "goes with a prompt; a saved circuit is asked again on its own model and pair",
        )
    if is_mlp(head):
        options.refuse(
            {"key", "query", "every_key", "strict"}, f"goes with a head; {head} names an MLP"
        )
        _print_neurons(question, head, model, result, spec)
        return
    Head.parse(head)  # refuses a misspelt name before anything is loaded
    with progress() as note:
        if _is_saved(question):
            circuit = Circuit.load(question)
            answer = why(
                circuit, head, key=key, query=query, every_key=every_key, progress=note
            )
        else:
            runs, ends = _prepare_why(question, key, query, model, spec, note)
            part = Mapped(runs, *ends)
            answer = explain(
                [part], head, every_key=every_key, seed=spec["seed"], progress=note
            )
    print_result(
        result,
        why_sections(answer),
        to_text=answer.to_json,
        fill=partial(fill_with_why, why=answer),
    )
    if strict:
        fail_unless_clear(answer)


def _print_neurons(
    question: str, mlp: str, model: ModelOptions, result: ResultOptions, spec: dict[str, Any]
) -> None:
    """Which neurons of an MLP carry its effect, on a prompt or on the pair of a saved circuit."""
    from circuits.engine import prepare
    from circuits.prompts import QuestionSpec, to_question
    from circuits.show.neuron_figures import neurons_sections
    from circuits.tracing.neurons import explain_mlp, neurons, parse_mlp
    from circuits.tracing.records import Circuit

    with progress() as note:
        if _is_saved(question):
            found = neurons(Circuit.load(question), mlp, progress=note)
        else:
            check_question(model.model, question, spec)
            loaded = model.load(note)
            asked = to_question(loaded, question, QuestionSpec(**spec))
            component, position = parse_mlp(mlp, asked.clean)
            runs = prepare(loaded, [asked])
            found = explain_mlp(runs, component, position, seed=spec["seed"], progress=note)

    def fill(folder: Path) -> None:
        found.save(folder)
        for ending in ("svg", "png", "pdf"):
            found.save(folder / f"neurons.{ending}")

    print_result(result, neurons_sections(found), to_text=found.to_json, fill=fill)


def _is_saved(question: str) -> bool:
    """Whether the argument of `why` is a circuit on disk and not a prompt."""
    try:
        path = Path(question)
        return path.suffix == ".json" or (path / "circuit.json").exists()
    except (OSError, ValueError):  # a long prompt is no valid name of a file
        return False


def _prepare_why(
    prompt: str,
    key: str | None,
    query: str | None,
    model: ModelOptions,
    spec: dict[str, Any],
    note: Progress,
) -> tuple[Runs, tuple[int, int]]:
    """Run a prompt that was not traced before: both runs, and the positions of key and query."""
    from circuits.engine import prepare
    from circuits.prompts import QuestionSpec, to_prompt, to_question

    if key is None:
        raise PromptError(
            "name the key that the head reads: --key WORD; or give the folder of a circuit"
        )
    ends = (key, -1 if query is None else query)
    check_question(model.model, prompt, spec, ends=ends)
    loaded = model.load(note)
    positions = to_prompt(loaded, prompt).ends(*ends)
    question = to_question(loaded, prompt, QuestionSpec(noise_at=positions[:1], **spec))
    return prepare(loaded, [question]), positions


@click.command("wiring")
@options.prompt_argument
@options.model
@options.question
@options.ablation
@options.seed
@option(
    "--share",
    type=options.SHARE_RANGE,
    default=options.SHARE,
    help="The share of the gap that it must keep.",
)
@option(
    "--aim",
    type=click.Choice(["faithful", "performance"]),
    default="faithful",
    help="Behave as the whole model does, or keep the metric as high as possible.",
)
@option(
    "--positions/--no-positions",
    default=None,
    help="Tell positions apart, or take all together; default: apart for one prompt.",
)
@option("--count", type=options.COUNT, default=None, help="Pairs of a task; default: 16.")
@option(
    "--without",
    "without",
    metavar="HEAD",
    multiple=True,
    help="Swap this head away first, to find which others step in; repeatable.",
)
@option(
    "--resamples",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Search again on N resamples of the pairs, and say how alike the circuits are.",
)
@option(
    "--against",
    metavar="TASK",
    help="As a control, what the circuit of this task or jsonl file keeps, with as many wires.",
)
@options.repeatable(
    "--role",
    options.to_pairs,
    metavar="END=-1",
    help="A name for a position; repeatable.",
)
@options.result_without_page("Write wiring.json, its figures and its page here.")
@options.strict
def wiring_command(
    prompt: str,
    model: ModelOptions,
    share: float,
    aim: Any,
    positions: bool | None,
    count: int | None,
    without: tuple[str, ...],
    resamples: int,
    against: str | None,
    role: dict[str, str] | None,
    result: ResultOptions,
    strict: bool,
    **question: Any,
) -> None:
    """Find the smallest circuit that keeps a behaviour."""
    from circuits.show.wiring import wiring_sections
    from circuits.tasks.names import TASKS
    from circuits.wires.pairs import PAIRS
    from circuits.wires.wiring import wiring

    is_file = prompt.endswith(".jsonl")
    is_task = is_file or prompt in TASKS
    if is_task:
        options.refuse(
            options.QUESTION | {"role"},
            "goes with a prompt; the pairs of a task have their own",
        )
    else:
        options.refuse({"count"}, "goes with a task, not with one prompt")
    asked: Any = Path(prompt) if is_file else prompt
    with progress() as note:
        if not is_task:
            check_question(model.model, prompt, question, positions=(role or {}).values())
        loaded = model.load(note)
        roles: Any = role
        measured = wiring(
            loaded,
            asked,
            share=share,
            aim=aim,
            positions=positions,
            count=count or PAIRS,
            without=without,
            resamples=resamples,
            against=against,
            roles=roles,
            progress=note,
            **question,
        )

    def fill(folder: Path) -> None:
        measured.save(folder)
        for ending in ("svg", "png", "pdf", "dot", "html"):
            measured.save(folder / f"wiring.{ending}")

    print_result(result, wiring_sections(measured), to_text=measured.to_json, fill=fill)
    if strict:
        fail_unless_clear(measured)


@click.command("explore")
@options.model
@option(
    "--port",
    type=click.IntRange(0, 65535),
    default=0,
    metavar="N",
    help="The port on 127.0.0.1; 0 takes a free one.",
)
@option("--no-browser", is_flag=True, help="Print the address and leave the browser alone.")
@option(
    "-o",
    "output",
    type=options.path,
    default="explored",
    metavar="DIR",
    help="Where answers are saved that you keep.",
)
def explore_command(model: ModelOptions, port: int, no_browser: bool, output: Path) -> None:
    """Open a page in which to ask a model, live."""
    from circuits.live import check_installed, explore

    check_installed()
    with progress() as note:
        loaded = model.load(note)
    with explore(loaded, port=port, folder=output, browser=not no_browser) as page:
        try:
            click.echo(f"exploring {loaded.name} at {page.address} (Ctrl-C stops it)")
            page.wait()
        except KeyboardInterrupt as stop:
            if type(stop) is not KeyboardInterrupt:  # SIGTERM has an exit code of its own
                raise
    click.echo("stopped", err=True)


# What these commands share


def trace_one(
    model: ModelOptions,
    prompt: str,
    key: str,
    query: str | None,
    question: dict[str, Any],
    *,
    note: Progress,
    stability: int = 0,
) -> Circuit:
    """Load a model and trace key → query (by default the last position)."""
    from circuits.tracing.trace import trace

    end = -1 if query is None else query
    check_question(model.model, prompt, question, ends=(key, end))
    loaded = model.load(note)
    return trace(
        loaded, prompt, key=key, query=end, progress=note, stability=stability, **question
    )


def check_question(
    model: str,
    prompt: str,
    question: dict[str, Any],
    *,
    ends: tuple[int | str, int | str] | None = None,
    noise: str | None = None,
    positions: Iterable[str] = (),
) -> None:
    """Refuse what the tokenizer alone can tell to be wrong, before any weights are read."""
    from circuits.models.load import read_vocabulary
    from circuits.prompts import QuestionSpec, to_prompt, to_question

    vocabulary: Any = read_vocabulary(model)
    if vocabulary is None:  # this model's tokenizer comes with its weights
        return
    read = to_prompt(vocabulary, prompt)
    noise_at = None if noise is None else (read.position(noise),)
    if ends is not None:
        key, _ = read.ends(*ends)
        noise_at = (key,)
    for position in positions:
        read.position(position)
    beside = ("share", "ablation", "reference")
    spec = {name: value for name, value in question.items() if name not in beside}
    to_question(vocabulary, prompt, QuestionSpec(noise_at=noise_at, **spec))


def _print_circuit(
    circuit: Circuit, share: float, result: ResultOptions, *, strict: bool
) -> None:
    """Write and print a circuit; with `strict`, fail if its question is not clear."""
    from circuits.show.folders import fill_with_one
    from circuits.show.tables import circuit_sections

    print_result(
        result,
        circuit_sections(circuit, share=share),
        to_text=circuit.to_json,
        fill=partial(fill_with_one, circuit=circuit, share=share),
    )
    if strict:
        fail_unless_clear(circuit)
