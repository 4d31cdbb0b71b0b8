"""Tasks are what they say: right words at named positions, answers that flip, what is left out counted."""

from __future__ import annotations

import json
from pathlib import Path
from random import Random
from typing import Any

import pandas
import pytest
import torch
from small_models import loaded, random_model
from tokenizers import Regex, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from circuits.errors import CircuitsError, FileError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Prompt
from circuits.sweeps.sweep import sweep
from circuits.tasks import TASKS
from circuits.tasks.families import FAMILIES, Candidate, Marked, YearsAfter, greater_than
from circuits.tasks.task import (
    BEYOND,
    NO_ANSWER,
    SAME,
    SPLIT,
    UNEVEN,
    UNKNOWN,
    WRONG,
    Item,
    Task,
    judge,
    to_task,
)
from circuits.zoo import language

OPPOSITE = 'The opposite of "large" is "'


@pytest.fixture(scope="module")
def mini() -> Model:
    return loaded("mini")


@pytest.fixture(scope="module")
def names(mini: Model) -> Task:
    return to_task(mini, "indirect_object", count=24)


def other(item: Item) -> Prompt:
    assert isinstance(item.pair.counterfactual, Prompt)
    return item.pair.counterfactual


def word(item: Item, role: str) -> str:
    return item.pair.clean.words[item.position(role)]


def cut(rule: str, *, words: dict[str, str] | None = None) -> Model:
    """A small random model whose tokenizer cuts by another rule and calls some tokens by other names."""
    vocabulary = {
        (words or {}).get(word, word): number for word, number in language.vocabulary().items()
    }
    made = Tokenizer(models.WordLevel(vocabulary, unk_token=language.UNKNOWN))
    made.pre_tokenizer = pre_tokenizers.Split(Regex(rule), behavior="removed", invert=True)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=made, bos_token=language.BOS, unk_token=language.UNKNOWN
    )
    model: Any = random_model("gpt2")
    return as_model((model, tokenizer))


def own(folder: Path, *lines: object) -> Path:
    path = folder / "mine.jsonl"
    path.write_text(
        "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines)
    )
    return path


# The families


@pytest.mark.parametrize("name", TASKS)
def test_the_same_seed_gives_the_same_task_and_another_seed_another(
    mini: Model, name: str
) -> None:
    task = to_task(mini, name, count=6, seed=1)
    assert task == to_task(mini, name, count=6, seed=1)
    assert task.items != to_task(mini, name, count=6, seed=2).items
    assert len(task) == len(task.pairs) == 6


@pytest.mark.parametrize(
    ("name", "left"), [("opposites", 0.0), ("indirect_object", 0.0), ("induction", 0.5)]
)
def test_the_model_says_the_answer_and_the_counterfactual_takes_its_lead_over_the_foil(
    mini: Model, name: str, left: float
) -> None:
    """Opposites and names flip; a counterfactual sequence, which has a word twice, can leave neither."""
    for item in to_task(mini, name, count=6).items:
        sides = torch.tensor([item.pair.clean.tokens, other(item).tokens])
        said, metric = mini.logits(sides)[:, -1], item.pair.metric
        assert said[0].argmax() == metric.answer
        assert metric.foil is not None
        lead, lead_left = (said[:, metric.answer] - said[:, metric.foil]).tolist()
        assert lead_left <= left * lead


def test_opposites_differ_at_the_subject_alone_and_have_the_opposites_as_answer_and_foil(
    mini: Model,
) -> None:
    for item in to_task(mini, "opposites", count=8).items:
        subject = item.position("SUBJECT")
        assert item.pair.differs_at == (subject,) == (5,)
        opposite = language.FACTS["opposite"]
        assert item.pair.metric.answer_text == opposite[word(item, "SUBJECT")]
        assert item.pair.metric.foil_text == opposite[other(item).words[subject]]


def test_roles_point_at_the_right_words_in_abba_and_baba(names: Task) -> None:
    orders = set()
    for item in names.items:
        indirect, subject = item.pair.metric.answer_text, item.pair.metric.foil_text
        assert word(item, "IO") == indirect
        assert word(item, "S1") == word(item, "S2") == subject
        assert item.position("S1") < item.position("S2")
        assert item.position("S1+1") == item.position("S1") + 1
        assert item.position("END") == len(item.pair) - 1
        orders.add(item.position("IO") < item.position("S1"))
    assert orders == {True, False}


def test_the_second_mention_alone_is_swapped_to_the_other_name(names: Task) -> None:
    for item in names.items:
        assert item.pair.differs_at == (item.position("S2"),)
        assert other(item).words[item.position("S2")] == word(item, "IO")


def test_in_induction_the_answer_follows_the_first_a_and_the_foil_stands_in_its_place_too(
    mini: Model,
) -> None:
    for item in to_task(mini, "induction", count=4).items:
        assert item.pair.differs_at == tuple(map(item.position, "ABC"))
        assert other(item).words[item.position("B")] == item.pair.metric.foil_text
        assert word(item, "A") == word(item, "END") == other(item).words[item.position("C")]
        assert word(item, "B") == item.pair.metric.answer_text
        assert other(item).words[item.position("C") + 1] == item.pair.metric.foil_text


def test_the_metric_of_years_is_the_probability_of_later_years_minus_all_others() -> None:
    metric = YearsAfter(later=(2, 3), others=(0, 1))
    probability = torch.tensor([[0.1, 0.2, 0.3, 0.1, 0.3], [0.0, 0.5, 0.0, 0.0, 0.5]])
    assert metric(probability.clamp(min=1e-12).log()).tolist() == pytest.approx(
        [0.1, -0.5], abs=1e-6
    )


def test_a_year_is_compared_with_all_hundred_and_the_model_is_sure(mini: Model) -> None:
    for item in to_task(mini, "greater_than", count=4).items:
        start, metric = int(word(item, "YY")), item.pair.metric.function
        assert isinstance(metric, YearsAfter)
        assert [mini.spell(token) for token in metric.later] == [
            f"{year:02d}" for year in range(start + 1, 100)
        ]
        assert [mini.spell(token) for token in metric.others] == [
            f"{year:02d}" for year in range(start + 1)
        ]
        assert (
            float(metric(mini.logits(torch.tensor([item.pair.clean.tokens]))[:, -1])[0]) > 0.5
        )
        assert other(item).words[item.position("YY")] == "02"


def test_where_a_digit_is_a_token_the_tens_digit_is_what_is_compared() -> None:
    model = cut(
        language.WORD.replace(r"\d\d", r"\d"),
        words={f"{digit:02d}": str(digit) for digit in range(10)},
    )
    candidate = next(greater_than(model, Random(0)))
    tens = int(candidate.clean.text[candidate.clean.words[0][1]])
    assert candidate.years is not None
    assert [model.spell(token) for token in candidate.years.later] == [
        str(digit) for digit in range(tens + 1, 10)
    ]
    # No later year has the same tens digit.
    assert candidate.clean.text.split(" to ")[0].endswith(f"{tens}9")
    assert len(model.tokenize(candidate.clean.text)) == len(
        model.tokenize(candidate.counterfactual.text)
    )


# What is left out


def test_a_word_that_is_cut_in_two_is_counted() -> None:
    model = cut(r"Mar(?=y)|" + language.WORD, words={"Paul": "Mar", "Eva": "y"})
    names = Marked.read(
        "When[IO: Mary] and[S1: John] went to the store,[S2: John] gave a drink to"
    )
    swapped = Marked.read(
        "When[IO: Mary] and[S1: John] went to the store,[S2: Mary] gave a drink to"
    )
    both = Marked.read(
        "When[IO: Mary] and[S1: John] went to the store,[S2: Anna] gave a drink to"
    )
    candidates = [
        Candidate(names, swapped, "Mary", "John"),
        Candidate(names, both, "Mary", "John"),
        Candidate(names, both, "Paul", "John"),
    ]
    assert judge(model, candidates) == [UNEVEN, SPLIT, SPLIT]
    assert judge(model, [Candidate(Marked(names.text), Marked(both.text), "Mary", "John")]) == [
        NO_ANSWER
    ]


def test_an_unknown_word_is_counted() -> None:
    model = cut(language.WORD, words={"Mary": "Maria"})
    written = [next(FAMILIES["indirect_object"](model, Random(seed))) for seed in range(40)]
    with_mary = [
        verdict
        for verdict, each in zip(judge(model, written), written, strict=True)
        if "Mary" in each.clean.text
    ]
    assert with_mary
    assert set(with_mary) == {UNKNOWN}


def test_a_model_that_answers_otherwise_is_left_with_no_pair_and_told_why(
    models: dict[str, Model],
) -> None:
    with pytest.raises(PromptError, match=rf"opposites.*\d+ {WRONG}"):
        to_task(models["gpt2"], "opposites", count=4)


def test_left_out_items_are_counted_and_do_not_shorten_the_task(
    mini: Model, tmp_path: Path
) -> None:
    """Every fourth line asks for what the model does not say."""
    opposite = list(language.FACTS["opposite"].items())[:10]
    lines = [
        {"prompt": OPPOSITE.replace("large", word), "swap": {word: "weak"}}
        for word, _ in opposite
    ]
    for number, (line, (_, answer)) in enumerate(zip(lines, opposite, strict=True)):
        line["answer"] = "weightless" if number % 4 == 0 else answer
    task = to_task(mini, own(tmp_path, *lines), count=6)
    assert len(task) == 6
    assert dict(task.left_out)[WRONG] == 2
    assert f"2 {WRONG}" in str(task)


def test_an_unknown_task_says_which_there_are(mini: Model) -> None:
    with pytest.raises(PromptError, match=f"oposites.*{', '.join(TASKS)}"):
        to_task(mini, "oposites")
    with pytest.raises(PromptError, match="at least one"):
        to_task(mini, "opposites", count=0)


# Names of positions


def test_every_position_has_a_name_and_no_two_the_same(names: Task) -> None:
    for item in names.items:
        called = [item.name_of(position) for position in range(len(item.pair))]
        assert len(set(called)) == len(called)
        assert called[0] == "0"
        assert called[item.position("S2") + 1] == "S2+1"
        assert called[item.position("S1") + 1] == "S1+1"
        assert not any(name.startswith("S1+1+") for name in called)


def test_a_role_outside_the_prompt_is_refused(names: Task) -> None:
    with pytest.raises(PromptError, match="99"):
        Item(names.items[0].pair, (("IO", 99),))


def test_a_role_whose_name_would_break_an_edges_name_is_refused(names: Task) -> None:
    with pytest.raises(PromptError, match="S1→S2"):
        Item(names.items[0].pair, (("S1→S2", 1),))


# Own tasks


def test_a_list_and_a_table_are_read_as_the_lines_of_a_file(
    mini: Model, tmp_path: Path
) -> None:
    lines: list[dict[str, Any]] = [
        {"prompt": OPPOSITE, "swap": {"large": "hot"}, "roles": {"it": "large"}},
        {"prompt": OPPOSITE, "counterfactual": OPPOSITE.replace("large", "hot"), "id": "b"},
    ]
    expected = to_task(mini, own(tmp_path, *lines)).items
    for given in (lines, pandas.DataFrame(lines)):
        task = to_task(mini, given)
        assert task.name == "own pairs" and task.items == expected
    texts = [(OPPOSITE, OPPOSITE.replace("large", "hot"))]
    assert to_task(mini, texts).pairs == (expected[1].pair,)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "a list of dicts"),
        (3, "a task is not 3"),
        ([OPPOSITE], "entry 1 of a task is not 'The opp"),
        ([{"prompt": OPPOSITE, "swap": {"large": "hot"}}, {"swap": {}}], "entry 2: "),
        ([{"promt": OPPOSITE}], "did you mean prompt"),
    ],
)
def test_what_is_no_task_is_refused_in_one_line(mini: Model, given: Any, said: str) -> None:
    with pytest.raises(PromptError, match=said) as refused:
        to_task(mini, given)
    assert "\n" not in str(refused.value)


def test_own_items_are_read_with_roles_by_index_or_word_and_left_out_ones_counted(
    mini: Model, tmp_path: Path
) -> None:
    path = own(
        tmp_path,
        {
            "prompt": OPPOSITE,
            "swap": {"large": "hot"},
            "answer": "small",
            "foil": "cold",
            "roles": {"it": "large", "end": -1},
        },
        "",
        {"prompt": OPPOSITE, "counterfactual": 'The opposite of "hot" is "'},
        {"prompt": OPPOSITE, "counterfactual": 'The opposite of the word "hot" is "'},
        {"prompt": OPPOSITE, "swap": {"large": "hot"}, "answer": "wet", "foil": "cold"},
        {"prompt": OPPOSITE, "swap": {"large": "hot"}, "answer": "small", "foil": "small"},
        {"prompt": OPPOSITE, "swap": {"large": "zebra"}},
    )
    task = to_task(mini, path)
    assert task.name == "mine"
    assert task.items[0].roles == (("it", 5), ("end", 8))
    assert [item.pair.metric.answer_text for item in task.items] == ["small", "small"]
    assert dict(task.left_out) == {UNEVEN: 1, WRONG: 1, SAME: 1, UNKNOWN: 1}
    assert dict(to_task(mini, path, count=1).left_out) == {BEYOND: 5}


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("{", "JSON"),
        ('{"prompt": ' + "1" * 5000 + "}", "JSON"),
        ("[1]", "object"),
        ({"prompt": OPPOSITE}, "either"),
        ({"prompt": OPPOSITE, "swap": {"large": "hot"}, "counterfactual": "x"}, "either"),
        ({"swap": {"large": "hot"}}, "prompt"),
        ({"prompt": "", "swap": {"large": "hot"}}, "'prompt' is empty"),
        ({"prompt": OPPOSITE, "swap": {"tiny": "hot"}}, "tiny"),
        ({"prompt": OPPOSITE, "swap": ["large"]}, "swap"),
        ({"prompt": OPPOSITE, "swap": {"large": "hot"}, "foils": "x"}, "foils"),
        ({"prompt": OPPOSITE, "swap": {"large": "hot"}, "roles": {"x": 12}}, "12"),
        ({"prompt": OPPOSITE, "swap": {"large": "hot"}, "roles": {"x": 1.5}}, "roles.x"),
    ],
)
def test_a_mistake_in_an_own_task_is_one_line_that_names_its_line(
    mini: Model, tmp_path: Path, line: object, said: str
) -> None:
    path = own(tmp_path, {"prompt": OPPOSITE, "swap": {"large": "hot"}}, line)
    with pytest.raises(CircuitsError) as wrong:
        to_task(mini, path)
    assert str(wrong.value).startswith("mine.jsonl, line 2: ")
    assert said in str(wrong.value)
    assert "\n" not in str(wrong.value)


def test_a_task_and_a_sweep_take_the_same_lines(mini: Model, tmp_path: Path) -> None:
    """The key is for the sweep, which a note says; answers may be lists, and a swap may name a position."""
    line = {"prompt": OPPOSITE, "swap": {"large": "hot"}, "answer": ["small"], "foil": "cold"}
    more = {"key": "large", "query": -1, "id": 7, "metric": None, "kind": "size"}
    path = own(tmp_path, line | more, line | more | {"swap": {"5": "hot"}})
    with pytest.warns(UserWarning, match="key and query of its lines are for sweeps"):
        task = to_task(mini, path)
    swept = sweep(mini, path, tmp_path / "out")
    assert len(swept) == 2 and not len(swept.errors)
    plain = to_task(mini, own(tmp_path, line, line))
    assert task.pairs == plain.pairs and len(task) == 2


@pytest.mark.parametrize(
    ("field", "says"),
    [({"metric": "kl"}, "by logit_diff, not by 'kl'"), ({"answer": ["a", "b"]}, "takes one")],
)
def test_what_a_task_cannot_measure_is_refused(
    mini: Model, tmp_path: Path, field: dict, says: str
) -> None:
    path = own(tmp_path, {"prompt": OPPOSITE, "swap": {"large": "hot"}, **field})
    with pytest.raises(CircuitsError, match=says):
        to_task(mini, path)


def test_a_file_that_is_missing_or_empty_is_said_to_be_so(mini: Model, tmp_path: Path) -> None:
    with pytest.raises(FileError, match=r"none\.jsonl"):
        to_task(mini, tmp_path / "none.jsonl")
    with pytest.raises(FileError, match="no items"):
        to_task(mini, own(tmp_path, ""))
