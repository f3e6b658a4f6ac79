"""What a card was expected to show, frozen: a file of a card holds the hash of this one, of before its data."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ampsim.records import Record


class Claim(NamedTuple):
    """A sentence about a probe, and what finds out whether it holds of its record."""

    probe: str
    text: str
    holds: Callable[[Record], bool]
    cuda: bool = False  # claimed of a card only


def fact(name: str, value: object) -> Callable[[Record], bool]:
    """Return a claim that a fact of the device, which stands before the CPU's, is this one."""
    return lambda it: it["facts"][name][0] == value


CLAIMS = (
    Claim("kit torch", "torch's scaler breaks the laws known of it, on a card all but that of strides, and no other",
          lambda it: not it["findings"]),
    Claim("kit ampsim", "ampsim's scaler breaks no law", lambda it: not it["findings"]),
    Claim("streams", "no schedule of an optimizer on its own stream changes a scale or a bit",
          lambda it: not it["differing"], cuda=True),
    Claim("gpt small", "a scale of 2^24 overflows", lambda it: all(run["found_inf"][0] for run in it["trajectories"])),
    Claim("gpt2-small", "GPT-2 learns in fp16",
          lambda it: all(run["loss"][-1] < run["loss"][0] for run in it["trajectories"]), cuda=True),
    Claim("arithmetic", "a GEMM is rounded once, to inf from 65520", fact("a GEMM overflows at", 65520.0)),
    Claim("arithmetic", "a GEMM adds up in more than fp16", fact("a GEMM's sum may pass 65504", 65504.0)),
    Claim("arithmetic", "a GEMM takes subnormals", fact("a GEMM keeps a subnormal factor", value=True)),
    Claim("arithmetic", "a GEMM gives subnormals", fact("a GEMM keeps a subnormal result", value=True)),
    Claim("overhead", "ampsim's step never waits",
          lambda it: not [*it["sizes"].values()][-1]["waits"]["ours"], cuda=True),
)  # fmt: skip
SHA256 = hashlib.sha256(Path(__file__).read_bytes()).hexdigest()
