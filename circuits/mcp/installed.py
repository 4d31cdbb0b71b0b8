"""Whether the package of the extra `mcp` is here."""

from __future__ import annotations

from importlib.util import find_spec

from circuits.errors import ModelError


def check_installed() -> None:
    """Raise an error that says what to install if the Python SDK of the protocol is missing."""
    if find_spec("mcp") is None:
        install = "pip install '.[mcp]' in a clone of circuits"
        raise ModelError(f"circuits mcp needs the package mcp, not installed here: {install}")
