"""One HTML file in which to explore circuits: no network, no server, only the numbers of the circuit files.

1. Circuits of one prompt stand side by side; of several prompts one is picked. Answers of `why` stand with
   the heads that they explain.
2. `pack` turns a circuit into what the script reads. Everything that does not depend on what the reader
   chooses is decided here, among it the carriers at every share. `page_layout` says where all of it stands.
3. `fill_page` puts data, style and script into the page. The page's policy allows its own style and script,
   by their hash, and nothing else; tokens enter as text only.
4. Attention maps are packed as their lower triangles, 8 bits a weight. Where they would make the file too
   large, those of the heads with the largest effects are kept.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from operator import attrgetter
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from circuits.components import Head
from circuits.errors import PromptError
from circuits.prompts import Prompt
from circuits.show import (
    OUTPUT,
    Scene,
    canvas,
    counterfactual_words,
    metric_words,
    spell,
    to_scene,
)
from circuits.show.bundle import bundle, web_file
from circuits.show.page_layout import lay_out_page

if TYPE_CHECKING:
    from circuits.tracing import Mapping
    from circuits.tracing.records import Circuit
    from circuits.tracing.why_record import Why

_MOST_BYTES: Final = 1_900_000  # of the page; what the numbers leave free is for the maps
_LEAST_MAP_BYTES: Final = 100_000  # per circuit, before base64
_MOST_TOKENS: Final = 40  # of a sentence that is shown whole
_LONGEST_TITLE: Final = 600  # characters
_LONGEST_CHOICE: Final = 80  # characters of a prompt in the picker
_LONGEST_LABEL: Final = 16  # characters of a token in the diagram
_LISTED: Final = 12  # mappings whose ends are shown in a long sentence
_MOST_EXACT: Final = 12_000  # heads' numbers; a page with more keeps four digits of each
_WRITERS: Final = 12  # of each side of a head
# What the page says of a head, and of a head's sides, in the order in which `unpackMapping` reads it.
_HEAD_NUMBERS: Final = attrgetter(
    "effect", "restore", "loading", "weight", "counterfactual_weight"
)
_SIDE_NUMBERS: Final = attrgetter(
    "query", "key", "value", "pattern", "query_weight", "key_weight"
)


def to_page(
    circuits: Circuit | Scene | Sequence[Circuit | Scene],
    *,
    share: float | None = None,
    title: str | None = None,
    why: Sequence[Why] = (),
) -> str:
    """The page of one circuit, or of several; opened at `share`, by default the first's.

    Circuits of the same prompt stand side by side, and a picker chooses the prompt. `why` are answers to be
    shown with the heads that they explain.

    >>> show.to_page(found)[:15]
    '<!doctype html>'
    """
    listed = circuits if isinstance(circuits, Sequence) else (circuits,)
    if not listed:
        raise PromptError("a page needs at least one circuit")
    scenes = [to_scene(circuit, share) for circuit in listed]
    prompts = [scene.circuit.prompt.text for scene in scenes]
    numbers = 0
    for scene in scenes:
        numbers += sum(len(mapping.heads) for mapping in scene.circuit.mappings)
    digits = 4 if numbers > _MOST_EXACT else None
    packed = []
    for index, scene in enumerate(scenes):
        record = pack(scene, why, digits=digits)
        record["id"] = str(index)
        record["group"] = prompts.index(prompts[index])
        packed.append(record)
    data = {"circuits": packed, "share": scenes[0].graph.graph["share"]}
    heading = title or packed[0]["prompt"]
    free = _MOST_BYTES - len(fill_page(data, heading))
    # Base64 turns 3 bytes into 4.
    bytes_each = max(_LEAST_MAP_BYTES, free * 3 // 4 // len(scenes))
    for scene, record in zip(scenes, packed, strict=True):
        record["maps"] = pack_maps(scene, bytes_each)
    return fill_page(data, heading)


def fill_page(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page with this data. A live page has a panel to ask in, and may connect to its own server."""
    css = _colours() + web_file("page.css")
    script = bundle("live" if live else "main")
    policy = [
        "default-src 'none'",
        f"style-src '{_hash(css)}'",
        f"script-src '{_hash(script)}'",
        "img-src data:",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    if live:
        policy.append("connect-src 'self'")
    scales = {"ATTENTION": canvas.ATTENTION, "EFFECT": canvas.EFFECT}
    return Template(web_file("page.html")).substitute(
        title=html.escape(title),
        policy=html.escape("; ".join(policy)),
        css=css,
        script=script,
        ask=web_file("ask.html") if live else "",
        percent=round(data["share"] * 100),
        data=_to_script_json(data | {"scales": scales}),
    )


def _colours() -> str:
    """The colours that the page shares with the figures."""
    shared = {"red": canvas.RED, "ink": canvas.INK, "muted": canvas.MUTED, "line": canvas.LINE}
    return (
        ":root {" + "".join(f" --{name}: {colour};" for name, colour in shared.items()) + " }\n"
    )


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _to_script_json(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, and no `<`, so that nothing ends the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


# A circuit as the script reads it


def pack(scene: Scene, why: Iterable[Why] = (), *, digits: int | None = None) -> dict[str, Any]:
    """All that the page says of a circuit, without its maps; `digits` rounds the numbers of heads."""
    circuit = scene.circuit
    source = circuit.source
    words = circuit.prompt.words
    question = circuit.question
    ends = [position for mapping in circuit.mappings[:_LISTED] for position in mapping.ends]
    shown = scene.shown(most=_MOST_TOKENS, also=ends, bos=True)
    labels = [spell(word, longest=_LONGEST_LABEL) for word in words]
    carriers = {mapping.ends: _carriers_at_shares(mapping) for mapping in circuit.mappings}
    drawn = scene.drawn
    mappings = []
    for mapping in circuit.mappings:
        record = _pack_mapping(mapping, source.heads, digits)
        record["carriers"] = carriers[mapping.ends]
        record["drawn"] = mapping.ends in drawn
        mappings.append(record)
    return {
        "name": spell(source.name, longest=60),
        "prompt": spell(circuit.prompt.text, longest=_LONGEST_TITLE),
        "choice": _choice(circuit),
        "model_line": _model_line(circuit),
        "question_line": _question_line(circuit),
        "layers": source.layers,
        "heads": source.heads,
        "words": words,
        "spelled": [spell(word) for word in words],
        "labels": labels,
        "output": scene.graph.nodes[OUTPUT]["lines"],
        "front": scene.cell,
        "asked": circuit.focus,
        "question": question and {"verdict": question.verdict, "reasons": question.reasons},
        "spans": _pack_spans(scene),
        "mappings": mappings,
        "picture": lay_out_page(scene, shown, labels, carriers),
        "program": _program(circuit),
        "whys": [pack_why(answer) for answer in why if _is_about(answer, circuit)],
    }


def _choice(circuit: Circuit) -> str:
    """How the picker names a circuit: its prompt, and the mapping that was asked for."""
    prompt = spell(circuit.prompt.text, longest=_LONGEST_CHOICE)
    if circuit.focus is None:
        return prompt
    ends = [
        f"{spell(circuit.prompt.words[position])} ({position})" for position in circuit.focus
    ]
    return f"{prompt}, {' → '.join(ends)}"


def _model_line(circuit: Circuit) -> str:
    """`12 × 12 heads · gated · 659 of 6,480 edges open (10%)`."""
    source = circuit.source
    percent = 100 * source.open_edges / source.edges if source.edges else 0.0
    share = f"{percent:.1f}%" if percent < 10 else f"{percent:.0f}%"
    kind = "gated" if source.gated else "dense"
    edges = f"{source.open_edges:,} of {source.edges:,} edges open ({share})"
    return f"{source.layers} × {source.heads} heads · {kind} · {edges}"


def _question_line(circuit: Circuit) -> str:
    """`logit(small) − logit(cold) · prompt 13.85, counterfactual −12.18 (large(5) → hot)`."""
    clean = f"{circuit.clean_value:z.2f}".replace("-", "−")
    changed = f"{circuit.counterfactual_value:z.2f}".replace("-", "−")
    values = f"prompt {clean}, counterfactual {changed}"
    changes = counterfactual_words(circuit)
    if circuit.family is not None:
        changes += f", mean of {len(circuit.family.counted)} pairs"
    return f"{metric_words(circuit)} · {values} ({changes})"


def _program(circuit: Circuit) -> list[str] | None:
    """The Python that measures another mapping of the pair: what stands before its key, between key and query,
    and after its query. None where the metric is a function, which no file holds."""
    metric = circuit.metric
    if metric.kind == "custom":
        return None
    options = ""
    if isinstance(circuit.counterfactual, Prompt):
        options += f", counterfactual={circuit.counterfactual.text!r}"
    if metric.kind == "logit_diff":
        options += f", answer={metric.answer_text!r}, foil={metric.foil_text!r}"
    else:
        options += f", metric={metric.kind!r}"
    load = f"model = circuits.load({circuit.source.name!r})"
    before = f"import circuits\n\n{load}\nfound = circuits.trace(model, {circuit.prompt.text!r}, key="
    return [before, ", query=", f"{options})\nprint(found)\n"]


def _is_about(why: Why, circuit: Circuit) -> bool:
    """Whether an answer of `why` was measured on this circuit's model and question."""
    return (
        why.source.fingerprint == circuit.source.fingerprint
        and why.prompt == circuit.prompt
        and why.counterfactual == circuit.counterfactual
        and why.metric == circuit.metric
    )


def _pack_spans(scene: Scene) -> list[dict[str, Any]]:
    """Spans as the graph has them, with the effect of every layer."""
    measured = {(span.positions, span.label): span for span in scene.circuit.spans}
    packed = []
    for name, node in scene.boxes:
        if node["kind"] != "span":
            continue
        span = measured[tuple(node["positions"]), node["label"]]
        record = {"name": name, "lines": node["lines"], "positions": node["positions"]}
        record |= {"layers": node["layers"], "ranges": node["ranges"], "effect": node["effect"]}
        record["residual"] = _rounded(span.residual, 4)
        record["writes"] = _rounded(span.writes, 4)
        record["counterfactual"] = spell(span.counterfactual)
        packed.append(record)
    return packed


def _carriers_at_shares(mapping: Mapping) -> list[int]:
    """How many heads of the path carry a mapping at 1%, 2%, … 100% of its total."""
    return [len(mapping.carriers(percent / 100)) for percent in range(1, 101)]


def _pack_mapping(mapping: Mapping, width: int, digits: int | None) -> dict[str, Any]:
    """Every number of a mapping; a head is its number in the model, `width` heads to a layer."""
    heads = []
    for each in mapping.heads:
        heads.append([_number(each.head, width), *_rounded(_HEAD_NUMBERS(each), digits)])
    sides = []
    for side in mapping.sides:
        sides.append([_number(side.head, width), *_rounded(_SIDE_NUMBERS(side), digits)])
    path = []
    for step in mapping.path:
        path.append([_number(step.head, width), *_rounded([step.joint], digits)])
    controls = None
    if mapping.controls is not None:
        controls = asdict(mapping.controls)
        controls["key_totals"] = _rounded(controls["key_totals"], digits)
    return {
        "key": mapping.key,
        "query": mapping.query,
        "total": mapping.total,
        "restore": mapping.restore,
        "heads": heads,
        "path": path,  # [head, joint effect up to it]
        "controls": controls,
        "sides": sides,
        "doubts": mapping.doubts,
    }


def pack_why(why: Why) -> dict[str, Any]:
    """The three sides of a head and who wrote them."""
    sides = []
    for side in why.sides:
        writers = []
        for part in side.writers[:_WRITERS]:
            writers.append([str(part.writer), part.position, part.effect, part.weight])
        sides.append(
            {
                "side": side.side,
                "effect": side.effect,
                "weight": side.weight,
                "writers": writers,
            }
        )
    head = _number(why.head, why.source.heads)
    return {
        "head": head,
        "key": why.key,
        "query": why.query,
        "pattern": why.pattern,
        "sides": sides,
    }


def pack_maps(scene: Scene, most_bytes: int = _LEAST_MAP_BYTES) -> dict[str, Any]:
    """The heads whose maps are in the page, and their lower triangles one after the other, 0…255.

    First come the path of the mapping in front, then the heads with the largest effect on any mapping.
    """
    circuit = scene.circuit
    source = circuit.source
    path = [step.head for step in circuit.front.path] if circuit.front else []
    by_effect = circuit.heads(min_effect=0.0)
    all_heads = [
        Head(layer, index) for layer in range(source.layers) for index in range(source.heads)
    ]
    ordered = dict.fromkeys([*path, *by_effect, *all_heads])
    triangle = np.tril_indices(len(circuit.prompt))
    most = max(1, most_bytes // len(triangle[0]))
    kept = [head for head in ordered if circuit.has_map(head)][:most]
    weights = np.stack(
        [np.asarray(circuit.pattern(head), dtype=float)[triangle] for head in kept]
    )
    data = (np.clip(weights, 0, 1) * 255).round().astype(np.uint8).tobytes()
    numbers = [_number(head, source.heads) for head in kept]
    return {"heads": numbers, "data": base64.b64encode(data).decode()}


def _number(head: Head, width: int) -> int:
    return head.layer * width + head.index


def _rounded(values: Iterable[float | None], digits: int | None) -> list[float | None]:
    if digits is None:
        return list(values)
    return [None if value is None else round(float(value), digits) for value in values]
