"""Which heads read "large" when the model completes: The opposite of "large" is "

Finding: on `mini` six heads of layers 3 to 5 (L5H1 L4H0 L5H0 L5H3 L4H5 L3H11) carry 80% of key 5 → query 8, whose total is 1.00;
each alone has an effect of 0.08 or less. With other quoted words in front and between, the same six carry 81%.
"""

from pathlib import Path

import circuits
from circuits.render import mapping_figure, save_figure, to_page

HERE = Path(__file__).parent / "opposite_of_large"
MODEL = "mini"
TEXT = 'The opposite of "large" is "'
FAR = 'Tom wrote "cold" on the wall . The opposite of "large" , not of "wet" , is "'
SWAP = {"large": "hot"}
OWN = {"opposite": 'The colour of "large" is "'}


def main() -> None:
    HERE.mkdir(exist_ok=True)
    model = circuits.load(MODEL)
    near = circuits.circuit(model, TEXT, swap=SWAP, groups={"brackets": (4, 6)}, counterfactuals=OWN)
    far = circuits.trace(model, FAR, key="large", query=-1, swap=SWAP)
    print(near)
    print(f"\nWith other words in front and between, large({far.mapping().key}) → last({far.mapping().query}):")
    print(f"total {far.mapping().total:.2f}, modulated at {far.mapping().modulation():.0%} by {' '.join(map(str, far.carriers()))}")
    print(f"layers of its carriers: {sorted({head.layer for head in far.carriers()})}\n")
    near.save(HERE)
    for path in save_figure(mapping_figure(near), HERE, formats=("png", "svg")):
        print(path)
    page = HERE / "page.html"
    page.write_text(to_page(near))
    print(page)


if __name__ == "__main__":
    main()
