"""The same mapping in several models, as values for JSON and as one table."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from circuits.errors import PromptError
from circuits.show import listed, plural
from circuits.show.sections import Column, Section
from circuits.show.tables import ends_text, visible

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit


def comparison_values(circuits: Sequence[Circuit], *, share: float) -> list[dict[str, Any]]:
    """The same mapping in several models, for JSON.

    `overlap` lists the carriers that a model has in common with the first one. It is None where the two
    cannot be compared head by head.
    """
    values = []
    for circuit in circuits:
        mapping = circuit.mapping()
        carriers = [str(head) for head in mapping.carriers(share)]
        values.append(
            {
                "model": circuit.source.name,
                "key": mapping.key,
                "query": mapping.query,
                "total": mapping.total,
                "restore": mapping.restore,
                "share": share,
                "verdict": None if circuit.question is None else circuit.question.verdict,
                "reasons": [] if circuit.question is None else list(circuit.question.reasons),
                "withheld": list(mapping.doubts),
                "modulation": mapping.modulation(share),
                "heads": len(carriers),
                "carriers": carriers,
                "overlap": _overlap(circuits[0], circuit, share),
                "open_edges": circuit.source.open_edges,
                "edges": circuit.source.edges,
            }
        )
    return values


def comparison_section(circuits: Sequence[Circuit], *, share: float) -> Section:
    """The same mapping in several models, one row each."""
    columns = [
        Column("model"),
        Column("question"),
        Column("total", "z.2f"),
        Column(f"heads for {share:.0%}", "d"),
        Column("modulated", ".0%"),
        Column("open edges", ">"),
        Column("carriers"),
        Column("overlap"),
    ]
    rows = []
    lines = []
    for number, each in enumerate(comparison_values(circuits, share=share)):
        name = visible(each["model"])
        for reason in dict.fromkeys((*each["reasons"], *each["withheld"])):
            lines.append(f"{name}: {visible(reason, longest=400)}")
        shared = each["overlap"]
        if number == 0:
            overlap = "(itself)"
        elif shared is None:
            overlap = "not comparable"
        else:
            overlap = f"{plural(len(shared), 'head')} {' '.join(shared[:12])}"
        open_edges = f"{each['open_edges']} of {each['edges']}"
        carriers = listed(each["carriers"], most=12) or "none"
        modulation = "withheld" if each["withheld"] else each["modulation"]
        verdict = each["verdict"] or "not judged"
        row = [name, verdict, each["total"], each["heads"], modulation]
        rows.append([*row, open_edges, carriers, overlap])
    return Section(ends_text(circuits[0], circuits[0].mapping()), lines, columns, rows)


def _overlap(first: Circuit, second: Circuit, share: float) -> list[str] | None:
    """The carriers of the first circuit's mapping that also carry it in the second.

    None where the models differ in layers or heads, the prompts in length, or the second circuit does not
    have the mapping.
    """
    if (first.source.layers, first.source.heads) != (second.source.layers, second.source.heads):
        return None
    if len(first.prompt) != len(second.prompt):
        return None
    mapping = first.mapping()
    try:
        carriers = second.mapping(*mapping.ends).carriers(share)
    except PromptError:
        return None
    return [str(head) for head in mapping.carriers(share) if head in carriers]
