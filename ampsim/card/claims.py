"""What a card was expected to show, frozen: a file of a card holds the hash of this one, of before its data."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

Found = dict[str, Any]


class Claim(NamedTuple):
    """A sentence about a probe, and what finds out whether it holds of its record."""

    probe: str
    text: str
    holds: Callable[[Found], bool]
    cuda: bool = False  # claimed of a card only


def nothing(key: str) -> Callable[[Found], bool]:
    """Return a claim that a probe listed nothing under a key."""
    return lambda found: not found[key]


def fact(name: str, value: object) -> Callable[[Found], bool]:
    """Return a claim that a fact of the device, which stands before the CPU's, is this one."""
    return lambda found: found["facts"][name][0] == value


def runs(holds: Callable[[Found], bool]) -> Callable[[Found], bool]:
    """Return a claim about every trajectory."""
    return lambda found: all(map(holds, found["trajectories"]))


def largest(holds: Callable[[Found], bool]) -> Callable[[Found], bool]:
    """Return a claim about the largest set of parameters."""
    return lambda found: holds([*found["sizes"].values()][-1])


CLAIMS = (
    Claim("kit torch", "torch's scaler breaks the laws that it breaks on a CPU, and no other", nothing("findings")),
    Claim("kit ampsim", "ampsim's scaler breaks no law", nothing("findings")),
    Claim("streams", "no schedule of an optimizer on its own stream changes a scale or a bit", nothing("differing")),
    Claim("fused step", "ampsim's fused step is torch's to the bit", nothing("differing")),
    Claim("gpt small", "a scale of 2^24 overflows", runs(lambda run: run["found_inf"][0])),
    Claim("gpt2-small", "GPT-2 learns in fp16", runs(lambda run: run["loss"][-1] < run["loss"][0]), cuda=True),
    Claim("arithmetic", "a GEMM is rounded once, to inf from 65520", fact("a GEMM overflows at", 65520.0)),
    Claim("arithmetic", "a GEMM adds up in more than fp16", fact("a GEMM's sum may pass 65504", 65504.0)),
    Claim("arithmetic", "a GEMM takes subnormals", fact("a GEMM keeps a subnormal factor", value=True)),
    Claim("arithmetic", "a GEMM gives subnormals", fact("a GEMM keeps a subnormal result", value=True)),
    Claim("overhead", "ampsim's step never waits", largest(lambda it: not it["waits"]["ours, fused step"]), cuda=True),
    Claim(
        "overhead", "at the largest size torch's step takes 1.4 times as long as ampsim's fused one",
        largest(lambda it: it["ratios"]["ours, fused step"] >= 1.4), cuda=True,
    ),
)  # fmt: skip
SHA256 = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
