"""How many heads and edges does a task take, in a dense model and in its sparse twin?

Finding: the twin takes fewer of both on every task. n90 heads, `mini` against `mini-sparse`: opposites 9 and
7, indirect object 23 and 16, greater-than 8 and 4, induction 42 and 23; edges 9 and 6, 38 and 30, 8 and 4,
275 and 61. The ratios (1.3× to 2.0× for heads, 1.3× to 4.5× for edges) are far below the published ones: the
dense `mini` is already concentrated on few edges.
"""

from pathlib import Path

import circuits
from circuits.show import comparison_grid, keep_curves, save_figure
from circuits.show.task_tables import task_comparison_table
from circuits.tasks import TASKS

HERE = Path(__file__).parent / "dense_against_sparse"
MODELS = ("mini", "mini-sparse")
SHOWN = "greater_than"


def main(tasks: tuple[str, ...] = TASKS, count: int | None = None) -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    found = {task: circuits.compare(*models, task=task, count=count) for task in tasks}
    print(task_comparison_table(list(found.values())))
    for path in save_figure(
        comparison_grid(found[SHOWN]), HERE, name="heads", formats=("png", "svg")
    ):
        print(path)
    for units in ("heads", "edges"):
        curves = keep_curves(found[SHOWN].ranking(units))
        for path in save_figure(
            curves.figure, HERE, name=f"curve-{units}", formats=("png", "svg")
        ):
            print(path)


if __name__ == "__main__":
    main()
