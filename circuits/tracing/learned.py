"""Whether a model shows any sign of having learned something: its weights, or else what it says of a prompt.

1. A matrix of independent random numbers with standard deviation s and shape (n, m) has a largest singular
   value of about s(√n + √m). Training adds directions that stick out. Of the model's matrices (at most 32,
   evenly chosen) the median of measured over expected is taken: random weights have 1 or a little less; the
   trained and the hand-built models of this package have 1.5 to 7.
2. Where the weights look random, the model is still believed if it predicts the words of the prompt clearly
   better than a guess among all words.
"""

from __future__ import annotations

import math
from statistics import median
from typing import Final
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Float

from circuits.engine import Runs
from circuits.models.model import Model

STRUCTURED: Final = 1.15  # of the largest singular value that random weights would have
BETTER: Final = 1.0  # nats a word, by which the prompt must be better predicted than by a guess
_MATRICES: Final = 32
_NARROWEST: Final = 8  # smaller matrices say nothing
_STEPS: Final = 16  # of power iteration
_FEWEST: Final = 4  # predicted words
_MOST: Final = 64
_structure: WeakKeyDictionary[Model, float] = WeakKeyDictionary()


def nothing_learned(runs: Runs, pair: int) -> str | None:
    """Why the model of these runs cannot know the text of a pair; None if nothing speaks against it."""
    structure = structure_of(runs.model)
    if structure >= STRUCTURED:
        return None
    weights = (
        f"its weights look random (largest singular values {structure:.2f} of those of noise)"
    )
    words = words_predicted(runs, pair)
    if len(words) < _FEWEST:
        return f"nothing shows that the model has learned anything: {weights}"
    guess = -math.log(runs.model.vocab_size)
    mean = float(words.mean())
    if mean >= guess + BETTER:
        return None
    predicted = (
        f"it predicts the words of the prompt at {mean:.1f} nats, a guess has {guess:.1f}"
    )
    return f"nothing shows that the model has learned anything: {predicted}, and {weights}"


def words_predicted(runs: Runs, pair: int) -> Float[torch.Tensor, " word"]:
    """The log-probability of each word of a pair's clean prompt, given those before it."""
    tokens = torch.tensor(
        [runs.pairs[pair].clean.tokens[: _MOST + 1]], device=runs.model.device
    )
    predictions = runs.model.logits(tokens)[0, :-1].float().log_softmax(-1)  # (word, vocab)
    return predictions.gather(1, tokens[0, 1:, None])[:, 0]


def structure_of(model: Model) -> float:
    """The median over the model's matrices of their largest singular value, as a multiple of what random
    numbers of the same size would have; infinite where no matrix is large enough to tell."""
    if model not in _structure:
        matrices = []
        for parameter in model.bridge.parameters():
            if parameter.ndim >= 2:
                matrix = parameter.detach().reshape(-1, parameter.shape[-1])
                if min(matrix.shape) >= _NARROWEST:
                    matrices.append(matrix)
        step = max(1, len(matrices) // _MATRICES)
        ratios = [_beside_noise(matrix.float()) for matrix in matrices[::step]]
        _structure[model] = median(ratios) if ratios else math.inf
    return _structure[model]


def _beside_noise(matrix: Float[torch.Tensor, "row column"]) -> float:
    """The largest singular value by power iteration, over that of random numbers of this shape and size."""
    deviation = float(matrix.square().mean().sqrt())
    if deviation == 0:
        return math.inf
    generator = torch.Generator().manual_seed(0)
    vector = torch.randn(matrix.shape[1], generator=generator).to(matrix.device)
    for _ in range(_STEPS):
        vector = matrix.T @ (matrix @ vector)
        vector = vector / vector.norm()
    largest = float((matrix @ vector).norm())
    rows, columns = matrix.shape
    return largest / (deviation * (math.sqrt(rows) + math.sqrt(columns)))
