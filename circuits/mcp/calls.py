"""The arguments of each tool: a call has these fields only, each of its type; anything else is refused.

The descriptions are what an agent reads before it calls.
"""

from __future__ import annotations

import json
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuits.errors import PromptError
from circuits.tasks.names import TASKS

_LONGEST: Final = 4_000  # characters of a text
Name = Annotated[str, Field(min_length=1, max_length=300)]
Text = Annotated[str, Field(min_length=1, max_length=_LONGEST)]
Position = int | Annotated[str, Field(min_length=1, max_length=200)]

_MODEL: Final = "A name that load lists (mini ships with the package), a hub id, or a path inside the folder."
_TASK: Final = f"a task by name ({', '.join(TASKS)}), or a jsonl file of the folder"
_RESULT: Final = "The name of a saved result, as the field result of an earlier answer gave it."


class ToolCall(BaseModel):
    """The arguments of one tool."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)
    ABOUT: ClassVar[str]


class OnModel(ToolCall):
    """A call that names a model."""

    model: Name = Field("mini", description=_MODEL)


class OnPrompt(OnModel):
    """A call that names a prompt, what it is compared with, and what is measured."""

    prompt: Text = Field(description="The text that the model completes.")
    swap: dict[str, Text] = Field(
        default={},
        max_length=64,
        description='The counterfactual: {"large": "hot"} puts another word of as many tokens in its place, '
        '{"5": "hot"} at one position.',
    )
    counterfactual: Text | None = Field(
        None, description="The whole counterfactual, of as many tokens, instead of swap."
    )
    answer: Text | None = Field(
        None, description="The right next token; by default what the model says."
    )
    foil: Text | None = Field(
        None,
        description="The wrong next token; by default what the model says on the counterfactual.",
    )
    seed: int = Field(0, description="Decides the noise and the random heads.")

    def question(self) -> dict[str, Any]:
        """The keywords that all functions on a prompt share."""
        values = self.model_dump(include={"counterfactual", "answer", "foil", "seed"})
        return {"swap": self.swap or None, **values}


class LoadCall(OnModel):
    """Load a model."""

    ABOUT = (
        "Load a model and say how large it is. Its hooks are checked by an edit that must change the "
        "logits. Without arguments it loads mini; the answer lists the models known by name."
    )


class TokensCall(OnModel):
    """The tokens of a prompt."""

    ABOUT = (
        "The tokens of a prompt with their positions, which other tools name as key and query. "
        "The model is not run."
    )
    prompt: Text = Field(description="The text to read.")


class TraceCall(OnPrompt):
    """Trace one mapping."""

    ABOUT = (
        "Which attention heads carry the mapping from a key position to a query position: the total, "
        "the carriers (heads that hold a share of it together), and controls. Exact activation patching."
    )
    key: Position = Field(description="The position that is read: its index or its token.")
    query: Position = Field(-1, description="The position that reads; -1 is the last.")
    share: float = Field(
        0.8, gt=0, le=1, description="The share of the total that the carriers must hold."
    )
    stability: int = Field(
        0, ge=0, le=64, description="Repeat the trace under this many other counterfactuals."
    )


class CircuitCall(OnPrompt):
    """Find every mapping of a prompt."""

    ABOUT = (
        "Every mapping between positions of one prompt that carries something, with its carriers, and the "
        "layers in which each token's information is held and built."
    )
    share: float = Field(
        0.8, gt=0, le=1, description="The share of each total that its carriers must hold."
    )


class WhyCall(ToolCall):
    """Explain one head."""

    ABOUT = (
        "Why a head looks from its query at its key: the effects of its query, key and value side, and which "
        "embeddings, heads and MLPs wrote what each side reads. It takes the result of trace or circuit."
    )
    result: Name = Field(description=_RESULT)
    head: Name = Field(description="The head, such as L5H1.")
    key: Position | None = Field(None, description="By default the key of the trace.")
    query: Position | None = Field(None, description="By default the query of the trace.")


class WiringCall(OnModel):
    """Find the smallest circuit."""

    ABOUT = (
        "The smallest circuit of embeddings, heads and MLPs that was found to keep a share of the behaviour "
        "with every other wire swapped, on a prompt or on a task; pairs of a task are partly held out. "
        "It takes seconds to minutes; it reports progress and can be cancelled."
    )
    prompt: Text = Field(description=f"A prompt; or {_TASK}.")
    swap: dict[str, Text] = Field(
        default={}, max_length=64, description="As in trace; not for a task."
    )
    counterfactual: Text | None = Field(
        None, description="The whole counterfactual, instead of swap."
    )
    share: float = Field(
        0.8, gt=0, le=1, description="The share of the gap that the circuit must keep."
    )
    count: int = Field(16, ge=1, le=256, description="How many pairs of a task are used.")
    seed: int = Field(0, description="Decides the pairs and the random circuits.")


class PatchCall(OnPrompt):
    """Patch every place of one kind."""

    ABOUT = (
        "The effect of patching one kind of site at every place, one at a time: a map of layer × position "
        "or layer × head."
    )
    sites: Literal[
        "residual", "attention", "mlp", "head", "query", "key", "value", "pattern"
    ] = Field("head", description="What is patched.")
    ablation: Literal["swap", "restore", "zero"] = Field(
        "swap",
        description="swap puts counterfactual values into the clean run (noising), restore clean values into "
        "the counterfactual run (denoising), zero puts zeros into the clean run.",
    )


class RankCall(OnModel):
    """Rank the heads of a task."""

    ABOUT = (
        "The heads of a task in order of their effects, and how many of them explain 80, 90 and 95% of it "
        "while all others are swapped, beside as many random heads."
    )
    task: Name = Field("opposites", description=f"Which task: {_TASK}.")
    count: int = Field(16, ge=1, le=256, description="How many pairs are measured.")
    seed: int = Field(0, description="Decides the pairs and the random orders.")


class VerifyCall(ToolCall):
    """Measure a saved result again."""

    ABOUT = (
        "Measure a saved circuit, explanation of a head or wiring again, on its own model and with its own "
        "settings, and compare every number."
    )
    result: Name = Field(description=_RESULT)


class RenderCall(ToolCall):
    """Draw a saved result."""

    ABOUT = "Draw a saved result. The answer holds the figure as a PNG, which is saved, too."
    result: Name = Field(description=_RESULT)


CALLS: Final[dict[str, type[ToolCall]]] = {
    "load": LoadCall,
    "tokens": TokensCall,
    "trace": TraceCall,
    "circuit": CircuitCall,
    "why": WhyCall,
    "wiring": WiringCall,
    "patch": PatchCall,
    "rank": RankCall,
    "verify": VerifyCall,
    "render": RenderCall,
}


def read_call(name: str, arguments: dict[str, Any]) -> ToolCall:
    """The arguments of a tool as its record; an error of one line if they are not that."""
    if name not in CALLS:
        raise PromptError(f"no tool {name!r}; there are {', '.join(CALLS)}")
    kind = CALLS[name]
    try:
        return kind.model_validate_json(json.dumps(arguments))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"])) or "the arguments"
        takes = f"{name} takes {', '.join(kind.model_fields)}"
        raise PromptError(f"{where}: {first['msg']}; {takes}") from None
