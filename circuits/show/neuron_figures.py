"""The neurons of one MLP as a picture and as text."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from circuits.instruments.reading_records import READING
from circuits.show.canvas import COLUMN, figure_around, looks
from circuits.show.plots import axes_for, draw_bars
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import asked_rows, model_words, token
from circuits.show.words import question_words, spell

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
    names = [f"whole {found.name}", f"first {few}", *(f"n{each.neuron}" for each in shown)]
    effects = [found.effect, together, *(each.effect for each in shown)]
    notes = ["", "", *map(_tokens, shown)]
    low, high = min(0.0, *effects), max(0.0, *effects)
    carry = "neuron carries" if few == 1 else "neurons carry"
    finding = f"{few} of {len(found.effects)} {carry} {together:z.2f} of the {found.effect:z.2f} of {found.name}"
    question = question_words(found, found.source.name)
    with looks():
        ax = axes_for(ax, (COLUMN, 0.55 + 0.15 * len(names)), finding, question)
        draw_bars(ax, names, effects, whole=2, notes=notes)
        ax.set_xlim(low, high + 0.25 * (high - low))
        ax.set_ylim(len(names) - 0.4, -0.6)
        note = f"effect (share of the gap)\ntokens that a neuron raises: {READING}"
        ax.set_xlabel(note)
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
