"""`ampsim check` as a command: what hangs, ends its process or cannot be loaded is named, and the rest goes on."""

import signal
from collections.abc import Callable, Iterator, Sequence

import pytest

pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.testing.child import judge_apart
from ampsim.testing.kit import judge
from ampsim.testing.law import Result
from tests.golden import Golden
from tests.testing.programs import checked

Results = dict[str, tuple[int, str]]
SCALERS = """
import os, sys, threading, torch

class Base(torch.amp.GradScaler):
    def __init__(self, device="cpu", init_scale=2.0**16, growth_factor=2.0, backoff_factor=0.5, growth_interval=2000):
        super().__init__(device, init_scale, growth_factor, backoff_factor, growth_interval)

class Deadlocks(Base):
    def __setstate__(self, state):
        lock = threading.Lock()
        with lock, lock:
            pass

class Waits(Base):
    def step(self, optimizer):
        threading.Event().wait()

class CatchesAll(Base):
    def __setstate__(self, state):
        while True:
            try:
                threading.Event().wait()
            except BaseException:
                pass

class Exits(Base):
    def __setstate__(self, state):
        os._exit(3)

class Quits(Base):
    def __setstate__(self, state):
        sys.exit(3)

class Aborts(Base):
    def __setstate__(self, state):
        os.abort()

def raises(rule):
    raise ValueError("boom")

def quits(rule):
    sys.exit(7)

def exits(rule):
    os._exit(7)

def gives_nothing(rule):
    return None
"""
MODULES = {
    "scalers": SCALERS,
    "raising": "raise RuntimeError('not today')",
    "quitting": "import sys; sys.exit(3)",
    "exiting": "import os; os._exit(0)",
    "misspelt": "def f(:",
    "endless": "import threading; threading.Event().wait()",
}
CHECKS = ["--check", "pickling_is_invisible", "--check", "a_state_dict_is_a_snapshot", "-n", "5"]
HANGS = ["scalers:Deadlocks", "scalers:CatchesAll"]
ENDS = {  # what is said of pickling
    "scalers:Exits": "ended the process with exit status 3",
    "scalers:Quits": "raised SystemExit: 3",
    "scalers:Aborts": "ended the process by SIGABRT",
}
UNLOADABLE = {
    "scalers:raises": "scalers:raises: making it raised ValueError: boom; expected a scaler",
    "scalers:quits": "scalers:quits: making it raised SystemExit: 7; expected a scaler",
    "scalers:exits": "scalers:exits: loading it ended the process with exit status 7",
    "scalers:gives_nothing": "scalers:gives_nothing: making it gave None, without scale, step, update: expected",
    "scalers:Deadlock": "scalers has no 'Deadlock'; did you mean 'Deadlocks'",
    "raising:X": "importing raising raised RuntimeError: not today (",
    "quitting:X": "importing quitting raised SystemExit: 3 (",
    "exiting:X": "exiting:X: loading it ended the process with exit status 0",
    "misspelt:X": "importing misspelt raised SyntaxError: invalid syntax (misspelt.py, line 1); expected",
    "endless:X": "endless:X cannot be judged: loading it did not end within 5 s",
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """Exit status and output, by target."""
    runs = {target: [target, "--time-limit", "1" if target == "endless:X" else "30"] for target in UNLOADABLE}
    runs |= {"hang": [*HANGS, *CHECKS, "--time-limit", "1"], "end": [*ENDS, *CHECKS]}
    runs |= {"waits": ["scalers:Waits", "-k", "clean_step_is_taken", *CHECKS, "--time-limit", "1"]}
    runs |= {"expected": ["scalers:Exits", *CHECKS, "--xfail", "pickling_is_invisible"]}
    return checked(tmp_path_factory.mktemp("folder"), MODULES, {name: ["check", *each] for name, each in runs.items()})


@pytest.mark.parametrize("target", UNLOADABLE)
def test_what_cannot_be_loaded_or_made_is_one_sentence(results: Results, target: str) -> None:
    code, text = results[target]
    assert code == (3 if "cannot be judged" in text else 2)
    assert UNLOADABLE[target] in text
    assert text.count("\n") == 1, text


@pytest.mark.parametrize("name", [*UNLOADABLE, "hang", "end", "waits", "expected"])
def test_all_that_is_said_is_golden(results: Results, name: str, golden: Golden) -> None:
    code, text = results[name]
    golden(f"exit status {code}\n{text}")


def test_a_check_that_hangs_is_named_with_its_place_and_history_and_the_others_go_on(
    results: Results,
) -> None:
    code, text = results["hang"]
    assert code == 1
    assert "pickling_is_invisible: did not end within 5 s\n" in text
    assert "  where    scalers.py:11 in __setstate__\n" in text
    assert "  history  clean" in text
    assert "pickling_is_invisible: did not end within 5 s, and no alarm interrupts it\n" in text
    assert [line for line in text.splitlines() if "1 passed, 1 failed of 2 checks" in line] == [
        f"{target}: 1 passed, 1 failed of 2 checks" for target in HANGS
    ]


def test_a_second_law_that_hangs_ends_the_judging_without_a_verdict(results: Results) -> None:
    code, text = results["waits"]
    assert code == 3
    assert "scalers:Waits: 1 failed, 1 refused of 2 checks" in text
    (said,) = [line for line in text.splitlines() if "did not end" in line]
    assert said.startswith("scalers:Waits cannot be judged: clean_step_is_taken: did not end within 5 s; ")


def test_a_check_that_ends_its_process_is_named_and_the_others_go_on(results: Results) -> None:
    code, text = results["end"]
    assert code == 1
    for target, said in ENDS.items():
        assert f"pickling_is_invisible: {said}\n" in text
        assert f"{target}: 1 passed, 1 failed of 2 checks" in text


def test_that_a_check_ends_its_process_is_never_expected(results: Results) -> None:
    assert results["expected"][0] == 1


def of_one_law(outcome: str, *, late: bool) -> Callable[[], Callable[[Sequence[str]], Iterator[Result]]]:
    """What loads a target that prints, whose first law comes to this and ends the judging."""
    (law,) = judge.chosen(names=["clean_step_is_taken"])

    def begin() -> Callable[[Sequence[str]], Iterator[Result]]:
        print("loaded")
        return lambda names: iter([Result(law, "it", outcome, "it cannot be judged", is_overdue=late)])  # type: ignore

    return begin


def test_what_cannot_be_judged_for_an_import_that_does_not_end_is_refused_and_no_wrong_use() -> None:
    laws = judge.chosen(names=["clean_step_is_taken", "skip_budget"])
    (refused,) = judge_apart(of_one_law("refused", late=True), laws, name="it", limit=60.0)
    assert (refused.outcome, refused.text, refused.is_overdue) == ("refused", "it cannot be judged", True)


def test_ctrl_c_is_the_parents_who_ends_both() -> None:
    def begin() -> Callable[[Sequence[str]], Iterator[Result]]:
        signal.raise_signal(signal.SIGINT)
        return of_one_law("passed", late=False)()

    laws = judge.chosen(names=["clean_step_is_taken"])

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # which a shell's background ignores
    try:
        [result] = judge_apart(begin, laws, name="it", limit=60)
    finally:
        signal.signal(signal.SIGINT, before)
    assert result.outcome == "passed"


def test_what_a_target_prints_stands_in_no_report(capfd: pytest.CaptureFixture[str]) -> None:
    laws = judge.chosen(names=["clean_step_is_taken"])
    assert [each.outcome for each in judge_apart(of_one_law("passed", late=False), laws, name="it", limit=60.0)] == [
        "passed"
    ]
    said = capfd.readouterr()
    assert (said.out, "loaded" in said.err) == ("", True)


def test_what_fails_in_the_judge_is_no_finding_and_the_others_go_on() -> None:
    laws = judge.chosen(names=["clean_step_is_taken", "unscaling_twice_is_refused", "skipped_step_changes_nothing"])

    def begin() -> Callable[[Sequence[str]], Iterator[Result]]:
        def judged(names: Sequence[str]) -> Iterator[Result]:
            for each in (law for law in laws if law.name in names):
                if each is laws[1]:
                    raise TypeError("of its own")
                yield Result(each, "it", "passed", "")

        return judged

    results = [*judge_apart(begin, laws, name="it", limit=60.0)]
    assert [each.outcome for each in results] == ["passed", "refused", "passed"]
    assert results[1].text == (f"{laws[1].name} was not judged: ampsim failed, TypeError: of its own; please report it")


def test_what_leaves_its_process_while_it_is_loaded_is_wrong_use() -> None:
    def begin() -> Callable[[Sequence[str]], Iterator[Result]]:
        raise SystemExit(3)

    with pytest.raises(ValueError, match=r"^it: loading it ended the process with exit status 3$"):
        next(judge_apart(begin, judge.chosen(names=["clean_step_is_taken"]), name="it", limit=60.0))
