"""A task: many seeded pairs of one kind, judged by the model that will be measured.

1. `tasks.families` writes candidates: those of one of TASKS, or the lines of a jsonl file.
2. A candidate is left out, and counted by reason, unless
   - both sides are known words and equally many tokens, each named word one token at the same position;
   - answer and foil differ and are one token each (as written or with a leading space, the likelier);
   - the model says the answer on the clean prompt, or, for a metric on years, the metric is above 0.5 there;
   - the counterfactual lowers the metric by at least 0.1.
3. The same model, name, count and seed give the same task.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.errors import NoPairError, PromptError, check_whole
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Metric, Pair, Prompt, answer_token, to_prompt
from circuits.results import Progress, silent
from circuits.tasks.families import (
    FAMILIES,
    Candidate,
    Marked,
    Roles,
    read_own_task,
    to_own_task,
)
from circuits.tasks.names import check_task
from circuits.tracing.judge import LEAST_GAP, is_small

PAIRS: Final = 64  # of a task, unless the user says otherwise
END: Final = "END"
OWN: Final = "own pairs"  # the name of a task that was given as a list or a table
LEAST_DIFFERENCE: Final = 0.5  # of probabilities, by which a model must favour the right years
_BATCH: Final = 32  # candidates judged between two reports of progress
_TOGETHER: Final = 16  # prompts, or pairs of them, that run together
_TRIES: Final = 16  # candidates for each pair, at most
_HOPELESS: Final = 192  # so many candidates without a single item end the search

# Why candidates are left out
UNKNOWN: Final = "hold a word that the model does not know"
TOO_LONG: Final = "are longer than the model reads"
UNEVEN: Final = "have a clean and a counterfactual prompt of different numbers of tokens"
SPLIT: Final = "have a named word that is not one token"
NO_ANSWER: Final = "have an answer or a foil that is not one token"
SAME: Final = "have the same answer and foil"
WRONG: Final = "the model answers otherwise"
UNSURE: Final = "have a probability difference of 0.5 or less"
FLAT: Final = "have a counterfactual that hardly lowers the metric"
BEYOND: Final = "come after as many as were asked for"


@dataclass(frozen=True, slots=True)
class Item:
    """One pair with its named positions, for example ("IO", 2), ("S1", 4), ("S2", 10), ("END", 14)."""

    pair: Pair
    roles: Roles

    def __post_init__(self) -> None:
        for name, position in self.roles:
            if not 0 <= position < len(self.pair):
                prompt = f"the prompt, which has 0…{len(self.pair) - 1}"
                raise PromptError(f"role {name!r} stands at {position}, outside {prompt}")
            if not name or "→" in name:
                raise PromptError(
                    f"a role cannot be called {name!r}; give it a name without →, such as S1"
                )

    def position(self, role: str) -> int:
        """Where a role stands; of a role that is given twice, the first."""
        for name, position in self.roles:
            if name == role:
                return position
        names = ", ".join(dict.fromkeys(name for name, _ in self.roles))
        raise PromptError(f"no role {role!r} in this item; it has {names or 'none'}")

    def name_of(self, position: int) -> str:
        """A position's name: its role, or the last role before it and the distance (`S2+1`), or its index."""
        names = {name for name, _ in self.roles}
        nearest = None
        for name, start in self.roles:
            if start == position:
                return name
            base, _, distance = name.rpartition("+")
            # `S1+1` is no start for `S1+1+1`.
            is_distance = base in names and distance.isdecimal()
            is_nearer = nearest is None or start > nearest[1]
            if start < position and is_nearer and not is_distance:
                nearest = (name, start)
        if nearest is None:
            return str(position)
        name, start = nearest
        return f"{name}+{position - start}"


@dataclass(frozen=True, slots=True, repr=False)
class Task:
    """Many seeded pairs of one kind, for one model.

    >>> task = circuits.to_task(model, "opposites", count=4)
    >>> len(task.pairs), str(task.pairs[0].metric)
    (4, 'logit(sweet) − logit(dark)')
    """

    name: str
    items: tuple[Item, ...]
    left_out: tuple[tuple[str, int], ...] = ()  # reason -> how many

    @property
    def pairs(self) -> tuple[Pair, ...]:
        """Clean prompt, counterfactual and metric of each item."""
        return tuple(item.pair for item in self.items)

    @property
    def alike(self) -> tuple[Item, ...]:
        """The largest group of items whose roles stand at the same positions, as `trace` wants a family."""
        if not self.items:
            return ()
        (roles, _), *_ = Counter(item.roles for item in self.items).most_common(1)
        return tuple(item for item in self.items if item.roles == roles)

    def __len__(self) -> int:
        return len(self.items)

    def __repr__(self) -> str:
        return f"<Task {self.name}: {len(self)} pairs>"

    def __str__(self) -> str:
        left_out = f"; left out: {_counted(self.left_out)}" if self.left_out else ""
        return f"{self.name}: {len(self)} pairs{left_out}"


def _counted(reasons: Sequence[tuple[str, int]]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in reasons)


def to_task(
    model: Any,
    name: str | Path | Any,
    *,
    count: int = PAIRS,
    seed: int = 0,
    progress: Progress = silent,
) -> Task:
    """At most `count` pairs that this model gets right, of one of TASKS or of a jsonl file of your own.

    A list of dicts such as the lines of that file, or of (prompt, counterfactual), will do, and a pandas table.

    >>> task = circuits.to_task(model, "indirect_object", count=4)
    >>> task.pairs[0].clean.text
    'After Laura and Sarah walked to the market, Sarah handed the map to'
    """
    is_named = isinstance(name, str | Path)
    if is_named:
        check_task(name)
    check_whole("seed", seed)
    check_whole("count", count)
    model = as_model(model)
    if count < 1:
        raise PromptError(f"a task needs at least one pair, not {count}")
    family = FAMILIES.get(str(name)) if is_named else None
    if not is_named:
        title = OWN
        candidates = iter(to_own_task(model, name))
    elif family is None:
        title = Path(name).stem
        candidates = iter(read_own_task(model, Path(name)))
    else:
        title = str(name)
        candidates = islice(family(model, random.Random(f"{name}/{seed}")), _TRIES * count)
    items, left_out = _first_right(model, candidates, count, progress)
    rest = list(candidates) if family is None else []
    if rest:
        left_out[BEYOND] = len(rest)
    reasons = tuple(sorted(left_out.items(), key=lambda reason: (-reason[1], reason[0])))
    if not items:
        why = _counted(reasons) or "its tokenizer cuts the words of this task in no usable way"
        raise NoPairError(f"no pair of {title} is left for {model.name}: {why}")
    return Task(title, tuple(items), reasons)


def _first_right(
    model: Model, candidates: Iterator[Candidate], count: int, progress: Progress
) -> tuple[list[Item], Counter[str]]:
    """The first `count` candidates that the model gets right, and how many were left out for each reason."""
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    while len(items) < count:
        batch = list(islice(candidates, min(_BATCH, count - len(items))))
        if not batch:
            break
        for verdict in judge(model, batch):
            if isinstance(verdict, Item):
                items.append(verdict)
            else:
                left_out[verdict] += 1
        progress("pairs", len(items), count)
        if not items and left_out.total() >= _HOPELESS:
            break
    return items, left_out


# Judging candidates


@dataclass(frozen=True, slots=True)
class _Prompts:
    """The two prompts of a candidate, of equal length, and where its named words stand."""

    clean: Prompt
    counterfactual: Prompt
    roles: Roles


def judge(model: Model, candidates: Sequence[Candidate]) -> list[Item | str]:
    """Each candidate as an item, or the reason why it is left out, in order."""
    verdicts: dict[int, Item | str] = {}
    readable: dict[int, _Prompts] = {}
    for number, candidate in enumerate(candidates):
        prompts = _read(model, candidate)
        if isinstance(prompts, _Prompts):
            readable[number] = prompts
        else:
            verdicts[number] = prompts
    for numbers in of_equal_length(
        {number: prompts.clean for number, prompts in readable.items()}
    ):
        tokens = []
        for number in numbers:
            tokens += [readable[number].clean.tokens, readable[number].counterfactual.tokens]
        logits = model.logits(torch.tensor(tokens, device=model.device))[:, -1]
        for number, both in zip(numbers, logits.unflatten(0, (-1, 2)), strict=True):
            verdicts[number] = _verdict(model, candidates[number], readable[number], both)
    return [verdicts[number] for number in range(len(candidates))]


def of_equal_length(prompts: Mapping[int, Prompt]) -> Iterator[list[int]]:
    """The numbers of prompts of one length, as many at a time as run together."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for number, prompt in prompts.items():
        by_length[len(prompt)].append(number)
    for numbers in by_length.values():
        for start in range(0, len(numbers), _TOGETHER):
            yield numbers[start : start + _TOGETHER]


def _read(model: Model, candidate: Candidate) -> _Prompts | str:
    """The prompts of a candidate, or the reason why it cannot be read."""
    clean = _prompt(model, candidate.clean)
    if isinstance(clean, str):
        return clean
    counterfactual = _prompt(model, candidate.counterfactual)
    if isinstance(counterfactual, str):
        return counterfactual
    if len(clean) != len(counterfactual):
        return UNEVEN
    if clean.tokens == counterfactual.tokens:
        return FLAT
    if candidate.roles is not None:
        return _Prompts(clean, counterfactual, candidate.roles)
    roles = _roles(model, candidate.clean, clean)
    if roles is None or roles != _roles(model, candidate.counterfactual, counterfactual):
        return SPLIT
    return _Prompts(clean, counterfactual, roles)


def _prompt(model: Model, side: Marked) -> Prompt | str:
    tokens = model.tokenizer(side.text, add_special_tokens=False)["input_ids"]
    if model.tokenizer.unk_token_id in tokens:
        return UNKNOWN
    if len(tokens) + model.reads_bos > model.n_ctx:
        return TOO_LONG
    return to_prompt(model, side.text)


def _roles(model: Model, side: Marked, prompt: Prompt) -> Roles | None:
    """Where the marked words, the word after S1 and the last one stand; None if a marked word is not exactly
    one token of the prompt."""
    roles = []
    for name, start, end in side.words:
        before = model.tokenize(side.text[:start])
        with_word = model.tokenize(side.text[:end])
        position = len(before)
        if len(with_word) != position + 1 or with_word[:position] != before:
            return None
        if prompt.tokens[: position + 1] != with_word:
            return None
        roles.append((name, position))
    roles += [("S1+1", position + 1) for name, position in roles if name == "S1"]
    roles.append((END, len(prompt) - 1))
    return tuple(sorted(roles, key=lambda role: role[1]))


def _verdict(
    model: Model,
    candidate: Candidate,
    prompts: _Prompts,
    logits: Float[torch.Tensor, "side vocab"],
) -> Item | str:
    """The item with its metric if the model gets it right, by the logits at the last position of the clean
    and of the counterfactual prompt; else why it is left out."""
    top = int(logits[0].argmax())
    if candidate.years is not None:
        metric = Metric("custom", top, model.spell(top), function=candidate.years)
        clean, counterfactual = candidate.years(logits).tolist()
        if clean <= LEAST_DIFFERENCE:
            return UNSURE
    else:
        try:
            answer = _token_of(model, candidate.answer, logits[0])
            foil = _token_of(model, candidate.foil, logits[1])
        except PromptError:
            return NO_ANSWER
        if answer == foil:
            return SAME
        if answer != top:
            return WRONG
        metric = Metric("logit_diff", answer, model.spell(answer), foil, model.spell(foil))
        clean, counterfactual = (logits[:, answer] - logits[:, foil]).tolist()
    if clean - counterfactual < LEAST_GAP or is_small(clean, counterfactual):
        return FLAT
    return Item(Pair(prompts.clean, prompts.counterfactual, metric), prompts.roles)


def _token_of(model: Model, word: str | None, logits: Float[torch.Tensor, " vocab"]) -> int:
    """The token of an answer or foil; without a word, the one that the model says by these logits."""
    if word is None:
        return int(logits.argmax())
    return answer_token(model, word, logits)
