"""The device that computes: whether it exists, its name in a path, and its description in a data
file.
"""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.runner.experiment import UsageError


def require(device: str, allowed: Sequence[str] = ("cpu", "cuda")) -> None:
    """Raise UsageError for a device that the experiment does not support, or that is missing."""
    if device not in allowed:
        raise UsageError(
            f"device={device}: expected {' or '.join(allowed)} for this experiment; pass --device {allowed[0]}"
        )
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device=cuda: torch {torch.__version__} finds no CUDA device; "
            "pass --device cpu, or install a CUDA build of torch"
        )


def slug(device: str) -> str:
    """Return `cpu`, or the card's name in small letters: NVIDIA H200 is nvidia-h200."""
    if device == "cpu":
        return "cpu"
    import torch

    require(device)
    return "-".join(re.findall("[a-z0-9]+", torch.cuda.get_device_name().lower()))


def describe(device: str) -> dict[str, object]:
    """Return a stable description of the device."""
    if device == "cpu":
        return {"type": "cpu", "name": cpu_name()}
    import torch

    card = torch.cuda.get_device_properties(0)
    return {
        "type": device,
        "name": card.name,
        "capability": f"{card.major}.{card.minor}",
        "cuda": torch.version.cuda,
        "memory": card.total_memory,
        "processors": card.multi_processor_count,
    }


def cpu_name() -> str:
    """Return the processor's name as Linux has it; elsewhere what Python knows."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
