"""What is measured for the page, with the models that it may name.

An answer is that of `circuits.trace` itself: the page is shown its circuit as far as it is measured, and the
whole of it in the end.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from circuits import zoo
from circuits.errors import ModelError
from circuits.files import check_folder, new_folder
from circuits.live.desk import Job
from circuits.live.requests import Asking, Explaining, Proposing, Reading
from circuits.live.vocabulary import next_words, propose
from circuits.models import Vocabulary
from circuits.models.load import load
from circuits.models.model import Model
from circuits.models.tokens import load_vocabulary
from circuits.prompts import to_prompt
from circuits.show.page import pack, pack_maps, pack_why
from circuits.show.scene import spell, to_scene
from circuits.tracing.records import Circuit
from circuits.tracing.trace import trace
from circuits.tracing.why import why
from circuits.tracing.why_record import Why

LOADED: Final = 3  # models that are kept in memory


@dataclass(frozen=True, slots=True)
class Answer:
    """A circuit, the question that it answers, and what was asked about its heads since."""

    asked: Asking
    circuit: Circuit
    whys: list[Why] = field(default_factory=list)


class Shelf:
    """The models that the page may name: the one it was opened with, and those of the table that are here."""

    def __init__(self, first: Model) -> None:
        self.first = first
        self._models: OrderedDict[str, Model] = OrderedDict()
        self._vocabularies: dict[str, Vocabulary] = {first.name: first.vocabulary}

    @property
    def names(self) -> list[str]:
        here = [entry.name for entry in zoo.available() if entry.here]
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
        """The model, loaded if it is not at hand; the one used least is let go."""
        if self.checked(name) == self.first.name:
            return self.first
        if name not in self._models:
            job.progress(f"loading {name}", 0, 1)
            self._models[name] = load(name)
            while len(self._models) >= LOADED:
                self._models.popitem(last=False)
        self._models.move_to_end(name)
        return self._models[name]


def read_tokens(shelf: Shelf, asked: Reading) -> dict[str, Any]:
    """The tokens of a prompt, without running the model."""
    vocabulary: Any = shelf.vocabulary(asked.model)
    words = to_prompt(vocabulary, asked.prompt).words
    return {"words": words, "spelled": [spell(word) for word in words], "bos": int(vocabulary.reads_bos)}


def say_next(shelf: Shelf, asked: Reading, job: Job) -> None:
    model = shelf.model(asked.model, job)
    words = next_words(model, to_prompt(model, asked.prompt))
    job.say("words", [{"spelled": spell(each["word"]), **each} for each in words])


def say_proposals(shelf: Shelf, asked: Proposing, job: Job) -> None:
    words = propose(shelf.model(asked.model, job), asked.prompt, asked.key)
    job.say(
        "proposals", [{**each, "spelled": spell(each["word"]), "says": spell(each["says"])} for each in words]
    )


def measure(shelf: Shelf, asked: Asking, job: Job) -> Answer:
    """The trace, told as it grows."""
    model = shelf.model(asked.model, job)

    def watch(partial: Circuit) -> None:
        job.check()
        job.say("circuit", packed(Answer(asked, partial), job.id) | {"unfinished": True})

    ends = {"key": asked.key, "query": asked.query, "swap": asked.swap or None}
    found = trace(model, asked.prompt, progress=job.progress, watch=watch, **ends)
    job.check()
    answer = Answer(asked, found)
    job.say("circuit", packed(answer, job.id))
    return answer


def explain(shelf: Shelf, answer: Answer, asked: Explaining, job: Job) -> None:
    """Why a head of an answer looks where it looks."""
    model = shelf.model(answer.asked.model, job)
    told = why(
        answer.circuit, asked.head, key=asked.key, query=asked.query, model=model, progress=job.progress
    )
    answer.whys.append(told)
    job.say("why", pack_why(told))


def packed(answer: Answer, name: str) -> dict[str, Any]:
    """An answer as the page reads it."""
    scene, asked = to_scene(answer.circuit), answer.asked
    place = {"id": name, "group": asked.group, "bos": int(answer.circuit.source.reads_bos)}
    question = {"asking": asked.model_dump(mode="json"), "call": asked.to_call()}
    return pack(scene, answer.whys) | place | question | {"maps": pack_maps(scene)}


def save(answer: Answer, folder: Path) -> Path:
    """Write an answer as a folder that `circuits render` reads, with its explanations."""
    folder.mkdir(parents=True, exist_ok=True)
    asked = answer.asked
    check_folder(folder)
    own = new_folder(folder, f"{asked.model}-{asked.key}-{asked.query}")
    answer.circuit.save(own)
    for each in answer.whys:
        name = f"why-{each.head}-{each.key}-{each.query}.json"
        (own / name).write_bytes(each.to_json().encode())
    return own
