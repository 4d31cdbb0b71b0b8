"""Tom and Ben went to the park. Ben gave the ball to: the published roles, one head each, in a real model.

Finding: on 12 pairs of names one head plays each role, always the same. L1H2 finds the first mention from the
second (effect 0.686, by its query); L4H4 moves what is known of the second mention to the end (0.932, by its
value, written first by M3); L5H1 moves the name (0.458), by its query (0.897), which L4H4 wrote in 12 of 12.
"""

from itertools import permutations
from pathlib import Path

import numpy as np

import circuits
from circuits.show import save_figure
from circuits.tracing.family import bootstrap

HERE = Path(__file__).parent / "indirect_object_circuit"
MODEL = "stories15m"
NAMES = ("Tom", "Ben", "Tim", "Sam")
TEXT = "{} and {} went to the park. {} gave the ball to"
IO, S2, END = 1, 9, 13
ROLES = {  # what each is known for, and the mapping that shows it
    "duplicate token": ("L1H2", IO, S2),
    "S-inhibition": ("L4H4", S2, END),
    "name mover": ("L5H1", IO, END),
}


def main() -> None:
    model = circuits.load(MODEL)
    for role, (head, key, query) in ROLES.items():
        whys = []
        first_carriers = []
        for name, repeated in permutations(NAMES, 2):
            text = TEXT.format(name, repeated, repeated)
            question = {
                "counterfactual": TEXT.format(name, repeated, name),
                "answer": name,
                "foil": repeated,
            }
            found = circuits.trace(model, text, key=key, query=query, **question)
            first_carriers += map(str, found.carriers()[:1])
            whys.append(circuits.why(found, head, model=model))
        print(f"\n{role}: {head}, position {key} to {query}, {len(whys)} pairs")
        print(f"  the first carrier in {first_carriers.count(head)} of {len(whys)} pairs")
        print(f"  {'effect of its message':<24}{interval([why.effect for why in whys])}")
        for side in circuits.SIDES:
            of_side = [why.side(side) for why in whys]
            first = [str(each.writers[0]) for each in of_side]
            commonest = max(set(first), key=first.count)
            effect = interval([each.effect for each in of_side])
            print(
                f"  {side + ' side':<24}{effect}  first writer {commonest} in {first.count(commonest)}"
            )
        save_figure(whys[0].figure(), HERE, formats=("png", "svg"), name=role.replace(" ", "_"))


def interval(values: list[float]) -> str:
    """Mean and 95% bootstrap interval."""
    (found,) = bootstrap(np.array([values]))
    return f"{found.mean:6.3f} [{found.low:6.3f}, {found.high:6.3f}]"


if __name__ == "__main__":
    main()
