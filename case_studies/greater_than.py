"""The war lasted from the year 1732 to the year 17: which heads bring the first year to the second, dense
against sparse?

Finding: over 32 pairs seven heads of layers 4 and 5 carry 80% of YY → END on `mini` (total 0.99) and five
carry 91% on `mini-sparse` (total 1.00); no single head has an effect above 0.03, so single-head patching
would miss them. On one prompt 8 heads against 4, and 13104 open edges against 40.
"""

from pathlib import Path

import circuits
from circuits.show import mapping_figure, save_figure
from circuits.tasks.task import to_task

HERE = Path(__file__).parent / "greater_than"
MODELS = ("mini", "mini-sparse")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    shown = []
    for name in MODELS:
        model = circuits.load(name)
        alike = to_task(model, "greater_than", count=32).alike
        pairs = [item.pair for item in alike]
        print(circuits.trace(model, pairs, key=alike[0].position("YY")), "\n")
        first = pairs[0]
        question = {
            "counterfactual": first.counterfactual.text,
            "metric": first.metric.function,
        }
        shown.append(circuits.circuit(model, first.clean.text, **question))
    print(circuits.compare(*shown))
    for path in save_figure(mapping_figure(*shown), HERE, formats=("png", "svg")):
        print(path)


if __name__ == "__main__":
    main()
