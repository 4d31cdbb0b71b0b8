"""A result as the answer of a tool: its verdict, its controls as sentences, its main numbers.

The sentences hold the numbers of the record; nothing is measured here.
"""

from __future__ import annotations

from functools import singledispatch
from typing import Any, Final

from circuits.checks.verify import Verification
from circuits.instruments.grids import Patching
from circuits.mcp.reply import LIMITS, Reply, ToolAnswer, to_text
from circuits.show.words import identity_words, plural, verdict_values
from circuits.tasks.ranking import Ranking
from circuits.tracing.records import Circuit
from circuits.tracing.why_record import Why
from circuits.wires.record import Wiring

_MOST: Final = 16  # rows of a list of numbers


def reply_to(tool: str, record: Any, *, saved: str | None = None) -> Reply:
    """The reply that holds a record which a tool measured. Its text has the controls in its tables."""
    is_judged = hasattr(record, "question")
    verdict = verdict_values(record) if is_judged else {}
    answer = ToolAnswer(
        verdict=verdict.get("verdict"),
        reasons=verdict.get("reasons", []),
        withheld=verdict.get("withheld", []),
        controls=controls_of(record),
        does_not_show=LIMITS[tool],
        result=saved,
        numbers=numbers_of(record),
    )
    return Reply(answer, to_text(str(record), answer))


# Controls


@singledispatch
def controls_of(record: Any) -> list[str]:
    """A sentence for each control that a record holds."""
    return []


@controls_of.register
def _(circuit: Circuit) -> list[str]:
    front = circuit.front
    if front is None or front.controls is None:
        return ["No mapping carries anything, so there is nothing to control."]
    controls = front.controls
    others = [total for key, total in enumerate(controls.key_totals) if key != front.key]
    lines = [
        f"As many random heads have an effect of {controls.random_mean:.3f} on average, 95th percentile "
        f"{controls.random_p95:.3f} of {controls.random_draws} draws.",
        f"The other direction (restore) has a total of {front.restore:.3f}, this one {front.total:.3f}.",
        f"The carriers alone leave {controls.sufficiency:.2f} of the total.",
        f"Clean patched into clean changes {identity_words(controls.identity)} of the gap.",
    ]
    if others:
        lines.append(f"The strongest other key has a total of {max(others):.3f}.")
    return lines


@controls_of.register
def _(why: Why) -> list[str]:
    lines = [f"The message of the edge has an effect of {why.effect:.3f}."]
    for side in why.sides:
        lines.append(
            f"The {side.side} side as a whole has an effect of {side.effect:.3f}, its "
            f"{plural(side.leading, 'leading writer')} together {side.together:.3f}."
        )
    return lines


@controls_of.register
def _(wiring: Wiring) -> list[str]:
    held_out = [pair.kept for pair in wiring.held_out]
    unseen = "No pair was held out."
    if held_out:
        mean = sum(held_out) / len(held_out)
        unseen = f"On {plural(len(held_out), 'held-out pair')} it keeps {mean:.3f}."
    return [
        unseen,
        f"{wiring.random.draws} circuits of as many random wires keep {wiring.random.mean:.3f} "
        f"on average, at most {wiring.random.largest:.3f}.",
        f"All other wires without this circuit keep {wiring.complement:.3f}.",
    ]


@controls_of.register
def _(patched: Patching) -> list[str]:
    return [
        f"Effects are shares of a gap of {patched.gap:.2f}: {patched.clean_value:.2f} on the clean prompt, "
        f"{patched.counterfactual_value:.2f} on the counterfactual.",
        f"Pairs that were left out because their gap is too small: {patched.weak}.",
    ]


@controls_of.register
def _(ranking: Ranking) -> list[str]:
    count, low, high = ranking.count()
    if count is None:
        return ["No number of units explains 90%."]
    return [
        f"{count} units explain 90%, {low} to {high} in 95% of the resamples of the pairs.",
        f"As many random units explain {ranking.random_at(count):.1%}.",
    ]


@controls_of.register
def _(verified: Verification) -> list[str]:
    lines = [f"{verified.compared} facts were compared, numbers to 0.001."]
    if verified.not_checked:
        lines.append(f"Not compared: {', '.join(verified.not_checked)}.")
    return lines


# Numbers


@singledispatch
def numbers_of(record: Any) -> dict[str, Any]:
    """The main numbers of a record."""
    return {}


@numbers_of.register
def _(circuit: Circuit) -> dict[str, Any]:
    mappings = []
    for mapping in circuit.mappings[:_MOST]:
        carriers = mapping.carriers(circuit.share)
        mappings.append(
            {
                "key": mapping.key,
                "query": mapping.query,
                "total": mapping.total,
                "restore": mapping.restore,
                "carriers": {str(head): mapping.effect_of(head).effect for head in carriers},
                "modulation": None if mapping.doubts else mapping.modulation(circuit.share),
            }
        )
    return {"gap": circuit.gap, "share": circuit.share, "mappings": mappings}


@numbers_of.register
def _(why: Why) -> dict[str, Any]:
    sides = {}
    for side in why.sides:
        writers = {str(writer): writer.effect for writer in side.writers[:_MOST]}
        sides[side.side] = {"effect": side.effect, "writers": writers}
    return {"head": str(why.head), "effect": why.effect, "weight": why.weight, "sides": sides}


@numbers_of.register
def _(wiring: Wiring) -> dict[str, Any]:
    return {
        "wires": len(wiring.wires),
        "all_wires": wiring.all_wires,
        "kept": wiring.kept,
        "enough": wiring.enough,
        "heads": [str(head) for head in wiring.heads],
        "strongest": {str(each.wire): each.value for each in wiring.wires[:_MOST]},
    }


@numbers_of.register
def _(patched: Patching) -> dict[str, Any]:
    names = [axis.name for axis in patched.axes]
    strongest = []
    for place, effect in patched.strongest(_MOST):
        strongest.append(dict(zip(names, place, strict=True)) | {"effect": effect})
    return {"gap": patched.gap, "sites": patched.sites, "strongest": strongest}


@numbers_of.register
def _(ranking: Ranking) -> dict[str, Any]:
    counts = {f"n{share:.0%}": ranking.count(share)[0] for share in (0.8, 0.9, 0.95)}
    first = {str(each.unit): each.effect for each in ranking.ranked[:_MOST]}
    return {"pairs": ranking.pairs, "units": ranking.units, "counts": counts, "first": first}


@numbers_of.register
def _(verified: Verification) -> dict[str, Any]:
    return {
        "holds": verified.holds,
        "compared": verified.compared,
        "differences": list(verified.differences[:_MOST]),
    }
