"""The device that is looked at: its name in a path, and what is known of it."""

import platform
import re
import shutil
import subprocess

import torch

from ampsim.records import Record

CLOCKS = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit", "ecc.mode.current")


def chosen(device: str | None) -> str:
    """Return the device that was asked for, else a card where there is one; raise ValueError for one that is not."""
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: expected cuda, or cpu to try it; pass --device cuda")
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"device=cuda: expected a CUDA device, torch {torch.__version__} sees none; "
            "pass --device cpu to try it, or install a CUDA build of torch"
        )
    return device


def slug(device: str) -> str:
    """Return `cpu`, or the card's name in small letters, joined by hyphens."""
    return "cpu" if device == "cpu" else "-".join(re.findall("[a-z0-9]+", torch.cuda.get_device_name().lower()))


def describe(device: str) -> Record:
    """Return what stays the same of a device from one start to the next."""
    if device == "cpu":
        return {"type": "cpu", "name": platform.processor() or platform.machine()}
    it = torch.cuda.get_device_properties(0)
    return {
        "type": "cuda", "name": it.name, "capability": f"{it.major}.{it.minor}", "cuda": torch.version.cuda,
        "memory": it.total_memory, "processors": it.multi_processor_count, **asked(f"GPU-{it.uuid}"),
    }  # fmt: skip


def asked(uuid: str) -> dict[str, str]:
    """Return driver and clocks as nvidia-smi has them; nothing where it is not there or does not say."""
    tool = shutil.which("nvidia-smi")
    command = [tool or "", f"--query-gpu={','.join(CLOCKS)}", "--format=csv,noheader", "-i", uuid]
    done = subprocess.run(command, capture_output=True, text=True, check=False) if tool else None  # noqa: S603
    said = done.stdout.strip().split(", ") if done and done.returncode == 0 else []
    return dict(zip(CLOCKS, said, strict=True)) if len(said) == len(CLOCKS) else {}


def free_memory(device: str) -> int:
    """Return the bytes that are free on a card; 0 on the CPU, where nothing large is tried."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0
