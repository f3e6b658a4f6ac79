"""Replay one schedule of threads that a law has found, step by step."""

from collections.abc import Mapping, Sequence

from ampsim.cli.terminal import out


def replay_schedule(targets: Sequence[str], laws: Sequence[str], text: str, declared: Mapping[str, object]) -> int:
    """Run one law of threads under one schedule, show it step by step, and return the exit status."""
    from ampsim.testing.kit.judge import THREADS, chosen
    from ampsim.testing.kit.subject import find

    if len(targets) != 1 or len(laws) != 1:
        raise ValueError("--schedule: expected one TARGET and one --law, as the line `replay` of a finding has them")
    (law,) = chosen(names=laws)
    if law.level != THREADS:
        raise ValueError(f"--schedule: {law.name} has no threads; expected a law of level {THREADS}")
    try:
        schedule = {int(step): int(choice) for step, choice in (pair.split(":") for pair in text.split(",") if pair)}
    except ValueError:
        raise ValueError(f"--schedule {text!r}: expected STEP:CHOICE,..., e.g. 73:1") from None
    try:
        law(find(targets[0], **declared), schedule=schedule)
    except AssertionError as error:
        out.print(str(error), markup=False)
        return 1
    out.print(f"{law.name} holds under this schedule")
    return 0
