"""`rank`, `compare --task` and the keep curve: what is printed, drawn and written is what was measured."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas
import pytest
from click.testing import CliRunner, Result
from fuzzing import small_circuit
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex
from matplotlib.figure import Figure
from small_models import random_model, save

from circuits import cli
from circuits.cli.compare import file_names
from circuits.components import Head
from circuits.errors import PromptError
from circuits.instruments.head_scores import head_scores
from circuits.models.load import load
from circuits.show.canvas import save_figure
from circuits.show.curves import count_words, keep_curves
from circuits.show.grids import comparison_grid
from circuits.show.sections import plain
from circuits.show.task_tables import ranking_sections, task_comparison_sections
from circuits.show.words import verdict_in_short
from circuits.tasks.compare import TaskComparison, compare
from circuits.tasks.edges import edge_effects
from circuits.tasks.rank import rank
from circuits.tasks.ranking import Curve, Protocol, Ranked, Ranking, heads_of, random_count
from circuits.tasks.task import to_task

WORDS = ("large", "hot", "fast", "old", "rich", "dark")
PICTURES = ("pdf", "png", "svg")


def run(*arguments: object) -> Result:
    return CliRunner().invoke(cli.main, list(map(str, arguments)))


def done(*arguments: object) -> str:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def names_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


@pytest.fixture(scope="module")
def room(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dense model, another with a gate, one of another shape, and two tasks of a few short pairs."""
    folder = tmp_path_factory.mktemp("tasks")
    save(random_model("gpt2"), folder / "dense")
    save(random_model("gpt2", seed=1), folder / "sparse")
    (folder / "sparse" / "circuits.json").write_text('{"gate": true}')
    for name, words in (("words", WORDS[:3]), ("more", WORDS[3:])):
        pairs = [
            {"prompt": f'The {word} "', "counterfactual": f'The {other} "'}
            for word in words
            for other in WORDS
            if word != other
        ]
        (folder / f"{name}.jsonl").write_text(
            "".join(f"{json.dumps(pair)}\n" for pair in pairs)
        )
    return folder


@pytest.fixture(scope="module")
def found(room: Path) -> TaskComparison:
    return compare(
        load(room / "dense"), load(room / "sparse"), task=room / "words.jsonl", count=4
    )


def ranking_of(
    *,
    units: Any = "heads",
    model: str = "mini",
    explained: tuple[float, ...] = (0.0, 0.5, 0.92, 0.97, 1.0),
    size: int = 1,
) -> Ranking:
    """Sizes are 0, 1, 2, … times `size`; two pairs, 0.05 under and over the mean."""
    sizes = tuple(number * size for number in range(len(explained)))
    low, high = (tuple(value + change for value in explained) for change in (-0.05, 0.05))
    return Ranking(
        task="opposites",
        model=model,
        fingerprint="0" * 64,
        gated=False,
        protocol=Protocol(units),
        pairs=2,
        left_out=(("the model answers otherwise", 3),),
        units=sizes[-1],
        ranked=tuple(
            Ranked(Head(0, number), 0.5 / number, 0.1, 0.6)
            for number in range(1, len(explained))
        ),
        keep=Curve(sizes, explained, low, high),
        random=Curve((0, sizes[-1]), (0.0, 1.0), (0.0, 1.0), (0.0, 1.0)),
        cpr=0.7,
        cmd=0.3,
        seed=0,
        each=tuple(zip(low, high, strict=True)),
    )


# The plot


def lines_of(axes: Axes, length: int) -> list[np.ndarray]:
    return [
        np.asarray(line.get_xydata())
        for line in axes.lines
        if len(np.asarray(line.get_xdata())) == length
    ]


def words_of(axes: Axes) -> list[str]:
    legend = axes.get_legend()
    assert legend is not None
    return [text.get_text() for text in (*legend.get_texts(), *axes.texts)]


def test_the_curve_its_band_its_control_and_its_mark_are_those_of_the_ranking() -> None:
    ranking = ranking_of()
    axes = keep_curves(ranking).axes[0]
    # The axis is logarithmic and begins with one head.
    points = zip(ranking.keep.sizes[1:], ranking.keep.explained[1:], strict=True)
    assert lines_of(axes, 4)[0].tolist() == [[size, value] for size, value in points]
    assert [[1, 0.25], [4, 1]] in [line.tolist() for line in lines_of(axes, 2)]
    band = np.concatenate(
        [np.asarray(path.vertices) for path in axes.collections[0].get_paths()]
    )
    assert band[:, 1].min() == pytest.approx(0.45) and band[:, 1].max() == pytest.approx(1.05)
    assert [2.0, 0.9] in [line[0].tolist() for line in lines_of(axes, 1)]
    legend, control, mark = words_of(axes)
    assert (
        re.fullmatch("mini: 2 heads .*90%.*2–3.*", legend)
        and "random" in control
        and mark == "2"
    )


def test_two_models_stand_in_one_plot_with_one_legend_and_two_colours() -> None:
    axes = keep_curves(
        [ranking_of(), ranking_of(model="mini-sparse", explained=(0.0, 0.93, 1.0, 1.0, 1.0))],
        titles=("GPT2", "Sparse GPT2"),
    ).axes[0]
    first, second, _, *marks = words_of(axes)
    assert first.startswith("GPT2: 2 heads") and second.startswith("Sparse GPT2: 1 head")
    assert marks == ["2", "1"]
    colours = {
        to_hex(line.get_color())
        for line in axes.lines
        if len(np.asarray(line.get_xdata())) == 4
    }
    assert len(colours) == 2
    light = sorted(sum(int(colour[at : at + 2], 16) for at in (1, 3, 5)) for colour in colours)
    assert light[1] - light[0] > 100  # apart in lightness, for those who see no hue


def test_edges_have_a_logarithmic_axis_that_starts_at_one() -> None:
    axes = keep_curves(ranking_of(units="edges", size=500)).axes[0]
    assert (
        axes.get_xscale() == "log" and min(line[:, 0].min() for line in lines_of(axes, 5)) == 1
    )
    figure = axes.get_figure(root=True)
    assert isinstance(figure, Figure)
    ticks = [
        text.get_text()
        for text in axes.get_xticklabels()
        if 1 <= text.get_position()[0] <= 2000
    ]
    assert ticks == ["1", "10", "100", "1,000"]


def test_a_share_that_is_never_reached_has_no_mark_and_is_said() -> None:
    low = ranking_of(explained=(0.0, 0.2, 0.4, 0.5, 0.6))
    assert "90% not reached" in count_words(low) and random_count(low) == 4
    assert not lines_of(keep_curves(low).axes[0], 1)


def test_curves_that_do_not_belong_together_are_refused() -> None:
    with pytest.raises(PromptError, match="units"):
        keep_curves([ranking_of(), ranking_of(units="edges")])
    with pytest.raises(PromptError, match="tasks"):
        keep_curves([ranking_of(), replace(ranking_of(), task="induction")])
    with pytest.raises(PromptError, match="two"):
        keep_curves([ranking_of()] * 3)


def test_a_curve_fits_one_column_says_its_protocol_and_cuts_nothing_off() -> None:
    figure = keep_curves([ranking_of(), ranking_of(model="mini-sparse")])
    FigureCanvasAgg(figure).draw()
    width, height = figure.get_size_inches() * figure.dpi
    assert figure.get_size_inches()[0] <= 3.5
    said = " ".join(text.get_text() for text in figure.texts)
    assert said.startswith("90% of opposites takes 2 heads in mini") and "2 pairs" in said
    assert str(Protocol("heads")) in said
    legend = figure.axes[0].get_legend()
    assert legend is not None
    for text in (*figure.texts, *legend.get_texts(), *figure.axes[0].texts):
        box = text.get_window_extent()
        assert box.x0 >= 0 and box.y0 >= 0 and box.x1 <= width and box.y1 <= height, (
            text.get_text()
        )
        assert float(text.get_fontsize()) >= 6


@pytest.mark.long
def test_the_same_curve_gives_the_same_bytes(tmp_path: Path) -> None:
    for name in ("one", "two"):
        save_figure(keep_curves(ranking_of()), tmp_path / name)
    for form in PICTURES:
        one, two = (tmp_path / name / f"figure.{form}" for name in ("one", "two"))
        assert one.read_bytes() == two.read_bytes()


def test_the_random_order_is_counted_between_the_sizes_of_the_control() -> None:
    ranking = replace(
        ranking_of(), random=Curve((0, 10, 110), (0.0, 0.5, 1.0), (0.0,) * 3, (1.0,) * 3)
    )
    assert [random_count(ranking, share) for share in (0.5, 0.75, 0.05)] == [10, 60, 1]
    assert (
        random_count(replace(ranking, random=Curve((0, 9), (0.0, 0.4), (0.0, 0.4), (0.0, 0.4))))
        is None
    )


# One model


def test_rank_prints_counts_units_patterns_protocol_and_what_was_left_out(room: Path) -> None:
    text = done("rank", room / "words.jsonl", "--model", room / "dense", "-n", 4)
    model = load(room / "dense")
    task = to_task(model, room / "words.jsonl", count=4)
    ranking = rank(model, task, count=4)
    scores = head_scores(model)
    assert text.rstrip() == plain(ranking_sections(ranking, scores))
    flat = " ".join(text.split())
    assert "a reading, not an effect" in flat
    assert str(ranking.protocol) in flat
    assert f"CPR {ranking.cpr:.3f}" in flat and f"CMD {ranking.cmd:.3f}" in flat
    assert all(f"{count} {reason}" in flat for reason, count in ranking.left_out)
    rows = {
        line.split()[0]: line
        for line in text.split("\n")
        if line.startswith(("n80", "n90", "n95"))
    }
    count, low, high = ranking.count(0.9)
    assert f"{count} [{low}, {high}]" in rows["n90"]
    assert rows["n90"].split()[-1] == str(random_count(ranking, 0.9))
    heads = [line.split() for line in text.split("\n") if line[:1].isdigit()]
    assert [words[1] for words in heads] == [str(known.unit) for known in ranking.ranked[:16]]
    assert all(scores.name(words[1]) in flat for words in heads)


@pytest.mark.long
def test_rank_writes_its_record_its_curve_and_its_grid(room: Path, tmp_path: Path) -> None:
    values = json.loads(
        done(
            "rank",
            room / "words.jsonl",
            "--model",
            room / "sparse",
            "-n",
            3,
            "-o",
            tmp_path,
            "--json",
        )
    )
    assert names_in(tmp_path) == sorted(
        [f"{name}.{form}" for name in ("curve", "heads") for form in PICTURES]
        + ["ranking.json"]
    )
    saved = json.loads((tmp_path / "ranking.json").read_text())
    assert saved.pop("written_by") == "keyquery-circuits" and saved.pop("result") == "ranking"
    assert {name: saved[name] for name in values} == values
    ranking = rank(load(room / "sparse"), room / "words.jsonl", count=3)
    assert Ranking.load(tmp_path) == ranking
    assert values["counts"]["n90"]["count"] == ranking.count(0.9)[0]
    assert values["protocol"]["words"] == str(ranking.protocol)
    assert set(values["panel"]["heads"]) == {
        f"L{layer}H{head}" for layer in range(3) for head in range(4)
    }


def test_rank_takes_edges_and_the_way_of_the_mlps(room: Path) -> None:
    asked = [
        "rank",
        room / "words.jsonl",
        "--model",
        room / "dense",
        "-n",
        2,
        "--units",
        "edges",
    ]
    values = json.loads(done(*asked, "--mlps", "held", "--json"))
    assert (values["protocol"]["units"], values["protocol"]["mlps"]) == ("edges", "held")
    assert values["pairs"] == 2 and "→" in values["ranked"][0]["unit"]
    assert "Attention edges" in done(*asked)


# Two models


def test_rank_takes_the_order_of_wires_by_name(room: Path) -> None:
    task, dense = room / "words.jsonl", room / "dense"
    ranked = json.loads(
        done("rank", task, "--model", dense, "-n", 1, "--order", "eap", "--json")
    )
    assert (ranked["protocol"]["units"], ranked["protocol"]["order"]) == ("wires", "eap")
    assert ranked["units"] == 262
    failed = run("rank", task, "--model", dense, "-n", 1, "--order", "serach")
    assert failed.exit_code == 1 and "search, effect, eap, eap-ig" in failed.stderr


def test_edges_writes_the_effects_of_all_component_edges(room: Path, tmp_path: Path) -> None:
    file = tmp_path / "new" / "edges.parquet"
    task, dense = room / "words.jsonl", room / "dense"
    said = done("edges", task, "--model", dense, "-n", 2, "-o", file)
    assert said == f"wrote {file}\n"
    assert names_in(file.parent) == ["edges.parquet"]
    table = pandas.read_parquet(file)
    assert len(table) == 262 and list(table)[3:] == ["effect", "pair_0", "pair_1"]
    again = edge_effects(load(dense), task, count=2).to_pandas()
    assert table["effect"].tolist() == pytest.approx(again["effect"].tolist(), abs=1e-5)


@pytest.mark.long
def test_both_models_are_asked_the_pairs_that_both_get_right(
    found: TaskComparison, room: Path
) -> None:
    assert found.same_pairs and found.prompts[0].text == found.prompts[1].text
    assert len({ranking.pairs for couple in found.rankings for ranking in couple}) == 1
    dense = load(room / "dense")
    same = compare(dense, dense, task=room / "words.jsonl", count=3, units=("heads",))
    assert same.ratio("heads") == 1 and same.overlap == heads_of(same.ranking("heads")[0])
    assert all(str(each.before) == str(each.after) for each in same.changes)
    with pytest.raises(PromptError, match="not ranked"):
        same.ranking("edges")


def test_compare_refuses_what_does_not_go_together(room: Path) -> None:
    compare_any: Any = compare
    model, circuit = load(room / "dense"), small_circuit()
    for first, second, options in (
        (model, model, {}),
        (model, model, {"task": "opposites", "share": 0.5}),
        (circuit, model, {"task": "opposites"}),
        (circuit, circuit, {"task": "opposites"}),
        (circuit, circuit, {"units": ("heads",)}),
    ):
        with pytest.raises(PromptError, match="task="):
            compare_any(first, second, **options)
    with pytest.raises(PromptError, match="kind of unit"):
        compare(model, model, task="opposites", units=())


def test_a_comparison_tells_counts_ratio_overlap_and_patterns(found: TaskComparison) -> None:
    first, second = found.ranking("heads")
    counts = first.count(0.9)[0], second.count(0.9)[0]
    assert counts[0] and counts[1] and found.ratio("heads") == counts[0] / counts[1]
    assert found.overlap == tuple(head for head in heads_of(first) if head in heads_of(second))
    text = plain(task_comparison_sections([found]))
    for share in ("n80", "n90", "n95"):
        assert re.findall(rf"^(\w+ ?\w+) +{share} ", text, re.MULTILINE) == [
            "heads",
            "attention edges",
        ]
    either = {*heads_of(first), *heads_of(second)}
    assert f"{len(found.overlap)} of {len(either)} " in text
    for panel in (*found.needed, *found.panels):
        assert (
            f"{panel.open_edges:,.0f} of {panel.edges:,.0f}" in text
            and f"{panel.first_token:.1%}" in text
        )
    for each in found.changes:
        line = next(
            line
            for line in text.split("\n")
            if line.startswith(f"{each.head} ") and str(each.before) in line
        )
        assert str(each.after) in line


def test_figure_a_has_a_titled_panel_for_each_model_with_its_heads_in_order(
    found: TaskComparison,
) -> None:
    figure = comparison_grid(found, titles=("GPT2", "Sparse GPT2"))
    words = [text.get_text() for text in figure.axes[0].texts]
    first, second = found.ranking("heads")
    assert [word for word in words if re.fullmatch(r"L\d+H\d+", word)] == [
        *map(str, heads_of(first)),
        *map(str, heads_of(second)),
    ]
    assert {
        "GPT2",
        "Sparse GPT2",
        f"{count_words(first)}{verdict_in_short(first)}",
        f"{count_words(second)}{verdict_in_short(second)}",
    } <= set(words)
    assert [len(maps) for maps in found.maps] == [len(panel.heads) for panel in found.panels]
    every = [text.get_text() for text in comparison_grid(found, all_heads=True).axes[0].texts]
    named = [word for word in every if re.fullmatch(r"L\d+H\d+", word)]
    in_order = [*map(str, found.order(0)), *map(str, found.order(1))]
    shut = len(in_order) - len(named)  # counted in a line instead
    assert shut < len(in_order) / 4 and (shut == 0 or any("shut" in word for word in every))
    remaining = iter(in_order)
    assert all(head in remaining for head in named)


def test_models_of_different_shape_are_not_set_side_by_side(found: TaskComparison) -> None:
    other = replace(
        found,
        panels=(found.panels[0], replace(found.panels[1], heads=found.panels[1].heads[:3])),
    )
    assert other.overlap == () and "differ in shape" in plain(task_comparison_sections([other]))


def test_one_table_has_a_row_for_each_task_and_kind_of_unit(found: TaskComparison) -> None:
    short = replace(found, models=("mini", "mini-sparse"))
    text = plain(task_comparison_sections([short, replace(short, task="other")]))
    table = text.split("\n\n")[0].split("\n")[3:]
    assert [line.split()[0] for line in table] == ["words", "words", "other", "other"]
    assert [line.split()[1] for line in table] == ["heads", "attention"] * 2
    for line, (first, second) in zip(table, found.rankings * 2, strict=True):
        counts = [ranking.count(0.9) for ranking in (first, second)]
        numbers = " ".join(f"{count} [{low}, {high}]" for count, low, high in counts)
        ratio, chance = (
            found.ratio(first.protocol.units),
            f"{random_count(first)}/{random_count(second)}",
        )
        assert " ".join(line.split()).endswith(
            f"{first.protocol.positions} {numbers} {ratio:.1f}× {chance}"
        )
    assert all(
        str(ranking.protocol) in " ".join(text.split())
        for couple in found.rankings
        for ranking in couple
    )
    assert re.match(".*n90.* computed.*mini .*mini-sparse", text)
    assert "Counts" not in text  # those of other shares are printed for a single task only


@pytest.mark.long
def test_compare_writes_a_folder_for_each_task_and_speaks_json(
    room: Path, tmp_path: Path
) -> None:
    asked = [
        "--tasks",
        f"{room / 'words.jsonl'},{room / 'more.jsonl'}",
        "--models",
        f"{room / 'dense'},{room / 'sparse'}",
    ]
    result = run("compare", *asked, "-n", 2, "--units", "heads", "--json", "-o", tmp_path)
    values = json.loads(result.stdout)
    assert [(each["task"], list(each["units"])) for each in values] == [
        ("words", ["heads"]),
        ("more", ["heads"]),
    ]
    each = ["comparison.json", "comparison.safetensors"]
    each += (f"{name}.{form}" for name in ("curve-heads", "heads") for form in PICTURES)
    each += [
        f"ranking-heads-{name}.json"
        for name in file_names([str(room / "dense"), str(room / "sparse")])
    ]
    assert names_in(tmp_path) == sorted(
        f"{task}/{name}" for task in ("more", "words") for name in each
    )
    assert result.stderr.count("wrote ") == len(names_in(tmp_path))
    for each in values:
        saved = json.loads((tmp_path / each["task"] / "comparison.json").read_text())
        assert saved["summary"] == each
        known = TaskComparison.load(tmp_path / each["task"])
        assert known.rankings[0][0] == Ranking.load(
            min((tmp_path / each["task"]).glob("ranking-heads-*dense*"))
        )
        first, second = (side["count"] for side in each["units"]["heads"]["counts"]["n90"])
        assert each["units"]["heads"]["ratios"]["n90"] == first / second


def test_a_task_that_a_model_cannot_be_asked_is_told_and_the_others_are_kept(
    room: Path, tmp_path: Path
) -> None:
    (tmp_path / "flat.jsonl").write_text(
        json.dumps({"prompt": "The large", "counterfactual": "The large hot"}) + "\n"
    )
    models = [
        "--models",
        f"{room / 'dense'},{room / 'sparse'}",
        "-n",
        2,
        "--units",
        "heads",
        "--json",
    ]
    result = run(
        "compare", "--tasks", f"{tmp_path / 'flat.jsonl'},{room / 'words.jsonl'}", *models
    )
    assert [each["task"] for each in json.loads(result.stdout)] == ["words"]
    assert "left out" in result.stderr and "flat" in result.stderr
    alone = run("compare", "--task", tmp_path / "flat.jsonl", *models)
    assert alone.exit_code == 1 and alone.stdout == "" and "no pair of flat" in alone.stderr


def test_a_misspelt_task_is_told_before_a_model_is_loaded(room: Path) -> None:
    result = run(
        "compare", "--tasks", f"{room / 'words.jsonl'},oposites", "--models", "nowhere,no model"
    )
    assert result.exit_code == 1 and "no task 'oposites'" in result.stderr


def test_a_long_name_of_a_task_is_not_broken_in_the_table(found: TaskComparison) -> None:
    text = plain(task_comparison_sections([replace(found, task="indirect_object"), found]))
    table = text.split("\n\n")[0].split("\n")
    assert sum(line.startswith("indirect_object ") for line in table) == 2
    assert all(len(line) <= 100 for line in table)


def test_several_tasks_may_be_named_one_by_one_or_in_a_list_each_is_ranked_once(
    room: Path,
) -> None:
    words, more = room / "words.jsonl", room / "more.jsonl"
    models = [
        "--models",
        f"{room / 'dense'},{room / 'sparse'}",
        "-n",
        1,
        "--units",
        "heads",
        "--json",
    ]
    text = done("compare", "--task", f"{words}, {more}", "--tasks", f" {more} ,", *models)
    assert [each["task"] for each in json.loads(text)] == ["words", "more"]


# Mistakes


def test_a_task_that_does_not_exist_is_told_in_one_line(room: Path) -> None:
    result = run("rank", "oposites", "--model", room / "dense")
    assert (
        result.exit_code == 1
        and result.stderr.count("\n") == 1
        and "opposites" in result.stderr
    )


def test_a_task_compares_two_models_and_no_more(room: Path) -> None:
    result = run("compare", "--task", "opposites", "--models", "a,b,c")
    assert result.exit_code == 1 and "two models, not 3" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--task", "opposites", "of large"], "PROMPT goes with a prompt"),
        (["--task", "opposites", "--key", "5"], "--key goes with a prompt"),
        (["--task", "opposites", "--share", "0.5"], "--share goes with a prompt"),
        (["of large", "--key", "1", "--units", "heads"], "--units goes with --task"),
        (["of large"], "Missing --key"),
        ([], "Missing PROMPT"),
        (["--task", "opposites", "-n", "0"], "-n"),
    ],
)
def test_a_call_that_mixes_a_prompt_and_a_task_is_refused(
    arguments: list[str], said: str
) -> None:
    result = run("compare", "--models", "mini,planted-sparse", *arguments)
    assert result.exit_code == 2 and result.stdout == ""
    assert said in result.stderr and result.stderr.count("\n") == 1
