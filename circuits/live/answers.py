"""The answers to the page's requests.

1. The answer to a question is that of `circuits.trace` itself: the page is sent the circuit as it grows, then
   the whole. Without some heads it is that of `Circuit.without`.
2. Proposals for a token are words of the same form (a word or not, with a space in front or without) that lie
   nearest to it in the embedding. All are run, and those that change the model's answer are kept, the most
   probable new answer first. A proposal must be read back as the same prompt with that one token changed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from circuits.errors import CircuitsError, EdgeError, ModelError
from circuits.files import check_folder, new_folder, write_folder
from circuits.live.jobs import Job
from circuits.live.requests import PromptRequest, ProposalRequest, TraceRequest, WhyRequest
from circuits.models import Vocabulary, available
from circuits.models.load import load, load_vocabulary
from circuits.models.model import Model
from circuits.prompts import Prompt, to_prompt
from circuits.prompts.prompt import swapped
from circuits.show import spell, to_scene
from circuits.show.folders import draw_files
from circuits.show.page import pack, pack_maps, pack_why
from circuits.tracing.other_words import nearest_words
from circuits.tracing.records import Circuit
from circuits.tracing.trace import trace
from circuits.tracing.why import why
from circuits.tracing.why_record import Why

_SHOWN_WORDS: Final = 6
_CANDIDATES: Final = 48  # words that are run
_TOKENS_PER_RUN: Final = 1_024
_OTHER_MODELS: Final = 2  # kept in memory beside the first
SAVED_AS: Final = ("svg", "html")
_drawing = threading.Lock()  # matplotlib draws one figure at a time


class Models:
    """The models that the page may name: the one it was opened with, and all others on this machine."""

    def __init__(self, first: Model) -> None:
        self.first = first
        self._others: dict[str, Model] = {}  # the one that was used longest ago comes first
        self._vocabularies: dict[str, Vocabulary] = {first.name: first.vocabulary}

    @property
    def names(self) -> list[str]:
        here = [entry.name for entry in available() if entry.here]
        return list(dict.fromkeys([self.first.name, *here]))

    def check(self, name: str) -> None:
        """Raise an error if there is no such model here."""
        names = self.names
        if name not in names:
            raise ModelError(f"no model {name!r} here; there are {', '.join(names)}")

    def vocabulary(self, name: str) -> Vocabulary:
        """How a model reads text; its weights are not needed for it."""
        self.check(name)
        if name not in self._vocabularies:
            self._vocabularies[name] = load_vocabulary(name)
        return self._vocabularies[name]

    def model(self, name: str, job: Job) -> Model:
        """The model. If it is not in memory it is loaded, and the one used longest ago may be dropped."""
        if name == self.first.name:
            return self.first
        self.check(name)
        model = self._others.pop(name, None)
        if model is None:
            job.progress(f"loading {name}", 0, 1)
            model = load(name)
        self._others[name] = model
        if len(self._others) > _OTHER_MODELS:
            oldest = next(iter(self._others))
            del self._others[oldest]
        return model


@dataclass(frozen=True, slots=True)
class Answer:
    """A question, the circuit that answers it, and the answers of `why` about its heads so far."""

    question: TraceRequest
    circuit: Circuit
    whys: list[Why] = field(default_factory=list)

    def to_page_data(self, job_id: str) -> dict[str, Any]:
        """The circuit as the page reads it."""
        scene = to_scene(self.circuit)
        packed = pack(scene, self.whys)
        left_out = " and ".join(self.question.without)
        return packed | {
            "id": job_id,
            "name": f"{packed['name']} without {left_out}" if left_out else packed["name"],
            "group": self.question.group,
            "bos": int(self.circuit.source.reads_bos),
            "asking": self.question.model_dump(mode="json"),
            "python": self.question.to_python(),
            "maps": pack_maps(scene),
        }

    def save(self, folder: Path) -> Path:
        """Write a folder with the circuit, its figures and page, and the answers of `why`."""
        question = self.question
        check_folder(folder)
        left_out = "".join(f"-without-{head}" for head in question.without)
        own = new_folder(folder, f"{question.model}-{question.key}-{question.query}{left_out}")
        try:
            write_folder(own, self._write_files)
        except CircuitsError:
            with suppress(OSError):  # such as a folder in which somebody has put a file by now
                own.rmdir()
            raise
        return own

    def _write_files(self, folder: Path) -> None:
        whys = list(self.whys)  # another request may add one meanwhile
        self.circuit.save(folder)
        for each in whys:
            name = f"why-{each.head}-{each.key}-{each.query}.json"
            (folder / name).write_bytes(each.to_json().encode())
        with _drawing:
            draw_files(folder, self.circuit, formats=SAVED_AS, why=whys)


def read_tokens(models: Models, request: PromptRequest) -> dict[str, Any]:
    """The tokens of a prompt, without running the model."""
    vocabulary: Any = models.vocabulary(request.model)
    words = to_prompt(vocabulary, request.prompt).words
    return {
        "words": words,
        "spelled": [spell(word) for word in words],
        "bos": int(vocabulary.reads_bos),
    }


def send_next_words(models: Models, request: PromptRequest, job: Job) -> None:
    """Emit the likeliest next tokens and their probabilities."""
    model = models.model(request.model, job)
    prompt = to_prompt(model, request.prompt)
    logits = model.logits(torch.tensor([prompt.tokens]))[0, -1]
    best = logits.float().softmax(-1).topk(min(_SHOWN_WORDS, model.vocab_size))
    words = []
    for token, probability in zip(best.indices.tolist(), best.values.tolist(), strict=True):
        word = model.spell(token)
        words.append({"word": word, "spelled": spell(word), "probability": probability})
    job.emit("words", words)


def send_proposals(models: Models, request: ProposalRequest, job: Job) -> None:
    """Emit words for the key's place, each with what the model says then."""
    model = models.model(request.model, job)
    words = propose(model, request.prompt, request.key)
    for each in words:
        each |= {"spelled": spell(each["word"]), "says": spell(each["says"])}
    job.emit("proposals", words)


def propose(model: Model, text: str, key: int) -> list[dict[str, Any]]:
    """Words for the token at `key` that change the answer: what the model says then, and how probably."""
    prompt = to_prompt(model, text)
    position = prompt.position(key)
    own = prompt.tokens[position]
    tokens = nearest_words(model, own, _CANDIDATES)
    if not tokens:
        return []
    probabilities = _probabilities(model, prompt, position, [own, *tokens])
    best, answers = probabilities.max(-1)
    original = answers[0].item()
    changed = []
    for token, probability, answer in zip(
        tokens, best[1:].tolist(), answers[1:].tolist(), strict=True
    ):
        if answer != original:
            changed.append((token, probability, answer))
    changed.sort(key=lambda each: -round(each[1], 3))
    proposals: list[dict[str, Any]] = []
    for token, probability, answer in changed:
        word = model.spell(token)
        if _is_one_change(model, prompt, position, word, token):
            proposals.append(
                {"word": word, "says": model.spell(answer), "probability": probability}
            )
        if len(proposals) == _SHOWN_WORDS:
            break
    return proposals


def _probabilities(
    model: Model, prompt: Prompt, position: int, tokens: list[int]
) -> torch.Tensor:
    """The next-token probabilities with each of these tokens at `position`. (token, vocab)"""
    rows = torch.tensor([prompt.tokens] * len(tokens))
    rows[:, position] = torch.tensor(tokens)
    parts = rows.split(max(1, _TOKENS_PER_RUN // len(prompt)))
    return torch.cat([model.logits(part)[:, -1].float().softmax(-1).cpu() for part in parts])


def _is_one_change(model: Model, prompt: Prompt, position: int, word: str, token: int) -> bool:
    """Whether the prompt with this word is read as the same tokens but for this one."""
    wanted = list(prompt.tokens)
    wanted[position] = token
    return list(model.tokenize(swapped(model, prompt.text, {position: word}))) == wanted


def measure(models: Models, question: TraceRequest, job: Job) -> Answer:
    """Trace, and emit the circuit as it grows."""
    model = models.model(question.model, job)

    def watch(partial: Circuit) -> None:
        job.check()
        job.emit(
            "circuit", Answer(question, partial).to_page_data(job.id) | {"unfinished": True}
        )

    circuit = _trace(model, question, job, watch)
    job.check()
    return _emitted(Answer(question, circuit), job)


def measure_without(
    models: Models, question: TraceRequest, known: Circuit | None, job: Job
) -> Answer:
    """Measure the question without some heads; `known` is its answer with all of them, if there is one."""
    model = models.model(question.model, job)
    circuit = known or _trace(model, question, job, lambda partial: job.check())
    job.progress("without " + " and ".join(question.without), 0, 1)
    return _emitted(Answer(question, circuit.without(*question.without, model=model)), job)


def _trace(
    model: Model, question: TraceRequest, job: Job, watch: Callable[[Circuit], None]
) -> Circuit:
    return trace(
        model,
        question.prompt,
        key=question.key,
        query=question.query,
        swap=question.swap or None,
        progress=job.progress,
        watch=watch,
    )


def _emitted(answer: Answer, job: Job) -> Answer:
    job.emit("circuit", answer.to_page_data(job.id))
    return answer


def explain(models: Models, answer: Answer, request: WhyRequest, job: Job) -> None:
    """Measure why a head of an answer looks where it looks."""
    if answer.question.without:
        raise EdgeError("heads were left out of this answer; ask why of the one with all heads")
    model = models.model(answer.question.model, job)
    explanation = why(
        answer.circuit,
        request.head,
        key=request.key,
        query=request.query,
        model=model,
        progress=job.progress,
    )
    answer.whys.append(explanation)
    job.emit("why", pack_why(explanation))
