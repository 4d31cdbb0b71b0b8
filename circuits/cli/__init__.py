"""The command line: `circuits.cli.app` has the list of commands and what happens when one fails."""

from circuits.cli.app import main

__all__ = ["main"]
