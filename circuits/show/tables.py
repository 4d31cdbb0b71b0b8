"""Circuits as readable text, for terminals, files and notebooks.

The question comes first, then the mapping in front with its carriers and how far to trust it, the other
mappings with a row each, and the spans. Each part is a section: a title, lines and a table of plain text. No
text is read as markup, whatever a token holds.
"""

from __future__ import annotations

import html
import io
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from circuits.errors import CircuitsError, PromptError
from circuits.show import counterfactual_words, listed, metric_words, plural, spell, to_scene, verdict_words
from circuits.tracing import CARRIES, SHARE

if TYPE_CHECKING:
    from circuits.tracing import Mapping, MeasuredModel, SideEffects, Span
    from circuits.tracing.records import Circuit, Why
    from circuits.tracing.wiring_record import Wiring

WIDTH: Final = 100  # columns of plain text
visible = partial(spell, longest=80)  # no control characters, which a terminal would obey
_ALMOST: Final = 0.99  # of the total, which is as good as all of it
MOST_WORDS: Final = 200  # tokens of a prompt that is printed whole
_MOST_CARRIERS: Final = 16  # rows of the table; the line above it names all
_MOST_MAPPINGS: Final = 20  # rows of the table of other mappings
_MOST_OTHERS: Final = 5  # next strongest heads, and heads against the answer

# Columns of words; all others hold numbers.
_OF_MODELS: Final = {"", "model", "gate", "licence", "source", "overlap"}
_OF_CIRCUITS: Final = {"head", "mapping", "carriers", "token", "held in", "built in", "counterfactual"}
_OF_TASKS: Final = {"task", "units", "protocol", "share", "attention edge", "component edge", "map", "how"}
_OF_WIRES: Final = {"reader", "side", "writer", "query writer", "key writer"}
_LEFT: Final = _OF_MODELS | _OF_CIRCUITS | _OF_TASKS | _OF_WIRES


@dataclass(frozen=True, slots=True)
class Section:
    """A title, lines and a table; each may be missing. The first `marked` rows stand out from the rest."""

    title: str = ""
    lines: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()  # a table without column names is a list of facts: name, text
    rows: tuple[tuple[str, ...], ...] = ()
    marked: int = 0

    def __str__(self) -> str:
        return plain([self])

    @property
    def sides(self) -> list[Any]:
        """To which side each column is aligned."""
        return ["left" if name in _LEFT else "right" for name in self.columns or ("",) * len(self.rows[0])]


def to_text(circuit: Circuit) -> str:
    """The circuit as plain text, 100 columns wide."""
    return plain(circuit_sections(circuit))


def to_html(circuit: Circuit) -> str:
    """The circuit for a notebook: its diagram, where Graphviz can draw it, above its tables."""
    tables = "".join(section_html(section) for section in circuit_sections(circuit))
    return f'<div style="max-width:70em">{_diagram(circuit)}{tables}</div>'


def plain(sections: Iterable[Section]) -> str:
    """Sections as text, 100 columns wide, without colour."""
    flat = {"color_system": None, "force_terminal": False, "force_jupyter": False, "highlight": False}
    console = Console(file=io.StringIO(), width=WIDTH, **flat)
    with console.capture() as printed:
        console.print(shown(sections))
    return "\n".join(line.rstrip() for line in printed.get().rstrip().split("\n"))


def shown(sections: Iterable[Section]) -> Group:
    """Sections as rich renderables, an empty line between them."""
    parts: list[RenderableType] = []
    for number, section in enumerate(sections):
        parts += [Text("")] * (number > 0) + [Text(section.title, style="bold")] * bool(section.title)
        parts += [Text(line) for line in section.lines]
        parts += [_rich_table(section)] if section.rows else []
    return Group(*parts)


def _rich_table(section: Section) -> RenderableType:
    columns, rows = section.columns, section.rows
    lines = box.SIMPLE_HEAD if columns else None
    table = Table(box=lines, padding=(0, 2, 0, 0), pad_edge=False, show_edge=False, show_header=bool(columns))
    short = max(len(row[0]) for row in rows) <= WIDTH // 4  # then the first column is not broken
    for number, side in enumerate(section.sides):
        whole = number == 0 and (not columns or short)
        name = Text(columns[number] if columns else "")
        table.add_column(name, justify=side, overflow="fold", no_wrap=whole)
    for number, row in enumerate(rows, 1):
        style = "bold" if number <= section.marked else None
        table.add_row(*map(Text, row), style=style, end_section=number == section.marked)
    return table


def section_html(section: Section) -> str:
    """A section as escaped HTML."""
    title = f"<h4>{html.escape(section.title)}</h4>" if section.title else ""
    text = title + "".join(f"<p>{html.escape(line)}</p>" for line in section.lines)
    if not section.rows:
        return text
    names = "".join(f"<th>{html.escape(name)}</th>" for name in section.columns)
    head = f"<thead><tr>{names}</tr></thead>" if names else ""
    styles = [f'<td style="text-align:{side}">' for side in section.sides]
    rows = [zip(styles, map(html.escape, row), strict=True) for row in section.rows]
    body = "".join(f"<tr>{''.join(f'{start}{cell}</td>' for start, cell in row)}</tr>" for row in rows)
    return f"{text}<table>{head}<tbody>{body}</tbody></table>"


def _diagram(circuit: Circuit) -> str:
    from circuits.show import dot

    try:
        drawn = dot.draw(dot.to_dot(circuit), "svg")
    except (CircuitsError, OSError, ImportError):  # no Graphviz here: the tables say the same
        return ""
    assert isinstance(drawn, bytes)
    picture = drawn.decode()
    return picture[picture.index("<svg") :].replace("<svg ", '<svg style="max-width:45em;height:auto" ', 1)


def circuit_sections(circuit: Circuit, *, share: float | None = None) -> list[Section]:
    """The question, the mapping in front with its heads and controls, the other mappings, and the spans."""
    front, share = circuit.front, circuit.share if share is None else share
    sections = [_question(circuit)]
    if front is None:
        sections.append(Section(f"no mapping carries {CARRIES:g} or more of the gap"))
    else:
        sections += [_mapping(circuit, front, share), _trust(circuit, front)]
    others = [mapping for mapping in circuit.mappings if front is not None and mapping is not front]
    if others:
        sections.append(_others(circuit, others, share))
    if circuit.spans:
        columns = ("token", "held in", "built in", "effect", "moves", "counterfactual")
        remarks = tuple(visible(span.remark, longest=200) for span in circuit.spans if span.remark)
        title = "Spans, in gaps of the pair"
        sections.append(Section(title, remarks, columns=columns, rows=tuple(map(_span, circuit.spans))))
    if circuit.stability is not None:
        sections.append(Section("Stability", tuple(str(circuit.stability).splitlines())))
    return sections


def _question(circuit: Circuit) -> Section:
    source, out, length = circuit.source, circuit.output, len(circuit.prompt)
    title = f"{model_words(source)}, {source.open_edges} of {source.edges} edges open"
    whole = length <= MOST_WORDS
    positions = range(length) if whole else to_scene(circuit).shown(most=MOST_WORDS)
    prompt = " ".join("…" if position is None else token(circuit, position) for position in positions)
    output = f"{visible(out.token)}, probability {out.probability:z.2f}, layer {out.layer}"
    reasons = circuit.question.reasons if circuit.question else ()
    lines = [note_line(note) for note in circuit.notes if note not in reasons]
    verdict = verdict_words(circuit)
    lines[:0] = [f"Verdict: {verdict}"] if verdict else []
    return Section(title, tuple(lines), rows=(("prompt", prompt), *asked_rows(circuit), ("output", output)))


# What a circuit and a wiring say alike


def model_words(source: MeasuredModel) -> str:
    """`mini: 6 layers × 12 heads, dense`."""
    gate = "gated" if source.gated else "dense"
    return f"{visible(source.name)}: {source.layers} layers × {source.heads} heads, {gate}"


def asked_rows(result: Circuit | Wiring) -> list[tuple[str, str]]:
    """The counterfactual, and the metric with its values in both runs."""
    values = f"clean {result.clean_value:z.2f}, counterfactual {result.counterfactual_value:z.2f}"
    metric = f"{metric_words(result, longest=80)}: {values}, gap {result.gap:z.2f}"
    return [("counterfactual", counterfactual_words(result, longest=80)), ("metric", metric)]


def note_line(note: str) -> str:
    return f"Note: {visible(note, longest=400)}"


def token(result: Circuit | Why | Wiring, position: int) -> str:
    """A token with its position: `large(5)`."""
    return f"{visible(result.prompt.words[position])}({position})"


# The mappings of a circuit


def _mapping(circuit: Circuit, mapping: Mapping, share: float) -> Section:
    """Total, carriers, and what the carriers and the next strongest heads do."""
    carriers, modulation = mapping.carriers(share), mapping.modulation(share)
    names, short = ", ".join(map(str, carriers)), _short(modulation, share)
    lines = [carried_by_none(mapping)]
    if carriers and mapping.doubts:
        lines = [f"Modulation withheld: {visible(mapping.doubts[0], longest=400)}"]
        reach = f"reach {modulation:.0%}" if short else f"would reach {share:.0%}"
        lines.append(f"Heads that {reach} of the total: {names}{short}")
    elif carriers:
        lines = [f"Modulated at {modulation:.0%} by {names}{short}"]
    if len(carriers) > _MOST_CARRIERS:
        lines.append(f"the first {_MOST_CARRIERS} of {len(carriers)} carriers and the next strongest heads:")
    first = [mapping.effect_of(head) for head in carriers[:_MOST_CARRIERS]]
    others = [each for each in mapping.heads if each.head not in carriers and abs(each.effect) >= 0.0005]
    others.sort(key=lambda each: -abs(each.effect))
    joint, rows = {step.head: f"{step.joint:z.3f}" for step in mapping.path}, []
    sides = {each.head: _sides(each) for each in mapping.sides}
    for each in [*first, *others[:_MOST_OTHERS]]:
        beside = sides.get(each.head, ("",) * 3) if sides else ()
        loading = "not measured" if each.loading is None else f"{each.loading:z.3f}"
        weights = f"{each.weight:z.2f} → {each.counterfactual_weight:z.2f}"
        alone = str(each.head), f"{each.effect:z.3f}", *beside, f"{each.restore:z.3f}", loading, weights
        rows.append((*alone, joint.get(each.head, "")))
    title = f"{_ends(circuit, mapping)}: total {mapping.total:z.2f} (restore {mapping.restore:z.2f})"
    title += beyond_the_gap(mapping)
    named = ("query", "key", "value") if sides else ()
    columns = ("head", "effect", *named, "restore", "loading", "attention clean → other", "joint")
    return Section(title, tuple(lines), columns, tuple(rows), len(first))


def _short(modulation: float, share: float) -> str:
    """Why a share was not reached, if it was not."""
    if modulation >= share:
        return ""
    if modulation >= _ALMOST:
        return f"; the path ends here, {1 - modulation:.1%} short of the total"
    return f"; no further head helps, so {share:.0%} is not reached"


def _sides(each: SideEffects) -> tuple[str, ...]:
    """Effects of the query, key and value side."""
    return tuple(f"{side:z.2f}" for side in (each.query, each.key, each.value))


def beyond_the_gap(mapping: Mapping) -> str:
    """What a total outside 0…1 means."""
    if mapping.total > 1 + CARRIES:
        return ": it overshoots, other paths push back"
    return ": it works against the answer" if mapping.total <= -CARRIES else ""


def carried_by_none(mapping: Mapping) -> str:
    """What a mapping without carriers does."""
    if mapping.total <= -CARRIES:
        return f"Works against the answer: a total of {mapping.total:.2f} has no carriers"
    if mapping.total < CARRIES or not mapping.heads:
        return "Carried by no head: a total this small has no carriers"
    back = sorted(mapping.heads, key=lambda each: -each.restore)[:_MOST_OTHERS]
    most = ", ".join(f"{each.head} {each.restore:z.2f}" for each in back)
    none = f"Carried by no head alone; put back into the counterfactual one at a time, most do {most}"
    return f"{none}. A logprob near 0 hides what single heads do; logit_diff does not"


def _trust(circuit: Circuit, mapping: Mapping) -> Section:
    """How far to trust a mapping: heads against the answer, the linear measure, the controls."""
    against = listed([f"{each.head} {each.effect:z.3f}" for each in mapping.negative], most=_MOST_OTHERS)
    turned = "for the answer" if circuit.gap < 0 else "against the answer"
    rows, controls = [(turned, against or "no head")], mapping.controls
    rows.append(("loading", _mass(mapping)))
    if controls is None:
        rows.append(("controls", "not measured on this mapping"))
    else:
        best = "there is none"
        if controls.random_draws:
            size = f"{controls.random_draws} draws of {plural(len(mapping.carriers(controls.share)), 'head')}"
            drawn = f"mean {controls.random_mean:z.3f}, 95th percentile {controls.random_p95:z.3f} of {size}"
            rows.append(("random heads", drawn))
        others = [key for key in range(len(controls.key_totals)) if key != mapping.key]
        if others:
            key = max(others, key=lambda key: controls.key_totals[key])
            best = f"{token(circuit, key)} with a total of {controls.key_totals[key]:z.3f}"
        rows.append(("best other key", best))
        if controls.random_draws:
            left = f"{controls.sufficiency:z.2f} of the total is left with the carriers alone"
            rows.append(("sufficiency", f"{left} (at a share of {controls.share:.0%})"))
        rows.append(("identity", f"{controls.identity:.1e} (clean patched into clean)"))
    return Section("How far to trust it", rows=(*rows, ("engine", f"{circuit.engine} path")))


def _mass(mapping: Mapping) -> str:
    """How few heads hold most of the absolute loading."""
    loadings = [abs(each.loading) for each in mapping.heads if each.loading is not None]
    if not loadings:
        return "not measured: the plain path has none"
    held = np.cumsum(sorted(loadings, reverse=True))
    if not held.any():
        return "no head has any"
    shares = np.array([0.5, SHARE, 0.95])
    half, most, nearly_all = np.searchsorted(held, shares * held[-1] * (1 - 1e-9)) + 1
    held_by = f"{plural(most, 'head')} {'hold' if most > 1 else 'holds'} {SHARE:.0%}"
    return f"{held_by} of the absolute loading ({half} for 50%, {nearly_all} for 95%)"


def _others(circuit: Circuit, mappings: Sequence[Mapping], share: float) -> Section:
    """The mappings behind the one in front, one row each, with the two controls that decide."""
    rows = []
    for mapping in mappings[:_MOST_MAPPINGS]:
        measured, controls = mapping.controls, ("", "")
        if measured is not None:
            controls = (f"{measured.random_p95:z.3f}", f"{measured.sufficiency:z.2f}")
        names = listed([str(head) for head in mapping.carriers(share)], most=6) or "none"
        reached = "withheld" if mapping.doubts else f"{mapping.modulation(share):.0%}"
        numbers = (f"{mapping.total:z.3f}", f"{mapping.restore:z.3f}", reached)
        rows.append((_ends(circuit, mapping), *numbers, names, *controls))
    columns = ("mapping", "total", "restore", "modulated", "carriers", "random 95%", "sufficiency")
    cut = f", the strongest {_MOST_MAPPINGS}" if len(mappings) > _MOST_MAPPINGS else ""
    title = f"{plural(len(mappings), 'other mapping')}{cut}"
    return Section(title, columns=columns, rows=tuple(rows))


def _span(span: Span) -> tuple[str, ...]:
    held = "no layer" if span.layers is None else f"layer {span.layers[0]}-{span.layers[1]}"
    token = f"{visible(span.label)}({', '.join(map(str, span.positions))})"
    other = visible(span.counterfactual, longest=60)
    return token, held, span.built_text or "no layer", f"{span.effect:z.2f}", f"{span.moves:z.2f}", other


def comparison_values(circuits: Sequence[Circuit], *, share: float) -> list[dict[str, Any]]:
    """The same mapping in several models for JSON; the overlap is with the first, None where none can be."""
    values = []
    for circuit in circuits:
        mapping, source, shared = circuit.mapping(), circuit.source, _shared(circuits[0], circuit, share)
        carriers = [str(head) for head in mapping.carriers(share)]
        measured = {name: getattr(mapping, name) for name in ("key", "query", "total", "restore")}
        reached = {"share": share, "modulation": mapping.modulation(share), "heads": len(carriers)}
        edges = {"open_edges": source.open_edges, "edges": source.edges}
        named = {"carriers": carriers, "overlap": shared}
        values.append({"model": source.name} | measured | reached | named | edges)
    return values


def comparison_section(circuits: Sequence[Circuit], *, share: float) -> Section:
    """The same mapping in several models, one row each."""
    rows = []
    for each in comparison_values(circuits, share=share):
        shared = each["overlap"]
        overlap = "not comparable"
        if shared is not None:
            overlap = f"{plural(len(shared), 'head')} {' '.join(shared[:12])}"
        numbers = (f"{each['total']:z.2f}", str(each["heads"]), f"{each['modulation']:.0%}")
        names = listed(each["carriers"], most=12) or "none", overlap if rows else "(itself)"
        rows.append((visible(each["model"]), *numbers, f"{each['open_edges']} of {each['edges']}", *names))
    columns = ("model", "total", f"heads for {share:.0%}", "modulated", "open edges", "carriers", "overlap")
    return Section(_ends(circuits[0], circuits[0].mapping()), columns=columns, rows=tuple(rows))


def _shared(first: Circuit, second: Circuit, share: float) -> list[str] | None:
    """The carriers of a mapping in both, or None where the two prompts or models differ in shape."""
    one, other = ((each.source.layers, each.source.heads, len(each.prompt)) for each in (first, second))
    mapping = first.mapping()
    try:
        carriers = second.mapping(*mapping.ends).carriers(share) if one == other else None
    except PromptError:
        return None
    return None if carriers is None else [str(head) for head in mapping.carriers(share) if head in carriers]


def _ends(circuit: Circuit, mapping: Mapping) -> str:
    return f"{token(circuit, mapping.key)} → {token(circuit, mapping.query)}"
