"""How sparse a model is and what that costs, beside its dense original on the same held-out rows.

1. Both models run on the same rows; the gated one with its gate, the dense one without.
2. Open edges are counted where `s > 0`; a model that was never sparsified shows what its gate would leave open.
3. First-token mass and entropy are of the weights that multiply the values; the entropy is that of a row's weights scaled to sum to one.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float, Int

from circuits.errors import ModelError
from circuits.models.folder import Weights, reading
from circuits.models.load import find
from circuits.models.model import Model
from circuits.sparsify.attention import Scores, allowed_edges, attending, dense, hard
from circuits.sparsify.settings import LITTLE_LANGUAGE
from circuits.sparsify.text import context_of, little_language, speaks_little_language, to_rows

Source = str | Path | Model


@dataclass(frozen=True, slots=True)
class Attention:
    """Means over rows and queries: open edges per layer and head, mass on the first token (from later queries), entropy in nats."""

    per_head: tuple[tuple[float, ...], ...]
    first_token: float
    entropy: float

    @property
    def per_layer(self) -> tuple[float, ...]:
        return tuple(sum(heads) / len(heads) for heads in self.per_head)

    @property
    def open_edges(self) -> float:
        return sum(self.per_layer) / len(self.per_layer)


@dataclass(frozen=True, slots=True)
class Sparsity:
    """A gated model beside its dense original; losses and the divergence (dense‖gated) in nats per token, over `tokens` tokens."""

    name: str
    original: str
    gated: Attention
    dense: Attention
    loss: float
    dense_loss: float
    divergence: float
    tokens: int

    @property
    def open_edges(self) -> float:
        return self.gated.open_edges

    @property
    def gap(self) -> float:
        return self.loss - self.dense_loss

    def __str__(self) -> str:
        return to_table(self)


def measure_sparsity(
    model: Source, texts: Sequence[str] | None = None, *, original: Source | None = None, rows: int = 128
) -> Sparsity:
    """Measure a model on texts (by default, for speakers of the little language, on its held-out sentences), over at most `rows` rows.

    `original` is what it is compared with: by default the model its `circuits.json` names, else its own weights without the gate.
    """
    name, weights = weights_of(model)
    source = original or original_of(name)
    label, dense_weights = weights_of(source) if source else (f"{name} without its gate", weights)
    if texts is None and not speaks_little_language(weights):
        raise ModelError(f"{name} has no held-out text of its own; give it some")
    if texts is None:
        chosen = [
            little_language(
                replace(LITTLE_LANGUAGE, length=context_of(weights, LITTLE_LANGUAGE.length))
            ).held_out
        ]
    else:
        chosen = to_rows(weights, texts, length=context_of(weights, 128))
    return measure(weights.model, dense_weights.model, first_rows(chosen, rows), name=name, original=label)


def weights_of(model: Source) -> tuple[str, Weights]:
    """A model's name and its plain Hugging Face weights; a `Model` is found again by its name, without the bridge's hooks."""
    name = model.name if isinstance(model, Model) else str(model)
    with reading(name):
        return name, find(name)


def original_of(name: str) -> str | None:
    """The dense model that a twin's `circuits.json` names."""
    from circuits import zoo

    entry = zoo.lookup(name)
    marks = (Path(name) if entry is None else entry.folder) / "circuits.json"
    return json.loads(marks.read_text(encoding="utf-8")).get("original") if marks.exists() else None


def first_rows(
    tensors: Sequence[Int[torch.Tensor, "batch pos"]], limit: int
) -> list[Int[torch.Tensor, "batch pos"]]:
    kept = []
    for tensor in tensors:
        kept.append(tensor[:limit])
        limit -= len(kept[-1])
    return [tensor for tensor in kept if len(tensor)]


def measure(
    gated_model: Any,
    dense_model: Any,
    rows: Sequence[Int[torch.Tensor, "batch pos"]],
    *,
    name: str,
    original: str,
) -> Sparsity:
    """Both models on the same rows."""
    tallies = _Tally(hard), _Tally(dense)
    sums, tokens = torch.zeros(3, dtype=torch.float64), 0
    for tensor in rows:
        for chunk in tensor.split(16):
            logs = [
                _log_probabilities(model, tally, chunk)
                for model, tally in zip((gated_model, dense_model), tallies, strict=True)
            ]
            sums += torch.stack([*(_loss(each, chunk) for each in logs), _divergence(logs[1], logs[0])])
            tokens += chunk[:, 1:].numel()
    loss, dense_loss, divergence = (sums / tokens).tolist()
    return Sparsity(
        name, original, tallies[0].result(), tallies[1].result(), loss, dense_loss, divergence, tokens
    )


def _log_probabilities(
    model: Any, tally: _Tally, tokens: Int[torch.Tensor, "batch pos"]
) -> Float[torch.Tensor, "batch pos vocab"]:
    with torch.inference_mode(), attending(model, tally):
        tally.layer = 0
        return model(tokens.to(model.device), use_cache=False).logits.float().log_softmax(-1)


def _loss(log_probabilities: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
    return (
        -log_probabilities[:, :-1]
        .gather(-1, tokens[:, 1:, None].to(log_probabilities.device))
        .double()
        .sum()
        .cpu()
    )


def _divergence(of: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    return (of.exp() * (of - to))[:, :-1].double().sum().cpu()


class _Tally:
    """A rule of attention that counts what it lets through."""

    def __init__(self, rule: Any) -> None:
        self.rule, self.layer = rule, 0
        self.open: list[torch.Tensor] = []  # per layer, (head,)
        self.edges: list[int] = []
        self.first_token, self.entropy, self.queries = 0.0, 0.0, 0

    def __call__(self, scores: Scores) -> Scores:
        weights = self.rule(scores)
        batch, heads, length, _ = scores.shape
        if self.layer == len(self.open):
            self.open.append(torch.zeros(heads, dtype=torch.float64))
            self.edges.append(0)
        self.open[self.layer] += (scores > 0).sum((0, 2, 3)).cpu()
        self.edges[self.layer] += batch * allowed_edges(length)
        self.layer += 1
        later = weights[:, :, 1:]
        shares = later / later.sum(-1, keepdim=True).clamp_min(1e-30)
        self.first_token += later[..., 0].double().sum().item()
        self.entropy += torch.special.entr(shares).double().sum().item()
        self.queries += batch * heads * (length - 1)
        return weights

    def result(self) -> Attention:
        if not self.open:
            raise ModelError(
                "no layer of this model uses the library's attention interface, or there was no text; nothing was measured"
            )
        per_head = tuple(
            tuple((count / edges).tolist()) for count, edges in zip(self.open, self.edges, strict=True)
        )
        return Attention(per_head, self.first_token / self.queries, self.entropy / self.queries)


def to_table(measured: Sparsity) -> str:
    """The figures as a Markdown table."""
    gated, plain = measured.gated, measured.dense
    return "\n".join(
        (
            f"| over {measured.tokens} held-out tokens | {measured.original} | {measured.name} |",
            "|---|---:|---:|",
            f"| open edges (s > 0) | {plain.open_edges:.3%} | {gated.open_edges:.3%} |",
            f"| loss, nats | {measured.dense_loss:.4f} | {measured.loss:.4f} |",
            f"| divergence from dense, nats | 0 | {measured.divergence:.4f} |",
            f"| attention on the first token | {plain.first_token:.2%} | {gated.first_token:.2%} |",
            f"| entropy of attention, nats | {plain.entropy:.3f} | {gated.entropy:.3f} |",
        )
    )
