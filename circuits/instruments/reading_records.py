"""The results of readings: direct logit attribution, the logit lens, and the scores of heads.

A reading is taken off one run or off the weights. It says what stands there, not what would be without it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar, Final

import numpy as np

from circuits.components import Head
from circuits.errors import EdgeError, PromptError
from circuits.instruments.grids import Axis, OnAxes
from circuits.prompts import Prompt
from circuits.results import Arrays, Pictured, Saved, require

READING: Final = "a reading, not an effect"
NAMED: Final = 0.5  # the least score that names a head


@dataclass(frozen=True, slots=True, repr=False)
class LogitAttribution(OnAxes, Saved, Pictured):
    """What each component writes in the direction of the answer. The parts and the biases add up to `totals`.

    >>> read = circuits.logit_attribution(model, TEXT, answer="small", foil="cold")
    >>> read.strongest(1)[0][0]
    ('M11',)
    """

    KIND: ClassVar = "attribution"
    NAME: ClassVar = "a direct logit attribution"
    MEASURE: ClassVar = "logits"

    model: str
    fingerprint: str  # sha256 of the model's weights
    layers: int
    heads: int
    prompts: tuple[Prompt, ...]
    answers: tuple[str, ...]  # one text for each prompt
    foils: tuple[str, ...]  # empty: the mean of all tokens
    totals: tuple[float, ...]  # the difference of logits of each prompt, as the model has it
    axes: tuple[Axis, ...]  # component: embed, L0H0 …, M0, …, biases
    arrays_sha256: str
    arrays: Arrays = field(compare=False, repr=False, hash=False)

    def part(self, name: str) -> float:
        """What one component writes, or the biases."""
        labels = self.axes[0].labels
        if name not in labels:
            known = "embed, heads such as L4H4, MLPs such as M3, and biases"
            raise EdgeError(f"no component {name!r} in {self.model}; there are {known}")
        return float(self.values[labels.index(name)])

    @property
    def by_head(self) -> np.ndarray:
        """The parts of the heads, (layer, head)."""
        return self._by_layer[:, :-1]

    @property
    def by_mlp(self) -> np.ndarray:
        """The parts of the MLPs, (layer)."""
        return self._by_layer[:, -1]

    @property
    def _by_layer(self) -> np.ndarray:
        """(layer, head and MLP)"""
        return self.values[1:-1].reshape(self.layers, self.heads + 1)

    def check(self) -> None:
        self.check_values(len(self.prompts))
        counts = {len(self.answers), len(self.foils), len(self.totals), len(self.prompts)}
        require(
            len(counts) == 1 and bool(self.prompts), "it has not one answer for each prompt"
        )
        size = 2 + self.layers * (self.heads + 1)
        require(self.shape == (size,), "its components are not those of its model")

    def __str__(self) -> str:
        from circuits.show.reading_figures import attribution_text

        return attribution_text(self)


@dataclass(frozen=True, slots=True, repr=False)
class LogitLens(OnAxes, Saved, Pictured):
    """What every layer would predict at every position. `values` are probabilities of the answer.

    >>> lens = circuits.logit_lens(model, TEXT)
    >>> lens.first_layer
    8
    """

    KIND: ClassVar = "lens"
    NAME: ClassVar = "a logit lens"
    MEASURE: ClassVar = "probability"

    model: str
    fingerprint: str  # sha256 of the model's weights
    prompt: Prompt
    answer: str
    top: tuple[tuple[str, ...], ...]  # (layer, position): the word that each layer would say
    axes: tuple[Axis, ...]  # layer (its input; the last: above all layers), position
    arrays_sha256: str
    # "values", "top" (its probability) and "ranks" (words that stand before the answer), (layer, position).
    arrays: Arrays = field(compare=False, repr=False, hash=False)

    @property
    def ranks(self) -> np.ndarray:
        """How many words stand before the answer, (layer, position)."""
        return self.arrays["ranks"]

    @property
    def first_layer(self) -> int | None:
        """The first layer at whose input, and above which, the answer is the first word at the end."""
        not_first = self.ranks[:, -1].nonzero()[0]
        first = 0 if len(not_first) == 0 else int(not_first[-1]) + 1
        return first if first < len(self.ranks) else None

    def check(self) -> None:
        self.check_values(1)
        for name in ("ranks", "top"):
            shaped = self.arrays.get(name, np.zeros(0)).shape == self.shape
            require(shaped, f"its {name} are not those of its layers and positions")
        words = {(len(self.top), len(row)) for row in self.top}
        require(words == {self.shape}, "its words are not those of its layers and positions")

    @property
    def summary(self) -> str:
        """The model, and from which layer on the answer is first."""
        from circuits.show.reading_figures import first_words

        return f"of {self.model}: {first_words(self)}"

    def __str__(self) -> str:
        from circuits.show.reading_figures import lens_text

        return lens_text(self)


@dataclass(frozen=True, slots=True, repr=False)
class HeadScores(OnAxes, Saved, Pictured):
    """How much each head does what heads are known to do, 0…1, on seeded random sequences.

    >>> scores = circuits.head_scores(circuits.load("planted-induction"))
    >>> scores.name("L1H2"), scores.name("L1H1")
    ('induction 1.00, copying 1.00', '')
    """

    KIND: ClassVar = "head_scores"
    NAME: ClassVar = "a table of head scores"
    MEASURE: ClassVar = "value"

    model: str
    fingerprint: str  # sha256 of the model's weights
    length: int  # tokens of a random sequence before it is repeated
    sequences: int
    words: int  # tokens that were tried for copying; 0 where it was not measured
    successions: int  # pairs such as Monday and Tuesday; 0 where the vocabulary has none
    seed: int
    axes: tuple[Axis, ...]  # score, layer, head
    arrays_sha256: str
    arrays: Arrays = field(compare=False, repr=False, hash=False)

    def score(self, name: str) -> np.ndarray:
        """One score of every head, (layer, head)."""
        names = self.axes[0].labels
        if name not in names:
            raise PromptError(f"no score {name!r} was measured; there are {', '.join(names)}")
        return self.values[names.index(name)]

    def of_head(self, head: str | Head) -> dict[str, float]:
        """Every score of one head."""
        parsed = Head.parse(head)
        _, layers, heads = self.shape
        if parsed.layer >= layers or parsed.index >= heads:
            last = Head(layers - 1, heads - 1)
            raise EdgeError(f"no head {parsed} in {self.model}, which has L0H0…{last}")
        values = self.values[:, parsed.layer, parsed.index].tolist()
        return dict(zip(self.axes[0].labels, values, strict=True))

    def name(self, head: str | Head) -> str:
        """What the head does by its scores of 0.5 and more, such as `induction 0.97`; empty if none is."""
        high = {name: value for name, value in self.of_head(head).items() if value >= NAMED}
        names = [f"{name} {value:.2f}" for name, value in high.items()]
        if list(high) == ["copying"]:
            names.append("name mover-like")
        return ", ".join(names)

    def check(self) -> None:
        self.check_values(1)
        names = [axis.name for axis in self.axes]
        require(names == ["score", "layer", "head"], "its axes are not score, layer and head")

    @property
    def summary(self) -> str:
        """The model, and the head with the highest score."""
        from circuits.show.reading_figures import strongest_words

        return f"of {self.model}: {strongest_words(self)}"

    def __str__(self) -> str:
        from circuits.show.reading_figures import scores_text

        return scores_text(self)
