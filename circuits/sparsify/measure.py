"""How sparse a model is and what that costs, beside its dense original on the same held-out rows.

Open edges are counted where `s > 0`; in a model never sparsified, they are what a gate would leave open.
First-token mass and entropy are of the weights that multiply the values; the entropy is that of a query's
weights scaled to sum to one. A twin's card shows these figures, and a figure shows how its training went.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median_high
from typing import Any

import torch
from matplotlib.figure import Figure
from matplotlib.ticker import Locator, LogLocator, MaxNLocator

from circuits.errors import ModelError
from circuits.files import read_object, to_markdown
from circuits.models import lookup
from circuits.models.folder import MARKS, Marks, Weights, reading
from circuits.models.load import Device, Dtype, find, to_device, to_dtype
from circuits.models.model import Model, open_gates
from circuits.show import canvas
from circuits.show.canvas import looks, save_figure
from circuits.sparsify import LITTLE_LANGUAGE, Settings
from circuits.sparsify.attention import Rule, Scores, allowed_edges, dense, hard, logits_under
from circuits.sparsify.text import Tokens, context_of, little_language, speaks_little_language, to_rows
from circuits.sparsify.training import Logits, losses
from circuits.zoo.evaluate import Score

AnyModel = str | Path | Model
Log = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class AttentionStats:
    """Means over rows and queries: open edges per layer and head, first-token mass, entropy in nats."""

    per_head: tuple[tuple[float, ...], ...]
    first_token: float  # from later queries
    entropy: float
    per_query: tuple[float, ...]  # how many keys are open to a head at each position

    @property
    def per_layer(self) -> tuple[float, ...]:
        return tuple(sum(heads) / len(heads) for heads in self.per_head)

    @property
    def open_edges(self) -> float:
        return sum(self.per_layer) / len(self.per_layer)

    def share_upto(self, length: int) -> float:
        """The share of open edges on prompts of so many tokens: those at the rows' starts."""
        return sum(self.per_query[:length]) / allowed_edges(length)


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
    def gap(self) -> float:
        return self.loss - self.dense_loss

    @property
    def facts(self) -> tuple[tuple[str, str, str], ...]:
        """What is said of both: a name, the dense model's figure and the gated one's."""
        dense, gated = self.dense, self.gated
        return (
            ("open edges (s > 0)", f"{dense.open_edges:.3%}", f"{gated.open_edges:.3%}"),
            ("loss, nats", f"{self.dense_loss:.4f}", f"{self.loss:.4f}"),
            ("divergence from dense, nats", "0", f"{self.divergence:.4f}"),
            ("next token the same", "100%", f"{self.agreement:.2%}"),
            ("attention on the first token", f"{dense.first_token:.2%}", f"{gated.first_token:.2%}"),
            ("entropy of attention, nats", f"{dense.entropy:.3f}", f"{gated.entropy:.3f}"),
        )

    def __str__(self) -> str:
        return to_markdown((f"over {self.tokens} held-out tokens", self.original, self.name), self.facts)


def measure_sparsity(
    model: AnyModel,
    texts: Sequence[str] | None = None,
    *,
    original: AnyModel | None = None,
    rows: int = 128,
    dtype: Dtype | None = None,
    device: Device = "cpu",
) -> Sparsity:
    """Measure a model on at most `rows` rows of texts; a model of the little language needs no texts.

    `original` is the dense model to compare with: by default the one that the model's `circuits.json` names,
    else its own weights without the gate.
    """
    name, weights = weights_of(model)
    reference = original or original_of(name)
    label, dense_weights = weights_of(reference) if reference else (f"{name} without its gate", weights)
    if texts is not None:
        chosen = to_rows(weights, texts, length=context_of(weights, 128))
    elif speaks_little_language(weights):
        length = context_of(weights, LITTLE_LANGUAGE.length)
        chosen = [little_language(replace(LITTLE_LANGUAGE, length=length)).held_out]
    else:
        raise ModelError(f"{name} has no held-out text of its own; give it some")
    form = {"device": to_device(device), "dtype": torch.float32 if dtype is None else to_dtype(dtype)}
    gated, dense = (each.model.to(**form) for each in (weights, dense_weights))
    return measure(gated, dense, first_rows(chosen, rows), name=name, original=label)


def weights_of(model: AnyModel | tuple[Any, Any]) -> tuple[str, Weights]:
    """A model's name and its plain Hugging Face weights, copied or read again by name, without hooks."""
    if isinstance(model, tuple):
        name = str(getattr(model[0].config, "_name_or_path", "")) or type(model[0]).__name__
        return name, Weights(deepcopy(model[0]), model[1], Marks())
    name = model.name if isinstance(model, Model) else str(model)
    with reading(name):
        return name, find(name)


def original_of(name: str) -> str | None:
    """The dense model that a twin's `circuits.json` names."""
    entry = lookup(name)
    marks = (Path(name) if entry is None else entry.folder) / MARKS
    return read_object(marks).get("original") if marks.exists() else None


def first_rows(tensors: Sequence[Tokens], limit: int) -> list[Tokens]:
    """The first `limit` rows of several tensors."""
    kept = []
    for tensor in tensors:
        kept.append(tensor[:limit])
        limit -= len(kept[-1])
    return [tensor for tensor in kept if len(tensor)]


def measure(
    gated_model: Any, dense_model: Any, rows: Sequence[Tokens], *, name: str, original: str
) -> Sparsity:
    """Both models on the same rows."""
    sides = ((_Tally(hard), gated_model), (_Tally(dense), dense_model))
    sums, same, tokens = torch.zeros(3, dtype=torch.float64), 0, 0
    for chunk in (chunk for tensor in rows for chunk in tensor.split(16)):
        own, other = (tally.run(model, chunk) for tally, model in sides)
        sums += losses(own, other, chunk.to(own.device)).double().sum((1, 2)).cpu()
        same += int((own.argmax(-1) == other.argmax(-1))[:, :-1].sum())
        tokens += chunk[:, 1:].numel()
    gated_stats, dense_stats = (tally.stats() for tally, _ in sides)
    loss, dense_loss, divergence = (sums / tokens).tolist()
    costs = (loss, dense_loss, divergence, same / tokens)
    return Sparsity(name, original, gated_stats, dense_stats, *costs, tokens)


class _Tally:
    """A rule of attention that counts what it lets through."""

    def __init__(self, rule: Rule) -> None:
        self.rule, self.runs = rule, 0
        self.open: list[torch.Tensor] = []  # of each layer of each run, (head,)
        self.keys = torch.zeros(0, dtype=torch.float64)  # open ones by query, of all rows, heads and layers
        self.heads = torch.zeros(0, dtype=torch.float64)  # over how many of these
        self.edges = self.queries = 0  # of one head; of all heads and layers
        self.first_token = self.entropy = 0.0

    def run(self, model: Any, tokens: Tokens) -> Logits:
        """The model's logits under this rule."""
        self.runs += 1
        self.edges += len(tokens) * allowed_edges(tokens.shape[1])
        with torch.inference_mode():
            return logits_under(self, model, tokens.to(model.device)).float()

    def __call__(self, scores: Scores) -> Scores:
        weights = self.rule(scores)
        is_open = open_gates(scores)
        self.open.append(is_open.sum((0, 2, 3)).double().cpu())
        self.keys = _added(self.keys, is_open.sum((0, 1, 3)).double().cpu())
        self.heads = _added(self.heads, torch.full((scores.shape[2],), float(scores[..., 0, 0].numel())))
        later = weights[:, :, 1:]
        shares = later / later.sum(-1, keepdim=True).clamp_min(1e-30)
        self.first_token += later[..., 0].double().sum().item()
        self.entropy += torch.special.entr(shares).double().sum().item()
        self.queries += later[..., 0].numel()
        return weights

    def stats(self) -> AttentionStats:
        if not self.open:
            reason = "no layer of this model uses the library's attention interface, or there was no text"
            raise ModelError(f"nothing was measured: {reason}")
        counts = torch.stack(self.open).unflatten(0, (self.runs, -1)).sum(0)  # (layer, head)
        per_head = tuple(map(tuple, (counts / self.edges).tolist()))
        per_query = tuple((self.keys / self.heads).tolist())
        first_token, entropy = self.first_token / self.queries, self.entropy / self.queries
        return AttentionStats(per_head, first_token, entropy, per_query)


def _added(sums: torch.Tensor, more: torch.Tensor) -> torch.Tensor:
    """Sums by position, of rows of different lengths."""
    longest = max(len(sums), len(more))
    wide, added = (torch.nn.functional.pad(each, (0, longest - len(each))) for each in (sums, more))
    return wide + added


def layers_table(measured: Sparsity) -> str:
    """Open edges of each layer and head as a Markdown table."""
    each = enumerate(zip(measured.gated.per_layer, measured.gated.per_head, strict=True))
    rows = [(f"L{layer}", *(f"{share:.2%}" for share in (mean, *heads))) for layer, (mean, heads) in each]
    return to_markdown(("layer", "all", *(f"H{head}" for head in range(len(rows[0]) - 2))), rows)


def lengths_table(measured: Sparsity) -> str:
    """Open edges on prompts of several lengths, and how many keys the last position has open, per head."""
    longest = len(measured.gated.per_query)
    lengths = [length for length in (8, 12, 16, 24, 32, 64, 128, 256) if length <= longest]
    lines = [f"| tokens | {measured.original} | {measured.name} | keys open to a head at the last |"]
    lines.append("|---:|---:|---:|---:|")
    for length in lengths:
        before, after = (stats.share_upto(length) for stats in (measured.dense, measured.gated))
        keys = measured.gated.per_query[length - 1]
        lines.append(f"| {length} | {before:.2%} | {after:.2%} | {keys:.2f} |")
    return "\n".join(lines)


def write_card(
    path: Path, measured: Sparsity, marks: dict[str, Any], scores: Sequence[Sequence[Score]], log: Log
) -> None:
    """Write the model card. `scores` are those of the original and of the twin, where there are any."""
    both = zip(*scores, strict=True)
    rows = [(before.name, str(before), str(after), str(before.count)) for before, after in both]
    table = to_markdown(("task", measured.original, measured.name, "over"), rows)
    parts = {
        "measured": measured,
        "tasks": f"## Tasks, held-out prompts\n\n{table}\n\n" if scores else "",
        "duration": _duration(log),
        "text": marks["text"],
        "settings": "\n".join(f"| {name} | {value} |" for name, value in marks["settings"].items()),
        "layers": layers_table(measured),
        "lengths": lengths_table(measured),
    }
    template = Path(__file__).with_name("card.md").read_text(encoding="utf-8")
    path.write_text(template.format(**parts), encoding="utf-8")


def _duration(log: Log) -> str:
    """How long training took, by the median step, so that pauses do not count."""
    steps = log[-1]["step"] if log else 0
    ends = [(start, end) for start, end in pairwise(log) if end["step"] > start["step"]]
    paces = [(end["time"] - start["time"]) / (end["step"] - start["step"]) for start, end in ends]
    if not paces:
        return f"{steps} steps"
    pace = median_high(paces)
    return f"{steps} steps of {pace:.2g} s, {steps * pace / 60:.0f} minutes"


def _ticks(low: float, high: float) -> Locator:
    """Of a logarithmic axis: powers of ten alone would leave a short one without a number."""
    if high < 10 * low:
        return MaxNLocator(4, steps=[1, 2, 5, 10])
    return LogLocator(subs=(1,) if high > 1000 * low else (1, 2, 5))


def draw_training(log: Log, settings: Settings, path: Path) -> None:
    """Three curves one above the other, with the budget as a line; the same log gives the same bytes."""
    steps, gaps = [line["step"] for line in log], [line["gap"] for line in log]
    shares = [100 * max(line["measured"]["open_edges"], 1e-6) for line in log]
    with looks():
        figure = Figure(figsize=(6, 5.5), layout="constrained")
        above, middle, below = figure.subplots(3, 1, sharex=True)
        above.plot(steps, shares, color=canvas.BLUE)
        middle.plot(steps, [line["multiplier"] for line in log], color=canvas.MUTED)
        for axes, label in ((above, "open edges, %"), (middle, "multiplier λ")):
            axes.set(yscale="log", ylabel=label)
            axes.yaxis.set(
                major_locator=_ticks(*axes.get_ylim()), major_formatter="{x:g}", minor_formatter=""
            )
        below.plot(steps, gaps, color=canvas.RED)
        budgets = [settings.budget(step) for step in steps]
        below.plot(steps, budgets, "k:", linewidth=1)
        constrained = "divergence, nats" if settings.constraint == "kl" else "loss gap, nats"
        highest = 1.1 * max(*gaps, *budgets)
        limits = (min(0.0, *gaps), min(4 * settings.budget(0) or highest, highest) or None)
        below.set(ylim=limits, ylabel=f"{constrained}\n(dotted: budget)", xlabel="step")
    save_figure(figure, path.parent, ["svg"], name=path.stem)
