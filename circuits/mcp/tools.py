"""What each tool does: load, measure, save into the folder, answer.

Measuring functions report their progress to the job, which ends there if it was cancelled. A result is saved
before it is answered, so that `why`, `verify` and `render` can name it later, and `circuits render` too.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from circuits.checks.verify import verify
from circuits.errors import ModelError, PromptError
from circuits.files import new_folder, read_bytes
from circuits.instruments.patch import patch
from circuits.live.jobs import Job
from circuits.mcp.answers import reply_to
from circuits.mcp.calls import (
    CircuitCall,
    LoadCall,
    PatchCall,
    RankCall,
    RenderCall,
    TokensCall,
    ToolCall,
    TraceCall,
    VerifyCall,
    WhyCall,
    WiringCall,
)
from circuits.mcp.folder import GivenFolder
from circuits.mcp.reply import Reply, fact
from circuits.models import available
from circuits.models.load import load, load_vocabulary
from circuits.models.model import Model
from circuits.prompts import to_prompt
from circuits.results import open_result
from circuits.tasks.names import TASKS
from circuits.tasks.rank import rank
from circuits.tracing.circuit import circuit
from circuits.tracing.records import Circuit
from circuits.tracing.trace import trace
from circuits.tracing.why import why
from circuits.wires.wiring import wiring

_KEPT_MODELS: Final = 2  # in memory


class Tools:
    """The tools of one server: its folder, its device, and the models that it has in memory."""

    def __init__(self, folder: GivenFolder, *, device: str = "cpu") -> None:
        self.folder = folder
        self.device = device
        self._models: dict[str, Model] = {}  # the one that was used longest ago comes first

    def run(self, call: ToolCall, job: Job) -> Reply:
        """Do what a call asks for."""
        methods: dict[type, Callable[[Any, Job], Reply]] = {
            LoadCall: self.load,
            TokensCall: self.tokens,
            TraceCall: self.trace,
            CircuitCall: self.circuit,
            WhyCall: self.why,
            WiringCall: self.wiring,
            PatchCall: self.patch,
            RankCall: self.rank,
            VerifyCall: self.verify,
            RenderCall: self.render,
        }
        return methods[type(call)](call, job)

    # Models

    def model(self, name: str, job: Job) -> Model:
        """A model by its name. If it is not in memory it is loaded, and the one used longest ago dropped."""
        own_name = self.folder.model_name(name)
        model = self._models.pop(own_name, None)
        if model is None:
            job.progress(f"loading {name}", 0, 1)
            model = load(own_name, device=self.device)
        self._models[own_name] = model
        if len(self._models) > _KEPT_MODELS:
            del self._models[next(iter(self._models))]
        job.check()
        return model

    def load(self, call: LoadCall, job: Job) -> Reply:
        model = self.model(call.model, job)
        known = [entry.name for entry in available() if entry.here]
        numbers = {
            "layers": model.n_layers,
            "heads": model.n_heads,
            "gated": model.gated,
            "reads_bos": model.reads_bos,
            "fingerprint": model.fingerprint,
            "known_here": known,
        }
        gate = "gated" if model.gated else "dense"
        text = f"{model.name}: {model.n_layers} layers × {model.n_heads} heads, {gate}"
        text += f"\nKnown by name and here: {', '.join(known)}"
        edited = "An edit at each kind of hook changed the logits and was undone."
        return fact("load", numbers, [edited], text)

    def tokens(self, call: TokensCall, job: Job) -> Reply:
        vocabulary: Any = load_vocabulary(self.folder.model_name(call.model))
        words = to_prompt(vocabulary, call.prompt).words
        lines = [f"{position} = {word!r}" for position, word in enumerate(words)]
        return fact("tokens", {"tokens": list(words)}, [], "\n".join(lines))

    # Questions

    def trace(self, call: TraceCall, job: Job) -> Reply:
        model = self.model(call.model, job)
        found = trace(
            model,
            call.prompt,
            key=call.key,
            query=call.query,
            share=call.share,
            stability=call.stability,
            progress=job.progress,
            **call.question(),
        )
        return self._saved("trace", found, job)

    def circuit(self, call: CircuitCall, job: Job) -> Reply:
        model = self.model(call.model, job)
        found = circuit(
            model, call.prompt, share=call.share, progress=job.progress, **call.question()
        )
        return self._saved("circuit", found, job)

    def why(self, call: WhyCall, job: Job) -> Reply:
        found = Circuit.load(self.folder.existing(call.result))
        model = self.model(found.source.name, job)
        answer = why(
            found,
            call.head,
            key=call.key,
            query=call.query,
            model=model,
            progress=job.progress,
        )
        return self._saved("why", answer, job)

    def wiring(self, call: WiringCall, job: Job) -> Reply:
        if _names_task(call.prompt) and (call.swap or call.counterfactual):
            raise PromptError(
                "swap and counterfactual go with a prompt; the pairs of a task have their own"
            )
        model = self.model(call.model, job)
        found = wiring(
            model,
            self._task(call.prompt),
            swap=call.swap or None,
            counterfactual=call.counterfactual,
            share=call.share,
            count=call.count,
            seed=call.seed,
            progress=job.progress,
        )
        return self._saved("wiring", found, job)

    def patch(self, call: PatchCall, job: Job) -> Reply:
        model = self.model(call.model, job)
        patched = patch(
            model,
            call.prompt,
            call.sites,
            ablation=call.ablation,
            progress=job.progress,
            **call.question(),
        )
        return self._saved("patch", patched, job)

    def rank(self, call: RankCall, job: Job) -> Reply:
        model = self.model(call.model, job)
        ranking = rank(
            model,
            self._task(call.task),
            count=call.count,
            seed=call.seed,
            progress=job.progress,
        )
        return self._saved("rank", ranking, job)

    # Saved results

    def verify(self, call: VerifyCall, job: Job) -> Reply:
        record = open_result(self.folder.existing(call.result))
        source = getattr(record, "source", None)
        name = getattr(record, "model", None) if source is None else source.name
        if not isinstance(name, str):
            raise ModelError(f"{call.result!r} names no model on which it was measured")
        verified = verify(record, model=self.model(name, job), progress=job.progress)
        job.check()
        return reply_to("verify", verified)

    def render(self, call: RenderCall, job: Job) -> Reply:
        path = self.folder.existing(call.result)
        record = open_result(path)
        folder = path if path.is_dir() else path.parent
        file = record.save(folder / f"{record.KIND}.png")
        shown = self._name_of(file)
        reply = reply_to("render", record, saved=call.result)
        text = (
            f"{record.summary}\nPicture: {shown}\nDoes not show: {reply.answer.does_not_show}"
        )
        return Reply(reply.answer, text, read_bytes(file))

    def _saved(self, tool: str, record: Any, job: Job) -> Reply:
        """Save a result under a name of its own, and answer with it."""
        job.check()
        folder = new_folder(self.folder.path, tool)
        record.save(folder)
        return reply_to(tool, record, saved=self._name_of(folder))

    def _name_of(self, path: Path) -> str:
        return path.relative_to(self.folder.path).as_posix()

    def _task(self, name: str) -> Any:
        """A task's name or a prompt as it is; a jsonl file as its path, which must lie inside the folder."""
        return self.folder.existing(name) if name.endswith(".jsonl") else name


def _names_task(name: str) -> bool:
    """Whether this is the name of a task or of a jsonl file, and not a prompt."""
    return name in TASKS or name.endswith(".jsonl")
