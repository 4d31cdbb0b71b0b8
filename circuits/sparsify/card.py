"""The papers of a twin: its model card and the figure of its training (open edges, multiplier and gap over steps)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

from circuits.sparsify.measure import Sparsity, to_table
from circuits.sparsify.settings import Settings
from circuits.zoo.evaluate import Score

_GATE: Final = """an edge of attention is open where its scaled logit is above zero, and only open edges are read
(softmax over all keys, not renormalised). `circuits.load` applies the gate; plain `transformers` opens the weights without it."""


def write_card(
    path: Path,
    measured: Sparsity,
    made: dict[str, Any],
    scores: Sequence[Sequence[Score]],
    log: Sequence[dict[str, Any]],
) -> None:
    """Write the model card. `scores` are those of the original and of the twin, where there are any."""
    command = f"`circuits sparsify {measured.original} -o DIR`, with the settings below"
    settings = "\n".join(f"| {name} | {value} |" for name, value in made["settings"].items())
    parts = (
        f"# {measured.name}\n\nA sparse twin of {measured.original}: {_GATE}",
        "## Measured\n\n" + to_table(measured),
        *(["## Tasks, held-out prompts\n\n" + _scores_table(measured, *scores)] if scores else []),
        f"## Training\n\n{command}; {_pace(log)}. Text: {made['text']}.\n\n![open edges, multiplier and gap over steps](training.svg)",
        f"| setting | value |\n|---|---|\n{settings}",
        "## Open edges per layer\n\n" + layers_table(measured),
    )
    path.write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def _pace(log: Sequence[dict[str, Any]]) -> str:
    """How long it took, from the median step, so that pauses do not count."""
    ends = [(line["step"], line["time"]) for line in log]
    each = sorted(
        (after[1] - before[1]) / (after[0] - before[0])
        for before, after in pairwise(ends)
        if after[0] > before[0]
    )
    steps = ends[-1][0] if ends else 0
    return f"{steps} steps" + (
        f" of {each[len(each) // 2]:.2g} s, {steps * each[len(each) // 2] / 60:.0f} minutes" if each else ""
    )


def _scores_table(measured: Sparsity, original: Sequence[Score], twin: Sequence[Score]) -> str:
    lines = [f"| task | {measured.original} | {measured.name} | over |", "|---|---:|---:|---:|"]
    for before, after in zip(original, twin, strict=True):
        show = "{:.4f} nats" if before.name == "loss" else "{:.2%}"
        lines.append(
            f"| {before.name} | {show.format(before.value)} | {show.format(after.value)} | {before.count} |"
        )
    return "\n".join(lines)


def layers_table(measured: Sparsity) -> str:
    heads = len(measured.gated.per_head[0])
    lines = [
        f"| layer | all | {' | '.join(f'H{index}' for index in range(heads))} |",
        "|---|" + "---:|" * (heads + 1),
    ]
    for layer, (mean, shares) in enumerate(
        zip(measured.gated.per_layer, measured.gated.per_head, strict=True)
    ):
        lines.append(f"| L{layer} | {mean:.2%} | {' | '.join(f'{share:.2%}' for share in shares)} |")
    return "\n".join(lines)


def draw_training(log: Sequence[dict[str, Any]], settings: Settings, path: Path) -> None:
    """Three curves one above the other, with the budget as a line; the same log gives the same bytes."""
    from matplotlib import rc_context
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    steps = [line["step"] for line in log]
    with rc_context({"svg.hashsalt": "circuits", "font.size": 9}):
        figure = Figure(figsize=(6, 5.5))
        above, middle, below = figure.subplots(
            3, 1, sharex=True, gridspec_kw={"left": 0.14, "right": 0.97, "top": 0.97, "bottom": 0.09}
        )
        above.semilogy(
            steps, [100 * max(line["measured"]["open_edges"], 1e-6) for line in log], color="#1f4e9c"
        )
        above.set_ylabel("open edges, %")
        middle.semilogy(steps, [line["multiplier"] for line in log], color="#555555")
        middle.set_ylabel("multiplier λ")
        for axes in (above, middle):
            axes.yaxis.set_major_formatter("{x:g}")
            axes.yaxis.set_minor_formatter(NullFormatter())
        below.plot(steps, [line["gap"] for line in log], color="#b03030")
        below.plot(
            steps, [settings.budget(step) for step in steps], color="black", linestyle=":", linewidth=1
        )
        below.set_ylim(min(0.0, *(line["gap"] for line in log)), 4 * settings.budget(0) or None)
        below.set_ylabel("divergence, nats" if settings.constraint == "kl" else "loss gap, nats")
        below.set_xlabel("step")
        FigureCanvasSVG(figure).print_svg(str(path), metadata={"Date": None})
