"""How long pictures take: a deep circuit with many tokens and mappings, and hundreds of attention maps.

    .venv/bin/python benchmarks/figures.py [--clock cpu]

Each is drawn from a circuit at hand and written as one file, once to warm up and then `ROUNDS` times; the
median is printed beside the aim. The numbers in the circuits are made up (`tests/render_samples.py`).
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from render_samples import circuit_of, mapping_of, span_of

from circuits.components import Head
from circuits.show import (
    circuit_figure,
    draw,
    head_grid,
    mapping_figure,
    save_figure,
    to_dot,
    to_page,
    to_panel,
)
from circuits.tracing.records import Circuit

ROUNDS = 5
LAYERS, HEADS, TOKENS, MAPPINGS = 30, 9, 40, 12
CLOCKS = {"wall": time.perf_counter, "cpu": time.process_time}
ENDINGS = ("svg", "png", "pdf")


def deep_circuit() -> Circuit:
    """Twelve mappings, each carried by four heads in different layers, and as many spans."""
    words = tuple(f" word{position}" for position in range(TOKENS))
    mappings, spans = [], []
    for number in range(MAPPINGS):
        key, query = 3 * number, min(TOKENS - 1, 3 * number + 2 + number % 5)
        carriers = [
            Head((5 * number + 7 * step) % LAYERS, (number + step) % HEADS) for step in range(4)
        ]
        path = [(head, 0.2 * (step + 1)) for step, head in enumerate(carriers)]
        mappings.append(mapping_of(key, query, path, total=0.9 - 0.05 * number, controls=False))
        layers = (number, 2 * number + 4)
        spans.append(span_of(f"word{key}", (key,), layers, (layers,), LAYERS))
    look = {"layers": LAYERS, "heads": HEADS, "bos": False, "spans": tuple(spans)}
    return circuit_of(words, tuple(mappings), name="deep", **look)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--clock", choices=CLOCKS, default="wall", help="cpu counts the process's own time"
    )
    now, circuit = CLOCKS[parser.parse_args().clock], deep_circuit()
    every = [Head(layer, index) for layer in range(LAYERS) for index in range(HEADS)]
    panel = to_panel(circuit, every)
    size = f"{LAYERS} layers, {TOKENS} tokens, {MAPPINGS} mappings"
    with TemporaryDirectory() as kept:
        folder = Path(kept)
        for ending in ENDINGS:
            save = partial(save_figure, folder=folder, formats=[ending])
            report(
                f"circuit figure of {size}, .{ending}",
                3.0,
                now,
                lambda save=save: save(circuit_figure(circuit)),
            )
            report(
                f"mapping figure of the same, .{ending}",
                3.0,
                now,
                lambda save=save: save(mapping_figure(circuit)),
            )
            report(
                f"grid of {len(every)} maps, .{ending}",
                5.0,
                now,
                lambda save=save: save(head_grid(panel)),
            )
        report("page of the same circuit", 3.0, now, lambda: to_page(circuit))
        if now is time.perf_counter:  # Graphviz runs in a process of its own
            report(
                "Graphviz drawing of the same circuit, .svg",
                3.0,
                now,
                lambda: draw(to_dot(circuit), "svg"),
            )


def report(name: str, aim: float, now: Callable[[], float], act: Callable[[], object]) -> None:
    times = []
    for number in range(ROUNDS + 1):
        since = now()
        act()
        times += [now() - since] if number else []
    took = median(times)
    print(
        f"{name:66}{took:7.2f} s   aim < {aim:g} s   {'met' if took < aim else 'missed'}",
        flush=True,
    )


if __name__ == "__main__":
    main()
