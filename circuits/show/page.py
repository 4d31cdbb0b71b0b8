"""One HTML file in which to explore a circuit: no network, no server, only the numbers of the circuit file.

Attention maps are packed as their lower triangles, 8 bits a weight; where they would make the file too
large, those of the heads that do most are kept. The page's policy allows its own style and script, by their
hash, and nothing else; tokens enter as text only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import asdict
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from circuits.errors import PromptError
from circuits.heads import Head
from circuits.show import canvas
from circuits.show.scene import OUTPUT, Scene, counterfactual_words, metric_words, spell, to_scene

if TYPE_CHECKING:
    from circuits.tracing.records import Circuit, Mapping

_SCRIPTS: Final = ("data.js", "diagram.js", "heads.js", "page.js")
_COLOURS: Final = ("RED", "INK", "MUTED", "LINE")
_MOST_BYTES: Final = 1_900_000  # of the page; what the numbers leave free is for the maps
_LEAST_MAP_BYTES: Final = 100_000  # per circuit, before base64
_LONGEST: Final = 40  # tokens of a sentence that is shown whole
_LISTED: Final = 12  # mappings whose ends are shown in a long sentence


def to_page(
    circuits: Circuit | Sequence[Circuit], *, share: float | None = None, title: str | None = None
) -> str:
    """The page of one circuit, or of several side by side; opened at `share`, by default the first's.

    >>> show.to_page(found)[:15]
    '<!doctype html>'
    """
    scenes = [to_scene(each, share) for each in (circuits if isinstance(circuits, Sequence) else (circuits,))]
    if not scenes:
        raise PromptError("a page needs at least one circuit")
    prompts = [scene.circuit.prompt for scene in scenes]
    heading, words = title or spell(prompts[0].text, longest=120), [prompt.words for prompt in prompts]
    packed = [_packed(scene, words.index(scene.circuit.prompt.words)) for scene in scenes]
    free = _MOST_BYTES - len(_embedded(packed)) - 60_000
    for scene, record in zip(scenes, packed, strict=True):
        record["maps"] = _packed_maps(scene, max(_LEAST_MAP_BYTES, free * 3 // 4 // len(scenes)))
    colours = "".join(f"--{name.lower()}: {getattr(canvas, name)}; " for name in _COLOURS)
    css = f":root {{ {colours}}}\n{_asset('page.css')}"
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    allowed = f"style-src '{_hash(css)}'; script-src '{_hash(script)}'"
    policy = f"default-src 'none'; {allowed}; base-uri 'none'; form-action 'none'"
    opened, scales = scenes[0].graph.graph["share"], {"ATTENTION": canvas.ATTENTION, "EFFECT": canvas.EFFECT}
    data = _embedded({"title": heading, "share": opened, "scales": scales, "circuits": packed})
    parts = {"title": html.escape(heading), "css": css, "script": script, "policy": html.escape(policy)}
    return Template(_asset("page.html")).substitute(parts, data=data, percent=round(opened * 100))


def _asset(name: str) -> str:
    return (files("circuits.show") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, and no `<`, so that nothing ends the element."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def _packed(scene: Scene, group: int) -> dict[str, Any]:
    circuit, source = scene.circuit, scene.circuit.source
    ends = [position for mapping in circuit.mappings[:_LISTED] for position in (mapping.key, mapping.query)]
    spans = [node for _, node in scene.boxes if node["kind"] == "span"]
    return {name: getattr(source, name) for name in ("layers", "heads", "gated", "edges")} | {
        "group": group,
        "name": spell(source.name, longest=60),
        "open": source.open_edges,
        "words": circuit.prompt.words,
        "spelled": [spell(word) for word in circuit.prompt.words],
        "shown": scene.shown(most=_LONGEST, also=ends, bos=True),
        "counterfactual": counterfactual_words(circuit),
        "metric": metric_words(circuit),
        "clean": _short(circuit.clean_value),
        "changed": _short(circuit.counterfactual_value),
        "output": scene.graph.nodes[OUTPUT]["lines"],
        "front": scene.cell,
        "asked": circuit.focus,
        "spans": [{"lines": node["lines"], "positions": node["positions"]} for node in spans],
        "mappings": [_packed_mapping(mapping, source.heads) for mapping in circuit.mappings],
    }


def _packed_mapping(mapping: Mapping, width: int) -> dict[str, Any]:
    """Every number of a mapping; heads by their number in the model, `width` to a layer."""
    heads = []
    for each in mapping.heads:
        values = (each.effect, each.restore, each.loading, each.weight, each.counterfactual_weight)
        heads.append([_number(each.head, width), *(None if v is None else _short(v) for v in values)])
    controls = None if mapping.controls is None else asdict(mapping.controls)
    if controls is not None:
        controls["key_totals"] = [_short(total) for total in controls["key_totals"]]
    path = [[_number(step.head, width), step.joint] for step in mapping.path]
    ends = {"key": mapping.key, "query": mapping.query, "total": mapping.total}
    return ends | {"restore": _short(mapping.restore), "heads": heads, "path": path, "controls": controls}


def _packed_maps(scene: Scene, most_bytes: int) -> dict[str, Any]:
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


def _short(value: float) -> float:
    return round(float(value), 4)
