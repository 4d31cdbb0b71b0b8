"""The pictures of docs/figures.md, from measured circuits: `python scripts/draw_gallery.py` draws all."""

from __future__ import annotations

import argparse
from pathlib import Path

import circuits
from circuits.show import circuit_figure, comparison_grid, draw, mapping_figure, to_dot
from circuits.show.canvas import looks
from circuits.tracing.wiring_record import Wiring

OPPOSITE = 'The opposite of "large" is "'
NAMES = "When Mary and John went to the store, John gave a drink to"
LONG = (
    'Mary wrote "hot" on the wall . The tree near the park was tall . Yesterday John waited for a long time '
    '. The dog was old . The opposite of "large" is "'
)
STORY = "Tom and Ben went to the park. Ben gave the ball to"
TASKS = ("opposites", "indirect_object")
FOLDER = Path(__file__).parent.parent / "docs" / "figures"


def save(figure, name: str) -> None:
    with looks():
        figure.savefig(FOLDER / f"{name}.png", dpi=140, metadata={"Software": "keyquery-circuits"})


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the gallery again.")
    parser.add_argument("--records", type=Path, default=Path("runs/gallery"), help="where circuits are kept")
    records = parser.parse_args().records
    swap = {"large": "hot"}
    questions = {
        "opposite-mini": ("mini", OPPOSITE, {"swap": swap}),
        "long-mini": ("mini", LONG, {"swap": swap}),
        "opposite-smollm2": ("smollm2", OPPOSITE, {"swap": swap, "answer": "small", "foil": "cold"}),
        "names-stories15m": ("stories15m", STORY, {"counterfactual": STORY.replace(". Ben", ". Tom")}),
        "names-smollm2": ("smollm2", NAMES, {"counterfactual": NAMES.replace(", John", ", Mary")}),
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, (model, text, options) in questions.items():
        if not (records / name / "circuit.json").exists():
            circuits.circuit(circuits.load(model), text, **options).save(records / name)
        found = circuits.Circuit.load(records / name)
        save(circuit_figure(found), f"circuit-{name}")
        save(mapping_figure(found), f"mapping-{name}")
        draw(to_dot(found), FOLDER / f"graphviz-{name}.svg")
    if not (records / "wiring" / "wiring.json").exists():
        _, _, options = questions["names-stories15m"]
        circuits.wiring(circuits.load("stories15m"), STORY, **options).save(records / "wiring")
    save(Wiring.load(records / "wiring").figure(), "wiring-names-stories15m")
    both = circuits.load("mini"), circuits.load("mini-sparse")
    for task in TASKS:
        compared = circuits.compare(*both, task=task, units=("heads",), count=32)
        save(comparison_grid(compared), f"heads-{task}")
        if task == TASKS[0]:
            save(comparison_grid(compared, all_heads=True), f"heads-{task}-all")


if __name__ == "__main__":
    main()
