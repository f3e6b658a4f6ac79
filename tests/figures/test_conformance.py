"""The conformance figure sorts checks by what their failure does to training."""

from collections import Counter
from itertools import chain

from figures import conformance, results
from figures.derived_numbers import UNBOUNDED, adapters, failed_checks

RUN = results.load("conformance")


def test_each_check_has_one_severity() -> None:
    counts = Counter(chain.from_iterable(conformance.severities(RUN).values()))
    assert set(counts) == set(RUN.arm("checks").first["sentences"])
    assert set(counts.values()) == {1}


def test_cell_shows_worst_outcome() -> None:
    found = {
        name: {"outcome": name} for name in ("passed", "xfailed", "failed", "skipped")
    }
    adapter = {"checks": found}
    assert conformance.cell(adapter, ["passed", "xfailed", "failed"]) == (
        conformance.FAILED,
        "1",
    )
    assert conformance.cell(adapter, ["passed", "xfailed"])[0] == conformance.INTENDED
    assert conformance.cell(adapter, ["passed", "skipped"])[0] == conformance.PASSED
    assert conformance.cell(adapter, ["skipped", "absent"])[0] == conformance.NOT_RUN


def test_unbounded_python_floats_fail() -> None:
    failed = {row["arm"] for row in adapters(RUN) if UNBOUNDED in failed_checks(row)}
    # DeepSpeed's and fairseq's scales are Python floats; fairscale bounds its own at float32's
    # ends.
    assert {"deepspeed", "fairseq"} <= failed
    assert not {"fairscale-layerwise", "tf-keras", "ampsim-torch"} & failed
