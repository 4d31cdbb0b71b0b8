"""One HTML file in which a circuit can be explored: no network, no server, nothing but the numbers of the circuit file.

1. Everything that is shown is packed as JSON; attention maps as their lower triangles, 8 bits a weight, base64.
2. Where the maps would make the file too large, those of the heads that do most are kept.
3. Style and script are written into the page, and its policy allows these two by their hash and nothing else; tokens enter as text only.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from circuits.errors import PromptError
from circuits.heads import Head
from circuits.show import scene, style

if TYPE_CHECKING:
    from circuits.prompts import Metric
    from circuits.tracing.records import Circuit, Mapping

_SCRIPTS: Final = ("data.js", "diagram.js", "heads.js", "page.js")
_MOST_BYTES: Final = 1_900_000  # of the page; what the numbers leave free is for the maps
_LEAST_MAP_BYTES: Final = 100_000  # per circuit, before base64
_LONGEST: Final = 40  # tokens of a sentence that is shown whole


def to_page(circuits: Circuit | Sequence[Circuit], *, title: str | None = None) -> str:
    """The page of one circuit, or of several side by side."""
    shown = tuple(circuits) if isinstance(circuits, Sequence) else (circuits,)
    if not shown:
        raise PromptError("a page needs at least one circuit")
    heading = title or scene.spell(shown[0].prompt.text, longest=120)
    same = {circuit.prompt.words: number for number, circuit in reversed(list(enumerate(shown)))}
    packed = [_packed(circuit, same[circuit.prompt.words]) for circuit in shown]
    free = _MOST_BYTES - len(_embedded(packed)) - 60_000
    for circuit, record in zip(shown, packed, strict=True):
        record["maps"] = _packed_maps(circuit, max(_LEAST_MAP_BYTES, free * 3 // 4 // len(shown)))
    scales = {name: getattr(style, name) for name in ("ATTENTION", "ATTENTION_DARK", "EFFECT", "EFFECT_DARK")}
    colours = "".join(
        f"--{name.lower()}: {getattr(style, name)}; " for name in ("RED", "INK", "MUTED", "LINE")
    )
    css = f":root {{ {colours}}}\n{_asset('page.css')}"
    script = '"use strict";\n(() => {\n' + "\n".join(_asset(name) for name in _SCRIPTS) + "})();\n"
    policy = f"default-src 'none'; style-src '{_hash(css)}'; script-src '{_hash(script)}'; base-uri 'none'; form-action 'none'"
    parts = {
        "title": html.escape(heading),
        "css": css,
        "script": script,
        "policy": html.escape(policy),
        "data": _embedded({"title": heading, "scales": scales, "circuits": packed}),
    }
    return Template(_asset("page.html")).substitute(parts)


def _asset(name: str) -> str:
    return (files("circuits.show") / "web" / name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _embedded(value: Any) -> str:
    """JSON that is safe inside a script element: ASCII, and no `<`, so that nothing in it can end the element."""
    return json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":")).replace(
        "<", "\\u003c"
    )


def _packed(circuit: Circuit, group: int) -> dict[str, Any]:
    source, front = circuit.source, scene.front(circuit)
    matter = [*scene.anchors(circuit), *(at for m in circuit.mappings[:12] for at in (m.key, m.query))]
    return {
        "group": group,
        "name": scene.spell(source.name, longest=60),
        "layers": source.layers,
        "heads": source.heads,
        "gated": source.gated,
        "open": source.open_edges,
        "edges": source.edges,
        "words": circuit.prompt.words,
        "spelled": [scene.spell(word) for word in circuit.prompt.words],
        "shown": scene.kept_positions(len(circuit.prompt), dict.fromkeys(matter), most=_LONGEST),
        "bos": source.reads_bos,
        "counterfactual": _other(circuit),
        "metric": _metric(circuit.metric),
        "clean": _short(circuit.clean_value),
        "changed": _short(circuit.counterfactual_value),
        "output": scene.output_lines(circuit),
        "front": None if front is None else [front.key, front.query],
        "asked": circuit.focus,
        "spans": [
            {"lines": scene.span_lines(span), "positions": span.positions, "effect": _short(span.effect)}
            for span in circuit.spans
        ],
        "mappings": [_packed_mapping(mapping, source.heads) for mapping in circuit.mappings],
    }


def _other(circuit: Circuit) -> str:
    """The counterfactual in words: what stands where the prompt differs."""
    words = getattr(circuit.counterfactual, "words", None)
    if words is None:
        return str(circuit.counterfactual)
    changed = [
        (at, a, b) for at, (a, b) in enumerate(zip(circuit.prompt.words, words, strict=True)) if a != b
    ]
    return ", ".join(f"{scene.spell(a)} → {scene.spell(b)} at {at}" for at, a, b in changed[:6]) + (
        " …" if len(changed) > 6 else ""
    )


def _metric(metric: Metric) -> str:
    foil = None if metric.foil_text is None else scene.spell(metric.foil_text)
    return str(replace(metric, answer_text=scene.spell(metric.answer_text), foil_text=foil))


def _packed_mapping(mapping: Mapping, width: int) -> dict[str, Any]:
    known = [
        [
            h.head.layer * width + h.head.index,
            *map(_short, (h.effect, h.restore, h.loading, h.weight, h.counterfactual_weight)),
        ]
        for h in mapping.heads
    ]
    return {
        "key": mapping.key,
        "query": mapping.query,
        "total": mapping.total,
        "restore": _short(mapping.restore),
        "heads": known,
        "path": [[step.head.layer * width + step.head.index, step.joint] for step in mapping.path],
        "controls": None
        if mapping.controls is None
        else asdict(mapping.controls)
        | {"key_totals": [_short(total) for total in mapping.controls.key_totals]},
    }


def _packed_maps(circuit: Circuit, most_bytes: int) -> dict[str, Any]:
    """The heads whose maps are in the page, and their lower triangles one after the other, 0…255."""
    width = circuit.source.heads
    triangle = np.tril_indices(len(circuit.prompt))
    kept = _by_importance(circuit)[: max(1, most_bytes // len(triangle[0]))]
    weights = [np.clip(np.asarray(circuit.pattern(head), dtype=float)[triangle], 0, 1) for head in kept]
    data = np.concatenate([(row * 255).round().astype(np.uint8) for row in weights]).tobytes()
    return {
        "heads": [head.layer * width + head.index for head in kept],
        "data": base64.b64encode(data).decode(),
    }


def _by_importance(circuit: Circuit) -> list[Head]:
    """Every head of the model: first the path of the mapping in front, then by the largest effect on any mapping, then in order."""
    front = scene.front(circuit)
    path = [step.head for step in front.path] if front else []
    everyone = [
        Head(layer, index) for layer in range(circuit.source.layers) for index in range(circuit.source.heads)
    ]
    return list(dict.fromkeys([*path, *circuit.heads(min_effect=0.0), *everyone]))


def _short(value: float) -> float:
    return round(float(value), 4)
