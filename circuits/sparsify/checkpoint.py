"""What a restarted training needs: a checkpoint (weights, AdamW's moments, progress) and the log.

A checkpoint is a safetensors file with a tensor `value/NAME` for each parameter and, once it was trained,
`exp_avg/NAME` and `exp_avg_sq/NAME`. Its metadata hold `progress`, a JSON object with the number of steps.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from circuits.errors import FileError
from circuits.files import check_regular, parse_json, write_whole
from circuits.models.folder import NO_LIMIT

Parameters = dict[str, torch.nn.Parameter]
REMEDY: Final = "choose another folder or delete it"
# What AdamW keeps of each parameter, besides the step.
_MOMENTS: Final = ("exp_avg", "exp_avg_sq")


def save_checkpoint(
    path: Path, parameters: Parameters, optimizer: Any, **progress: Any
) -> None:
    """Write parameters, AdamW's moments and `progress` (plain values, with `step`), whole or not at all."""
    tensors = {}
    for name, parameter in parameters.items():
        tensors[f"value/{name}"] = parameter.detach().contiguous()
        for moment in _MOMENTS:
            if moment in optimizer.state.get(parameter, {}):
                tensors[f"{moment}/{name}"] = optimizer.state[parameter][moment].contiguous()
    metadata = {"progress": json.dumps(progress)}
    write_whole(path, lambda file: save_file(tensors, file, metadata=metadata))


def load_checkpoint(path: Path, parameters: Parameters, optimizer: Any) -> dict[str, Any]:
    """Restore a checkpoint and return its `progress`. One that does not fit the model changes nothing."""
    progress, tensors = _read(path)
    for name, parameter in parameters.items():
        if f"value/{name}" not in tensors:
            raise FileError(
                f"{path} is not a checkpoint of this model: it lacks {name}; {REMEDY}"
            )
        for kind in ("value", *_MOMENTS):
            stored = tensors.get(f"{kind}/{name}")
            if stored is not None and stored.shape != parameter.shape:
                raise FileError(
                    f"{path} is not a checkpoint of this model: {name} has another shape; {REMEDY}"
                )
    for name, parameter in parameters.items():
        parameter.data.copy_(tensors[f"value/{name}"])
        moments = {
            kind: tensors[f"{kind}/{name}"] for kind in _MOMENTS if f"{kind}/{name}" in tensors
        }
        if moments:
            step = torch.tensor(float(progress["step"]), device=parameter.device)
            optimizer.state[parameter] = {"step": step}
            for kind, moment in moments.items():
                optimizer.state[parameter][kind] = moment.to(parameter)
    return progress


def _read(path: Path) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The progress in a checkpoint and its tensors."""
    check_regular(path, most=NO_LIMIT)
    try:
        with safe_open(path, framework="pt") as stored:
            progress = parse_json(
                (stored.metadata() or {}).get("progress", ""), f"the progress in {path}"
            )
            tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, ValueError) as why:
        raise FileError(f"{path} is not a whole checkpoint ({why}); {REMEDY}") from why
    if not isinstance(progress, dict) or not isinstance(progress.get("step"), int):
        raise FileError(f"{path} is not a checkpoint: it does not say how many steps are done")
    return progress, tensors


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, without a last one that a killed process left unfinished."""
    lines = []
    if path.exists():
        for line in path.read_text().splitlines():
            try:
                lines.append(json.loads(line))
            except ValueError:
                continue
    return lines
