"""A language model ready to be measured: its sizes, its tokens, the gate, and edits at its hooks.

1. The gate is the sparse attention rule: `s = q·k/√d_head`, `P = softmax(s)` over all allowed keys,
   `A = 1[s > 0]`, output `Σ A·P·v`. Nothing is renormalised, so a query whose gates are all shut writes
   nothing.
2. An edit is the name of a hook point and a function `fn(tensor, hook) -> tensor | None`; None leaves the
   tensor as it is. `attached` puts edits in place for a `with` block and takes off exactly those at its end,
   however it ends.
3. The model's own forward runs in eval mode, inside a `with` that puts every module back into its own mode.
4. When a `Model` is made, `check_hooks` edits each kind of hook and requires that the logits change, and that
   they come back bit for bit once the edits are gone. Some bridges leave attention to Hugging Face (GPT-J,
   OPT): there, edits of scores and patterns have no effect. Such a model is taken all the same, and
   `edits_attention` is False.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Final

import torch
from jaxtyping import Bool, Float, Int

from circuits.errors import ModelError
from circuits.models.folder import quiet
from circuits.models.placement import is_split
from circuits.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase as Tokenizer


Hook = Callable[..., torch.Tensor | None]  # called as fn(tensor, hook=point)
Edit = tuple[str, Hook]
Forward = Callable[[Int[torch.Tensor, "batch pos"]], Float[torch.Tensor, "batch pos vocab"]]
Attention = Float[torch.Tensor, "*batch query key"]

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


# The gate


def open_gates(scores: Attention) -> Bool[torch.Tensor, "*batch query key"]:
    """Which edges are open: those whose scaled logit is above zero (a masked key's logit never is)."""
    return scores > 0


def gated(scores: Attention, pattern: Attention) -> Attention:
    """The pattern with its shut edges at exactly zero."""
    return torch.where(open_gates(scores), pattern, pattern.new_zeros(()))


# Hooks


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
        count = "no layer" if len(without) == n_layers else f"layer {without[0]}"
        has = "has attention heads" if len(without) == n_layers else "has no attention heads"
        raise ModelError(
            f"{count} of {name} {has}; circuits measures attention heads, so it takes models that have "
            "them in every layer"
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
    edits = []
    for row, kind in enumerate(EDITED):
        names = [kind.format(layer) for layer in range(n_layers)] if "{}" in kind else [kind]
        edits += [
            (name, partial(_add_noise, row=row, name=name, fired=fired)) for name in names
        ]
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
    edits_attention = True
    for kind, logits in zip(EDITED, edited, strict=True):
        # An edit may overflow fp16.
        change = (logits - unedited).abs().nan_to_num(nan=torch.inf).max()
        if change > _SMALLEST_CHANGE * before.abs().max():
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


def _add_noise(
    tensor: torch.Tensor, hook: Any, *, row: int, name: str, fired: set[str]
) -> torch.Tensor:
    """Add seeded noise of three times the tensor's own spread to one row. Masked scores stay masked."""
    fired.add(name)
    edited = tensor.clone()
    unmasked = tensor[row][tensor[row] > torch.finfo(tensor.dtype).min / 2]
    spread = 3 * unmasked.std().nan_to_num(1.0).clamp_min(0.1)
    noise = torch.randn(tensor[row].shape, generator=torch.Generator().manual_seed(0)).to(
        tensor
    )
    edited[row] += spread * noise
    return edited


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A language model ready to be measured: made by `load` or `as_model`, hooks checked.

    Run it through `logits`, or `forward` inside `hooked`; these apply the gate, `bridge` on its own does not.

        >>> model.name, model.reads_bos
        ('mini', True)
        >>> [model.spell(token) for token in circuits.to_prompt(model, TEXT).tokens][5]
        'large'
    """

    name: str
    bridge: TransformerBridge
    tokenizer: Tokenizer
    gated: bool
    reads_bos: bool
    offload: bool = False  # what runs keep is on the CPU, and brought back layer by layer
    # Whether edits of scores and patterns reach the logits.
    edits_attention: bool = field(init=False)

    def __post_init__(self) -> None:
        _ = self.vocabulary  # refuses a model that is to read BOS and has none
        architecture = self.bridge.cfg.architecture or type(self.bridge.original_model).__name__
        check_attention(architecture, self._points, n_layers=self.n_layers)
        # A dozen different tokens, so that some head of any model finds something to read.
        tokens = torch.randperm(self.vocab_size, generator=torch.Generator().manual_seed(0))
        with quiet():
            prompt = tokens[: min(12, self.n_ctx)]
            edits_attention = check_hooks(
                self._ungated, self._points, prompt, n_layers=self.n_layers
            )
        object.__setattr__(self, "edits_attention", edits_attention)
        if self.gated and not edits_attention:
            raise ModelError(f"{self.name} cannot be gated: {self.no_scores}")

    def __repr__(self) -> str:
        return f"Model({self})"

    def __str__(self) -> str:
        sizes = f"{self.n_layers} layers of {self.n_heads} heads, d_model {self.d_model}"
        gate = "gated" if self.gated else "dense"
        bos = "reads BOS" if self.reads_bos else "no BOS"
        return f"{self.name}: {sizes}, {self.vocab_size} tokens, {gate}, {bos}"

    # Sizes

    @property
    def n_layers(self) -> int:
        """The number of layers."""
        return self.bridge.cfg.n_layers

    @property
    def n_heads(self) -> int:
        """The number of attention heads of a layer."""
        return self.bridge.cfg.n_heads

    @property
    def n_key_value_heads(self) -> int:
        """The number of key and value heads of a layer; if there are fewer than heads, several share one."""
        return self.bridge.cfg.n_key_value_heads or self.n_heads

    @property
    def d_head(self) -> int:
        """The dimension of a head's queries, keys and values."""
        return self.bridge.cfg.d_head

    @property
    def d_model(self) -> int:
        """The dimension of the residual stream."""
        return self.bridge.cfg.d_model

    @property
    def n_ctx(self) -> int:
        """The largest number of tokens that the model reads."""
        return self.bridge.cfg.n_ctx

    @property
    def vocab_size(self) -> int:
        """The number of tokens that the model can predict."""
        return self.bridge.cfg.d_vocab

    # Weights

    @property
    def device(self) -> torch.device:
        """The device of the weights; of a model on several devices that of its embedding."""
        return next(self.bridge.parameters()).device

    def device_of(self, layer: int) -> torch.device:
        """The device of a block; the stream above the last block is on that block's device."""
        block = self.bridge.blocks[min(layer, self.n_layers - 1)]
        return next(block.parameters()).device

    @property
    def is_split(self) -> bool:
        """Whether its parts are on several devices, so that only its own forward can run it."""
        return is_split(self.bridge.original_model)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of the weights."""
        return next(self.bridge.parameters()).dtype

    @property
    def embedding_scale(self) -> float:
        """The factor by which the model multiplies its embeddings: √d_model in Gemma, 1 in most others."""
        original: Any = self.bridge.original_model
        embedding = original.get_input_embeddings()
        while getattr(embedding, "original_component", None) is not None:
            embedding = embedding.original_component
        return float(getattr(embedding, "embed_scale", 1.0))

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all weights: names in order, each with its type, shape and bytes."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.bridge.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(
                tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy()
            )
        return digest.hexdigest()

    # Tokens

    @cached_property
    def vocabulary(self) -> Vocabulary:
        """How the model reads text."""
        return Vocabulary(
            self.name, self.tokenizer, self.reads_bos, self.n_ctx, self.vocab_size
        )

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The token ids of a prompt, BOS first if the model reads one (never twice)."""
        return self.vocabulary.tokenize(text)

    def spell(self, token: int) -> str:
        """The text of a token as the tokenizer has it, leading space included."""
        return self.vocabulary.spell(token)

    # Running

    def logits(
        self, tokens: Int[torch.Tensor, "batch pos"]
    ) -> Float[torch.Tensor, "batch pos vocab"]:
        """What the model predicts, gate applied, without gradients."""
        with torch.inference_mode():
            return self.forward(tokens)

    def forward(
        self, tokens: Int[torch.Tensor, "batch pos"]
    ) -> Float[torch.Tensor, "batch pos vocab"]:
        """One run with the hooks that are in place and, if the model is gated, the gate; gradients flow."""
        if not self.gated:
            return self._ungated(tokens)
        with self._gate():
            return self._ungated(tokens)

    def has_hook(self, name: str) -> bool:
        """Whether there is a hook of this name."""
        return name in self._points

    def hooked(self, hooks: Sequence[Edit]) -> AbstractContextManager[None]:
        """Within this `with`, runs have these hooks, each `(name, fn(tensor, hook) -> tensor | None)`."""
        return attached(self._points, hooks)

    @property
    def no_scores(self) -> str:
        """Why edits of attention scores have no effect, for a model with `edits_attention` False."""
        return (
            f"the bridge of {self.bridge.cfg.architecture} discards edits of attention scores"
        )

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """Apply the gate: it reads scores after all edits of them, and shuts edges before any edit of the
        pattern."""
        scores: dict[int, torch.Tensor] = {}

        def record(tensor: torch.Tensor, hook: Any, *, layer: int) -> None:
            scores[layer] = tensor

        def shut(tensor: torch.Tensor, hook: Any, *, layer: int) -> torch.Tensor:
            return gated(scores.pop(layer), tensor)

        layers = range(self.n_layers)
        recorders = [(SCORES.format(layer), partial(record, layer=layer)) for layer in layers]
        gates = [(PATTERN.format(layer), partial(shut, layer=layer)) for layer in layers]
        with attached(self._points, recorders), attached(self._points, gates, first=True):
            yield

    def _ungated(
        self, tokens: Int[torch.Tensor, "batch pos"]
    ) -> Float[torch.Tensor, "batch pos vocab"]:
        # The bridge does not count all parts of the model inside it as its own.
        with evaluating(self.bridge, self.bridge.original_model):
            return self.bridge(tokens.to(self.device), return_type="logits")

    @cached_property
    def _points(self) -> dict[str, Any]:
        """Hook points by every name they answer to; collecting them costs milliseconds."""
        return dict(self.bridge.hook_dict)
