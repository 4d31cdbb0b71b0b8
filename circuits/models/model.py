"""A language model ready to be measured: its sizes, its tokens, the gate, and edits at its hooks.

1. The gate, the sparse attention rule: `s = q·k/√d_head`, `P = softmax(s)` over all allowed keys,
   `A = 1[s > 0]`, output `Σ A·P·v`. Nothing is renormalised, so a query whose gates are all shut writes
   nothing.
2. An edit is a hook's name and a function `fn(tensor, hook) -> tensor | None`; None leaves the tensor alone.
   `attached` records which hooks a point has before it adds one, so leaving restores them however it ends.
3. When a `Model` is made, `check_hooks` runs one batch in which each row is edited at one kind of hook, in
   every layer, and the last at none: the logits of each must move away from the last one's, each hook must
   fire, and without the edits the logits must come back bit for bit. Where a bridge leaves attention to
   Hugging Face (GPT-J, OPT), scores and patterns can be read afterwards but not edited; `edits_attention`
   says so, and the model is not refused.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import cached_property, partial
from operator import attrgetter
from typing import TYPE_CHECKING, Any, Final

import torch
from jaxtyping import Bool, Float, Int

from circuits.errors import ModelError
from circuits.models import Vocabulary
from circuits.models.folder import quiet

if TYPE_CHECKING:
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import PreTrainedTokenizerBase as Tokenizer


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
    changes = [(row - unedited).abs().nan_to_num(nan=torch.inf).max() for row in edited]  # fp16 may overflow
    lost = [kind for kind, change in zip(EDITED, changes, strict=True) if not change > least]
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
        """How many keys and values there are; several heads share one where they are fewer than heads."""
        return self.bridge.cfg.n_key_value_heads or self.n_heads

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next(self.bridge.parameters()).device

    @property
    def dtype(self) -> torch.dtype:
        """The numbers that its weights are."""
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
