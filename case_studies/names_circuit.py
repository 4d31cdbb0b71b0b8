"""The circuit that completes `… Ben gave the ball to` in stories15m, found on names and checked on other names.

Finding: 36 of 2,188 component edges keep 81% of the gap on 12 pairs (worst 0.58) and 85% on 4 that the search did
not see (worst 0.65). The strongest path has the published roles: L1H2 finds the duplicate, L4H4 inhibits it,
L5H1 moves the other name. As many random wires keep nothing.
"""

from itertools import permutations
from pathlib import Path
from random import Random

import circuits
from circuits.show import save_figure

HERE = Path(__file__).parent / "names_circuit"
MODEL = "stories15m"
NAMES = ("Tom", "Ben", "Tim", "Sam", "Max", "Anna")
PLACES = ("park", "beach", "zoo", "store")
THINGS = ("ball", "toy", "cake", "book")
TEXT = "{} and {} went to the {}. {} gave the {} to"
PAIRS = 16
ROLES = {
    "L1H2": "duplicate token",
    "L1H3": "duplicate token",
    "L4H4": "S-inhibition",
    "L5H1": "name mover",
}


def questions() -> list[dict[str, str]]:
    """Prompts with other names, places and things; in the counterfactual the other name gives."""
    draw = Random(0)
    named = draw.sample(list(permutations(NAMES, 2)), PAIRS)
    asked = []
    for name, repeated in named:
        place, thing = draw.choice(PLACES), draw.choice(THINGS)
        asked.append(
            {
                "prompt": TEXT.format(name, repeated, place, repeated, thing),
                "counterfactual": TEXT.format(name, repeated, place, name, thing),
                "answer": name,
                "foil": repeated,
            }
        )
    return asked


def main() -> None:
    model = circuits.load(MODEL)
    found = circuits.wiring(model, questions())
    print(found)
    save_figure(found.figure(names=ROLES), HERE, formats=("png", "svg"), name="wiring")
    for path in found.paths("embed", "logits")[:3]:
        print(" → ".join(path))


if __name__ == "__main__":
    main()
