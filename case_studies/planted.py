"""Does the toolkit find a circuit that is known to be there? Two planted models, whose weights were set by
hand.

Finding: in the sparse one the five planted heads L11H7 L10H1 L9H7 L9H1 L8H6 are found, and no others, at 80%
of key 5 → query 8, and `large`, `opposite` and the brackets are built in layers 0-3, 0-1 and 0-10 as planted;
the dense one needs 43 heads for 80%.
"""

from pathlib import Path

import circuits
from circuits.show import mapping_figure, save_figure, to_page
from circuits.zoo import planted

HERE = Path(__file__).parent / "planted"
MODELS = ("planted-dense", "planted-sparse")
GROUPS = {"brackets": (4, 6)}
OWN = {label: text for label, text in planted.COUNTERFACTUALS.items() if label != "large"}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    question = {"swap": planted.SWAP, "groups": GROUPS, "counterfactuals": OWN}
    found = [
        circuits.circuit(circuits.load(name), planted.PROMPT, **question) for name in MODELS
    ]
    print(circuits.compare(*found))
    sparse = found[1]
    carriers = " ".join(map(str, sparse.carriers()))
    print(f"planted: {' '.join(planted.PLANTED_CARRIERS)}")
    print(f"found:   {carriers} at {sparse.mapping().modulation():.0%}")
    for span in sparse.spans:
        print(span)
    figure = mapping_figure(*found, titles=("Planted, dense", "Planted, sparse"))
    for path in save_figure(figure, HERE, formats=("png", "svg")):
        print(path.relative_to(Path(__file__).parent))
    (HERE / "page.html").write_text(to_page(found, title="A planted circuit, recovered"))


if __name__ == "__main__":
    main()
