"""Hooks: the sparse attention rule, edits of a running model, and the check that edits do what they say.

1. The gate: `s = q·k/√d_head`, `P = softmax(s)` over all allowed keys, `A = 1[s > 0]`, output `Σ A·P·v`.
   Nothing is renormalised, so a query whose gates are all shut writes nothing.
2. An edit is a hook's name and a function `fn(tensor, hook) -> tensor | None`; None leaves the tensor alone.
3. `attached` records which hooks a point has before it adds one, so leaving restores them however it ends.
4. `check_hooks` runs one batch in which each row is edited at one kind of hook, in every layer, and the last
   at none: the logits of each must move away from the last one's, each hook must fire, and without the edits
   the logits must come back bit for bit. Where a bridge leaves attention to Hugging Face (GPT-J, OPT), scores
   and patterns can be read afterwards but not edited; the check says so, and does not refuse the model.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from jaxtyping import Bool, Float, Int

from circuits.errors import ModelError

Hook = Callable[..., torch.Tensor | None]  # called as fn(tensor, hook=point)
Edit = tuple[str, Hook]
Forward = Callable[[Int[torch.Tensor, "batch pos"]], Float[torch.Tensor, "batch pos vocab"]]
Attention = Float[torch.Tensor, "*batch query key"]

SCORES: Final = "blocks.{}.attn.hook_attn_scores"
PATTERN: Final = "blocks.{}.attn.hook_pattern"
_SIDES: Final = tuple(f"blocks.{{}}.attn.hook_{side}" for side in "qkv")
_WRITES: Final = tuple(f"blocks.{{}}.{point}" for point in ("attn.hook_z", "hook_attn_out", "hook_mlp_out"))
EDITED: Final = ("embed.hook_out", "blocks.{}.hook_resid_pre", *_SIDES, SCORES, PATTERN, *_WRITES)
_SMALLEST_CHANGE: Final = 1e-6  # of the largest logit


def open_gates(scores: Attention) -> Bool[torch.Tensor, "*batch query key"]:
    """Which edges are open: those whose scaled logit is above zero (a masked key's logit never is)."""
    return scores > 0


def gated(scores: Attention, pattern: Attention) -> Attention:
    """The pattern with its shut edges at exactly zero."""
    return torch.where(open_gates(scores), pattern, pattern.new_zeros(()))


@contextmanager
def attached(points: Mapping[str, Any], edits: Iterable[Edit], *, first: bool = False) -> Iterator[None]:
    """Within this `with`, the edits are hooks too, after those already there (with `first`, before them)."""
    with ExitStack() as undo:
        for name, fn in edits:
            if name not in points:
                example = PATTERN.format(0)
                raise ModelError(f"this model has no hook {name!r}; hooks are named like {example!r}")
            undo.callback(_keep_only, points[name], tuple(points[name].fwd_hooks))
            points[name].add_hook(fn, prepend=first)
        yield


def _keep_only(point: Any, handles: tuple[Any, ...]) -> None:
    for handle in list(point.fwd_hooks):
        if handle not in handles:
            handle.hook.remove()
            point.fwd_hooks.remove(handle)


def check_hooks(
    forward: Forward, points: Mapping[str, Any], prompt: Int[torch.Tensor, " pos"], *, n_layers: int
) -> bool:
    """Whether scores and patterns can be edited. Raise a ModelError that names any other hook at which an
    edit has no effect, or that the model lacks."""
    layers = range(n_layers)
    row_of = {kind.format(layer): row for row, kind in enumerate(EDITED) for layer in layers}
    fired: set[str] = set()
    edits = [(name, partial(_add_noise, row=row, name=name, fired=fired)) for name, row in row_of.items()]
    with torch.inference_mode():
        before = forward(prompt[None])
        with attached(points, edits):
            *edited, unedited = forward(prompt.repeat(len(EDITED) + 1, 1))  # each (pos, vocab)
        after = forward(prompt[None])
    if not before.isfinite().all():
        raise ModelError("the model's logits are not finite numbers: its weights are damaged")
    if silent := [name for name in row_of if name not in fired]:
        raise ModelError(f"the hook {silent[0]} never fires here, so it cannot be measured or edited")
    least = _SMALLEST_CHANGE * before.abs().max()
    lost = [
        kind for kind, row in zip(EDITED, edited, strict=True) if not (row - unedited).abs().max() > least
    ]
    for kind in set(lost) - {SCORES, PATTERN}:
        why = "the bridge discards it, or no head does anything"
        raise ModelError(f"an edit at {kind.format(n_layers - 1)} does not change the logits: {why}")
    if not torch.equal(before, after):
        changed = "something else changes this model"
        raise ModelError(f"an edit was undone and the logits did not come back: {changed}")
    return not lost


def _add_noise(tensor: torch.Tensor, hook: Any, *, row: int, name: str, fired: set[str]) -> torch.Tensor:
    """Seeded noise of three times the tensor's own spread, on one row. Masked scores stay masked."""
    fired.add(name)
    edited = tensor.clone()
    unmasked = tensor[row][tensor[row] > torch.finfo(tensor.dtype).min / 2]
    spread = 3 * unmasked.std().nan_to_num(1.0).clamp_min(0.1)
    noise = torch.randn(tensor[row].shape, generator=torch.Generator().manual_seed(0)).to(tensor)
    edited[row] += spread * noise
    return edited
