"""Trainings one after another, each from the weights of the one before: how the twins that ship were made.

1. Every stage has a folder of its own and can be killed: the same command goes on where it was.
2. The card of the last stage names the earlier ones and shows how they went.
"""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from circuits.sparsify import Settings, Sparsity, sparsify
from circuits.sparsify.sampling import Sampling

_FIGURE = "![open edges, multiplier and gap over steps](training.svg)"


@dataclass(frozen=True, slots=True)
class Stage:
    """One training: the name of its folder, how it learns and from what."""

    name: str
    settings: Settings
    sampling: Sampling
    prompts: Sampling | None = None

    def __str__(self) -> str:
        steps, gap = self.settings.all_steps, self.settings.gap
        return f"{self.name}, {steps} steps with a budget of {gap:g} nats"


def parser(documentation: str | None) -> argparse.ArgumentParser:
    """What every script that trains takes: a folder; its help is the first line of its documentation."""
    given = argparse.ArgumentParser(description=(documentation or "").splitlines()[0])
    given.add_argument("folder", type=Path)
    return given


def train_stages(model: str, folder: Path, stages: Sequence[Stage]) -> Sparsity:
    """Train all stages, or what is left of them; returns what was measured of the last."""
    measured, before = None, None
    for stage in stages:
        source = {"sampling": stage.sampling, "prompts": stage.prompts, "after": before}
        before = folder / stage.name
        measured = sparsify(model, before, settings=stage.settings, save_every=60, **source)
    if measured is None:
        raise ValueError("a twin takes at least one stage")
    _tell(folder, stages)
    return measured


def _tell(folder: Path, stages: Sequence[Stage]) -> None:
    """Say in the last stage's card which stages came before it, with their figures."""
    *earlier, last = stages
    card = folder / last.name / "README.md"
    each = "; then ".join(map(str, stages))
    told = [f"Trained in {len(stages)} stages: {each}. The settings below are the last one's."]
    for stage in earlier:
        figure = f"{stage.name}-training.svg"
        shutil.copyfile(folder / stage.name / "training.svg", card.with_name(figure))
        told.append(f"![how the stage `{stage.name}` went]({figure})")
    told.append(f"![how the stage `{last.name}` went](training.svg)")
    card.write_text(card.read_text(encoding="utf-8").replace(_FIGURE, "\n\n".join(told)), encoding="utf-8")
