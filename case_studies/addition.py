"""Who reads which digit when a small model adds 3 6 + 2 8, and is the carry read only when there is one?

Finding: the dense model reads the units alike with and without a carry (32 edges in both); the twin, with
2.15% of its edges open and all held-out sums right, reads them where the tens are predicted by 1.37 edges
with a carry and 0.85 without, and for the hundreds by 1.06 and 0.45. In 36 + 28 one head, L1H3, carries 99%
of the carry in the twin (11 of 576 edges are open), and three carry 88% in the dense model.
"""

from pathlib import Path

import torch
from matplotlib.figure import Figure

import circuits
from circuits.show import mapping_figure, save_figure
from circuits.show.canvas import colormap, looks
from circuits.zoo import addition

HERE = Path(__file__).parent / "addition"
MODELS = ("addition", "addition-sparse")
SUMS = ((53, 21), (36, 28), (43, 59))
CARRY = {"counterfactual": "3 6 + 2 1 = 0", "answer": "6", "foil": "5", "key": 5}  # 36+21 has no carry
READS = {"hundreds": addition.HUNDREDS_AT, "tens": addition.TENS_AT, "units": addition.UNITS_AT}


def carry_table(models: list[circuits.Model]) -> None:
    sides = addition.sums(held_out=True)
    carried = torch.tensor([addition.carries(*pair) for pair in sides])
    print("model            predicts   edges from units, carry   without   difference")
    for model in models:
        right, weights = addition.share_right(model.logits, sides), addition.attention(model, sides)
        for digit in ("hundreds", "tens"):
            read = addition.units_read(weights, READS[digit])
            yes, no = read[carried].mean(), read[~carried].mean()
            print(f"{model.name:16} {digit:10} {yes:23.2f} {no:9.2f} {yes - no:+12.2f}   {right:.2%} right")


def main() -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    carry_table(models)
    with looks():
        figure = Figure(figsize=(7, 3.6), layout="constrained")
        for row, model in zip(figure.subplots(2, 3), models, strict=True):
            for axes, pair in zip(row, SUMS, strict=True):
                weights = addition.attention(model, [pair])[0].sum((0, 1))[list(READS.values())]
                image = axes.imshow(weights, colormap(), vmin=0, vmax=2 if model.gated else 6, aspect="auto")
                words = f"{addition.BOS} {addition.question(*pair)} {addition.answer(*pair)}".split()
                axes.set_xticks(range(len(words) - 1), words[:-1])
                axes.set(yticks=range(3), yticklabels=READS, title=f"{model.name}: {pair[0]} + {pair[1]}")
            figure.colorbar(image, ax=row, label="attention, all heads")
    save_figure(figure, HERE, ["png", "svg"], name="who_reads_which_digit")
    found = [circuits.trace(model, "3 6 + 2 8 = 0", **CARRY) for model in models]
    print(circuits.compare(*found))
    save_figure(mapping_figure(*found), HERE, ["png", "svg"], name="carry")


if __name__ == "__main__":
    main()
