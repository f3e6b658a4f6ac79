"""Tables about software: the settings of scalers, and what execution found in releases."""

import re
from math import log2

from ampsim.core import dialects
from ampsim.core.json_lines import Record
from ampsim.testing import known_failures
from paper.number_format import escaped
from paper.numbers import conformance, loops
from paper.numbers.scalers import SHOWN
from paper.sources import load
from paper.values import Cell, Table

DASH = "–"
FOR_ZERO = (
    "no report was found"  # one of the class without ZeRO is: DeepSpeed pull 8588
)
ENGINES = {  # setup -> its name, what fails, and the public thread; "": not searched
    "deepspeed": (
        "DeepSpeed's engine, ZeRO-1",
        "half of the gradient in a step in which the scale grows",
        FOR_ZERO,
    ),
    "deepspeed-3": ("DeepSpeed's engine, ZeRO-3", "the same", FOR_ZERO),
    "slime": (
        "slime, on megatron-core",
        "its calls of Megatron's optimizer divide the gradients twice",
        "",
    ),
    "fabric": ("Fabric", "a checkpoint as in its guide has no loss scale", ""),
    "verl": ("verl", "a checkpoint of its FSDP engine has no loss scale", ""),
}
TORCH = {  # check -> what fails
    "no_nonfinite_step_below_scale_one": (
        "no minimum: at a small scale, a step with infinite gradients"
    ),
    "update_between_steps_keeps_gradients_correct": (
        "`update` between two steps: the second step divides by the new scale"
    ),
}
CALLS = {  # words of the conformance data -> words of the table, the longer ones first
    "clean x 2": "two finite steps",
    "clean": "a finite step",
    "inf": "an overflow",
    "step()": "`step`",
}
THREAD = re.compile(r"https://github\.com/[\w.-]+/([\w.-]+)/(?:issues|pull)/(\d+)")
NONE_FOUND = "none found"


def settings_of_dialects() -> Table:
    """Return the default settings of scalers that people use."""
    head = ("scaler", "initial", "$gamma$", "$beta$", "$G$", "min", "max", "$H$")
    rows = tuple((title, *settings_of(name)) for name, title in SHOWN.items())
    return Table(head, rows, "lrrrrrrr")


def settings_of(name: str) -> tuple[Cell, ...]:
    """Return the default settings of a dialect."""
    rule = dialects.get(name)
    factors = (f"{rule.growth_factor:g}", f"{rule.backoff_factor:g}")
    bounds = (in_bits(bound) for bound in (rule.min_scale, rule.max_scale))
    interval = f"{rule.growth_interval:,}"
    initial = in_bits(rule.init_scale)
    return (initial, *factors, interval, *bounds, str(rule.hysteresis))


def in_bits(scale: float | None) -> Cell:
    """Return a scale as a power of two; the ends of float32 are no bounds of a scaler's own."""
    if scale is None or not 2.0**-126 < scale < 2.0**127:
        return DASH
    return f"$2^({log2(scale):g})$" if scale > 1 else f"{scale:g}"


def findings() -> Table:
    """Return what checks found in released software, and what is public about it."""
    scalers = [of_class(arm) for arm in conformance.TITLES]
    engines = [of_engine(row) for row in loops.failed_engines(load("engines"))]
    version = torch_version()
    torch = [
        (f"torch~{version}", text, known_failures.TORCH[check])
        for check, text in TORCH.items()
    ]
    of_loops = [found for row in loops.failed(load("loops")) for found in of_loop(row)]
    rows: list[tuple[Cell, ...]] = []
    parts = (("scaler", [*scalers, *torch]), ("engine", engines), ("loop", of_loops))
    for kind, part in parts:
        for at, (software, text, thread) in enumerate(part):
            rows.append(("" if at else kind, software, text, published(thread)))
        rows.append(())
    head = ("", "software", "what fails", "known")
    return Table(head, tuple(rows[:-1]), "llll")


def of_class(arm: str) -> tuple[str, str, str]:
    """Return what a scaler class with wrong gradients does, and the thread about it."""
    row = load("conformance").arm(arm).first
    failure = row["checks"][conformance.GRADIENT]
    star = escaped("*" * bool(row["patched"]))
    calls = shortest(failure)
    text = f"gradients {seen(failure)} instead of 3, 3 after {calls}"
    return (
        f"{conformance.TITLES[arm]}~{row['version']}{star}",
        text,
        failure["reports"],
    )


def of_engine(row: Record) -> tuple[str, str, str]:
    """Return the name and version of an engine, what fails, and the thread about it."""
    name, text, thread = ENGINES[row["arm"]]
    star = escaped("*" * (row["replaced"] != "nothing"))
    return (f"{name}~{row['version'].split()[-1]}{star}", text, thread)


def torch_version() -> str:
    """Return the version of the torch that was checked, without the build."""
    version = load("conformance").arm("torch").first["version"]
    return str(version.partition("+")[0])


def shortest(failure: Record) -> str:
    """Return the shortest calls that lead to a failure, in words."""
    (history,) = (line for line in failure["did"] if line.startswith("history: "))
    calls = str(history.removeprefix("history: ").replace(", ", " and "))
    for old, new in CALLS.items():
        calls = calls.replace(old, new)
    return calls


def seen(failure: Record) -> str:
    """Return the gradients that the optimizer received, rounded; 3 is right."""
    values = re.findall(r"[\d.]+", failure["seen"].partition(" expected")[0])
    return ", ".join(f"{float(value):.3g}" for value in values)


def of_loop(row: Record) -> list[tuple[str, str, str]]:
    """Return the causes of a loop's failures, each once, and the threads about them."""
    causes = dict.fromkeys(cell["known"] for cell in loops.failed_cells(row))
    name = f"{row['arm']}~{row['version']}"
    return [(name, cause_of(known), known) for known in causes]


def cause_of(known: str) -> str:
    """Return the reason of a known failure without its threads."""
    text = THREAD.sub("", known).replace("no report was found", "")
    return escaped(re.sub(r"[:;, ]+(?=;|$)", "", text))


def published(text: str) -> str:
    """Return the public threads that a text names, or that there is none."""
    threads = [f"{name}~\\#{number}" for name, number in THREAD.findall(text)]
    if not text:
        return "not searched"
    if threads and "no report was found" in text:
        threads[-1] += ", in part"
    return ", ".join(threads) or NONE_FOUND
