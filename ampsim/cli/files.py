"""Kinds of files by suffix, and the commands that read each kind."""

from pathlib import Path

from ampsim.cli.terminal import fail

SOURCE = "Python source"
LOG = "a log or a record"
THRESHOLDS = "overflow thresholds"
KINDS = {
    ".py": SOURCE,
    ".log": LOG,
    ".jsonl": LOG,
    ".csv": LOG,
    ".npy": THRESHOLDS,
}
READERS = {  # kind -> what to type for a file of this kind
    SOURCE: ("ampsim lint {}", "ampsim check-loop {}"),
    LOG: ("ampsim explain {}", "ampsim report {}", "ampsim advise {}"),
    THRESHOLDS: ("ampsim advise {}", "ampsim sweep {} DIALECT"),
}


def expect_kind(path: Path, *kinds: str) -> None:
    """Exit if the suffix of a file is of another kind, and name the commands that read it."""
    kind = KINDS.get(path.suffix, kinds[0])
    if kind not in kinds:
        commands = " or ".join(command.format(path) for command in READERS[kind])
        fail(f"{path}: expected {' or '.join(kinds)}, not {kind}; run {commands}")
