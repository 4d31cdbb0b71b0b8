"""Training state on disk: written whole or not at all, read without pickle, enough to resume exactly."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from circuits.errors import FileError
from circuits.files import check_regular, parse_json

Parameters = dict[str, torch.nn.Parameter]

_MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW keeps of each parameter, besides the step
_REMEDY = "choose another folder or delete it"


def save_checkpoint(
    path: Path, parameters: Parameters, optimizer: torch.optim.Optimizer, **progress: Any
) -> None:
    """Write parameters, AdamW's moments and `progress` (plain values, with `step`), whole or not at all."""
    tensors = {f"value/{name}": parameter.detach().contiguous() for name, parameter in parameters.items()}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{moment}/{name}": state[moment].contiguous() for moment in _MOMENTS if moment in state}
    unfinished = path.with_suffix(".unfinished")
    try:
        save_file(tensors, unfinished, metadata={"progress": json.dumps(progress)})
        with unfinished.open("rb") as written:
            os.fsync(written.fileno())
        unfinished.replace(path)
    except (OSError, SafetensorError):
        unfinished.unlink(missing_ok=True)
        raise


def load_checkpoint(path: Path, parameters: Parameters, optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Restore a checkpoint and return its `progress`; one that does not fit changes nothing."""
    check_regular(path, most=2**63)
    try:
        with safe_open(path, framework="pt") as stored:
            progress = _read_progress(path, stored)
            _check_shapes(path, stored, parameters)
            for name, parameter in parameters.items():
                _restore(name, parameter, stored, optimizer, float(progress["step"]))
    except (OSError, SafetensorError, ValueError, RuntimeError) as why:
        raise FileError(f"{path} is not a whole checkpoint ({why}); {_REMEDY}") from why
    return progress


def _read_progress(path: Path, stored: Any) -> dict[str, Any]:
    progress = parse_json((stored.metadata() or {}).get("progress", ""), f"the progress in {path}")
    if not isinstance(progress, dict) or type(progress.get("step")) is not int or progress["step"] < 0:
        raise FileError(f"{path} is not a checkpoint: it does not say how many steps are done")
    return progress


def _check_shapes(path: Path, stored: Any, parameters: Parameters) -> None:
    shapes = {name: tuple(stored.get_slice(name).get_shape()) for name in stored.keys()}  # noqa: SIM118
    refused = f"{path} is not a checkpoint of this model"
    for name, parameter in parameters.items():
        value, *moments = (shapes.get(f"{kind}/{name}") for kind in ("value", *_MOMENTS))
        if value is None or (moments[0] is None) != (moments[1] is None):
            raise FileError(f"{refused}: it lacks {name}; {_REMEDY}")
        if any(shape not in (None, tuple(parameter.shape)) for shape in (value, *moments)):
            raise FileError(f"{refused}: {name} has another shape; {_REMEDY}")


def _restore(
    name: str, parameter: torch.nn.Parameter, stored: Any, optimizer: torch.optim.Optimizer, step: float
) -> None:
    parameter.data.copy_(stored.get_tensor(f"value/{name}"))
    if f"exp_avg/{name}" in stored.keys():  # noqa: SIM118
        moments = {moment: stored.get_tensor(f"{moment}/{name}").to(parameter.device) for moment in _MOMENTS}
        optimizer.state[parameter] = {"step": torch.tensor(step, device=parameter.device), **moments}
