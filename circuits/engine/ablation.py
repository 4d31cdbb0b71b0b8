"""What stands in the places that a measurement changes: the kind of ablation, chosen once for a question.

- `swap`: in the clean run, the values of the counterfactual run.
- `restore`: in the counterfactual run, the values of the clean run.
- `zero`: in the clean run, zeros. Nothing is renormalised.
- `mean`: in the clean run, the mean over the runs of reference prompts, position by position. The prompts are
  those that the user names, or those of the family that is measured.
- `knockout`: in the clean run, the scores of attention edges are set to −∞; the other keys renormalise.
- `noise`: in the clean run, the values of runs with noise on the embeddings of the tokens at which the pair
  differs, averaged over seeded draws.

Whatever the kind, an effect is a share of the pair's own gap, so that all kinds of one question compare.
`Runs.effects` measures by the kind of its runs unless it is told otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from circuits.engine.rows import DIRECTIONS, Direction
from circuits.errors import PromptError, shortened
from circuits.prompts import NOISE_DRAWS, NOISE_SCALE, Prompt, to_prompt

_WORDS: Final[dict[Direction, str]] = {
    "swap": "the counterfactual's values in the clean run",
    "restore": "the clean values in the counterfactual run",
    "zero": "zeros in the clean run",
    "mean": "the mean over {} in the clean run",
    "knockout": "attention edges shut in the clean run, the other keys renormalise",
    "noise": f"the values of noisy runs ({NOISE_SCALE:g} σ on the changed tokens, {NOISE_DRAWS} draws) "
    "in the clean run",
}


@dataclass(frozen=True, slots=True)
class Ablation:
    """The kind of ablation and, of a mean, the prompts that it averages over."""

    kind: Direction = "swap"
    reference: tuple[Prompt, ...] = ()  # empty: the prompts of the family that was measured

    def __str__(self) -> str:
        count = len(self.reference)
        over = "the family"
        if count:
            over = f"{count} other prompt" if count == 1 else f"{count} other prompts"
        return f"{self.kind}: {_WORDS[self.kind].format(over)}"

    def over(self, prompts: Sequence[Prompt]) -> Ablation:
        """The same with these prompts as the reference of a mean, where the user named none."""
        if self.kind != "mean" or self.reference:
            return self
        return replace(self, reference=tuple(dict.fromkeys(prompts)))

    def reference_for(self, prompts: Sequence[Prompt]) -> list[Prompt]:
        """The prompts of the reference that have as many tokens as these prompts, which run together."""
        length = len(prompts[0])
        named = self.reference or prompts
        fitting = [prompt for prompt in named if len(prompt) == length]
        # Over a single prompt that is the measured one itself, the mean would change nothing.
        different = {prompt.tokens for prompt in fitting}
        measured = {prompt.tokens for prompt in prompts}
        if len(different) > 1 or different - measured:
            return fitting
        needs = f"ablation 'mean' averages over other prompts of {length} tokens"
        if self.reference:
            lengths = sorted({len(prompt) for prompt in self.reference})
            needs += f", and the reference has prompts of {', '.join(map(str, lengths))}"
        raise PromptError(f"{needs}; name some by reference=[…]")


SWAP: Final = Ablation()


def to_ablation(
    model: Any,
    kind: Direction | Ablation,
    reference: Sequence[str] | None = None,
    *,
    allowed: Sequence[Direction] = DIRECTIONS,
    of: str = "",
) -> Ablation:
    """The ablation that a user named, with the texts of its reference as this model reads them.

    `allowed` are the kinds that have a meaning for what is measured, which errors call `of`.
    """
    given = kind if isinstance(kind, Ablation) else Ablation(kind)
    name = given.kind
    if name not in DIRECTIONS:
        raise PromptError(f"no ablation {shortened(name)}; there are {', '.join(allowed)}")
    if name not in allowed:
        raise PromptError(f"{name} means nothing for {of}; there are {', '.join(allowed)}")
    if reference is None:
        return given
    if name != "mean":
        raise PromptError(f"reference= names the prompts of a mean; leave it out of {name}")
    if isinstance(reference, str) or not reference:
        raise PromptError("reference= is a list of texts whose mean is taken")
    return Ablation(name, tuple(to_prompt(model, text) for text in reference))
