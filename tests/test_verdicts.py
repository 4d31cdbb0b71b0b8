"""Every verb judges its question, says so where it is clear too, and compares carriers with other heads."""

from __future__ import annotations

import hashlib
import itertools
import json
import random
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
import torch
from click.testing import CliRunner
from small_models import loaded, random_model

import circuits
from circuits.cli import main
from circuits.engine import prepare
from circuits.engine.selection import mapping_row
from circuits.errors import PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import to_pair
from circuits.show.export import export
from circuits.sweeps.store import read_table
from circuits.tasks.patterns import maps_of
from circuits.tracing import Circuit
from circuits.tracing.family import trace_family
from circuits.tracing.judge import TENFOLD, judge, judge_each
from circuits.tracing.learned import STRUCTURED, nothing_learned, structure_of, words_predicted
from circuits.tracing.stability import stability
from circuits.tracing.trace import trace
from circuits.zoo.language import tokenizer

TEXT = 'The opposite of "large" is "'
SWAP = {"large": "hot"}
NONE = {"key": "The", "swap": {"The": "In"}, "answer": "small", "foil": "cold"}
STORE = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


@pytest.fixture(scope="module")
def clear(mini: Model) -> Circuit:
    return trace(mini, TEXT, key="large", swap=SWAP)


@pytest.fixture(scope="module")
def none(mini: Model) -> Circuit:
    return trace(mini, TEXT, **NONE)


# Random heads


def test_random_heads_are_drawn_from_those_that_are_no_carriers(
    mini: Model, clear: Circuit
) -> None:
    mapping = clear.mapping()
    controls = mapping.controls
    assert controls is not None
    runs = prepare(mini, [to_pair(mini, TEXT, swap=SWAP)])
    others = [head for head in runs.heads if head not in mapping.carriers()]
    draw = random.Random("random heads/0")
    rows = []
    for _ in range(100):
        rows.append(mapping_row(draw.sample(others, len(mapping.carriers())), *mapping.ends))
    effects = sorted(runs.effects(rows)[:, 0].tolist())
    assert controls.random_mean == pytest.approx(sum(effects) / 100, abs=1e-5)
    assert controls.random_p95 == pytest.approx(effects[94], abs=1e-5)
    assert (controls.random_pool, controls.random_size) == (
        len(others),
        len(runs.heads) - len(others),
    )
    assert f"among the {len(others)} that are no carriers" in " ".join(str(clear).split())


def test_where_most_heads_carry_fewer_are_drawn(models: dict[str, Model]) -> None:
    found = trace(models["gpt2"], TEXT, key="large", swap=SWAP, metric="logprob", share=0.999)
    controls = found.mapping().controls
    assert controls is not None and controls.random_pool is not None
    carriers = len(found.mapping().carriers(0.999))
    assert controls.random_pool == 12 - carriers
    assert controls.random_size == min(carriers, 12 - carriers)


@pytest.mark.long
def test_the_seed_does_not_decide_the_verdict(mini: Model) -> None:
    for question in ({"key": "large", "swap": SWAP}, NONE):
        answers = [trace(mini, TEXT, **question, seed=seed) for seed in range(8)]
        assert len({found.question for found in answers}) == 1
        assert len({bool(found.mapping().doubts) for found in answers}) == 1


# What of the change is at the key


def value(model: Model, tokens: list[int], answer: int, foil: int) -> float:
    logits = model.logits(torch.tensor([tokens]))[0, -1]
    return float(logits[answer] - logits[foil])


def test_the_part_of_the_change_at_the_key_is_what_swapping_it_alone_does(mini: Model) -> None:
    other = 'In opposite of "hot" was "'
    pair = to_pair(mini, TEXT, counterfactual=other, answer="small", foil="cold")
    question = judge_each(prepare(mini, [pair]), ends=(5, 8))[0]
    clean, swapped = list(pair.clean.tokens), list(pair.counterfactual.tokens)  # type: ignore[union-attr]
    key_alone = [*clean[:5], swapped[5], *clean[6:]]
    others = [*swapped[:5], clean[5], *swapped[6:]]
    both = (pair.metric.answer, pair.metric.foil or 0)
    before = value(mini, clean, *both)
    gap = before - value(mini, swapped, *both)
    assert question.at_key == pytest.approx(
        (before - value(mini, key_alone, *both)) / gap, abs=1e-4
    )
    assert question.elsewhere == pytest.approx(
        (before - value(mini, others, *both)) / gap, abs=1e-4
    )


@pytest.mark.long
def test_a_counterfactual_with_other_words_says_which_part_is_at_the_key(mini: Model) -> None:
    found = trace(mini, TEXT, key="large", counterfactual='In opposite of "hot" is "')
    assert found.question is not None and found.question.verdict == "clear"
    assert any("large(5) alone makes" in note and "The(1)" in note for note in found.notes)
    everything = 'In table of "hot" was the'
    mixed = trace(
        mini, TEXT, key="large", counterfactual=everything, answer="small", foil="cold"
    )
    assert mixed.question is not None and mixed.question.verdict == "weak"
    assert "not about the key alone" in mixed.question.reasons[0] and mixed.mapping().doubts


def test_a_counterfactual_that_changes_the_query_asks_nothing_about_the_key(
    mini: Model,
) -> None:
    found = trace(mini, TEXT, key="large", swap={7: "was"}, query=7, metric="logprob")
    assert found.question is not None and found.question.verdict != "clear"
    assert any("about the query" in reason for reason in found.question.withheld)
    assert any("about the query" in doubt for doubt in found.mapping().doubts)


@pytest.mark.long
def test_a_named_answer_and_foil_need_not_change_the_prediction(
    models: dict[str, Model],
) -> None:
    model = models["gpt2"]
    seen = set()
    words = ("hot", "rich", "old", "wet", "fast", "happy", "dark", "clean")
    for old, new in itertools.product(("large", "opposite", "of", "is"), words):
        pair = to_pair(model, TEXT, swap={old: new}, metric="logprob")
        tokens = [pair.clean.tokens, pair.counterfactual.tokens]  # type: ignore[union-attr]
        before, after = model.logits(torch.tensor(tokens))[:, -1]
        moved = before - after
        for answer, foil in ((moved.argmax(), moved.argmin()), moved.topk(2).indices):
            metric = replace(pair.metric, kind="logit_diff", answer=int(answer), foil=int(foil))
            runs = prepare(model, [replace(pair, metric=metric)], smallest_gap=0.0)
            (question,) = judge_each(runs)
            same = question.said[0] == question.said[1]
            large = abs(float(runs.gap[0])) >= TENFOLD
            assert ("both runs say" in " ".join(question.reasons)) == (same and not large)
            seen.add((same, large))
    assert {(True, True), (True, False)} <= seen


# Models that have learned nothing


def test_trained_and_built_models_have_structure_and_random_ones_have_none(
    models: dict[str, Model],
) -> None:
    for name in ("mini", "mini-sparse", "addition", "planted-sparse"):
        assert structure_of(loaded(name)) > STRUCTURED
    for model in models.values():
        assert structure_of(model) < 1.05


@pytest.mark.parametrize("scale", [0.2, 1.0])
def test_no_question_to_random_weights_is_clear(scale: float) -> None:
    weights: Any = random_model("gpt2", seed=1)
    with torch.no_grad():
        for parameter in weights.parameters():
            if parameter.ndim > 1:
                parameter *= scale / 0.2
    model = as_model((weights, tokenizer()))
    for word in ("hot", "rich", "old"):
        found = trace(model, TEXT, key="large", swap={"large": word}, metric="logprob")
        assert found.question is not None and found.question.verdict != "clear"
        assert any("learned" in doubt for doubt in found.mapping().doubts)
        assert "Modulated at" not in str(found)


def test_random_weights_that_predict_the_prompt_are_believed() -> None:
    weights: Any = random_model("gpt2", seed=2)
    with torch.no_grad():  # as if a bias of the output had learned which words are frequent
        used = weights.transformer.wte.weight[list(set(tokenizer()(TEXT)["input_ids"]))]
        weights.transformer.ln_f.weight *= 0.2
        weights.transformer.ln_f.bias.copy_(
            torch.linalg.pinv(used) @ torch.full((len(used),), 4.0)
        )
    biased = as_model((weights, tokenizer()))
    for model, believed in (
        (as_model((random_model("gpt2", seed=2), tokenizer())), False),
        (biased, True),
    ):
        runs = prepare(
            model, [to_pair(model, TEXT, swap=SWAP, metric="logprob")], smallest_gap=0.0
        )
        assert structure_of(model) < STRUCTURED
        words = runs.model.logits(torch.tensor([runs.pairs[0].clean.tokens]))[0].log_softmax(-1)
        by_hand = [
            float(words[at, token]) for at, token in enumerate(runs.pairs[0].clean.tokens[1:])
        ]
        assert words_predicted(runs, 0).tolist() == pytest.approx(by_hand, abs=1e-5)
        assert (nothing_learned(runs, 0) is None) == believed


# Several pairs


def test_pairs_judged_together_are_judged_as_each_alone(mini: Model) -> None:
    pairs = [
        to_pair(mini, TEXT, swap=SWAP),
        to_pair(mini, TEXT, swap={"The": "In"}, answer="small", foil="cold"),
        to_pair(mini, TEXT, swap={"large": "rich"}),
    ]
    at_once = judge_each(prepare(mini, pairs), ends=(5, 8))
    for pair, together in zip(pairs, at_once, strict=True):
        (alone,) = judge_each(prepare(mini, [pair]), ends=(5, 8))
        assert (alone.verdict, alone.said) == (together.verdict, together.said)
        assert alone.other_gaps == pytest.approx(together.other_gaps, abs=1e-3)
        assert alone.at_key == pytest.approx(together.at_key, abs=1e-3)
    of_all = judge(prepare(mini, pairs), ends=(5, 8))
    assert (of_all.clear, of_all.verdict, of_all.pairs) == (2, "clear", 3)
    assert "1 of 3 pairs is not clear" in of_all.notes[0]


@pytest.mark.long
def test_a_family_has_a_verdict_and_prints_it(mini: Model, tmp_path: Path) -> None:
    family = trace(
        mini, [TEXT, 'The opposite of "fast" is "'], key=5, swap=SWAP | {"fast": "wet"}
    )
    assert family.question is not None and family.question.verdict == "clear"
    assert "Verdict: clear" in str(family) and "Modulated at" in str(family)
    assert circuits.FamilyTrace.load(family.save(tmp_path)) == family
    half = [
        to_pair(mini, TEXT, swap=SWAP, answer=a, foil=b)
        for a, b in (("cold", "small"), ("book", "cold"))
    ]
    told = trace(mini, half, key=5)
    assert told.question is not None and told.question.verdict == "weak"
    assert "Verdict: a weak question: 2 of 2 pairs" in str(told)
    right = to_pair(mini, TEXT, swap=SWAP)
    mixed = trace(mini, [right, half[0]], key=5)  # in the second the clean run prefers the foil
    assert (mixed.pairs, mixed.wrong) == ((right,), 1)
    assert "1 more left out on the wrong side" in str(mixed)


def test_a_family_of_refused_prompts_is_refused(mini: Model) -> None:
    names: Any = {"answer": "Mary", "foil": "John"}
    texts = [f"{word} . {STORE}" for word in ("table", "horse")]
    with pytest.raises(PromptError, match="no pair of these 2 has a gap"):
        trace(mini, texts, key="store", swap={"store": "park"}, **names)


@pytest.mark.long
def test_equal_prompts_of_a_family_count_once(mini: Model) -> None:
    once = trace(mini, [TEXT], key="large", swap=SWAP)
    often = trace(mini, [TEXT] * 4, key="large", swap=SWAP)
    assert (len(often.pairs), often.repeated) == (1, 3)
    assert often.total == once.total and "3 repeats not counted" in str(often)
    assert "[" not in str(often.total)


def test_stability_of_a_family_is_refused(mini: Model) -> None:
    with pytest.raises(PromptError, match="stability= is of one prompt"):
        trace(mini, [TEXT, TEXT], key="large", swap=SWAP, stability=4)


@pytest.mark.long
def test_a_family_takes_one_answer_for_each_prompt(mini: Model) -> None:
    texts = [TEXT, 'The opposite of "fast" is "']
    swap = {"large": "hot", "fast": "wet"}
    named: Any = {"answer": ["small", "slow"], "foil": ["cold", "dry"]}
    found = trace(mini, texts, key=5, swap=swap, **named)
    pairs = []
    for text, old, answer, foil in zip(texts, swap, *named.values(), strict=True):
        pairs.append(to_pair(mini, text, swap={old: swap[old]}, answer=answer, foil=foil))
    assert found == trace_family(mini, pairs, key=5)
    answers: Any = [["small", "short"], "slow"]
    several = trace(mini, texts, key=5, swap=swap, answer=answers, foil="cold")
    assert len(several.pairs[0].metric.answers) == 2 and not several.pairs[1].metric.answers
    with pytest.raises(PromptError, match=r"answer=\[…\] has 3 entries for 2 prompts"):
        trace(mini, texts, key=5, swap=swap, answer=["small", "slow", "wet"])
    with pytest.raises(PromptError, match=r"foil=\[…\] has 1 entries for 2 prompts"):
        trace(mini, texts, key=5, swap=swap, foil=["cold"])
    with pytest.raises(PromptError, match="answer= does not go with a family of pairs"):
        trace(mini, pairs, key=5, answer="small")


@pytest.mark.long
def test_a_negative_family_total_prints_as_a_single_trace_does(
    mini: Model, none: Circuit
) -> None:
    pair = to_pair(mini, TEXT, swap=SWAP)
    family = trace_family(mini, [pair], key=5)
    against = replace(none.mapping(), total=-0.9, path=())
    turned = replace(family, mapping=against)
    works = "Works against the answer: a total of -0.90 has no carriers"
    assert works in str(turned) and "Modulated at" not in str(turned)
    assert works in str(replace(none, mappings=(against,)))


# The other verbs


@pytest.mark.long
def test_why_and_stability_say_what_trace_says(
    mini: Model, clear: Circuit, none: Circuit
) -> None:
    told = circuits.why(clear, "L5H1", model=mini)
    assert told.question is not None and told.question.verdict == "clear"
    assert "Verdict: clear" in str(told)
    doubtful = circuits.why(none, "L5H1", model=mini)
    assert doubtful.question is not None and doubtful.question.verdict == "none"
    assert "Verdict: no question" in str(doubtful)
    # Other words at this key move the answer as little as the first: there is nothing to compare.
    with pytest.raises(PromptError, match="nothing to compare"):
        stability(mini, TEXT, n=3, **NONE)


def test_a_comparison_has_both_verdicts_and_withholds(clear: Circuit, none: Circuit) -> None:
    moved = replace(none, focus=(5, 8), mappings=(replace(none.mapping(), key=5),))
    both = circuits.compare(clear, moved)
    assert both.verdicts == ("clear", "none") and both.doubts[1]
    printed = str(both)
    assert "withheld" in printed and "next to nothing" in printed


@pytest.mark.long
def test_a_ranking_is_judged_by_its_pairs(mini: Model) -> None:
    ranking = circuits.rank(mini, "opposites", count=3)
    assert ranking.question is not None and ranking.question.pairs == 3
    assert f"Verdict: {ranking.question.verdict}" in str(ranking) or "Verdict: a weak" in str(
        ranking
    )


@pytest.mark.parametrize("to", ["node-link", "eap", "neuronpedia"])
def test_exports_carry_the_verdict(clear: Circuit, none: Circuit, to: str) -> None:
    where = {"node-link": "graph", "eap": "question", "neuronpedia": "metadata"}[to]
    for found, verdict in ((clear, "clear"), (none, "none")):
        stored = json.loads(export(found, to))[where]
        question = stored["question"] if to == "neuronpedia" else stored
        assert question["verdict"] == verdict
        assert bool(question["withheld"]) == bool(found.mapping().doubts)
    assert 'attr.name="verdict"' in export(none, "graphml")


# Sweeps


def sweep_lines(folder: Path) -> Path:
    lines = [
        {"prompt": TEXT, "key": "large", "swap": SWAP},
        {"prompt": TEXT, **NONE},
        {"prompt": TEXT, "key": "large", "swap": SWAP, "answer": "cold", "foil": "small"},
        {"prompt": TEXT, "key": "large", "swap": {"large": "rich"}},
    ]
    file = folder / "in.jsonl"
    file.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return file


@pytest.fixture(scope="module")
def swept(mini: Model, tmp_path_factory: pytest.TempPathFactory) -> circuits.Sweep:
    folder = tmp_path_factory.mktemp("swept")
    return circuits.sweep(mini, sweep_lines(folder), folder / "out")


@pytest.mark.long
def test_lines_of_a_sweep_have_the_verdict_of_trace(
    mini: Model, swept: circuits.Sweep, clear: Circuit, none: Circuit
) -> None:
    assert swept.table["verdict"].tolist() == ["clear", "none", "weak", "clear"]
    assert swept.verdicts == {"clear": 2, "weak": 1, "none": 1}
    assert none.question is not None
    table: Any = swept.table
    assert table["reasons"][1] == none.question.reasons
    assert table["doubts"][1] and not table["doubts"][0]


@pytest.mark.long
def test_the_mean_of_a_sweep_holds_clear_lines_alone(swept: circuits.Sweep) -> None:
    mean = swept.mean()
    assert (mean.lines, mean.weak, mean.unclear) == (2, 1, 1)
    assert mean.total.mean == pytest.approx(swept.table["total"][[0, 3]].mean())
    assert "1 more left out as not clear" in str(mean)
    weak = swept.where(line=3).mean()
    assert (weak.lines, weak.unclear) == (1, 0) and "Verdict: a weak question" in str(weak)


def test_a_shard_without_verdicts_is_still_read(swept: circuits.Sweep, tmp_path: Path) -> None:
    swept.save(tmp_path / "old")
    (shard,) = (tmp_path / "old" / "shards").glob("*.parquet")
    table = pq.read_table(shard).drop_columns(["verdict", "reasons", "doubts"])
    shard.unlink()
    pq.write_table(table, shard)
    checksum = hashlib.sha256(shard.read_bytes()).hexdigest()[:16]
    shard.rename(shard.with_name(f"000000001-4-{checksum}.parquet"))
    assert read_table(tmp_path / "old").column("verdict").null_count == 4
    old = circuits.open_sweep(tmp_path / "old")
    assert old.verdicts == {"not judged": 4} and old.mean().question is None
    assert "Verdict: not judged" in str(old.mean())


# The command line


@pytest.mark.long
@pytest.mark.parametrize(
    "command",
    [
        ["trace", TEXT, "--key", "The"],
        ["why", TEXT, "--key", "The", "--head", "L5H1"],
        pytest.param(["heads", TEXT], marks=pytest.mark.long),
        pytest.param(
            ["compare", TEXT, "--key", "The", "--models", "mini,mini"], marks=pytest.mark.long
        ),
    ],
    ids=["trace", "why", "heads", "compare"],
)
def test_strict_fails_where_the_question_is_not_clear(command: list[str]) -> None:
    asked = [*command, "--swap", "The=In", "--answer", "small", "--foil", "cold", "--strict"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1 and "the question is none" in result.stderr
    assert "none" in result.stdout or "no question" in result.stdout


@pytest.mark.parametrize(
    "command",
    [
        ["patch", "The large is", "--sites", "head"],
        ["path", "The large is", "L0H1 → M1"],
        ["wiring", "The large"],
    ],
    ids=["patch", "path", "wiring"],
)
def test_maps_paths_and_wirings_can_be_strict_too(
    command: list[str], directories: dict[str, Path]
) -> None:
    """Of random weights no question is clear."""
    asked = [*command, "--swap", "large=hot", "--metric", "logprob", "--strict"]
    result = CliRunner().invoke(main, [*asked, "--model", str(directories["gpt2"])])
    assert result.exit_code == 1
    assert re.search(r"^Error: the question is (weak|none): ", result.stderr, re.MULTILINE)
    assert re.search(r"Verdict: (a weak|no) question", result.stdout)


@pytest.mark.long
def test_strict_of_a_sweep_names_the_first_line_that_is_not_clear(tmp_path: Path) -> None:
    asked = ["sweep", str(sweep_lines(tmp_path)), "-o", str(tmp_path / "out"), "--strict"]
    result = CliRunner().invoke(main, asked)
    assert result.exit_code == 1 and "line 2 is none" in result.stderr
    assert "questions: 2 clear, 1 weak, 1 none" in result.stdout


# Maps of heads


def test_the_last_row_of_a_head_is_read_beside_its_whole_map(mini: Model) -> None:
    task = circuits.to_task(mini, "indirect_object", count=3)
    panel = circuits.measure_panel(mini, task)
    head = panel.heads[100]
    means: dict[str, list[float]] = {}
    for item in task.items:
        row = maps_of(mini, item.pair.clean, [head])[0][-1]
        for role, position in item.roles:
            if role != "END":
                means.setdefault(role, []).append(float(row[position]))
    best = max(means, key=lambda role: sum(means[role]))
    assert panel.reads[100][0] == best
    assert panel.reads[100][1] == pytest.approx(sum(means[best]) / 3, abs=1e-5)
    assert panel.read_by(head).startswith(best)
    assert not circuits.measure_panel(mini, [task.pairs[0].clean]).reads
