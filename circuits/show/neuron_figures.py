"""The neurons of one MLP as a picture and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.instruments.reading_records import READING
from circuits.show.canvas import (
    COLUMN,
    INK,
    LINE,
    MUTED,
    SMALL,
    effect_colour,
    figure_around,
    looks,
    new_axes,
)
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import asked_rows, model_words, token
from circuits.show.words import spell

if TYPE_CHECKING:
    from circuits.tracing.neuron_record import NeuronEffect, Neurons

_MOST_BARS: Final = 12
_MOST_TOKENS: Final = 3  # beside a bar


def neurons_figure(found: Neurons, *, ax: Axes | None = None) -> Figure:
    """The strongest neurons as bars, each with the tokens that it promotes; the whole MLP first.

    >>> axes = show.neurons_figure(circuits.neurons(found, "M0@5", model=model)).axes[0]
    >>> axes.get_yticklabels()[0].get_text()
    'whole M0@5'
    """
    shown = found.neurons[:_MOST_BARS]
    few, together = _half(found)
    bars = [(f"whole {found.name}", found.effect, ""), (f"first {few}", together, "")]
    bars += [(f"n{each.neuron}", each.effect, _tokens(each)) for each in shown]
    effects = [effect for _, effect, _ in bars]
    low, high = min(0.0, *effects), max(0.0, *effects)
    with looks():
        if ax is None:
            ax = new_axes(COLUMN, 0.85 + 0.15 * len(bars))
        colours = [INK, INK, *map(effect_colour, effects[2:])]
        ax.barh(range(len(bars)), effects, color=colours, height=0.7)
        ax.set_yticks(range(len(bars)), [name for name, _, _ in bars])
        for row, (_, effect, words) in enumerate(bars):
            label: dict[str, Any] = {"xytext": (2, 0), "textcoords": "offset points"}
            label |= {"va": "center", "fontsize": SMALL, "color": INK}
            text = f"{effect:z.3f}  {words}" if words else f"{effect:z.3f}"
            ax.annotate(text, (max(effect, 0.0), row), **label)
        ax.set_xlim(low, high + 0.25 * (high - low))
        ax.set_ylim(len(bars) - 0.4, -0.6)
        ax.axvline(0, color=LINE, linewidth=0.6)
        note = f"effect (share of the gap)\ntokens that a neuron raises: {READING}"
        ax.set_xlabel(note, fontsize=SMALL)
        ax.tick_params(axis="y", length=0)
        ax.tick_params(axis="x", color=MUTED)
        ax.spines[["top", "right", "left"]].set_visible(False)
        name = spell(found.source.name, longest=30)
        ax.set_title(f"{name}: {len(found.effects)} neurons of {found.name}", fontsize=SMALL)
    return figure_around(ax)


def _half(found: Neurons) -> tuple[int, float]:
    """The smallest measured number of strongest neurons that reach half of the MLP's effect."""
    for count, effect in found.joint:
        if abs(effect) >= abs(found.effect) / 2 and effect * found.effect >= 0:
            return count, effect
    return found.joint[-1]


def _tokens(each: NeuronEffect) -> str:
    return " ".join(spell(word, longest=9) for word in each.promotes[:_MOST_TOKENS])


def neurons_text(found: Neurons) -> str:
    """The neurons as plain text, 100 columns wide."""
    return plain(neurons_sections(found))


def neurons_sections(found: Neurons) -> list[Section]:
    """What was asked, how few neurons carry the MLP's effect, and the strongest of them."""
    where = (
        "at all positions" if found.position is None else f"at {token(found, found.position)}"
    )
    few, together = _half(found)
    lines = [
        f"{found.mlp} {where}: effect {found.effect:z.3f}, {len(found.effects)} neurons",
        f"the strongest {few} together: {together:z.3f}",
    ]
    asked = Section(model_words(found.source), lines, rows=asked_rows(found))
    rows = []
    for each in found.neurons:
        active = f"{each.activation:z.2f} / {each.counterfactual_activation:z.2f}"
        reads = ", ".join(f"{name} {part:z.2f}" for name, part in each.reads[:2])
        rows.append((f"n{each.neuron}", each.effect, active, reads, _tokens(each)))
    columns = (
        Column("neuron"),
        Column("effect", "z.3f"),
        Column("active clean / other", ">"),
        Column("reads"),
        Column("raises"),
    )
    note = [f"what a neuron reads and raises is {READING}"]
    return [asked, Section("The strongest neurons, each swapped alone", note, columns, rows)]
