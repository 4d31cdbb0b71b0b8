"""Do a dense model and its sparse twin compute a task the same way?

Finding: mostly. All 4 heads that the twin of stories takes are among the 6 of the dense model (0.67 by
chance), and its 27 attention edges, kept there alone, explain 97%; random ones nothing. On `mini` all 7 heads
are shared. On sums they are not: 3 of 4, as by chance, and the twin's edges explain 11%. Where a head does
the same in both, the first writer of what it reads is the same (M3@9 for L4H4 in the stories).
"""

import sys
from pathlib import Path

from transplant import same_writers, transplant, transplant_figure

import circuits
from circuits.show import save_figure
from circuits.sparsify.measure import original_of
from circuits.tasks.compare import to_same_task

STUDIES = Path(__file__).parent
HERE = STUDIES / "same_circuit"
OPPOSITE = {"text": 'The opposite of "large" is "', "swap": {"large": "hot"}, "key": "large"}
NAMES = "Tom and Ben went to the park. {} gave the ball to"
GIVEN = {"text": NAMES.format("Ben"), "counterfactual": NAMES.format("Tom"), "key": 9}
CARRY = {
    "text": "3 6 + 2 8 = 0",
    "counterfactual": "3 6 + 2 1 = 0",
    "answer": "6",
    "foil": "5",
    "key": 5,
}
BOTH = ("heads", "edges")
TWINS = {  # the task, how many pairs of it, its units, and the mapping whose writers are asked for
    "mini-sparse": ("opposites", 6, BOTH, OPPOSITE),
    "stories15m-sparse": (STUDIES / "stories" / "names.jsonl", 12, BOTH, GIVEN),
    "addition-sparse": (STUDIES / "addition" / "carries.jsonl", 12, BOTH, CARRY),
    "smollm2-sparse": ("indirect_object", 5, ("heads",), OPPOSITE),  # its edges are too many
}


def main(names: list[str] | None = None) -> None:
    transplants = {}
    for twin in names or TWINS:
        task, count, kinds, question = TWINS[twin]
        dense = circuits.load(original_of(twin) or twin)
        models = (dense, circuits.load(twin))
        tasks = to_same_task(models, task, count=count)
        transplants[dense.name] = [transplant(models, tasks, units) for units in kinds]
        print(f"\n{twin}, {tasks[0].name}, {len(tasks[0])} pairs")
        for line in (*transplants[dense.name], *same_writers(models, **question)):
            print(f"  {line}", flush=True)
    save_figure(transplant_figure(transplants), HERE, ["png", "svg"], name="same_circuit")


if __name__ == "__main__":
    main(sys.argv[1:])
