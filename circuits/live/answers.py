"""What the page may ask for, and the answers.

1. Each request is one of the records below; anything else is refused in one line.
2. An answer is that of `circuits.trace` itself: the page is sent the circuit as it grows, then the whole.
3. Proposals for a token are words of the same form (a word or not, with a space in front or without) that lie
   nearest to it in the embedding. All are run, and those that change the answer are kept, the surest new
   answer first. A proposal must be read back as the same prompt with that one token changed.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Final, TypeVar

import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from circuits.errors import ModelError, PromptError
from circuits.files import check_folder, new_folder
from circuits.live.desk import Job
from circuits.models import Vocabulary, available
from circuits.models.load import load, load_vocabulary
from circuits.models.model import Model
from circuits.prompts import Prompt, to_prompt
from circuits.prompts.prompt import swapped
from circuits.show import spell, to_scene
from circuits.show.page import pack, pack_maps, pack_why
from circuits.tracing.records import Circuit, Why
from circuits.tracing.trace import trace
from circuits.tracing.trust import nearest_words
from circuits.tracing.why import why

LONGEST_PROMPT: Final = 4_000  # characters
LARGEST_BODY: Final = 64 * 2**10  # bytes
_LARGEST_POSITION: Final = 100_000
_MOST_SWAPS: Final = 256
_WORDS: Final = 6  # that are shown
_CANDIDATES: Final = 48  # that are run
_TOKENS: Final = 1_024  # in one run
_LOADED: Final = 3  # models that are kept in memory

Name = Annotated[str, Field(min_length=1, max_length=200)]
Text = Annotated[str, Field(min_length=1, max_length=LONGEST_PROMPT)]
Position = Annotated[int, Field(ge=0, le=_LARGEST_POSITION)]
Identity = Annotated[str, Field(pattern=r"^[\w-]{1,40}$")]
Token = Annotated[str, Field(max_length=200)]


class Request(BaseModel):
    """A request has its own fields only, each of its own type."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Reading(Request):
    """A text as this model reads it."""

    model: Name
    prompt: Text


class Proposing(Request):
    """Other words for the token at `key`."""

    model: Name
    prompt: Text
    key: Position


class Asking(Request):
    """Which heads carry key → query; without a swap, noise is added at the key."""

    model: Name
    prompt: Text
    key: Position
    query: Position
    group: Identity  # circuits of one group stand side by side
    swap: dict[Position, Token] = Field(default={}, max_length=_MOST_SWAPS)

    def to_call(self) -> str:
        """The Python call that gives the same answer."""
        swap = f", swap={self.swap!r}" if self.swap else ""
        ends = f"key={self.key}, query={self.query}"
        return f"circuits.trace(circuits.load({self.model!r}), {self.prompt!r}, {ends}{swap})"


class Explaining(Request):
    """Why a head of an answer looks where it looks."""

    job: Identity
    head: Annotated[str, Field(pattern=r"^L\d{1,4}H\d{1,4}$")]
    key: Position
    query: Position


class Naming(Request):
    """A question, answered or not, by the name of its job."""

    job: Identity


class Malformed(PromptError):
    """A request that is not of the form that it should be."""


T = TypeVar("T", bound=Request)


def parse(kind: type[T], body: bytes) -> T:
    """The request in a body."""
    try:
        return kind.model_validate_json(body)
    except ValidationError as why:
        first = why.errors(include_url=False, include_input=False)[0]
        field = ".".join(map(str, first["loc"])) or "the request"
        fields = ", ".join(kind.model_fields)
        raise Malformed(f"{field}: {first['msg']}; {kind.__name__.lower()} takes {fields}") from None


def next_words(model: Model, prompt: Prompt) -> list[dict[str, Any]]:
    """The likeliest next tokens and their probabilities."""
    chances = model.logits(torch.tensor([prompt.tokens]))[0, -1].float().softmax(-1)
    best = chances.topk(min(_WORDS, model.vocab_size))
    likeliest = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"word": model.spell(token), "probability": chance} for token, chance in likeliest]


def propose(model: Model, text: str, key: int) -> list[dict[str, Any]]:
    """Words for the token at `key` that change the answer: what the model says then, and how surely."""
    prompt = to_prompt(model, text)
    position = prompt.position(key)
    tokens = nearest_words(model, prompt.tokens[position], _CANDIDATES)
    if not tokens:
        return []
    chances = _predictions(model, prompt, position, [prompt.tokens[position], *tokens])
    (before, *answers), (_, *best) = chances.argmax(-1).tolist(), chances.amax(-1).tolist()
    changed = [n for n, answer in enumerate(answers) if answer != before]
    changed.sort(key=lambda n: -round(best[n], 3))
    proposals: list[dict[str, Any]] = []
    for n in changed:
        word = model.spell(tokens[n])
        if _is_one_change(model, prompt, position, word, tokens[n]):
            proposals.append({"word": word, "says": model.spell(answers[n]), "probability": best[n]})
        if len(proposals) == _WORDS:
            break
    return proposals


def _predictions(model: Model, prompt: Prompt, position: int, tokens: list[int]) -> torch.Tensor:
    """The probabilities after the prompt with each of these tokens in its place."""
    rows = torch.tensor([prompt.tokens] * len(tokens))
    rows[:, position] = torch.tensor(tokens)
    parts = rows.split(max(1, _TOKENS // len(prompt)))
    return torch.cat([model.logits(part)[:, -1].float().softmax(-1).cpu() for part in parts])


def _is_one_change(model: Model, prompt: Prompt, position: int, word: str, token: int) -> bool:
    other = model.tokenize(swapped(model, prompt.text, {position: word}))
    return other == (*prompt.tokens[:position], token, *prompt.tokens[position + 1 :])


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the circuit that answers it, and the answers of `why` about its heads so far."""

    question: Asking
    circuit: Circuit
    whys: list[Why] = field(default_factory=list)


class Shelf:
    """The models that the page may name: the one it was opened with, and all others on this machine."""

    def __init__(self, first: Model) -> None:
        self.first = first
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._vocabularies: dict[str, Vocabulary] = {first.name: first.vocabulary}

    @property
    def names(self) -> list[str]:
        here = [entry.name for entry in available() if entry.here]
        return list(dict.fromkeys([self.first.name, *here]))

    def checked(self, name: str) -> str:
        if name not in self.names:
            raise ModelError(f"no model {name!r} here; there are {', '.join(self.names)}")
        return name

    def vocabulary(self, name: str) -> Vocabulary:
        """How a model reads text; its weights are not needed for it."""
        if self.checked(name) not in self._vocabularies:
            self._vocabularies[name] = load_vocabulary(name)
        return self._vocabularies[name]

    def model(self, name: str, job: Job) -> Model:
        """The model, loaded if it is not in memory; the one that was used longest ago is dropped for it."""
        if self.checked(name) == self.first.name:
            return self.first
        if name not in self._models:
            job.progress(f"loading {name}", 0, 1)
            self._models[name] = load(name)
            while len(self._models) >= _LOADED:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name]


def read_tokens(shelf: Shelf, reading: Reading) -> dict[str, Any]:
    """The tokens of a prompt, without running the model."""
    vocabulary: Any = shelf.vocabulary(reading.model)
    words = to_prompt(vocabulary, reading.prompt).words
    return {"words": words, "spelled": [spell(word) for word in words], "bos": int(vocabulary.reads_bos)}


def say_next(shelf: Shelf, reading: Reading, job: Job) -> None:
    model = shelf.model(reading.model, job)
    words = next_words(model, to_prompt(model, reading.prompt))
    job.say("words", [{"spelled": spell(each["word"]), **each} for each in words])


def say_proposals(shelf: Shelf, proposing: Proposing, job: Job) -> None:
    words = propose(shelf.model(proposing.model, job), proposing.prompt, proposing.key)
    spelled = [{**each, "spelled": spell(each["word"]), "says": spell(each["says"])} for each in words]
    job.say("proposals", spelled)


def measure(shelf: Shelf, question: Asking, job: Job) -> Answer:
    """Trace, and send the circuit as it grows."""
    model = shelf.model(question.model, job)

    def watch(partial: Circuit) -> None:
        job.check()
        job.say("circuit", packed(Answer(question, partial), job.id) | {"unfinished": True})

    ends = {"key": question.key, "query": question.query, "swap": question.swap or None}
    circuit = trace(model, question.prompt, progress=job.progress, watch=watch, **ends)
    job.check()
    answer = Answer(question, circuit)
    job.say("circuit", packed(answer, job.id))
    return answer


def explain(shelf: Shelf, answer: Answer, question: Explaining, job: Job) -> None:
    """Why a head of an answer looks where it looks."""
    model = shelf.model(answer.question.model, job)
    key, query = question.key, question.query
    explanation = why(answer.circuit, question.head, key=key, query=query, model=model, progress=job.progress)
    answer.whys.append(explanation)
    job.say("why", pack_why(explanation))


def packed(answer: Answer, name: str) -> dict[str, Any]:
    """An answer as the page reads it."""
    scene, question = to_scene(answer.circuit), answer.question
    return pack(scene, answer.whys) | {
        "id": name,
        "group": question.group,
        "bos": int(answer.circuit.source.reads_bos),
        "asking": question.model_dump(mode="json"),
        "call": question.to_call(),
        "maps": pack_maps(scene),
    }


def save(answer: Answer, folder: Path) -> Path:
    """Write an answer as a folder that `circuits render` reads, with its explanations."""
    folder.mkdir(parents=True, exist_ok=True)
    check_folder(folder)
    question = answer.question
    own = new_folder(folder, f"{question.model}-{question.key}-{question.query}")
    answer.circuit.save(own)
    for each in answer.whys:
        name = f"why-{each.head}-{each.key}-{each.query}.json"
        (own / name).write_bytes(each.to_json().encode())
    return own
