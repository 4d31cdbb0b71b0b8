"""Where a model runs: devices by their names, and models that are placed on several of them.

Torch is imported when a device is asked for, so that looking for a model's files costs nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from circuits.errors import ModelError

if TYPE_CHECKING:
    import torch

Device: TypeAlias = "str | torch.device"


def to_device(name: Device, *, number: int = 0) -> Device:
    """A device of this machine. "auto" is a GPU, of several the one with this number, or else the CPU."""
    import torch

    if name == "auto":
        if not torch.cuda.is_available():
            return "cpu"
        return f"cuda:{number % torch.cuda.device_count()}"
    try:
        torch.empty(0, device=name)
    except (RuntimeError, AssertionError, TypeError, ValueError) as error:
        raise ModelError(
            f"there is no device {str(name)!r} here; there are {' and '.join(devices())}"
        ) from error
    return name


def devices() -> list[str]:
    """The devices of this machine, as `to_device` takes them."""
    import torch

    names = ["cpu"]
    names += [f"cuda:{number}" for number in range(torch.cuda.device_count())]
    if torch.backends.mps.is_available():
        names.append("mps")
    return [*names, "auto"]


def is_split(model: Any) -> bool:
    """Whether accelerate has placed the parts of a Hugging Face model on several devices
    (`device_map="auto"`); its own hooks then carry the data from one to the next."""
    placed = getattr(model, "hf_device_map", None) or {}
    return len(set(placed.values())) > 1


def refuse_offloaded(model: Any) -> None:
    """Refuse a model of which parts are not in memory: its weights could not be told from others."""
    if any(parameter.is_meta for parameter in model.parameters()):
        raise ModelError(
            "parts of this model are offloaded (to the disk, or to the CPU beside a GPU); load it with a "
            "device_map that keeps every part on a device, or in fewer bits (dtype=bfloat16)"
        )
