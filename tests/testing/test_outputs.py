"""All that is printed and written, to the letter: reports, commands, runs of threads, refusals, and the laws."""

import json
import math
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import metadata
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
if not torch.distributed.is_available():
    pytest.skip("this torch has no torch.distributed", allow_module_level=True)

from ampsim.core.machine import Rule  # noqa: E402
from ampsim.testing import FromFlag, Subject, Traits, known  # noqa: E402
from ampsim.testing.conductor import Conductor, DeadlockError, FailingScheduleError, Run, attempt, explore, pct  # noqa: E402
from ampsim.testing.conductor import run as run_alone  # noqa: E402
from ampsim.testing.emit.ranks import TRAIN, write  # noqa: E402
from ampsim.testing.emit.text import Text, value, versions, written  # noqa: E402
from ampsim.testing.kit import judge as scalers  # noqa: E402
from ampsim.testing.kit.laws import LAWS  # noqa: E402
from ampsim.testing.kit.subject import FEATURES, arguments_of, as_subject  # noqa: E402
from ampsim.testing.law import Law, Result  # noqa: E402
from ampsim.testing.load import load  # noqa: E402
from ampsim.testing.loop.adapters.frameworks import FRAMEWORKS  # noqa: E402
from ampsim.testing.loop.judge import LAWS as LOOP_LAWS  # noqa: E402
from ampsim.testing.ranks.judge import find  # noqa: E402
from ampsim.testing.ranks.laws import LAWS as RANK_LAWS  # noqa: E402
from ampsim.testing.ranks.scenario import FAST_ON_DTENSORS, scenarios  # noqa: E402
from ampsim.testing.report import FORMATS, Report  # noqa: E402
from tests.golden import Golden, canonical  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.rank_bugs import WRONG as OF_RANKS  # noqa: E402
from tests.testing.rank_bugs import PollsInTurn  # noqa: E402
from tests.testing.test_conductor import busy  # noqa: E402
from tests.testing.test_faults import guarded  # noqa: E402
from tests.testing.test_races import RACES, Race  # noqa: E402


def test_a_golden_text_is_the_same_on_any_machine() -> None:
    text = "1.23456e-09 apart, 1.52587890625e-05, 0.12345678, 2026.12 at a.py:12, torch 2.13.0+cpu."
    assert canonical(text) == "tiny apart, 1.52587890625e-05, 0.123, 2026.12 at a.py:N, torch VERSION."


# --------------------------------------------------------------------------------------------------------- reports


def told(law: Law, target: str, outcome: Any, seen: str, story: str = "", **more: Any) -> Result:
    return Result(law, target, outcome, f"{law.name}: {seen}\n  law      {law.law}{story}", **more)


def of_all_kinds() -> list[Result]:
    """Results of every outcome, of two scalers and a loop, some of one cause, one with markup in its text."""
    budget, normal, back, own = (
        LAWS[name] for name in ("skip_budget", "scale_stays_normal", "scale_comes_back", "new_scaler_is_fresh")
    )
    learns, splits = LOOP_LAWS["it_learns"], LOOP_LAWS["splitting_is_invisible"]
    story = "\n  scaler   init_scale=1.0\n  history  inf x 8\n  scale    1.0 -> 0.5"
    return [
        told(back, "mine:Scaler", "failed", "raised OSError: <5> & \x1b[31m"),
        told(normal, "mine:Scaler", "failed", "fell to 0", story),
        told(budget, "mine:Scaler", "failed", "skipped", story),
        told(own, "mine:Scaler", "failed", "raised OSError: <5> & \x1b[31m"),
        Result(budget, "other:Scaler", "passed"),
        Result(normal, "other:Scaler", "expected failure", "no floor: https://example.org"),
        Result(own, "other:Scaler", "unexpected pass", "new_scaler_is_fresh holds, but was expected to be broken: x"),
        Result(back, "other:Scaler", "not applicable", "without growth"),
        Result(learns, "my_loops:make", "refused", "step raised KeyError: 'x'"),
        Result(splits, "my_loops:make", "not applicable", "the Loop has no split="),
        told(learns, "hung:make", "failed", "did not end", is_overdue=True),
        Result(splits, "hung:make", "refused", "hung:make cannot be judged: it_learns: ...", is_overdue=True),
    ]


@pytest.mark.parametrize("form", FORMATS)
def test_a_report_of_every_outcome(form: str, golden: Golden) -> None:
    golden(FORMATS[form](Report(of_all_kinds())))


def test_a_report_of_nothing(golden: Golden) -> None:
    golden("\n".join(write_(Report([])) for write_ in FORMATS.values()))


# -------------------------------------------------------------------------------------------------------- commands

TORCH, OURS = "torch.amp:GradScaler", "ampsim.torch:GradScaler"
NORMAL, REFUSED, TORN = "scale_stays_normal", "a_refused_state_dict_changes_nothing", "a_state_dict_is_never_torn"
HERE = "tests.testing.test_outputs"
CHECK = ["check", "--examples", "5", "--time-limit", "0"]
RANKS = ["check-ranks", "--ranks", "2"]
COMMANDS = {
    "finding": [*CHECK, TORCH, "--law", NORMAL],
    "two findings of two scalers": [*CHECK, TORCH, OURS, "--law", NORMAL, "--check", REFUSED, "-k", "skip_budget"],
    "levels": [*CHECK, OURS, "-l", "4"],
    "expected by a module": [*CHECK, TORCH, "-l", "4", "--expect", "ampsim.testing.known:TORCH", "--report", "md"],
    "expected by name": [*CHECK, TORCH, "-k", NORMAL, "-k", "skip_budget", "--xfail", NORMAL, "--xfail", "skip_budget"],
    "expected to raise": [*CHECK, f"{HERE}:Raises", "-k", "clean_step_is_taken", "--xfail", "clean_step_is_taken"],
    "raises": [*CHECK, f"{HERE}:Raises", "-k", "clean_step_is_taken", "-k", "skip_budget"],
    "a trait": [*CHECK, OURS, "-k", NORMAL, "--trait", "min_scale=1"],
    "a choice": [*CHECK, f"{HERE}:floored", "-k", "overflow_backs_off_once"],
    "a trait that excuses": [*CHECK, f"{HERE}:floored", "-k", "overflow_backs_off_once", "--trait", "min_scale=1"],
    "traits of another kind": [*CHECK, TORCH, "--trait", "static=true", "--trait", "skips=all", "-l", "2"],
    "without": [*CHECK, TORCH, "-l", "4", "--without", "state_dict", "--without", "pickle", "--report", "md"],
    "unknown feature": [*CHECK, TORCH, "--without", "pickles"],
    "unknown trait": [*CHECK, TORCH, "--trait", "min_scales=1"],
    "unknown law": [*CHECK, TORCH, "-k", "skip_budgets"],
    "unknown level": [*CHECK, TORCH, "-l", "6"],
    "no scaler": [*CHECK, "math:pi"],
    "no maker": [*CHECK, "math:floor"],
    "no module": [*CHECK, "no_such_module:X"],
    "a file": [*CHECK, "tests.testing.test_outputs.py:X"],
    "no name": [*CHECK, "math"],
    "threads": ["check", TORCH, "-k", TORN, "--time-limit", "0"],
    "a schedule": ["check", TORCH, "-k", TORN, "--schedule", "72:1,76:1"],
    "no preemption": ["check", TORCH, "-k", TORN, "--schedule", ""],
    "a schedule of no threads": ["check", TORCH, "-k", NORMAL, "--schedule", "9:1"],
    "ranks": [*RANKS, "tests.testing.rank_bugs:SumForMax", "--law", "parameters_stay_finite", "--report", "md"],
    "ranks without": [*RANKS, "tests.testing.rank_bugs:SkipsLocally", "--law", "verdicts_agree", "--without", "fused"],
    "emit a floor": ["emit-test", NORMAL, TORCH],
    "emit with a trait": ["emit-test", "overflow_backs_off_once", f"{HERE}:floored", "--trait", "max_scale=1024"],
    "emit nothing": ["emit-test", NORMAL, TORCH, "--trait", "min_scale=0.0078125", "--without", "factors"],
}


class Raises(torch.amp.GradScaler):
    def step(self, optimizer: Any, *args: Any, **kwargs: Any) -> None:
        raise ZeroDivisionError("float division\nby zero")


class Floored(torch.amp.GradScaler):
    def update(self, new_scale: Any = None) -> None:
        super().update(new_scale)
        self._scale.clamp_(min=1.0)  # type: ignore[union-attr]


def floored(rule: Rule) -> Floored:
    return Floored("cpu", rule.init_scale, rule.growth_factor, rule.backoff_factor, rule.growth_interval)


@pytest.mark.usefixtures("warm_python")
@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_says(name: str, golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    code, text = run(*COMMANDS[name])
    golden(f"exit status {code}\n{text}")


RUNS_RANKS = TRAIN[TRAIN.index("    except Exception") :].format(ranks=2)  # the same in each


@pytest.mark.parametrize("law", RANK_LAWS)
def test_a_test_of_ranks_is_written(law: str, peer: ModuleType, golden: Golden) -> None:
    bugs = {law: bug for bug, law in reversed(OF_RANKS.items()) if bug is not PollsInTurn}
    peer.Scaler = bugs[law]  # type: ignore[attr-defined]
    source, _ = write(law, "peer:Scaler", 2)
    golden(source if law == "verdicts_agree" else source.partition("    params = ")[2].replace(RUNS_RANKS, ""))


# --------------------------------------------------------------------------------------------------------- threads


@pytest.mark.parametrize("race", RACES)
def test_a_failing_schedule_is_told(race: Race, golden: Golden) -> None:
    with pytest.raises(FailingScheduleError) as found:
        explore(race(cured=False), preemptions=1)
    text = re.sub(r"(?s)(AssertionError in task '\w+'): .*?\nreplay", r"\1\nreplay", str(found.value))  # pytest's words
    cause = found.value.__cause__ if isinstance(found.value.__cause__, DeadlockError) else ""
    golden(f"{text}\n\n{cause}\n\n{found.value.number} {found.value.schedule}")


def waits(c: Conductor) -> None:
    """Every way to wait that a table tells of, and what is held meanwhile."""
    lock, condition, queue = c.sync.Lock(), c.sync.Condition(), c.sync.Queue(1)

    def hold() -> None:
        with lock, condition:
            c.sync.Event().wait()

    def wait() -> None:
        with condition:
            condition.wait()

    queue.put(1)
    threads = [c.spawn("holds", hold), c.spawn("locks", lock.acquire), c.spawn("conditions", wait)]
    c.spawn("fills", queue.put, 2)
    c.spawn("empties", c.sync.Queue().get)
    c.spawn("counts", c.sync.Semaphore(0).acquire)
    c.spawn("joins", threads[0].join)
    c.spawn("ends", c.point, "here")


def polls(c: Conductor) -> None:
    while True:
        c.point("again")


RUNS: dict[str, Callable[[], object]] = {
    "busy": lambda: attempt(busy, dict.fromkeys(range(0, 60, 7), 1)),
    "busy, at random": lambda: attempt(busy, pct(5, depth=4)),
    "a deadlock": lambda: attempt(waits),
    "a livelock": lambda: attempt(polls, max_steps=20),
    "a crash": lambda: attempt(guarded, crash_at={4: "a"}),
    "a crash that frees": lambda: attempt(guarded, crash_at={4: "a"}, crash_frees_locks=True),
    "an interrupt": lambda: attempt(guarded, {2: 1}, interrupt_at={3: "b"}),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_run_is_told(name: str, golden: Golden) -> None:
    golden(str(RUNS[name]()))


class Watched:
    value = 0

    def method(self) -> None:
        pass


def remembers() -> Callable[[Conductor], None]:
    """A program that is another one the second time."""
    runs: list[int] = []

    def program(c: Conductor) -> None:
        runs.append(len(runs))
        for i in range(3 * (len(runs) == 1)):
            c.spawn(f"task {i}", c.point, "here")

    return program


def left(use: Callable[[Any], object]) -> Callable[[], object]:
    """Use what a run has left behind."""

    def later() -> object:
        return use(attempt(lambda c: SimpleNamespace(queue=c.sync.Queue(), thread=c.sync.Thread(name="late"))).value)

    return later


def too_late(c: Conductor) -> None:
    c.spawn("early", c.point, "x")
    c.watch_tensors(late=torch.ones(1))


def checked(done: Run) -> None:
    raise ValueError(f"{len(done.trace)} steps")


REFUSED_RUNS: dict[str, Callable[[], object]] = {
    "no names": lambda: run_alone(lambda c: c.watch(Watched)),
    "a method": lambda: run_alone(lambda c: c.watch(Watched, "method")),
    "a negative choice": lambda: run_alone(guarded, {3: -1}),
    "a negative step": lambda: run_alone(guarded, {-3: 1, 4: 1}),
    "a queue of a run that is over": left(lambda it: it.queue.get()),
    "a thread of a run that is over": left(lambda it: it.thread.start()),
    "a run in a run": lambda: run_alone(lambda c: run_alone(guarded)),
    "a lock without a run": lambda: Conductor.sync.Lock(),
    "no stand-in": lambda: Conductor.sync.Barrier,
    "no such name": lambda: Conductor.sync.Lokc,
    "no such attribute": lambda: run_alone(lambda c: (c.watch(Watched, "absent"), Watched().absent)),  # type: ignore
    "a tensor too late": lambda: run_alone(too_late),
    "another program each time": lambda: explore(remembers()),
    "a check": lambda: explore(guarded, check=checked),
}


@pytest.mark.parametrize("name", REFUSED_RUNS)
def test_a_run_is_refused(name: str, golden: Golden) -> None:
    with pytest.raises(Exception) as refused:  # noqa: PT011  the golden text has its kind and words
        REFUSED_RUNS[name]()
    notes = "".join(f"\n{note}" for note in getattr(refused.value, "__notes__", ()))
    golden(f"{type(refused.value).__name__}: {refused.value}{notes}")


# ---------------------------------------------------------------------------------------------------- written tests

VALUES: list[Any] = [
    *(0.0, 1.0, -1.0, 0.7, 1024.0, 2048.0, 2.0**11, 2.0**12, 2.0**-12, 2.0**-149, -(2.0**20), 1e38, 3e-30, math.inf),
    *(-math.inf, math.nan, 3, True, None, "it", 'it is "it"', (), (1,), (1.0, 2), [], [1], [1, 1, 1], [1, 1, 1, 1]),
    *([True] * 5 + [False], [0.5] * 3, [0.5] * 4, [0.1, 0.2, 0.3], [0.1, 0.2, 0.3, 0.4], [0.1 * i for i in range(9)]),
    *({"init_scale": 2.0**16, "on": False}, {}, {"deep": {"x": [1.5, 2]}}, [0.5] * 26 + [0.25], [0.5] * 8 + [0.25]),
]
CODE = """
copy.deepcopy(1), io.x, itertools.count(), math.inf, numpy.x, pickle.x, random.x, sys.x, tempfile.x
TestCase(), SimpleNamespace(), namedtuple(), suppress(), partial(), timedelta()
@contextmanager
@cache
"""


def test_values_are_written_as_python_reads_them(golden: Golden) -> None:
    golden("\n".join(value(each) for each in VALUES))


FILES = {
    "a test": ("assert made", []),
    "all that is standard": (CODE, ["def make():\n    pass"]),
    "much space": ("assert made", ["x = 1", "\n\n\n\ndef make():\n    pass\n"]),
}


@pytest.mark.parametrize("name", FILES)
def test_a_file_is_written_around_a_test(name: str, golden: Golden) -> None:
    code, head = FILES[name]
    seen = " ".join(f"word{i} \x1b[31mred\x1b[0m" for i in range(25))
    about = Text("it_holds", seen, "It holds, " * 20 + "always.", "https://example.org", "a cause", "peer 1.0")
    golden(written(about, ["import torch", "from peer import X", "import math"], code.splitlines(), head))


def test_what_a_file_was_seen_with_is_what_it_imports() -> None:
    assert versions(["import torch", "from torch.amp import X", "from hypothesis import y", "import math"]) == (
        f"torch {torch.__version__}, hypothesis {metadata.version('hypothesis')}"
    )
    assert versions(["import math"]) == "its version of today"
    assert '"""it: x\n\nIt is.\nSeen with its version of today.\n"""' in written(Text("it", "x", "It is."), [], [])


# ---------------------------------------------------------------------------------- laws, and what is known of scalers


@pytest.mark.parametrize("laws", [LAWS, LOOP_LAWS, RANK_LAWS], ids=["scalers", "loops", "ranks"])
def test_the_laws_are_stated(laws: Mapping[str, Law], golden: Golden) -> None:
    lines = []
    for law in laws.values():
        lines += [f"{law.name} ({law.group}; level {law.level}; needs {' '.join(law.needs) or 'nothing'}; {law.since})"]
        lines += [f"  {law.law}", f"  {law.issue}", f"  draws {[*law.draws]}, derives {[*law.derives]}"]
        lines += [f"  found {value([*law.found])}, last {value([*law.last])}"] * bool(law.found or law.last)
    golden("\n".join(lines))


def test_what_is_known_of_scalers_and_frameworks(golden: Golden) -> None:
    lists = {name: value for name, value in vars(known).items() if name.isupper() and not name.startswith("_")}
    frameworks = {name: [each.package, each.function, each.expected] for name, each in FRAMEWORKS.items()}
    golden(json.dumps({**lists, "features": FEATURES, "frameworks": frameworks}, indent=1))


def test_the_scenarios_of_ranks(golden: Golden) -> None:
    played = [*scenarios(2), *(each for each in scenarios(3, FAST_ON_DTENSORS) if each.kernel and not each.unscales)]
    golden("\n".join("; ".join(text for _, text in each.story(2)) for each in played))


MAKERS = {
    "torch's": torch.amp.GradScaler,
    "its name": partial(torch.amp.GradScaler, "cpu"),
    "by rule": floored,
    "from a flag": lambda rule: FromFlag(lambda: rule.init_scale, lambda found_inf: None),
    "raising": lambda rule: 1 / 0,
    "a subject": Subject(floored, Traits(min_scale=1.0, without=frozenset({"pickle"})), "mine"),
}


def test_what_a_subject_is_taken_for(golden: Golden) -> None:
    """Its name, what it lacks, and what it is called with."""
    lines = []
    for name, target in MAKERS.items():
        subject = as_subject(target)
        given = arguments_of(subject.make if isinstance(target, Subject) else target)
        lines += [f"{name}: {subject.name}, lacks {sorted(subject.lacking)}"]
        lines += [f"  given {given(Rule(), enabled=False) if given else 'the rule'}"]
    golden("\n".join(lines))


DECLARED = [
    Traits(),
    Traits(min_scale=2.0, max_scale=2.0**20, powers_of_two=True, without=frozenset({"factors", "pickle"})),
    Traits(static=True, scale_dtype="float64", drop_in=True, skips="all", delay=2),
    Traits(hysteresis=3, hysteresis_refill="clean", gives_up=(OverflowError,)),
]


def test_what_traits_make_of_a_rule(golden: Golden) -> None:
    """Options that declare them, features that they are, and the rules that a scaler with them follows."""
    lines = []
    for traits in DECLARED:
        lines += [f"{' '.join(traits.as_options())}", f"  {traits.declares}"]
        rules = [Rule(init_scale=scale, growth_factor=3.0, backoff_factor=0.3) for scale in (2.0**100, 1700.0, 0.3)]
        lines += [f"  {traits.follows(rule)}" for rule in rules]
    golden("\n".join(lines))


# ------------------------------------------------------------------------------------------------------- refusals


class Hides:
    def __init__(self, place: str = "cpu", **others: Any) -> None:
        pass


REFUSALS: dict[str, Callable[[], object]] = {
    "load nothing": lambda: load("torch"),
    "load no attribute": lambda: load("torch.amp:GradScaler.scales"),
    "load no module": lambda: load("torch.no_such:X"),
    "level": lambda: scalers.chosen(levels=[6]),
    "level, no number": lambda: scalers.chosen(levels=["1"]),  # type: ignore[list-item]
    "law": lambda: scalers.chosen(names=["skip_budgets"]),
    "expected law": lambda: scalers.chosen(expected={"skip_budgets": ""}),
    "skips": lambda: Traits(skips="some"),  # type: ignore[arg-type]
    "scale_dtype": lambda: Traits(scale_dtype="float16"),  # type: ignore[arg-type]
    "refill": lambda: Traits(hysteresis_refill="never"),
    "feature": lambda: Traits(without=frozenset({"pickles"})),
    "target": lambda: as_subject(3),
    "target that hides what it takes": lambda: as_subject(Hides),
    "maker raises": lambda: as_subject(lambda rule: 1 / 0, name="mine").try_out(),
    "maker of nothing": lambda: as_subject(lambda rule: None, name="mine").try_out(),
    "no class of ranks": lambda: find("torch.amp:GradScale"),
}


def test_wrong_use_is_one_sentence(golden: Golden) -> None:
    lines = []
    for name, use in REFUSALS.items():
        with pytest.raises((TypeError, ValueError)) as refused:
            use()
        lines.append(f"{name}: {type(refused.value).__name__}: {refused.value}")
    golden("\n".join(lines))
