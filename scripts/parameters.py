"""What every parameter of a public function means, one sentence each, for docs/api.md.

1. A name means the same in every function, so it has one sentence. `OWN` has those of a function in which a name
   means something else, by `function.parameter` or `Class.method.parameter`.
2. docs/conf.py puts the sentences into the reference beside the types. A test fails if one is missing.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from functools import cache
from typing import Any

SENTENCES = {
    "against": "Another behaviour (a task, or prompts): its circuit of that size is run here, as a control.",
    "aim": (
        '"faithful" keeps what the whole model does, no more and no less; "performance" keeps the '
        "metric, however high."
    ),
    "ablation": (
        'What stands in the changed places: "swap" (the counterfactual\'s values), "restore" (clean values, in '
        'the counterfactual run), "zero", "mean" (over the reference), "knockout" (attention edges shut) or '
        '"noise".'
    ),
    "all_heads": "Draw every head, not only those that the task takes.",
    "all_spans": "Draw every span, not only those on drawn mappings and the strongest others.",
    "answer": "The right next token; by default what the model says on the clean prompt. Of several any counts.",
    "arrays": "The arrays that stand beside the file.",
    "ax": "The matplotlib axes to draw on; by default a new figure.",
    "beside": "Further values for other programs that read the file.",
    "batch": "The most pairs that are run together.",
    "bos": "Whether a beginning-of-sequence token is read first; by default as the model's files say.",
    "browser": "Open the page in the browser.",
    "budget": "Bytes that the rows of one pass may take; by default 32 MB, about a processor's cache.",
    "carriers": "The heads to frame; by default the carriers of the share.",
    "circuit": "What `trace` or `circuit` returned.",
    "circuits": "The circuits that the page shows, one or several.",
    "comparison": "What `compare(…, task=…)` returned.",
    "controls": "Measure the controls of each line too, which takes as long as tracing one by one.",
    "count": "How many pairs of the task are measured.",
    "counterfactual": "The whole counterfactual text, of as many tokens, instead of `swap`.",
    "counterfactuals": "A text for the span of one token or group, in the place of noise.",
    "device": '"cpu", or a GPU of this machine by its name; "auto" takes one if there is one.',
    "direction": (
        '"swap" puts counterfactual values into the clean run (noising), "restore" clean values into '
        "the counterfactual run (denoising)."
    ),
    "dot": "What `to_dot` returned, or Graphviz source.",
    "dtype": "The dtype to measure in; by default float32.",
    "each_position": "Patch heads at each position by itself, not at all together.",
    "edges": "Attention edges, by name or as `Edge`.",
    "effects": "The effect of every head, (layer, head), or a mapping that has them.",
    "end": "Where the path ends.",
    "equal": "The value that each of these columns must have.",
    "every_key": "Take the key and value sides of all keys of the query, not of one.",
    "executor": "Where the work runs: `Local`, `OnRay` or `OnSlurm`; by default in this process.",
    "family": "Pairs whose mean message stands in for the counterfactual's.",
    "figure": "The matplotlib figure to draw on; by default a new one.",
    "first": "The first model, or the first circuit.",
    "foil": "The wrong next token; by default what the model says on the counterfactual.",
    "folder": "The folder to write into or to read from.",
    "formats": 'The formats to write, of "svg", "png" and "pdf".',
    "found": "The result to draw.",
    "gate": "Run with the gate or without; by default as the model's files say.",
    "given": "Pairs that were prepared before.",
    "groups": 'Names for positions that share a span: `{"brackets": (4, 6)}`.',
    "head": "A head, by name (`L5H1`) or as `Head`.",
    "heads": "Heads, by name or as `Head`.",
    "held_out": "The share of a family's pairs that the search does not see.",
    "hooks": "Names of hook points, each with a function of the activation.",
    "id": "The id that the line had in the file.",
    "key": "The position that is read: an index, an index from the end, or a token.",
    "layer": "A layer, counted from 0.",
    "layers": "How many layers the model has, which is where the logits stand.",
    "least": "The smallest total of a mapping that is listed.",
    "left": "The circuit on the left.",
    "length": "How many tokens there are.",
    "lens": "What `logit_lens` returned.",
    "maps": "Attention maps, (head, query, key).",
    "metric": '"logit_diff", "logprob", "kl", a function of the logits, `FunctionMetric` or `ProbeMetric`.',
    "min_effect": "The smallest effect, as a share of the gap.",
    "mlp": "An MLP at a position, such as `M3@9`.",
    "mlps": (
        '"computed" lets MLPs follow what reaches them; "held" keeps what they write in the clean run, '
        '"swapped" what they write in the counterfactual run.'
    ),
    "model": "A `Model`, a TransformerBridge, or `(hf_model, tokenizer)`.",
    "most": "The most that are listed.",
    "n": "How many other counterfactuals are tried.",
    "name": "The name to read.",
    "node": "A node by its name: `L4H4`, `L4H4@13`, `M3@9`, `embed@5`, `logits`.",
    "noise_at": "Tokens whose embedding gets noise, as the counterfactual.",
    "note": "A line below the panel.",
    "number": "The number of the worker, which takes the GPU of that number if there are several.",
    "offload": "Keep what runs computed in the memory of the CPU, not on the GPU.",
    "options": "Passed on to the drawing.",
    "order": '"search", "effect", "eap", "eap-ig", or a file of EAP-IG or MIB with an order of its own.',
    "pairs": "Pairs of equal length.",
    "panels": "The panels to draw, as `to_panel` makes them.",
    "parallel": "Whether attention and MLP of a block read the same stream.",
    "parts": "Nodes or wires, by name.",
    "path": "The file or folder.",
    "paths": "Paths by name: `L0H1, M0 → M1, L2H3.query`.",
    "per_row": "How many maps stand in a row.",
    "port": "The port on 127.0.0.1; 0 takes a free one.",
    "position": "An index into the tokens.",
    "positions": "Positions, by index or token; by default all.",
    "progress": (
        "Is called with what is measured now, how much of it is done, and how much there is; what it "
        "raises ends the work."
    ),
    "prompts": "A jsonl file with one question on each line.",
    "query": "The position that reads: an index, an index from the end, or a token.",
    "question": "What is asked of each pair, as in `trace`.",
    "rankings": "What `rank` returned, one or several.",
    "query_up": "Draw queries upwards, not downwards as published.",
    "read": "What `logit_attribution` returned.",
    "receiver": "The label of the receiver.",
    "rephrasings": "Other prompts that ask the same, beside other words.",
    "resamples": "On how many bootstrap resamples of the pairs the search is repeated.",
    "result": "The result to draw.",
    "right": "The circuit on the right, if there are two.",
    "roles": 'Names for positions: `{"S2": 9, "END": -1}`.',
    "reference": "Texts over whose runs a mean is taken; by default the prompts that are measured.",
    "runs": "What `prepare` returned.",
    "saved": "A result, or the file or folder that holds one.",
    "scores": "What `head_scores` returned.",
    "second": "The second model or circuit.",
    "seed": "Decides every random draw: noise, random heads, pairs of a task.",
    "sender": "The label of the sender.",
    "sequences": "How many random sequences are run.",
    "share": "The share that carriers, or a circuit, must reach.",
    "settings": "Keywords of `sweep`.",
    "shard": "How many lines are measured and written together.",
    "side": "A side of a head, or the number of a model.",
    "site": "The site that is changed.",
    "sites": "What is patched: residual, attention, mlp, head, query, key, value or pattern.",
    "size": "How many random units.",
    "smallest_gap": "Pairs with a smaller gap are refused.",
    "stability": "Under how many other counterfactuals the mapping is measured, too.",
    "start": "Where the path begins.",
    "stored": "The values of a file.",
    "swap": 'The counterfactual by words: `{"large": "hot"}`, or by positions: `{5: "hot"}`.',
    "task": "A task by its name, its jsonl file, or a `Task`.",
    "test": "A function of the table that says, row by row, which lines are wanted.",
    "text": "The prompt.",
    "theme": 'The ground to be drawn for: "light", or "dark" for light letters on a transparent ground.',
    "title": "The title of the picture.",
    "titles": "Titles of the panels.",
    "to": "A format, or the file to write.",
    "token": "The id of a token.",
    "tokens": "Ids of tokens.",
    "units": '"heads", "edges" (attention edges) or "wires" (component edges).',
    "value": "The name of a column of the result's table.",
    "wanted": "A function that says whether a change stays.",
    "wide": "Whether the table is the map itself, which must have two axes.",
    "width": "How many dimensions the residual stream has.",
    "watch": "Is called with the circuit as far as it is measured; what it raises ends the work.",
    "why": "Answers of `why` that the page shows.",
    "wire": "A wire, by name or as `Wire`.",
    "without": "Heads that are swapped to the counterfactual first.",
    "work": "A function of the model and one part.",
    "workers": "How many processes work at once.",
    "writer": "The component that writes.",
    "x": "A `Model`, a TransformerBridge, or `(hf_model, tokenizer)`.",
}
OF_A_RESULT = "The model; by default the one that the result names is loaded."
SHARE_OF_TASK = "The share of the task's effect that they must explain."
OWN = {
    "Circuit.without.model": OF_A_RESULT,
    "HeadScores.score.name": "induction, previous token, duplicate token, copying or successor.",
    "Local.map.parts": "What the work is done on, part by part.",
    "LogitAttribution.part.name": "A component, such as `L5H1`, `M3` or `embed`, or `biases`.",
    "Model.has_hook.name": "The name of a hook point, such as `blocks.0.attn.hook_z`.",
    "OnRay.map.parts": "What the work is done on, part by part.",
    "OnSlurm.map.parts": "What the work is done on, part by part.",
    "PanelFigures.head_array.value": "The name of a score.",
    "Prompt.position.name": "An index, an index from the end, the text of a token, or `output`.",
    "Prompt.positions_of.text": "The text of a token.",
    "Ranking.count.share": SHARE_OF_TASK,
    "Ranking.needed.share": SHARE_OF_TASK,
    "Row.of_given.first": "The number of the value that stands at the first position.",
    "Row.of_given.head": "The head at whose output the values stand, if the site is one of heads.",
    "Row.of_given.positions": "Indices into the tokens.",
    "Row.of_heads.positions": "Indices into the tokens.",
    "Row.of_residual.positions": "Indices into the tokens.",
    "Row.of_writes.positions": "Indices into the tokens.",
    "Sweep.circuit.model": OF_A_RESULT,
    "Sweep.circuits.model": OF_A_RESULT,
    "Sweep.circuits.most": "How many lines are measured again, at most.",
    "TaskComparison.order.side": "0 for the first model, 1 for the second.",
    "TaskComparison.ratio.share": SHARE_OF_TASK,
    "Why.side.name": "query, key or value.",
    "Wiring.at.model": OF_A_RESULT,
    "Wiring.keeps.given": "A task, prompts or pairs, as `wiring` takes them.",
    "Wiring.keeps.model": OF_A_RESULT,
    "Wiring.place.name": "The name of a place (a role), or an index or a token of a single prompt.",
    "Wiring.without.model": OF_A_RESULT,
    "circuit.key": "The position that gets noise, if neither `swap` nor `counterfactual` is given.",
    "explore.folder": "Where answers are saved that you keep.",
    "keep_curves.share": "The share at which the number of units is marked.",
    "logit_attribution.text": "A prompt or a pair, or several of them.",
    "logit_lens.text": "A prompt or a pair.",
    "measure_panel.task": "A `Task`, or prompts.",
    "neurons.model": OF_A_RESULT,
    "plan_sweep.workers": "A number of cores or GPUs whose time is printed, too.",
    "save_figure.figure": "The figure to save, or axes that stand on it.",
    "to_page.title": "The title of the page.",
    "to_panel.title": "The title of the panel.",
    "trace_family.pairs": "Pairs, of one length or of several.",
    "verify.model": OF_A_RESULT,
    "why.head": "A head (`L5H1`), or an MLP at a position (`M3@9`), of which the neurons are measured.",
    "why.model": OF_A_RESULT,
    "circuit.text": "A prompt, or a family: a list of prompts, pairs or dicts, a table or a jsonl file.",
    "Why.head_array.value": "The side whose writers are shown: query, key or value.",
    "classify.maps": "The head's attention maps, each (query, key).",
    "compare.most": "Component edges that are measured exactly.",
    "draw.to": 'A format ("svg", "png", "pdf") to get the bytes, or the path to write.',
    "head_scores.length": "Tokens of each random sequence before it is repeated.",
    "load.name": "A name of `circuits models`, a path, or a hub id.",
    "patch.text": "A prompt, a pair, `(text, counterfactual)`, or a family of them.",
    "path.text": "A prompt, a pair, `(text, counterfactual)`, or a family of them.",
    "prepare.path": '"fast", "plain", or None to take the fast path where the model\'s layout is known.',
    "rank.most": "Component edges that are measured exactly.",
    "save_figure.name": "The name of the files, without an ending.",
    "scan.most": "The most edges that are returned.",
    "sweep.folder": "Where the results go, or are, if a sweep is continued.",
    "to_dot.maps": "Draw the attention maps of the carriers as nodes.",
    "to_task.name": "A name of `circuits.tasks.TASKS`, or a jsonl file.",
    "stability.text": "A prompt, or a family: a list, a table or a jsonl file.",
    "trace.text": "A prompt, or a family: a list of prompts, pairs or dicts, a table or a jsonl file.",
    "why.key": "The position that the head reads; by default the key of the mapping that is shown first.",
    "why.query": "The position at which it reads; by default that mapping's query.",
    "wiring.positions": "Whether wires are told apart by position; by default only those of a single prompt are.",
    "wiring.text": "A prompt, a list of prompts or pairs, a table, or a task by its name or jsonl file.",
    "Wiring.at.edges": "The most wires that the circuit may have, in the place of a share.",
}


def sentence_for(owner: str, parameter: str) -> str | None:
    """The sentence on a parameter of a function (`rank`) or a method (`Circuit.edges`)."""
    return OWN.get(f"{owner}.{parameter}", SENTENCES.get(parameter))


def functions_of(package: Any) -> Iterator[tuple[str, Any]]:
    """Every public function of a package, and every public method of its classes, by name."""
    for name in package.__all__:
        offered = getattr(package, name)
        if inspect.isfunction(offered):
            yield name, offered
        elif isinstance(offered, type):
            for method, value in vars(offered).items():
                function = getattr(value, "__func__", value)
                if not method.startswith("_") and inspect.isfunction(function):
                    yield f"{name}.{method}", function


def parameters_of(function: Any) -> list[str]:
    """The names of its parameters, without `self`."""
    names = inspect.signature(function).parameters
    return [name for name in names if name not in ("self", "cls")]


@cache
def field_comments(kind: type) -> dict[str, str]:
    """The comment of each field of a record, behind it or above it in the source."""
    comments: dict[str, str] = {}
    above = ""
    for line in inspect.getsource(kind).splitlines():
        stripped = line.strip()
        field = re.match(r"    (\w+): [^#]*(?:#\s*(.*))?$", line)
        if field and (field[2] or above):
            comments.setdefault(field[1], " ".join(filter(None, [above, field[2]])))
        above = f"{above} {stripped[1:].strip()}".strip() if stripped.startswith("#") else ""
    return comments
