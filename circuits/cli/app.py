"""The command `circuits`: its commands, its exit codes, and one line for whatever goes wrong.

1. What was measured goes to stdout, as tables or with `--json` as one JSON value and nothing else. Progress,
   warnings and errors go to stderr.
2. Exit codes: 0 done, 1 a CircuitsError, 2 a wrong call, 130 interrupted, 143 terminated.
3. An output folder is filled aside and moved into place, so a command that fails leaves nothing behind.
4. Commands import torch and the like when they run, so that `--help` is fast.
"""

from __future__ import annotations

import io
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread
from typing import Any, Final

import click

from circuits import __version__
from circuits.cli.agents import mcp_command
from circuits.cli.compare import compare_command
from circuits.cli.instruments import patch_command, path_command, readings_command
from circuits.cli.output import Failure
from circuits.cli.prompts import (
    circuit_command,
    explore_command,
    models_command,
    tokens_command,
    trace_command,
    why_command,
    wiring_command,
)
from circuits.cli.saved import export_command, render_command, verify_command
from circuits.cli.sparsify import sparsify_command, sparsity_command
from circuits.cli.sweep import sweep_command
from circuits.cli.tasks import edges_command, heads_command, rank_command
from circuits.errors import CircuitsError, in_one_line

COMMANDS: Final = (  # in the order in which one needs them
    models_command,
    tokens_command,
    trace_command,
    circuit_command,
    compare_command,
    render_command,
    export_command,
    explore_command,
    heads_command,
    rank_command,
    edges_command,
    why_command,
    wiring_command,
    patch_command,
    path_command,
    readings_command,
    verify_command,
    sparsify_command,
    sparsity_command,
    sweep_command,
    mcp_command,
)


class Terminated(KeyboardInterrupt):
    """The process was told to end (SIGTERM); it cleans up as after Ctrl-C."""


class Commands(click.Group):
    """The commands in the order of `COMMANDS`; whatever goes wrong is one line and an exit code."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.commands)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args:  # click shows the help
            return super().parse_args(ctx, args)
        with one_line_failures():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: click.Context) -> Any:
        with one_line_failures():
            return super().invoke(ctx)


@contextmanager
def one_line_failures() -> Iterator[None]:
    """Turn an exception into one line on stderr and an exit code."""
    try:
        yield
    except CircuitsError as error:
        raise Failure(str(error)) from error
    except click.UsageError as error:
        command = "circuits" if error.ctx is None else error.ctx.command_path
        message = error.format_message().rstrip(".")
        raise Failure(f"{message}; see {command} --help", exit_code=2) from error
    except Terminated as error:
        raise Failure("terminated", exit_code=143) from error
    except KeyboardInterrupt as error:
        raise Failure("interrupted", exit_code=130) from error
    except BrokenPipeError:
        raise  # a reader such as `head` has seen enough, and click ends quietly
    except OSError as error:  # such as a full disk behind the standard output
        file = f": {error.filename}" if error.filename else ""
        raise Failure(f"{error.strerror or error}{file}") from error


@click.group(
    cls=Commands,
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 120,
        "show_default": True,
    },
)
@click.version_option(__version__, prog_name="circuits")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Which attention heads carry the mapping from this key position to that query position?"""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            # A terminal that cannot print → prints an escape for it.
            stream.reconfigure(errors="backslashreplace")
    ctx.with_resource(warnings.catch_warnings())
    warnings.showwarning = _print_warning
    if current_thread() is main_thread():  # no other thread may handle signals
        before = signal.signal(signal.SIGTERM, _terminate)
        ctx.call_on_close(lambda: signal.signal(signal.SIGTERM, before or signal.SIG_DFL))


def _print_warning(message: Warning | str, *_: object) -> None:
    click.echo(f"Warning: {in_one_line(str(message))}", err=True)


def _terminate(*_: object) -> None:
    raise Terminated


for command in COMMANDS:
    main.add_command(command)
