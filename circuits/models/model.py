"""A language model ready to be measured: its sizes, its tokens, the gate, and edits at its hooks.

1. The gate is the sparse attention rule: `s = q·k/√d_head`, `P = softmax(s)` over all allowed keys,
   `A = 1[s > 0]`, output `Σ A·P·v`. Nothing is renormalised, so a query whose gates are all shut writes
   nothing.
2. The model's own forward runs in eval mode, inside a `with` that puts every module back into its own mode.
3. When a `Model` is made, `hooks.check_hooks` edits each kind of hook and requires that the logits change, and
   that they come back bit for bit once the edits are gone.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Bool, Float, Int

from circuits.errors import ModelError
from circuits.models.folder import quiet
from circuits.models.hooks import (
    PATTERN,
    SCORES,
    Edit,
    attached,
    check_attention,
    check_hooks,
    evaluating,
)
from circuits.models.placement import is_split
from circuits.models.vocabulary import Vocabulary

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase as Tokenizer


Attention = Float[torch.Tensor, "*batch query key"]


# The gate


def open_gates(scores: Attention) -> Bool[torch.Tensor, "*batch query key"]:
    """Which edges are open: those whose scaled logit is above zero (a masked key's logit never is)."""
    return scores > 0


def gated(scores: Attention, pattern: Attention) -> Attention:
    """The pattern with its shut edges at exactly zero."""
    return torch.where(open_gates(scores), pattern, pattern.new_zeros(()))


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
