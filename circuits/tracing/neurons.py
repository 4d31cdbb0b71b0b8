"""`neurons`: which neurons of an MLP carry its effect, what each reads, and which tokens it promotes.

1. Every neuron is swapped by itself, exactly, all in one batch (`engine.neurons`); then the strongest together,
   1, 2, 4, 8 … of them, which says how few carry the MLP's effect.
2. Of the strongest it is read which writers below changed its activation, and which tokens its direction
   raises. These are readings, not effects.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from circuits.components import Component
from circuits.engine import SWAP, Runs
from circuits.engine.neurons import MlpNeurons, UnitRuns, block_of, promoted_tokens
from circuits.errors import EdgeError, PromptError, names_its_keywords, shortened
from circuits.prompts import Prompt
from circuits.results import Progress, sha256_of, silent
from circuits.tracing.measure import both_values, measured_model
from circuits.tracing.neuron_record import NeuronEffect, Neurons
from circuits.tracing.records import Circuit
from circuits.tracing.rerun import run_again

LISTED: Final = 16  # neurons that are described
TOKENS: Final = 6  # that a neuron promotes
READ: Final = 4  # writers of a neuron


@names_its_keywords
def neurons(
    circuit: Circuit,
    mlp: str | Component,
    *,
    model: Any = None,
    progress: Progress = silent,
) -> Neurons:
    """Which neurons of an MLP (`M3@9`, or `M3` at all positions) carry its effect on the circuit's pair.

    `circuits.why(found, "M3@9")` is the same. `model` is needed where the circuit's own cannot be loaded by
    name.

        >>> found_in = circuits.neurons(found, "M0@5", model=model)
        >>> found_in.neurons[0].neuron < len(found_in.effects), f"{found_in.effect:.2f}"
        (True, '0.97')
    """
    if not isinstance(circuit, Circuit):
        raise PromptError(f"neurons are those of a circuit, not of {shortened(circuit)}")
    if circuit.family is not None:
        raise PromptError("the neurons of an MLP are those of one prompt; trace one of them")
    component, position = parse_mlp(mlp, circuit.prompt)
    (part,) = run_again(circuit, model=model, ablation=SWAP)  # neurons are swapped
    return explain_mlp(part.runs, component, position, seed=circuit.seed, progress=progress)


def is_mlp(name: Any) -> bool:
    """Whether a name is that of an MLP, such as `M3@9`, and not of a head."""
    if isinstance(name, Component):
        return name.kind == "mlp"
    return isinstance(name, str) and re.match(r"\s*m(lp)?\d", name, re.IGNORECASE) is not None


def parse_mlp(name: str | Component, prompt: Prompt) -> tuple[Component, int | None]:
    """The MLP and the position of a name such as `M3@9`, `M3@large` or `M3`."""
    if isinstance(name, Component):
        return _checked(name), None
    if not isinstance(name, str):
        raise EdgeError(
            f"{shortened(name)} is no MLP; name one as M3 or, at a position, as M3@9"
        )
    bare, at, position = name.strip().partition("@")
    component = _checked(Component.parse(bare))
    return component, prompt.position(position) if at else None


def _checked(component: Component) -> Component:
    if component.kind != "mlp":
        raise EdgeError(f"{component} is no MLP; name one as M3 or, at a position, as M3@9")
    return component


def explain_mlp(
    runs: Runs,
    mlp: Component,
    position: int | None,
    *,
    seed: int = 0,
    progress: Progress = silent,
) -> Neurons:
    """The neurons of one MLP, from runs that were already made; numbers are means over their pairs."""
    layers = runs.model.n_layers
    if mlp.layer >= layers:
        raise EdgeError(f"no {mlp} in {runs.model.name}, which has M0…M{layers - 1}")
    positions = tuple(range(runs.first_difference, runs.length))
    if position is not None:
        positions = (position,)
    units = MlpNeurons(block_of(runs, mlp.layer))
    measured = UnitRuns(runs, mlp.layer, positions, units)
    progress("neurons", 0, 1)
    count = len(units.directions)
    effects = measured.effects([[unit] for unit in range(count)]).double().mean(1).cpu().numpy()
    progress("neurons", 1, 1)
    order = np.argsort(-np.abs(effects), kind="stable").tolist()
    sizes = [2**power for power in range(count.bit_length()) if 2**power < count]
    sizes.append(count)
    groups = [order[:size] for size in sizes]
    joint = measured.effects(groups).double().mean(1).tolist()
    clean = measured.activations(clean=True).double().mean((0, 1))
    other = measured.activations(clean=False).double().mean((0, 1))
    arrays = {
        "effects": effects,
        "activations": clean.detach().cpu().numpy(),
        "counterfactual_activations": other.detach().cpu().numpy(),
    }
    pair = runs.pairs[0]
    value, counterfactual_value = both_values([runs])
    return Neurons(
        source=measured_model(runs),
        prompt=pair.clean,
        counterfactual=pair.counterfactual,
        metric=pair.metric,
        clean_value=value,
        counterfactual_value=counterfactual_value,
        mlp=mlp,
        position=position,
        effect=float(measured.whole_effect().double().mean()),
        joint=tuple(zip(sizes, joint, strict=True)),
        neurons=_described(measured, order[:LISTED], arrays),
        engine=runs.path,
        seed=seed,
        arrays_sha256=sha256_of(arrays),
        arrays=arrays,
    )


def _described(
    measured: UnitRuns, units: Sequence[int], arrays: dict[str, np.ndarray]
) -> tuple[NeuronEffect, ...]:
    """The strongest neurons, with what they read and the tokens that they promote."""
    runs = measured.runs
    writers, parts = measured.readings(units)
    names = [*map(str, writers), "biases"]
    directions = measured.units.directions[list(units)]
    raised, lowered = promoted_tokens(runs, directions, TOKENS)
    listed = []
    for number, unit in enumerate(units):
        own = parts[:, number].double().cpu()
        strongest = own.abs().argsort(descending=True, stable=True)[:READ].tolist()
        listed.append(
            NeuronEffect(
                neuron=unit,
                effect=float(arrays["effects"][unit]),
                activation=float(arrays["activations"][unit]),
                counterfactual_activation=float(arrays["counterfactual_activations"][unit]),
                reads=tuple((names[each], float(own[each])) for each in strongest),
                promotes=tuple(map(runs.model.spell, raised[number])),
                demotes=tuple(map(runs.model.spell, lowered[number])),
            )
        )
    return tuple(listed)
