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
4. `PlainBlock` sets a stream, or queries, keys and values, at a hook and reads what the block makes of them,
   so it need not know how the block is built.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int

from circuits.components import SIDES, Side
from circuits.engine.block import Heads, HeadWrites, OwnStreams, Stream
from circuits.engine.layout import (
    KeyHeads,
    Patterns,
    Positions,
    Queries,
    QueryHeads,
    is_parallel,
)
from circuits.engine.memory import stream_bytes, streams_at_once
from circuits.engine.rows import (
    Cache,
    ChangeTable,
    Layer,
    Replacement,
    Row,
    Site,
    changes_by_site,
)
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
    model: Model, tokens: Tokens, noise: Noises, *, read: int = 1
) -> tuple[Cache, Float[torch.Tensor, "input read vocab"]]:
    """Run prompts and keep everything; also the logits at the last `read` positions."""
    kept: dict[str, torch.Tensor] = {}

    def keep(value: torch.Tensor, hook: Any, *, name: str) -> None:
        kept[name] = value.detach().clone()

    wanted = []
    for layer in range(model.n_layers):
        wanted += [f"blocks.{layer}.{name}" for name in KEPT]
    wanted.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    hooks = [
        (name, lambda value, hook, name=name: keep(value, hook, name=name)) for name in wanted
    ]
    with model.hooked([*_noise_hook(noise), *hooks]):
        logits = model.forward(tokens)[:, -read:].to(model.device)
    missing = [name for name in wanted if name not in kept]
    if missing:
        raise RuntimeError(f"hooks that did not fire: {', '.join(missing)}")
    layers = []
    for layer in range(model.n_layers):
        layers.append(_layer(model, {name: kept[f"blocks.{layer}.{name}"] for name in KEPT}))
    return Cache(tuple(layers), kept[wanted[-1]]), logits


def _layer(model: Model, kept: Mapping[str, torch.Tensor]) -> Layer:
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


def _copy_bytes(model: Model, length: int) -> int:
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
    step = streams_at_once(budget, inputs * _copy_bytes(model, length))
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
            heads = self._by_row(edited.flatten(2)).unflatten(3, (self.model.n_heads, -1))
            heads[:, table.row, table.position, table.head] = self.new.values(
                layer, site, table
            )
            return edited

        def set_stream(value: torch.Tensor, hook: Any) -> torch.Tensor:
            edited = value.clone()
            self._by_row(edited)[:, table.row, table.position] = self.new.values(
                layer, site, table
            )
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
            noted["weight"] = self._by_row(pattern)[
                :, table.row, table.head, table.position, table.key
            ]

        def replace(z: torch.Tensor, hook: Any) -> torch.Tensor | None:
            if (
                "weight" not in noted
            ):  # the pattern is shown after `z`: known from the next time on
                return None
            message = self.new.messages(layer, table.head, table.key, table.position)
            change = message - noted["weight"][..., None] * noted["value"]
            inputs, _, d_head = change.shape
            # (input, row·pos·head, d_head)
            flat = self._by_row(z).reshape(inputs, -1, d_head).clone()
            index = (table.row * z.shape[1] + table.position) * self.model.n_heads + table.head
            return flat.index_add_(1, index, change).view(z.shape)

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
            self._by_row(scores)[
                :, table.row, table.head, table.position, table.key
            ] = -torch.inf
            later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(
                1
            )
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


def blocks_of(model: Model, length: int, budget: int) -> tuple[PlainBlock, ...]:
    """The blocks of a model on a prompt of this length, computed by its own forward."""
    return tuple(PlainBlock(model, layer, length, budget) for layer in range(model.n_layers))


@dataclass(frozen=True)
class PlainBlock:
    """One block, computed by the model's own forward: one copy of the prompt for each stream."""

    model: Model
    layer: int
    length: int
    budget: int

    @property
    def parallel(self) -> bool:
        return is_parallel(self.model.bridge)

    def project(self, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        names = [
            self._hook("attn.hook_q"),
            self._hook("attn.hook_k"),
            self._hook("attn.hook_v"),
        ]
        edits = {self._hook("hook_resid_pre"): self._on_prompt(stream, positions)}
        sides = []
        for side in self._forward(edits, names):
            own = side[:, positions].unflatten(0, stream.shape[:-2])
            sides.append(own.repeat_interleave(self.model.n_heads // own.shape[-2], -2))
        query, key, value = sides
        return query, key, value

    def side(
        self, streams: OwnStreams, side: Side, heads: Sequence[int], positions: Positions
    ) -> Heads:
        projected = self.project(streams, positions)[SIDES.index(side)]
        own = [projected[..., number, :, head, :] for number, head in enumerate(heads)]
        return torch.stack(own, -2)

    def attend(
        self,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        """Set queries, keys and values at their hooks. Heads that share a key and value cannot be set in one
        copy of the prompt, so each stream has as many copies as heads share: copy g holds the g-th head of
        every group."""
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        groups = self.model.n_key_value_heads
        sharing = self.model.n_heads // groups
        wanted = torch.tensor(heads, device=query.device)
        copy, group = wanted % sharing, wanted // sharing

        def flat(side: torch.Tensor) -> torch.Tensor:
            # (stream, pos, head, d_head)
            return side.expand(*batch, *side.shape[-3:]).flatten(0, -4)

        own = flat(query)
        streams, width = len(own), query.shape[-1]
        all_queries = own.new_zeros(streams, sharing, self.length, self.model.n_heads, width)
        all_queries[:, copy[:, None], queries, wanted[:, None]] = rearrange(
            own, "s q h d -> s h q d"
        )
        edits = {self._hook("attn.hook_q"): all_queries.flatten(0, 1)}
        for name, side in (("attn.hook_k", key), ("attn.hook_v", value)):
            shared = own.new_zeros(streams, sharing, self.length, groups, width)
            shared[:, copy, :, group] = rearrange(flat(side), "s k h d -> h s k d")
            edits[self._hook(name)] = shared.flatten(0, 1)
        pattern, z = self._forward(
            edits, [self._hook("attn.hook_pattern"), self._hook("attn.hook_z")]
        )
        pattern = pattern.unflatten(0, (streams, sharing))[:, copy, wanted][:, :, queries]
        z = z.reshape(streams, sharing, self.length, self.model.n_heads, width)
        z = rearrange(z[:, copy, :, wanted], "h s q d -> s q h d")[:, queries]
        return pattern.unflatten(0, batch), z.unflatten(0, batch)

    def write(self, z: Heads) -> Stream:
        positions = torch.arange(z.shape[-3], device=z.device)
        edits = {self._hook("attn.hook_z"): self._on_prompt(z.flatten(-2), positions)}
        (written,) = self._forward(edits, [self._hook("hook_attn_out")])
        return written[:, positions].unflatten(0, z.shape[:-3])

    def head_writes(self, z: Heads) -> HeadWrites:
        """The write of each head alone, less the write when all heads are silent."""
        heads = self.model.n_heads
        one_head = torch.eye(heads).to(z)[:, None, :, None]  # (head alone, 1, head, 1)
        alone = repeat(z, "... p h d -> ... g p h d", g=heads) * one_head
        silent = self.write(torch.zeros_like(z[:1]))
        written = self.write(alone) - silent[..., None, :, :]
        return written.transpose(-2, -3)

    def mlp_write(self, stream: Stream, positions: Positions) -> Stream:
        norm = self._hook("ln2.hook_in")
        if not self.model.has_hook(norm):
            why = f"the MLPs of {self.model.name} have no norm of their own"
            raise ModelError(
                f"{why}, so what they read cannot be changed alone on the plain path"
            )
        edits = {norm: self._on_prompt(stream, positions)}
        (written,) = self._forward(edits, [self._hook("hook_mlp_out")])
        return written[:, positions].unflatten(0, stream.shape[:-2])

    def _hook(self, name: str) -> str:
        return f"blocks.{self.layer}.{name}"

    def _on_prompt(
        self, stream: Stream, positions: Positions
    ) -> Float[torch.Tensor, "copy length width"]:
        """Each stream as a whole prompt, with zeros at the positions that are not given."""
        flat = stream.flatten(0, -3)
        whole = flat.new_zeros(len(flat), self.length, stream.shape[-1])
        whole[:, positions] = flat
        return whole

    def _forward(
        self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]
    ) -> list[torch.Tensor]:
        """What stands at the wanted hooks when these values are set at others."""
        copies = len(next(iter(edits.values())))
        step = streams_at_once(self.budget, _copy_bytes(self.model, self.length))
        parts: list[list[torch.Tensor]] = [[] for _ in wanted]
        for first in range(0, copies, step):
            some = {name: value[first : first + step] for name, value in edits.items()}
            for part, caught in zip(parts, self._forward_some(some, wanted), strict=True):
                part.append(caught)
        return [torch.cat(part) for part in parts]

    def _forward_some(
        self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]
    ) -> list[torch.Tensor]:
        caught: dict[str, torch.Tensor] = {}
        hooks: list[Hook] = []
        for name, value in edits.items():
            hooks.append(
                (name, lambda tensor, hook, value=value: value.to(tensor).view(tensor.shape))
            )
        for name in wanted:
            hooks.append(
                (
                    name,
                    lambda tensor, hook, name=name: caught.update(
                        {name: tensor.detach().clone()}
                    ),
                )
            )
        copies = len(next(iter(edits.values())))
        tokens = torch.zeros(copies, self.length, dtype=torch.long, device=self.model.device)
        with self.model.hooked(hooks):
            self.model.forward(tokens)
        return [caught[name] for name in wanted]
