"""What pictures show is decided once: the graph carries it, and diagram, figure and page agree with it."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import networkx as nx
import pytest
from matplotlib.figure import Figure
from render_samples import CARRIERS, SPANS, deep, dense, empty, mapping_of, planted, span_of

from circuits.components import Head
from circuits.errors import FileError, PromptError
from circuits.show.diagram import circuit_figure
from circuits.show.dot import to_dot
from circuits.show.export import export
from circuits.show.figure import mapping_figure
from circuits.show.graph import OUTPUT, to_graph
from circuits.show.grids import to_panel
from circuits.show.heatmaps import effect_map
from circuits.show.layout import lay_out
from circuits.show.page import to_page
from circuits.show.results import figure_of
from circuits.show.scene import to_scene
from circuits.tasks.compare import Moved, compare
from circuits.tracing.records import Circuit


def at_share(circuit: Circuit, share: float) -> Circuit:
    """The circuit as if it had been measured at another share."""
    first, *others = circuit.mappings
    assert first.controls is not None
    measured = replace(first, controls=replace(first.controls, share=share))
    return replace(circuit, mappings=(measured, *others))


Spans = dict[tuple[int, ...], str]  # positions and what is said of their layers


def spans_in_graph(circuit: Circuit) -> Spans:
    nodes = to_graph(circuit).nodes.values()
    return {
        tuple(node["positions"]): node["lines"][1] for node in nodes if node["kind"] == "span"
    }


def spans_in_dot(circuit: Circuit) -> Spans:
    found = re.findall(
        r'^\t"?([\d+]+)"? \[label=.*?>(layer [\d-]+|no layer)<', to_dot(circuit).source, re.M
    )
    return {tuple(map(int, name.split("+"))): layers for name, layers in found}


def spans_in_figure(circuit: Circuit) -> Spans:
    """A box for each position, with its layers; positions that share a span share a box's layers."""
    spans = {}
    for patch in circuit_figure(circuit).axes[0].patches:
        box = re.fullmatch(r"span (\d+) layer (\d+)-(\d+)", patch.get_gid() or "")
        if box:
            position, first, last = box.groups()
            spans[int(position),] = (
                f"layer {first}-{last}" if first != last else f"layer {first}"
            )
    return spans


def spans_in_page(circuit: Circuit) -> Spans:
    page = json.loads(to_page(circuit).split('id="data">')[1].split("</script>")[0])
    return {tuple(span["positions"]): span["lines"][1] for span in page["circuits"][0]["spans"]}


@pytest.mark.parametrize("circuit", [planted(), deep()], ids=["planted", "deep"])
def test_positions_and_spans_are_the_same_in_graph_diagram_figure_and_page(
    circuit: Circuit,
) -> None:
    spans = spans_in_graph(circuit)
    assert len(spans) == 3
    assert spans_in_dot(circuit) == spans_in_page(circuit) == spans
    each = {
        (position,): layers for positions, layers in spans.items() for position in positions
    }
    assert spans_in_figure(circuit) == each


def test_mappings_run_between_the_same_positions_in_graph_figure_and_page() -> None:
    circuit = deep()
    layout = lay_out(to_scene(circuit), 480)
    centres = dict(zip(layout.columns.centres, layout.columns.positions, strict=True))
    drawn = {(centres[item.start], centres[item.end]) for item in layout.lanes}
    page = json.loads(to_page(circuit).split('id="data">')[1].split("</script>")[0])
    listed = {(mapping["key"], mapping["query"]) for mapping in page["circuits"][0]["mappings"]}
    arrows = {
        (data["from_position"], data["to_position"]) for *_, data in to_scene(circuit).arrows
    }
    assert drawn == listed == arrows
    assert {item.layer for item in layout.lanes if item.front} == {22, 29}


def test_every_picture_is_drawn_from_the_graph() -> None:
    scene = to_scene(planted())
    assert (
        scene.graph.graph["focus"] == [5, 8]
        and scene.ends == ("5", "8")
        and scene.cell == (5, 8)
    )
    assert scene.carriers == tuple(map(str, CARRIERS))
    assert [(data["from_position"], data["to_position"]) for *_, data in scene.arrows] == [
        (5, 8),
        (2, 8),
    ]
    assert scene.graph.nodes[OUTPUT]["lines"] == ["small", "layer 12", "p = 0.93"]
    assert [node["lines"] for _, node in scene.boxes] == [
        ["opposite", "layer 0-1"],
        ["large", "layer 0-3"],
        ["brackets", "layer 0-10"],
    ]


def test_the_share_of_every_picture_is_that_of_the_circuit_unless_another_is_given() -> None:
    half = at_share(planted(), 0.5)
    assert to_graph(half).graph["share"] == half.share == 0.5
    assert to_graph(half, share=0.3).graph["share"] == 0.3
    said = {text.get_text() for text in mapping_figure(half).axes[0].texts}
    assert "Modulated at 61% by" in said and "All 3 heads map key 5 to query 8" in said
    dots = to_dot(half).source, to_dot(half, share=0.8).source
    assert "Modulated at 61% by" in dots[0] and "Modulated at 80% by" in dots[1]
    assert to_panel(half).heads == CARRIERS[:3]
    # A frame has a second line inside, so a cell may have several patches.
    framed = {tuple(patch.get_center()) for patch in effect_map(half).axes[0].patches}  # type: ignore[attr-defined]
    assert len(framed) == 3
    page = to_page(half)
    assert '"share":0.5' in page and 'value="50"' in page and ">50%</output>" in page
    assert '"share":0.8' in to_page(half, share=0.8) and '"share":0.5' in to_page(
        [half, planted()]
    )


def test_an_edge_has_the_effect_of_each_head_alone_and_the_joint_effect_up_to_it() -> None:
    graph = to_graph(planted())
    edge = graph.edges["5", "8", "5→8"]
    assert edge["heads"] == pytest.approx(
        {"L11H7": 0.3, "L10H1": 0.18, "L9H7": 0.13, "L9H1": 0.1, "L8H6": 0.09}
    )
    assert edge["joint"] == pytest.approx(
        {"L11H7": 0.3, "L10H1": 0.48, "L9H7": 0.61, "L9H1": 0.71, "L8H6": 0.8}
    )
    read = nx.node_link_graph(json.loads(export(planted(), "node-link")), edges="links")
    assert read.edges["5", "8", "5→8"]["heads"] == edge["heads"]
    for _, _, stored in nx.parse_graphml(export(planted(), "graphml")).edges(data=True):
        if stored.get("from_position") == 5:
            assert (
                json.loads(stored["heads"]) == edge["heads"]
                and json.loads(stored["joint"]) == edge["joint"]
            )


def test_a_position_stands_in_the_span_with_the_fewest_positions() -> None:
    wide = replace(planted(), spans=(span_of("all", (4, 5, 6), (0, 11)), *SPANS))
    assert to_scene(wide).ends == ("5", "8")
    assert wide.paths("large", "small") == (("large", '"', "small"),)


def test_the_ends_of_the_mapping_in_front_have_boxes_of_their_own_in_every_picture() -> None:
    inside = mapping_of(4, 6, [(Head(3, 4), 0.4)], total=0.4)
    circuit = replace(planted(), mappings=(inside,), focus=(4, 6))
    scene = to_scene(circuit)
    assert scene.ends == ("4+6", "6") and scene.graph.nodes["6"]["lines"] == ['"', "pos 6"]
    said = str([text.get_text() for text in mapping_figure(circuit).axes[0].texts])
    assert (
        "pos 6" in to_dot(circuit).source and "Modulated at 100% by" in said and "L3H4" in said
    )
    bare = to_dot(replace(planted(), spans=())).source
    assert "pos 5" in bare and "pos 8" not in bare  # the output stands for the last token


def test_a_mapping_that_a_position_has_with_itself_is_in_front_and_has_no_arrow() -> None:
    own = mapping_of(5, 5, [(Head(3, 4), 0.4)], total=0.4)
    scene = to_scene(replace(planted(), mappings=(own, *planted().mappings), focus=(5, 5)))
    assert scene.cell == (5, 5) and scene.carriers == ("L3H4",) and scene.front is not None
    assert scene.front["arrow"] == -1 and [data["arrow"] for *_, data in scene.arrows] == [1, 2]


@pytest.mark.parametrize(
    ("count", "finding"),
    [
        (0, "None of 144 heads carries"),
        (1, "1 of 144 heads carries 20% of"),
        (2, "2 of 144 heads carry 40% of"),
    ],
)
def test_the_finding_counts_the_carriers(count: int, finding: str) -> None:
    path = [(head, 0.2 * number) for number, head in enumerate(CARRIERS[:count], 1)]
    circuit = replace(planted(), mappings=(mapping_of(5, 8, path, total=1.0, controls=False),))
    assert to_scene(circuit).finding == f'{finding} large(5) → "(8)'
    assert to_scene(empty()).finding == "No mapping of this prompt carries anything"


def test_a_head_that_attends_only_in_the_counterfactual_is_counted_apart() -> None:
    main, *others = planted().mappings
    heads = []
    for each in main.heads:
        opens = each.head == CARRIERS[2]
        heads.append(replace(each, weight=0.0, counterfactual_weight=0.99) if opens else each)
    circuit = replace(planted(), mappings=(replace(main, heads=tuple(heads)), *others))
    scene = to_scene(circuit)
    assert scene.opening == (str(CARRIERS[2]),)
    caption = "4 heads map key 5 to query 8, 1 only in the counterfactual"
    assert scene.caption == caption
    said = " ".join(text.get_text() for text in mapping_figure(circuit).axes[0].texts)
    assert caption in said and "attends only in the counterfactual" in said
    assert to_scene(planted()).opening == ()


@pytest.mark.parametrize(
    "circuit", [planted(), dense(), deep()], ids=["planted", "dense", "deep"]
)
def test_a_head_is_spelled_in_one_way(circuit: Circuit) -> None:
    figure = " ".join(text.get_text() for text in mapping_figure(circuit).axes[0].texts)
    for said in (
        figure,
        to_dot(circuit).source,
        str(circuit),
        to_page(circuit),
        export(circuit, "graphml"),
    ):
        assert not re.search(r"L\d+-H\d+", said)


def test_every_result_has_a_figure_a_page_a_diagram_and_files_by_their_ending(tmp_path) -> None:
    circuit = planted()
    mapping, comparison = circuit.mapping(), compare(circuit, circuit)
    moved = replace(comparison, moved=(Moved(CARRIERS[0], 0.1, 0.4),))
    for result in (circuit, mapping, comparison, moved):
        assert isinstance(result.figure(), Figure) and "<svg" in result._repr_html_()
        assert "html" in result.page()[:40] and result.to_dot().source.startswith(
            "// keyquery-circuits"
        )
        for ending in (".svg", ".html", ".dot"):
            assert result.save(tmp_path / f"picture{ending}").suffix == ending
    with pytest.raises(FileError, match="endings"):
        mapping.save(tmp_path / "picture.gif")
    with pytest.raises(PromptError, match="kind"):
        circuit.figure(kind="pie")
    with pytest.raises(PromptError, match="no picture of a Span"):
        figure_of(circuit.spans[0])
    axes = Figure().add_subplot()
    assert mapping.figure(ax=axes) is axes.get_figure() and len(axes.lines) > 3
    assert "<text" in (tmp_path / "picture.svg").read_text()  # text stays text
