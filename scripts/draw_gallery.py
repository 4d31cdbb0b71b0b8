"""The pictures of docs/figures.md and docs/instruments.md: `python scripts/draw_gallery.py` draws all.

1. Each question is measured once and kept in `--records`; delete a folder there to measure it again.
2. `--png FOLDER` draws all of them as PNG into another folder, for `scripts/view_figures.py`.
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

import circuits
from circuits.show import (
    circuit_figure,
    comparison_grid,
    draw,
    effect_map,
    keep_curves,
    mapping_figure,
    to_dot,
)
from circuits.show.canvas import looks

FOLDER = Path(__file__).parent.parent / "docs" / "figures"
OPPOSITE = 'The opposite of "large" is "'
NAMES = "When Mary and John went to the store, John gave a drink to"
STORY = "Tom and Ben went to the park. Ben gave the ball to"
LONG = (
    "Once upon a time, there were two boys named Tom and Ben. One day, Tom and Ben went to the big park. "
    "They saw a red ball under a tree. Ben gave the ball to"
)
HOT: dict[str, Any] = {"swap": {"large": "hot"}}
QUESTIONS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "opposite-mini": ("mini", OPPOSITE, HOT),
    "opposite-smollm2": ("smollm2", OPPOSITE, HOT | {"answer": "small", "foil": "cold"}),
    "names-stories15m": (
        "stories15m",
        STORY,
        {"counterfactual": STORY.replace(". Ben", ". Tom")},
    ),
    "names-smollm2": ("smollm2", NAMES, {"counterfactual": NAMES.replace(", John", ", Mary")}),
    "long-stories15m": ("stories15m", LONG, {"counterfactual": LONG.replace(". Ben", ". Tom")}),
}
SENDERS = "L1H5@14, L1H11@14, M0@14, M1@14 -> M2@14, M4@14, a5.h1<q>@14, logits"
ROLES = {"IO": 1, "S1": 3, "S2": 9, "END": -1}  # positions of STORY
HEADS = {  # what the published circuit calls heads that do this
    "L1H2": "duplicate token",
    "L1H3": "duplicate token",
    "L4H4": "S-inhibition",
    "L5H1": "name mover",
}
WORDS = {
    "large": "hot",
    "hot": "large",
    "old": "wet",
    "wet": "old",
    "rich": "cold",
    "cold": "rich",
}
TASKS = ("opposites", "indirect_object")
Pictures = Iterator[tuple[str, Callable[[], Figure | bytes]]]  # a name, and what draws it


def kept(folder: Path, kind: Any, measure: Callable[[], Any]) -> Any:
    """A result from its folder; measured and put there the first time."""
    if not folder.exists():
        measure().save(folder)
    return kind.load(folder)


def measured(name: str) -> circuits.Circuit:
    model, text, options = QUESTIONS[name]
    return circuits.circuit(circuits.load(model), text, **options)


def pictures(records: Path, graphviz: str) -> Pictures:
    for name in QUESTIONS:
        found = kept(records / name, circuits.Circuit, partial(measured, name))
        yield f"circuit-{name}.png", partial(circuit_figure, found)
        yield f"mapping-{name}.png", partial(mapping_figure, found)
        yield f"graphviz-{name}.{graphviz}", partial(draw, to_dot(found), graphviz)
    first = circuits.Circuit.load(records / next(iter(QUESTIONS)))
    yield "effects-opposite-mini.png", lambda: effect_map(first)
    yield from wires(records, graphviz)
    yield from tasks(records)
    yield from instruments()


def instruments() -> Pictures:
    """The maps of docs/instruments.md, asked as there."""
    mini = circuits.load("mini")
    pair = circuits.to_pair(mini, NAMES, counterfactual=NAMES.replace(", John", ", Mary"))
    yield "instruments-residual.png", circuits.patch(mini, pair, "residual").figure
    yield "instruments-paths.png", circuits.path(mini, pair, SENDERS).figure
    yield "instruments-lens.png", circuits.logit_lens(mini, NAMES).figure
    yield "instruments-scores.png", circuits.head_scores(mini).figure


def wires(records: Path, graphviz: str) -> Pictures:
    _, text, options = QUESTIONS["names-stories15m"]
    load = partial(circuits.load, "stories15m")
    wiring = kept(
        records / "wiring",
        circuits.Wiring,
        lambda: circuits.wiring(load(), text, roles=ROLES, **options),
    )
    yield "wiring-names-stories15m.png", partial(wiring.figure, names=HEADS)
    diagram = wiring.to_dot(names=HEADS)
    yield f"graphviz-wiring-names-stories15m.{graphviz}", partial(draw, diagram, graphviz)
    found = circuits.Circuit.load(records / "names-stories15m")
    why = kept(
        records / "why", circuits.Why, lambda: circuits.why(found, "L5H1", key=1, query=13)
    )
    yield "why-names-stories15m.png", why.figure


def tasks(records: Path) -> Pictures:
    both = circuits.load("mini"), circuits.load("mini-sparse")
    for task in TASKS:
        compared = circuits.compare(*both, task=task, units=("heads",), count=32)
        yield f"heads-{task}.png", partial(comparison_grid, compared)
        if task == TASKS[0]:
            yield f"heads-{task}-all.png", partial(comparison_grid, compared, all_heads=True)
            yield f"curves-{task}.png", partial(keep_curves, compared.ranking("heads"))
    traces = [circuits.trace(model, OPPOSITE, key="large", **HOT) for model in both]
    yield "mapping-two-models.png", partial(mapping_figure, *traces)
    yield "comparison.png", circuits.compare(*traces).figure
    prompts = [
        (OPPOSITE.replace("large", word), {"swap": {word: other}})
        for word, other in WORDS.items()
    ]
    pairs = [circuits.to_pair(both[0], text, **swap) for text, swap in prompts]
    yield "family.png", circuits.trace_family(both[0], pairs, key=5).figure
    lines = records / "words.jsonl"
    lines.write_text(
        "".join(json.dumps({"prompt": text, "key": 5, **swap}) + "\n" for text, swap in prompts)
    )
    yield "sweep.png", circuits.sweep(both[0], lines, records / "sweep").figure
    yield "stability.png", circuits.stability(both[0], OPPOSITE, key="large", **HOT).figure


def png(drawn: Figure | bytes) -> bytes:
    if isinstance(drawn, bytes):
        return drawn
    data = io.BytesIO()
    with looks():
        drawn.savefig(data, format="png", dpi=140, metadata={"Software": "keyquery-circuits"})
    return data.getvalue()


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the gallery again.")
    parser.add_argument(
        "--records", type=Path, default=Path("runs/gallery"), help="where results are kept"
    )
    parser.add_argument("--png", type=Path, help="draw into this folder, Graphviz as PNG too")
    asked = parser.parse_args()
    folder = asked.png or FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    for name, draw_it in pictures(asked.records, "png" if asked.png else "svg"):
        (folder / name).write_bytes(png(draw_it()))
        print(name)


if __name__ == "__main__":
    main()
