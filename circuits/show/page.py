"""One HTML file in which to explore circuits: no network, no server, only the numbers of the circuit files.

1. Circuits of one prompt stand side by side; of several prompts one is picked. Answers of `why` stand with
   the heads that they explain.
2. The script is written in small modules (`web/*.js`) and joined into one. The page's policy allows its own
   style and script, by their hash, and nothing else; tokens enter as text only.
3. Attention maps are packed as their lower triangles, 8 bits a weight; where they would make the file too
   large, those of the heads that do most are kept.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from circuits.components import Head
from circuits.errors import PromptError
from circuits.show import OUTPUT, Scene, canvas, counterfactual_words, metric_words, spell, to_scene

if TYPE_CHECKING:
    from circuits.tracing import Mapping
    from circuits.tracing.records import Circuit, Why

PURE: Final = ("words.js", "records.js", "address.js", "view.js", "layout.js")  # tested alone, without a page
_DRAWN: Final = ("diagram.js", "stage.js", "save.js", "heads.js", "inspector.js", "trust.js", "page.js")
_COLOURS: Final = ("RED", "INK", "MUTED", "LINE")
_MOST_BYTES: Final = 1_900_000  # of the page; what the numbers leave free is for the maps
_OWN_BYTES: Final = 130_000  # of the page without its data
_LEAST_MAP_BYTES: Final = 100_000  # per circuit, before base64
_LONGEST: Final = 40  # tokens of a sentence that is shown whole
_LONGEST_TITLE: Final = 600  # characters
_LISTED: Final = 12  # mappings whose ends are shown in a long sentence
_MANY: Final = 12_000  # numbers beyond which a page keeps four digits of each
_WRITERS: Final = 12  # of each side of a head


def to_page(
    circuits: Circuit | Sequence[Circuit],
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
    scenes = [to_scene(each, share) for each in (circuits if isinstance(circuits, Sequence) else (circuits,))]
    if not scenes:
        raise PromptError("a page needs at least one circuit")
    texts = [scene.circuit.prompt.text for scene in scenes]
    many = sum(len(mapping.heads) for scene in scenes for mapping in scene.circuit.mappings) > _MANY
    packed = []
    for number, scene in enumerate(scenes):
        ids = {"id": str(number), "group": texts.index(scene.circuit.prompt.text)}
        packed.append(pack(scene, why, digits=4 if many else None) | ids)
    free = _MOST_BYTES - len(embedded(packed)) - _OWN_BYTES
    for scene, record in zip(scenes, packed, strict=True):
        record["maps"] = pack_maps(scene, max(_LEAST_MAP_BYTES, free * 3 // 4 // len(scenes)))
    heading = title or packed[0]["prompt"]
    return fill_page({"circuits": packed, "share": scenes[0].graph.graph["share"]}, heading)


def fill_page(data: dict[str, Any], title: str, *, live: bool = False) -> str:
    """The page with this data; a live page has a panel to ask in, and may speak to where it came from."""
    colours = "".join(f"--{name.lower()}: {getattr(canvas, name)}; " for name in _COLOURS)
    css, script = f":root {{ {colours}}}\n{asset('page.css')}", script_of(live=live)
    allowed = f"style-src '{_hash(css)}'; script-src '{_hash(script)}'; img-src data:"
    allowed += "; connect-src 'self'" if live else ""
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    scales = {"ATTENTION": canvas.ATTENTION, "EFFECT": canvas.EFFECT}
    parts = {"title": html.escape(title), "css": css, "script": script, "policy": html.escape(policy)}
    parts["ask"] = asset("ask.html") if live else ""
    percent = round(data["share"] * 100)
    return Template(asset("page.html")).substitute(
        parts, data=embedded(data | {"scales": scales}), percent=percent
    )


def script_of(*, live: bool = False) -> str:
    """All modules of the script as one."""
    own = ("live.js", "ask.js") if live else ("offline.js",)
    names = (*PURE, "dom.js", "state.js", "colours.js", *_DRAWN, *own, "start.js")
    return '"use strict";\n(() => {\n' + "\n".join(asset(name) for name in names) + "})();\n"


def asset(name: str) -> str:
    """A part of the page."""
    return (files("circuits.show") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def embedded(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, and no `<`, so that nothing ends the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


# A circuit as the script reads it


def pack(scene: Scene, why: Iterable[Why] = (), *, digits: int | None = None) -> dict[str, Any]:
    """Everything that the page says of a circuit, but for its maps; `digits` rounds the numbers of heads."""
    circuit, source = scene.circuit, scene.circuit.source
    ends = [position for mapping in circuit.mappings[:_LISTED] for position in mapping.ends]
    question, drawn = circuit.question, set(scene.drawn)
    own = [answer for answer in why if _is_about(answer, circuit)]
    return {name: getattr(source, name) for name in ("layers", "heads", "gated", "edges")} | {
        "name": spell(source.name, longest=60),
        "prompt": spell(circuit.prompt.text, longest=_LONGEST_TITLE),
        "open": source.open_edges,
        "words": circuit.prompt.words,
        "spelled": [spell(word) for word in circuit.prompt.words],
        "shown": scene.shown(most=_LONGEST, also=ends, bos=True),
        "counterfactual": counterfactual_words(circuit),
        "metric": metric_words(circuit),
        "clean": circuit.clean_value,
        "changed": circuit.counterfactual_value,
        "output": scene.graph.nodes[OUTPUT]["lines"],
        "front": scene.cell,
        "asked": circuit.focus,
        "question": question and {"verdict": question.verdict, "reasons": question.reasons},
        "spans": _packed_spans(scene),
        "mappings": [_packed_mapping(each, source.heads, drawn, digits) for each in circuit.mappings],
        "whys": [pack_why(answer) for answer in own],
    }


def _is_about(why: Why, circuit: Circuit) -> bool:
    same = ("prompt", "counterfactual", "metric")
    return why.source.fingerprint == circuit.source.fingerprint and all(
        getattr(why, name) == getattr(circuit, name) for name in same
    )


def _packed_spans(scene: Scene) -> list[dict[str, Any]]:
    """Spans as the graph has them, with the effect of every layer."""
    measured = {}
    for span in scene.circuit.spans:
        curves = {"residual": _rounded(span.residual, 4), "writes": _rounded(span.writes, 4)}
        measured[span.positions, span.label] = curves | {"counterfactual": spell(span.counterfactual)}
    packed = []
    for name, node in scene.boxes:
        if node["kind"] == "span":
            own = {part: node[part] for part in ("lines", "positions", "layers", "ranges", "effect")}
            packed.append({"name": name} | own | measured[tuple(node["positions"]), node["label"]])
    return packed


def _packed_mapping(
    mapping: Mapping, width: int, drawn: set[tuple[int, int]], digits: int | None
) -> dict[str, Any]:
    """Every number of a mapping; heads by their number in the model, `width` to a layer."""
    heads = []
    for each in mapping.heads:
        values = (each.effect, each.restore, each.loading, each.weight, each.counterfactual_weight)
        heads.append([_number(each.head, width), *_rounded(values, digits)])
    controls = None if mapping.controls is None else asdict(mapping.controls)
    if controls is not None:
        controls["key_totals"] = _rounded(controls["key_totals"], digits)
    sides = []
    for side in mapping.sides:
        values = (side.query, side.key, side.value, side.pattern, side.query_weight, side.key_weight)
        sides.append([_number(side.head, width), *_rounded(values, digits)])
    return {
        "key": mapping.key,
        "query": mapping.query,
        "total": mapping.total,
        "restore": mapping.restore,
        "heads": heads,
        "path": [[_number(step.head, width), step.joint] for step in mapping.path],
        "controls": controls,
        "sides": sides,
        "doubts": mapping.doubts,
        "drawn": mapping.ends in drawn,
    }


def pack_why(why: Why) -> dict[str, Any]:
    """The three sides of a head and who wrote them."""
    sides = []
    for side in why.sides:
        writers = [
            [str(each.writer), each.position, each.effect, each.weight] for each in side.writers[:_WRITERS]
        ]
        sides.append({"side": side.side, "effect": side.effect, "weight": side.weight, "writers": writers})
    head = _number(why.head, why.source.heads)
    return {"head": head, "key": why.key, "query": why.query, "pattern": why.pattern, "sides": sides}


def pack_maps(scene: Scene, most_bytes: int = _LEAST_MAP_BYTES) -> dict[str, Any]:
    """The heads whose maps are in the page, and their lower triangles one after the other, 0…255.

    First come the path of the mapping in front, then the heads with the largest effect on any mapping.
    """
    circuit, source = scene.circuit, scene.circuit.source
    path = [step.head for step in circuit.front.path] if circuit.front else []
    all_heads = [Head(layer, index) for layer in range(source.layers) for index in range(source.heads)]
    triangle = np.tril_indices(len(circuit.prompt))
    heads = dict.fromkeys([*path, *circuit.heads(min_effect=0.0), *all_heads])
    kept = [head for head in heads if circuit.has_map(head)][: max(1, most_bytes // len(triangle[0]))]
    weights = np.stack([np.asarray(circuit.pattern(head), dtype=float)[triangle] for head in kept])
    data = (np.clip(weights, 0, 1) * 255).round().astype(np.uint8).tobytes()
    return {"heads": [_number(head, source.heads) for head in kept], "data": base64.b64encode(data).decode()}


def _number(head: Head, width: int) -> int:
    return head.layer * width + head.index


def _rounded(values: Iterable[float | None], digits: int | None) -> list[float | None]:
    if digits is None:
        return list(values)
    return [None if value is None else round(float(value), digits) for value in values]
