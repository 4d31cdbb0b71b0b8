"""Training state on disk: written whole or not at all, read without pickle, enough to go on as if never stopped."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save_file

_MOMENTS = ("exp_avg", "exp_avg_sq")  # what AdamW remembers of each parameter, besides the step


def save_checkpoint(path: Path, parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer, **progress: Any) -> None:
    """Write parameters, AdamW's moments and `progress` (plain values, `step` among them) to one safetensors file, atomically."""
    tensors = {f"value/{name}": p.detach().contiguous() for name, p in parameters.items()}
    for name, parameter in parameters.items():
        state = optimizer.state.get(parameter, {})
        tensors |= {f"{moment}/{name}": state[moment].contiguous() for moment in _MOMENTS if moment in state}
    unfinished = path.with_suffix(".unfinished")
    save_file(tensors, unfinished, metadata={"progress": json.dumps(progress)})
    with unfinished.open("rb") as written:
        os.fsync(written.fileno())
    unfinished.replace(path)


def load_checkpoint(path: Path, parameters: dict[str, torch.nn.Parameter], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """Put a checkpoint's values back in place and return its `progress`."""
    with safe_open(path, framework="pt") as stored:
        progress = json.loads(stored.metadata()["progress"])
        names = set(stored.keys())
        for name, parameter in parameters.items():
            parameter.data.copy_(stored.get_tensor(f"value/{name}"))
            if f"exp_avg/{name}" in names:
                moments = {moment: stored.get_tensor(f"{moment}/{name}").to(parameter.device) for moment in _MOMENTS}
                optimizer.state[parameter] = {"step": torch.tensor(float(progress["step"])), **moments}
    return progress
