"""Numbers on named axes: what maps of effects and readings have in common, and the records of `patch` and `path`.

The numbers stand in `arrays`, as float64 with one axis for the pairs in front, and are written as safetensors
beside the JSON file. The axes have names and labels, so that no caller has to guess what is layer or head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING, Any, ClassVar, Literal

import numpy as np

from circuits.engine.ablation import Ablation
from circuits.errors import EdgeError
from circuits.prompts import Metric, Noise, Pair, Prompt
from circuits.results import Arrays, Pictured, Saved, require
from circuits.tracing.parts import FamilyControl, MeasuredModel, check_positions

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, slots=True)
class Axis:
    """One axis of an array: what runs along it, and the name of each place.

    >>> axis = circuits.Axis("head", ("0", "1"))
    >>> axis.name, len(axis)
    ('head', 2)
    """

    name: str
    labels: tuple[str, ...]

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def places(self) -> tuple[str, ...] | tuple[int, ...]:
        """The labels as they stand in a table: those of layers and heads as numbers."""
        if self.name in ("layer", "head") and all(label.isdecimal() for label in self.labels):
            return tuple(map(int, self.labels))
        return self.labels


class OnAxes:
    """A result whose numbers lie on named axes. `arrays["values"]` has the shape `(pair, *axes)`."""

    __slots__ = ()
    MEASURE: ClassVar[str]  # what the numbers are: "effect"
    axes: tuple[Axis, ...]
    arrays: Arrays

    @property
    def values(self) -> np.ndarray:
        """The numbers, with one axis for each of `axes`: the mean over the pairs."""
        return self.per_pair.mean(0)

    @property
    def per_pair(self) -> np.ndarray:
        """The numbers of every pair: the pair is the first axis, then come `axes`."""
        return self.arrays["values"]

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(map(len, self.axes))

    def strongest(self, most: int | None = None) -> list[tuple[tuple[str, ...], float]]:
        """The labels and the number of each cell, the largest in size first; cells without one are left out."""
        values = self.values
        cells = []
        labels = product(*(axis.labels for axis in self.axes))
        for place, value in zip(labels, values.flatten().tolist(), strict=True):
            if value == value:  # not NaN
                cells.append((place, value))
        cells.sort(key=lambda cell: -abs(cell[1]))
        return cells[:most]

    def to_dataframe(self, *, wide: bool = False) -> pd.DataFrame:
        """One row for each cell, with a column for each axis; `wide` is the map itself, of two axes. Layers and
        heads are numbers."""
        import pandas as pd

        if wide:
            rows, columns = self.axes
            index = pd.Index(rows.places, name=rows.name)
            return pd.DataFrame(
                self.values, index=index, columns=pd.Index(columns.places, name=columns.name)
            )
        places = list(product(*(axis.places for axis in self.axes)))
        frame = pd.DataFrame(places, columns=pd.Index([axis.name for axis in self.axes]))
        frame[self.MEASURE] = self.values.flatten()
        if len(self.per_pair) > 1:
            for number, values in enumerate(self.per_pair):
                frame[f"pair {number}"] = values.flatten()
        return frame

    def check_values(self, pairs: int) -> None:
        """Refuse numbers that do not lie on the axes."""
        stored = self.arrays.get("values", np.zeros(0))
        shaped = stored.shape == (pairs, *self.shape) and stored.dtype.kind == "f"
        require(shaped, f"its values are not numbers of {pairs} pairs on axes of {self.shape}")


class OfPairs(OnAxes):
    """Effects on named axes, measured on one pair or on several."""

    __slots__ = ()
    MEASURE: ClassVar = "effect"
    pairs: tuple[Pair, ...]
    clean_values: tuple[float, ...]  # of the metric, for each pair
    counterfactual_values: tuple[float, ...]

    @property
    def prompt(self) -> Prompt:
        """The first clean prompt."""
        return self.pairs[0].clean

    @property
    def counterfactual(self) -> Prompt | Noise:
        return self.pairs[0].counterfactual

    @property
    def metric(self) -> Metric:
        return self.pairs[0].metric

    @property
    def clean_value(self) -> float:
        """The metric on the clean prompts, averaged over the pairs."""
        return sum(self.clean_values) / len(self.clean_values)

    @property
    def counterfactual_value(self) -> float:
        return sum(self.counterfactual_values) / len(self.counterfactual_values)

    @property
    def gap(self) -> float:
        """How far the metric lies apart between both prompts, averaged over the pairs."""
        return self.clean_value - self.counterfactual_value

    def check_pairs(self) -> None:
        """Refuse numbers that are not those of the pairs."""
        require(bool(self.pairs), "it has no pairs")
        values = (self.clean_values, self.counterfactual_values)
        one_each = all(len(each) == len(self.pairs) for each in values)
        require(one_each, "it does not have the metric of every pair")
        self.check_values(len(self.pairs))


@dataclass(frozen=True, slots=True, repr=False)
class Patching(OfPairs, Saved, Pictured):
    """The effect of patching one kind of site at every place, as a share of the gap.

    >>> patched = circuits.patch(model, TEXT, "residual", swap={"large": "hot"})
    >>> [axis.name for axis in patched.axes], patched.values.shape
    (['layer', 'position'], (13, 9))
    >>> circuits.Patching.load(patched.save(folder / "patch")) == patched
    True
    """

    KIND: ClassVar = "patch"
    NAME: ClassVar = "a map of patched sites"

    source: MeasuredModel
    pairs: tuple[Pair, ...]
    sites: str
    ablation: Ablation
    # Which were patched: together, or each by itself where an axis says so.
    positions: tuple[int, ...]
    axes: tuple[Axis, ...]
    clean_values: tuple[float, ...]  # of the metric, for each pair
    counterfactual_values: tuple[float, ...]
    question: FamilyControl
    notes: tuple[str, ...]
    weak: int  # pairs that were left out: their gap is too small
    engine: Literal["fast", "plain"]
    seed: int
    versions: tuple[tuple[str, str], ...]
    arrays_sha256: str
    arrays: Arrays = field(compare=False, repr=False, hash=False)

    def check(self) -> None:
        self.check_pairs()
        check_positions(self.positions, len(self.pairs[0]))

    @property
    def summary(self) -> str:
        """The model, what was patched, and where it is strongest."""
        from circuits.show.heatmaps import grid_words

        return f"of {self.source.name}: {grid_words(self)[0]}"

    def __str__(self) -> str:
        from circuits.show.heatmaps import grid_text

        return grid_text(self)


@dataclass(frozen=True, slots=True, repr=False)
class Paths(OfPairs, Saved, Pictured):
    """The effect of single paths from senders to receivers, as a share of the gap; NaN where none was asked.

    >>> paths = circuits.path(model, pair, "L4H0, L4H5 → L5H1.value, M5")
    >>> [axis.name for axis in paths.axes], paths.values.shape
    (['sender', 'receiver'], (2, 2))
    >>> circuits.Paths.load(paths.save(folder / "paths")) == paths
    True
    """

    KIND: ClassVar = "paths"
    NAME: ClassVar = "a record of paths"

    source: MeasuredModel
    pairs: tuple[Pair, ...]
    wires: tuple[str, ...]  # the names of the wires that were measured
    ablation: Ablation
    axes: tuple[Axis, ...]
    clean_values: tuple[float, ...]  # of the metric, for each pair
    counterfactual_values: tuple[float, ...]
    question: FamilyControl
    notes: tuple[str, ...]
    weak: int  # pairs that were left out: their gap is too small
    engine: Literal["fast", "plain"]
    seed: int
    versions: tuple[tuple[str, str], ...]
    arrays_sha256: str
    arrays: Arrays = field(compare=False, repr=False, hash=False)

    def effect(self, sender: str | None = None, receiver: str | None = None) -> float:
        """The effect of one path, by the labels of the axes; without them, of the only one there is."""
        found = []
        for (own_sender, own_receiver), value in self.strongest():
            if sender in (None, own_sender) and receiver in (None, own_receiver):
                found.append(value)
        if len(found) != 1:
            named = "; ".join(f"{axis.name}s {', '.join(axis.labels)}" for axis in self.axes)
            raise EdgeError(f"{len(found)} paths are meant; name one by its ends: {named}")
        return found[0]

    def check(self) -> None:
        self.check_pairs()

    @property
    def summary(self) -> str:
        """The model, what was patched, and where it is strongest."""
        from circuits.show.heatmaps import grid_words

        return f"of {self.source.name}: {grid_words(self)[0]}"

    def __str__(self) -> str:
        from circuits.show.heatmaps import grid_text

        return grid_text(self)


def position_labels(prompts: Sequence[Prompt], positions: Sequence[int]) -> tuple[str, ...]:
    """`large(5)`; where the prompts have different words at a position, its index alone."""
    labels = []
    for position in positions:
        words = {prompt.words[position].strip() for prompt in prompts}
        word = words.pop() if len(words) == 1 else ""
        labels.append(f"{word}({position})" if word else f"({position})")
    return tuple(labels)


def values_on(axes: tuple[Axis, ...], flat: Any) -> np.ndarray:
    """(cell, pair) as (pair, *axes), in float64."""
    shape = tuple(map(len, axes))
    return np.ascontiguousarray(np.asarray(flat, dtype=np.float64).T.reshape(-1, *shape))
