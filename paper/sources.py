"""Where the paper's numbers come from: data files with their provenance, recorded traces, and the library's formulas.

A data file is *fresh* when its experiment, with today's source, defaults and inputs, would write the same header.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ampsim import records
from ampsim.core import dialects, machine, theory, trace

ROOT = Path(__file__).parent.parent


class Refused(ValueError):  # noqa: N818 - says what happened
    """The paper cannot be built: the message names what is wrong, what was expected and the cure."""


@dataclass(frozen=True)
class Source:
    """What a number's path is evaluated on."""

    file: str  # relative to the repository
    script: str  # what made the file; of a formula, where it is proved against the machine
    device: str
    seeds: tuple[int, ...] = ()
    commit: str | None = None
    records: tuple[Any, ...] = ()
    provenance: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, Any] = field(default_factory=dict)  # what a formula may call


def data(stem: str, root: Path = ROOT, device: str = "cpu") -> Source:
    """The data file of an experiment.

    Raises:
        Refused: no such file, or one that cannot be read.
    """
    path = root / "experiments" / "data" / device / f"{stem}.jsonl"
    try:
        provenance, rows = records.read(path)
    except FileNotFoundError:
        name = path.relative_to(root)
        raise Refused(f"{name}: no such file; `python -m experiments.{stem}` makes it") from None
    except records.DamagedFileError as error:
        raise Refused(str(error)) from None
    return Source(
        file=path.relative_to(root).as_posix(),
        script=provenance["script"],
        device=provenance["device"]["name"],
        seeds=tuple(provenance["seeds"]),
        commit=provenance["commit"],
        records=tuple(rows),
        provenance=provenance,
    )


def runs(root: Path = ROOT) -> Source:
    """The provenance of every data file, for what is said of all experiments together."""
    folder = root / "experiments" / "data" / "cpu"
    rows = tuple(records.read_provenance(path) for path in sorted(folder.glob("*.jsonl")))
    return Source("experiments/data/cpu", "experiments/__main__.py", "any", records=rows)


def recorded(root: Path = ROOT) -> Source:
    """The traces recorded from other frameworks' scalers, each with whether the reference machine repeats it."""
    rows = [
        {"system": t.system, "sequence": path.stem, "updates": len(t.found_inf), "repeated": int(t.mismatch() is None)}
        for path in sorted((root / "tests" / "traces").glob("*.jsonl"))
        for t in trace.read(path)
    ]
    if not rows:
        raise Refused(f"{root / 'tests' / 'traces'}: no traces; restore the folder from version control")
    return Source("tests/traces", "tests/core/test_trace.py", "any", records=tuple(rows))


def field_of_scalers(root: Path = ROOT) -> Source:
    """What each dialect does where they differ, asked of the machine."""
    from paper import field as survey

    rows = survey.survey()
    return Source("ampsim/core/dialects.py", "tests/core/test_trace.py", "any", records=rows)


def formulas(root: Path = ROOT) -> Source:
    """The closed forms of the theorems, the reference machine, and the dialects: nothing is measured."""
    from paper.field import overflows_until

    names: dict[str, Callable[..., Any]] = {
        **{name: getattr(theory, name) for name in theory.__all__},
        "Rule": machine.Rule,
        "dialect": dialects.get,
        "overflows_until": overflows_until,
    }
    return Source("ampsim/core/theory", "tests/core/test_theory.py", "any", names=names)


def stale(source: Source) -> str | None:
    """Why a data file is not what its experiment would write today; None if it is."""
    from experiments.runner import provenance  # it imports what runs experiments

    return provenance.why_stale(Path(source.script).stem, source.provenance)
