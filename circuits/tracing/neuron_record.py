"""The result of `neurons`: the neurons of one MLP that carry its effect."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, Literal

import numpy as np

from circuits.components import Component
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, Pictured, Saved, require
from circuits.tracing.parts import MeasuredModel, check_positions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class NeuronEffect:
    """One neuron: its exact effect, and what is read off it."""

    neuron: int
    effect: float  # swapped by itself, as a share of the gap
    activation: float  # in the clean run, averaged over the positions
    counterfactual_activation: float
    # Writers below with the largest parts of its change from the counterfactual to the clean run: a reading.
    reads: tuple[tuple[str, float], ...]
    promotes: tuple[str, ...]  # tokens whose logits its direction raises most: a reading
    demotes: tuple[str, ...]


@dataclass(frozen=True, slots=True, repr=False)
class Neurons(Saved, Pictured):
    """Which neurons of one MLP carry its effect.

    >>> found_in = circuits.neurons(found, "M0@5", model=model)
    >>> found_in.effects.shape
    (576,)
    """

    KIND: ClassVar = "neurons"
    NAME: ClassVar = "an explanation of an MLP"

    source: MeasuredModel
    prompt: Prompt
    counterfactual: Prompt | Noise
    metric: Metric
    clean_value: float
    counterfactual_value: float
    mlp: Component
    position: int | None  # None: at all positions where the pair can differ
    effect: float  # of all that the MLP writes there
    # How many of the strongest neurons were swapped together, and their effect.
    joint: tuple[tuple[int, float], ...]
    neurons: tuple[NeuronEffect, ...]  # the strongest, strongest first
    engine: Literal["fast", "plain"]
    seed: int
    arrays_sha256: str
    # "effects", "activations" and "counterfactual_activations" of all neurons, (neuron).
    arrays: Arrays = field(compare=False, repr=False, hash=False)

    @property
    def gap(self) -> float:
        return self.clean_value - self.counterfactual_value

    @property
    def effects(self) -> np.ndarray:
        """The effect of every neuron swapped by itself, (neuron)."""
        return self.arrays["effects"]

    @property
    def name(self) -> str:
        """`M3@9`, or `M3` at all positions."""
        return str(self.mlp) if self.position is None else f"{self.mlp}@{self.position}"

    def to_dataframe(self) -> pd.DataFrame:
        """One row for each neuron, the strongest first."""
        import pandas as pd

        frame = pd.DataFrame({"neuron": np.arange(len(self.effects)), "effect": self.effects})
        frame["activation"] = self.arrays["activations"]
        frame["counterfactual_activation"] = self.arrays["counterfactual_activations"]
        order = np.argsort(-np.abs(self.effects), kind="stable")
        return frame.iloc[order].reset_index(drop=True)

    def check(self) -> None:
        # Refuses prompts of different lengths.
        Pair(self.prompt, self.counterfactual, self.metric)
        require(self.mlp.kind == "mlp", f"{self.mlp} is no MLP")
        check_positions([] if self.position is None else [self.position], len(self.prompt))
        names = ("effects", "activations", "counterfactual_activations")
        shapes = {self.arrays.get(name, np.zeros((0, 0))).shape for name in names}
        count = len(self.arrays.get("effects", ()))
        require(shapes == {(count,)}, "it does not have the same numbers for each neuron")
        inside = all(0 <= each.neuron < count for each in self.neurons)
        require(inside, "it describes a neuron that its MLP lacks")

    @property
    def summary(self) -> str:
        """The model, the MLP with its effect, and how many neurons it has."""
        effect = f"effect {self.effect:z.3f}, {len(self.effects)} neurons"
        return f"of {self.source.name}: {self.name}: {effect}"

    def __str__(self) -> str:
        from circuits.show.neuron_figures import neurons_text

        return neurons_text(self)
