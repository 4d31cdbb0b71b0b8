"""The lines of a shard, turned into tokens and put into batches that are run together.

Lines with the same length, key, query, kind of counterfactual and metric make a batch, as large as the user
allows and memory permits. Which lines are run together depends on the shard alone, never on who measures it,
so that the rounding of its numbers does not either.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from circuits.engine.memory import MemoryPlan, plan_memory
from circuits.errors import CircuitsError
from circuits.models.model import Model
from circuits.prompts import NOISE_DRAWS, Noise, Question, QuestionSpec, to_prompt, to_question
from circuits.sweeps.lines import Line, brief
from circuits.sweeps.manifest import Manifest
from circuits.sweeps.parquet import TableRow

MEMORY: Final = 256 * 2**20  # bytes of cached runs in a batch, at most
_BY_TOKENIZERS: Final = (ValueError, TypeError, OverflowError)  # what they raise of some texts


@dataclass(frozen=True, slots=True)
class TokenizedLine:
    """A line as the model reads it. Its answer and foil may still depend on the model's predictions."""

    line: Line
    question: Question
    key: int
    query: int

    @property
    def is_noisy(self) -> bool:
        return isinstance(self.question.counterfactual, Noise)

    @property
    def shape(self) -> tuple[Any, ...]:
        """Lines of equal shape can be measured together."""
        question = self.question
        sizes = (len(question.clean), len(question.sequence))
        return (*sizes, self.is_noisy, self.key, self.query, question.kind)

    @property
    def draws(self) -> int:
        """How many counterfactuals of it are run."""
        return NOISE_DRAWS if self.is_noisy else 1


Batch = list[TokenizedLine]  # lines of one shape that are run together


def to_batches(
    model: Model, lines: Sequence[Line], manifest: Manifest, *, batch: int
) -> tuple[list[Batch], list[TableRow]]:
    """The lines in batches of one shape, and the rows of those that have an error."""
    wrong: list[TableRow] = []
    shapes: dict[tuple[Any, ...], Batch] = defaultdict(list)
    for line in lines:
        tokenized = _tokenize(model, line, manifest)
        if isinstance(tokenized, TokenizedLine):
            shapes[tokenized.shape].append(tokenized)
        else:
            wrong.append(tokenized)
    batches = []
    for alike in shapes.values():
        size = max(1, min(batch, MEMORY // memory_of(model, alike[:1]).runs))
        for start in range(0, len(alike), size):
            batches.append(alike[start : start + size])
    return batches, wrong


def memory_of(model: Model, batch: Batch) -> MemoryPlan:
    """What a batch takes while it is measured."""
    length = len(batch[0].question.clean)
    return plan_memory(model, length=length, inputs=len(batch) * batch[0].draws)


def _tokenize(model: Model, line: Line, manifest: Manifest) -> TokenizedLine | TableRow:
    """The line for the model, or its row with an error."""
    given = line.question
    if given is None:
        return to_row(line, line.error)
    try:
        key, query = to_prompt(model, given.prompt).ends(given.key, given.query)
        metric: Any = given.metric  # a name that is checked when the question is made
        spec = QuestionSpec(
            counterfactual=given.counterfactual,
            swap=given.swap,
            noise_at=(key,),
            answer=given.answer,
            foil=given.foil,
            metric=metric,
            seed=manifest.seed,
        )
        return TokenizedLine(line, to_question(model, given.prompt, spec), key, query)
    except (CircuitsError, *_BY_TOKENIZERS) as why:
        return to_row(line, brief(why))


def to_row(line: Line, error: str | None = None) -> TableRow:
    """The columns that every line has, measured or not."""
    return {
        "line": line.number,
        "id": line.id,
        "prompt": line.prompt,
        "error": error,
        "asked": None if line.question is None else line.question.to_json(),
        "metadata": line.metadata,
    }
