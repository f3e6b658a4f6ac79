"""All probes of a card, in order, within a time, into one file."""

import hashlib
import platform
import re
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from importlib.metadata import distributions, version
from pathlib import Path

import torch

from ampsim import __version__
from ampsim.card import claims, probes
from ampsim.card.verify import read, write
from ampsim.core.files import sole_writer
from ampsim.records import Record, decode, difference, encode

Probe = Callable[[str], Iterator[Record]]
PROBES: dict[str, Probe] = {  # the most valuable first
    "kit torch": partial(probes.ask_laws, "torch"),
    "kit ampsim": partial(probes.ask_laws, "ampsim"),
    "streams": partial(probes.compare, "behind", "in order"),
    "gpt small": partial(probes.train_both, "small"),
    "gpt2-small": partial(probes.train_both, "gpt2-small"),
    "arithmetic": probes.compare_arithmetic,
    "overhead": probes.time_steps,
}
SMI = "--query-gpu=driver_version,clocks.max.sm,clocks.max.memory,power.limit,ecc.mode.current"


def describe(device: str) -> Record:
    """Return what stays the same of a device from one start to the next; driver and clocks as nvidia-smi has them."""
    if device == "cpu":
        return {"type": "cpu", "name": platform.processor() or platform.machine()}
    it, smi = torch.cuda.get_device_properties(0), shutil.which("nvidia-smi")
    command = [smi or "", SMI, "--format=csv", "-i", f"GPU-{it.uuid}"]
    said = subprocess.run(command, capture_output=True, text=True, check=False).stdout if smi else ""  # noqa: S603
    return {
        "type": "cuda", "name": it.name, "capability": f"{it.major}.{it.minor}", "cuda": torch.version.cuda,
        "memory": it.total_memory, "processors": it.multi_processor_count, "nvidia-smi": said.splitlines(),
    }  # fmt: skip


@contextmanager
def opened(device: str | None, minutes: float, path: Path | None) -> Iterator[tuple[Path, list[Record]]]:
    """Open a file, new or what an earlier start has left; nobody else writes it then.

    Raises ValueError for a device that is not there, and for a file of anything else or of another run; it stays.
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device != "cpu" and not (device == "cuda" and torch.cuda.is_available()):
        raise ValueError(
            f"device={device}: expected cpu, or cuda where there is one; torch {torch.__version__} sees "
            f"{torch.cuda.device_count()} cards; pass --device cpu to try it, or install a CUDA build of torch"
        )
    versions = {name: version(name) for name in ("hypothesis", "numpy") if any(distributions(name=name))}
    who: Record = {
        "minutes": minutes, "device": describe(device), "claims_sha256": claims.SHA256, "probes": [*PROBES],
        "source_sha256": hashlib.sha256(probes.source()).hexdigest(),  # a wheel has no commit
        "ampsim": __version__, "torch": str(torch.__version__), "python": platform.python_version(), **versions,
    }  # fmt: skip
    slug = "-".join(re.findall("[a-z0-9]+", (who["device"]["name"] if device == "cuda" else device).lower()))
    path = path or Path(f"ampsim-card-{slug}-{hashlib.sha256(encode(who).encode()).hexdigest()[:8]}.jsonl")
    with sole_writer(path):
        if not path.exists():
            write(path, [{"card": 1, "identity": who, "platform": platform.platform(), "begun": round(time.time())}])
        records = read(path)
        if (old := records[0]["identity"]) != decode(encode(who)):
            raise ValueError(f"{path} is of another run: {difference(old, who)}; expected the same; pass another --out")
        yield path, records


def missing(path: Path, records: list[Record], tell: Callable[[str, float], None]) -> Iterator[Record]:
    """Run each probe that a file has not, or only an error of, add what it found, and yield it.

    They share what is left of the time. `tell` is given the probe and the seconds left, whenever it found anything.
    """
    who, *done = records[0]["identity"], *records[1:]
    waiting = [probe for probe in PROBES if probe not in {each["probe"] for each in done if "error" not in each}]
    end = time.monotonic() + 60 * who["minutes"] - sum(each["seconds"] for each in done)
    torch.set_num_threads(1)  # on a CPU that others use, more are slower
    for place, probe in enumerate(waiting):
        begun, found = time.monotonic(), {}
        tell(probe, end - begun)
        try:
            for found in PROBES[probe](who["device"]["type"]):  # noqa: B007 - the last is wanted
                now = time.monotonic()
                tell(probe, end - now)
                if now - begun >= (end - begun) / (len(waiting) - place):
                    break
        except RuntimeWarning as why:  # there is nothing to look at here
            found = {"skipped": str(why)}
        except Exception as error:  # the probes behind it are worth as much
            found = {"error": f"{type(error).__name__}: {error}"}
        records.append({"probe": probe, "seconds": round(time.monotonic() - begun, 3), **found})
        write(path, records)
        yield records[-1]
