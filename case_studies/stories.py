"""A real language model and its sparse twin on the same sentence: Tom and Ben went to the park. Ben gave …

Finding: Ben(9) → to(13) is carried by L4H4 in both models, 92% in the dense one and 88% in the twin, which
has 271 of 3780 edges open. For 90% of such prompts the dense model takes 6 heads and the twin 4, all of them
among the 6 (L1H2 L1H3 L4H4 L5H1).
"""

from pathlib import Path

from matplotlib.figure import Figure

import circuits
from circuits.show import comparison_grid, mapping_figure, save_figure
from circuits.show.canvas import BLUE, MUTED, looks
from circuits.show.task_tables import task_comparison_table

HERE = Path(__file__).parent / "stories"
MODELS = ("stories15m", "stories15m-sparse")
TEXT = "Tom and Ben went to the park. {} gave the ball to"
LABELLED = 0.1  # heads whose effect is at least this in either model are named in the figure


def same_heads(effects: list[dict[str, float]]) -> Figure:
    """The effect of each head on the task, dense across and sparse upwards: alike lies on the diagonal."""
    with looks():
        figure = Figure(figsize=(3.4, 3.3), layout="constrained")
        axes = figure.subplots()
        axes.axline((0, 0), slope=1, color=MUTED, linewidth=0.8, linestyle=":")
        for head, dense in effects[0].items():
            sparse = effects[1][head]
            axes.plot(dense, sparse, "o", color=BLUE, markersize=4)
            if max(abs(dense), abs(sparse)) >= LABELLED:
                axes.annotate(
                    head, (dense, sparse), xytext=(4, 3), textcoords="offset points", fontsize=6
                )
        axes.margins(0.12)  # space for the names
        axes.set(
            xlabel=f"effect of the head in {MODELS[0]}",
            ylabel=f"effect of the head in {MODELS[1]}",
        )
    return figure


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
