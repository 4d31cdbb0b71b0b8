"""`python -m circuits.sparsify MODEL -o DIR`: the same command as `circuits sparsify`."""

from __future__ import annotations

import sys

from circuits.errors import CircuitsError
from circuits.sparsify.command import sparsify_command

if __name__ == "__main__":
    try:
        sparsify_command()
    except CircuitsError as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(1)
