"""A circuit as readable text, for terminals, files and notebooks.

The question comes first, then the mapping that was asked for with its carriers and how far to trust it, then
the other mappings with a row each, and the spans.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from circuits.components import SIDES
from circuits.errors import CircuitsError
from circuits.show import (
    counterfactual_words,
    listed,
    metric_words,
    plural,
    spell,
    to_scene,
)
from circuits.show.sections import Column, Section, plain, section_html
from circuits.show.words import identity_words, verdict_lines
from circuits.tracing import CARRIES, SHARE

if TYPE_CHECKING:
    from circuits.instruments.grids import Patching, Paths
    from circuits.tracing import Controls, FamilyTrace, HeadEffect, Mapping, MeasuredModel, Span
    from circuits.tracing.neuron_record import Neurons
    from circuits.tracing.records import Circuit
    from circuits.tracing.why_record import Why
    from circuits.wires.record import Wiring

MOST_WORDS: Final = 200  # a longer prompt is not printed whole
SMALL: Final = 0.0005  # effects below this print as 0.000 and are not listed
_MOST_CARRIERS: Final = 16  # rows of the table; the line above it names all
_MOST_MAPPINGS: Final = 20  # rows of the table of other mappings
_MOST_OTHERS: Final = 5  # heads listed beside the carriers
_NEARLY_ALL: Final = 0.99  # of the total

# Text without the control characters that a terminal would obey.
visible = partial(spell, longest=80)


def to_text(circuit: Circuit) -> str:
    """The circuit as plain text, 100 columns wide."""
    return plain(circuit_sections(circuit))


def to_html(circuit: Circuit) -> str:
    """The circuit for a notebook: its diagram, if Graphviz is installed, above its tables."""
    tables = "".join(section_html(section) for section in circuit_sections(circuit))
    return f'<div style="max-width:70em">{_diagram(circuit)}{tables}</div>'


def _diagram(circuit: Circuit) -> str:
    """The Graphviz diagram as an SVG element; empty where Graphviz cannot draw it."""
    from circuits.show import dot

    try:
        drawn = dot.draw(dot.to_dot(circuit), "svg")
    except (CircuitsError, OSError, ImportError):
        return ""
    assert isinstance(drawn, bytes)
    picture = drawn.decode()
    element = picture[picture.index("<svg") :]
    return element.replace("<svg ", '<svg style="max-width:45em;height:auto" ', 1)


def circuit_sections(circuit: Circuit, *, share: float | None = None) -> list[Section]:
    """All sections of a circuit; `share` is by default the share at which it was measured."""
    if share is None:
        share = circuit.share
    front = circuit.front
    sections = [_question(circuit)]
    if front is None:
        sections.append(Section(f"no mapping carries {CARRIES:g} or more of the gap"))
    else:
        sections.append(_mapping(circuit, front, share))
        sections.append(_trust(circuit, front))
        others = [mapping for mapping in circuit.mappings if mapping is not front]
        if others:
            sections.append(_other_mappings(circuit, others, share))
    if circuit.spans:
        sections.append(_spans(circuit.spans))
    if circuit.stability is not None:
        sections.append(Section("Stability", str(circuit.stability).splitlines()))
    return sections


def _question(circuit: Circuit) -> Section:
    """The model, the verdict on the question, and what was compared."""
    source, output = circuit.source, circuit.output
    length = len(circuit.prompt)
    positions = (
        range(length) if length <= MOST_WORDS else to_scene(circuit).shown(most=MOST_WORDS)
    )
    words = ["…" if position is None else token(circuit, position) for position in positions]
    rows = [
        ("prompt", " ".join(words)),
        *asked_rows(circuit),
        (
            "output",
            f"{visible(output.token)}, probability {output.probability:z.2f}, layer {output.layer}",
        ),
    ]
    title = f"{model_words(source)}, {source.open_edges} of {source.edges} edges open"
    return Section(title, verdict_lines(circuit), rows=rows)


# Words that a circuit, a wiring and an answer of `why` have in common


def model_words(source: MeasuredModel) -> str:
    """`mini: 6 layers × 12 heads, dense`."""
    gate = "gated" if source.gated else "dense"
    return f"{visible(source.name)}: {source.layers} layers × {source.heads} heads, {gate}"


def asked_rows(result: Circuit | Wiring | Neurons | Patching | Paths) -> list[tuple[str, str]]:
    """The counterfactual, the metric with its values in both runs, and the ablation."""
    metric = metric_words(result, longest=80)
    values = (
        f"clean {result.clean_value:z.2f}, counterfactual {result.counterfactual_value:z.2f}"
    )
    rows = [
        ("counterfactual", counterfactual_words(result, longest=80)),
        ("metric", f"{metric}: {values}, gap {result.gap:z.2f}"),
    ]
    ablation = getattr(result, "ablation", None)
    return rows if ablation is None else [*rows, ("ablation", str(ablation))]


def token(result: Circuit | Why | Wiring | Neurons, position: int) -> str:
    """A token with its position: `large(5)`."""
    return f"{visible(result.prompt.words[position])}({position})"


def ends_text(circuit: Circuit, mapping: Mapping) -> str:
    """`large(5) → "(8)`."""
    return f"{token(circuit, mapping.key)} → {token(circuit, mapping.query)}"


# The mapping that was asked for


def _mapping(circuit: Circuit, mapping: Mapping, share: float) -> Section:
    """The total, the carriers, and a row for each carrier and each of the next strongest heads."""
    carriers = mapping.carriers(share)
    lines = _carrier_lines(mapping, share)
    if len(carriers) > _MOST_CARRIERS:
        lines.append(
            f"the first {_MOST_CARRIERS} of {len(carriers)} carriers and the next strongest heads:"
        )
    first = [mapping.effect_of(head) for head in carriers[:_MOST_CARRIERS]]
    others = []
    for each in sorted(mapping.heads, key=lambda each: -abs(each.effect)):
        if each.head not in carriers and abs(each.effect) >= SMALL:
            others.append(each)
    shown = first + others[:_MOST_OTHERS]

    columns = [Column("head"), Column("effect", "z.3f")]
    if mapping.sides:
        columns += [Column(side, "z.2f") for side in SIDES]
    columns += [
        Column("restore", "z.3f"),
        Column("loading", "z.3f"),
        Column("attention clean → other", ">"),
        Column("joint", "z.3f"),
    ]
    rows = [_head_row(mapping, each) for each in shown]
    total = f"{mapping.total:z.2f}"
    if circuit.family is not None:  # of a mean, the interval over its pairs
        total = str(circuit.family.totals[circuit.mappings.index(mapping)])
    title = f"{ends_text(circuit, mapping)}: total {total} (restore {mapping.restore:z.2f})"
    return Section(title + _unusual_total(mapping), lines, columns, rows, marked=len(first))


def _head_row(mapping: Mapping, each: HeadEffect) -> list[Any]:
    """Effects of one head; sides are measured for carriers only, `joint` for heads of the greedy path."""
    row: list[Any] = [each.head, each.effect]
    if mapping.sides:
        sides = {side.head: (side.query, side.key, side.value) for side in mapping.sides}
        row += sides.get(each.head, (None, None, None))
    loading = "not measured" if each.loading is None else each.loading
    attention = f"{each.weight:z.2f} → {each.counterfactual_weight:z.2f}"
    joint = {step.head: step.joint for step in mapping.path}
    return [*row, each.restore, loading, attention, joint.get(each.head)]


def _carrier_lines(mapping: Mapping, share: float) -> list[str]:
    """Which heads carry the mapping, and why if they reach less than `share` or cannot be trusted."""
    carriers = mapping.carriers(share)
    if not carriers:
        return [_no_carriers(mapping)]
    names = ", ".join(map(str, carriers))
    modulation = mapping.modulation(share)
    shortfall = ""
    if modulation < share:
        shortfall = f"; no further head helps, so {share:.0%} is not reached"
        if modulation >= _NEARLY_ALL:
            # Selection ends at 99.5% of the total, though another head might add a little.
            shortfall = f"; the path ends here, {1 - modulation:.1%} short of the total"
    if not mapping.doubts:
        return [f"Modulated at {modulation:.0%} by {names}{shortfall}"]
    reach = f"reach {modulation:.0%}" if shortfall else f"would reach {share:.0%}"
    return [
        f"Modulation withheld: {visible(mapping.doubts[0], longest=400)}",
        f"Heads that {reach} of the total: {names}{shortfall}",
    ]


def _no_carriers(mapping: Mapping) -> str:
    """Why a mapping has no carriers."""
    if mapping.total <= -CARRIES:
        return f"Works against the answer: a total of {mapping.total:.2f} has no carriers"
    if mapping.total < CARRIES or not mapping.heads:
        return "Carried by no head: a total this small has no carriers"
    strongest = sorted(mapping.heads, key=lambda each: -each.restore)[:_MOST_OTHERS]
    restored = ", ".join(f"{each.head} {each.restore:z.2f}" for each in strongest)
    return (
        "Carried by no head alone. The largest effects of single heads put back into the counterfactual: "
        f"{restored}. A logprob near 0 hides what single heads do; logit_diff does not"
    )


def _unusual_total(mapping: Mapping) -> str:
    """What a total outside 0…1 means."""
    if mapping.total > 1 + CARRIES:
        return ": it overshoots, other paths push back"
    if mapping.total <= -CARRIES:
        return ": it works against the answer"
    return ""


def _trust(circuit: Circuit, mapping: Mapping) -> Section:
    """How far to trust a mapping: heads against the answer, the linear measure, the controls."""
    opposed = [f"{each.head} {each.effect:z.3f}" for each in mapping.negative]
    direction = "for the answer" if circuit.gap < 0 else "against the answer"
    rows = [
        (direction, listed(opposed, most=_MOST_OTHERS) or "no head"),
        ("loading", _loading_words(mapping)),
    ]
    if mapping.controls is None:
        rows.append(("controls", "not measured on this mapping"))
    else:
        rows += _control_rows(circuit, mapping, mapping.controls)
    rows.append(("engine", f"{circuit.engine} path"))
    return Section("How far to trust it", rows=rows)


def _control_rows(
    circuit: Circuit, mapping: Mapping, controls: Controls
) -> list[tuple[str, str]]:
    rows = []
    if controls.random_draws:
        values = f"mean {controls.random_mean:z.3f}, 95th percentile {controls.random_p95:z.3f}"
        rows.append(("random heads", f"{values} of {_draws(mapping, controls)}"))
    totals = dict(enumerate(controls.key_totals))
    totals.pop(mapping.key, None)
    best = "there is none"
    if totals:
        key = max(totals, key=lambda key: totals[key])
        best = f"{token(circuit, key)} with a total of {totals[key]:z.3f}"
    rows.append(("best other key", best))
    if controls.random_draws:
        left = f"{controls.sufficiency:z.2f} of the total is left with the carriers alone"
        rows.append(("sufficiency", f"{left} (at a share of {controls.share:.0%})"))
    identity = identity_words(controls.identity)
    rows.append(("identity", f"{identity} (clean patched into clean)"))
    return rows


def _draws(mapping: Mapping, controls: Controls) -> str:
    """How many random heads were drawn how often, and what they were drawn from."""
    if controls.random_pool is None or controls.random_size is None:
        size = plural(len(mapping.carriers(controls.share)), "head")
        return f"{controls.random_draws} draws of {size} among all, carriers included"
    size = plural(controls.random_size, "head")
    pool = f"the {controls.random_pool} that are no carriers"
    return f"{controls.random_draws} draws of {size} among {pool}"


def _loading_words(mapping: Mapping) -> str:
    """How few heads hold most of the absolute loading."""
    loadings = [abs(each.loading) for each in mapping.heads if each.loading is not None]
    if not loadings:
        return "not measured: the plain path has none"
    if not any(loadings):
        return "no head has any"
    held = np.cumsum(sorted(loadings, reverse=True))
    wanted = np.array([0.5, SHARE, 0.95]) * held[-1]
    # The factor lets a sum that equals a share up to rounding count as having reached it.
    half, most, nearly_all = np.searchsorted(held, wanted * (1 - 1e-9)) + 1
    verb = "holds" if most == 1 else "hold"
    share = f"{plural(most, 'head')} {verb} {SHARE:.0%} of the absolute loading"
    return f"{share} ({half} for 50%, {nearly_all} for 95%)"


# The other mappings, and the spans


def _other_mappings(circuit: Circuit, mappings: Sequence[Mapping], share: float) -> Section:
    """A row for each of the other mappings, with two of its controls."""
    columns = [
        Column("mapping"),
        Column("total", "z.3f"),
        Column("restore", "z.3f"),
        Column("modulated", ".0%"),
        Column("carriers"),
        Column("random 95%", "z.3f"),
        Column("sufficiency", "z.2f"),
    ]
    rows = []
    for mapping in mappings[:_MOST_MAPPINGS]:
        modulation = "withheld" if mapping.doubts else mapping.modulation(share)
        carriers = listed([str(head) for head in mapping.carriers(share)], most=6) or "none"
        random = None if mapping.controls is None else mapping.controls.random_p95
        sufficiency = None if mapping.controls is None else mapping.controls.sufficiency
        row = [ends_text(circuit, mapping), mapping.total, mapping.restore, modulation]
        rows.append([*row, carriers, random, sufficiency])
    title = plural(len(mappings), "other mapping")
    if len(mappings) > _MOST_MAPPINGS:
        title += f", the strongest {_MOST_MAPPINGS}"
    return Section(title, (), columns, rows)


def _spans(spans: Sequence[Span]) -> Section:
    """A row for each span: the layers that hold and that write what the output needs."""
    columns = [
        Column("token"),
        Column("held in"),
        Column("built in"),
        Column("effect", "z.2f"),
        Column("moves", "z.2f"),
        Column("counterfactual"),
    ]
    rows = []
    for span in spans:
        label = f"{visible(span.label)}({', '.join(map(str, span.positions))})"
        held = "no layer" if span.layers is None else f"layer {span.layers[0]}-{span.layers[1]}"
        counterfactual = visible(span.counterfactual, longest=60)
        built = span.built_text or "no layer"
        rows.append((label, held, built, span.effect, span.moves, counterfactual))
    remarks = [visible(span.remark, longest=200) for span in spans if span.remark]
    return Section("Spans, in gaps of the pair", remarks, columns, rows)


# A family


def family_text(family: FamilyTrace) -> str:
    """A trace of a family as plain text: the verdict, the mean total, the carriers and the strongest heads."""
    mapping = family.mapping
    left_out = []
    if family.weak:
        left_out.append(f"{family.weak} more left out as weak")
    if family.wrong:
        left_out.append(f"{family.wrong} more left out on the wrong side")
    if family.repeated:
        left_out.append(f"{plural(family.repeated, 'repeat')} not counted")
    beside = f" ({', '.join(left_out)})" if left_out else ""
    pairs = plural(len(family.pairs), "pair")
    total = f"{mapping.key}→{mapping.query}: total {family.total}{_unusual_total(mapping)}"
    carriers = _carrier_lines(mapping, family.share)
    if family.carriers():
        carriers[0] += f": joint {family.joint}"
    lines = [f"{visible(family.model)}, {pairs}{beside}, {total}", *verdict_lines(family)]
    lines.append(f"ablation {family.ablation}")
    shown = family.heads[: max(5, len(family.carriers()))]
    heads = [f"  {head!s:8}{interval}" for head, interval in shown]
    return "\n".join([*lines, *carriers, *heads])
