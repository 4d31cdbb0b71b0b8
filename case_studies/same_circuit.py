"""Do a dense model and its sparse twin compute a task the same way?

Finding: mostly. All 4 heads that the twin of stories takes are among the 6 of the dense model (0.67 by
chance), and its 27 attention edges, kept there alone, explain 97%; random ones nothing. On `mini` all 7 heads
are shared. On sums they are not: 3 of 4, as by chance, and the twin's edges explain 11%. Where a head does
the same in both, the first writer of what it reads is the same (M3@9 for L4H4 in the stories).
"""

import sys
from pathlib import Path

from matplotlib.figure import Figure

import circuits
from circuits.show import save_figure
from circuits.show.canvas import BLUE, LINE, MUTED, WIDTH, looks, shade
from circuits.sparsify.measure import original_of
from circuits.tasks.compare import to_same_task
from circuits.tasks.ranking import COUNTED
from circuits.tasks.sameness import Transplant, same_writers, transplant

HERE, STUDIES = Path(__file__).parent / "same_circuit", Path(__file__).parent
OPPOSITE = {"text": 'The opposite of "large" is "', "swap": {"large": "hot"}, "key": "large"}
NAMES = "Tom and Ben went to the park. {} gave the ball to"
GIVEN = {"text": NAMES.format("Ben"), "counterfactual": NAMES.format("Tom"), "key": 9}
CARRY = {"text": "3 6 + 2 8 = 0", "counterfactual": "3 6 + 2 1 = 0", "answer": "6", "foil": "5", "key": 5}
BOTH = ("heads", "edges")
TWINS = {  # the task, how many pairs of it, its units, and the mapping whose writers are asked for
    "mini-sparse": ("opposites", 6, BOTH, OPPOSITE),
    "stories15m-sparse": (STUDIES / "stories" / "names.jsonl", 12, BOTH, GIVEN),
    "addition-sparse": (STUDIES / "addition" / "carries.jsonl", 12, BOTH, CARRY),
    "smollm2-sparse": ("indirect_object", 5, ("heads",), OPPOSITE),  # its edges are too many
}

BARS = {"twins": BLUE, "own": shade(0.5), "random": LINE}  # whose circuit the dense model keeps
LABELS = ("the twin's", "as many of its own", "as many random")
STEP = 0.27  # between the three bars of a model


def bars(found: dict[str, list[Transplant]]) -> Figure:
    """What each dense model explains with its twin's heads alone and with its twin's edges alone."""
    kinds = max(map(len, found.values()))  # 1 where edges were measured in no model
    with looks():
        figure = Figure(figsize=(WIDTH * kinds / 2, 2.6), layout="constrained")
        for index, axes in enumerate(figure.subplots(1, kinds, sharey=True, squeeze=False)[0]):
            measured = {name: each[index] for name, each in found.items() if index < len(each)}
            for offset, (circuit, label) in enumerate(zip(BARS, LABELS, strict=True), -1):
                values = [getattr(each, circuit) for each in measured.values()]
                centres = [middle + STEP * offset for middle in range(len(values))]
                axes.bar(centres, values, 0.9 * STEP, color=BARS[circuit], label=label)
            names = [f"{name}\n{each.shared.sizes[1]} kept" for name, each in measured.items()]
            axes.set_xticks(range(len(names)), names)
            axes.set_title(f"{COUNTED[BOTH[index]]} kept in the dense model")
            axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
        figure.axes[0].set_ylabel("explained effect")
        figure.axes[0].legend()
    return figure


def main(names: list[str] | None = None) -> None:
    found = {}
    for twin in names or TWINS:
        task, count, kinds, question = TWINS[twin]
        models = circuits.load(original_of(twin) or twin), circuits.load(twin)
        tasks = to_same_task(models, task, count=count)
        found[models[0].name] = [transplant(models, tasks, units) for units in kinds]
        print(f"\n{twin}, {tasks[0].name}, {len(tasks[0])} pairs")
        for line in (*found[models[0].name], *same_writers(models, **question)):
            print(f"  {line}", flush=True)
    save_figure(bars(found), HERE, ["png", "svg"], name="same_circuit")


if __name__ == "__main__":
    main(sys.argv[1:])
