"""Rankings and comparisons on tasks, as readable text and as plain values for JSON.

Several tasks share one table, with a row for each task and kind of unit. A single task also has all shares,
the heads that both models take, and the figures of both panels.
"""

from collections.abc import Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final

from circuits.components import Head
from circuits.show.tables import Section, plain, visible
from circuits.tasks.compare import TaskComparison
from circuits.tasks.patterns import PanelFigures, changed
from circuits.tasks.ranking import (
    COUNTED,
    EXPLAINED,
    SHARES,
    ComponentEdge,
    Protocol,
    Ranked,
    Ranking,
    random_count,
)

_MOST_UNITS: Final = 16  # rows of the table of strongest units
_MOST_CHANGES: Final = 20


def ranking_text(ranking: Ranking) -> str:
    """A ranking as plain text, 100 columns wide."""
    return plain(ranking_sections(ranking))


def ranking_sections(ranking: Ranking, panel: PanelFigures | None = None) -> list[Section]:
    """The question, the counts, and the strongest units, with a panel also the patterns of their heads."""
    return [_question(ranking), _counts(ranking), _strongest(ranking, panel)]


def _question(ranking: Ranking) -> Section:
    gate = "gated" if ranking.gated else "dense"
    none, whole = (_percent(ranking.keep.explained[end]) for end in (0, -1))
    ends = f"none kept explain {none}, all kept explain {whole}"
    areas = f"CPR {ranking.cpr:.3f} (under the curve), CMD {ranking.cmd:.3f} (between the curve and 1)"
    areas += ", at the ten sizes of MIB" if ranking.protocol.units == "wires" else ""
    rows = (("protocol", str(ranking.protocol)), ("left out", _left_out(ranking)))
    size = f"{ranking.pairs} pairs, {ranking.units:,} {COUNTED[ranking.protocol.units]}"
    title = f"{visible(ranking.task)} on {visible(ranking.model)} ({gate}): {size}"
    return Section(title, rows=(*rows, ("ends", ends), ("areas", areas)))


def _counts(ranking: Ranking) -> Section:
    units, rows = COUNTED[ranking.protocol.units], []
    for share in SHARES:
        count = ranking.count(share)[0]
        chance = "" if count is None else _percent(ranking.random_at(count))
        rows.append((_name(share), _with_band(ranking, share), chance, _number(random_count(ranking, share))))
    columns = ("share", units, "as many at random", "random order")
    return Section(f"{units.capitalize()} kept, in ranked order", columns=columns, rows=tuple(rows))


def _strongest(ranking: Ranking, panel: PanelFigures | None) -> Section:
    count, listed, rows = ranking.count(EXPLAINED)[0], ranking.ranked[:_MOST_UNITS], []
    for number, ranked in enumerate(listed, 1):
        effect = f"{ranked.effect:z.3f}"
        band = "one pair" if ranking.pairs == 1 else f"[{ranked.low:z.3f}, {ranked.high:z.3f}]"
        rows.append((str(number), visible(str(ranked.unit)), effect, band, *_beside(ranked, panel)))
    marked = 0 if count is None else min(count, len(rows))
    units = ranking.protocol.units
    last = ("how",) if units == "wires" else ("map",) if panel else ()
    columns = ("", COUNTED[units][:-1], "effect", "95%", *last)
    cut = f", the first {len(listed)} of {len(ranking.ranked):,}" if len(ranking.ranked) > len(listed) else ""
    order = "in the order of the file" if ranking.protocol.order == "given" else "strongest first"
    return Section(f"Single effects, {order}{cut}", (), columns, tuple(rows), marked)


def _beside(ranked: Ranked, panel: PanelFigures | None) -> tuple[str, ...]:
    """Of a component edge whether its effect was measured; of other units the pattern of their head."""
    if isinstance(ranked.unit, ComponentEdge):
        return ("exact" if ranked.exact else "estimate",)
    head = ranked.unit if isinstance(ranked.unit, Head) else ranked.unit.head
    return () if panel is None else (str(panel.pattern(head)),)


def task_comparison_sections(comparisons: Sequence[TaskComparison]) -> list[Section]:
    """One table of all tasks; of a single task also what is behind it."""
    sections = [task_comparison_table(comparisons), _protocols(comparisons)]
    if len(comparisons) == 1:
        (comparison,) = comparisons
        sections += [_shares(comparison), _shared(comparison)]
        sections.append(_panels(comparison.needed, f"heads for {EXPLAINED:.0%}"))
        sections.append(_panels(comparison.panels, "all heads"))
    return sections


def task_comparison_text(comparison: TaskComparison) -> str:
    """A comparison on a task as plain text, 100 columns wide."""
    return plain(task_comparison_sections([comparison]))


def panel_text(panel: PanelFigures) -> str:
    """A panel's figures as plain text."""
    title = f"What the maps of {visible(panel.model)} show over {panel.prompts} prompts"
    return plain([Section(title, rows=tuple(_facts(panel).items()))])


def task_comparison_table(comparisons: Sequence[TaskComparison]) -> Section:
    """A row for each task and kind of unit: how many explain 90% in each model, the ratio, random orders."""
    first, second = (visible(name) for name in comparisons[0].models)
    rows = []
    for comparison in comparisons:
        for couple in comparison.rankings:
            units = couple[0].protocol.units
            chance = "/".join(_number(random_count(ranking)) for ranking in couple)
            counts = [_with_band(ranking, EXPLAINED) for ranking in couple]
            protocol = " / ".join(dict.fromkeys(_short(ranking.protocol) for ranking in couple))
            kind = (visible(comparison.task), COUNTED[units], protocol)
            rows.append((*kind, *counts, _ratio(comparison.ratio(units)), chance))
    columns = ("task", "units", "protocol", first, second, "ratio", "random order")
    others = [protocol.mlps for protocol in _protocols_of(comparisons) if protocol.units != "wires"]
    mlps = f", MLPs {' or '.join(dict.fromkeys(others))}" if others else ""  # component edges have none apart
    title = f"How many explain {EXPLAINED:.0%} ({_name(EXPLAINED)}){mlps}: {first} against {second}"
    return Section(title, columns=columns, rows=tuple(rows))


def _protocols(comparisons: Sequence[TaskComparison]) -> Section:
    """Every protocol of the table in words, and the pairs that were measured."""
    rows = [(_short(protocol), str(protocol)) for protocol in _protocols_of(comparisons)]
    for comparison in comparisons:
        counts = [f"{first.pairs} for {COUNTED[first.protocol.units]}" for first, _ in comparison.rankings]
        both, own = "pairs that both models get right", "pairs of each model's own, as their tokens differ"
        pairs = f"{', '.join(counts)} ({both if comparison.same_pairs else own})"
        left = [f"{visible(ranking.model)}: {_left_out(ranking)}" for ranking in comparison.rankings[0]]
        rows.append((visible(comparison.task), f"{pairs}; left out: {'; '.join(left)}"))
    return Section("What was measured", rows=tuple(rows))


def _protocols_of(comparisons: Sequence[TaskComparison]) -> Iterable[Protocol]:
    """Every protocol, once."""
    couples = (couple for comparison in comparisons for couple in comparison.rankings)
    return dict.fromkeys(ranking.protocol for couple in couples for ranking in couple)


def _shares(comparison: TaskComparison) -> Section:
    rows = []
    for couple in comparison.rankings:
        units = couple[0].protocol.units
        for share in SHARES:
            counts = [_with_band(ranking, share) for ranking in couple]
            chance = [_number(random_count(ranking, share)) for ranking in couple]
            rows.append(
                (COUNTED[units], _name(share), *counts, _ratio(comparison.ratio(units, share)), *chance)
            )
    first, second = map(visible, comparison.models)
    columns = ("units", "share", first, second, "ratio", f"random {first}", f"random {second}")
    title = "Counts, with the range of 95% of the bootstrap resamples"
    return Section(title, columns=columns, rows=tuple(rows))


def _shared(comparison: TaskComparison) -> Section:
    """The heads that both models take, and how their maps changed."""
    names = [visible(name) for name in comparison.models]
    needed = [panel.heads for panel in comparison.needed]
    counts = ", ".join(f"{len(heads)} in {name}" for heads, name in zip(needed, names, strict=True))
    title = f"Heads for {EXPLAINED:.0%}: {counts}"
    if not comparison.comparable:
        return Section(title, ("the models differ in shape, so their heads cannot be set side by side",))
    changes = comparison.changes
    lines = [f"{len(comparison.overlap)} of {len({*needed[0], *needed[1]})} in either are in both"]
    lines += [f"the first {_MOST_CHANGES}:"] if len(changes) > _MOST_CHANGES else []
    rows = [(str(each.head), str(each.before), str(each.after)) for each in changes[:_MOST_CHANGES]]
    return Section(title, tuple(lines), ("head", *(f"map in {name}" for name in names)), tuple(rows))


def _panels(couple: tuple[PanelFigures, PanelFigures], which: str) -> Section:
    """The figures of both panels, side by side."""
    first, second = map(_facts, couple)
    names = dict.fromkeys((*first, *second))
    rows = tuple((name, first.get(name, "0"), second.get(name, "0")) for name in names)
    columns = ("", *(visible(panel.model) for panel in couple))
    return Section(f"What the maps show: {which}", columns=columns, rows=rows)


def _facts(panel: PanelFigures) -> dict[str, str]:
    opened = _percent(panel.open_edges / (panel.edges or 1))
    facts = {
        "heads": str(len(panel.heads)),
        "mass on the first token": _percent(panel.first_token),
        "mass on the diagonal": _percent(panel.diagonal),
        "heads with a dominant diagonal": _percent(panel.dominant_diagonal),
        "mean peak": f"{panel.mean_peak:.2f}",
        "heads with an off-diagonal weight above 0.5": f"{panel.peaked:.1f}",
        "sum of a row": f"{panel.mass:.2f}",
        "open edges": f"{panel.open_edges:,.0f} of {panel.edges:,.0f} ({opened})",
    }
    return facts | {f"maps: {kind}": str(count) for kind, count in panel.kinds}


def ranking_values(ranking: Ranking, panel: PanelFigures | None = None) -> dict[str, Any]:
    """A ranking for JSON: its record, with units by name, its counts, and the patterns of its heads."""
    record = ranking.to_values()
    record["protocol"] |= {"words": str(ranking.protocol)}
    record["counts"] = {_name(share): count_values(ranking, share) for share in SHARES}
    return record if panel is None else record | {"panel": panel_values(panel)}


def count_values(ranking: Ranking, share: float) -> dict[str, int | float | None]:
    """How many a share takes, its band, how many random ones, and what as many random ones explain."""
    count, low, high = ranking.count(share)
    chance = None if count is None else ranking.random_at(count)
    counts = {"count": count, "low": low, "high": high}
    return counts | {"random_order": random_count(ranking, share), "random_explained": chance}


def panel_values(panel: PanelFigures) -> dict[str, Any]:
    """A panel for JSON: heads by name, each with its pattern."""
    record = asdict(panel)
    patterns = zip(map(str, panel.heads), record.pop("patterns"), strict=True)
    return record | {"heads": dict(patterns), "kinds": dict(panel.kinds)}


def task_comparison_values(comparison: TaskComparison) -> dict[str, Any]:
    """A comparison for JSON: counts and ratios for each kind of unit, shared heads, maps and panels."""
    maps = changed(*comparison.panels) if comparison.comparable else ()
    by_name = {str(each.head): [str(each.before), str(each.after)] for each in maps}
    values = {name: getattr(comparison, name) for name in ("task", "models", "same_pairs")} | {"units": {}}
    for couple in comparison.rankings:
        units = couple[0].protocol.units
        values["units"][units] = {
            "protocol": [asdict(ranking.protocol) | {"words": str(ranking.protocol)} for ranking in couple],
            "pairs": [ranking.pairs for ranking in couple],
            "left_out": [dict(ranking.left_out) for ranking in couple],
            "counts": {_name(share): [count_values(each, share) for each in couple] for share in SHARES},
            "ratios": {_name(share): comparison.ratio(units, share) for share in SHARES},
            "cpr": [ranking.cpr for ranking in couple],
            "cmd": [ranking.cmd for ranking in couple],
        }
    values["overlap"] = [str(head) for head in comparison.overlap] if comparison.comparable else None
    values["maps"] = by_name if comparison.comparable else None
    panels = {"needed": comparison.needed, "panels": comparison.panels}
    return values | {name: [panel_values(panel) for panel in couple] for name, couple in panels.items()}


def _name(share: float) -> str:
    return f"n{share * 100:g}"


def _short(protocol: Protocol) -> str:
    """How positions are told apart, and whether the order is measured; the table's title has the MLPs."""
    order = {"exact": "", "loading": ", estimated", "given": ", order of a file"}
    return protocol.positions + order.get(protocol.order, f", first {protocol.measured:,} exact")


def _with_band(ranking: Ranking, share: float) -> str:
    count, low, high = map(_number, ranking.count(share))
    return count if ranking.pairs == 1 else f"{count} [{low}, {high}]"


def _number(count: int | None) -> str:
    return "never" if count is None else f"{count:,}"


def _ratio(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.1f}×"


def _percent(share: float) -> str:
    return f"{share:.1%}" if share >= 0.0995 or share == 0 else f"{share:.2%}"


def _left_out(ranking: Ranking) -> str:
    return "; ".join(f"{count} {visible(reason)}" for reason, count in ranking.left_out) or "none"
