"""The commands that take a saved result: draw it, export it, measure it again."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

import click
from click import argument, option

from circuits.cli import options
from circuits.cli.output import Failure, print_files, print_json, print_sections, progress
from circuits.errors import PromptError
from circuits.files import write_folder
from circuits.results import FORMATS, open_result


def why_option(about: str) -> options.Decorator:
    """The files of answers of `circuits why`."""
    return option(
        "--why", "answers", type=options.path, multiple=True, metavar="FILE", help=about
    )


@click.command("render")
@options.saved_argument
@option(
    "--format",
    "formats",
    type=options.formats,
    metavar="NAME,NAME",
    help="Which files to draw, by default all: svg, png, pdf, html, dot.",
)
@option(
    "--share",
    type=options.SHARE_RANGE,
    help="The share that the carriers must reach, by default the one that was measured.",
)
@why_option(
    "Answers of `circuits why -o` for the page, beside those in the folder; repeatable."
)
@options.output("Where to, by default beside the result.")
@options.json_option
def render_command(
    path: Path,
    formats: tuple[str, ...] | None,
    share: float | None,
    answers: tuple[Path, ...],
    output: Path | None,
    as_json: bool,
) -> None:
    """Draw a saved result as figures, a page and a Graphviz file."""
    from circuits.show.folders import draw_files
    from circuits.tracing.records import Circuit
    from circuits.tracing.why_record import Why

    folder = path if path.is_dir() else path.parent
    result = open_result(path / "circuit.json" if (path / "circuit.json").exists() else path)
    is_circuit = isinstance(result, Circuit)
    if not is_circuit and (share is not None or answers):
        raise PromptError(f"--share and --why go with a circuit; {path} is {result.NAME}")

    def draw(aside: Path) -> None:
        if is_circuit:
            why = [Why.load(answer) for answer in [*sorted(folder.glob("why*.json")), *answers]]
            draw_files(
                aside,
                result,
                result.share if share is None else share,
                formats or FORMATS,
                by_graphviz="dot" in (formats or ()),
                why=why,
            )
            return
        for form in formats or FORMATS:
            result.save(aside / f"{result.KIND}.{form}")

    written = write_folder(output or folder, draw)
    print_files(written, as_json=as_json)


@click.command("export")
@options.saved_argument
@option("--to", required=True, metavar="FORMAT", help="node-link, graphml, neuronpedia or eap.")
@option(
    "-o",
    "output",
    type=options.path,
    metavar="FILE",
    help="Where to, by default the standard output.",
)
@why_option("Answers that `circuits why -o` wrote, for neuronpedia; repeatable.")
@options.json_option
def export_command(
    path: Path, to: str, output: Path | None, answers: tuple[Path, ...], as_json: bool
) -> None:
    """Write a saved result in the format of another tool."""
    from circuits.show.export import EXPORTS, export, load_saved
    from circuits.tracing.why_record import Why

    why = [Why.load(answer) for answer in answers]
    result = load_saved(path)
    text = export(result, to, why=why)
    if output is not None:
        ending, _ = EXPORTS[to]
        file = output / f"{result.KIND}{ending}" if output.is_dir() else output
        written = write_folder(
            file.parent, lambda aside: (aside / file.name).write_bytes(text.encode())
        )
        print_files(written, as_json=as_json)
    elif as_json:
        print_json({"format": to, "text": text})
    else:
        click.echo(text.encode(), nl=False)


@click.command("verify")
@argument("path", type=options.path, metavar="DIR|FILE")
@options.device
@options.json_option
def verify_command(path: Path, device: str, as_json: bool) -> None:
    """Measure a saved result again and say whether it holds."""
    from circuits.checks.verify import verify
    from circuits.show.sections import Section
    from circuits.show.tables import visible

    with progress() as note:
        result = verify(path, device=device, progress=note)
    if as_json:
        print_json({"holds": result.holds, **asdict(result)})
    else:
        print_sections(
            Section(lines=[visible(line, longest=2000) for line in str(result).splitlines()])
        )
    if not result.holds:
        raise Failure(
            f"{path} does not hold: {len(result.differences)} of {result.compared} facts differ"
        )
