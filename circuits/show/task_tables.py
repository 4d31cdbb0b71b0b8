"""Rankings and comparisons on tasks, as readable text and as plain values for JSON.

A comparison of several tasks is one table, with a row for each task and kind of unit. Of a single task all
shares, the heads that both models need, and the figures of their attention maps are printed too.
"""

from collections.abc import Sequence
from dataclasses import asdict
from itertools import chain
from typing import Any, Final

from circuits.components import Head
from circuits.instruments.reading_records import READING, HeadScores
from circuits.show.sections import Column, Section, plain
from circuits.show.tables import visible
from circuits.show.words import verdict_lines, verdict_values, verdict_words
from circuits.tasks.comparison import TaskComparison
from circuits.tasks.patterns import PanelFigures, changed
from circuits.tasks.ranking import (
    COUNTED,
    EXPLAINED,
    SHARES,
    ComponentEdge,
    Protocol,
    Ranking,
    random_count,
)

_MOST_UNITS: Final = 16  # rows of the table of strongest units
_MOST_CHANGES: Final = 20  # rows of the table of heads that both models need


# A ranking


def ranking_text(ranking: Ranking) -> str:
    """A ranking as plain text, 100 columns wide."""
    return plain(ranking_sections(ranking))


def ranking_sections(ranking: Ranking, scores: HeadScores | None = None) -> list[Section]:
    """The question, the counts, and the strongest units; with scores also what their heads do by them."""
    return [_question(ranking), _counts(ranking), _strongest(ranking, scores)]


def _question(ranking: Ranking) -> Section:
    gate = "gated" if ranking.gated else "dense"
    units = ranking.protocol.units
    title = f"{visible(ranking.task)} on {visible(ranking.model)} ({gate}): "
    title += f"{ranking.pairs} pairs, {ranking.units:,} {COUNTED[units]}"
    none, every = ranking.keep.explained[0], ranking.keep.explained[-1]
    areas = f"CPR {ranking.cpr:.3f} (under the curve), CMD {ranking.cmd:.3f} (between the curve and 1)"
    if units == "wires":
        areas += ", at the ten sizes of MIB"
    rows = [
        ("protocol", str(ranking.protocol)),
        ("left out", _left_out(ranking)),
        ("ends", f"none kept explain {_percent(none)}, all kept explain {_percent(every)}"),
        ("areas", areas),
    ]
    return Section(title, verdict_lines(ranking), rows=rows)


def _counts(ranking: Ranking) -> Section:
    """How many units explain each share, and what as many random units explain."""
    units = COUNTED[ranking.protocol.units]
    rows = []
    for share in SHARES:
        count, _, _ = ranking.count(share)
        chance = None if count is None else _percent(ranking.random_at(count))
        random = _count(random_count(ranking, share))
        rows.append((_name(share), _with_interval(ranking, share), chance, random))
    columns = (
        Column("share"),
        Column(units, ">"),
        Column("as many at random", ">"),
        Column("random order", ">"),
    )
    return Section(f"{units.capitalize()} kept, in ranked order", (), columns, rows)


def _strongest(ranking: Ranking, scores: HeadScores | None) -> Section:
    """The first units in ranked order; those that explain 90% are marked."""
    units = ranking.protocol.units
    columns = [
        Column(),
        Column(COUNTED[units].removesuffix("s")),
        Column("effect", "z.3f"),
        Column("95%", ">"),
    ]
    if units == "wires":
        columns.append(Column("how"))
    elif scores is not None:
        columns.append(Column(f"what the head does ({READING})"))
    rows = []
    for number, ranked in enumerate(ranking.ranked[:_MOST_UNITS], 1):
        interval = (
            "one pair" if ranking.pairs == 1 else f"[{ranked.low:z.3f}, {ranked.high:z.3f}]"
        )
        row: list[Any] = [number, visible(str(ranked.unit)), ranked.effect, interval]
        if isinstance(ranked.unit, ComponentEdge):
            row.append("exact" if ranked.exact else "estimate")
        elif scores is not None:
            head = ranked.unit if isinstance(ranked.unit, Head) else ranked.unit.head
            row.append(scores.name(head))
        rows.append(row)
    title = "Single effects, strongest first"
    if ranking.protocol.order == "given":
        title = "Single effects, in the order of the file"
    if len(ranking.ranked) > len(rows):
        title += f", the first {len(rows)} of {len(ranking.ranked):,}"
    needed, _, _ = ranking.count(EXPLAINED)
    return Section(title, (), columns, rows, marked=min(needed or 0, len(rows)))


# A comparison of two models


def task_comparison_text(comparison: TaskComparison) -> str:
    """A comparison on a task as plain text, 100 columns wide."""
    return plain(task_comparison_sections([comparison]))


def task_comparison_sections(comparisons: Sequence[TaskComparison]) -> list[Section]:
    """One table of all tasks and how they were measured; of a single task also all that was found."""
    sections = [task_comparison_table(comparisons), _measured(comparisons)]
    if len(comparisons) == 1:
        comparison = comparisons[0]
        sections.append(_shares(comparison))
        sections.append(_common_heads(comparison))
        sections.append(_panels(comparison.needed, f"heads for {EXPLAINED:.0%}"))
        sections.append(_panels(comparison.panels, "all heads"))
    return sections


def task_comparison_table(comparisons: Sequence[TaskComparison]) -> Section:
    """A row for each task and kind of unit: how many explain 90% in each model, the ratio, random orders."""
    first, second = map(visible, comparisons[0].models)
    columns = [
        Column("task"),
        Column("units"),
        Column("protocol"),
        Column(first, ">"),
        Column(second, ">"),
        Column("ratio", ">"),
        Column("random order", ">"),
    ]
    rows = []
    mlps = []
    for comparison in comparisons:
        for both in comparison.rankings:
            units = both[0].protocol.units
            protocols = dict.fromkeys(_short(ranking.protocol) for ranking in both)
            counts = [_with_interval(ranking, EXPLAINED) for ranking in both]
            random = "/".join(_count(random_count(ranking)) for ranking in both)
            row = [visible(comparison.task), COUNTED[units], " / ".join(protocols)]
            rows.append([*row, *counts, _ratio(comparison, units, EXPLAINED), random])
            if units != "wires":  # component edges include the MLPs
                mlps += [ranking.protocol.mlps for ranking in both]
    title = f"How many explain {EXPLAINED:.0%} ({_name(EXPLAINED)})"
    if mlps:
        title += f", MLPs {' or '.join(dict.fromkeys(mlps))}"
    return Section(f"{title}: {first} against {second}", (), columns, rows)


def _measured(comparisons: Sequence[TaskComparison]) -> Section:
    """Each protocol of the table in words, and the pairs and the questions of each task."""
    protocols: dict[Protocol, None] = {}  # each once, in order
    tasks: list[tuple[str, str]] = []
    for comparison in comparisons:
        for ranking in chain.from_iterable(comparison.rankings):
            protocols[ranking.protocol] = None
        tasks.append((visible(comparison.task), _pairs_words(comparison)))
        for ranking in comparison.rankings[0]:
            verdict = "not judged" if ranking.question is None else "clear"
            name = f"question to {visible(ranking.model)}"
            tasks.append((name, verdict_words(ranking) or verdict))
    rows = [(_short(protocol), str(protocol)) for protocol in protocols]
    return Section("What was measured", rows=rows + tasks)


def _pairs_words(comparison: TaskComparison) -> str:
    """How many pairs each kind of unit was measured on, which pairs these are, and which were left out."""
    counts = []
    for first, _ in comparison.rankings:
        counts.append(f"{first.pairs} for {COUNTED[first.protocol.units]}")
    kind = "pairs that both models get right"
    if not comparison.same_pairs:
        kind = "pairs of each model's own, as their tokens differ"
    left = []
    for ranking in comparison.rankings[0]:
        left.append(f"{visible(ranking.model)}: {_left_out(ranking)}")
    return f"{', '.join(counts)} ({kind}); left out: {'; '.join(left)}"


def _shares(comparison: TaskComparison) -> Section:
    first, second = map(visible, comparison.models)
    columns = [
        Column("units"),
        Column("share"),
        Column(first, ">"),
        Column(second, ">"),
        Column("ratio", ">"),
        Column(f"random {first}", ">"),
        Column(f"random {second}", ">"),
    ]
    rows = []
    for both in comparison.rankings:
        units = both[0].protocol.units
        for share in SHARES:
            counts = [_with_interval(ranking, share) for ranking in both]
            random = [_count(random_count(ranking, share)) for ranking in both]
            ratio = _ratio(comparison, units, share)
            rows.append((COUNTED[units], _name(share), *counts, ratio, *random))
    return Section(
        "Counts, with the range of 95% of the bootstrap resamples", (), columns, rows
    )


def _common_heads(comparison: TaskComparison) -> Section:
    """The heads that both models need, and how their attention maps changed."""
    first, second = map(visible, comparison.models)
    one, other = (panel.heads for panel in comparison.needed)
    title = f"Heads for {EXPLAINED:.0%}: {len(one)} in {first}, {len(other)} in {second}"
    if not comparison.comparable:
        return Section(
            title, ["the models differ in shape, so their heads cannot be set side by side"]
        )
    lines = [f"{len(comparison.overlap)} of {len({*one, *other})} in either are in both"]
    if len(comparison.changes) > _MOST_CHANGES:
        lines.append(f"the first {_MOST_CHANGES}:")
    rows = [
        (each.head, str(each.before), str(each.after))
        for each in comparison.changes[:_MOST_CHANGES]
    ]
    columns = (Column("head"), Column(f"map in {first}"), Column(f"map in {second}"))
    return Section(title, lines, columns, rows)


def _panels(both: tuple[PanelFigures, PanelFigures], which: str) -> Section:
    """The figures of the attention maps of two models, side by side."""
    first, second = map(_facts, both)
    names = dict.fromkeys((*first, *second))
    rows = [(name, first.get(name, "0"), second.get(name, "0")) for name in names]
    columns = (Column(), *(Column(visible(panel.model), ">") for panel in both))
    return Section(f"What the maps show: {which}", (), columns, rows)


# A panel


def panel_text(panel: PanelFigures) -> str:
    """The figures of a panel of attention maps as plain text."""
    title = f"What the maps of {visible(panel.model)} show over {panel.prompts} prompts"
    return plain([Section(title, rows=list(_facts(panel).items()))])


def panel_facts(panel: PanelFigures) -> dict[str, str]:
    """What the maps of a panel show, by name, as tables and figure A say it."""
    return {
        "heads": str(len(panel.heads)),
        "mass on first token": _percent(panel.first_token),
        "mass on diagonal": _percent(panel.diagonal),
        "dominant diagonals": _percent(panel.dominant_diagonal),
        "mean peak": f"{panel.mean_peak:.2f}",
        "> 0.5 off diagonal": f"{panel.peaked:.1f}",
        "sum of a row": f"{panel.mass:.2f}",
        "open edges": _percent(panel.open_edges / (panel.edges or 1)),
    }


def _facts(panel: PanelFigures) -> dict[str, str]:
    """The same with the counts of edges and of kinds of maps."""
    facts = panel_facts(panel)
    facts["open edges"] = (
        f"{panel.open_edges:,.0f} of {panel.edges:,.0f} ({facts['open edges']})"
    )
    for kind, count in panel.kinds:
        facts[f"maps: {kind}"] = str(count)
    return facts


# Values for JSON


def ranking_values(ranking: Ranking, panel: PanelFigures | None = None) -> dict[str, Any]:
    """A ranking for JSON: its record, with units by name, its counts, and the patterns of its heads."""
    values = ranking.to_values()
    values["protocol"]["words"] = str(ranking.protocol)
    values["counts"] = {_name(share): count_values(ranking, share) for share in SHARES}
    if panel is not None:
        values["panel"] = panel_values(panel)
    return values


def count_values(ranking: Ranking, share: float) -> dict[str, int | float | None]:
    """How many units a share takes, its interval, how many random ones, and what as many random explain."""
    count, low, high = ranking.count(share)
    return {
        "count": count,
        "low": low,
        "high": high,
        "random_order": random_count(ranking, share),
        "random_explained": None if count is None else ranking.random_at(count),
    }


def panel_values(panel: PanelFigures) -> dict[str, Any]:
    """A panel for JSON: heads by name, each with its pattern."""
    values = asdict(panel)
    patterns = values.pop("patterns")
    values["heads"] = dict(zip(map(str, panel.heads), patterns, strict=True))
    values["kinds"] = dict(panel.kinds)
    return values


def task_comparison_values(comparison: TaskComparison) -> dict[str, Any]:
    """A comparison for JSON: counts and ratios for each kind of unit, shared heads, maps and panels."""
    overlap = None
    maps = None
    if comparison.comparable:
        overlap = [str(head) for head in comparison.overlap]
        changes = changed(*comparison.panels)
        maps = {str(each.head): [str(each.before), str(each.after)] for each in changes}
    return {
        "task": comparison.task,
        "models": comparison.models,
        "same_pairs": comparison.same_pairs,
        "units": {
            both[0].protocol.units: _units_values(comparison, both)
            for both in comparison.rankings
        },
        "overlap": overlap,
        "maps": maps,
        "needed": [panel_values(panel) for panel in comparison.needed],
        "panels": [panel_values(panel) for panel in comparison.panels],
    }


def _units_values(comparison: TaskComparison, both: tuple[Ranking, Ranking]) -> dict[str, Any]:
    """The rankings of one kind of unit in both models."""
    units = both[0].protocol.units
    counts = {}
    ratios = {}
    for share in SHARES:
        counts[_name(share)] = [count_values(ranking, share) for ranking in both]
        ratios[_name(share)] = comparison.ratio(units, share)
    return {
        "protocol": [
            asdict(ranking.protocol) | {"words": str(ranking.protocol)} for ranking in both
        ],
        "question": [verdict_values(ranking) for ranking in both],
        "pairs": [ranking.pairs for ranking in both],
        "left_out": [dict(ranking.left_out) for ranking in both],
        "counts": counts,
        "ratios": ratios,
        "cpr": [ranking.cpr for ranking in both],
        "cmd": [ranking.cmd for ranking in both],
    }


# Words and numbers


def _name(share: float) -> str:
    """`n90`: the fewest units that explain 90%."""
    return f"n{share * 100:g}"


def _short(protocol: Protocol) -> str:
    """How positions are told apart, and whether the order was measured: `all, first 4,000 exact`."""
    if protocol.order == "exact":
        return protocol.positions
    if protocol.order == "loading":
        return f"{protocol.positions}, estimated"
    if protocol.order == "given":
        return f"{protocol.positions}, order of a file"
    return f"{protocol.positions}, first {protocol.measured:,} exact"


def _with_interval(ranking: Ranking, share: float) -> str:
    """`11 [9, 14]`; one pair has no interval."""
    count, low, high = map(_count, ranking.count(share))
    return count if ranking.pairs == 1 else f"{count} [{low}, {high}]"


def _count(count: int | None) -> str:
    return "never" if count is None else f"{count:,}"


def _ratio(comparison: TaskComparison, units: Any, share: float) -> str | None:
    ratio = comparison.ratio(units, share)
    return None if ratio is None else f"{ratio:.1f}×"


def _percent(share: float) -> str:
    """One digit after the point, and two for shares below 10%."""
    return f"{share:.1%}" if share >= 0.0995 or share == 0 else f"{share:z.2%}"


def _left_out(ranking: Ranking) -> str:
    reasons = [f"{count} {visible(reason)}" for reason, count in ranking.left_out]
    return "; ".join(reasons) or "none"
