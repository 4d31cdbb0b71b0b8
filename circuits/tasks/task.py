"""A task: many seeded pairs of one kind, judged by the model that will be measured.

1. `families` writes candidates: those of one of TASKS, or the lines of a jsonl file.
2. A candidate is left out, and counted by reason, unless
   - both sides are known words and equally many tokens, each named word one token at the same position;
   - answer and foil differ and are one token each (as written or with a leading space, the likelier);
   - the model says the answer on the clean prompt, or, for a metric on years, the metric is above 0.5 there;
   - the counterfactual lowers the metric by at least 0.1.
3. The same model, name, count and seed give the same task.
"""

import random
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any, Final

import torch
from jaxtyping import Float

from circuits.errors import NoPairError, PromptError
from circuits.models.load import as_model
from circuits.models.model import Model
from circuits.prompts import Metric, Pair, Prompt, Question, to_prompt
from circuits.results import Progress, silent
from circuits.tasks import check_task
from circuits.tasks.families import FAMILIES, Candidate, Marked, Roles, read_own_task, single_token
from circuits.tracing.trust import is_small

Logits = Float[torch.Tensor, "*side vocab"]
PAIRS: Final = 64  # of a task, unless the user says otherwise
END: Final = "END"
LEAST_PROBABILITY: Final = 0.5
LEAST_GAP: Final = 0.1
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
                raise PromptError(f"a role cannot be called {name!r}; give it a name without →, such as S1")

    def position(self, role: str) -> int:
        """Where a role stands."""
        positions = dict(reversed(self.roles))  # of a name that is given twice, the first
        if role not in positions:
            raise PromptError(f"no role {role!r} in this item; it has {', '.join(positions) or 'none'}")
        return positions[role]

    def name_of(self, position: int) -> str:
        """A position's name: its role, or the last role before it and the distance (`S2+1`), or its index."""
        names = {start: name for name, start in reversed(self.roles)}
        if position in names:
            return names[position]
        offsets = {f"{name}+{distance}" for name, _ in self.roles for distance in range(len(self.pair))}
        before = [start for start, name in names.items() if start < position and name not in offsets]
        return f"{names[max(before)]}+{position - max(before)}" if before else str(position)


@dataclass(frozen=True, slots=True)
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
        layouts = Counter(item.roles for item in self.items)
        commonest = max(layouts, key=lambda roles: layouts[roles], default=None)
        return tuple(item for item in self.items if item.roles == commonest)

    def __len__(self) -> int:
        return len(self.items)

    def __str__(self) -> str:
        left_out = f"; left out: {_counted(self.left_out)}" if self.left_out else ""
        return f"{self.name}: {len(self)} pairs{left_out}"


def to_task(
    model: Any, name: str | Path, *, count: int = PAIRS, seed: int = 0, progress: Progress = silent
) -> Task:
    """At most `count` pairs that this model gets right, of one of TASKS or of a jsonl file of your own.

    >>> task = circuits.to_task(model, "indirect_object", count=4)
    >>> task.pairs[0].clean.text
    'After Laura and Sarah walked to the market, Sarah handed the map to'
    """
    check_task(name)
    model, path = as_model(model), Path(name)
    if count < 1:
        raise PromptError(f"a task needs at least one pair, not {count}")
    if str(name) in FAMILIES:
        title, draw = str(name), random.Random(f"{name}/{seed}")
        candidates = islice(FAMILIES[title](model, draw), _TRIES * count)
    else:
        title, candidates = path.stem, iter(read_own_task(model, path))
    items: list[Item] = []
    left_out: Counter[str] = Counter()
    while len(items) < count and (batch := list(islice(candidates, min(_BATCH, count - len(items))))):
        for verdict in judge(model, batch):
            if isinstance(verdict, Item):
                items.append(verdict)
            else:
                left_out[verdict] += 1
        progress("pairs", len(items), count)
        if not items and left_out.total() >= _HOPELESS:
            break
    if title not in FAMILIES:
        left_out[BEYOND] += sum(1 for _ in candidates)
    reasons = tuple(sorted((+left_out).items(), key=lambda reason: (-reason[1], reason[0])))
    if not items:
        why = _counted(reasons) or "its tokenizer cuts the words of this task in no usable way"
        raise NoPairError(f"no pair of {title} is left for {model.name}: {why}")
    return Task(title, tuple(items), reasons)


def _counted(reasons: Sequence[tuple[str, int]]) -> str:
    return "; ".join(f"{count} {reason}" for reason, count in reasons)


def judge(model: Model, candidates: Sequence[Candidate]) -> list[Item | str]:
    """Each candidate as an item, or the reason why it is left out, in order."""
    verdicts = [_read(model, candidate) for candidate in candidates]
    items = {index: item for index, item in enumerate(verdicts) if isinstance(item, Item)}
    for indices in of_equal_length((index, item.pair.clean) for index, item in items.items()):
        pairs = [items[index].pair for index in indices]
        sides = [side for pair in pairs for side in (pair.clean, pair.counterfactual)]
        tokens = [side.tokens for side in sides if isinstance(side, Prompt)]
        logits = model.logits(torch.tensor(tokens, device=model.device))[:, -1]
        for index, both in zip(indices, logits.unflatten(0, (-1, 2)), strict=True):
            verdicts[index] = _verdict(model, candidates[index], items[index], both)
    return verdicts


def of_equal_length(prompts: Iterable[tuple[int, Prompt]]) -> Iterator[list[int]]:
    """The indices of prompts of one length, so many at a time as run together."""
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, prompt in prompts:
        by_length[len(prompt)].append(index)
    for group in by_length.values():
        yield from (group[start : start + _TOGETHER] for start in range(0, len(group), _TOGETHER))


def _read(model: Model, candidate: Candidate) -> Item | str:
    """An item whose metric is not settled yet, or why it cannot be read."""
    clean, counterfactual = _prompt(model, candidate.clean), _prompt(model, candidate.counterfactual)
    if isinstance(clean, str):
        return clean
    if isinstance(counterfactual, str):
        return counterfactual
    if len(clean) != len(counterfactual):
        return UNEVEN
    if clean.tokens == counterfactual.tokens:
        return FLAT
    roles = candidate.roles
    if roles is None:
        roles = _roles(model, candidate.clean, clean)
        if roles is None or roles != _roles(model, candidate.counterfactual, counterfactual):
            return SPLIT
    return Item(Question(clean, counterfactual).unsettled, roles)


def _prompt(model: Model, side: Marked) -> Prompt | str:
    tokens = model.tokenizer(side.text, add_special_tokens=False)["input_ids"]
    if model.tokenizer.unk_token_id in tokens:
        return UNKNOWN
    return TOO_LONG if len(tokens) + model.reads_bos > model.n_ctx else to_prompt(model, side.text)


def _roles(model: Model, side: Marked, prompt: Prompt) -> Roles | None:
    """Where the marked words, the word after S1 and the last one stand; None if a marked one is no token."""
    roles = []
    for name, start, end in side.words:
        before, within = (model.tokenize(side.text[:stop]) for stop in (start, end))
        if len(within) != len(before) + 1 or prompt.tokens[: len(within)] != within or within[:-1] != before:
            return None
        roles.append((name, len(before)))
    after = [("S1+1", position + 1) for name, position in roles if name == "S1"]
    return tuple(sorted((*roles, *after, (END, len(prompt) - 1)), key=lambda role: role[1]))


def _verdict(model: Model, candidate: Candidate, item: Item, both: Logits) -> Item | str:
    """The item with its metric, if the model gets it right, by both prompts' logits at the last position."""
    top = int(both[0].argmax())
    if candidate.years is not None:
        before, after = candidate.years(both).tolist()
        metric = Metric("custom", top, model.spell(top), function=candidate.years)
        if before <= LEAST_PROBABILITY:
            return UNSURE
    else:
        answer, foil = _token(model, candidate.answer, both[0]), _token(model, candidate.foil, both[1])
        if answer is None or foil is None:
            return NO_ANSWER
        if answer == foil:
            return SAME
        if answer != top:
            return WRONG
        before, after = (both[:, answer] - both[:, foil]).tolist()
        metric = Metric("logit_diff", answer, model.spell(answer), foil, model.spell(foil))
    if before - after < LEAST_GAP or is_small(before, after):
        return FLAT
    return replace(item, pair=replace(item.pair, metric=metric))


def _token(model: Model, word: str | None, logits: Logits) -> int | None:
    """The one token that a word is here, as written or with a leading space; with no word, the likeliest."""
    if word is None:
        return int(logits.argmax())
    spellings = (word,) if word[:1].isspace() else (word, f" {word}")
    tokens = [token for spelling in spellings if (token := single_token(model, spelling)) is not None]
    return max(tokens, key=lambda token: float(logits[token]), default=None)
