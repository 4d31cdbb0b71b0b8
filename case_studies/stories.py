"""A real language model and its sparse twin on the same sentence: Tom and Ben went to the park. Ben gave …

Finding: Ben(9) → to(13) is carried by L4H4 in both models, 92% in the dense one and 88% in the twin, which
has 271 of 3780 edges open. For 90% of such prompts the dense model takes 6 heads and the twin 4, all of them
among the 6 (L1H2 L1H3 L4H4 L5H1).
"""

from pathlib import Path
from statistics import correlation

from matplotlib.figure import Figure

import circuits
from circuits.show import comparison_grid, mapping_figure, save_figure
from circuits.show.canvas import BLUE, COLUMN, MUTED, SMALL, figure_around, looks
from circuits.show.plots import axes_for
from circuits.show.task_tables import task_comparison_table

HERE = Path(__file__).parent / "stories"
MODELS = ("stories15m", "stories15m-sparse")
TEXT = "Tom and Ben went to the park. {} gave the ball to"
LABELLED = 0.1  # heads whose effect is at least this in either model are named in the figure


def same_heads(effects: list[dict[str, float]]) -> Figure:
    """The effect of each head on the task, dense across and sparse upwards: alike lies on the diagonal."""
    alike = correlation(*([each[head] for head in effects[0]] for each in effects))
    finding = f"Effects of {len(effects[0])} heads in both models: r = {alike:.2f}"
    question = "names: each head alone swapped, mean of all pairs"
    with looks():
        axes = axes_for(None, (COLUMN, 3.3), finding, question)
        axes.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, linestyle=":")
        for head, dense in effects[0].items():
            sparse = effects[1][head]
            axes.plot(dense, sparse, "o", color=BLUE, markersize=4)
            if max(abs(dense), abs(sparse)) >= LABELLED:
                above = sparse > dense  # then the name is at the left, away from the diagonal
                axes.annotate(
                    head,
                    (dense, sparse),
                    xytext=(-4, 3) if above else (4, -7),
                    textcoords="offset points",
                    fontsize=SMALL,
                    ha="right" if above else "left",
                )
        axes.margins(0.12)  # space for the names
        axes.set(
            xlabel=f"effect in {MODELS[0]} (share of the gap)",
            ylabel=f"effect in {MODELS[1]} (share of the gap)",
        )
        axes.spines[["top", "right"]].set_visible(False)
    return figure_around(axes)


def main() -> None:
    models = [circuits.load(name) for name in MODELS]
    question = {"counterfactual": TEXT.format("Tom"), "key": 9}
    found = [circuits.trace(model, TEXT.format("Ben"), **question) for model in models]
    print(circuits.compare(*found))
    save_figure(mapping_figure(*found), HERE, ["png", "svg"], name="mapping")
    task = circuits.compare(*models, task=HERE / "names.jsonl", units=("heads",))
    print(task_comparison_table([task]))
    save_figure(comparison_grid(task), HERE, ["png", "svg"], name="heads")
    effects = []
    needed = []
    for ranking in task.ranking("heads"):
        effects.append({str(each.unit): each.effect for each in ranking.ranked})
        needed.append(set(map(str, ranking.needed())))
    save_figure(same_heads(effects), HERE, ["png", "svg"], name="same_heads")
    shared = needed[0] & needed[1]
    either = needed[0] | needed[1]
    print(
        f"heads for 90%: {len(shared)} of {len(either)} are in both: {' '.join(sorted(shared))}"
    )


if __name__ == "__main__":
    main()
