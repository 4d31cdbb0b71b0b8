"""`python -m circuits` and the command `circuits`: the command line, which takes a moment to be imported."""

import sys


def run() -> None:
    """Run the command line. Ctrl-C ends it in one line from the first moment on."""
    try:
        from circuits.cli import main

        main()
    except KeyboardInterrupt:
        sys.stderr.write("Error: interrupted\n")
        raise SystemExit(130) from None


if __name__ == "__main__":
    run()
