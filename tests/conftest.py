"""Fixtures that several files share. What they need is imported when it is needed: the process that hands out
the tests to others needs none of it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from shapes import check_shapes

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from circuits.models.model import Model

ARCHITECTURES = ("gpt2", "llama", "neox")
ENGINE = ("block", "edges", "forward", "kept", "layout", "plain", "qk", "rows", "runs", "wires")
CHECKED = [f"circuits.engine.{name}" for name in ENGINE]
CHECKED += ["circuits.models.hooks", "circuits.models.model"]
CHECKED += ["circuits.sparsify.attention", "circuits.tracing.family"]
check_shapes(CHECKED)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """One Chromium for all tests of a process; each test opens pages of its own."""
    from chromium import launched

    with launched() as opened:
        yield opened


@pytest.fixture(scope="session")
def directories(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A directory for each architecture. Tests must not write into them."""
    from small_models import random_model, save

    parent = tmp_path_factory.mktemp("models")
    return {name: save(random_model(name), parent / name) for name in ARCHITECTURES}


@pytest.fixture(scope="session")
def models(directories: dict[str, Path]) -> dict[str, Model]:
    """Each architecture, loaded."""
    from circuits.models.load import load

    return {name: load(folder) for name, folder in directories.items()}


@pytest.fixture(params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, models: dict[str, Model]) -> Model:
    """One architecture after the other."""
    return models[request.param]


@pytest.fixture(scope="session")
def results(
    models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, Any]:
    """One result of every kind, each measured when a test first asks for it."""
    from small_models import EveryKind

    return EveryKind(models["gpt2"], tmp_path_factory.mktemp("results"))
