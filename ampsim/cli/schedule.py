"""Replay one schedule of threads that a check has found, step by step."""

from collections.abc import Mapping, Sequence

from ampsim.cli.terminal import out


def replay_schedule(targets: Sequence[str], checks: Sequence[str], text: str, declared: Mapping[str, object]) -> int:
    """Run one check of threads under one schedule, show it step by step, and return the exit status."""
    from ampsim.testing.kit.judge import THREADS, chosen
    from ampsim.testing.kit.subject import find

    if len(targets) != 1 or len(checks) != 1:
        raise ValueError("--schedule: expected one TARGET and one --check, as the line `replay` of a finding has them")
    (check,) = chosen(names=checks)
    if check.level != THREADS:
        raise ValueError(f"--schedule: {check.name} has no threads; expected a check of level {THREADS}")
    try:
        schedule = {int(step): int(choice) for step, choice in (pair.split(":") for pair in text.split(",") if pair)}
    except ValueError:
        raise ValueError(f"--schedule {text!r}: expected STEP:CHOICE,..., e.g. 73:1") from None
    try:
        check(find(targets[0], **declared), schedule=schedule)
    except AssertionError as error:
        out.print(str(error), markup=False)
        return 1
    out.print(f"{check.name} holds under this schedule")
    return 0
