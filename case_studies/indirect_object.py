"""When Mary and John went to the store, John gave a drink to: which heads read the repeated name, dense
against sparse?

Finding: over 36 pairs five heads (L0H10 L0H5 L0H11 L1H11 L2H3) carry 82% of S2 → END on `mini`, whose total
is 0.929, and four (L0H5 L0H10 L0H11 L5H7) carry 85% on `mini-sparse`, whose total is 0.915. On the prompt
above three heads remain, two of them with the mapping's cell alone in their maps.
"""

from pathlib import Path

import circuits
from circuits.show import mapping_figure, save_figure
from circuits.tasks.task import to_task

HERE = Path(__file__).parent / "indirect_object"
MODELS = ("mini", "mini-sparse")
TEXT = "When Mary and John went to the store, John gave a drink to"
OTHER = "When Mary and John went to the store, Mary gave a drink to"


def main() -> None:
    HERE.mkdir(exist_ok=True)
    shown = []
    for name in MODELS:
        model = circuits.load(name)
        alike = to_task(model, "indirect_object", count=96).alike
        pairs = [item.pair for item in alike]
        print(circuits.trace(model, pairs, key=alike[0].position("S2")), "\n")
        shown.append(
            circuits.circuit(model, TEXT, counterfactual=OTHER, answer="Mary", foil="John")
        )
    print(circuits.compare(*shown))
    for path in save_figure(mapping_figure(*shown), HERE, formats=("png", "svg")):
        print(path)


if __name__ == "__main__":
    main()
