"""The commands run checks in their own process: a check that hangs or exits is named, and the
others still run.
"""

import signal
import sys

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing.check import Result
from ampsim.testing.child import judge_apart
from ampsim.testing.scaler_checks import run as judge
from tests.test_cli import run

SCALERS = """
import os, sys, threading, torch

class CatchesAll(torch.amp.GradScaler):
    def __setstate__(self, state):
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass

class Exits(torch.amp.GradScaler):
    def __setstate__(self, state):
        os._exit(3)

class Quits(torch.amp.GradScaler):
    def __setstate__(self, state):
        sys.exit(3)

class IsKilled(torch.amp.GradScaler):
    def __setstate__(self, state):
        os.kill(os.getpid(), 9)

def raises(rule):
    raise ValueError("boom")

def exits(rule):
    os._exit(7)

def gives_nothing(rule):
    return None
"""
LOOPS = """
import os, sys, torch
from ampsim.testing import Loop

batches = torch.ones(4, 3, 2)

def looping(skipped):
    def make(scaler):
        torch.manual_seed(0)
        model = torch.nn.Linear(2, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        def step(batch):
            optimizer.zero_grad()
            scaler.scale(model(batch).square().mean()).backward()
            if not all(param.grad.isfinite().all() for param in model.parameters()):
                skipped()
            scaler.step(optimizer)
            scaler.update()
        return Loop(step, {"model": model, "optimizer": optimizer})
    return make

exits, quits, raises = looping(lambda: os._exit(3)), looping(lambda: sys.exit(3)), looping(lambda: 1 / 0)
"""
MODULES = {
    "apart_scalers": SCALERS,
    "apart_loops": LOOPS,
    "apart_raises": "raise RuntimeError('not today')",
    "apart_quits": "import sys; sys.exit(3)",
    "apart_exits": "import os; os._exit(0)",
    "apart_misspelt": "def f(:",
    "apart_endless": "import threading; threading.Event().wait()",
}
PICKLES = [
    "--check",
    "pickling_is_exact",
    "--check",
    "state_dict_is_snapshot",
    "-n",
    "5",
]
SKIPS = [
    "--check",
    "skipped_step_changes_nothing",
    "--check",
    "step_changes_parameters",
]


@pytest.fixture(autouse=True)
def modules(tmp_path, monkeypatch):
    for name, text in MODULES.items():
        (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield
    for name in MODULES:
        sys.modules.pop(name, None)


@pytest.mark.parametrize(
    ("command", "target", "said"),
    [
        (
            "check",
            "apart_scalers:Exits",
            "pickling_is_exact: ended the process with exit status 3",
        ),
        ("check", "apart_scalers:Quits", "pickling_is_exact: raised SystemExit: 3"),
        (
            "check",
            "apart_scalers:IsKilled",
            "pickling_is_exact: ended the process by SIGKILL",
        ),
        (
            "check-loop",
            "apart_loops:exits",
            "skipped_step_changes_nothing: ended the process with exit status 3",
        ),
        (
            "check-loop",
            "apart_loops:quits",
            "skipped_step_changes_nothing: step, in batch 2 at scale 256, raised Sys",
        ),
    ],
)
def test_process_exit_names_the_check(command, target, said):
    code, text = run(command, target, *(PICKLES if command == "check" else SKIPS))
    assert (code, said in text) == (1, True), text
    assert f"{target}: 1 passed, 1 failed of 2 checks" in text


def test_process_exit_is_never_xfailed():
    assert (
        run("check", "apart_scalers:Exits", *PICKLES, "--xfail", "pickling_is_exact")[0]
        == 1
    )


def test_uninterruptible_hang_is_killed(monkeypatch):
    monkeypatch.setattr(
        "ampsim.testing.child.GRACE", 1.0
    )  # beyond five times the limit
    code, text = run(
        "check", "apart_scalers:CatchesAll", *PICKLES, "--time-limit", "0.5"
    )
    assert (code, "pickling_is_exact: did not end within 2.5 s" in text) == (1, True), (
        text
    )
    assert "1 passed, 1 failed of 2 checks" in text


@pytest.mark.deep
def test_endless_import_exits_with_3():
    code, text = run("check", "apart_endless:X", "--time-limit", "0.2")
    assert (code, "cannot be checked" in text) == (3, True), text


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("apart_scalers:raises", "ValueError: boom"),
        ("apart_scalers:exits", "exit status 7"),
        ("apart_scalers:gives_nothing", "NoneType, without scale, step, update"),
        ("apart_scalers:Exit", "'Exits'"),
        ("apart_raises:X", "RuntimeError: not today"),
        ("apart_quits:X", "SystemExit: 3"),
        ("apart_exits:X", "exit status 0"),
        ("apart_misspelt:X", "SyntaxError"),
        ("apart_nowhere:X", "no module 'apart_nowhere'"),
        ("apart_scalers", "module:attribute"),
        ("apart_loops:raises", "ZeroDivisionError: division by zero"),
    ],
)
def test_unusable_target_prints_one_line(target, said):
    command = ["check-loop", target, *SKIPS] if "loops" in target else ["check", target]
    code, text = run(*command)
    assert (code, said in text, text.count("\n")) == (2, True, 1), text


# -------------------------------------------------------------------------------------------------
# the child itself

CHECKS = judge.chosen(
    names=[
        "get_scale_matches_scale",
        "misuse_raises",
        "skipped_step_changes_nothing",
    ]
)


def results(begin):
    return [*judge_apart(begin, CHECKS, name="it", limit=60.0)]


def passing(names):
    return (
        Result(check, "it", "passed", "") for check in CHECKS if check.name in names
    )


def test_target_output_stays_off_stdout(capfd):
    def begin():
        print("loaded")
        return passing

    assert [each.outcome for each in results(begin)] == ["passed"] * 3
    said = capfd.readouterr()
    assert (said.out, "loaded" in said.err) == ("", True)


def test_internal_failure_is_an_error():
    def begin():
        def judged(names):
            for each in passing(names):
                if each.check is CHECKS[1]:
                    raise TypeError("of its own")
                yield each

        return judged

    assert [each.outcome for each in results(begin)] == ["passed", "error", "passed"]


def test_child_ignores_ctrl_c():
    def begin():
        signal.raise_signal(signal.SIGINT)
        return passing

    before = signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # which a shell's background ignores
    try:
        assert [each.outcome for each in results(begin)] == ["passed"] * 3
    finally:
        signal.signal(signal.SIGINT, before)
