"""What a user gets wrong is answered in one line: what was wrong, what is allowed, what to do."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from click.testing import CliRunner
from transformers import CTRLConfig, CTRLLMHeadModel, MambaConfig, MambaForCausalLM

import circuits
from circuits import Circuit, CircuitsError, Component, Edge, Model, Reader, Wire, cli
from circuits.errors import EdgeError, FileError, ModelError, PromptError
from circuits.live import explorer
from circuits.models.known import close_name
from circuits.models.load import load_vocabulary
from circuits.prompts import Noise
from circuits.sparsify import Settings
from circuits.sparsify.twin import sparsify
from circuits.zoo.language import tokenizer

TEXT = 'The opposite of "large" is "'
SWAP = {"large": "hot"}


@pytest.fixture(scope="module")
def mini() -> Model:
    return circuits.load("mini")


@pytest.fixture(scope="module")
def found(mini: Model) -> Circuit:
    return circuits.trace(mini, TEXT, key="large", swap=SWAP)


def one_line(why: pytest.ExceptionInfo[CircuitsError]) -> str:
    """The message of an error, which is one line that fits on a screen."""
    message = str(why.value)
    assert "\n" not in message and len(message) < 500
    return message


# Positions, swaps, answers, texts


@pytest.mark.parametrize("key", [5.0, True, (1, 9), [5]], ids=repr)
def test_what_is_no_position_is_refused_with_the_positions_there_are(
    mini: Model, key: Any
) -> None:
    with pytest.raises(PromptError, match="is no position; give an index") as why:
        circuits.trace(mini, TEXT, key=key, swap=SWAP)
    assert "large(5)" in one_line(why)


@pytest.mark.long
def test_an_integer_of_numpy_is_a_position(found: Circuit) -> None:
    assert found.prompt.position(np.int64(5)) == found.prompt.position(torch.tensor(5)) == 5  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("swap", "says"),
    [
        ("large=hot", r"write it as \{'large': 'hot'\}"),
        ("large", "a swap maps words to words, not 'large'"),
        (["large", "hot"], "a swap maps words to words"),
        ({"large": 5}, "maps a word or a position to a word, not 'large': 5"),
        ({5.0: "hot"}, "maps a word or a position to a word, not 5.0: 'hot'"),
    ],
    ids=repr,
)
def test_a_swap_that_is_no_mapping_is_refused(mini: Model, swap: Any, says: str) -> None:
    for verb in (circuits.circuit, circuits.to_pair):
        with pytest.raises(PromptError, match=says) as why:
            verb(mini, TEXT, swap=swap)
        one_line(why)


@pytest.mark.parametrize("answer", [4335, ["small", 7], b"small", 0.5], ids=repr)
def test_an_answer_that_is_not_text_is_refused(mini: Model, answer: Any) -> None:
    for name in ("answer", "foil"):
        with pytest.raises(PromptError, match=r"is text, not .*model.spell") as why:
            circuits.trace(mini, TEXT, key="large", swap=SWAP, **{name: answer})
        one_line(why)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ([1, 2, 3], r"text, not 1; .*decode"),
        (torch.tensor([[1, 2, 3]]), r"not a Tensor; .*decode"),
        (7, "a prompt is text, not 7"),
        (None, "a prompt is text, not None"),
    ],
    ids=["token ids", "tensor", "number", "nothing"],
)
def test_what_is_not_text_is_refused_as_a_prompt(mini: Model, text: Any, says: str) -> None:
    with pytest.raises(PromptError, match=says) as why:
        circuits.trace(mini, text, key=5, swap=SWAP)
    one_line(why)


def test_what_would_be_ignored_is_refused(mini: Model) -> None:
    ignored: tuple[dict[str, Any], ...] = (
        {"swap": SWAP},
        {"answer": "small"},
        {"metric": "kl"},
    )
    for named in ignored:
        with pytest.raises(PromptError, match="pairs of a task have their own") as why:
            circuits.wiring(mini, "opposites", **named)
        one_line(why)
    with pytest.raises(PromptError, match="key= is where noise is put") as why:
        circuits.circuit(mini, TEXT, key="large", swap=SWAP)
    one_line(why)
    with pytest.raises(PromptError, match="noise_at= is for prompts without") as why:
        circuits.patch(mini, TEXT, "mlp", noise_at=["large"], swap=SWAP)
    one_line(why)


def test_one_prompt_is_text_where_no_family_is_taken(mini: Model) -> None:
    verbs: tuple[Any, ...] = (circuits.to_pair, circuits.circuit)
    for verb in verbs:
        with pytest.raises(PromptError, match=r"a prompt( in a list)? is text") as why:
            verb(mini, (1, 2, 3), swap=SWAP)
        one_line(why)


# Keywords of another kind


SHORT = "The large is"
ASKED: dict[str, Any] = {"swap": SWAP, "metric": "logprob"}
NAN = float("nan")
Call = tuple[Any, dict[str, Any]]  # a verb, and what is right about the call
TRACE: Call = (circuits.trace, {"text": SHORT, "key": "large"} | ASKED)
STABILITY: Call = (circuits.stability, {"text": SHORT, "key": "large"} | ASKED)
CIRCUIT: Call = (circuits.circuit, {"text": "The large"} | ASKED)
PATCH: Call = (circuits.patch, {"text": SHORT, "sites": "head"} | ASKED)
PATH: Call = (circuits.path, {"text": SHORT, "paths": "L0H1 → M1"} | ASKED)
WIRING: Call = (circuits.wiring, {"text": "The large"} | ASKED)
RANK: Call = (circuits.rank, {"task": "opposites"})
TASK: Call = (circuits.to_task, {"name": "opposites"})
EDGES: Call = (circuits.edge_effects, {"task": "opposites"})
SCORES: Call = (circuits.head_scores, {})
NO_WHOLE = "is a whole number"
NO_SHARE = "a share must be above 0 and at most 1"
WRONG: list[tuple[Call, dict[str, Any], str]] = [
    (TRACE, {"seed": "x"}, NO_WHOLE),
    (TRACE, {"seed": 10**30}, NO_WHOLE),
    (TRACE, {"seed": None}, NO_WHOLE),
    (TRACE, {"share": NAN}, NO_SHARE),
    (TRACE, {"share": "0.5"}, NO_SHARE),
    (TRACE, {"stability": 2.5}, NO_WHOLE),
    (TRACE, {"roles": 5}, "roles map names to positions"),
    (TRACE, {"roles": {5: 1}}, "roles map names to positions"),
    (TRACE, {"swap": {}}, "a swap maps words to words, not {}"),
    (TRACE, {"answer": []}, "must not be empty"),
    (TRACE, {"text": [{"prompt": SHORT, "key": 1, "roles": 5}]}, "roles map names"),
    (TRACE, {"text": [SHORT, SHORT], "counterfactual": 5}, "need as many counterfactuals"),
    (TRACE, {"foil": "small"}, "metric 'logprob' has no foil: leave foil= out"),
    (STABILITY, {"n": 2.5}, NO_WHOLE),
    (STABILITY, {"share": 5.0}, NO_SHARE),
    (STABILITY, {"rephrasings": [5]}, "a prompt is text, not 5"),
    (CIRCUIT, {"least": NAN}, "least= is the smallest total of a mapping"),
    (CIRCUIT, {"groups": [1]}, "groups= maps labels to positions"),
    (CIRCUIT, {"groups": {"a": ()}}, "needs a name and at least one position"),
    (CIRCUIT, {"groups": {"a": (0, 1), "b": 1}}, "'a' and 'b' share a position"),
    (CIRCUIT, {"counterfactuals": "The hot"}, "counterfactuals= maps a token or a group"),
    (PATCH, {"sites": None}, "no sites None; there are residual"),
    (PATCH, {"positions": [5.5]}, "5.5 is no position"),
    (PATCH, {"swap": None, "noise_at": object()}, "is no position"),
    (PATH, {"paths": 5}, "5 is not a path; write senders"),
    (WIRING, {"count": 0}, "count= is a whole number, 1 or more, not 0"),
    (WIRING, {"held_out": "x"}, "held_out is a share of the pairs"),
    (WIRING, {"aim": []}, "no aim"),
    (WIRING, {"resamples": 2.5}, NO_WHOLE),
    (WIRING, {"without": 5}, "5 is not the name of a head"),
    (RANK, {"count": -1}, "count= is a whole number, 1 or more, not -1"),
    (RANK, {"units": None}, "units are heads, edges, wires"),
    (RANK, {"units": "wires", "most": 2.5}, NO_WHOLE),
    (TASK, {"count": 2.5}, NO_WHOLE),
    (TASK, {"name": None}, "a task is not None; give one of its names"),
    (EDGES, {"count": "2"}, NO_WHOLE),
    (SCORES, {"length": 4.5}, NO_WHOLE),
]


@pytest.mark.parametrize(("call", "wrong", "says"), WRONG)
def test_a_keyword_of_another_kind_is_refused(
    call: Call, wrong: dict[str, Any], says: str, models: dict[str, Model]
) -> None:
    verb, right = call
    with pytest.raises(CircuitsError, match=re.escape(says)) as why:
        verb(models["gpt2"], **(right | wrong))
    one_line(why)


def test_what_a_file_or_a_server_takes_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "The large", "key": 1}\n')
    refused: list[dict[str, Any]] = [{"seed": "x"}, {"batch": 2.5}, {"shard": "a"}]
    for wrong in refused:
        with pytest.raises(PromptError, match=NO_WHOLE) as why:
            circuits.sweep("nobody", tmp_path / "in.jsonl", tmp_path / "out", **wrong)
        one_line(why)
    with pytest.raises(PromptError, match=r"workers= is a whole number, 1 or more, not 0"):
        circuits.plan_sweep("nobody", tmp_path / "in.jsonl", workers=0)
    with pytest.raises(PromptError, match="port= is a whole number"):
        explorer._listen("80")  # type: ignore[arg-type]


@pytest.mark.parametrize("given", ["", " ", None, 5], ids=repr)
def test_what_is_no_path_is_refused_and_an_empty_one_is_not_the_current_folder(
    given: Any, found: Circuit, tmp_path: Path
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "The large", "key": 1}\n')
    takers: tuple[Any, ...] = (
        found.save,
        Circuit.load,
        circuits.open_result,
        circuits.open_sweep,
        circuits.from_eap,
        lambda folder: circuits.sweep("nobody", tmp_path / "in.jsonl", folder),
        lambda file: circuits.sweep("nobody", file, tmp_path / "out"),
    )
    for take in takers:
        with pytest.raises(FileError, match=r"a path (is text|must not be empty)") as why:
            take(given)
        one_line(why)


def test_a_name_that_is_too_long_for_a_file_is_refused() -> None:
    for take in (circuits.load, circuits.open_result):
        with pytest.raises(CircuitsError):
            take("x" * 5000)


@pytest.mark.parametrize("thing", [(1, 2), (None, None), 5], ids=repr)
def test_what_is_no_model_is_refused(thing: Any, found: Circuit) -> None:
    for take in (circuits.as_model, lambda model: circuits.trace(model, SHORT, key=1)):
        with pytest.raises(ModelError, match="expected a Model, a TransformerBridge or") as why:
            take(thing)
        one_line(why)
    with pytest.raises(ModelError, match="load takes a name of") as why:
        circuits.load(thing)
    one_line(why)
    with pytest.raises(PromptError, match="neurons are those of a circuit") as why:
        circuits.neurons(thing, "M1")
    with pytest.raises(EdgeError, match="is no MLP; name one as M3") as why:
        circuits.neurons(found, thing)
    one_line(why)


def test_another_dtype_is_not_called_another_model(found: Circuit) -> None:
    wrong = replace(found, source=replace(found.source, fingerprint="0", dtype="float64"))
    with pytest.raises(
        ModelError, match=r"measured in float64, and .* in float32; load"
    ) as why:
        circuits.verify(wrong, model=circuits.load("mini"))
    one_line(why)


def test_rows_that_are_longer_than_the_model_reads_are_refused(
    directories: dict[str, Path], tmp_path: Path
) -> None:
    settings = Settings(steps=1, batch=2, length=64)
    with pytest.raises(ModelError, match="reads 32 tokens, fewer than the 64 of a row") as why:
        sparsify(directories["gpt2"], tmp_path / "twin", settings=settings)
    one_line(why)
    assert not (tmp_path / "twin").exists()


def test_one_word_is_taken_where_several_may_be_named(models: dict[str, Model]) -> None:
    model = models["gpt2"]
    one = circuits.patch(model, SHORT, "head", positions="large", **ASKED)
    assert one == circuits.patch(model, SHORT, "head", positions=["large"], **ASKED)
    noisy = circuits.to_pair(model, SHORT, noise_at="large", metric="logprob")  # type: ignore[arg-type]
    assert noisy.counterfactual == Noise((2 if model.reads_bos else 1,))


def test_a_query_alone_does_not_mean_the_first_token_as_its_key(found: Circuit) -> None:
    with pytest.raises(PromptError, match="name the key, too: key=") as why:
        circuits.why(found, "L5H1", query=7)
    one_line(why)


# Names of heads and sides


@pytest.mark.parametrize("name", [(5, 1), 5, None, ["L5H1"]], ids=repr)
def test_a_head_that_is_not_named_is_refused(found: Circuit, name: Any) -> None:
    for verb in (found.pattern, found.without, found.mapping().effect_of):
        with pytest.raises(EdgeError, match=r"not the name of a head.*Head\(11, 7\)") as why:
            verb(name)
        one_line(why)


@pytest.mark.parametrize(
    "parse",
    [
        Edge.parse,
        Component.parse,
        lambda name: Reader.parse(name, layers=2),
        lambda name: Wire.parse(name, layers=2),
    ],
    ids=["edge", "component", "reader", "wire"],
)
def test_a_name_that_is_not_text_is_refused(parse: Any) -> None:
    with pytest.raises(EdgeError, match=r"\(5, 1\) is not .*write") as why:
        parse((5, 1))
    one_line(why)


def test_a_side_that_does_not_exist_is_refused_with_the_three_there_are(found: Circuit) -> None:
    answer = circuits.why(found, "L5H1")
    with pytest.raises(
        EdgeError, match="no side 'q' of a head; there are query, key, value"
    ) as why:
        answer.side("q")  # type: ignore[arg-type]
    one_line(why)
    assert answer.side("query") == answer.sides[0]


# Places


def test_a_token_is_named_before_the_output(found: Circuit) -> None:
    """The circuit of a prompt that ends with its own answer: its word means the token, `output` the output."""
    words = list(found.prompt.words)
    words[1] = found.output.token
    prompt = replace(found.prompt, words=tuple(words))
    renamed = replace(found, prompt=prompt)
    to_output = found.paths("large", found.output.token)
    assert to_output and found.paths("large", "output") == to_output
    assert (
        renamed.paths("large", "output") == renamed.paths("large", renamed.output) == to_output
    )
    assert renamed.paths("large", found.output.token) == renamed.paths("large", 1) == ()
    assert found.paths(5, 8) == found.paths("large", -1) != ()


def test_a_place_that_may_be_two_is_an_error_that_lists_both(found: Circuit) -> None:
    words = ("output" if word == "is" else word for word in found.prompt.words)
    renamed = replace(found, prompt=replace(found.prompt, words=tuple(words)))
    with pytest.raises(PromptError, match=r"token at 7 and the output.*circuit\.output") as why:
        renamed.paths("large", "output")
    one_line(why)
    assert renamed.prompt.position("output") == 7  # a key or a query is a token
    with pytest.raises(PromptError, match=r"several positions \(4, 6, 8\)"):
        renamed.paths('"', "output")


def test_the_output_is_read_at_the_last_position(mini: Model, found: Circuit) -> None:
    assert found.prompt.position("output") == 8
    assert circuits.trace(mini, TEXT, key="large", query="output", swap=SWAP) == found


def test_a_note_on_a_span_names_its_position(found: Circuit) -> None:
    span = replace(found.spans[0], positions=(5,), layers=(0, 1), built=((4, 5),))
    assert span.remark.startswith(f"{span.label}(5): what layer 4, 5 writes")


# Models


@pytest.mark.parametrize("name", ["", " "])
def test_a_model_without_a_name_is_refused(name: str) -> None:
    for take in (circuits.load, load_vocabulary):
        with pytest.raises(ModelError, match="must not be empty; `circuits models`") as why:
            take(name)
        one_line(why)


def test_a_file_that_holds_no_model_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "passwd"
    file.write_text("root:x:0:0:root:/root:/bin/bash\n" * 30)
    with pytest.raises(
        ModelError, match="is a file that holds no model: expected a folder"
    ) as why:
        circuits.load(file)
    one_line(why)


@pytest.mark.parametrize(
    ("name", "meant"),
    [("stories15M", "stories15m"), ("Mini", "mini"), ("mini_sparse", "mini-sparse")],
)
def test_a_name_that_is_nearly_known_is_refused_before_the_hub_is_asked(
    name: str, meant: str
) -> None:
    with pytest.raises(ModelError, match=rf"did you mean {meant}\?$") as why:
        circuits.load(name)
    one_line(why)


def test_names_of_other_models_on_the_hub_are_not_taken_for_slips() -> None:
    for name in ("distilgpt2", "gpt2-medium", "gpt2-xl", "openai-gpt", "opt-125m"):
        assert close_name(name) is None


def test_an_architecture_that_is_not_known_is_refused_in_a_short_line() -> None:
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer()), "n_embd": 32, "n_layer": 2}
    model = CTRLLMHeadModel(CTRLConfig(n_head=4, dff=64, **sizes))
    with pytest.raises(ModelError, match="the architecture CTRLLMHeadModel") as why:
        circuits.as_model((model, tokenizer()))
    assert len(one_line(why)) < 200


def test_a_model_without_attention_heads_is_told_so() -> None:
    sizes: dict[str, Any] = {"vocab_size": len(tokenizer()), "hidden_size": 32}
    model = MambaForCausalLM(MambaConfig(num_hidden_layers=2, state_size=4, **sizes))
    with pytest.raises(
        ModelError, match="no layer of MambaForCausalLM has attention heads"
    ) as why:
        circuits.as_model((model, tokenizer()))
    assert "hook" not in one_line(why)


def test_a_device_that_is_not_here_is_refused_with_those_that_are() -> None:
    if torch.cuda.is_available():
        pytest.skip("this machine has a GPU")
    with pytest.raises(
        ModelError, match="no device 'cuda' here; there are cpu and auto"
    ) as why:
        circuits.load("mini", device="cuda")
    one_line(why)


# The command line


def said(*arguments: object) -> tuple[int, str]:
    """The exit code of a command and its last line on stderr."""
    result = CliRunner().invoke(cli.main, list(map(str, arguments)))
    lines = result.stderr.strip().splitlines()
    assert "Traceback" not in result.stderr and lines
    return result.exit_code, lines[-1]


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--model", ""], "must not be empty"),
        (["--model", "stories15M"], "did you mean stories15m?"),
        (["--key", "larg"], "no token 'larg'"),
        (["--device", "cude"], "no device 'cude' here; there are cpu"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_option_is_one_line(options: list[str], says: str) -> None:
    code, line = said("trace", TEXT, "--key", "large", "--swap", "large=hot", *options)
    assert code == 1 and says in line and line.startswith("Error: ")


def test_a_sweep_in_which_every_line_has_an_error_fails(tmp_path: Path) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "The large", "key": "small"}\n' * 2)
    code, line = said("sweep", tmp_path / "in.jsonl", "-o", tmp_path / "out")
    assert code == 1 and "no line could be measured" in line


def test_tokens_takes_its_model_as_the_other_commands_do() -> None:
    new, old, unnamed = (
        CliRunner().invoke(cli.main, ["tokens", *arguments]).stdout
        for arguments in (["--model", "mini", TEXT], ["mini", TEXT], [TEXT])
    )
    assert new == old == unnamed and "5 = large" in new
    code, line = said("tokens", "--model", "mini", "The", "cat")
    assert code == 2 and "give one prompt, in quotes" in line


@pytest.mark.long
def test_a_circuit_takes_a_key_for_its_noise(mini: Model) -> None:
    code, line = said("circuit", TEXT)
    assert code == 1 and "trace and circuit add noise at a key" in line
    done = CliRunner().invoke(cli.main, ["circuit", TEXT, "--key", "large", "--json"])
    assert done.exit_code == 0
    expected = circuits.circuit(mini, TEXT, key=5)
    assert json.loads(done.stdout)["counterfactual"] == asdict(Noise((5,))) | {"positions": [5]}
    assert isinstance(expected.counterfactual, Noise) and expected.counterfactual == Noise((5,))


# Metrics


@pytest.mark.parametrize(
    ("metric", "says"),
    [
        (lambda logits: 3.0, r"returns a float tensor \(row,\).*this one returns 3.0"),
        (lambda logits: logits, r"this one returns torch.float32 of shape \(\d+, \d+\)"),
        (lambda logits: logits.argmax(-1), "this one returns torch.int64"),
        (lambda logits: logits[:, 10**6], r"fails on logits of shape .*IndexError"),
        (lambda logits: logits.detach()[:, 82], "the metric function has no gradient"),
        (5, "no metric 5; there are logit_diff"),
        ("speed", "no metric 'speed'"),
    ],
    ids=["number", "shape", "integers", "raises", "no gradient", "no function", "no name"],
)
def test_what_is_no_metric_is_refused(mini: Model, metric: Any, says: str) -> None:
    with pytest.raises(PromptError, match=says) as why:
        circuits.trace(mini, TEXT, key="large", swap=SWAP, metric=metric)
    one_line(why)


@pytest.mark.parametrize(
    ("function", "positions", "says"),
    [
        (3, "all", "a metric is a function, not 3"),
        (len, 0, "or 'all', not 0"),
        (len, "some", "or 'all', not 'some'"),
        (len, True, "or 'all', not True"),
    ],
)
def test_a_function_that_sees_no_position_is_refused(
    function: Any, positions: Any, says: str
) -> None:
    with pytest.raises(PromptError, match=says) as why:
        circuits.FunctionMetric(function, positions)
    one_line(why)


def test_a_metric_cannot_see_more_positions_than_the_prompt_has(mini: Model) -> None:
    metric = circuits.FunctionMetric(lambda logits: logits[:, 0, 0], positions=40)
    with pytest.raises(PromptError, match="reads 40 positions of 9 tokens") as why:
        circuits.trace(mini, TEXT, key="large", swap=SWAP, metric=metric)
    one_line(why)
