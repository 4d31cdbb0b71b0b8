"""Who reads which digit when a small model adds 3 6 + 2 8, and is the carry read only when there is one?

Finding: to be printed.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

import circuits
from circuits.show import mapping_figure, save_figure
from circuits.show.canvas import looks
from circuits.zoo import addition

HERE = Path(__file__).parent / "addition"
MODELS = ("addition", "addition-sparse")
SUMS = ((53, 21), (36, 28), (43, 59))
CARRY = {"counterfactual": "3 6 + 2 1 = 0", "answer": "6", "foil": "5", "key": 5}  # 36+21 has no carry
READS = {"hundreds": addition.HUNDREDS_AT, "tens": addition.TENS_AT, "units": addition.UNITS_AT}


def carry_table(models: list[circuits.Model]) -> None:
    """What is read of the units where the tens (and hundreds) are predicted, with a carry and without."""
    sides = addition.sums(held_out=True)
    carried = torch.tensor([addition.carries(*pair) for pair in sides])
    print(
        "model            predicts   units read, with carry   without   difference   (open edges; attention)"
    )
    for model in models:
        right, weights = addition.share_right(model.logits, sides), addition.attention(model, sides)
        for digit in ("hundreds", "tens"):
            for kind, read in zip(
                ("edges", "weight"), addition.units_read(weights, READS[digit]), strict=True
            ):
                yes, no = read[carried].mean(), read[~carried].mean()
                numbers = f"{yes:22.2f} {no:9.2f} {yes - no:+12.2f}"
                print(f"{model.name:16} {digit:10} {numbers}   {kind}; {right:.2%} of sums right")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    carry_table(models)
    with looks():
        figure = Figure(figsize=(9, 5), layout="constrained")
        for row, model in zip(figure.subplots(2, 3), models, strict=True):
            for axes, pair in zip(row, SUMS, strict=True):
                weights = addition.attention(model, [pair])[0].sum((0, 1))[list(READS.values())]
                axes.imshow(weights, cmap="Blues", vmin=0, vmax=6, aspect="auto")
                words = f"{addition.BOS} {addition.question(*pair)} {addition.answer(*pair)}".split()[:-1]
                axes.set_xticks(range(len(words)), words)
                axes.set_yticks(range(3), list(READS))
                axes.set_title(f"{model.name}: {pair[0]} + {pair[1]}", fontsize=9)
    save_figure(figure, HERE, ["png", "svg"], name="who_reads_which_digit")
    found = [circuits.trace(model, "3 6 + 2 8 = 0", **CARRY) for model in models]
    print(circuits.compare(*found))
    save_figure(mapping_figure(*found), HERE, ["png", "svg"], name="carry")


if __name__ == "__main__":
    main()
