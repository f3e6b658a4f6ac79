"""Whose exception it was."""

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ampsim.testing.loop.loop import LoopError


@contextmanager
def told(where: str) -> Iterator[None]:
    """Say where an exception of the user's code was raised; its own traceback stays above as the cause."""
    try:
        yield
    except LoopError:
        raise
    except (Exception, SystemExit) as error:
        theirs = [call for call in traceback.extract_tb(error.__traceback__) if _is_theirs(call.filename)]
        at = f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno})" if theirs else ""
        raise LoopError(f"{where} raised {type(error).__name__}: {error}{at}") from error


def _is_theirs(filename: str) -> bool:
    return "site-packages" not in filename and Path(__file__).parent not in Path(filename).parents
