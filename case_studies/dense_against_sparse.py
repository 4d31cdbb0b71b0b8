"""How many heads and edges does a task take, in a dense model and in its sparse twin?

Finding: TO BE FILLED
"""

from pathlib import Path

import circuits
from circuits.contrasts import contrast
from circuits.render import contrast_grid, keep_curves, save_figure
from circuits.task_tables import contrast_table
from circuits.tasks import TASKS

HERE = Path(__file__).parent / "dense_against_sparse"
MODELS = ("mini", "mini-sparse")
SHOWN = "greater_than"


def main() -> None:
    HERE.mkdir(exist_ok=True)
    models = [circuits.load(name) for name in MODELS]
    found = {task: contrast(models, task) for task in TASKS}
    print(contrast_table(list(found.values())))
    for path in save_figure(contrast_grid(found[SHOWN]), HERE, name="heads", formats=("png", "svg")):
        print(path)
    for units in ("heads", "edges"):
        curves = keep_curves(found[SHOWN].ranking(units))
        for path in save_figure(curves.figure, HERE, name=f"curve-{units}", formats=("png", "svg")):
            print(path)


if __name__ == "__main__":
    main()
