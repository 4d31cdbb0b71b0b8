"""Divergence against open edges, for every training of a twin of `stories15m` that was tried.

1. `python scripts/draw_frontier.py TWIN "how it was trained"` measures a twin and adds it to
   `scripts/frontier.jsonl`: 48 rows of 128 tokens that the original writes (those that `benchmarks/twins.py`
   begins with), and the prompts of `circuits.zoo.evaluate`.
2. `python scripts/draw_frontier.py` prints the table of all points and draws the figure of docs/twins.md.
"""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator
from matplotlib.transforms import Bbox

from circuits.files import to_markdown
from circuits.models.load import find
from circuits.show import canvas
from circuits.show.canvas import looks, save_figure
from circuits.show.plots import framed
from circuits.sparsify.attention import hard, logits_under
from circuits.sparsify.measure import measure
from circuits.sparsify.sampling import sample_rows
from circuits.zoo.evaluate import score_stories

POINTS = Path(__file__).with_name("frontier.jsonl")
FIGURES = Path(__file__).parent.parent / "docs" / "figures"
SHIPS = "stories15m-sparse"
DRAWN, ROWS, LENGTH, SEED = 128, 48, 128, 1
AIM = (0.65, 0.12)  # at most so many open edges a query and head, and so many nats
SLOPE = 0.1  # nats for each factor e in open edges, between the twin that ships and the sparsest one


@dataclass(frozen=True, slots=True)
class Point:
    """One twin: how it was trained, and what it keeps at how many open edges."""

    name: str
    recipe: str
    share: float  # of all edges
    edges: float  # a query and head
    divergence: float  # nats
    agreement: float
    indirect_objects: float

    @property
    def below(self) -> float:
        """Nats below the line of slope `SLOPE` through the twin that ships, at the same open edges."""
        ships = next(point for point in read_points() if point.name == SHIPS)
        return ships.divergence - SLOPE * math.log(self.edges / ships.edges) - self.divergence


def main() -> None:
    arguments = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    arguments.add_argument("twin", nargs="?", help="a twin to measure")
    arguments.add_argument("recipe", nargs="?", default="", help="how it was trained")
    asked = arguments.parse_args()
    if asked.twin:
        point = measured_point(asked.twin, asked.recipe)
        with POINTS.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(point)) + "\n")
    points = read_points()
    print(points_table(points))
    with looks():
        save_figure(frontier_figure(points), FIGURES, ["svg"], name="frontier-stories15m")


def read_points() -> list[Point]:
    lines = POINTS.read_text(encoding="utf-8").splitlines()
    return [Point(**json.loads(line)) for line in lines]


def measured_point(twin: str, recipe: str) -> Point:
    weights, original = find(twin), find("stories15m")
    rows = sample_rows(original, count=DRAWN, length=LENGTH, seed=SEED)[:ROWS]
    name = Path(twin).name
    found = measure(weights.model, original.model, [rows], name=name, original="stories15m")
    scores = score_stories(partial(logits_under, hard, weights.model), original.tokenizer)
    names = next(score.value for score in scores if score.name == "indirect objects")
    return Point(
        name=name,
        recipe=recipe,
        share=found.open_edges,
        edges=found.edges_per_query,
        divergence=found.divergence,
        agreement=found.agreement,
        indirect_objects=names,
    )


def points_table(points: list[Point]) -> str:
    rows = []
    for point in sorted(points, key=lambda point: -point.edges):
        rows.append(
            (
                f"{point.name}: {point.recipe}",
                f"{point.share:.2%}",
                f"{point.edges:.2f}",
                f"{point.divergence:.3f}",
                f"{point.below:+.3f}",
                f"{point.agreement:.1%}",
                f"{point.indirect_objects:.1%}",
            )
        )
    columns = ("twin", "open edges", "a query and head", "divergence, nats", "below the line")
    return to_markdown((*columns, "next token the same", "indirect objects"), rows)


def frontier_figure(points: list[Point]) -> Figure:
    """Every point with its name, the line through the twin that ships, and the aim as a shaded corner."""
    ships = next(point for point in points if point.name == SHIPS)
    left, right = 0.5, 1.3 * max(point.edges for point in points)
    edges, divergence = AIM
    reached = sum(point.edges <= edges and point.divergence <= divergence for point in points)
    figure = framed(
        None,
        (canvas.WIDTH * 0.75, 3.2),
        f"{reached or 'None'} of {len(points)} trainings of a twin of stories15m reaches the aim",
        f"divergence from the original against open edges a query and head, on rows of {LENGTH} tokens",
        notes=f"Red: the twin that ships. Line: {SLOPE:g} nats for each factor e in open edges, through it. "
        f"Shaded: the aim, at most {edges:g} edges and {divergence:g} nats.",
    )
    axes = figure.subplots()
    ends = [ships.divergence - SLOPE * math.log(at / ships.edges) for at in (left, right)]
    axes.plot((left, right), ends, color=canvas.LINE, linewidth=1, zorder=1)
    axes.fill_between((left, edges), 0, divergence, color=canvas.shade(0.1), zorder=0)
    for point in points:
        colour = canvas.RED if point.name == SHIPS else canvas.BLUE
        axes.plot(point.edges, point.divergence, "o", color=colour, markersize=4)
    axes.set(
        xscale="log",
        xlim=(left, right),
        ylim=(0, 1.1 * max(point.divergence for point in points)),
        xlabel="open edges a query and head (log scale)",
        ylabel="divergence (nats)",
    )
    ticks = [tick for tick in (0.5, 0.65, 1, 1.5, 2, 3) if tick <= right]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.xaxis.set_minor_locator(NullLocator())
    axes.spines[["top", "right"]].set_visible(False)
    write_names(axes, points)
    return figure


def write_names(axes: Axes, points: list[Point]) -> None:
    """Write each point's name beside it, where neither a point nor another name is."""
    figure = canvas.figure_around(axes)
    figure.draw_without_rendering()  # so that the place of each point is known
    taken = []
    for point in points:
        x, y = axes.transData.transform((point.edges, point.divergence))
        reach = 3 * figure.dpi / 72
        taken.append(Bbox.from_extents(x - reach, y - reach, x + reach, y + reach))
    for point in points:
        for across, up in ((5, 3), (-5, 3), (5, -3), (-5, -3)):
            name = axes.annotate(
                point.name,
                (point.edges, point.divergence),
                (across, up),
                textcoords="offset points",
                fontsize=canvas.SMALL,
                color=canvas.INK,
                ha="left" if across > 0 else "right",
                va="bottom" if up > 0 else "top",
            )
            box = name.get_window_extent()
            if not any(box.overlaps(other) for other in taken):
                break
            name.remove()
        else:
            raise SystemExit(f"no space for the name of {point.name}")
        taken.append(box)


if __name__ == "__main__":
    main()
