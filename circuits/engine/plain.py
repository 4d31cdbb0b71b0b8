"""The plain path: the same rows through the model's own forward, one copy of the prompt for each row, edited
at TransformerLens hooks.

It is slower than our own forward and just as exact. It measures models whose layout is not known, and it is
the reference that our own forward is tested against.

1. A message is replaced in the heads' outputs `z`, in front of the output projection: the message that the
   row's own run has there is subtracted, the new one is added.
2. Some bridges leave attention to Hugging Face and show the pattern only after `z` has been used. There the
   rows run several times, until every layer knows its pattern from the run before: one more time than one row
   has layers with changed edges. Knockout edits scores, which such bridges ignore, so it is refused.
3. Of a model on several devices each block edits on its own; the logits come back to the embedding's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int

from circuits.engine.cache import Cache, Layer, LayersOnCPU, Replacement
from circuits.engine.forward import add_to_heads
from circuits.engine.memory import stream_bytes, streams_at_once
from circuits.engine.rows import ChangeTable, Row, Site, changes_by_site
from circuits.errors import ModelError
from circuits.models.model import Model

Hook = tuple[str, Callable[[torch.Tensor, Any], torch.Tensor | None]]
Tokens = Int[torch.Tensor, "input pos"]
Noises = Float[torch.Tensor, "input pos d_model"] | None
Logits = Float[torch.Tensor, "input row read vocab"]
HOOK_OF: Final[dict[Site, str]] = {
    "residual": "hook_resid_pre",
    "head": "attn.hook_z",
    "attention": "hook_attn_out",
    "mlp": "hook_mlp_out",
}
KEPT: Final = ("attn.hook_pattern", "attn.hook_v", *HOOK_OF.values())


def run(
    model: Model, tokens: Tokens, noise: Noises, *, read: int = 1, offload: bool = False
) -> tuple[Cache, Float[torch.Tensor, "input read vocab"]]:
    """Run prompts and keep everything, with `offload` on the CPU; also the logits at the last `read`
    positions."""
    kept: dict[str, torch.Tensor] = {}

    def keep(value: torch.Tensor, hook: Any, *, name: str) -> None:
        copied = value.detach().clone()
        kept[name] = copied.cpu() if offload and name != final else copied

    wanted = []
    for layer in range(model.n_layers):
        wanted += [f"blocks.{layer}.{name}" for name in KEPT]
    final = f"blocks.{model.n_layers - 1}.hook_resid_post"
    wanted.append(final)
    hooks = [(name, partial(keep, name=name)) for name in wanted]
    with model.hooked([*_noise_hook(noise), *hooks]):
        logits = model.forward(tokens)[:, -read:].to(model.device)
    missing = [name for name in wanted if name not in kept]
    if missing:
        raise RuntimeError(f"hooks that did not fire: {', '.join(missing)}")
    layers = []
    on_cpu = LayersOnCPU()
    for number in range(model.n_layers):
        layer = _layer(model, {name: kept[f"blocks.{number}.{name}"] for name in KEPT})
        if offload:
            on_cpu.append(layer, model.device_of(number))
        else:
            layers.append(layer)
    return Cache(on_cpu if offload else tuple(layers), kept[final]), logits


def _layer(model: Model, kept: Mapping[str, torch.Tensor]) -> Layer:
    """What was kept at the hooks of one block, with values repeated for every head that reads them."""
    value = kept["attn.hook_v"]
    sharing = model.n_heads // value.shape[2]  # heads that share one value
    z = kept["attn.hook_z"]
    return Layer(
        pre=kept["hook_resid_pre"],
        value=repeat(value, "i t h d -> i (h g) t d", g=sharing),
        z=z.unflatten(-1, (model.n_heads, -1)) if z.ndim == 3 else z,
        attention=kept["hook_attn_out"],
        mlp=kept["hook_mlp_out"],
        kept_pattern=kept["attn.hook_pattern"],
    )


def copy_bytes(model: Model, length: int) -> int:
    """Bytes that one copy of a prompt takes in the model's own forward."""
    return stream_bytes(
        d_model=model.d_model, heads=model.n_heads, length=length, vocab=model.vocab_size
    )


def run_rows(
    model: Model,
    tokens: Tokens,
    noise: Noises,
    new: Replacement,
    rows: Sequence[Row],
    *,
    budget: int,
    read: int = 1,
    knockout: bool = False,
) -> Logits:
    """The logits of every row at the last `read` positions."""
    if knockout and not model.edits_attention:
        raise ModelError(f"knockout cannot be measured here: {model.no_scores}; use zero")
    inputs, length = tokens.shape
    step = streams_at_once(budget, inputs * copy_bytes(model, length))
    parts = []
    for first in range(0, len(rows), step):
        batch = HookedRows(model, new, rows[first : first + step], knockout)
        parts.append(batch.logits(tokens, noise)[:, :, -read:])
    return torch.cat(parts, dim=1)


@dataclass(frozen=True)
class HookedRows:
    """Rows that pass through the model's forward together, as a batch of inputs times rows."""

    model: Model
    new: Replacement
    rows: Sequence[Row]
    knockout: bool

    def logits(
        self, tokens: Tokens, noise: Noises
    ) -> Float[torch.Tensor, "input row pos vocab"]:
        """The logits of every row at every position."""
        count = len(self.rows)
        if noise is not None:
            noise = repeat(noise, "i t d -> (i r) t d", r=count)
        hooks = _noise_hook(noise)
        for (layer, site), changes in changes_by_site(self.rows).items():
            table = ChangeTable.of(changes, self.model.device_of(layer))
            if site != "edge":
                hooks.append(self._site_hook(layer, site, table))
            elif self.knockout:
                hooks += self._knockout_hooks(layer, table)
            else:
                hooks += self._edge_hooks(layer, table)
        copies = repeat(tokens, "i t -> (i r) t", r=count)
        with self.model.hooked(hooks):
            for _ in range(self._times() - 1):
                self.model.forward(copies)  # only to note the patterns
            logits = self.model.forward(copies).to(tokens.device)
        return rearrange(logits, "(i r) t v -> i r t v", r=count)

    def _times(self) -> int:
        """How often the rows must run until every layer knows its pattern beforehand."""
        if self.model.edits_attention:
            return 1
        most = 0
        for row in self.rows:
            layers = {change.layer for change in row.changes if change.site == "edge"}
            most = max(most, len(layers))
        return 1 + most

    def _by_row(self, value: torch.Tensor) -> torch.Tensor:
        """(input·row, …) as (input, row, …), sharing memory."""
        return value.unflatten(0, (-1, len(self.rows)))

    def _site_hook(self, layer: int, site: Site, table: ChangeTable) -> Hook:
        """Set a head's output, a block's write or the residual stream."""

        def set_heads(z: torch.Tensor, hook: Any) -> torch.Tensor:
            edited = z.clone()
            # Some bridges show `z` with heads, (…, pos, head, d_head), others with one row a position.
            heads = self._by_row(edited.flatten(2)).unflatten(3, (self.model.n_heads, -1))
            new = self.new.values(layer, site, table)
            heads[:, table.row, table.position, table.head] = new
            return edited

        def set_stream(value: torch.Tensor, hook: Any) -> torch.Tensor:
            edited = value.clone()
            new = self.new.values(layer, site, table)
            self._by_row(edited)[:, table.row, table.position] = new
            return edited

        if site == "residual" and layer == self.model.n_layers:
            return f"blocks.{layer - 1}.hook_resid_post", set_stream
        return f"blocks.{layer}.{HOOK_OF[site]}", set_heads if site == "head" else set_stream

    def _edge_hooks(self, layer: int, table: ChangeTable) -> list[Hook]:
        """Note the values and the pattern of this run; then take each message out of `z` and put the new one
        in."""
        noted: dict[str, torch.Tensor] = {}
        sharing = self.model.n_heads // self.model.n_key_value_heads

        def note_value(value: torch.Tensor, hook: Any) -> None:
            noted["value"] = self._by_row(value)[:, table.row, table.key, table.head // sharing]

        def note_weight(pattern: torch.Tensor, hook: Any) -> None:
            by_row = self._by_row(pattern)
            noted["weight"] = by_row[:, table.row, table.head, table.position, table.key]

        def replace(z: torch.Tensor, hook: Any) -> torch.Tensor | None:
            # Where the pattern is shown only after `z`, it is known from the next time on.
            if "weight" not in noted:
                return None
            message = self.new.messages(layer, table.head, table.key, table.position)
            change = message - noted["weight"][..., None] * noted["value"]
            inputs, _, d_head = change.shape
            edited = z.clone(memory_format=torch.contiguous_format)
            by_place = edited.view(inputs, -1, self.model.n_heads, d_head)  # row by row
            add_to_heads(by_place, table.row * z.shape[1] + table.position, table.head, change)
            return edited

        where = f"blocks.{layer}.attn"
        return [
            (f"{where}.hook_v", note_value),
            (f"{where}.hook_pattern", note_weight),
            (f"{where}.hook_z", replace),
        ]

    def _knockout_hooks(self, layer: int, table: ChangeTable) -> list[Hook]:
        """Set scores to −∞. A query that has no key left would be given weights on later keys by the model's
        own mask, so its weights are set to zero."""
        without_keys: list[torch.Tensor] = []

        def shut(scores: torch.Tensor, hook: Any) -> torch.Tensor:
            scores = scores.clone()
            by_row = self._by_row(scores)
            by_row[:, table.row, table.head, table.position, table.key] = -torch.inf
            later = torch.ones_like(scores[0, 0], dtype=torch.bool).triu(1)  # (query, key)
            without_keys.append((scores.isneginf() | later).all(-1, keepdim=True))
            return scores

        def silence(pattern: torch.Tensor, hook: Any) -> torch.Tensor:
            return pattern.masked_fill(without_keys.pop(), 0.0)

        where = f"blocks.{layer}.attn"
        return [(f"{where}.hook_attn_scores", shut), (f"{where}.hook_pattern", silence)]


def _noise_hook(noise: Noises) -> list[Hook]:
    if noise is None:
        return []
    return [("embed.hook_out", lambda embedded, hook: embedded + noise)]
