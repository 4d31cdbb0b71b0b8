"""Which heads read "large" when the model completes: The opposite of "large" is " — in a dense model and in
its sparse twin.

Finding: on `mini` six heads of layers 3 to 5 (L5H1 L4H0 L5H0 L5H3 L4H5 L3H11) carry 80% of key 5 → query 8,
whose total is 1.00, none alone more than 0.08. On `mini-sparse`, with 53 of 6480 edges open, five (L5H1 L4H0
L1H1 L5H3 L4H5) carry 92%, four of them the same. With other quoted words in front and between the six carry
81% on `mini`, and L4H0 L5H1 L5H3 carry 90% on `mini-sparse`.
"""

from pathlib import Path

import circuits
from circuits.show import mapping_figure, save_figure, to_page

HERE = Path(__file__).parent / "opposite_of_large"
MODELS = ("mini", "mini-sparse")
TEXT = 'The opposite of "large" is "'
FAR = 'Tom wrote "cold" on the wall . The opposite of "large" , not of "wet" , is "'
SWAP = {"large": "hot"}
OWN = {"opposite": 'The colour of "large" is "'}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    question = {"swap": SWAP, "groups": {"brackets": (4, 6)}, "counterfactuals": OWN}
    near = [circuits.circuit(model, TEXT, **question) for model in models]
    print(*near, sep="\n\n")
    print("\nWith other words in front and between:")
    for model in models:
        far = circuits.trace(model, FAR, key="large", query=-1, swap=SWAP).mapping()
        carried = f"{far.modulation():.0%} by {' '.join(map(str, far.carriers()))}"
        print(
            f"{model.name}: {far.key} → {far.query}, total {far.total:.2f}, modulated at {carried}"
        )
    print(f"\n{circuits.compare(*near)}\n")
    for circuit in near:
        circuit.save(HERE / circuit.source.name)
    for path in save_figure(mapping_figure(*near), HERE, formats=("png", "svg")):
        print(path)
    page = HERE / "page.html"
    page.write_text(to_page(near))
    print(page)


if __name__ == "__main__":
    main()
