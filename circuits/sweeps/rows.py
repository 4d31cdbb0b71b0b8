"""The rows of the table that the lines of a shard become.

1. Both runs of each pair in a batch (`batches`) show what the model predicts; from that come the answers and
   foils that were not given.
2. Each line's question is judged as `trace` judges it.
3. Where the manifest says so, each line is asked again under other counterfactuals (`circuits.stability`).
4. An error belongs to its line alone: a line that cannot be read or measured gets its error as its row.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import torch

from circuits.components import Head
from circuits.engine import SMALLEST_GAP, Runs, prepare
from circuits.engine.selection import Mapped, mapping_row, select
from circuits.errors import CircuitsError
from circuits.models.model import Model
from circuits.prompts import Noise, Pair
from circuits.sweeps.batches import TokenizedLine, to_batches, to_row
from circuits.sweeps.lines import Line, brief
from circuits.sweeps.manifest import Manifest
from circuits.sweeps.parquet import TableRow
from circuits.tracing import Mapping, QuestionControl
from circuits.tracing.judge import judge_each
from circuits.tracing.measure import measure_mapping
from circuits.tracing.stability import stability
from circuits.tracing.trust import doubts_about, doubts_of_carriers, doubts_of_sums

LARGEST: Final = 1e30  # no number of a model that works comes near it
# The columns that only a sweep with controls has.
CONTROLS: Final = ("random_mean", "random_p95", "key_totals", "sufficiency", "identity")


def measure_lines(
    model: Model, lines: Sequence[Line], manifest: Manifest, *, batch: int
) -> list[TableRow]:
    """The rows of some lines, in any order, one for each."""
    batches, rows = to_batches(model, lines, manifest, batch=batch)
    for alike in batches:
        rows += _measure(model, alike, manifest)
    if manifest.stability:
        rows = [row | _stability_columns(model, row, manifest) for row in rows]
    return rows


@torch.inference_mode()
def _measure(
    model: Model, lines: Sequence[TokenizedLine], manifest: Manifest
) -> list[TableRow]:
    """The rows of lines of one shape: run all pairs, then read answers and foils off the predictions."""
    try:
        runs = prepare(
            model, [line.question.pair_without_answer for line in lines], smallest_gap=0.0
        )
    except CircuitsError as why:
        if len(lines) == 1:
            return [to_row(lines[0].line, brief(why))]
        rows = []
        for line in lines:
            rows += _measure(model, [line], manifest)
        return rows
    rows: list[TableRow] = []
    pairs: dict[int, Pair] = {}
    for index, line in enumerate(lines):
        try:
            pairs[index] = line.question.with_predictions(model, *runs.predictions(index))
        except CircuitsError as why:
            rows.append(to_row(line.line, brief(why)))
    if pairs:
        settled = replace(runs.only(list(pairs)), pairs=tuple(pairs.values()))
        rows += _measure_settled(settled, [lines[index] for index in pairs], manifest)
    return rows


def _measure_settled(
    runs: Runs, lines: Sequence[TokenizedLine], manifest: Manifest
) -> list[TableRow]:
    """The rows of pairs whose metric is known; those with too small a gap get their own errors."""
    rows: list[TableRow] = []
    wide = []
    for index, gap in enumerate(runs.gap.tolist()):
        if abs(gap) >= SMALLEST_GAP:
            wide.append(index)
            continue
        try:  # `prepare` says what is wrong with the gap
            rows += _to_rows(prepare(runs.model, [runs.pairs[index]]), [lines[index]], manifest)
        except CircuitsError as why:
            rows.append(to_row(lines[index].line, brief(why)))
    if wide:
        rows += _to_rows(runs.only(wide), [lines[index] for index in wide], manifest)
    return rows


def _to_rows(runs: Runs, lines: Sequence[TokenizedLine], manifest: Manifest) -> list[TableRow]:
    """The rows of prepared runs, one for each of the lines."""
    key, query = lines[0].key, lines[0].query
    judged = judge_each(runs, ends=(key, query))
    mappings = _mapping_columns(runs, key, query, manifest, judged)
    clean = runs.values(runs.clean).tolist()
    counterfactual = runs.values(runs.counterfactual).tolist()
    rows = []
    for index, line in enumerate(lines):
        values = {"clean_value": clean[index], "counterfactual_value": counterfactual[index]}
        rows.append(_measured_row(line, runs.pairs[index], values | mappings[index]))
    return rows


def _mapping_columns(
    runs: Runs,
    key: int,
    query: int,
    manifest: Manifest,
    judged: Sequence[QuestionControl],
) -> list[TableRow]:
    """The columns of each pair's mapping and verdict: all pairs together, or with controls one pair after the
    other."""
    share = manifest.share
    columns = []
    if manifest.controls:
        for index in range(len(runs.pairs)):
            alone = runs.only([index])
            mapping = measure_mapping(
                [Mapped(alone, key, query)], share=share, seed=manifest.seed
            )
            doubts = doubts_about(mapping, judged[index], named=True)
            verdict = _verdict_columns(judged[index], doubts)
            columns.append(_controlled_columns(mapping, share) | verdict)
        return columns
    all_heads = mapping_row(runs.heads, key, query)
    single_heads = [mapping_row([head], key, query) for head in runs.heads]
    effects = runs.effects([*single_heads, all_heads])  # (row, pair)
    restored = runs.effects([all_heads], direction="restore")[0].double().tolist()
    paths = select(runs, key, query, effects=effects[:-1], totals=effects[-1], share=share)
    totals = effects[-1].double().tolist()
    by_pair = effects[:-1].double().T.tolist()
    for index, path in enumerate(paths):
        measured = _columns(totals[index], restored[index], by_pair[index], path)
        doubts = [
            *judged[index].withheld,
            *doubts_of_sums(totals[index], restored[index]),
            *doubts_of_carriers(totals[index], measured["modulation"] if path else None),
        ]
        columns.append(measured | _verdict_columns(judged[index], doubts))
    return columns


def _stability_columns(model: Model, row: TableRow, manifest: Manifest) -> TableRow:
    """The heads that carry whatever the counterfactual, and how far carriers overlap. Nothing where the line
    has an error, or where too few other counterfactuals move its answer."""
    if row["error"] is not None:
        return {}
    question = json.loads(row["asked"])
    settings = {"share": manifest.share, "seed": manifest.seed, "n": manifest.stability}
    try:
        steady = stability(model, question.pop("prompt"), **settings, **question)
    except CircuitsError:
        return {}
    return {
        "core": [str(head) for head in steady.core],
        "overlap": steady.overlap,
        "counterfactuals": len(steady.counterfactuals),
    }


def _verdict_columns(question: QuestionControl, doubts: Sequence[str]) -> TableRow:
    """The verdict on a line's question, why it is not clear, and why its modulation is withheld."""
    return {
        "verdict": question.verdict,
        "reasons": list(question.reasons),
        "doubts": list(doubts),
    }


def _controlled_columns(mapping: Mapping, share: float) -> TableRow:
    """The columns of a mapping that was measured by itself."""
    by_head = sorted(mapping.heads, key=lambda effect: effect.head)
    effects = [effect.effect for effect in by_head]
    path = [(step.head, step.joint) for step in mapping.path[: len(mapping.carriers(share))]]
    controls = {name: getattr(mapping.controls, name) for name in CONTROLS}
    return _columns(mapping.total, mapping.restore, effects, path) | controls


def _columns(
    total: float, restore: float, effects: Sequence[float], path: Sequence[tuple[Head, float]]
) -> TableRow:
    """A mapping up to the share: effects in the order of heads, carriers in the order they were found."""
    joint = [effect for _, effect in path]
    return {
        "total": total,
        "restore": restore,
        "carriers": [str(head) for head, _ in path],
        "joint": joint,
        "modulation": joint[-1] / total if joint else 0.0,
        "effects": list(effects),
    }


def _measured_row(line: TokenizedLine, pair: Pair, columns: TableRow) -> TableRow:
    """The row of a line: what was asked, and the measured `columns`."""
    names = ("clean_value", "counterfactual_value", "total", "restore")
    numbers = [columns[name] for name in names]
    if not all(-LARGEST < number < LARGEST for number in numbers):
        listed = ", ".join(f"{number:g}" for number in numbers)
        return to_row(line.line, f"the model gives no finite number here: {listed}")
    words = pair.clean.words
    other = pair.counterfactual
    asked = {
        "key": line.key,
        "query": line.query,
        "key_token": words[line.key],
        "query_token": words[line.query],
        "tokens": list(words),
        "noise": line.is_noisy,
        "counterfactual": str(other) if isinstance(other, Noise) else other.text,
        "metric": pair.metric.kind,
        "answer": pair.metric.answer_text,
        "foil": pair.metric.foil_text,
    }
    return to_row(line.line) | asked | columns
