"""An emitted test fails for the wrong scaler where ampsim is not installed, and passes for a right one."""

import math
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")

from ampsim.cli.completion import complete_law, laws  # noqa: E402
from ampsim.core.machine import Rule  # noqa: E402
from ampsim.testing import Subject, Traits, known  # noqa: E402
from ampsim.testing.emit.run_emitted import require_failure  # noqa: E402
from ampsim.testing.emit.scaler import _maker, write  # noqa: E402
from ampsim.testing.emit.text import value  # noqa: E402
from ampsim.testing.kit.judge import THREADS, chosen  # noqa: E402
from ampsim.testing.kit.subject import CONSTANTS  # noqa: E402
from ampsim.testing.loop import judge as loops  # noqa: E402
from ampsim.testing.ranks import laws as ranks  # noqa: E402
from ampsim.torch import GradScaler  # noqa: E402
from tests.golden import Golden  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.strangers import WRONG, OverrideRestartsTheStreak, Stranger  # noqa: E402
from tests.testing.test_kit_mutants import KILLS  # noqa: E402

TORCH = "torch.amp:GradScaler"
THREADED = {check.name for check in chosen(levels=[THREADS])}
BUGS = {law: bug for bug, law in WRONG.items()}
BUGS |= {law: bug for law, bugs in KILLS.items() for bug in bugs if not isinstance(bug, Subject)}
BUGS |= dict.fromkeys(known.TORCH, torch.amp.GradScaler)


def outcome(source: str) -> str:
    """What the test in a file does."""
    names: dict[str, object] = {}
    exec(source, names)  # noqa: S102  what is under test
    (test,) = [value for name, value in names.items() if name.startswith("test_")]
    try:
        test()
    except AssertionError:
        return "failed"
    except Exception as error:
        return f"raised {type(error).__name__}: {error}"
    return "passed"


@pytest.mark.parametrize("law", [law for law in BUGS if law not in THREADED])
def test_it_fails_for_the_wrong_scaler_and_passes_for_a_right_one(law: str, peer: ModuleType, golden: Golden) -> None:
    peer.Scaler = BUGS[law]
    source, raises = write(law, "peer:Scaler")
    assert "ampsim" not in source
    assert len(source.splitlines()) <= 61, source
    got = outcome(source)
    assert got == "failed" or (raises and got.startswith("raised ")), source
    peer.Scaler = GradScaler if issubclass(BUGS[law], torch.amp.GradScaler) else Stranger
    assert outcome(source) == "passed", source
    golden(source.split('"""', 2)[2])


def by_rule(rule: object) -> torch.amp.GradScaler:
    """A maker that takes the rule, and forgets its interval."""
    return torch.amp.GradScaler("cpu", init_scale=rule.init_scale, growth_interval=7)


def test_a_maker_is_given_the_constants(peer: ModuleType) -> None:
    peer.Scaler = by_rule
    source, _ = write("growth_waits_for_the_interval", "peer:Scaler")
    assert "return Scaler(SimpleNamespace(**rule))" in source
    assert outcome(source) == "failed"
    peer.Scaler = lambda rule: torch.amp.GradScaler("cpu", **vars(rule))
    assert outcome(source) == "passed", source


def shapes(base: type) -> dict[str, Any]:
    """A scaler as constructors of other kinds make it."""

    class Starred(base):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)

    class Positional(base):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args[1:])  # without a device

    def ruled(rule: Any, enabled: bool = True) -> Any:
        return base(rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval, enabled)

    def other(init_scale=4.0, growth_factor=3.0, backoff_factor=0.1, growth_interval=5, enabled=True):
        return base(init_scale, growth_factor, backoff_factor, growth_interval, enabled)

    def fixed(init_scale, growth_interval):
        return base(init_scale, growth_interval=growth_interval)

    return {"Starred": Starred, "Positional": Positional, "ruled": ruled, "other": other, "fixed": fixed}


@pytest.mark.parametrize("shape", shapes(Stranger))
@pytest.mark.parametrize("declared", [{}, {"min_scale": 2.0**-100, "max_scale": 2.0**126}])
def test_a_constructor_of_any_kind_is_called_as_the_kit_does(
    shape: str, declared: dict, peer: ModuleType, golden: Golden
) -> None:
    declared = {**declared, "without": {"factors"}} if shape == "fixed" else declared
    peer.Scaler = shapes(OverrideRestartsTheStreak)[shape]
    source, _ = write("override_keeps_the_streak", "peer:Scaler", **declared)
    assert outcome(source) == "failed", source
    peer.Scaler = shapes(Stranger)[shape]
    assert outcome(source) == "passed", source
    if declared:
        golden(source)


def test_a_maker_that_is_written_keeps_within_the_bounds_as_the_kit_does() -> None:
    traits = Traits(min_scale=1.0, max_scale=2.0**20, powers_of_two=True, without=frozenset({"factors"}))
    defined: dict[str, Any] = {"SimpleNamespace": SimpleNamespace, "math": math, "Scaler": vars}
    exec(_maker("make", "Scaler", lambda rule: rule, traits), defined)  # noqa: S102
    for asked in (2.0**30, 2.0**20, 1700.0, 1.0, 0.1):
        made = defined["make"](init_scale=asked, growth_factor=3.0)
        kept = traits.possible(Rule(init_scale=asked, growth_factor=3.0))
        assert made == {name: getattr(kept, name) for name in CONSTANTS}


def test_a_subject_is_not_written(peer: ModuleType) -> None:
    peer.Scaler = Subject(torch.amp.GradScaler)
    with pytest.raises(ValueError, match="peer:Scaler is a Subject, which needs ampsim: name the class"):
        write("scale_stays_normal", "peer:Scaler")


class Delayed(GradScaler):
    """Uses each scale one update late."""

    def __init__(self, *args: object, **kwargs: object) -> None:
        super().__init__(*args, **kwargs, depth=1)


def test_declared_traits_are_what_is_expected(peer: ModuleType) -> None:
    peer.Scaler = Delayed
    with pytest.raises(ValueError, match="overflow_backs_off_once holds for peer:Scaler"):
        write("overflow_backs_off_once", "peer:Scaler", delay=1)
    peer.Scaler = torch.amp.GradScaler
    source, _ = write("scale_is_exact_float32", "peer:Scaler", delay=1)
    assert outcome(source) == "failed"
    peer.Scaler = Delayed
    assert outcome(source) == "passed", source


@pytest.mark.usefixtures("warm_python")
def test_the_command_writes_what_fails_in_a_process_without_ampsim(tmp_path: Path) -> None:
    file = tmp_path / "test_it.py"
    code, text = run("emit-test", "scale_stays_normal", TORCH, "-o", str(file), "--time-limit", "0")
    assert (code, text) == (0, "")
    assert outcome(file.read_text()) == "failed"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["skip_budget", TORCH], "skip_budget holds for torch.amp:GradScaler: there is nothing to emit"),
        (["skip_budge", TORCH], "no law 'skip_budge'; did you mean 'skip_budget'"),
        (["a_state_dict_is_never_torn", TORCH], "a_state_dict_is_never_torn needs the conductor"),
        (
            ["skip_is_reported", TORCH, "--without", "skip_report"],
            "is not asked of torch.amp:GradScaler: it is without",
        ),
        (["skip_budget", "torch.amp:GradScale"], "did you mean 'GradScaler'"),
        (["skip_budget", "math:pi"], "expected a GradScaler class or make(rule)"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(arguments: list[str], said: str, golden: Golden) -> None:
    code, text = run("emit-test", *arguments)
    assert (code, said in text, text.count("\n")) == (2, True, 1), text
    golden(text)


def test_what_does_not_fail_apart_is_not_given_out() -> None:
    with pytest.raises(ValueError, match="the short test passes"):
        require_failure("def test_x(): pass", raises=False, limit=60)
    with pytest.raises(ValueError, match="ended otherwise, where an assertion should fail: ZeroDivisionError"):
        require_failure("def test_x(): 1 / 0", raises=False, limit=60)
    require_failure("def test_x(): 1 / 0", raises=True, limit=60)
    for raises in (False, True):  # a test that never began shows nothing
        with pytest.raises(
            ValueError, match=r"ended otherwise, where .*: ModuleNotFoundError: No module named 'peer_of'"
        ):
            require_failure("import peer_of\ndef test_x(): pass", raises=raises, limit=60)
    with pytest.raises(ValueError, match=r"did not end within 0\.5 s"):
        require_failure("import threading\ndef test_x(): threading.Event().wait()", raises=False, limit=0.5)


class Spins(torch.amp.GradScaler):
    def update(self, new_scale: float | None = None) -> None:
        while True:
            pass


def test_of_what_does_not_end_no_test_is_written(peer: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    peer.Scaler = Spins
    monkeypatch.setattr("ampsim.testing.kit.check.time_limit", lambda _: 0.1)
    with pytest.raises(ValueError, match=r"^clean_step_is_taken: did not end within .*: nor would a short test$"):
        write("clean_step_is_taken", "peer:Scaler")


def test_a_target_that_needs_ampsim_is_said_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "adapted.py").write_text("from ampsim.testing import FromFlag\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(
        ValueError, match=r"the target imports ampsim .*, and the test is for a project that has none; expected a"
    ):
        require_failure("from adapted import make\ndef test_x(): make()", raises=False, limit=0)


@pytest.mark.peer("flax", "jax")
def test_flax_is_written_as_flax() -> None:
    pytest.importorskip("flax")
    target = "flax.training.dynamic_scale:DynamicScale"
    source, _ = write("growth_waits_for_the_interval", target)
    assert "torch" not in source
    assert outcome(source) == "failed"
    assert outcome(source.replace("growth_interval=1)", "growth_interval=0)")) == "passed"  # as due


def test_numbers_are_read_back() -> None:
    for each in (0.0, 1.0, -1.0, 0.7, 2.0**-149, 2.0**127, 1e38, float("inf"), -float("inf")):
        assert eval(value(each), {"math": math}) == each  # noqa: S307
        assert eval(value([each] * 30)) == [each] * 30  # noqa: S307
    assert value([True] * 166 + [False]) == "[True] * 166 + [False]"
    assert value([]) == "[]"


def test_a_shell_completes_all_laws() -> None:
    assert sorted(laws()) == sorted({check.name for check in chosen()} | set(loops.LAWS) | set(ranks.LAWS))
    assert complete_law("scale_is") == ["scale_is_exact_float32", "scale_is_invisible"]
