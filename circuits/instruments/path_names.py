"""The names of paths: `L4H4@13 → L5H1.query@13`, and the same as other tools write it.

1. A sender writes into the residual stream: `L4H4`, `M3`, `embed`; `a4.h4`, `4.4`, `m3` of EAP and ACDC;
   `blocks.4.attn.hook_z[4]`, `blocks.3.hook_mlp_out` of TransformerLens.
2. A receiver reads it: `L5H1.query` (or `.q`), `M5`, `logits`; `a5.h1<q>`; `blocks.5.attn.hook_q[1]`,
   `blocks.5.hook_mlp_in`, `ln_final.hook_in`. A head without a side means its three sides.
3. A position is written after `@`, as an index or as a token. In the brackets of TransformerLens it stands
   before the head: `[:, 13, 4]`.
4. Several senders or receivers are divided by commas; a comma in brackets divides nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from typing import Final

from circuits.components import SIDE_OF_LETTER, SIDES, Component, Head, Reader, Wire
from circuits.errors import EdgeError, shortened

PositionOf = Callable[[int | str], int]  # the position that an index, a token or a role names
_HOOK: Final = re.compile(r"(?:blocks\.(\d{1,9})\.)?([a-z0-9_.]*hook_\w+)(?:\[([^\]]*)\])?")
_HEAD_WRITES: Final = ("attn.hook_z", "attn.hook_result")
_MLP_WRITES: Final = ("hook_mlp_out", "mlp.hook_out")
_EMBEDDINGS: Final = ("hook_embed", "embed.hook_out")
_MLP_READS: Final = ("hook_mlp_in", "mlp.hook_in", "ln2.hook_in")
_LOGITS_READ: Final = ("ln_final.hook_in", "unembed.hook_in")
_SIDE_READS: Final = re.compile(r"attn\.hook_([qkv])|hook_([qkv])_input")


@dataclass(frozen=True, slots=True)
class Sender:
    """A writer, at one position or at all of them."""

    writer: Component
    position: int | None

    def __str__(self) -> str:
        return _at(str(self.writer), self.position)


@dataclass(frozen=True, slots=True)
class Receiver:
    """A reader, at one position or at all of them. For a head it is the query at which the head reads."""

    reader: Reader
    position: int | None

    def __str__(self) -> str:
        if self.reader.kind in SIDES:
            return f"{_at(str(self.reader.component), self.position)}.{self.reader.kind}"
        return _at(str(self.reader), self.position)


@dataclass(frozen=True, slots=True)
class Path:
    """One sender seen by one receiver."""

    sender: Sender
    receiver: Receiver

    @property
    def wire(self) -> Wire:
        """The wire, where there can be one at these positions."""
        sent, read = self.sender.position, self.receiver.position
        reader = self.receiver.reader
        if reader.kind in ("key", "value"):
            return Wire(self.sender.writer, reader, sent, read)
        if sent is not None and read is not None and sent != read:
            raise EdgeError(
                f"{self} names two positions, but {reader} reads where its sender stands"
            )
        return Wire(self.sender.writer, reader, read if sent is None else sent)

    def __str__(self) -> str:
        return f"{self.sender} → {self.receiver}"


def parse_paths(text: str, *, layers: int, position_of: PositionOf) -> list[Path]:
    """Every path from one of the senders to one of the receivers that a text names."""
    ends = text.replace("->", "→").split("→") if isinstance(text, str) else []
    if len(ends) != 2:
        raise EdgeError(
            f"{shortened(text)} is not a path; write senders, an arrow and receivers: "
            "L4H4@13 → L5H1.query@13"
        )
    senders = [parse_sender(name, position_of) for name in _parts(ends[0])]
    receivers: list[Receiver] = []
    for name in _parts(ends[1]):
        receivers += parse_receivers(name, layers=layers, position_of=position_of)
    if not senders or not receivers:
        raise EdgeError(f"{text!r} names no sender or no receiver; write L4H4@13 → M5@13")
    return [Path(sender, receiver) for sender, receiver in product(senders, receivers)]


def parse_sender(name: str, position_of: PositionOf) -> Sender:
    """The writer that a name means."""
    hook = _HOOK.fullmatch(name)
    if hook is not None:
        return _sender_of_hook(name, hook, position_of)
    bare, position = _split_position(name, position_of)
    return Sender(Component.parse(bare), position)


def parse_receivers(name: str, *, layers: int, position_of: PositionOf) -> list[Receiver]:
    """The reader that a name means; the three sides of a head that is named without one."""
    hook = _HOOK.fullmatch(name)
    if hook is not None:
        return [_receiver_of_hook(name, hook, layers, position_of)]
    bare, position = _split_position(name, position_of)
    short = re.fullmatch(r"(.*)\.([qkv])", bare)
    if short is not None:
        bare = f"{short[1]}.{SIDE_OF_LETTER[short[2]]}"
    try:
        head = Head.parse(bare)
    except EdgeError:
        return [Receiver(Reader.parse(bare, layers=layers), position)]
    return [Receiver(Reader(head.layer, side, head.index), position) for side in SIDES]


def _parts(text: str) -> list[str]:
    """What commas outside of brackets divide."""
    parts = re.split(r",(?![^\[]*\])", text)
    return [part.strip() for part in parts if part.strip()]


def _split_position(name: str, position_of: PositionOf) -> tuple[str, int | None]:
    """`L5H1@13.query` and `L5H1.query@13` as the name without its position, and the position."""
    match = re.fullmatch(r"([^@]+)@(.+?)(\.(?:query|key|value|[qkv]))?", name)
    if match is None:
        return name, None
    return match[1] + (match[3] or ""), position_of(match[2])


def _at(name: str, position: int | None) -> str:
    return name if position is None else f"{name}@{position}"


# Names of TransformerLens


def _sender_of_hook(name: str, hook: re.Match[str], position_of: PositionOf) -> Sender:
    layer, place = _layer_of(hook), hook[2]
    if place in _HEAD_WRITES and layer is not None:
        position, head = _position_and_head(name, hook[3], position_of)
        return Sender(Component(layer, "head", head), position)
    if place in _MLP_WRITES and layer is not None:
        return Sender(Component(layer, "mlp"), _position(name, hook[3], position_of))
    if place in _EMBEDDINGS and layer is None:
        return Sender(Component.parse("embed"), _position(name, hook[3], position_of))
    known = "blocks.4.attn.hook_z[4], blocks.3.hook_mlp_out or hook_embed"
    raise EdgeError(f"{name!r} is no sender; those of TransformerLens are {known}")


def _receiver_of_hook(
    name: str, hook: re.Match[str], layers: int, position_of: PositionOf
) -> Receiver:
    layer, place = _layer_of(hook), hook[2]
    side = _SIDE_READS.fullmatch(place)
    if side is not None and layer is not None:
        position, head = _position_and_head(name, hook[3], position_of)
        return Receiver(Reader(layer, SIDE_OF_LETTER[side[1] or side[2]], head), position)
    if place in _MLP_READS and layer is not None:
        return Receiver(Reader(layer, "mlp"), _position(name, hook[3], position_of))
    above_all = place == "hook_resid_post" and layer == layers - 1
    if above_all or (place in _LOGITS_READ and layer is None):
        return Receiver(Reader(layers, "logits"), _position(name, hook[3], position_of))
    known = "blocks.5.attn.hook_q[1], blocks.5.hook_mlp_in or ln_final.hook_in"
    raise EdgeError(f"{name!r} is no receiver; those of TransformerLens are {known}")


def _layer_of(hook: re.Match[str]) -> int | None:
    return None if hook[1] is None else int(hook[1])


def _numbers(name: str, index: str | None) -> list[int | None]:
    """What stands in the brackets: numbers, and None for `:`."""
    numbers: list[int | None] = []
    for part in (index or "").split(","):
        bare = part.strip()
        if bare in ("", ":"):
            numbers.append(None)
        elif re.fullmatch(r"-?\d{1,9}", bare):
            numbers.append(int(bare))
        else:
            raise EdgeError(f"{name!r} has {bare!r} in its brackets; numbers and : stand there")
    return numbers


def _position_and_head(
    name: str, index: str | None, position_of: PositionOf
) -> tuple[int | None, int]:
    """`[4]` and `[:, :, 4]` name a head at all positions, `[:, 13, 4]` at one."""
    *before, head = _numbers(name, index)
    if head is None or head < 0:
        raise EdgeError(f"{name!r} names no head; write its index in brackets: {name}[4]")
    if not before or before[-1] is None:
        return None, head
    return position_of(before[-1]), head


def _position(name: str, index: str | None, position_of: PositionOf) -> int | None:
    """`[13]` and `[:, 13]` name a position."""
    position = _numbers(name, index)[-1]
    return None if position is None else position_of(position)
