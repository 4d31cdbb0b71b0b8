"""What a dense model does with its twin's circuit, as bars beside its own circuit and a random one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

from matplotlib.figure import Figure

from circuits.show.canvas import BLUE, MUTED, RED, looks
from circuits.tasks.ranking import COUNTED
from circuits.tasks.sameness import Transplant

_KINDS: Final = {
    "twins": ("the twin's", BLUE),
    "own": ("as many of its own", MUTED),
    "random": ("as many random", RED),
}
_WIDTH: Final = 0.27  # of a bar; three stand together


def transplant_figure(found: Mapping[str, Sequence[Transplant]]) -> Figure:
    """One panel for each kind of unit; for each dense model, by name, three bars, where it was measured."""
    kinds = max(found.values(), key=len)
    with looks():
        figure = Figure(figsize=(4.2 * len(kinds), 3.4), layout="constrained")
        for index, axes in enumerate(figure.subplots(1, len(kinds), sharey=True, squeeze=False)[0]):
            names = [name for name, each in found.items() if index < len(each)]
            shown = [found[name][index] for name in names]
            for place, (name, (label, colour)) in enumerate(_KINDS.items(), -1):
                values = [getattr(each, name) for each in shown]
                places = [middle + _WIDTH * place for middle in range(len(shown))]
                axes.bar(places, values, 0.9 * _WIDTH, color=colour, label=label)
            labels = [f"{name}\n{each.shared.sizes[1]} kept" for name, each in zip(names, shown, strict=True)]
            axes.set_xticks(range(len(labels)), labels)
            axes.set_title(f"{COUNTED[kinds[index].units]} kept in the dense model", fontsize=9)
            axes.axhline(1, color=MUTED, linewidth=0.8, linestyle=":")
        figure.axes[0].set_ylabel("explained effect")
        figure.axes[0].legend(fontsize=7)
    return figure
