"""All probes of a card, in order, within a time, into one file."""

import hashlib
import platform
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import distributions, version
from pathlib import Path

import torch

from ampsim import __version__
from ampsim.card import arithmetic, claims, device, kit, steps, streams, training
from ampsim.card.file import CardFile
from ampsim.core.files import sole_writer
from ampsim.records import Record, encode

OTHERS = ("triton", "hypothesis", "numpy")
Probe = Callable[[str], Iterator[Record]]
PROBES: Mapping[str, tuple[int, Probe]] = {  # the most valuable first; of the time so many parts
    "kit torch": (2, partial(kit.ask, "torch")),
    "kit ampsim": (2, partial(kit.ask, "ampsim")),
    "streams": (4, streams.race),
    "fused step": (2, steps.compare),
    "gpt small": (3, partial(training.run, "small")),
    "gpt2-small": (4, partial(training.run, "gpt2-small")),
    "arithmetic": (1, arithmetic.compare),
    "overhead": (2, steps.cost),
}


@contextmanager
def opened(name: str, minutes: float, path: Path | None) -> Iterator[CardFile]:
    """Open the file of a run on a device, a new one or what an earlier start has left; nobody else writes it then."""
    who = {
        "minutes": minutes, "device": device.describe(name), "source_sha256": source(), "claims_sha256": claims.SHA256,
        "probes": [*PROBES], "ampsim": __version__, "torch": str(torch.__version__),
        "python": platform.python_version(),
        **{name: version(name) for name in OTHERS if any(distributions(name=name))},
    }  # fmt: skip
    digits = hashlib.sha256(encode(who).encode()).hexdigest()[:8]
    about = {"begun": datetime.now(UTC).isoformat(timespec="seconds"), "platform": platform.platform()}
    path = path or Path(f"ampsim-card-{device.slug(name)}-{digits}.jsonl")
    with sole_writer(path):
        yield CardFile(path, who, about)


def source() -> str:
    """Return the sha256 of the package's source, which a wheel has and no commit."""
    root = Path(__file__).parents[1]
    files = [
        f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes() for path in sorted(root.rglob("*.py"))
    ]
    return hashlib.sha256(b"".join(files)).hexdigest()


def missing(file: CardFile, tell: Callable[[str, float], None]) -> Iterator[Record]:
    """Run each probe that the file has not, or only an error of, append what it found, and yield it.

    Of the time that is left each has its share.
    `tell` is given the probe and the seconds that are left in all, whenever the probe has found anything.
    """
    who, *done = file.records[0]["identity"], *file.records[1:]
    waiting = [probe for probe in PROBES if probe not in {each["probe"] for each in done if "error" not in each}]
    end = time.monotonic() + 60 * who["minutes"] - sum(each["seconds"] for each in done)
    torch.set_num_threads(1)  # on a CPU that others use, more are slower
    for place, probe in enumerate(waiting):
        begun, parts, found = time.monotonic(), sum(PROBES[each][0] for each in waiting[place:]), {}
        share = max(0.0, end - begun) * PROBES[probe][0] / parts
        tell(probe, max(0.0, end - begun))
        try:
            for found in PROBES[probe][1](who["device"]["type"]):  # noqa: B007 - the last is wanted
                tell(probe, max(0.0, end - time.monotonic()))
                if time.monotonic() - begun >= share:
                    break
        except device.Skipped as why:
            found = {"skipped": str(why)}
        except Exception as error:  # the probes behind it are worth as much
            found = {"error": f"{type(error).__name__}: {error}"}
        file.append({"probe": probe, "seconds": round(time.monotonic() - begun, 3), **found})
        yield file.records[-1]
