"""`circuits mcp`: the tools for agents, served over the standard streams."""

from __future__ import annotations

from pathlib import Path

import click
from click import option

from circuits.cli import options


@click.command("mcp")
@option(
    "--folder",
    type=options.path,
    required=True,
    metavar="DIR",
    help="The only folder whose files the tools read and write.",
)
@options.device
def mcp_command(folder: Path, device: str) -> None:
    """Serve these questions to agents as MCP tools over stdio."""
    from circuits.mcp import check_installed

    check_installed()
    from circuits.mcp.folder import GivenFolder
    from circuits.mcp.server import serve

    serve(GivenFolder.of(folder), device=device)
