"""A loop that hangs, or ends its process, is named with its law and the others go on; bad input is a sentence."""

import json

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing import Loop, check_loop  # noqa: E402
from ampsim.testing.loop.judge import judge_loop  # noqa: E402
from tests.testing.goldens import Golden  # noqa: E402
from tests.testing.loops import RIGHT, batches  # noqa: E402
from tests.testing.programs import checked  # noqa: E402

LOOPS = """
import os, sys, threading, torch
from ampsim.testing import Loop

batches = torch.ones(4, 3, 2)

def looping(skipped, always=lambda: None):
    def make(scaler):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step(batch):
            always()
            optimizer.zero_grad()
            scaler.scale(model(batch).square().mean()).backward()
            if not all(param.grad.isfinite().all() for param in model.parameters()):
                skipped()
            scaler.step(optimizer)
            scaler.update()
        return Loop(step, {"model": model, "optimizer": optimizer})
    return make

def wait():
    threading.Event().wait()

def nothing():
    pass

right, hangs = looping(nothing), looping(wait)
exits, quits = looping(lambda: os._exit(3)), looping(lambda: sys.exit(3))
endless, quits_at_once = looping(nothing, wait), looping(nothing, lambda: sys.exit(4))
exits_at_once, raises = looping(nothing, lambda: os._exit(4)), looping(lambda: 1 / 0)
"""
SKIPPED = "skipped_step_never_happened"
LAWS = ["--law", SKIPPED, "-k", "it_learns"]
ENDS = {  # what is said of the skipped step
    "loops:hangs": "did not end within 10 s",
    "loops:exits": "ended the process with exit status 3",
    "loops:quits": "step, in batch 2 at scale 256, raised SystemExit: 3 (loops.py:",
}
REFUSED = {
    "loops:endless": "loops:endless: it did not end within 10 s, in loops.py:",
    "loops:quits_at_once": "loops:quits_at_once: step, in batch 0 at scale 256, raised SystemExit: 4 (loops.py:",
    "loops:raises": f"{SKIPPED}: step, in batch 2 at scale 256, raised ZeroDivisionError: division by zero (loops.py:",
    "loops:missing": "loops has no 'missing'",
    "broken:make": "importing broken raised RuntimeError: not today",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[int, str]]:
    """Exit status and output, by name."""
    runs = {target: [target, *LAWS, "--time-limit", "2"] for target in REFUSED}
    runs |= {"end": [*ENDS, *LAWS, "--time-limit", "2"]}
    runs |= {"killed in vain": ["loops:exits_at_once", *LAWS]}
    runs |= {"json": ["loops:right", "loops:quits", *LAWS, "--report", "json"]}
    modules = {"loops": LOOPS, "broken": "raise RuntimeError('not today')"}
    runs = {name: ["check-loop", *arguments] for name, arguments in runs.items()}
    return checked(tmp_path_factory.mktemp("folder"), modules, runs)


def test_what_hangs_or_ends_is_named_with_its_law_and_the_others_go_on(results: dict[str, tuple[int, str]]) -> None:
    code, text = results["end"]
    assert code == 1
    for target, said in ENDS.items():
        assert f"{SKIPPED}: {said}" in text
        assert f"{target}: 1 passed, 1 failed of 2 checks" in text
    assert "  where    loops.py:" in text
    assert text.count("  law      Batches a, b, c with an inf") == len(ENDS)


@pytest.mark.parametrize("target", REFUSED)
def test_what_cannot_be_judged_is_one_sentence(results: dict[str, tuple[int, str]], target: str) -> None:
    code, text = results[target]
    assert code == 2
    assert REFUSED[target] in text
    assert text.count("\n") == 1, text


@pytest.mark.parametrize("name", [*REFUSED, "end", "killed in vain", "json"])
def test_all_that_is_said_is_golden(results: dict[str, tuple[int, str]], name: str, golden: Golden) -> None:
    code, text = results[name]
    golden(f"exit status {code}\n{text}")


def test_a_loop_that_always_ends_its_process_fails_by_each_law(results: dict[str, tuple[int, str]]) -> None:
    code, text = results["killed in vain"]
    assert (code, text.count(": ended the process with exit status 4\n")) == (1, 2)


def test_a_report_of_loops_has_the_form_of_one_of_scalers(results: dict[str, tuple[int, str]]) -> None:
    code, text = results["json"]
    report = json.loads(text)
    assert (code, report["findings"], {*report["versions"]} >= {"ampsim", "torch"}) == (1, 1, True)
    assert [(each["scaler"], each["check"], each["outcome"]) for each in report["results"]] == [
        ("loops:right", SKIPPED, "passed"),
        ("loops:right", "it_learns", "passed"),
        ("loops:quits", SKIPPED, "failed"),
        ("loops:quits", "it_learns", "passed"),
    ]
    assert {frozenset(each) for each in report["results"]} == {
        frozenset({"scaler", "check", "level", "outcome", "law", "issue", "text"})
    }


# ------------------------------------------------------------------------------------------------- in this process


@pytest.fixture(scope="module", autouse=True)
def first_step() -> None:
    """Step once: an alarm within torch's first step leaves half an import behind."""
    check_loop(RIGHT["sgd"], batches(), ["it_learns"])


def stuck(scaler: torch.amp.GradScaler) -> Loop:
    """A right loop that waits for ever once its gradients are not finite."""
    loop = RIGHT["sgd"](scaler)

    def step(batch: object) -> None:
        loop.step(batch)
        if scaler.get_scale() == 2.0**7:
            import threading

            threading.Event().wait()

    return Loop(step, loop.state)


def test_an_alarm_ends_a_law_that_hangs() -> None:
    hung, passed = judge_loop(stuck, batches(), [SKIPPED, "it_learns"], limit=1)
    assert hung.text.startswith(f"{SKIPPED}: did not end within 5 s\n")
    assert "where    test_loop_bounds.py:" in hung.text
    assert [hung.outcome, passed.outcome] == ["failed", "passed"]
