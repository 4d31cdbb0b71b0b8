"""Questions that used to mislead: each is refused, measured as it is meant, or answered with a warning."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from small_models import loaded, random_model

from circuits.cli import main
from circuits.components import Head
from circuits.engine import predictions_of_others, prepare, values_of_others
from circuits.engine.selection import mapping_rows
from circuits.errors import CircuitsError, EdgeError, KeywordError, ModelError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Noise, Pair, QuestionSpec, swap_words, to_pair, to_question
from circuits.results import sha256_of
from circuits.show.figure import mapping_figure
from circuits.tracing import Circuit
from circuits.tracing.circuit import circuit
from circuits.tracing.family import FamilyTrace
from circuits.tracing.judge import judge_each
from circuits.tracing.parts import QuestionControl
from circuits.tracing.stability import stability
from circuits.tracing.trace import attention_maps, trace
from circuits.tracing.trust import notes_on
from circuits.zoo.language import tokenizer

TEXT = 'The opposite of "large" is "'
SWAP = {"large": "hot"}
STORE = "When Mary and John went to the store, John gave a drink to"


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


@pytest.fixture(scope="module")
def asked(mini: Model) -> Circuit:
    return trace(mini, TEXT, key="large", swap=SWAP)


@pytest.fixture(scope="module")
def answer_to(mini: Model) -> Callable[[str], Circuit]:
    """What is said to a question of the table of bad ones; each is measured once."""
    return cache(lambda name: trace(mini, BAD[name][0], **BAD[name][1]))


@pytest.fixture(scope="module")
def noisy(answer_to: Callable[[str], Circuit]) -> Circuit:
    return answer_to("noise on a word that is not read")


# An answer of several tokens


def test_an_answer_of_several_tokens_is_refused_with_its_pieces(mini: Model) -> None:
    with pytest.raises(
        PromptError, match=r"'small \"' is 2 tokens of mini \('small', '\"'\).*logprob"
    ):
        trace(mini, TEXT, key="large", swap=SWAP, answer='small "')
    with pytest.raises(PromptError, match="is 2 tokens of mini"):
        trace(mini, TEXT, key="large", swap=SWAP, answer="small", foil='cold "')


def by_hand(model: Model, pair: Pair, tokens: tuple[int, ...]) -> float:
    """The log-probability of each of the answer's tokens, given the prompt and those before it."""
    start = len(tokens) - (len(pair.metric.sequence) - 1)
    total = 0.0
    for place, token in enumerate(pair.metric.sequence):
        read = torch.tensor([tokens[: start + place]])
        total += float(model.logits(read)[0, -1].log_softmax(-1)[token])
    return total


@pytest.mark.parametrize("path", ["fast", "plain"])
def test_a_sequence_is_read_token_after_token(model: Model, path: Any) -> None:
    pair = to_pair(model, TEXT, swap=SWAP, answer='small " .', metric="logprob")
    assert len(pair.metric.sequence) == pair.metric.positions_read == 3
    runs = prepare(model, [pair], path=path)
    assert isinstance(pair.counterfactual, type(pair.clean))
    for side, prompt in ((runs.clean, pair.clean), (runs.counterfactual, pair.counterfactual)):
        assert float(runs.values(side)[0]) == pytest.approx(
            by_hand(model, pair, prompt.tokens), abs=1e-4
        )


def test_effects_on_a_sequence_are_the_same_on_both_paths_from_every_query(
    model: Model,
) -> None:
    pair = to_pair(model, TEXT, swap=SWAP, answer='small " .', metric="logprob")
    fast, plain = (prepare(model, [pair], path=path) for path in ("fast", "plain"))
    last = len(pair) - 1
    key = pair.differs_at[0]
    ends = [(key, last - 2), (key, last - 1), (key, last), (last - 1, last), (key - 2, key + 1)]
    rows = [row for key, query in ends for row in mapping_rows(fast.heads, key, query)]
    for direction in ("swap", "restore", "zero"):
        mine, own = (runs.effects(rows, direction=direction) for runs in (fast, plain))
        torch.testing.assert_close(mine, own, rtol=0, atol=2e-4)


def test_a_trace_of_a_sequence_asks_of_the_prompt_as_given_and_survives_the_disk(
    models: dict[str, Model], tmp_path: Path
) -> None:
    tiny = models["gpt2"]
    found = trace(tiny, TEXT, key="large", swap=SWAP, answer='small " .', metric="logprob")
    assert found.focus == (5, 8) and found.prompt.text == TEXT
    assert found.prompt.words[9:] == ("small", '"') and len(found.metric.sequence) == 3
    asked_of = to_question(tiny, TEXT, QuestionSpec(swap=SWAP, metric="logprob")).clean
    assert found.output.token == tiny.spell(
        int(tiny.logits(torch.tensor([asked_of.tokens]))[0, -1].argmax())
    )
    assert Circuit.load(found.save(tmp_path)) == found


# Several answers


def test_of_several_answers_any_counts(mini: Model) -> None:
    pair = to_pair(
        mini, TEXT, swap=SWAP, answer=["small", "short"], foil=["cold", "poor", "dark"]
    )
    assert str(pair.metric) == "logit(small or short) − logit(cold or poor or dark)"
    logits = mini.logits(torch.tensor([pair.clean.tokens]))[0, -1]
    answers, foils = (
        logits[list(tokens)] for tokens in (pair.metric.answers, pair.metric.foils)
    )
    expected = float(answers.logsumexp(0) - foils.logsumexp(0))
    for path in ("fast", "plain"):
        runs = prepare(mini, [pair], path=path)
        assert float(runs.values(runs.clean)[0]) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(PromptError, match="answer and foil are both 'small'"):
        to_pair(mini, TEXT, swap=SWAP, answer=["small", "short"], foil=["small", "poor"])


def test_pairs_with_other_numbers_of_answers_run_together(mini: Model) -> None:
    pairs = [
        to_pair(mini, TEXT, swap=SWAP, answer=answer, foil=foil)
        for answer, foil in (("small", ["cold", "poor"]), (["small", "short", "poor"], "cold"))
    ]
    together = prepare(mini, pairs).gap
    alone = torch.cat([prepare(mini, [pair]).gap for pair in pairs])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-4)


# Swaps


def test_a_swap_replaces_whole_words_and_all_of_them() -> None:
    assert swap_words("large, enlarge, large.", SWAP) == "hot, enlarge, hot."
    with pytest.raises(PromptError, match=r"only inside other words.*one position"):
        swap_words("an enlarged one", SWAP)
    assert swap_words("猫が好き", {"猫": "犬"}) == "犬が好き"


def test_a_number_swaps_one_position(mini: Model) -> None:
    pair = to_pair(mini, STORE, swap={"10": "Mary"}, metric="logprob")
    second = STORE.replace("store, John", "store, Mary")
    assert pair.counterfactual.text == second and pair.differs_at == (10,)  # type: ignore[union-attr]
    assert to_pair(mini, STORE, swap={10: "Mary"}, metric="logprob") == pair
    both = to_pair(mini, STORE, swap={"John": "Anna"}, metric="logprob")
    assert len(both.differs_at) == 2
    with pytest.raises(PromptError, match="0…"):
        to_pair(mini, STORE, swap={99: "Mary"})
    with pytest.raises(PromptError, match="beginning of the sequence"):
        to_pair(mini, STORE, swap={0: "Mary"})
    with pytest.raises(PromptError, match="two swaps meet"):
        to_pair(mini, STORE, swap={"John": "Anna", "10": "Mary"})


# Notes


def test_a_good_question_needs_no_note(asked: Circuit) -> None:
    assert asked.notes == ()
    assert "Note" not in str(asked)


@pytest.mark.long
def test_without_a_counterfactual_the_record_says_what_was_used_and_what_is_better(
    noisy: Circuit,
) -> None:
    found = noisy
    (note,) = [note for note in found.notes if "noise" in note]
    assert isinstance(found.counterfactual, Noise)
    assert "noise on of(3), read by logprob(small)" in note and "swap" in note
    assert note.split(";")[0][:40] in str(found)


def test_a_metric_on_the_wrong_side_is_said(answer_to: Callable[[str], Circuit]) -> None:
    found = answer_to("answer and foil exchanged")
    assert any("prefers the foil 'small'" in note for note in found.notes)
    assert "for the answer" in str(found) and "against the answer" not in str(found)


def test_a_tiny_gap_is_said(answer_to: Callable[[str], Circuit]) -> None:
    found = answer_to("unrelated word of the sentence")
    assert any("next to nothing" in note for note in found.notes)


def test_where_no_head_moves_a_saturated_metric_the_heads_to_look_at_are_named(
    answer_to: Callable[[str], Circuit],
) -> None:
    mapping = (found := answer_to("a metric that is saturated")).mapping()
    assert mapping.total > 0.9 and mapping.path == () and found.carriers() == ()
    strongest = max(mapping.heads, key=lambda each: each.restore)
    said = " ".join(str(found).split())
    assert re.search(
        rf"Carried by no head alone.* put back into the counterfactual: {strongest.head} ", said
    )
    # There are no carriers to control.
    assert "random heads" not in said and "sufficiency" not in said


def test_the_plain_path_is_said(mini: Model) -> None:
    runs = prepare(mini, [to_pair(mini, TEXT, swap=SWAP)], path="plain")
    assert any("plain path" in note for note in notes_on(runs, judge_each(runs)[0]))


@pytest.mark.long
def test_notes_are_kept_and_a_file_without_them_is_read(
    asked: Circuit, noisy: Circuit, tmp_path: Path
) -> None:
    stored = noisy.save(tmp_path / "new")
    assert Circuit.load(stored).notes == noisy.notes != ()
    # A random word does more.
    assert noisy.question is not None and noisy.question.verdict == "weak"
    older = json.loads(asked.save(tmp_path / "old").read_text())
    for name in ("notes", "question"):
        del older[name]
    for mapping in older["mappings"]:
        del mapping["doubts"]
    for name in ("answers", "foils", "sequence"):
        del older["metric"][name]
    (tmp_path / "old" / "circuit.json").write_text(json.dumps(older))
    with pytest.warns(UserWarning, match="edited"):
        assert Circuit.load(tmp_path / "old") == replace(asked, question=None)


# The verdict

# What was said before: every one of these printed "Modulated at …%", with every control in order.
# What is said now: the verdict, a word of its reasons, and a word of why modulation is withheld.
BAD: dict[str, tuple[str, dict[str, Any], str, str, str]] = {
    "unrelated swap": (
        "The table was near the",
        {"key": "table", "swap": {"table": "horse"}, "metric": "logprob"},
        *("none", "next to nothing", "next to nothing"),
    ),
    "answer and foil that are never said": (
        TEXT,
        {"key": "large", "swap": SWAP, "answer": "The", "foil": "is"},
        *("none", "hardly says 'The'", "next to nothing"),
    ),
    "unrelated word of the sentence": (
        STORE,
        {"key": "drink", "swap": {"drink": "book"}, "answer": "Mary", "foil": "John"},
        *("none", "both runs say 'Mary'", "both runs say"),
    ),
    "unrelated names in front": (
        f"Mary . {TEXT}",
        {"key": "Mary", "swap": {"Mary": "John"}, "answer": "small", "foil": "cold"},
        *("none", "favours the answer", "next to nothing"),
    ),
    "another first word": (
        TEXT,
        {"key": "The", "swap": {"The": "In"}, "answer": "small", "foil": "cold"},
        *("none", "random word's", "both runs say"),
    ),
    "answer and foil exchanged": (
        TEXT,
        {"key": "large", "swap": SWAP, "answer": "cold", "foil": "small"},
        *("weak", "prefers the foil 'small'", ""),
    ),
    "inverted gap": (
        TEXT,
        {"key": "large", "swap": SWAP, "answer": "short", "foil": "small"},
        *("weak", "prefers the foil", ""),
    ),
    "answer of low probability": (
        TEXT,
        {"key": "large", "swap": SWAP, "answer": "book", "foil": "cold"},
        *("weak", "hardly says 'book'", ""),
    ),
    "noise on BOS": (TEXT, {"key": 0}, "weak", "both runs say 'small'", "next to nothing"),
    "noise on a word that is not read": (
        TEXT,
        {"key": "of"},
        "weak",
        "both runs say",
        "both runs say",
    ),
    "noise on the relation": (
        TEXT,
        {"key": "opposite"},
        "weak",
        "random word's",
        "both runs say",
    ),
    "unrelated key": (
        TEXT,
        {"key": "The", "swap": SWAP},
        *("weak", "not about the key", "next to nothing"),
    ),
    "key after the difference": (
        TEXT,
        {"key": "is", "swap": SWAP},
        *("weak", "not about the key", "next to nothing"),
    ),
    "a key beside the one that carries": (
        STORE,
        {"key": "Mary", "swap": {10: "Mary"}},
        *("clear", "", "another key, 10"),
    ),
    "a metric that is saturated": (
        STORE,
        {"key": 2, "swap": {2: "hotel"}, "metric": "logprob"},
        *("clear", "", "no head by itself"),
    ),
}


# Noise is measured with eight draws; the others of these repeat a verdict in another sentence.
SLOW = ("noise on BOS", "noise on the relation", "noise on a word that is not read")
SLOW += ("answer and foil exchanged", "answer of low probability", "key after the difference")


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=[pytest.mark.long] * (name in SLOW)) for name in BAD],
)
def test_a_bad_question_is_called_one(answer_to: Callable[[str], Circuit], name: str) -> None:
    *_, verdict, reason, doubt = BAD[name]
    found = answer_to(name)
    said, mapping = found.question, found.mapping()
    assert said is not None and said.verdict == verdict
    assert reason in "; ".join(said.reasons) and doubt in "; ".join(mapping.doubts)
    printed = " ".join(str(found).split())
    assert ("Verdict: clear" in printed) == (verdict == "clear") and "Verdict: " in printed
    assert "Modulated at" not in printed if mapping.doubts else "withheld" not in printed


@pytest.mark.parametrize(
    ("question", "says"),
    [
        (
            {"key": "large", "swap": SWAP, "answer": "small", "foil": "small"},
            "answer and foil are both",
        ),
        ({"key": "The", "swap": {"The": "In"}}, "does not change the prediction"),
        ({"key": "large", "swap": {"large": "large"}}, "same as the prompt"),
        ({"key": "is", "query": "large", "swap": SWAP}, "stands after query"),
        ({"key": "large", "metric": "logit_diff"}, "noise has no prediction"),
    ],
    ids=[
        "answer is foil",
        "same prediction on both sides",
        "nothing swapped",
        "key after query",
        "no foil",
    ],
)
def test_what_is_no_question_at_all_is_refused(mini: Model, question: Any, says: str) -> None:
    with pytest.raises(PromptError, match=says):
        trace(mini, TEXT, **question)


def test_a_model_of_random_weights_is_not_believed(model: Model) -> None:
    found = trace(model, TEXT, key="large", swap=SWAP, metric="logprob")
    assert found.question is not None
    assert found.question.verdict != "clear" or found.mapping().doubts


def test_a_model_that_says_the_same_whatever_it_reads_is_refused() -> None:
    constant: Any = random_model("gpt2")
    with torch.no_grad():
        constant.transformer.ln_f.weight.zero_()
    with pytest.raises(ModelError, match="does not change the logits"):
        as_model((constant, tokenizer()))


def test_a_good_question_is_clear_and_its_control_survives_the_disk(
    asked: Circuit, tmp_path: Path
) -> None:
    assert isinstance(asked.question, QuestionControl) and asked.question.verdict == "clear"
    assert len(asked.question.other_gaps) == 16 and asked.question.said == ("small", "cold")
    assert Circuit.load(asked.save(tmp_path)).question == asked.question
    assert asked.mapping().doubts == () and "Modulated at" in str(asked)


@pytest.mark.parametrize("path", ["fast", "plain"])
def test_other_words_are_measured_as_whole_runs_of_their_own(model: Model, path: Any) -> None:
    pair = to_pair(model, TEXT, swap=SWAP, metric="logprob")
    tokens = torch.tensor([pair.clean.tokens] * 5)
    tokens[:, pair.differs_at[0]] = torch.tensor([7, 8, 9, 10, 11])
    logits = model.logits(tokens)[:, -1]
    expected = logits.log_softmax(-1)[:, pair.metric.answer]
    for budget in (2**14, 2**25):
        runs = prepare(model, [pair], path=path, budget=budget)
        values = values_of_others(runs, tokens[None], pair.differs_at)[0]
        torch.testing.assert_close(values, expected, rtol=0, atol=1e-3)
        said = predictions_of_others(runs, tokens, pair.differs_at)
        torch.testing.assert_close(said, logits, rtol=0, atol=1e-3)


@pytest.mark.long
def test_a_pair_with_a_tiny_gap_is_left_out_of_the_mean_and_counted(mini: Model) -> None:
    words = {"large": "hot", "hot": "large"}
    pairs = [
        to_pair(mini, f'The opposite of "{old}" is "', swap={old: new})
        for old, new in words.items()
    ]
    tiny = to_pair(mini, TEXT, swap=SWAP, answer="The", foil="is")
    with_tiny, without = (trace(mini, family, key=5) for family in ([*pairs, tiny], pairs))
    assert with_tiny.weak == 1 and without.weak == 0
    assert with_tiny.total.mean == pytest.approx(without.total.mean, abs=1e-5)
    assert "1 more left out as weak" in str(with_tiny)
    with pytest.raises(PromptError, match="gap worth dividing by"):
        trace(mini, [tiny], key=5)


def test_one_pair_has_no_interval(models: dict[str, Model]) -> None:
    tiny = models["gpt2"]
    alone = trace(tiny, [to_pair(tiny, TEXT, swap=SWAP)], key=5)
    assert "[" not in str(alone)


@pytest.mark.long
def test_strict_exits_with_one_unless_the_question_is_clear() -> None:
    told = ["trace", TEXT, "--key", "large", "--swap", "large=hot"]
    bad = [*told, "--answer", "The", "--foil", "is"]
    for call, code in (([*told, "--strict"], 0), ([*bad, "--strict"], 1)):
        done = CliRunner().invoke(main, call)
        assert done.exit_code == code, done.output
    assert "the question is none" in done.stderr and "Verdict: no question" in done.stdout


# Stability


@pytest.mark.long
def test_stability_tells_the_core_from_the_rim(mini: Model, tmp_path: Path) -> None:
    found = trace(mini, TEXT, key="large", swap=SWAP, stability=4)
    steady = found.stability
    assert steady is not None and len(steady.counterfactuals) + steady.weak == 4
    assert steady.counterfactuals[0] == "hot"
    assert len(set(steady.counterfactuals)) == len(steady.counterfactuals)
    assert set(steady.core) | set(steady.rim) == {each.head for each in steady.heads}
    assert all(0 < each.carries <= 1 for each in steady.heads) and 0 <= steady.overlap <= 1
    assert set(found.carriers()) <= {each.head for each in steady.heads}
    assert [share for share, _ in steady.shares] == [0.7, 0.8, 0.9] and steady.restore
    assert "core (in 80% of runs or more)" in str(found)
    assert Circuit.load(found.save(tmp_path)) == found


@pytest.mark.long
def test_the_carriers_under_other_counterfactuals_are_those_of_a_trace_of_each(
    mini: Model,
) -> None:
    steady = stability(mini, TEXT, key="large", swap=SWAP, n=4)
    carried: Counter[Head] = Counter()
    for word in steady.counterfactuals:
        carried.update(trace(mini, TEXT, key="large", swap={"large": word}).carriers())
    runs = len(steady.counterfactuals)
    assert {each.head: each.carries for each in steady.heads} == {
        head: count / runs for head, count in carried.items()
    }


@pytest.mark.long
def test_words_that_leave_the_answer_as_it_is_are_passed_over(mini: Model) -> None:
    asked: dict[str, Any] = {"key": "large", "swap": SWAP, "n": 3}
    nearest = stability(mini, TEXT, **asked).counterfactuals
    said = to_pair(mini, TEXT, swap={"large": nearest[1]}).metric.foil_text
    others = stability(mini, TEXT, **asked, answer=said).counterfactuals
    assert nearest[0] == others[0] == "hot" and nearest[2] == others[1]
    assert nearest[1] not in others and len(others) == 3


@pytest.mark.long
def test_rephrasings_are_runs_of_their_own(mini: Model) -> None:
    asked: dict[str, Any] = {"key": "large", "swap": SWAP, "n": 2}
    steady = stability(
        mini, TEXT, **asked, rephrasings=[f"Mary . {TEXT}", f"The dog was old . {TEXT}"]
    )
    assert len(steady.counterfactuals) + steady.weak == 4
    assert steady.counterfactuals.count("hot") == 3
    alone = stability(mini, TEXT, **asked)
    assert {each.head for each in alone.heads} <= {each.head for each in steady.heads}
    with pytest.raises(PromptError, match=r"no word|no token"):
        stability(mini, TEXT, **asked, rephrasings=["The dog was old"])


def test_the_other_direction_of_stability_is_restore(mini: Model) -> None:
    pair = to_pair(mini, TEXT, swap=SWAP)
    assert isinstance(pair.counterfactual, type(pair.clean))
    turned = Pair(pair.counterfactual, pair.clean, pair.metric)
    one, other = (prepare(mini, [each]) for each in (pair, turned))
    rows = mapping_rows(one.heads, 5, 8)
    back, swapped = one.effects(rows, direction="restore"), other.effects(rows)
    torch.testing.assert_close(back, swapped, rtol=0, atol=1e-4)


# A long prompt


@pytest.mark.long
def test_of_a_long_prompt_the_maps_of_the_strongest_heads_are_kept_and_what_is_written_is_read(
    mini: Model, asked: Circuit, tmp_path: Path
) -> None:
    runs = prepare(mini, [to_pair(mini, TEXT, swap=SWAP)])
    two_maps = 2 * 9 * 9 * 2  # bytes of two maps of nine tokens in half precision
    arrays = attention_maps(runs, asked.mappings, most_bytes=two_maps)
    found = replace(asked, arrays=arrays, arrays_sha256=sha256_of(arrays))
    path = [step.head for step in found.mapping().path]
    assert found.arrays["patterns"].shape == (2, 9, 9)
    assert [head for head in path if found.has_map(head)] == path[:2]
    stored = Circuit.load(found.save(tmp_path))
    assert stored == replace(asked, arrays_sha256=found.arrays_sha256)
    assert abs(stored.pattern(path[1]) - asked.pattern(path[1])).max() < 1e-3
    with pytest.raises(EdgeError, match=r"map of L0H9 is not .* of the 2 strongest heads"):
        stored.pattern("L0H9")
    done = CliRunner().invoke(main, ["render", str(tmp_path), "--format", "svg,html,dot"])
    assert done.exit_code == 0, done.output
    assert f"and {len(found.carriers()) - 2} more heads" in mapping_text(stored)


def mapping_text(circuit: Circuit) -> str:
    (sheet,) = mapping_figure(circuit).axes
    return " ".join(text.get_text() for text in sheet.texts)


@pytest.mark.long
def test_a_share_of_one_is_the_whole_path_and_says_what_it_lacks(mini: Model) -> None:
    printed = " ".join(str(trace(mini, TEXT, key="large", swap=SWAP, share=1.0)).split())
    assert re.search(r"the path ends here, 0\.\d% short of the total", printed)
    assert "no further head helps" not in printed


# One unit


@pytest.mark.long
def test_spans_are_in_gaps_of_the_pair_and_a_token_that_moves_nothing_has_none(
    mini: Model,
) -> None:
    whole = circuit(mini, TEXT, swap=SWAP)
    by_label = {span.label: span for span in whole.spans}
    assert by_label["large"].moves == 1.0
    for span in whole.spans:
        assert abs(span.moves) >= 0.05
        if span.counterfactual.startswith("noise"):  # its own, so all of it is in the embedding
            assert span.residual[0] == pytest.approx(span.moves, abs=1e-3)


# Calls


def test_a_list_of_texts_is_a_family(models: dict[str, Model]) -> None:
    tiny, words = models["gpt2"], {"large": "hot", "hot": "large", "rich": "hot"}
    texts = [f'The opposite of "{word}" is "' for word in words]
    found = trace(tiny, texts, key=5, swap=words)
    assert isinstance(found, FamilyTrace) and len(found.pairs) == 3
    others = [f'The opposite of "{word}" is "' for word in words.values()]
    assert trace(tiny, texts, key=5, counterfactual=others).total == found.total
    with pytest.raises(PromptError, match="as many counterfactuals"):
        trace(tiny, texts, key=5, counterfactual=others[:2])
    with pytest.raises(PromptError, match="no word of the swap"):
        trace(tiny, texts, key=5, swap=SWAP)
    longer = trace(tiny, [TEXT, f"There {TEXT}"], key="large", swap=SWAP)
    assert longer.all_ends == ((5, 8), (6, 9))


@pytest.mark.parametrize("verb", [trace, circuit])
def test_a_wrong_keyword_is_answered_with_the_right_ones(verb: Any) -> None:
    with pytest.raises(
        KeywordError, match=r"no .swaps.; it has .*metric.*did you mean swap\?"
    ) as why:
        verb("mini", TEXT, swaps=SWAP)
    assert isinstance(why.value, CircuitsError) and isinstance(why.value, TypeError)


def test_carriers_takes_a_share_in_first_place_too(asked: Circuit) -> None:
    assert asked.carriers(0.5) == asked.carriers(share=0.5) == asked.mapping().carriers(0.5)
    assert asked.carriers("large", -1) == asked.carriers()
    with pytest.raises(PromptError, match=r"carriers\(share=0.5\)"):
        asked.carriers(0.5, 8)


def test_a_question_is_worded_without_running_the_model(mini: Model) -> None:
    question = to_question(
        mini, TEXT, QuestionSpec(swap=SWAP, answer='small "', metric="logprob")
    )
    assert len(question.sequence) == 2 and len(question.clean) == 10
