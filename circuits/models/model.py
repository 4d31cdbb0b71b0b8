"""A language model ready to be measured: its sizes, its tokens, and runs with hooks and gate in place.

When a `Model` is made, every kind of hook is edited once: the logits must move, and come back exactly. Of
scores and patterns `edits_attention` says whether they do.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int

from circuits.errors import ModelError
from circuits.models import Vocabulary
from circuits.models.folder import quiet
from circuits.models.hooks import PATTERN, SCORES, Edit, attached, check_hooks, gated

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase as Tokenizer


@dataclass(frozen=True, eq=False, repr=False)
class Model:
    """A language model ready to be measured: made by `load` or `as_model`, in eval mode, hooks checked.

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
    edits_attention: bool = field(init=False)  # whether edits of scores and patterns reach the logits

    def __post_init__(self) -> None:
        _ = self.vocabulary  # a rule that its tokenizer cannot follow is refused at once
        self.bridge.eval()
        # A dozen different words, so that some head of any model finds something to read.
        words = torch.randperm(self.vocab_size, generator=torch.Generator().manual_seed(0))
        with quiet():
            prompt = words[: min(12, self.n_ctx)]
            edits = check_hooks(self._ungated, self._points, prompt, n_layers=self.n_layers)
        object.__setattr__(self, "edits_attention", edits)
        if self.gated and not edits:
            raise ModelError(f"{self.name} cannot be gated: {self.no_scores}")

    def __repr__(self) -> str:
        return f"Model({self})"

    def __str__(self) -> str:
        heads = f"{self.n_layers} layers of {self.n_heads} heads"
        sizes = f"{heads}, d_model {self.d_model}, {self.vocab_size} tokens"
        rules = f"{'gated' if self.gated else 'dense'}, {'reads BOS' if self.reads_bos else 'no BOS'}"
        return f"{self.name}: {sizes}, {rules}"

    # Sizes, as the bridge's config has them.

    n_layers = property(attrgetter("bridge.cfg.n_layers"))
    n_heads = property(attrgetter("bridge.cfg.n_heads"))
    d_head = property(attrgetter("bridge.cfg.d_head"))
    d_model = property(attrgetter("bridge.cfg.d_model"))
    n_ctx = property(attrgetter("bridge.cfg.n_ctx"))
    vocab_size = property(attrgetter("bridge.cfg.d_vocab"))

    @property
    def no_scores(self) -> str:
        """Why scores cannot be edited, where they cannot."""
        return f"the bridge of {self.bridge.cfg.architecture} discards edits of attention scores"

    @property
    def embedding_scale(self) -> float:
        """What the model multiplies its embeddings by: Gemma does, by √d_model."""
        original: Any = self.bridge.original_model
        embedding = original.get_input_embeddings()
        while getattr(embedding, "original_component", None) is not None:
            embedding = embedding.original_component
        return float(getattr(embedding, "embed_scale", 1.0))

    @property
    def n_key_value_heads(self) -> int:
        return self.bridge.cfg.n_key_value_heads or self.n_heads

    @property
    def device(self) -> torch.device:
        return next(self.bridge.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        return next(self.bridge.parameters()).dtype

    @cached_property
    def fingerprint(self) -> str:
        """The sha256 of all weights: names in order, each with its type, shape and bytes."""
        digest = hashlib.sha256()
        for name, tensor in sorted(self.bridge.state_dict().items()):
            digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode())
            digest.update(tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy())
        return digest.hexdigest()

    # Tokens.

    @cached_property
    def vocabulary(self) -> Vocabulary:
        return Vocabulary(self.name, self.tokenizer, self.reads_bos, self.n_ctx, self.vocab_size)

    def tokenize(self, text: str) -> tuple[int, ...]:
        """The numbers of a prompt's tokens, BOS first if the model reads one (never twice)."""
        return self.vocabulary.tokenize(text)

    def spell(self, token: int) -> str:
        """A token's text as the tokenizer has it, leading space included."""
        return self.vocabulary.spell(token)

    # Running.

    def logits(self, tokens: Int[torch.Tensor, "batch pos"]) -> Float[torch.Tensor, "batch pos vocab"]:
        """What the model predicts, gate applied, without gradients."""
        with torch.inference_mode():
            return self.forward(tokens)

    def forward(self, tokens: Int[torch.Tensor, "batch pos"]) -> Float[torch.Tensor, "batch pos vocab"]:
        """One run with the hooks that are in place and, if the model is gated, the gate; gradients flow."""
        with self._gate() if self.gated else nullcontext():
            return self._ungated(tokens)

    def has_hook(self, name: str) -> bool:
        """Whether there is a hook of this name."""
        return name in self._points

    def hooked(self, hooks: Sequence[Edit]) -> AbstractContextManager[None]:
        """Within this `with`, runs have these hooks, each `(name, fn(tensor, hook) -> tensor | None)`."""
        return attached(self._points, hooks)

    @contextmanager
    def _gate(self) -> Iterator[None]:
        """The gate reads scores after every edit of them and shuts edges before any edit of the pattern."""
        scores: dict[int, torch.Tensor] = {}

        def record(layer: int) -> Edit:
            return SCORES.format(layer), lambda tensor, hook: scores.update({layer: tensor})

        def shut(layer: int) -> Edit:
            return PATTERN.format(layer), lambda tensor, hook: gated(scores.pop(layer), tensor)

        layers = range(self.n_layers)
        recorded = attached(self._points, map(record, layers))
        with recorded, attached(self._points, map(shut, layers), first=True):
            yield

    def _ungated(self, tokens: Int[torch.Tensor, "batch pos"]) -> Float[torch.Tensor, "batch pos vocab"]:
        return self.bridge(tokens.to(self.device), return_type="logits")

    @cached_property
    def _points(self) -> dict[str, Any]:
        """Hook points by every name they answer to; collecting them costs milliseconds."""
        return dict(self.bridge.hook_dict)
