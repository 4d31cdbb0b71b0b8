"""The model card of a twin: its tables, and the figure of its training."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median_high
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from circuits.files import to_markdown
from circuits.show import canvas
from circuits.show.canvas import looks, save_figure
from circuits.sparsify.measure import Sparsity, length_rows
from circuits.sparsify.settings import Settings
from circuits.zoo.evaluate import Score

Log = Sequence[dict[str, Any]]


def layers_table(measured: Sparsity) -> str:
    """Open edges of each layer and head as a Markdown table."""
    gated = measured.gated
    rows = []
    for layer, heads in enumerate(gated.per_head):
        shares = [f"{share:.2%}" for share in (gated.per_layer[layer], *heads)]
        rows.append([f"L{layer}", *shares])
    names = [f"H{head}" for head in range(len(gated.per_head[0]))]
    return to_markdown(("layer", "all", *names), rows)


def lengths_table(measured: Sparsity) -> str:
    """Open edges on prompts of several lengths, as shares and a query and head, as a Markdown table."""
    names = (measured.original, measured.name)
    columns = ["tokens"]
    for name in names:
        columns += [f"{name}, open", "a query and head"]
    return to_markdown((*columns, "the last query"), length_rows(measured))


def write_card(
    path: Path,
    measured: Sparsity,
    flags: dict[str, Any],
    scores: Sequence[Sequence[Score]],
    log: Log,
) -> None:
    """Write the model card. `scores` are those of the original and of the twin, where there are any."""
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    settings = [f"| {name} | {value} |" for name, value in flags["settings"].items()]
    card = template.format(
        measured=measured,
        tasks=_tasks(measured, scores),
        duration=_duration(log),
        text=flags["text"],
        settings="\n".join(settings),
        layers=layers_table(measured),
        lengths=lengths_table(measured),
    )
    path.write_text(card, encoding="utf-8")


def _tasks(measured: Sparsity, scores: Sequence[Sequence[Score]]) -> str:
    """The section on tasks, if there are scores."""
    if not scores:
        return ""
    rows = []
    for before, after in zip(*scores, strict=True):
        rows.append((before.name, str(before), str(after), str(before.count)))
    table = to_markdown(("task", measured.original, measured.name, "over"), rows)
    return f"## Tasks, held-out prompts\n\n{table}\n\n"


def _duration(log: Log) -> str:
    """How long training took, by the median step, so that pauses do not count."""
    steps = log[-1]["step"] if log else 0
    paces = []  # seconds a step, between two lines of the log
    for start, end in pairwise(log):
        if end["step"] > start["step"]:
            paces.append((end["time"] - start["time"]) / (end["step"] - start["step"]))
    if not paces:
        return f"{steps} steps"
    pace = median_high(paces)
    return f"{steps} steps of {pace:.2g} s, {steps * pace / 60:.0f} minutes"


def draw_training(log: Log, settings: Settings, path: Path) -> None:
    """Three curves one above the other, with the budget as a line; the same log gives the same bytes."""
    steps = [line["step"] for line in log]
    gaps = [line["gap"] for line in log]
    budgets = [settings.budget(step) for step in steps]
    shares = [100 * max(line["measured"]["open_edges"], 1e-6) for line in log]
    with looks():
        figure = Figure(figsize=(6, 5.5), layout="constrained")
        above, middle, below = figure.subplots(3, 1, sharex=True)
        above.plot(steps, shares, color=canvas.BLUE)
        _set_logarithmic(above, "open edges, %")
        middle.plot(steps, [line["multiplier"] for line in log], color=canvas.MUTED)
        _set_logarithmic(middle, "multiplier λ")
        below.plot(steps, gaps, color=canvas.RED)
        below.plot(steps, budgets, "k:", linewidth=1)
        constrained = "divergence, nats" if settings.constraint == "kl" else "loss gap, nats"
        below.set(
            ylabel=f"{constrained}\n(dotted: budget)",
            xlabel="step",
            ylim=_limits(gaps, budgets, settings),
        )
    save_figure(figure, path.parent, ["svg"], name=path.stem)


def _set_logarithmic(axes: Any, label: str) -> None:
    axes.set(yscale="log", ylabel=label)
    axes.yaxis.set(
        major_locator=_ticks(*axes.get_ylim()), major_formatter="{x:g}", minor_formatter=""
    )


def _ticks(low: float, high: float) -> Locator:
    """Ticks of a logarithmic axis: powers of ten alone would leave a short one without a number."""
    if high < 10 * low:
        return MaxNLocator(4, steps=[1, 2, 5, 10])
    if high > 1000 * low:
        return LogLocator(subs=(1,))
    return LogLocator(subs=(1, 2, 5))


def _limits(
    gaps: list[float], budgets: list[float], settings: Settings
) -> tuple[float, float | None]:
    """The gaps from zero on, cut off at four budgets: a training may begin far above its budget."""
    highest = 1.1 * max(*gaps, *budgets)
    cut = 4 * settings.budget(0) or highest
    return min(0.0, *gaps), min(cut, highest) or None
