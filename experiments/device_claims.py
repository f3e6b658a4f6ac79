"""Do the CPU results on torch's scaler, fused optimizers, fp16, and training hold on this device?

Each unit is one claim: what a CPU showed, the result on this device, and whether they agree. Claims
about torch refer to the installed version, which the provenance names. Claims about autocast's lists
and about training are predictions for a card, which a CPU emulates (`experiments.emulated_cuda`).

The claims are frozen: `FROZEN` is their digest from before any card had run them. A claim that
changes gets a new digest, so that a card's data names the claims that it judges.

Device: cpu, or cuda with `--device cuda`, where it has not been run yet.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from rich.markup import escape
from rich.table import Table

from ampsim.core import json_lines
from ampsim.core.json_lines import Record
from experiments import runner
from experiments.claims import numbers, scalers, steps, training
from experiments.claims.claim import Claim

CLAIMS: dict[str, Claim] = {
    **scalers.CLAIMS, **steps.CLAIMS, **numbers.CLAIMS, **training.CLAIMS,
}  # fmt: skip
FROZEN = "09a6cba4485c"  # 2026-11-29


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1  # a claim is looked at once
    seeds: tuple[int, ...] = (0,)  # the little that is random has a fixed seed


SMOKE = Config()


@dataclass(frozen=True)
class Arm:
    """A claim by its name, which is that of the function that looks."""

    claim: str


def arms(config: Config) -> Mapping[str, Arm]:
    return {name: Arm(name) for name in CLAIMS}


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Look at one claim; the columns are explained in `data/README.md`."""
    torch.set_num_threads(1)
    claim = CLAIMS[arm.claim]
    seen = looked(claim, device)
    tick(1)
    return {
        "claim": claim.text,
        "expected_from_cpu": claim.expected,
        "seen": seen,
        "holds": not differences(claim.expected, seen),
        "claims": digest(),
    }


def digest() -> str:
    """Return a digest of every claim's sentence and prediction."""
    text = json_lines.encode({name: [c.text, c.expected] for name, c in CLAIMS.items()})
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def looked(claim: Claim, device: str) -> object:
    """Return what the device shows; an error is something that it shows."""
    try:
        return claim.see(device)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def differences(expected: object, seen: object) -> dict[str, list[object]]:
    """Return where a result is not as expected, as `path: [expected, seen]`."""
    if isinstance(expected, dict) and "at most" in expected:
        number = isinstance(seen, (int, float))
        agrees = number and expected["at least"] <= seen <= expected["at most"]
        return {} if agrees else {"": [expected, seen]}
    if isinstance(expected, dict) and isinstance(seen, dict) and expected.keys() == seen.keys():
        return {
            f"{key}{'.' * bool(path)}{path}": pair
            for key in expected
            for path, pair in differences(expected[key], seen[key]).items()
        }
    return {} if json_lines.encode(expected) == json_lines.encode(seen) else {"": [expected, seen]}


def verdict(rows: Sequence[Record]) -> str:
    """Return in one line how many claims hold, which do not, and whether they are the frozen ones."""
    failed = [row["arm"] for row in rows if not row["holds"]]
    state = "frozen" if rows[0]["claims"] == FROZEN else f"changed since {FROZEN}"
    held = f"{len(rows) - len(failed)} of {len(rows)} claims hold ({rows[0]['claims']}, {state})"
    return f"{held}; failed: {', '.join(failed)}" if failed else held


def table(rows: Sequence[Record]) -> Table:
    """Return every claim, and what differs."""
    shown = Table("claim", "holds", "differs: [on the CPU, here]")
    for row in rows:
        found = differences(row["expected_from_cpu"], row["seen"])
        lines = [f"{path} {pair}".strip() for path, pair in found.items()]
        shown.add_row(row["arm"], "yes" if row["holds"] else "no", escape("\n".join(lines)))
    return shown


if __name__ == "__main__":
    raise SystemExit(runner.main("device_claims"))
