"""Trainings one after another, each from the weights of the one before: how the twins that ship were made.

1. Every stage has a folder of its own. A stage that was stopped goes on where it was, by the same command.
2. The card of the last stage names the earlier ones and shows their figures.
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
    """The command line of a script that trains: a folder. Its help is the first line of the script's
    documentation."""
    arguments = argparse.ArgumentParser(description=(documentation or "").splitlines()[0])
    arguments.add_argument("folder", type=Path)
    return arguments


def train_stages(model: str, folder: Path, stages: Sequence[Stage]) -> Sparsity:
    """Train all stages, or what is left of them; returns what was measured of the last."""
    measured = None
    before = None  # the folder of the stage before
    for stage in stages:
        measured = sparsify(
            model,
            folder / stage.name,
            settings=stage.settings,
            save_every=60,
            sampling=stage.sampling,
            prompts=stage.prompts,
            after=before,
        )
        before = folder / stage.name
    if measured is None:
        raise ValueError("a twin takes at least one stage")
    _add_stages_to_card(folder, stages)
    return measured


def _add_stages_to_card(folder: Path, stages: Sequence[Stage]) -> None:
    """Name all stages in the card of the last one, with their figures."""
    *earlier, last = stages
    card = folder / last.name / "README.md"
    names = "; then ".join(str(stage) for stage in stages)
    paragraphs = [
        f"Trained in {len(stages)} stages: {names}. The settings below are the last one's."
    ]
    for stage in earlier:
        figure = f"{stage.name}-training.svg"
        shutil.copyfile(folder / stage.name / "training.svg", card.with_name(figure))
        paragraphs.append(f"![how the stage `{stage.name}` went]({figure})")
    paragraphs.append(f"![how the stage `{last.name}` went](training.svg)")
    text = card.read_text(encoding="utf-8").replace(_FIGURE, "\n\n".join(paragraphs))
    card.write_text(text, encoding="utf-8")
