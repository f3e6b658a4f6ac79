"""Files that commands read: kinds by suffix, and the diagnosis of a log."""

import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ampsim.cli.terminal import fail, usage_errors

if TYPE_CHECKING:
    from ampsim.runs.explain_log import Explanation

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


def is_there(path: Path) -> bool:
    """Return whether a file of this name exists; False if the name is too long for a file."""
    try:
        return path.exists()
    except OSError:
        return False


@contextmanager
def explained(log: Path) -> Iterator["Explanation"]:
    """Yield the diagnosis of a log, or of the standard input for -; exit if it cannot be read.

    The text of the diagnosis reads the log again, so the standard input is kept until the end.
    """
    from ampsim.runs.explain_log import explain

    expect_kind(log, LOG)
    with ExitStack() as opened:
        if str(log) == "-":
            kept = opened.enter_context(
                tempfile.NamedTemporaryFile(suffix=" (standard input)")
            )
            shutil.copyfileobj(sys.stdin.buffer, kept)
            kept.flush()
            log = Path(kept.name)
        with usage_errors():
            explanation = explain(log)
        yield explanation
