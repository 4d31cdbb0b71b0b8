"""v w A B C D v w A: which heads look for what followed A before, dense against sparse?

Finding: over 32 pairs B → END has a total of 0.713 on `mini-sparse`, and ten heads of layers 4 and 5 carry
84% of it; A → B, the step before, has 0.465. On one prompt 15 heads against 12, and 7920 open edges against
437: copying takes many heads in both models.
"""

from pathlib import Path

import circuits
from circuits.show import mapping_figure, save_figure
from circuits.tasks.task import to_task

HERE = Path(__file__).parent / "induction"
MODELS = ("mini", "mini-sparse")


def main(families: tuple[str, ...] = MODELS) -> None:
    HERE.mkdir(exist_ok=True)
    shown = []
    for name in MODELS:
        model = circuits.load(name)
        alike = to_task(model, "induction", count=32).alike
        pairs = [item.pair for item in alike]
        if name in families:
            for key, query in (("A", "B"), ("B", "END")):
                ends = {"key": alike[0].position(key), "query": alike[0].position(query)}
                print(f"{key} → {query}:", circuits.trace(model, pairs, **ends), "\n")
        first = pairs[0]
        question = {"answer": first.metric.answer_text, "foil": first.metric.foil_text}
        question["counterfactual"] = first.counterfactual.text
        shown.append(circuits.circuit(model, first.clean.text, **question))
    print(circuits.compare(*shown))
    for path in save_figure(mapping_figure(*shown), HERE, formats=("png", "svg")):
        print(path)


if __name__ == "__main__":
    main()
