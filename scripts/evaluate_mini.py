"""How well a model speaks the little language: `python scripts/evaluate_mini.py mini` prints a table."""

from __future__ import annotations

import argparse

from circuits.models.load import load
from circuits.zoo.evaluate import score_all, to_table


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Measure a speaker of the little language on held-out text."
    )
    parser.add_argument("model", nargs="?", default="mini", help="a name, a path or a hub id")
    print(to_table(score_all(load(parser.parse_args().model).logits)))


if __name__ == "__main__":
    main()
