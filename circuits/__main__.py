"""`python -m circuits` is the command line."""

from circuits.cli import main

main()
