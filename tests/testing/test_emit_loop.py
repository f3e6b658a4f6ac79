"""An emitted test of a loop fails for the wrong loop where ampsim is not installed, and passes for a right one."""

import sys
from functools import partial
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="pip install -c constraints.txt 'ampsim[torch]'")
from torch import nn  # noqa: E402

from ampsim.jax import LossScale  # noqa: E402
from ampsim.testing import Loop  # noqa: E402
from ampsim.testing.emit.loop import TEMPLATES, WITHOUT, _saving, write  # noqa: E402
from ampsim.testing.emit.loop_case import Case  # noqa: E402
from ampsim.testing.loop.adapters.frameworks import FRAMEWORKS  # noqa: E402
from ampsim.testing.loop.judge import LAWS, check_loop  # noqa: E402
from ampsim.testing.loop.law import Broken  # noqa: E402
from ampsim.testing.loop.runs import Batch  # noqa: E402
from ampsim.testing.loop.state import Difference  # noqa: E402
from experiments.bugs.loops import BUGS  # noqa: E402
from tests.golden import Golden  # noqa: E402
from tests.test_cli import run  # noqa: E402
from tests.testing.loops import FUSED, SGD, Trainer, batches, boxed, cut, looping, loss_of, parts  # noqa: E402
from tests.testing.test_emit import outcome  # noqa: E402
from tests.testing.test_loops import (  # noqa: E402
    adds_a_group,
    averages_the_loss,
    begins_anew,
    counts_micro_batches,
    scales_by_its_own,
    sets_the_tracker,
    steps,
    steps_at_the_third_skip,
    updates_twice,
)

KINDS = (  # one of each kind of runs that are compared
    "relax_44_unscaled_twice",
    "deepspeed_8588_divided_by_the_next_scale",
    "fastai_3049_smoothed_loss_is_scaled",
    "lightning_18828_schedule_goes_on",
    "paddle_67895_gradients_not_cleared",
    "transformers_11663_scaler_not_saved",
    "waifu_31_saving_leaves_the_average_in_the_model",
    "yolox_1318_only_the_average",
    "marin_7659_last_micro_batch_wins",
    "rae_67_cleared_per_micro_batch",
    "deepspeed_8415_every_step_skipped",
    "automodel_1408_return_value_discarded",
    "lerobot_4652_average_goes_on",
    "deepspeed_8432_momentum_before_the_check",
    "applio_860_second_optimizer_called_directly",
    "ace_349_average_not_saved",
    "iseekyan_56_auxiliary_loss_not_divided",
)


def right(optimizer, scaler):
    """A loop that carries all that the wrong ones carry, and is right."""
    t = Trainer(scaler, optimizer)
    for name in ("momentum", "control", "steps"):
        t.carry(name, torch.zeros(4, 3))
    average, schedule = t.average(), t.schedule()
    t.carry("two", torch.optim.SGD(t.params()[:2], lr=0.01))
    router = t.carry("router", nn.Parameter(torch.ones(2)))
    t.optimizer.add_param_group({"params": [router]})

    def step(batch):
        t.optimizer.zero_grad()
        total = 0
        for part in parts(batch):
            loss = (loss_of(t.model, part) + router.square().sum()) / len(parts(batch))
            scaler.scale(loss).backward()
            total += loss
        scaler.unscale_(t.optimizer)
        norm = nn.utils.get_total_norm([param.grad for param in t.params()])
        t.logs.update(loss=total, smooth_loss=total.item(), grad_norm=norm, norm=norm)
        if t.update():
            schedule.step()
            average.update_parameters(t.model)

    def save():
        held = {**t.state, "scaler": scaler, "router": nn.ParameterList([router])}
        return {name: value.state_dict() for name, value in held.items() if hasattr(value, "state_dict")}

    def load(saved):
        held = {**t.state, "scaler": scaler, "router": nn.ParameterList([router])}
        for name in saved:
            held[name].load_state_dict(saved[name])

    return Loop(step, t.state, lambda: t.logs, cut, save, load)


@pytest.fixture
def loops(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """A module `loops` of batches, and of a maker that is exchanged; a test may replace the kit's Loop."""
    module = ModuleType("loops")
    module.batches = batches
    monkeypatch.setitem(sys.modules, "loops", module)
    monkeypatch.setitem(sys.modules, "ampsim.testing", sys.modules["ampsim.testing"])
    return module


def test_every_law_has_a_template() -> None:
    assert {*TEMPLATES, *WITHOUT} == {*LAWS}


def test_the_right_loop_is_right() -> None:
    check_loop(partial(right, SGD), batches())


OTHERS = [pytest.param(name, marks=pytest.mark.deep) for name in BUGS if name not in KINDS]


@pytest.mark.parametrize("name", [*KINDS, *OTHERS])
def test_it_fails_for_the_wrong_loop_and_passes_for_a_right_one(name: str, loops: ModuleType, golden: Golden) -> None:
    loops.make = BUGS[name].make
    source, raises = write(BUGS[name].law, "loops:make")
    assert len(source.splitlines()) <= 55, source
    assert not raises
    assert "import ampsim" not in source
    assert outcome(source) == "failed", source
    loops.make = partial(right, FUSED if "fused" in name else SGD)
    assert outcome(source) == "passed", source
    if name in KINDS and name != "rae_67_cleared_per_micro_batch":  # what is furthest apart differs by processor
        golden(source if name == KINDS[0] else source.partition("def train(")[2])  # what is before is the same


@pytest.mark.parametrize("step", [scales_by_its_own, begins_anew, sets_the_tracker, updates_twice])
def test_what_changes_a_scaler_besides_its_update_is_written(step, loops: ModuleType, golden: Golden) -> None:
    loops.make = looping(step, setup=boxed(seen=0))
    source, _ = write("scaler_changes_by_update_only", "loops:make")
    assert outcome(source) == "failed", source
    loops.make = partial(right, SGD)
    assert outcome(source) == "passed", source
    golden(source)


def skips_nothing_bad(t, batch):
    t.backward(batch)
    nn.utils.clip_grad_norm_(t.params(), 1.0, error_if_nonfinite=True)
    t.update()


def of_jax(scaler: LossScale) -> None:
    pass


@pytest.mark.parametrize(
    ("make", "law"),
    [
        (looping(counts_micro_batches, split=cut), "splitting_is_invisible"),
        (looping(adds_a_group), "resume_is_invisible"),
        (looping(steps, setup=Trainer.schedule), "it_learns"),
        (looping(steps_at_the_third_skip), "skipped_step_never_happened"),
        (of_jax, "it_learns"),
        (lambda scaler: 1 / 0, "it_learns"),
        (looping(skips_nothing_bad), "skipped_step_never_happened"),
        (looping(averages_the_loss, setup=boxed(mean=0.0)), "skipped_step_never_happened"),
    ],
    ids=lambda each: getattr(each, "__name__", None),
)
def test_what_loops_of_other_kinds_break_is_written(make, law: str, loops: ModuleType, golden: Golden) -> None:
    loops.make = make
    try:
        source, raises = write(law, "loops:make")
    except ValueError as error:
        golden(f"refused: {error}")
    else:
        golden(f"raises {raises}\n{source.partition('def train(')[2]}")
        assert outcome(source).startswith("raised" if raises else "failed"), source


class Held:
    """Has a state dict, and names in it that have dots and numbers."""

    def state_dict(self) -> dict[Any, Any]:
        return {"a": {1: [1.0, {"c.d": 2.0}]}, "a.b": 3.0, "ab": 4.0}


def case(shown: Difference | None = None, logged: Any = None, **state: Any) -> Case:
    """Return a case of a loop that carries and logs this."""
    run: Any = SimpleNamespace(loop=Loop(lambda batch: None, state, logged))
    return Case(None, run, [], Broken("", 0), shown)


@pytest.mark.parametrize(
    ("name", "reached"),
    [
        ("held.ab", 'loop.state["held"].state_dict()["ab"]'),
        ("held.a.b", 'loop.state["held"].state_dict()["a.b"]'),
        ("held.a.1.0", 'loop.state["held"].state_dict()["a"][1][0]'),
        ("held.a.1.1.c.d", 'loop.state["held"].state_dict()["a"][1][1]["c.d"]'),
        ("late.1", 'loop.state["late"]()[1]'),
        ("seen", 'loop.state["seen"]'),
        ("logged.norm", 'loop.logged()["norm"]'),
        ("scaler._growth_tracker", 'scaler.state_dict()["_growth_tracker"]'),
    ],
)
def test_what_a_loop_holds_is_reached_in_code(name: str, reached: str) -> None:
    it = case(held=Held(), late=lambda: [1, 2], seen=3, logged=lambda: {"norm": 2.0})
    assert it.seen(name=name) == reached
    own = name.startswith("scaler")
    assert it.seen("other", "its", name) == reached.replace(*("scaler", "its") if own else ("loop", "other"))
    if name != "scaler._growth_tracker":
        value = eval(reached, {"loop": SimpleNamespace(state=it.run.loop.state, logged=it.run.loop.logged)})  # noqa: S307
        assert isinstance(value, int | float)
    shown = Difference(name, np.ones(1), np.ones(1))
    assert case(shown, it.run.loop.logged, **it.run.loop.state).seen() == reached


def test_what_cannot_be_reached_in_code_is_refused() -> None:
    for name in ("held.b", "logged.norm", "other"):
        with pytest.raises(ValueError, match=f"^{name} has no short name in code; expected it under a name of its own"):
            case(held=Held()).seen(name=name)


def test_the_parameters_of_a_loop_in_code() -> None:
    layer = nn.Linear(1, 1)
    optimizer = torch.optim.SGD([{"params": [param]} for param in layer.parameters()], lr=0.1)
    one, both = case(model=layer, optimizer=optimizer), case(model=layer, seen=3, critic=layer)
    assert one.parameters == 'loop.state["model"].parameters()'
    assert both.parameters == '[*loop.state["model"].parameters(), *loop.state["critic"].parameters()]'
    groups = [f'loop.state["optimizer"].param_groups[{index}]["params"]' for index in range(2)]
    assert case(optimizer=optimizer).parameters == f"[*{groups[0]}, *{groups[1]}]"
    assert case(optimizer=torch.optim.SGD(layer.parameters())).parameters == groups[0]
    assert one.parameter("model.0.weight") == 'loop.state["model"].get_parameter("0.weight")'
    assert one.parameter("optimizer.param_groups.1.params.0") == f"{groups[1]}[0]"


@pytest.mark.parametrize(
    ("left", "right", "line"),
    [
        ([1.0], [2.0], "torch.testing.assert_close(a, b, rtol=0, atol=0)"),
        ([1], [2], "torch.testing.assert_close(a, b, rtol=0, atol=0)"),
        ([True], [False], "torch.testing.assert_close(a, b, rtol=0, atol=0)"),
        (["x"], ["y"], "assert a == b"),
        ([1.0], None, "assert a == b"),
    ],
)
def test_arrays_are_compared_to_the_last_bit_and_other_values_as_they_are(left: Any, right: Any, line: str) -> None:
    arrays = (None if each is None else np.array(each) for each in (left, right))
    assert case(Difference("it", *arrays)).equal("a", "b") == line


def told(**broken: Any) -> Any:
    """Return a case of which a template reads what was broken, on two batches."""
    shown = broken.get("differences", [None])[0]
    case = Case(None, None, [Batch(0, None), Batch(1, None)], Broken(**{"where": "", "step": 1} | broken), shown)
    return SimpleNamespace(**vars(case), seen=lambda *_, **__: "seen", equal=lambda *_: "equal")


@pytest.mark.parametrize(
    ("scale", "where", "start"),
    [
        (2.0**8, "", "start(256.0)"),
        (2.0**16, "", "start(2.0**16)"),
        (4.0, "at scale 4, which doubles after each update", "start(1.0, growth_interval=1)"),
    ],
)
def test_the_scale_that_broke_a_loop_is_the_one_that_is_written(scale: float, where: str, start: str) -> None:
    assert TEMPLATES["scale_is_invisible"](told(scale=scale, where=where))[2] == f"other, its = {start}"


@pytest.mark.parametrize(("apart", "bound"), [(2.0**-10, "0.0005"), (1.0, "0.008")])
def test_a_change_that_is_little_apart_is_bounded_by_half_of_that(apart: float, bound: str) -> None:
    left = np.ones(1)
    difference = Difference("model.weight", left, left * (1 + apart), np.zeros(1))
    near = Difference("model.bias", left, left * (1 + 2.0**-12), np.zeros(1))
    *_, asked = TEMPLATES["splitting_is_invisible"](told(differences=[near, difference]))
    assert asked == f"assert apart.double().norm() <= {bound} * change.double().norm()"


def test_what_the_first_step_makes_was_nothing_before_it() -> None:
    parameter, buffer = (
        Difference(name, np.ones(1), np.zeros(1), before)
        for name, before in (("model.weight", np.zeros(1)), ("optimizer.state.0.momentum_buffer", None))
    )
    lines = [TEMPLATES["splitting_is_invisible"](told(differences=[each])) for each in (parameter, buffer)]
    assert "before = torch.as_tensor(copy.deepcopy(seen))" in lines[0]
    assert "before = 0.0" in lines[1]


def test_generators_that_a_loop_draws_from_are_seeded(loops: ModuleType) -> None:
    import random

    def make(scaler: torch.amp.GradScaler) -> Loop:
        loop = BUGS["relax_44_unscaled_twice"].make(scaler)
        return Loop(lambda batch: loop.step((batch[0] * random.random(), batch[1])), loop.state)  # noqa: S311

    loops.make = make
    source, _ = write("scale_is_invisible", "loops:make")
    assert "random.seed(number)" in source
    assert source.count("\n    seed(0)\n") == source.count("\n        seed(1 + place)\n") == 1
    assert "numpy" not in source
    assert outcome(source) == "failed", source


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A file `my_loops.py` in this folder, with a wrong and a right maker, which takes Loop of ampsim alone."""
    (tmp_path / "my_loops.py").write_text("""
import torch
from ampsim.testing import Loop

batches = torch.ones(3, 4, 2)

def make(scaler, clips_early=True):
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)

    def step(batch):
        optimizer.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        if not clips_early:
            scaler.unscale_(optimizer)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()

    return Loop(step, {"model": model, "optimizer": optimizer})

def right(scaler):
    return make(scaler, False)

""")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield "my_loops"
    sys.modules.pop("my_loops", None)


@pytest.mark.usefixtures("warm_python")
def test_the_command_writes_what_fails_in_a_process_without_ampsim(module: str, tmp_path: Path) -> None:
    code, text = run("emit-test", "scale_is_invisible", f"{module}:make", "-o", "test_it.py", "--time-limit", "0")
    assert (code, text) == (0, "")
    source = (tmp_path / "test_it.py").read_text()
    assert "clipped before scaler.unscale_(optimizer)" in source
    assert 'torch.testing.assert_close(other.state["model"].state_dict()["weight"], expected, rtol=0, atol=0)' in source


def test_a_make_that_knows_nothing_of_ampsim_needs_no_stand_in(loops: ModuleType) -> None:
    def make(scaler: torch.amp.GradScaler) -> SimpleNamespace:
        t = Trainer(scaler)

        def step(batch):
            t.backward(batch)
            nn.utils.clip_grad_norm_(t.params(), 0.1)
            t.update()

        return SimpleNamespace(step=step, state=t.state)

    loops.make, loops.batches = make, batches()
    source, _ = write("scale_is_invisible", "loops:make")
    assert "Loop" not in source
    code = [line for line in source.split('"""')[2].splitlines() if line]
    assert len(code) <= 20, source
    assert outcome(source) == "failed", source


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["it_learns", "my_loops:make"], "it_learns holds for my_loops:make: there is nothing to emit"),
        (["splitting_is_invisible", "my_loops:make"], "splitting_is_invisible is not asked of my_loops:make: the Loop"),
        (["it_learn", "my_loops:make"], "no law 'it_learn'; did you mean 'it_learns'"),
        (["it_learns", "math:pow"], "math has no 'batches'"),
    ],
)
def test_what_cannot_be_written_is_one_sentence(module: str, arguments: list[str], said: str, golden: Golden) -> None:
    code, text = run("emit-test", *arguments)
    assert (code, said in text, text.count("\n")) == (2, True, 1), text
    golden(text)


@pytest.mark.deep
@pytest.mark.filterwarnings("ignore")  # of the packages, about each other
@pytest.mark.parametrize(
    ("name", "law"), [(name, law) for name, framework in FRAMEWORKS.items() for law in framework.expected]
)
def test_findings_of_real_frameworks_are_written(name: str, law: str, loops: ModuleType) -> None:
    framework = FRAMEWORKS[name]
    pytest.importorskip(framework.package, reason=framework.install)
    loops.make, loops.batches = framework.make, framework.batches
    if name == "flax":
        with pytest.raises(ValueError, match="loops:make is a loop of jax: short tests are written of torch's"):
            write(law, "loops:make")
        return
    source, _ = write(law, "loops:make")
    assert outcome(source) == "failed", source


def test_what_a_loop_saves_is_written_by_its_functions_or_part_by_part() -> None:
    def write_(save: Any = None, load: Any = None) -> tuple[str, list[str]]:
        state = {"model": nn.Linear(1, 1), "w": torch.ones(1), "seen": lambda: 3}
        run: Any = SimpleNamespace(
            loop=Loop(lambda batch: None, state, save=save, load=load),
            loads=lambda value: isinstance(value, nn.Module | torch.Tensor),
        )
        return _saving(Case(None, run, [], Broken("", 0), None))

    parts = '(*map(loop.state.get, ["model"]), scaler)'
    saves = "saved = copy.deepcopy(loop.save())", f"saved = copy.deepcopy([each.state_dict() for each in {parts}])"
    loads = (
        ["other.load(saved)"],
        [
            'for each, state in zip((*map(other.state.get, ["model"]), its), saved):',
            "    each.load_state_dict(state)",
            'other.state["w"].data[...] = loop.state["w"].data',
        ],
    )
    assert write_() == (saves[1], loads[1])
    assert write_(save=print) == (saves[0], loads[1])
    assert write_(save=print, load=print) == (saves[0], loads[0])


def test_a_parameter_whose_name_begins_with_no_is_one() -> None:
    _, before, *_ = TEMPLATES["it_learns"](told(seen="norm.weight did not move, with gradients up to 1"))
    assert before == "before = torch.as_tensor(seen).tolist()"
