"""What a prompt could have been: the model's next words, and words to put in a token's place.

1. Candidates for a token are written as it is (a word or not, with a space in front or without) and lie
   nearest to it in the embedding: words of its kind.
2. All are run. Those that change the answer are kept, the surest new answer first.
3. A candidate must be read back as the same prompt with that one token changed.
"""

from __future__ import annotations

from typing import Any, Final

import torch

from circuits.models.model import Model
from circuits.prompts import Prompt, to_prompt
from circuits.prompts.prompt import swapped
from circuits.tracing.trust import nearest_words

WORDS: Final = 6  # that are shown
CANDIDATES: Final = 48  # that are run
_TOKENS: Final = 1_024  # in one run


def next_words(model: Model, prompt: Prompt) -> list[dict[str, Any]]:
    """The likeliest next tokens and their probabilities."""
    chances = model.logits(torch.tensor([prompt.tokens]))[0, -1].float().softmax(-1)
    best = chances.topk(min(WORDS, model.vocab_size))
    each = zip(best.indices.tolist(), best.values.tolist(), strict=True)
    return [{"word": model.spell(token), "probability": chance} for token, chance in each]


def propose(model: Model, text: str, key: int) -> list[dict[str, Any]]:
    """Words for the token at `key` that change the answer: what the model says then, and how surely."""
    prompt = to_prompt(model, text)
    position = prompt.position(key)
    tokens = nearest_words(model, prompt.tokens[position], CANDIDATES)
    if not tokens:
        return []
    chances = _predictions(model, prompt, position, [prompt.tokens[position], *tokens])
    said, best = chances.argmax(-1).tolist(), chances.amax(-1).tolist()
    changed = [n for n in range(1, len(said)) if said[n] != said[0]]
    changed.sort(key=lambda number: (-round(best[number], 3), number))
    found: list[dict[str, Any]] = []
    for number in changed:
        word = model.spell(tokens[number - 1])
        if _is_one_change(model, prompt, position, word, tokens[number - 1]):
            found.append({"word": word, "says": model.spell(said[number]), "probability": best[number]})
        if len(found) == WORDS:
            break
    return found


def _predictions(model: Model, prompt: Prompt, position: int, tokens: list[int]) -> torch.Tensor:
    """The probabilities after the prompt with each of these tokens in its place."""
    rows = torch.tensor([prompt.tokens] * len(tokens))
    rows[:, position] = torch.tensor(tokens)
    parts = rows.split(max(1, _TOKENS // len(prompt)))
    return torch.cat([model.logits(part)[:, -1].float().softmax(-1).cpu() for part in parts])


def _is_one_change(model: Model, prompt: Prompt, position: int, word: str, token: int) -> bool:
    other = model.tokenize(swapped(model, prompt.text, {position: word}))
    return other == (*prompt.tokens[:position], token, *prompt.tokens[position + 1 :])
