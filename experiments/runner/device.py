"""The device that computes: whether it exists, its name in a path, and its description in a data file."""

import platform
import re
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from experiments.runner.experiment import UsageError

SMI = "--query-gpu=driver_version,clocks.max.sm,clocks.max.memory,power.limit,ecc.mode.current"


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


def accelerator() -> str | None:
    """Return the type of the accelerator that torch sees, CUDA first; None if there is none."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    if not hasattr(torch, "accelerator"):  # before torch 2.6
        return None
    if not torch.accelerator.is_available():
        return None
    current = torch.accelerator.current_accelerator()
    return current.type if current else None


def slug(device: str) -> str:
    """Return `cpu`, or the accelerator's name in small letters: NVIDIA H200 is nvidia-h200."""
    if device == "cpu":
        return "cpu"
    if device == "cuda":
        require(device)
    return "-".join(re.findall("[a-z0-9]+", accelerator_name(device).lower()))


def accelerator_name(device: str) -> str:
    """Return what torch calls an accelerator, or its type with the name of the processor."""
    import torch

    module = torch.get_device_module(device)
    if hasattr(module, "get_device_name"):
        return str(module.get_device_name())
    return f"{device} of {cpu_name()}"


def describe(device: str) -> dict[str, object]:
    """Return a stable description of the device."""
    if device == "cpu":
        return {"type": "cpu", "name": cpu_name()}
    named: dict[str, object] = {"type": device, "name": accelerator_name(device)}
    return named | of_cuda() if device == "cuda" else named


def of_cuda() -> dict[str, object]:
    """Return what CUDA and nvidia-smi report, such as the driver and the highest clocks."""
    import torch

    card = torch.cuda.get_device_properties(0)
    said = ""
    if smi := shutil.which("nvidia-smi"):
        command = [smi, SMI, "--format=csv", "-i", f"GPU-{card.uuid}"]
        said = subprocess.run(command, stdout=subprocess.PIPE, text=True).stdout  # noqa: S603
    return {
        "capability": f"{card.major}.{card.minor}",
        "cuda": torch.version.cuda,
        "memory": card.total_memory,
        "processors": card.multi_processor_count,
        "nvidia-smi": said.splitlines(),
    }


def cpu_name() -> str:
    """Return the processor's name as Linux has it; elsewhere what Python knows."""
    info = Path("/proc/cpuinfo")
    text = info.read_text(encoding="utf-8", errors="replace") if info.exists() else ""
    found = re.search(r"^model name\s*:(.*)", text, re.MULTILINE)
    return found[1].strip() if found else platform.processor() or platform.machine()
