"""The loops of real frameworks keep the laws but for what is known, each with the real package."""

import gc
from importlib import metadata

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

import torch

from ampsim.testing import check_loop
from ampsim.testing.loop.adapters.frameworks import FRAMEWORKS, Framework

COMPILED = {"flax", "flax, nnx", "equinox", "keras", "jmp"}  # for seconds each
CASES = [
    pytest.param(
        name,
        marks=[
            pytest.mark.peer(each.package, how=each.install),
            *([pytest.mark.deep] if name in COMPILED else []),
        ],
    )
    for name, each in FRAMEWORKS.items()
]


@pytest.fixture(autouse=True)
def process_as_before():
    gc.freeze()  # the Trainer collects garbage at each step, which takes as long as there are objects
    yield
    if torch.distributed.is_initialized():  # by DeepSpeed
        torch.distributed.destroy_process_group()


@pytest.mark.filterwarnings("ignore")  # of the packages, about each other
@pytest.mark.parametrize("name", CASES)
def test_a_framework_keeps_the_laws_but_for_what_is_known(name):
    framework = FRAMEWORKS[name]
    results = check_loop(framework.make, framework.batches, expected_failures=framework.expected)
    words = ("the Loop has no split=", "make takes no group: ", "only the scaler of a loop of torch")
    assert {each.outcome for each in results if not each.text.startswith(words)} <= {"passed", "expected failure"}


@pytest.mark.peer("flax", how=FRAMEWORKS["flax, nnx"].install)
def test_what_flax_differentiates_can_be_called_only_once():
    nnx = FRAMEWORKS["flax, nnx"]
    (result,) = check_loop(nnx.make, nnx.batches, laws=["it_learns"])
    assert result.outcome == "passed", result.text


def test_what_is_known_has_a_link_or_was_looked_for():
    reasons = [reason for each in FRAMEWORKS.values() for reason in each.expected.values()]
    assert reasons
    assert all("https://github.com/" in reason or "no report was found" in reason for reason in reasons)


def test_a_framework_has_a_version_where_it_is_installed():
    assert Framework("torch").version == metadata.version("torch")
    assert Framework("no_such_framework").version is None
