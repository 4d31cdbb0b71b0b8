"""Which candidates a model can be asked about: one verdict each, an item or the reason why it is left out.

1. Both sides must be known words, of the same number of tokens, with every named word one token at the same position.
2. Answer and foil are one token each (as written or with a leading space, whichever is likelier) and differ.
3. The model must say the answer on the clean prompt; for a metric on years, its value must be above 0.5.
4. The counterfactual must lower the metric by at least 0.1.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import torch
from jaxtyping import Float

from circuits.models.model import Model
from circuits.prompts import Metric, Pair, Prompt
from circuits.tasks.families import Candidate, Marked
from circuits.tasks.records import END, Item

UNKNOWN: Final = "hold a word that the model does not know"
TOO_LONG: Final = "are longer than the model reads"
UNEVEN: Final = "have a clean and a counterfactual prompt of different numbers of tokens"
SPLIT: Final = "have a named word that is not one token"
NO_ANSWER: Final = "have an answer or a foil that is not one token"
SAME: Final = "have the same answer and foil"
WRONG: Final = "the model answers otherwise"
UNSURE: Final = "have a probability difference of 0.5 or less"
FLAT: Final = "have a counterfactual that hardly lowers the metric"
LEAST_PROBABILITY: Final = 0.5
LEAST_GAP: Final = 0.1
_BATCH: Final = 16

Roles = tuple[tuple[str, int], ...]
Logits = Float[torch.Tensor, " vocab"]


def judge(model: Model, candidates: Sequence[Candidate]) -> list[Item | str]:
    """An item or a reason for each candidate, in order."""
    read = [_read(model, candidate) for candidate in candidates]
    by_length: dict[int, list[int]] = defaultdict(list)
    for index, found in enumerate(read):
        if not isinstance(found, str):
            by_length[len(found[0])].append(index)
    said: dict[int, tuple[Logits, Logits]] = {}
    for group in by_length.values():
        for part in (group[start : start + _BATCH] for start in range(0, len(group), _BATCH)):
            prompts = [prompt for index in part for prompt in read[index][:2] if isinstance(prompt, Prompt)]
            last = model.logits(torch.tensor([prompt.tokens for prompt in prompts], device=model.device))[
                :, -1
            ].clone()
            said |= {index: (last[2 * place], last[2 * place + 1]) for place, index in enumerate(part)}
    return [
        found if isinstance(found, str) else _verdict(model, candidate, *found, *said[index])
        for index, (candidate, found) in enumerate(zip(candidates, read, strict=True))
    ]


def _read(model: Model, candidate: Candidate) -> tuple[Prompt, Prompt, Roles] | str:
    """Both prompts and the named positions, or why not."""
    sides = [_prompt(model, side.text) for side in (candidate.clean, candidate.other)]
    clean, other = sides
    if isinstance(clean, str) or isinstance(other, str):
        return clean if isinstance(clean, str) else str(other)
    if len(clean) != len(other):
        return UNEVEN
    if clean.tokens == other.tokens:
        return FLAT
    if candidate.roles is not None:
        return clean, other, candidate.roles
    marks = [
        _roles(model, side, prompt) for side, prompt in ((candidate.clean, clean), (candidate.other, other))
    ]
    if marks[0] is None or marks[0] != marks[1]:
        return SPLIT
    return clean, other, _with_neighbours(marks[0], len(clean))


def _prompt(model: Model, text: str) -> Prompt | str:
    tokens = model.tokenizer(text, add_special_tokens=False)["input_ids"]
    if model.tokenizer.unk_token_id in tokens:
        return UNKNOWN
    if len(tokens) + model.reads_bos > model.n_ctx:
        return TOO_LONG
    tokens = model.tokenize(text)
    return Prompt(text, tokens, tuple(model.spell(token) for token in tokens))


def _roles(model: Model, side: Marked, prompt: Prompt) -> Roles | None:
    """Where each marked word stands: the text up to its end has one token more than the text before it, and both begin the prompt."""
    found = []
    for name, start, end in side.words:
        before, within = (model.tokenize(side.text[:stop]) for stop in (start, end))
        if len(within) != len(before) + 1 or prompt.tokens[: len(within)] != within or within[:-1] != before:
            return None
        found.append((name, len(before)))
    return tuple(found)


def _with_neighbours(roles: Roles, length: int) -> Roles:
    """The position after the subject's first mention has a name of its own, and so has the last."""
    after = [("S1+1", at + 1) for name, at in roles if name == "S1"]
    return tuple(sorted((*roles, *after, (END, length - 1)), key=lambda role: role[1]))


def _verdict(
    model: Model,
    candidate: Candidate,
    clean: Prompt,
    other: Prompt,
    roles: Roles,
    said: Logits,
    said_other: Logits,
) -> Item | str:
    top = int(said.argmax())
    if candidate.years is not None:
        values = [float(candidate.years(logits[None])[0]) for logits in (said, said_other)]
        metric = Metric("custom", top, model.spell(top), function=candidate.years)
        if values[0] <= LEAST_PROBABILITY:
            return UNSURE
    else:
        answer = top if candidate.answer is None else _token(model, candidate.answer, said)
        foil = (
            int(said_other.argmax()) if candidate.foil is None else _token(model, candidate.foil, said_other)
        )
        if answer is None or foil is None:
            return NO_ANSWER
        if answer == foil:
            return SAME
        if answer != top:
            return WRONG
        values = [float(logits[answer] - logits[foil]) for logits in (said, said_other)]
        metric = Metric("logit_diff", answer, model.spell(answer), foil, model.spell(foil))
    return FLAT if values[0] - values[1] < LEAST_GAP else Item(Pair(clean, other, metric), roles)


def _token(model: Model, word: str, said: Logits) -> int | None:
    """The one token that a word is here, as written or with a leading space, whichever is likelier."""
    spellings = (word,) if word[:1].isspace() else (word, f" {word}")
    tokenised = [model.tokenizer(spelling, add_special_tokens=False)["input_ids"] for spelling in spellings]
    known = {
        tokens[0] for tokens in tokenised if len(tokens) == 1 and tokens[0] != model.tokenizer.unk_token_id
    }
    return max(known, key=lambda token: float(said[token])) if known else None
