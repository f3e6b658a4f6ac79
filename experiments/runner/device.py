"""Which device computes: whether it is there, its name in a path, and its description in a data file."""

import platform
import re
from collections.abc import Sequence
from pathlib import Path

from experiments.runner.experiment import UsageError


def require(device: str, allowed: Sequence[str] = ("cpu", "cuda")) -> None:
    """Refuse a device that the experiment does not take, and `cuda` where there is none, before anything is written."""
    if device not in allowed:
        raise UsageError(
            f"device={device}: expected {' or '.join(allowed)} for this experiment; pass --device {allowed[0]}"
        )
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise UsageError(
            f"device=cuda: expected a CUDA device, torch {torch.__version__} sees none; "
            "pass --device cpu, or install a CUDA build of torch"
        )


def slug(device: str) -> str:
    """Return `cpu`, or the card's name in small letters: NVIDIA H200 is nvidia-h200."""
    if device == "cpu":
        return "cpu"
    require(device)
    import torch

    return "-".join(re.findall("[a-z0-9]+", torch.cuda.get_device_name().lower()))


def describe(device: str) -> dict[str, str | None]:
    """Return what computed: for CUDA the card, its driver and the CUDA version that torch was built for."""
    if device == "cpu":
        return {"type": "cpu", "name": cpu_name()}
    import torch

    driver = Path("/proc/driver/nvidia/version")
    return {
        "type": "cuda",
        "name": torch.cuda.get_device_name(),
        "capability": ".".join(map(str, torch.cuda.get_device_capability())),
        "cuda": torch.version.cuda,
        "driver": driver.read_text(encoding="utf-8").splitlines()[0] if driver.exists() else None,
    }


def cpu_name() -> str:
    """Return the processor's name as Linux has it; elsewhere what Python knows."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
