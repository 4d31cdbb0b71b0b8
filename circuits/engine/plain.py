"""The plain path: the same rows through the model's own forward, one copy of the prompt per row, edited at
hooks.

Slower than the fast path and just as exact; it is what runs where a block's layout is not known, and what the
fast path is tested against.

1. A message is replaced in the heads' outputs `z`, in front of the output projection: what the row's own run
   has there now is taken out, the new one put in.
2. Some bridges leave attention to Hugging Face and show a pattern only after `z` has been used. There the
   rows run again until every layer knew its pattern beforehand: once more than the most layers in which one
   row changes edges. Knockout, which edits scores, is refused.
3. `PlainParts` sets a stream, or queries, keys and values, at a hook and reads what comes of them, so it need
   not know how the block is built.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from einops import rearrange, repeat
from jaxtyping import Float, Int

from circuits.components import SIDES, Side
from circuits.engine.block import Heads, Stream
from circuits.engine.layout import HeadWrites, KeyHeads, OwnStreams, Patterns, Positions, Queries, QueryHeads
from circuits.engine.streams import Cache, Change, ChangeTable, Layer, NewValues, Row, Site
from circuits.errors import ModelError
from circuits.models.model import Model

Hook = tuple[str, Callable[[torch.Tensor, Any], torch.Tensor | None]]
Tokens = Int[torch.Tensor, "input pos"]
Noises = Float[torch.Tensor, "input pos d_model"] | None
ATTENTION: Final = ("attn.hook_pattern", "attn.hook_v", "attn.hook_z")
SITES: Final = {
    "residual": "hook_resid_pre",
    "head": "attn.hook_z",
    "attention": "hook_attn_out",
    "mlp": "hook_mlp_out",
}


def run(
    model: Model, tokens: Tokens, noise: Noises, *, tail: int = 1
) -> tuple[Cache, Float[torch.Tensor, "input read vocab"]]:
    """A whole run with everything kept, and its logits at the last positions."""
    kept: dict[str, torch.Tensor] = {}

    def keeping(name: str) -> Hook:
        def keep(value: torch.Tensor, hook: Any) -> None:
            kept[name] = value.detach().clone()

        return name, keep

    names, layers = (*ATTENTION, SITES["residual"], SITES["attention"], SITES["mlp"]), range(model.n_layers)
    wanted = [f"blocks.{layer}.{name}" for layer in layers for name in names]
    wanted.append(f"blocks.{model.n_layers - 1}.hook_resid_post")
    with model.hooked([*_noise_hook(noise), *map(keeping, wanted)]):
        logits = model.forward(tokens)[:, -tail:]
    if missing := [name for name in wanted if name not in kept]:
        raise RuntimeError(f"hooks that did not fire: {', '.join(missing)}")
    blocks = ({name: kept[f"blocks.{layer}.{name}"] for name in names} for layer in layers)
    return Cache(tuple(_layer(model, block) for block in blocks), kept[wanted[-1]]), logits


def _layer(model: Model, block: dict[str, torch.Tensor]) -> Layer:
    pattern, value, z = (block[name] for name in ATTENTION)
    spread = repeat(value, "i t h d -> i (h g) t d", g=model.n_heads // value.shape[2])
    z = z.unflatten(-1, (model.n_heads, -1)) if z.ndim == 3 else z
    return Layer(block[SITES["residual"]], pattern, spread, z, block[SITES["attention"]], block[SITES["mlp"]])


def carry(
    model: Model,
    tokens: Tokens,
    noise: Noises,
    new: NewValues,
    rows: Sequence[Row],
    *,
    knockout: bool,
    budget: int,
    tail: int = 1,
) -> Float[torch.Tensor, "input row read vocab"]:
    """The logits of every row at the last positions, at most `budget` bytes of rows at a time."""
    if knockout and not model.edits_attention:
        raise ModelError(f"knockout cannot be measured here: {model.no_scores}; use zero")
    inputs, length = tokens.shape
    numbers = inputs * length * (16 * model.d_model + 3 * model.n_heads * length + model.vocab_size)
    step = max(1, budget // (4 * numbers))
    parts = [
        Patched(model, new, rows[start : start + step], knockout, tail) for start in range(0, len(rows), step)
    ]
    return torch.cat([part.logits(tokens, noise) for part in parts], dim=1)


@dataclass(frozen=True)
class Patched:
    """Rows that go through the model's forward together: inputs times rows."""

    model: Model
    new: NewValues
    rows: Sequence[Row]
    knockout: bool
    tail: int = 1

    def logits(self, tokens: Tokens, noise: Noises) -> Float[torch.Tensor, "input row read vocab"]:
        changes: dict[tuple[int, Site], list[tuple[int, Change]]] = defaultdict(list)
        for index, row in enumerate(self.rows):
            for change in row.changes:
                changes[change.layer, change.site].append((index, change))
        count, times = len(self.rows), 1 if self.model.edits_attention else 1 + self._edge_layers()
        hooks = _noise_hook(None if noise is None else repeat(noise, "i t d -> (i r) t d", r=count))
        for (layer, site), listed in changes.items():
            table = ChangeTable.of(listed, tokens.device)
            hooks += (
                self._edge_hooks(layer, table) if site == "edge" else [self._site_hook(layer, site, table)]
            )
        copies = repeat(tokens, "i t -> (i r) t", r=count)
        with self.model.hooked(hooks):
            logits = [self.model.forward(copies)[:, -self.tail :] for _ in range(times)][-1]
        return rearrange(logits, "(i r) t v -> i r t v", r=count)

    def _edge_layers(self) -> int:
        """In how many layers one row changes edges, at most."""
        return max(len({c.layer for c in row.changes if c.site == "edge"}) for row in self.rows)

    def _by_row(self, value: torch.Tensor) -> torch.Tensor:
        """(input·row, …) as (input, row, …), sharing memory."""
        return value.unflatten(0, (-1, len(self.rows)))

    def _site_hook(self, layer: int, site: Site, table: ChangeTable) -> Hook:
        """Set a head's output, a block's write or the residual stream."""

        def set_heads(z: torch.Tensor, hook: Any) -> torch.Tensor:
            edited = z.clone()
            heads = self._by_row(edited.flatten(2)).unflatten(3, (self.model.n_heads, -1))
            heads[:, table.row, table.position, table.head] = self.new.values(layer, site, table)
            return edited

        def set_stream(value: torch.Tensor, hook: Any) -> torch.Tensor:
            edited = value.clone()
            self._by_row(edited)[:, table.row, table.position] = self.new.values(layer, site, table)
            return edited

        if site == "residual" and layer == self.model.n_layers:
            return f"blocks.{layer - 1}.hook_resid_post", set_stream
        return f"blocks.{layer}.{SITES[site]}", set_heads if site == "head" else set_stream

    def _edge_hooks(self, layer: int, table: ChangeTable) -> list[Hook]:
        """Replace messages: note pattern and values of this very run, take each message out and put the new
        one in."""
        if self.knockout:
            return self._knockout_hooks(layer, table)
        now: dict[str, torch.Tensor] = {}
        group = self.model.n_heads // self.model.n_key_value_heads

        def note_value(value: torch.Tensor, hook: Any) -> None:
            now["value"] = self._by_row(value)[:, table.row, table.key, table.head // group]

        def note_weight(pattern: torch.Tensor, hook: Any) -> None:
            now["weight"] = self._by_row(pattern)[:, table.row, table.head, table.position, table.key]

        def replace(z: torch.Tensor, hook: Any) -> torch.Tensor | None:
            if "weight" not in now:  # a pattern that will only be shown later, for the next time
                return None
            message = self.new.message(layer, table.head, table.key, table.position)
            change = message - now["weight"][..., None] * now["value"]
            flat = (
                self._by_row(z).reshape(change.shape[0], -1, change.shape[-1]).clone()
            )  # (input, row·pos·head, d)
            index = (table.row * z.shape[1] + table.position) * self.model.n_heads + table.head
            return flat.index_add_(1, index, change).view(z.shape)

        names = ("attn.hook_v", "attn.hook_pattern", "attn.hook_z")
        return [
            (f"blocks.{layer}.{n}", f) for n, f in zip(names, (note_value, note_weight, replace), strict=True)
        ]

    def _knockout_hooks(self, layer: int, table: ChangeTable) -> list[Hook]:
        silent: list[
            torch.Tensor
        ] = []  # queries without any key, which the model's own mask would let see the future

        def shut(scores: torch.Tensor, hook: Any) -> torch.Tensor:
            scores = scores.clone()
            self._by_row(scores)[:, table.row, table.head, table.position, table.key] = -torch.inf
            future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
            silent.append((scores.isneginf() | future).all(-1, keepdim=True))
            return scores

        def silence(pattern: torch.Tensor, hook: Any) -> torch.Tensor:
            return pattern.masked_fill(silent.pop(), 0.0)

        where = f"blocks.{layer}.attn"
        return [(f"{where}.hook_attn_scores", shut), (f"{where}.hook_pattern", silence)]


def _noise_hook(noise: Noises) -> list[Hook]:
    return [] if noise is None else [("embed.hook_out", lambda embedded, hook: embedded + noise)]


@dataclass(frozen=True)
class PlainParts:
    """Asked of the model's own forward, a row of its batch for each stream."""

    model: Model
    length: int
    budget: int

    @property
    def parallel(self) -> bool:
        return "Parallel" in type(self.model.bridge.blocks[0]).__name__

    def project(self, layer: int, stream: Stream, positions: Positions) -> tuple[Heads, Heads, Heads]:
        batch, flat = stream.shape[:-2], self._everywhere(stream, positions)
        names = [f"blocks.{layer}.attn.hook_{side}" for side in "qkv"]
        sides = self._forward({f"blocks.{layer}.hook_resid_pre": flat}, names)
        q, k, v = (side[:, positions].unflatten(0, batch) for side in sides)
        group = self.model.n_heads // k.shape[-2]
        return q, k.repeat_interleave(group, -2), v.repeat_interleave(group, -2)

    def own_side(
        self, layer: int, side: Side, streams: OwnStreams, *, positions: Positions, heads: Sequence[int]
    ) -> Heads:
        projected = self.project(layer, streams, positions)[SIDES.index(side)]
        return torch.stack([projected[..., n, :, head, :] for n, head in enumerate(heads)], -2)

    def attend(
        self,
        layer: int,
        query: QueryHeads,
        key: KeyHeads,
        value: KeyHeads,
        *,
        queries: Queries,
        heads: Sequence[int],
    ) -> tuple[Patterns, QueryHeads]:
        """Heads that share their keys and values take turns: in row g of each input stands the g-th of every
        group."""
        batch = torch.broadcast_shapes(query.shape[:-3], key.shape[:-3], value.shape[:-3])
        group = self.model.n_heads // self.model.n_key_value_heads
        wanted = torch.tensor(heads, device=query.device)
        turn, shared = wanted % group, wanted // group
        own, *read = (side.expand(*batch, *side.shape[-3:]).flatten(0, -4) for side in (query, key, value))
        rows, width = len(own), query.shape[-1]
        q = own.new_zeros(rows, group, self.length, self.model.n_heads, width)
        q[:, turn[:, None], queries, wanted[:, None]] = rearrange(own, "b q h d -> b h q d")
        sides = [own.new_zeros(rows, group, self.length, self.model.n_key_value_heads, width) for _ in read]
        for side, part in zip(sides, read, strict=True):
            side[:, turn, :, shared] = rearrange(part, "b k h d -> h b k d")
        names = [f"blocks.{layer}.attn.hook_{side}" for side in "qkv"]
        edits = dict(zip(names, (side.flatten(0, 1) for side in (q, *sides)), strict=True))
        got = self._forward(edits, [f"blocks.{layer}.attn.hook_{kind}" for kind in ("pattern", "z")])
        pattern, z = (part.unflatten(0, (rows, group)) for part in got)
        z = z if z.ndim == 5 else z.unflatten(-1, (self.model.n_heads, -1))
        z = rearrange(z[:, turn, :, wanted], "h b q d -> b q h d")[:, queries]
        return pattern[:, turn, wanted][:, :, queries].unflatten(0, batch), z.unflatten(0, batch)

    def head_writes(self, layer: int, z: Heads) -> HeadWrites:
        """Each head's alone, less what the projection adds when all of them are silent."""
        heads, silent = self.model.n_heads, torch.zeros_like(z[:1, ..., :1, :, :])
        alone = repeat(z, "... p h d -> ... g p h d", g=heads) * torch.eye(heads).to(z)[:, None, :, None]
        written = self.write(layer, alone) - self.write(layer, silent)[..., None, :, :]
        return written.transpose(-2, -3)

    def write(self, layer: int, z: Heads) -> Stream:
        positions = torch.arange(z.shape[-3], device=z.device)
        whole = self._everywhere(z.flatten(-2), positions)
        (written,) = self._forward({f"blocks.{layer}.attn.hook_z": whole}, [f"blocks.{layer}.hook_attn_out"])
        return written[:, positions].unflatten(0, z.shape[:-3])

    def mlp(self, layer: int, stream: Stream, positions: Positions) -> Stream:
        if not self.model.has_hook(norm := f"blocks.{layer}.ln2.hook_in"):
            alone = f"the MLPs of {self.model.name} have no norm of their own"
            raise ModelError(f"{alone}, so what they read cannot be changed alone on the plain path")
        edits = {norm: self._everywhere(stream, positions)}
        (written,) = self._forward(edits, [f"blocks.{layer}.hook_mlp_out"])
        return written[:, positions].unflatten(0, stream.shape[:-2])

    def _everywhere(self, stream: Stream, positions: Positions) -> Float[torch.Tensor, "row length width"]:
        """One row a stream, zeros at the positions that are not given."""
        flat = stream.flatten(0, -3)
        whole = flat.new_zeros(len(flat), self.length, stream.shape[-1])
        whole[:, positions] = flat
        return whole

    def _forward(self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> list[torch.Tensor]:
        """What comes out at the wanted hooks when these values are set at others, in chunks of the budget."""
        rows = len(next(iter(edits.values())))
        numbers = self.length * (
            16 * self.model.d_model + 3 * self.model.n_heads * self.length + self.model.vocab_size
        )
        step = max(1, self.budget // (4 * numbers))
        chunks = [
            self._chunk({n: v[start : start + step] for n, v in edits.items()}, wanted)
            for start in range(0, rows, step)
        ]
        return [torch.cat(parts) for parts in zip(*chunks, strict=True)]

    def _chunk(self, edits: Mapping[str, torch.Tensor], wanted: Sequence[str]) -> list[torch.Tensor]:
        caught: dict[str, torch.Tensor] = {}

        def put(value: torch.Tensor) -> Any:
            return lambda tensor, hook: value.to(tensor).view(tensor.shape)

        def catch(name: str) -> Any:
            return name, lambda tensor, hook: caught.update({name: tensor.detach().clone()})

        rows = len(next(iter(edits.values())))
        tokens = torch.zeros(rows, self.length, dtype=torch.long, device=self.model.device)
        hooks = [(name, put(value)) for name, value in edits.items()]
        with self.model.hooked([*hooks, *map(catch, wanted)]):
            self.model.forward(tokens)
        return [caught[name] for name in wanted]
