"""How sparse a model is and what that costs, beside its dense original on the same held-out rows.

An edge is open where its scaled attention logit `s` is above 0; in a model without a gate, these are the
edges that a gate would leave open. They are counted twice: as a share of all edges, which falls with the
length of the rows whatever the model does, and as open edges a query and head, which need not. First-token
mass and entropy are of the weights that multiply the values; a query's weights are scaled to sum to one
before their entropy is taken.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import torch

from circuits.errors import ModelError
from circuits.files import read_object, to_markdown
from circuits.models import lookup
from circuits.models.folder import FLAGS_FILE, ModelFlags, Weights, reading
from circuits.models.load import Dtype, find, to_dtype
from circuits.models.model import Model, open_gates
from circuits.models.placement import Device, to_device
from circuits.sparsify.attention import Rule, Scores, allowed_edges, dense, hard, logits_under
from circuits.sparsify.settings import LITTLE_LANGUAGE
from circuits.sparsify.small_vocabulary import Tokens
from circuits.sparsify.text import (
    context_of,
    little_language,
    speaks_little_language,
    to_rows,
)
from circuits.sparsify.training import Logits, losses

AnyModel = str | Path | Model
LENGTHS: Final = (
    8,
    16,
    32,
    64,
    128,
    256,
)  # tokens of the prompts at which open edges are reported


@dataclass(frozen=True, slots=True)
class AttentionStats:
    """How one model attends, as means over rows and queries."""

    per_head: tuple[tuple[float, ...], ...]  # the share of open edges, by layer and head
    first_token: float  # the weight on the first token, of all later queries
    entropy: float  # of a query's weights, in nats
    per_query: tuple[float, ...]  # how many keys are open to a head, by the query's position

    @property
    def per_layer(self) -> tuple[float, ...]:
        return tuple(sum(heads) / len(heads) for heads in self.per_head)

    @property
    def open_edges(self) -> float:
        return sum(self.per_layer) / len(self.per_layer)

    @property
    def edges_per_query(self) -> float:
        """Open edges of a query and head on whole rows: their share times (T + 1) / 2."""
        return self.edges_upto(len(self.per_query))

    def share_upto(self, length: int) -> float:
        """The share of open edges on prompts of `length` tokens: the starts of the rows."""
        return sum(self.per_query[:length]) / allowed_edges(length)

    def edges_upto(self, length: int) -> float:
        """Open edges of a query and head on prompts of `length` tokens, a mean over their queries."""
        return sum(self.per_query[:length]) / length


@dataclass(frozen=True, slots=True)
class LengthSparsity:
    """Open edges on prompts of one length: their share of all edges, and how many a query and head has."""

    length: int  # tokens
    dense_share: float
    dense_edges: float
    share: float
    edges: float
    last_edges: float  # of the gated model's last query, which has the most keys to choose from


@dataclass(frozen=True, slots=True)
class Sparsity:
    """A gated model beside its dense original; losses and KL(dense‖gated) in nats per token."""

    name: str
    original: str
    gated: AttentionStats
    dense: AttentionStats
    loss: float
    dense_loss: float
    divergence: float
    agreement: float  # how often both find the same next token likeliest
    tokens: int  # how many were measured

    @property
    def open_edges(self) -> float:
        return self.gated.open_edges

    @property
    def edges_per_query(self) -> float:
        return self.gated.edges_per_query

    @property
    def gap(self) -> float:
        return self.loss - self.dense_loss

    @property
    def by_length(self) -> tuple[LengthSparsity, ...]:
        """Open edges of both models on the starts of the rows, at each of `LENGTHS` and at whole rows."""
        longest = len(self.gated.per_query)
        lengths = [length for length in LENGTHS if length < longest]
        return tuple(self._at(length) for length in (*lengths, longest))

    def _at(self, length: int) -> LengthSparsity:
        return LengthSparsity(
            length=length,
            dense_share=self.dense.share_upto(length),
            dense_edges=self.dense.edges_upto(length),
            share=self.gated.share_upto(length),
            edges=self.gated.edges_upto(length),
            last_edges=self.gated.per_query[length - 1],
        )

    @property
    def facts(self) -> tuple[tuple[str, str, str], ...]:
        """The lines of the table: a name, the dense model's figure and the gated one's."""
        dense, gated = self.dense, self.gated
        return (
            ("open edges (s > 0)", f"{dense.open_edges:.3%}", f"{gated.open_edges:.3%}"),
            (
                f"open edges a query and head, {len(gated.per_query)} tokens",
                f"{dense.edges_per_query:.3f}",
                f"{gated.edges_per_query:.3f}",
            ),
            ("loss, nats", f"{self.dense_loss:.4f}", f"{self.loss:.4f}"),
            ("divergence from dense, nats", "0", f"{self.divergence:.4f}"),
            ("next token the same", "100%", f"{self.agreement:.2%}"),
            (
                "attention on the first token",
                f"{dense.first_token:.2%}",
                f"{gated.first_token:.2%}",
            ),
            ("entropy of attention, nats", f"{dense.entropy:.3f}", f"{gated.entropy:.3f}"),
        )

    def __str__(self) -> str:
        return to_markdown(
            (f"over {self.tokens} held-out tokens", self.original, self.name), self.facts
        )


def length_rows(measured: Sparsity) -> list[tuple[str, ...]]:
    """Lines of a table: tokens, open edges of the original (share, a query and head), of the model, and
    of the model's last query."""
    rows = []
    for each in measured.by_length:
        rows.append(
            (
                str(each.length),
                f"{each.dense_share:.2%}",
                f"{each.dense_edges:.3f}",
                f"{each.share:.2%}",
                f"{each.edges:.3f}",
                f"{each.last_edges:.3f}",
            )
        )
    return rows


def measure_sparsity(
    model: AnyModel,
    texts: Sequence[str] | None = None,
    *,
    original: AnyModel | None = None,
    rows: int = 128,
    length: int = 128,
    dtype: Dtype | None = None,
    device: Device = "cpu",
) -> Sparsity:
    """Measure a model on at most `rows` rows of texts; a model of the little language needs no texts.

    A row of a text has at most `length` tokens, or as many as the model reads.

    `original` is the dense model to compare with: by default the one that the model's `circuits.json` names,
    else its own weights without the gate.
    """
    if length < 2:
        raise ModelError(f"a row needs at least 2 tokens, not {length}; give a larger length")
    name, weights = weights_of(model)
    reference = original_of(name) if original is None else original
    if reference is not None:
        original_name, dense_weights = weights_of(reference)
    else:
        original_name, dense_weights = f"{name} without its gate", weights
    if texts is not None:
        chosen = to_rows(weights, texts, length=context_of(weights, length))
    elif speaks_little_language(weights):
        length = context_of(weights, LITTLE_LANGUAGE.length)
        chosen = [little_language(replace(LITTLE_LANGUAGE, length=length)).held_out]
    else:
        raise ModelError(f"{name} has no held-out text of its own; give it some")
    device = to_device(device)
    chosen_dtype = torch.float32 if dtype is None else to_dtype(dtype)
    gated_model: Any = weights.model
    dense_model: Any = dense_weights.model
    for each in (gated_model, dense_model):
        each.to(device=device, dtype=chosen_dtype)
    return measure(
        gated_model, dense_model, first_rows(chosen, rows), name=name, original=original_name
    )


def weights_of(model: AnyModel | tuple[Any, Any]) -> tuple[str, Weights]:
    """A model's name and its plain Hugging Face weights, copied or read again by name, without hooks."""
    if isinstance(model, tuple):
        transformer, tokenizer = model
        name = (
            str(getattr(transformer.config, "_name_or_path", "")) or type(transformer).__name__
        )
        return name, Weights(deepcopy(transformer), tokenizer, ModelFlags())
    name = model.name if isinstance(model, Model) else str(model)
    with reading(name):
        return name, find(name)


def original_of(name: str) -> str | None:
    """The dense model that a twin's `circuits.json` names."""
    entry = lookup(name)
    folder = Path(name) if entry is None else entry.folder
    flags = folder / FLAGS_FILE
    return read_object(flags).get("original") if flags.exists() else None


def first_rows(tensors: Sequence[Tokens], limit: int) -> list[Tokens]:
    """The first `limit` rows of several tensors."""
    kept = []
    for tensor in tensors:
        first = tensor[:limit]
        limit -= len(first)
        if len(first):
            kept.append(first)
    return kept


def measure(
    gated_model: Any, dense_model: Any, rows: Sequence[Tokens], *, name: str, original: str
) -> Sparsity:
    """Run both models on the same rows, each tensor of which has rows of one length."""
    longest = max((tensor.shape[1] for tensor in rows), default=0)
    gated_count, dense_count = _CountingRule(hard, longest), _CountingRule(dense, longest)
    sums = torch.zeros(3, dtype=torch.float64)
    agreeing = 0
    targets = 0
    for tensor in rows:
        # Logits take the most memory: long rows are run fewer at a time.
        for tokens in tensor.split(min(16, max(1, 2048 // tensor.shape[1]))):
            gated_logits = gated_count.run(gated_model, tokens)
            dense_logits = dense_count.run(dense_model, tokens)
            per_target = losses(gated_logits, dense_logits, tokens.to(gated_logits.device))
            sums += per_target.double().sum((1, 2)).cpu()
            is_same = gated_logits.argmax(-1) == dense_logits.argmax(-1)
            agreeing += int(is_same[:, :-1].sum())
            targets += tokens[:, 1:].numel()
    gated_stats, dense_stats = gated_count.stats(), dense_count.stats()
    loss, dense_loss, divergence = (sums / targets).tolist()
    return Sparsity(
        name=name,
        original=original,
        gated=gated_stats,
        dense=dense_stats,
        loss=loss,
        dense_loss=dense_loss,
        divergence=divergence,
        agreement=agreeing / targets,
        tokens=targets,
    )


class _CountingRule:
    """A rule of attention that counts open edges and sums up the weights it gives."""

    def __init__(self, rule: Rule, longest: int) -> None:
        self.rule = rule
        self.runs = 0
        self.edges = 0  # allowed edges of one head in all rows
        self.open_edges: list[torch.Tensor] = []  # (head,), of each layer of each run
        # By query, of all rows, heads and layers.
        self.open_keys = torch.zeros(longest, dtype=torch.float64)
        # By query, rows times heads times layers.
        self.counted = torch.zeros(longest, dtype=torch.float64)
        self.later_queries = 0  # of all rows, heads and layers
        self.first_token = 0.0  # sums over the later queries
        self.entropy = 0.0

    def run(self, model: Any, tokens: Tokens) -> Logits:
        """The model's logits under this rule."""
        self.runs += 1
        self.edges += len(tokens) * allowed_edges(tokens.shape[1])
        with torch.inference_mode():
            return logits_under(self, model, tokens.to(model.device)).float()

    def __call__(self, scores: Scores) -> Scores:
        weights = self.rule(scores)
        rows, heads, queries, _ = scores.shape
        is_open = open_gates(scores)
        self.open_edges.append(is_open.sum((0, 2, 3)).double().cpu())
        self.open_keys[:queries] += is_open.sum((0, 1, 3)).double().cpu()
        self.counted[:queries] += rows * heads
        later = weights[:, :, 1:]
        shares = later / later.sum(-1, keepdim=True).clamp_min(1e-30)
        self.first_token += later[..., 0].double().sum().item()
        self.entropy += torch.special.entr(shares).double().sum().item()
        self.later_queries += rows * heads * (queries - 1)
        return weights

    def stats(self) -> AttentionStats:
        if not self.open_edges:
            reason = "no layer of this model uses the library's attention interface, or there was no text"
            raise ModelError(f"nothing was measured: {reason}")
        # (layer, head)
        counts = torch.stack(self.open_edges).unflatten(0, (self.runs, -1)).sum(0)
        per_head = (counts / self.edges).tolist()
        return AttentionStats(
            per_head=tuple(tuple(heads) for heads in per_head),
            first_token=self.first_token / self.later_queries,
            entropy=self.entropy / self.later_queries,
            per_query=tuple((self.open_keys / self.counted).tolist()),
        )
