"""Rankings and comparisons of tasks as readable text and as plain values for JSON: what is said of a task is decided here, once.

1. A ranking: the task, its protocol and what was left out; how many units each share takes, beside random orders; the strongest units.
2. Comparisons: one table with a row for each task and kind of unit; of a single task also all shares, the heads that both models take,
   and the panel's figures before and after.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any, Final

from circuits.heads import Head
from circuits.show.text import Block, plain, visible
from circuits.tasks.compare import TaskComparison
from circuits.tasks.patterns import PanelFigures, changed
from circuits.tasks.ranking import EXPLAINED, SHARES, Protocol, Ranking, random_count

_MOST_UNITS: Final = 16  # rows of the table of strongest units
_MOST_CHANGES: Final = 20
_NEVER: Final = "never"


# One ranking


def ranking_text(ranking: Ranking) -> str:
    """A ranking as plain text, 100 columns wide."""
    return plain(ranking_blocks(ranking))


def ranking_blocks(ranking: Ranking, panel: PanelFigures | None = None) -> list[Block]:
    """The question, the counts, and the strongest units, with a panel also the patterns of their heads."""
    return [_question(ranking), _counts(ranking), _strongest(ranking, panel)]


def _question(ranking: Ranking) -> Block:
    gate = "gated" if ranking.gated else "dense"
    none, whole = ranking.keep.explained[0], ranking.keep.explained[-1]
    return Block(
        f"{visible(ranking.task)} on {visible(ranking.model)} ({gate}): {ranking.pairs} pairs, {ranking.units:,} {ranking.protocol.units}",
        rows=(
            ("protocol", str(ranking.protocol)),
            ("left out", _left_out(ranking)),
            ("ends", f"none kept explain {_percent(none)}, all kept explain {_percent(whole)}"),
            (
                "areas",
                f"CPR {ranking.cpr:.3f} (under the curve), CMD {ranking.cmd:.3f} (between the curve and 1)",
            ),
        ),
    )


def _counts(ranking: Ranking) -> Block:
    units = ranking.protocol.units
    rows = []
    for share in SHARES:
        count = ranking.count(share)[0]
        chance = "" if count is None else _percent(ranking.random_at(count))
        rows.append((_name(share), _with_band(ranking, share), chance, _number(random_count(ranking, share))))
    return Block(
        f"{units.capitalize()} kept, in ranked order",
        columns=("share", units, "as many at random", "random order"),
        rows=tuple(rows),
    )


def _strongest(ranking: Ranking, panel: PanelFigures | None) -> Block:
    count = ranking.count(EXPLAINED)[0]
    listed = ranking.ranked[:_MOST_UNITS]
    rows = []
    for place, known in enumerate(listed, 1):
        head = known.unit if isinstance(known.unit, Head) else known.unit.head
        band = f"[{known.low:z.3f}, {known.high:z.3f}]"
        pattern = () if panel is None else (str(panel.pattern(head)),)
        rows.append((str(place), visible(str(known.unit)), f"{known.effect:z.3f}", band, *pattern))
    marked = 0 if count is None else min(count, len(rows))
    columns = (
        "",
        "head" if ranking.protocol.units == "heads" else "edge",
        "effect",
        "95%",
        *(("map",) if panel else ()),
    )
    cut = f", the first {len(listed)} of {len(ranking.ranked):,}" if len(ranking.ranked) > len(listed) else ""
    return Block(f"Single effects, strongest first{cut}", columns=columns, rows=tuple(rows), marked=marked)


# Comparisons


def contrast_blocks(found: Sequence[TaskComparison]) -> list[Block]:
    """One table of all tasks; of a single task also what is behind it."""
    told = [contrast_table(found), _protocols(found)]
    if len(found) == 1:
        told += [_shares(found[0]), _shared(found[0])]
        told += [
            _panels(found[0].needed, f"heads for {EXPLAINED:.0%}"),
            _panels(found[0].panels, "all heads"),
        ]
    return told


def contrast_table(found: Sequence[TaskComparison]) -> Block:
    """A row for each task and kind of unit: how many explain 90% in each model, the ratio, and how many it takes in random order."""
    first, second = (visible(name) for name in found[0].models)
    rows = []
    for each in found:
        for couple in each.rankings:
            units = couple[0].protocol.units
            chance = " / ".join(_number(random_count(ranking)) for ranking in couple)
            told = [_with_band(ranking, EXPLAINED) for ranking in couple]
            protocol = " / ".join(dict.fromkeys(_short(ranking.protocol) for ranking in couple))
            rows.append((visible(each.task), units, protocol, *told, _ratio(each.ratio(units)), chance))
    columns = (
        "task",
        "units",
        "protocol",
        f"{_name(EXPLAINED)} {first}",
        f"{_name(EXPLAINED)} {second}",
        "ratio",
        "random order",
    )
    mlps = " or ".join(
        dict.fromkeys(
            ranking.protocol.mlps for each in found for couple in each.rankings for ranking in couple
        )
    )
    return Block(
        f"How many explain {EXPLAINED:.0%}, MLPs {mlps}: {first} against {second}",
        columns=columns,
        rows=tuple(rows),
    )


def _protocols(found: Sequence[TaskComparison]) -> Block:
    """Every protocol of the table in words, and the pairs that were asked."""
    protocols = dict.fromkeys(
        ranking.protocol for each in found for couple in each.rankings for ranking in couple
    )
    rows = [(_short(protocol), str(protocol)) for protocol in protocols]
    for each in found:
        asked = ", ".join(f"{couple[0].pairs} for {couple[0].protocol.units}" for couple in each.rankings)
        whose = (
            "pairs that both models get right"
            if each.same_pairs
            else "pairs of each model's own, as their tokens differ"
        )
        left = [f"{visible(ranking.model)}: {_left_out(ranking)}" for ranking in each.rankings[0]]
        rows.append((visible(each.task), f"{asked} ({whose}); left out: {'; '.join(left)}"))
    return Block("What was measured", rows=tuple(rows))


def _shares(found: TaskComparison) -> Block:
    rows = []
    for couple in found.rankings:
        units = couple[0].protocol.units
        for share in SHARES:
            chance = (_number(random_count(ranking, share)) for ranking in couple)
            rows.append(
                (
                    units,
                    _name(share),
                    *(_with_band(each, share) for each in couple),
                    _ratio(found.ratio(units, share)),
                    *chance,
                )
            )
    first, second = map(visible, found.models)
    columns = ("units", "share", first, second, "ratio", f"random {first}", f"random {second}")
    return Block(
        "Counts, with the range of 95% of the bootstrap resamples", columns=columns, rows=tuple(rows)
    )


def _shared(found: TaskComparison) -> Block:
    """The heads that both take, and what became of their maps."""
    counts = [len(panel.heads) for panel in found.needed]
    title = f"Heads for {EXPLAINED:.0%}: {counts[0]} in {visible(found.models[0])}, {counts[1]} in {visible(found.models[1])}"
    if not found.comparable:
        return Block(title, ("the models differ in shape, so their heads cannot be set side by side",))
    either = len({*found.needed[0].heads, *found.needed[1].heads})
    line = f"{len(found.overlap)} of {either} in either are in both"
    rows = tuple(
        (str(each.head), str(each.before), str(each.after)) for each in found.changes[:_MOST_CHANGES]
    )
    more = (f"the first {_MOST_CHANGES}:",) if len(found.changes) > _MOST_CHANGES else ()
    return Block(title, (line, *more), ("head", *_map_columns(found)), rows)


def _map_columns(found: TaskComparison) -> tuple[str, str]:
    return f"map in {visible(found.models[0])}", f"map in {visible(found.models[1])}"


def _panels(couple: tuple[PanelFigures, PanelFigures], which: str) -> Block:
    """A panel's figures before and after."""
    first, second = (
        {**_facts(panel), **{f"maps: {kind}": str(count) for kind, count in panel.kinds}} for panel in couple
    )
    rows = tuple(
        (name, first.get(name, "0"), second.get(name, "0")) for name in dict.fromkeys((*first, *second))
    )
    return Block(
        f"What the maps show: {which}", columns=("", *(visible(panel.model) for panel in couple)), rows=rows
    )


def _facts(panel: PanelFigures) -> dict[str, str]:
    opened = _percent(panel.open_edges / panel.edges if panel.edges else 0.0)
    return {
        "heads": str(len(panel.heads)),
        "mass on the first token": _percent(panel.first_token),
        "mass on the diagonal": _percent(panel.diagonal),
        "heads with a dominant diagonal": _percent(panel.dominant_diagonal),
        "mean peak": f"{panel.mean_peak:.2f}",
        "heads with an off-diagonal weight above 0.5": f"{panel.peaked:.1f}",
        "sum of a row": f"{panel.mass:.2f}",
        "open edges": f"{panel.open_edges:,.0f} of {panel.edges:,.0f} ({opened})",
    }


# Plain values


def ranking_values(ranking: Ranking, panel: PanelFigures | None = None) -> dict[str, Any]:
    """A ranking for JSON: its record, with units by name, its counts, and the patterns of its heads."""
    record = ranking.to_values()
    record["protocol"] |= {"words": str(ranking.protocol)}
    record["counts"] = {_name(share): count_values(ranking, share) for share in SHARES}
    return record if panel is None else record | {"panel": panel_values(panel)}


def count_values(ranking: Ranking, share: float) -> dict[str, int | float | None]:
    """How many a share takes, its band, how many random ones it takes, and what as many random ones explain."""
    count, low, high = ranking.count(share)
    chance = None if count is None else ranking.random_at(count)
    return {
        "count": count,
        "low": low,
        "high": high,
        "random_order": random_count(ranking, share),
        "random_explained": chance,
    }


def panel_values(panel: PanelFigures) -> dict[str, Any]:
    """A panel for JSON: heads by name, each with its pattern."""
    record = asdict(panel)
    record["heads"] = {
        str(head): asdict(pattern) for head, pattern in zip(panel.heads, panel.patterns, strict=True)
    }
    del record["patterns"]
    return record | {"kinds": dict(panel.kinds)}


def contrast_values(found: TaskComparison) -> dict[str, Any]:
    """A comparison for JSON: counts and ratios for each kind of unit, shared heads with their maps, panels."""
    units = {}
    for couple in found.rankings:
        kind = couple[0].protocol.units
        units[kind] = {
            "protocol": [asdict(ranking.protocol) | {"words": str(ranking.protocol)} for ranking in couple],
            "pairs": [ranking.pairs for ranking in couple],
            "left_out": [dict(ranking.left_out) for ranking in couple],
            "counts": {
                _name(share): [count_values(ranking, share) for ranking in couple] for share in SHARES
            },
            "ratios": {_name(share): found.ratio(kind, share) for share in SHARES},
            "cpr": [ranking.cpr for ranking in couple],
            "cmd": [ranking.cmd for ranking in couple],
        }
    return {
        "task": found.task,
        "models": list(found.models),
        "same_pairs": found.same_pairs,
        "units": units,
        "overlap": [str(head) for head in found.overlap] if found.comparable else None,
        "maps": {str(each.head): [str(each.before), str(each.after)] for each in changed(*found.panels)}
        if found.comparable
        else None,
        "needed": [panel_values(panel) for panel in found.needed],
        "panels": [panel_values(panel) for panel in found.panels],
    }


# Words


def _name(share: float) -> str:
    return f"n{share * 100:g}"


def _short(protocol: Protocol) -> str:
    """How positions are told apart, and whether the order is measured; the MLPs stand in the table's title."""
    return f"{protocol.positions}{'' if protocol.order == 'exact' else ', estimated order'}"


def _with_band(ranking: Ranking, share: float) -> str:
    count, low, high = ranking.count(share)
    return f"{_number(count)} [{_number(low)}, {_number(high)}]"


def _number(count: int | None) -> str:
    return _NEVER if count is None else f"{count:,}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}×"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0995 or share == 0 else f"{share:.2%}"


def _left_out(ranking: Ranking) -> str:
    return "; ".join(f"{count} {visible(reason)}" for reason, count in ranking.left_out) or "none"
