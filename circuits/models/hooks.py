"""Edits at the hook points of a model, and the check that they do something and can be undone.

1. An edit is the name of a hook point and a function `fn(tensor, hook) -> tensor | None`; None leaves the
   tensor as it is. `attached` puts edits in place for a `with` block and takes off exactly those at its end,
   however it ends.
2. `check_hooks` edits each kind of hook and requires that the logits change, and that they come back bit for
   bit once the edits are gone. Some bridges leave attention to Hugging Face (GPT-J, OPT): there, edits of
   scores and patterns have no effect. Such a model is taken all the same.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, Final

import torch
from jaxtyping import Float, Int

from circuits.errors import ModelError

Hook = Callable[..., torch.Tensor | None]  # called as fn(tensor, hook=point)
Edit = tuple[str, Hook]
Forward = Callable[[Int[torch.Tensor, "batch pos"]], Float[torch.Tensor, "batch pos vocab"]]

SCORES: Final = "blocks.{}.attn.hook_attn_scores"
PATTERN: Final = "blocks.{}.attn.hook_pattern"
EDITED: Final = (  # the kinds of hook that are checked when a model is loaded, in this order
    "embed.hook_out",
    "blocks.{}.hook_resid_pre",
    "blocks.{}.attn.hook_q",
    "blocks.{}.attn.hook_k",
    "blocks.{}.attn.hook_v",
    SCORES,
    PATTERN,
    "blocks.{}.attn.hook_z",
    "blocks.{}.hook_attn_out",
    "blocks.{}.hook_mlp_out",
)
_SMALLEST_CHANGE: Final = 1e-6  # of the largest logit


@contextmanager
def attached(
    points: Mapping[str, Any], edits: Iterable[Edit], *, first: bool = False
) -> Iterator[None]:
    """Within this `with`, the edits are hooks too, after those already there (with `first`, before them)."""
    with ExitStack() as undo:
        for name, fn in edits:
            if name not in points:
                example = PATTERN.format(0)
                raise ModelError(
                    f"this model has no hook {name!r}; hooks are named like {example!r}"
                )
            point = points[name]
            undo.callback(_keep_only, point, list(point.fwd_hooks))
            point.add_hook(fn, prepend=first)
        yield


def _keep_only(point: Any, handles: list[Any]) -> None:
    """Remove all hooks of a point but these."""
    for handle in list(point.fwd_hooks):
        if handle not in handles:
            handle.hook.remove()
            point.fwd_hooks.remove(handle)


@contextmanager
def evaluating(*modules: torch.nn.Module) -> Iterator[None]:
    """Within this `with`, all parts of some modules are in eval mode; those that were in train mode are again
    afterwards, however it ends."""
    training: list[torch.nn.Module] = []
    for module in modules:
        training += [part for part in module.modules() if part.training]
    for part in training:
        part.training = False
    try:
        yield
    finally:
        for part in training:
            part.training = True


def check_attention(name: str, points: Collection[str], *, n_layers: int) -> None:
    """Refuse a model with a layer that has no attention heads, such as a state-space model."""
    without = []
    for layer in range(n_layers):
        prefix = f"blocks.{layer}.attn."
        if not any(point.startswith(prefix) for point in points):
            without.append(layer)
    if without:
        wrong = f"layer {without[0]} of {name} has no attention heads"
        if len(without) == n_layers:
            wrong = f"no layer of {name} has attention heads"
        raise ModelError(
            f"{wrong}; circuits measures attention heads, so it takes models that have them in every layer"
        )


def check_hooks(
    forward: Forward,
    points: Mapping[str, Any],
    prompt: Int[torch.Tensor, " pos"],
    *,
    n_layers: int,
) -> bool:
    """Whether scores and patterns can be edited. Any other hook that is missing, or at which an edit has no
    effect at any position, is a ModelError that names the first such hook in the order of `EDITED`.

    One batch checks all kinds of hook: row r of it gets noise at the hooks of kind r, in every layer, and the
    last row none.
    """
    fired: set[str] = set()
    edits = _noise_at_every_hook(n_layers, fired)
    with torch.inference_mode():
        before = forward(prompt[None])
        with attached(points, edits):
            *edited, unedited = forward(prompt.repeat(len(EDITED) + 1, 1))  # each (pos, vocab)
        after = forward(prompt[None])
    if not before.isfinite().all():
        raise ModelError("the model's logits are not finite numbers: its weights are damaged")
    for name, _ in edits:
        if name not in fired:
            raise ModelError(
                f"the hook {name} never fires here, so it cannot be measured or edited"
            )
    smallest = _SMALLEST_CHANGE * before.abs().max()
    edits_attention = True
    for kind, logits in zip(EDITED, edited, strict=True):
        # An edit may overflow fp16.
        change = (logits - unedited).abs().nan_to_num(nan=torch.inf).max()
        if change > smallest:
            continue
        if kind not in (SCORES, PATTERN):
            why = "the bridge discards it, or no head does anything"
            raise ModelError(
                f"an edit at {kind.format(n_layers - 1)} does not change the logits: {why}"
            )
        edits_attention = False
    if not torch.equal(before, after):
        changed = "something else changes this model"
        raise ModelError(f"an edit was undone and the logits did not come back: {changed}")
    return edits_attention


def _noise_at_every_hook(n_layers: int, fired: set[str]) -> list[Edit]:
    """Edits that add noise to row r of a batch at the hooks of kind r, in every layer. Each adds the name of
    its hook to `fired` when it runs."""
    edits: list[Edit] = []
    for row, kind in enumerate(EDITED):
        names = [kind.format(layer) for layer in range(n_layers)] if "{}" in kind else [kind]
        for name in names:
            edits.append((name, partial(_add_noise, row=row, name=name, fired=fired)))
    return edits


def _add_noise(
    tensor: torch.Tensor, hook: Any, *, row: int, name: str, fired: set[str]
) -> torch.Tensor:
    """Add seeded noise of three times the tensor's own spread to one row. Masked scores stay masked."""
    fired.add(name)
    edited = tensor.clone()
    unmasked = tensor[row][tensor[row] > torch.finfo(tensor.dtype).min / 2]
    spread = 3 * unmasked.std().nan_to_num(1.0).clamp_min(0.1)
    noise = torch.randn(tensor[row].shape, generator=torch.Generator().manual_seed(0))
    edited[row] += spread * noise.to(tensor)
    return edited
