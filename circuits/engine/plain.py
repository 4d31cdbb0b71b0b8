"""The plain path: the same rows through the model's own forward, one copy of the prompt per row, edited at TransformerLens hooks.

Slower than the fast path and just as exact; it is what runs where a block's layout is not known, and what the fast path is tested
against.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int

from circuits.engine.rows import Cache, Change, ChangeTable, Layer, NewValues, Row, Site
from circuits.models.model import Model

Hook = tuple[str, Callable[[torch.Tensor, Any], torch.Tensor | None]]


def run(
    model: Model, tokens: Int[torch.Tensor, "pair pos"], noise: Float[torch.Tensor, "pair pos d_model"] | None
) -> tuple[Cache, torch.Tensor]:
    """A whole run with everything kept, and its logits at the last position."""
    kept: dict[str, torch.Tensor] = {}

    def keep(value: torch.Tensor, hook: Any, *, name: str) -> None:
        kept[name] = value.detach().clone()

    names = (
        "hook_resid_pre",
        "attn.hook_pattern",
        "attn.hook_v",
        "attn.hook_z",
        "hook_attn_out",
        "hook_mlp_out",
    )
    wanted = [f"blocks.{layer}.{name}" for layer in range(model.n_layers) for name in names]
    wanted.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    hooks: list[Hook] = [
        *_noise_hook(noise),
        *((name, lambda value, hook, name=name: keep(value, hook, name=name)) for name in wanted),
    ]
    with model.hooked(hooks):
        logits = model.forward(tokens)[:, -1]
    missing = [name for name in wanted if name not in kept]
    if missing:
        raise RuntimeError(f"hooks that did not fire: {', '.join(missing)}")
    layers = [
        _layer(model, *(kept[f"blocks.{layer}.{name}"] for name in names)) for layer in range(model.n_layers)
    ]
    return Cache(tuple(layers), kept[wanted[-1]]), logits


def _layer(
    model: Model,
    pre: torch.Tensor,
    pattern: torch.Tensor,
    value: torch.Tensor,
    z: torch.Tensor,
    attention: torch.Tensor,
    mlp: torch.Tensor,
) -> Layer:
    spread = repeat(value, "p t h d -> p (h g) t d", g=model.n_heads // value.shape[2])
    return Layer(
        pre, pattern, spread, z.unflatten(-1, (model.n_heads, -1)) if z.ndim == 3 else z, attention, mlp
    )


def carry(
    model: Model,
    tokens: Int[torch.Tensor, "pair pos"],
    noise: Float[torch.Tensor, "pair pos d_model"] | None,
    new: NewValues,
    rows: Sequence[Row],
    *,
    knockout: bool,
    budget: int,
) -> Float[torch.Tensor, "pair row vocab"]:
    """The logits of every row at the last position, at most `budget` bytes of rows at a time."""
    pairs, length = tokens.shape
    numbers = pairs * length * (16 * model.d_model + 3 * model.n_heads * length + model.vocab_size)
    step = max(1, budget // (4 * numbers))
    return torch.cat(
        [
            _carry(model, tokens, noise, new, rows[at : at + step], knockout)
            for at in range(0, len(rows), step)
        ],
        dim=1,
    )


def _carry(
    model: Model,
    tokens: torch.Tensor,
    noise: torch.Tensor | None,
    new: NewValues,
    rows: Sequence[Row],
    knockout: bool,
) -> Float[torch.Tensor, "pair row vocab"]:
    changes: dict[tuple[int, Site], list[tuple[int, Change]]] = defaultdict(list)
    for index, row in enumerate(rows):
        for change in row.changes:
            changes[change.layer, change.site].append((index, change))
    count = len(rows)
    hooks = _noise_hook(None if noise is None else repeat(noise, "p t d -> (p r) t d", r=count))
    for (layer, site), listed in changes.items():
        table = ChangeTable.of(listed, tokens.device)
        hooks += (
            _edge_hooks(layer, table, new, count, model, knockout)
            if site == "edge"
            else [_site_hook(layer, site, table, new, count, model)]
        )
    with model.hooked(hooks):
        logits = model.forward(repeat(tokens, "p t -> (p r) t", r=count))[:, -1]
    return rearrange(logits, "(p r) v -> p r v", r=count)


def _noise_hook(noise: torch.Tensor | None) -> list[Hook]:
    return [] if noise is None else [("embed.hook_out", lambda embedded, hook: embedded + noise)]


def _rows_of(value: torch.Tensor, rows: int) -> torch.Tensor:
    """(pair·row, …) as (pair, row, …), sharing memory."""
    return value.unflatten(0, (-1, rows))


def _site_hook(layer: int, site: Site, table: ChangeTable, new: NewValues, rows: int, model: Model) -> Hook:
    """Set a head's output, a block's write or the residual stream."""

    def edit(value: torch.Tensor, hook: Any) -> torch.Tensor:
        value = value.clone()
        split = _rows_of(value, rows)
        match site:
            case "head":
                split.unflatten(3, (model.n_heads, -1))[:, table.row, table.position, table.head] = new.head(
                    layer, table.head, table.position
                )
            case "attention":
                split[:, table.row, table.position] = new.attention(layer, table.position)
            case "mlp":
                split[:, table.row, table.position] = new.mlp(layer, table.position)
            case _:
                split[:, table.row, table.position] = new.residual(layer, table.position)
        return value

    def edit_heads(value: torch.Tensor, hook: Any) -> torch.Tensor:
        return edit(value.flatten(2), hook).view(value.shape)

    if site == "residual" and layer == model.n_layers:
        return f"blocks.{layer - 1}.hook_resid_post", edit
    names = {
        "head": "attn.hook_z",
        "attention": "hook_attn_out",
        "mlp": "hook_mlp_out",
        "residual": "hook_resid_pre",
    }
    return f"blocks.{layer}.{names[site]}", edit_heads if site == "head" else edit


def _edge_hooks(
    layer: int, table: ChangeTable, new: NewValues, rows: int, model: Model, knockout: bool
) -> list[Hook]:
    """Replace messages: note the pattern and the values of this very run, take each message out of `z` and put the new one in."""
    where = f"blocks.{layer}.attn"
    if knockout:
        silent: list[
            torch.Tensor
        ] = []  # queries whose every key is knocked out; the model's own mask would let them read the future

        def shut(scores: torch.Tensor, hook: Any) -> torch.Tensor:
            scores = scores.clone()
            _rows_of(scores, rows)[:, table.row, table.head, table.position, table.key] = -torch.inf
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            silent.append((scores.isneginf() | future).all(-1, keepdim=True))
            return scores

        return [
            (f"{where}.hook_attn_scores", shut),
            (f"{where}.hook_pattern", lambda pattern, hook: pattern.masked_fill(silent.pop(), 0.0)),
        ]
    now: dict[str, torch.Tensor] = {}
    group = model.n_heads // model.n_key_value_heads

    def note_value(value: torch.Tensor, hook: Any) -> None:
        now["value"] = _rows_of(value, rows)[:, table.row, table.key, table.head // group]

    def note_weight(pattern: torch.Tensor, hook: Any) -> None:
        now["weight"] = _rows_of(pattern, rows)[:, table.row, table.head, table.position, table.key]

    def replace(z: torch.Tensor, hook: Any) -> torch.Tensor:
        change = (
            new.message(layer, table.head, table.key, table.position)
            - now["weight"][..., None] * now["value"]
        )
        flat = (
            _rows_of(z, rows).reshape(change.shape[0], -1, change.shape[-1]).clone()
        )  # (pair, row·pos·head, d_head)
        place = (table.row * z.shape[1] + table.position) * model.n_heads + table.head
        return flat.index_add_(1, place, change).view(z.shape)

    return [
        (f"{where}.hook_v", note_value),
        (f"{where}.hook_pattern", note_weight),
        (f"{where}.hook_z", replace),
    ]
