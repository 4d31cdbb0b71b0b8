"""Results as readable text: what is said of a circuit is decided here, once, for the terminal, for plain text and for notebooks.

1. The question comes first: model, prompt with every position, counterfactual, metric, output.
2. The mapping in front follows with its carriers and the next strongest heads, then how far to trust it.
3. Other mappings take a row each; the spans come last. In a notebook the diagram stands above.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final

from circuits.errors import CircuitsError, PromptError
from circuits.show import scene
from circuits.show.text import Block, plain, shown, visible
from circuits.show.text import to_html as to_html_block
from circuits.tracing.records import CARRIES, SHARE, HeadEffect, Mapping, Span

if TYPE_CHECKING:
    from rich.console import Group

    from circuits.tracing.records import Circuit

_MOST_WORDS: Final = 200  # tokens of a prompt that is printed whole
_MOST_CARRIERS: Final = 16  # rows of the table; the line above it names all
_MOST_MAPPINGS: Final = 20  # rows of the table of other mappings
_MOST_OTHERS: Final = 5  # next strongest heads, and heads against the answer


# Forms


def to_text(circuit: Circuit) -> str:
    """The circuit as plain text, 100 columns wide."""
    return plain(circuit_blocks(circuit))


def to_rich(circuit: Circuit, *, share: float | None = None) -> Group:
    """The circuit for a terminal; the carriers are those of `share`, by default the share that it was measured with."""
    return shown(circuit_blocks(circuit, share=share))


def to_html(circuit: Circuit) -> str:
    """The circuit for a notebook: its diagram, where Graphviz can draw it, above its tables."""
    share = _share_of(circuit, None)
    told = "".join(to_html_block(block) for block in circuit_blocks(circuit, share=share))
    return f'<div style="max-width:70em">{_diagram(circuit, share)}{told}</div>'


def _diagram(circuit: Circuit, share: float) -> str:
    from circuits.show.dot import draw, to_dot

    try:
        drawn = draw(to_dot(circuit, share=share), "svg")
    except (CircuitsError, OSError, ImportError):  # no Graphviz here: the tables say the same
        return ""
    assert isinstance(drawn, bytes)
    picture = drawn.decode()
    return picture[picture.index("<svg") :].replace("<svg ", '<svg style="max-width:45em;height:auto" ', 1)


# What is said of a circuit


def circuit_blocks(circuit: Circuit, *, share: float | None = None) -> list[Block]:
    """The question, the mapping in front with its heads and controls, the other mappings, and the spans."""
    front, share = scene.front(circuit), _share_of(circuit, share)
    told = [_question(circuit)]
    if front is None:
        told.append(Block(f"no mapping carries {CARRIES:g} or more of the gap"))
    else:
        others = [mapping for mapping in circuit.mappings if mapping is not front]
        told += [_mapping(circuit, front, share), _trust(circuit, front)]
        told += [_others(circuit, others, share)] if others else []
    return told + ([_spans(circuit)] if circuit.spans else [])


def _question(circuit: Circuit) -> Block:
    source, out = circuit.source, circuit.output
    gate = "gated" if source.gated else "dense"
    values = f"clean {circuit.clean_value:z.2f}, counterfactual {circuit.counterfactual_value:z.2f}, gap {circuit.gap:z.2f}"
    return Block(
        f"{visible(source.name)}: {source.layers} layers × {source.heads} heads, {gate}, {source.open_edges} of {source.edges} edges open",
        rows=(
            ("prompt", _sentence(circuit)),
            ("counterfactual", _counterfactual(circuit)),
            ("metric", f"{_metric(circuit)}: {values}"),
            ("output", f"{visible(out.token)}, probability {out.probability:z.2f}, layer {out.layer}"),
        ),
    )


def _sentence(circuit: Circuit) -> str:
    positions: Sequence[int | None] = range(len(circuit.prompt))
    if len(circuit.prompt) > _MOST_WORDS:
        positions = scene.shown_positions(circuit, most=_MOST_WORDS)
    return " ".join("…" if at is None else place(circuit, at) for at in positions)


def _counterfactual(circuit: Circuit) -> str:
    other = circuit.counterfactual
    words = getattr(other, "words", None)
    if words is None:
        return str(other)
    changed = [
        at for at, (clean, word) in enumerate(zip(circuit.prompt.words, words, strict=True)) if clean != word
    ]
    return _listed([f"{place(circuit, at)} → {visible(words[at])}" for at in changed], most=8)


def _metric(circuit: Circuit) -> str:
    metric = circuit.metric
    foil = None if metric.foil_text is None else visible(metric.foil_text)
    return str(replace(metric, answer_text=visible(metric.answer_text), foil_text=foil))


def _mapping(circuit: Circuit, mapping: Mapping, share: float) -> Block:
    """Total, carriers, and what the carriers and the next strongest heads do."""
    carriers = mapping.carriers(share)
    others = sorted(
        (h for h in mapping.heads if h.head not in carriers and abs(h.effect) >= 0.0005),
        key=lambda h: -abs(h.effect),
    )
    listed = [mapping.effect_of(head) for head in carriers[:_MOST_CARRIERS]]
    joint = {step.head: f"{step.joint:z.3f}" for step in mapping.path}
    return Block(
        f"{_ends(circuit, mapping)}: total {mapping.total:z.2f} (restore {mapping.restore:z.2f})",
        (_carried(mapping, share), *_cut(len(carriers))),
        ("head", "effect", "restore", "loading", "attention clean → counterfactual", "joint"),
        tuple(_head(known, joint.get(known.head, "")) for known in [*listed, *others[:_MOST_OTHERS]]),
        len(listed),
    )


def _carried(mapping: Mapping, share: float) -> str:
    carriers = mapping.carriers(share)
    if not carriers:
        return "Carried by no head: a total this small has no carriers"
    short = (
        ""
        if mapping.modulation(share) >= share
        else f"; no further head helps, so {share:.0%} is not reached"
    )
    return f"{scene.modulated(mapping, share)} {', '.join(map(str, carriers))}{short}"


def _cut(carriers: int) -> tuple[str, ...]:
    return (
        (f"the first {_MOST_CARRIERS} of {carriers} carriers and the next strongest heads:",)
        if carriers > _MOST_CARRIERS
        else ()
    )


def _head(known: HeadEffect, joint: str) -> tuple[str, ...]:
    weights = f"{known.weight:z.2f} → {known.counterfactual_weight:z.2f}"
    return (
        str(known.head),
        f"{known.effect:z.3f}",
        f"{known.restore:z.3f}",
        f"{known.loading:z.3f}",
        weights,
        joint,
    )


def _trust(circuit: Circuit, mapping: Mapping) -> Block:
    """How far to trust a mapping: heads against the answer, the linear measure, the controls."""
    against = _listed([f"{known.head} {known.effect:z.3f}" for known in mapping.negative], most=_MOST_OTHERS)
    first = ("against the answer", against or "no head"), ("loading", _mass(mapping))
    return Block(
        "How far to trust it",
        rows=(*first, *_controls(circuit, mapping), ("engine", f"{circuit.engine} path")),
    )


def _controls(circuit: Circuit, mapping: Mapping) -> list[tuple[str, str]]:
    known = mapping.controls
    if known is None:
        return [("controls", "not measured on this mapping")]
    count = len(mapping.carriers(known.share))
    drawn = f"mean {known.random_mean:z.3f}, 95th percentile {known.random_p95:z.3f} of {known.random_draws} draws of {_heads(count)}"
    others = [(total, -at) for at, total in enumerate(known.key_totals) if at != mapping.key]
    best = max(others, default=None)
    return [
        ("random heads", drawn if known.random_draws else "none drawn, as there are no carriers"),
        (
            "best other key",
            "there is none" if best is None else f"{place(circuit, -best[1])} with a total of {best[0]:z.3f}",
        ),
        (
            "sufficiency",
            f"{known.sufficiency:z.2f} of the total is left with the carriers alone (at a share of {known.share:.0%})",
        ),
        ("identity", f"{known.identity:.1e} (clean patched into clean)"),
    ]


def _mass(mapping: Mapping) -> str:
    """How few heads hold most of the absolute loading."""
    sizes = sorted((abs(known.loading) for known in mapping.heads), reverse=True)
    if not any(sizes):
        return "no head has any"
    counts = {share: _needed(sizes, share) for share in (0.5, SHARE, 0.95)}
    held = ", ".join(f"{count} for {share:.0%}" for share, count in counts.items() if share != SHARE)
    return f"{_heads(counts[SHARE])} {'hold' if counts[SHARE] > 1 else 'holds'} {SHARE:.0%} of the absolute loading ({held})"


def _needed(sizes: Sequence[float], share: float) -> int:
    wanted, held = share * sum(sizes) * (1 - 1e-9), 0.0
    for count, size in enumerate(sizes, 1):
        held += size
        if held >= wanted:
            return count
    return len(sizes)


def _others(circuit: Circuit, mappings: Sequence[Mapping], share: float) -> Block:
    """The mappings behind the one in front, one row each, with the two controls that decide."""
    rows = []
    for mapping in mappings[:_MOST_MAPPINGS]:
        known = mapping.controls
        told = ("", "") if known is None else (f"{known.random_p95:z.3f}", f"{known.sufficiency:z.2f}")
        names = _listed([str(head) for head in mapping.carriers(share)], most=6) or "none"
        numbers = (f"{mapping.total:z.3f}", f"{mapping.restore:z.3f}", f"{mapping.modulation(share):.0%}")
        rows.append((_ends(circuit, mapping), *numbers, names, *told))
    columns = ("mapping", "total", "restore", "modulated", "carriers", "random 95%", "sufficiency")
    cut = f", the strongest {_MOST_MAPPINGS}" if len(mappings) > _MOST_MAPPINGS else ""
    return Block(
        f"{len(mappings)} other mapping{'s' if len(mappings) > 1 else ''}{cut}",
        columns=columns,
        rows=tuple(rows),
    )


def _spans(circuit: Circuit) -> Block:
    columns = ("token", "held in", "built in", "effect", "counterfactual")
    return Block("Spans", columns=columns, rows=tuple(_span(span) for span in circuit.spans))


def _span(span: Span) -> tuple[str, ...]:
    held = "no layer" if span.layers is None else f"layer {span.layers[0]}-{span.layers[1]}"
    token = f"{visible(span.label)}({', '.join(map(str, span.positions))})"
    return (
        token,
        held,
        span.built_text or "no layer",
        f"{span.effect:z.2f}",
        visible(span.counterfactual, longest=60),
    )


# What is said of several circuits


def comparison_block(circuits: Sequence[Circuit], *, share: float) -> Block:
    """The same mapping in several models, one row each; overlap is with the first."""
    rows = []
    for circuit in circuits:
        mapping = circuit.mapping()
        names = _listed([str(head) for head in mapping.carriers(share)], most=12) or "none"
        numbers = (
            f"{mapping.total:z.2f}",
            str(len(mapping.carriers(share))),
            f"{mapping.modulation(share):.0%}",
        )
        opened = f"{circuit.source.open_edges} of {circuit.source.edges}"
        overlap = shared_carriers(circuits[0], circuit, share=share)
        told = "not comparable" if overlap is None else f"{_heads(len(overlap))} {' '.join(overlap[:12])}"
        rows.append((visible(circuit.source.name), *numbers, opened, names, told if rows else "(itself)"))
    columns = ("model", "total", f"heads for {share:.0%}", "modulated", "open edges", "carriers", "overlap")
    return Block(_ends(circuits[0], circuits[0].mapping()), columns=columns, rows=tuple(rows))


def shared_carriers(first: Circuit, second: Circuit, *, share: float) -> list[str] | None:
    """The carriers of a mapping in both, or None where the two prompts or models differ in shape."""
    from circuits.tasks.compare import compare

    if (first.source.layers, first.source.heads) != (second.source.layers, second.source.heads):
        return None
    try:
        return [str(head) for head in compare(first, second, share=share).overlap]
    except PromptError:
        return None


# Words


def place(circuit: Circuit, at: int) -> str:
    """A token with its position: `large(5)`."""
    return f"{visible(circuit.prompt.words[at])}({at})"


def _ends(circuit: Circuit, mapping: Mapping) -> str:
    return f"{place(circuit, mapping.key)} → {place(circuit, mapping.query)}"


def _heads(count: int) -> str:
    return f"{count} head{'' if count == 1 else 's'}"


def _listed(names: Sequence[str], *, most: int) -> str:
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return ", ".join(names[:most]) + more


def _share_of(circuit: Circuit, share: float | None) -> float:
    front = scene.front(circuit)
    if share is None:
        return SHARE if front is None or front.controls is None else front.controls.share
    return share
