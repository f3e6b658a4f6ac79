"""The conformance figure sorts checks by what their failure does to training."""

from collections import Counter
from itertools import chain

from figures import conformance, results

RUN = results.load("conformance")


def test_each_check_has_one_severity() -> None:
    counts = Counter(chain.from_iterable(conformance.severities(RUN).values()))
    assert set(counts) == set(RUN.arm("checks").first["sentences"])
    assert set(counts.values()) == {1}


def test_cell_shows_worst_outcome() -> None:
    found = {name: {"outcome": name} for name in ("passed", "xfailed", "failed", "skipped")}
    adapter = {"checks": found}
    assert conformance.cell(adapter, ["passed", "xfailed", "failed"]) == (conformance.FAILED, "1")
    assert conformance.cell(adapter, ["passed", "xfailed"])[0] == conformance.INTENDED
    assert conformance.cell(adapter, ["passed", "skipped"])[0] == conformance.PASSED
    assert conformance.cell(adapter, ["skipped", "absent"])[0] == conformance.NOT_RUN


def test_unbounded_python_floats_are_marked() -> None:
    marked = {name for name, arm in RUN.arms.items() if leaves(arm)}
    # DeepSpeed's and fairseq's scales are Python floats; fairscale bounds its own at float32's ends.
    assert {"deepspeed", "fairseq"} <= marked
    assert not {"torch", "keras-jax", "fairscale-layerwise", "ampsim-torch"} & marked
    for name in marked:
        assert RUN.arm(name).first["checks"]["scale_is_never_infinite"]["outcome"] == "passed"


def leaves(arm: results.ArmRecords) -> bool:
    return arm.name != "checks" and conformance.leaves_float32(arm.first)
