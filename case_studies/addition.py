"""Who reads which digit when a small model adds 3 6 + 2 8, and is the carry read only when there is one?

Finding: the dense model reads the units alike with and without a carry (32 edges in both); the twin, with
2.15% of its edges open and all held-out sums right, reads them where the tens are predicted by 1.37 edges
with a carry and 0.85 without, and for the hundreds by 1.06 and 0.45. In 36 + 28 one head, L1H3, carries 99%
of the carry in the twin (11 of 576 edges are open), and three carry 88% in the dense model.
"""

from pathlib import Path

import numpy as np

import circuits
from circuits.show import mapping_figure, save_figure
from circuits.show.canvas import colormap, looks
from circuits.show.plots import framed
from circuits.tasks.patterns import attention_maps
from circuits.zoo import addition

HERE = Path(__file__).parent / "addition"
SUMS = [(53, 21), (36, 28), (43, 59)]
# 36+21 has no carry.
CARRY = {"counterfactual": "3 6 + 2 1 = 0", "answer": "6", "foil": "5", "key": 5}
DIGITS = ("hundreds", "tens", "units")  # of the sum, predicted at positions 6, 7 and 8
UNITS = [2, 5]  # where the units of both numbers stand
MOST = 6  # attention at the dark end of the scale, all heads together


def attention(model: circuits.Model, sums: list[tuple[int, int]]) -> np.ndarray:
    """What is read to predict each digit of a sum: (sum, layer, head, digit, key)."""
    prompts = [circuits.to_prompt(model, addition.written(*pair)[:-2]) for pair in sums]
    return np.stack(attention_maps(model, prompts))[..., 6:, :]


def main() -> None:
    models = [circuits.load(name) for name in ("addition", "addition-sparse")]
    sums = addition.sums(held_out=True)
    carried = np.array([first % 10 + second % 10 >= 10 for first, second in sums])
    print("model            predicts   edges from units, carry   without   difference")
    found = []
    for model in models:
        right = addition.share_right(model.logits, sums)
        # Open edges: (sum, digit)
        edges = (attention(model, sums)[..., UNITS] > 0).sum((1, 2, 4))
        for number, digit in enumerate(DIGITS[:2]):
            yes, no = edges[carried, number].mean(), edges[~carried, number].mean()
            if digit == "tens":
                found.append(
                    f"{yes:.2f} edges with a carry and {no:.2f} without in {model.name}"
                )
            print(
                f"{model.name:16} {digit:10} {yes:23.2f} {no:9.2f} {yes - no:+12.2f}   {right:.2%} right"
            )
    with looks():
        finding = f"For the tens the units are read by {', '.join(found)}"
        question = "which token is read to predict each digit of a sum; three sums with and without carries"
        figure = framed(None, (7, 3.4), finding, question)
        grid = figure.subplots(2, 3)
        for row, model in zip(grid, models, strict=True):
            for axes, pair, weights in zip(
                row, SUMS, attention(model, SUMS).sum((1, 2)), strict=True
            ):
                image = axes.imshow(weights, colormap(), vmin=0, vmax=MOST, aspect="auto")
                axes.set_xticks(range(9), [addition.BOS, *addition.written(*pair).split()[:-1]])
                axes.set(
                    yticks=range(3),
                    yticklabels=DIGITS,
                    title=f"{model.name}: {pair[0]} + {pair[1]}",
                )
        figure.colorbar(image, ax=grid, label="attention, all heads, one scale for both models")
    save_figure(figure, HERE, ["png", "svg"], name="who_reads_which_digit")
    traced = [circuits.trace(model, "3 6 + 2 8 = 0", **CARRY) for model in models]
    print(circuits.compare(*traced))
    save_figure(mapping_figure(*traced), HERE, ["png", "svg"], name="carry")


if __name__ == "__main__":
    main()
