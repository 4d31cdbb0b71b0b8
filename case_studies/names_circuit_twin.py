"""The circuit of the names in stories15m and in its sparse twin, by the same search on the same pairs.

Finding: 25 of 2,188 component edges keep 82% of the gap in the twin, 36 in the original keep 81%; 24 are in both.
The twin's circuit has neither L3H1 nor L2H2: its duplicate token heads write to the MLPs and to L4H4 directly.
The original's circuit keeps 90% in the twin, the twin's 45% in the original.
"""

from collections import Counter
from collections.abc import Set
from dataclasses import replace
from pathlib import Path

from names_circuit import ROLES, questions
from transplant import Overlap

import circuits
from circuits.show import save_figure

HERE = Path(__file__).parent / "names_circuit_twin"
MODELS = ("stories15m", "stories15m-sparse")
SHOWN = 6  # wires, the most valuable


def main() -> None:
    models = [circuits.load(name) for name in MODELS]
    found = [circuits.wiring(model, questions()) for model in models]
    for name, wiring in zip(MODELS, found, strict=True):
        print(wiring)
        print(f"strongest path: {' → '.join(wiring.paths('embed', 'logits')[0])}\n")
        save_figure(wiring.figure(names=ROLES), HERE, ["png"], name=name)
    wires = [{each.wire for each in wiring.wires} for wiring in found]
    print(f"wires in both: {Overlap.between(*wires, of=found[0].all_wires)}")
    for here, other in ((0, 1), (1, 0)):
        print_rest(found[here], found[other])
        # The other model's record with the wires of this one's circuit: they are run there.
        moved = replace(found[other], wires=found[here].wires)
        kept = moved.keeps(questions(), model=models[other])
        mean = sum(kept) / len(kept)
        print(
            f"  the whole circuit keeps {mean:.2f} in {MODELS[other]} (worst {min(kept):.2f})"
        )


def print_rest(wiring: circuits.Wiring, other: circuits.Wiring) -> None:
    """The wires and components of a circuit that the other one lacks."""
    lacking = {each.wire for each in wiring.wires} - {each.wire for each in other.wires}
    readers = Counter(wire.reader.kind for wire in lacking)
    into = ", ".join(f"{count} into {kind}" for kind, count in readers.most_common())
    print(f"\nin {wiring.source.name} alone: {len(lacking)} of {len(wiring.wires)} ({into})")
    print(f"  components: {' '.join(sorted(names_of(wiring) - names_of(other))) or 'none'}")
    valuable = [str(each) for each in wiring.wires if each.wire in lacking]
    print(f"  the most valuable: {', '.join(valuable[:SHOWN])}")


def names_of(wiring: circuits.Wiring) -> Set[str]:
    return {str(node) for node in wiring.nodes}


if __name__ == "__main__":
    main()
