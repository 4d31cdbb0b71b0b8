"""The pictures of docs/figures.md, from measured results: `python scripts/draw_gallery.py` draws all.

1. Each question is measured once and kept in `--records`; delete a folder there to measure it again.
2. `--check FOLDER` draws into another folder, to be looked at: each picture as it is, in greyscale, and as a
   reader with deuteranopia sees it (the matrix of Machado, Oliveira and Fernandes, 2009, in linear light).
"""

from __future__ import annotations

import argparse
import io
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from PIL import Image

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
DEUTERANOPIA = np.array(
    [
        [0.367322, 0.860646, -0.227968],
        [0.280085, 0.672501, 0.047413],
        [-0.011820, 0.042940, 0.968881],
    ]
)
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


def seen(picture: Image.Image) -> Image.Image:
    """As a reader with deuteranopia sees it."""
    values = np.asarray(picture.convert("RGB")) / 255.0
    linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
    changed = np.clip(linear @ DEUTERANOPIA.T, 0, 1)
    shown = np.where(
        changed <= 0.0031308, changed * 12.92, 1.055 * changed ** (1 / 2.4) - 0.055
    )
    return Image.fromarray((shown * 255).round().astype(np.uint8))


def check(folder: Path, name: str, data: bytes) -> None:
    """The picture three times: a wide one above itself, a high one beside itself."""
    plain = Image.open(io.BytesIO(data)).convert("RGB")
    three = [plain, plain.convert("L").convert("RGB"), seen(plain)]
    width, height = plain.size
    right, down = (0, height) if width > height else (width, 0)
    sheet = Image.new("RGB", (width + 2 * right, height + 2 * down), "white")
    for number, each in enumerate(three):
        sheet.paste(each, (number * right, number * down))
    folder.mkdir(parents=True, exist_ok=True)
    sheet.save(folder / name)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the gallery again.")
    parser.add_argument(
        "--records", type=Path, default=Path("runs/gallery"), help="where results are kept"
    )
    parser.add_argument(
        "--check", type=Path, help="draw into this folder, as different readers see it"
    )
    asked = parser.parse_args()
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name, draw_it in pictures(asked.records, "png" if asked.check else "svg"):
        data = png(draw_it())
        if asked.check:
            check(asked.check, name, data)
        else:
            (FOLDER / name).write_bytes(data)
        print(name)


if __name__ == "__main__":
    main()
