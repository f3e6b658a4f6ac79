"""The device that is looked at: its name in a path, and what is known of it."""

import platform
import re
import shutil
import subprocess

import torch

from ampsim.records import Record

ASKED = ("driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit", "ecc.mode.current")


class Skipped(Exception):  # noqa: N818 - nothing is wrong
    """A probe has nothing to look at here, and says why."""


def chosen(device: str | None) -> str:
    """Return the device that was asked for, else a card where there is one; raise ValueError for one that is not."""
    there = torch.cuda.is_available()
    device = device or ("cuda" if there else "cpu")
    if device not in ("cpu", "cuda"):
        raise ValueError(f"device={device}: expected cuda, or cpu to try it; pass --device cuda")
    if device == "cuda" and not there:
        raise ValueError(
            f"device=cuda: expected a CUDA device, torch {torch.__version__} sees none; "
            "pass --device cpu to try it, or install a CUDA build of torch"
        )
    return device


def slug(device: str) -> str:
    """Return `cpu`, or the card's name in small letters, joined by hyphens."""
    return "cpu" if device == "cpu" else "-".join(re.findall("[a-z0-9]+", torch.cuda.get_device_name().lower()))


def describe(device: str) -> Record:
    """Return what stays the same of a device from one start to the next; driver and clocks as nvidia-smi has them."""
    if device == "cpu":
        return {"type": "cpu", "name": platform.processor() or platform.machine()}
    it = torch.cuda.get_device_properties(0)
    return {
        "type": "cuda", "name": it.name, "capability": f"{it.major}.{it.minor}", "cuda": torch.version.cuda,
        "memory": it.total_memory, "processors": it.multi_processor_count, **asked(f"GPU-{it.uuid}"),
    }  # fmt: skip


def asked(uuid: str) -> dict[str, str]:
    """Return what nvidia-smi says of a card; nothing where it is not there or does not say."""
    if not (tool := shutil.which("nvidia-smi")):
        return {}
    command = [tool, f"--query-gpu={','.join(ASKED)}", "--format=csv,noheader", "-i", uuid]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip().split(", ")  # noqa: S603
    return dict(zip(ASKED, said, strict=True)) if len(said) == len(ASKED) else {}


def free_memory(device: str) -> int:
    """Return the bytes that are free on a card; 0 on the CPU, where nothing large is tried."""
    return torch.cuda.mem_get_info()[0] if device == "cuda" else 0
