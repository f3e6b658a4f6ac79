"""Write the shortest failure of a check as a pytest file: about twenty lines, and nothing of ampsim in them."""

from collections.abc import Mapping
from dataclasses import replace
from importlib.util import find_spec
from typing import Any

from ampsim.testing.emit import calls, checkpoints, numerics, scale  # noqa: F401  register the templates
from ampsim.testing.emit.case import TEMPLATES, Case, Peer
from ampsim.testing.emit.peers import PEERS, adapted, as_text
from ampsim.testing.emit.text import Text, written
from ampsim.testing.kit.alarm import OverdueError
from ampsim.testing.kit.check import EXAMPLES, Check
from ampsim.testing.kit.judge import THREADS, chosen
from ampsim.testing.kit.subject import Subject, Traits, find, load
from ampsim.testing.kit.trial import Trial

if find_spec("torch"):
    from ampsim.testing.emit import protocol as protocol


def emit_scaler_test(law: str, target: str, *, examples: int = EXAMPLES, **declared: Any) -> tuple[str, bool]:
    """Return a pytest file that fails for a scaler as the check of this name does, and whether by an exception.

    Args:
        law: a check's name.
        target: ``module:attribute`` of a class with torch's constructor or of ``make(rule)``, or a name in `PEERS`.
        examples: histories, at most.
        declared: as `Traits` takes it.

    Raises:
        ValueError: the law holds, is not asked of this scaler, or has no short test; or there is no such check.
    """
    (check,) = chosen(names=[law])
    peer, subject = _peer(target, declared)
    if missing := check.lacks(subject):
        raise ValueError(f"{law} is not asked of {target}: it is without {missing}")
    if check.level == THREADS:
        raise ValueError(f"{law} needs the conductor, which orders threads: no short test says that; see --schedule")
    if law not in TEMPLATES:
        raise ValueError(f"{law} has no template of a short test")
    subject.try_out()
    seen, trial, drawn = _shortest(check, subject, examples)
    if not seen:
        raise ValueError(f"{law} holds for {target}: there is nothing to emit")
    case = Case(peer, check, trial, drawn)
    raises = seen.startswith("raised ") or " raised " in seen
    about = Text(law, seen, check.law, check.issue)
    return written(about, peer.imports.splitlines(), TEMPLATES[law](case)), raises


def _peer(target: str, declared: Mapping[str, Any]) -> tuple[Peer, Subject]:
    """Return a scaler as source text, and as what the kit judges."""
    if target in PEERS:
        peer, read = PEERS[target]
        return peer, replace(adapted(peer, read, target), traits=Traits(**declared))
    subject, found = find(target, **declared), load(target)
    if isinstance(found, Subject):
        raise ValueError(f"{target} is a Subject, which needs ampsim: name the class, and declare traits by --trait")
    return as_text(target, found), subject


def _shortest(check: Check, subject: Subject, examples: int) -> tuple[str, Trial, Mapping[str, Any]]:
    """Return what the shortest failing example saw, its trial and what was drawn; "" where the law holds."""
    failed: list[Any] = []

    def function(trial: Trial, **drawn: Any) -> None:
        try:
            check.function(trial, **drawn)
        except BaseException:
            failed[:] = [trial, drawn]  # the last example that fails is the shortest
            raise

    try:
        replace(check, function=function)(subject, examples=examples)
    except AssertionError as error:
        if isinstance(error.__cause__, OverdueError):
            raise ValueError(f"{str(error).partition(chr(10))[0]}: nor would a short test") from error
        return str(error).partition("\n")[0].removeprefix(f"{check.name}: "), *failed
    return "", Trial(subject), {}
