"""The commands that measure one kind of thing everywhere: `patch`, `path` and `readings`."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.options import ModelOptions, ResultOptions
from circuits.cli.output import fail_unless_clear, print_result, progress
from circuits.cli.prompts import check_question
from circuits.errors import PromptError

if TYPE_CHECKING:
    from circuits.show.sections import Section

# As in `engine.sites`, which imports torch.
SITES: Final = ("residual", "attention", "mlp", "head", "query", "key", "value", "pattern")
READINGS: Final = ("attribution", "lens", "heads")

noise_option = options.repeatable(
    "--noise-at",
    options.to_words,
    metavar="WORD",
    help="Noise on this token instead of a swap; repeatable.",
)


@click.command("patch")
@options.prompt_argument
@option(
    "--sites",
    type=click.Choice(SITES),
    default="residual",
    help="What is patched: residual, attention, mlp (layer × position), or head, query, key, value, pattern.",
)
@options.repeatable(
    "--position",
    options.to_words,
    metavar="WORD|N",
    help="Patch here, by default everywhere; repeatable.",
)
@option("--each-position", is_flag=True, help="Of heads: at each position by itself.")
@options.model
@options.question
@options.ablation
@noise_option
@options.seed
@options.result_without_page("Write patch.json, its values and its figure here.")
@options.strict
def patch_command(
    prompt: str,
    sites: Any,
    position: tuple[str, ...] | None,
    each_position: bool,
    model: ModelOptions,
    result: ResultOptions,
    strict: bool,
    noise_at: tuple[str, ...] | None,
    **question: Any,
) -> None:
    """Patch every layer and position, or every head, and show the map."""
    from circuits.instruments.patch import patch
    from circuits.show.heatmaps import grid_sections

    with progress() as note:
        _check(model, prompt, question, noise_at, position or ())
        patched = patch(
            model.load(note),
            prompt,
            sites,
            positions=position,
            each_position=each_position,
            noise_at=noise_at,
            progress=note,
            **question,
        )
    _print_grid(patched, grid_sections(patched), result)
    if strict:
        fail_unless_clear(patched)


@click.command("path")
@options.prompt_argument
@argument("paths", type=options.text, nargs=-1, required=True, metavar="PATH...")
@options.model
@options.question
@options.ablation
@noise_option
@options.seed
@options.result_without_page("Write paths.json, its values and its figure here.")
@options.strict
def path_command(
    prompt: str,
    paths: tuple[str, ...],
    model: ModelOptions,
    result: ResultOptions,
    strict: bool,
    noise_at: tuple[str, ...] | None,
    **question: Any,
) -> None:
    """Measure paths between named senders and receivers."""
    from circuits.instruments.path import path
    from circuits.show.heatmaps import grid_sections

    with progress() as note:
        _check(model, prompt, question, noise_at, ())
        found = path(
            model.load(note),
            prompt,
            paths,
            noise_at=noise_at,
            progress=note,
            **question,
        )
    _print_grid(found, grid_sections(found), result)
    if strict:
        fail_unless_clear(found)


@click.command("readings")
@argument("prompt", type=options.prompt, required=False)
@option(
    "--of",
    "kind",
    type=click.Choice(READINGS),
    default="attribution",
    help="attribution (direct logit attribution), lens (logit lens), or heads (scores; takes no prompt).",
)
@options.model
@options.repeatable(
    "--answer",
    options.to_words,
    help="The token that is read; repeatable, by default what is said.",
)
@options.repeatable(
    "--foil", options.to_words, help="The token that it is compared with; repeatable."
)
@options.seed
@options.result_without_page("Write the reading and its figure here.")
def readings_command(
    prompt: str | None,
    kind: str,
    model: ModelOptions,
    answer: tuple[str, ...] | None,
    foil: tuple[str, ...] | None,
    seed: int,
    result: ResultOptions,
) -> None:
    """Read what components write: a reading, not an effect."""
    from circuits.instruments.head_scores import head_scores
    from circuits.instruments.readings import logit_attribution, logit_lens
    from circuits.show import reading_figures

    if (prompt is None) != (kind == "heads"):
        raise PromptError("give a prompt for attribution and lens, and none for heads")
    if foil is not None and kind != "attribution":
        raise PromptError("a foil goes with --of attribution")
    if answer is not None and kind == "heads":
        raise PromptError("an answer goes with --of attribution or lens")
    with progress() as note:
        loaded = model.load(note)
        if prompt is None:
            scores = head_scores(loaded, seed=seed)
            read, sections = scores, reading_figures.scores_sections(scores)
        elif kind == "lens":
            lens = logit_lens(loaded, prompt, answer=answer)
            read, sections = lens, reading_figures.lens_sections(lens)
        else:
            parts = logit_attribution(loaded, prompt, answer=answer, foil=foil)
            read, sections = parts, reading_figures.attribution_sections(parts)
    _print_grid(read, sections, result)


def _check(
    model: ModelOptions,
    prompt: str,
    question: dict[str, Any],
    noise_at: tuple[str, ...] | None,
    positions: Sequence[str],
) -> None:
    """Refuse what the tokenizer alone can tell to be wrong, before any weights are read."""
    if question["swap"] is not None or question["counterfactual"] is not None:
        options.refuse({"noise_at"}, "stands in for a counterfactual: leave out one of the two")
    noisy = noise_at or ()
    ends = (noisy[0], -1) if noisy else None
    check_question(model.model, prompt, question, ends=ends, positions=(*positions, *noisy))


def _print_grid(grid: Any, sections: Sequence[Section], result: ResultOptions) -> None:
    """Print the strongest cells, or with `--json` all of them, and write the result and its figure."""

    def fill(folder: Path) -> None:
        grid.save(folder)
        for ending in ("svg", "png", "pdf"):
            grid.save(folder / f"{grid.KIND}.{ending}")

    print_result(result, sections, to_text=partial(_to_json, grid), fill=fill)


def _to_json(grid: Any) -> str:
    """The record with its values, null where there is none."""
    return grid.to_json({"values": _plain(grid.values.tolist())})


def _plain(values: Any) -> Any:
    if isinstance(values, list):
        return [_plain(each) for each in values]
    return values if values == values else None  # NaN is no JSON
