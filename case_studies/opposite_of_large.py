"""Which heads read "large" when the model completes: The opposite of "large" is " — in a dense model and in its sparse twin.

Finding: TO BE FILLED
"""

from pathlib import Path

import circuits
from circuits.render import mapping_figure, save_figure, to_page

HERE = Path(__file__).parent / "opposite_of_large"
MODELS = ("mini", "mini-sparse")
TEXT = 'The opposite of "large" is "'
FAR = 'Tom wrote "cold" on the wall . The opposite of "large" , not of "wet" , is "'
SWAP = {"large": "hot"}
OWN = {"opposite": 'The colour of "large" is "'}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    near = [circuits.circuit(model, TEXT, swap=SWAP, groups={"brackets": (4, 6)}, counterfactuals=OWN) for model in models]
    print(*near, sep="\n\n")
    print("\nWith other words in front and between:")
    for model in models:
        far = circuits.trace(model, FAR, key="large", query=-1, swap=SWAP).mapping()
        carried = f"{far.modulation():.0%} by {' '.join(map(str, far.carriers()))}"
        print(f"{model.name}: {far.key} → {far.query}, total {far.total:.2f}, modulated at {carried}")
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
