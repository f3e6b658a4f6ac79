"""Level 1: torch.amp.GradScaler's methods, what they return, and what they refuse in which words."""

import math

import torch
from hypothesis import strategies as st

from ampsim.core.machine import Rule, override
from ampsim.core.torch_model import refusals
from ampsim.testing.kit.bench import Bench, bits, fused
from ampsim.testing.kit.check import check
from ampsim.testing.kit.strategies import histories, rules
from ampsim.testing.kit.subject import Scaler
from ampsim.testing.kit.trial import RULE, Trial, outcome

SCALES = st.sampled_from([2.0, 1024.0, 1700.3, 2.0**100])


@check(
    1,
    rule=rules(growth=False),
    dtype=st.sampled_from([torch.float32, torch.float64, torch.bfloat16, torch.float16]),
    shape=st.sampled_from([(), (3,)]),
)
def loss_is_multiplied_by_the_scale(t: Trial, rule: Rule, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    """scale() returns loss times scale, promoted as torch promotes, in the container that it was given."""
    scale, loss = torch.tensor(t.start(rule).get_scale()), torch.full(shape, 0.3, dtype=dtype)
    expected = loss * scale
    (first, (second,)) = t.scaler.scale([loss, (loss,)])
    for got in (t.scaler.scale(loss), first, second):
        exact = t.traits.scale_dtype == "float32" or dtype != torch.float64  # a double times a double has more bits
        same = got.dtype == expected.dtype and (bits(got) == bits(expected) if exact else torch.allclose(got, expected))
        t.require(same, f"{loss!r} became {got!r}, expected {expected!r}")


@check(1, issue="pytorch/pytorch#67590", needs="skip_report", found_inf=histories(longest=6), kernel=st.booleans())
def skip_is_reported(t: Trial, found_inf: list[bool], kernel: bool) -> None:
    """After step() ``last_step.skipped`` says whether the optimizer was skipped, fused or not."""
    scaler = t.start(RULE, Bench(fused if kernel and t.has("fused") else torch.optim.SGD))
    for flag in found_inf:
        t.iterate(flag)
        if (report := getattr(scaler, "last_step", None)) is None:
            t.fail("the scaler has no last_step")
        t.require(bool(report.skipped) == flag, f"last_step.skipped is {report.skipped!r}")


class _Returns(torch.optim.SGD):
    """An optimizer whose step returns 5."""

    def step(self, closure: object = None) -> float:  # type: ignore[override]
        super().step()
        return 5.0


@check(1, needs="step_value", overflows=st.booleans())
def step_returns_what_the_optimizer_returns(t: Trial, overflows: bool) -> None:
    """step() returns the value of the optimizer's step, and None when it is skipped."""
    t.start(RULE, Bench(lambda params: _Returns(params, lr=0.1)))
    t.benches[0].put(t.loss_scale(), math.inf if overflows else None)
    t.log_event(f"step {'inf' if overflows else 'clean'}")
    got, expected = t.scaler.step(t.benches[0].optimizer), None if overflows else 5.0
    t.require(got == expected, f"step() returned {got!r}, expected {expected!r}")


@check(1, needs="setters", found_inf=histories(longest=6), name=st.sampled_from(["growth_factor", "backoff_factor"]))
def setters_take_effect(t: Trial, found_inf: list[bool], name: str) -> None:
    """A factor that is set is the one that is got, and the next growth or backoff uses it."""
    scaler, value = t.start(RULE.replace(growth_interval=1)), {"growth_factor": 3.0, "backoff_factor": 0.7}[name]
    t.log_event(f"set_{name}({value})")
    getattr(scaler, f"set_{name}")(value)
    got = getattr(scaler, f"get_{name}")()
    t.require(got == value or t.traits.delay > 0, f"get_{name}() is {got!r} after set_{name}({value})")
    t.rule = t.rule.replace(**{name: value})
    for flag in found_inf:
        t.follow(flag)


@check(1, needs="override", before=histories(longest=4), new_scale=SCALES, after=histories(longest=4))
def override_keeps_the_streak(t: Trial, before: list[bool], new_scale: float, after: list[bool]) -> None:
    """update(new_scale) makes the scale float32(new_scale), and the streak goes on as if nothing had been."""
    scaler = t.start()
    for flag in before:
        t.follow(flag)
    t.loss_scale()
    t.log_event(f"update({new_scale})")
    scaler.update(new_scale)
    t.state = override(t.rule, t.state, new_scale)
    for flag in after:
        t.follow(flag)


@check(1, needs="enabled", rule=rules(growth=False), flags=st.lists(st.booleans(), min_size=1, max_size=4))
def disabled_passes_everything_through(t: Trial, rule: Rule, flags: list[bool]) -> None:
    """A scaler that is not enabled scales nothing, divides nothing and skips nothing."""
    t.start(rule, Bench(), Bench())
    bench, alone = t.benches
    t.scaler = t.subject.make(t.requested, enabled=False)
    for flag in flags:
        scale = t.loss_scale()
        t.require(scale == 1.0 == t.scaler.get_scale(), f"it multiplied by {scale}, get_scale() {t.scaler.get_scale()}")
        t.log_event("disabled: unscale_, step " + ("inf" if flag else "clean"))
        for each in t.benches:
            each.put(3.0, math.inf if flag else None)
        if t.has("unscale_"):
            t.scaler.unscale_(bench.optimizer)
        t.scaler.step(bench.optimizer)
        alone.optimizer.step()
        t.scaler.update()
        t.require(bench.held() == alone.held(), "the optimizer stepped otherwise than alone")


# ------------------------------------------------------------------------------------------- what is refused


@check(1, issue="huggingface/transformers#24840", needs="refusals unscale_")
def unscaling_twice_is_refused(t: Trial) -> None:
    """unscale_() of one optimizer twice between updates is refused, and divides once."""
    _ready(t).unscale_(t.benches[0].optimizer)
    t.log_event("unscale_()")
    t.refuses(refusals.UNSCALED_TWICE, t.scaler.unscale_, t.benches[0].optimizer)


@check(1, needs="refusals unscale_")
def unscaling_after_step_is_refused(t: Trial) -> None:
    """unscale_() after step() is refused."""
    _ready(t).step(t.benches[0].optimizer)
    t.log_event("step()")
    t.refuses(refusals.UNSCALED_LATE, t.scaler.unscale_, t.benches[0].optimizer)


@check(1, issue="Haian-Jin/LVSM#19", needs="refusals")
def stepping_twice_is_refused(t: Trial) -> None:
    """step() of one optimizer twice between updates is refused: an update is missing."""
    _ready(t).step(t.benches[0].optimizer)
    t.log_event("step()")
    t.refuses(refusals.STEPPED_TWICE, t.scaler.step, t.benches[0].optimizer)


@check(1, issue="facebookresearch/fairseq2#1346", needs="refusals unscale_")
def calls_before_the_first_scale_are_refused(t: Trial) -> None:
    """Before the first scale() every other call is refused: there is nothing to divide by."""
    scaler = t.start()
    t.benches[0].put(1.0)
    t.refuses(refusals.before_scale("unscale_"), scaler.unscale_, t.benches[0].optimizer)
    t.refuses(refusals.before_scale("step"), scaler.step, t.benches[0].optimizer)
    t.refuses(refusals.before_scale("update"), scaler.update)


@check(1, issue="huggingface/accelerate#328", needs="refusals")
def a_step_without_gradients_is_refused(t: Trial) -> None:
    """step() of an optimizer that no gradient reached is refused: frozen, or built for another copy of the model."""
    scaler = t.start()
    t.loss_scale()
    t.refuses(refusals.NOTHING_CHECKED, scaler.step, t.benches[0].optimizer)


@check(1, needs="refusals")
def an_update_without_a_step_is_refused(t: Trial) -> None:
    """update() is refused when no optimizer was unscaled or stepped since the last one."""
    scaler = t.start()
    t.iterate()
    t.loss_scale()
    t.refuses(refusals.NOTHING_CHECKED_AT_ALL, scaler.update)


@check(1, issue="bitsandbytes-foundation/bitsandbytes#945", needs="refusals unscale_")
def float16_gradients_are_refused(t: Trial) -> None:
    """Gradients that are float16 themselves are refused: unscaled, they would underflow again."""
    scaler = t.start(RULE, Bench(dtypes=(torch.float16,)))
    t.loss_scale()
    t.benches[0].put(1.0)
    t.refuses(refusals.FLOAT16, scaler.unscale_, t.benches[0].optimizer)


@check(1, issue="davda54/sam#97", needs="refusals")
def a_keyword_closure_is_refused(t: Trial) -> None:
    """step(optimizer, closure=...) is refused: what the closure computes was not checked."""
    _ready(t)
    t.refuses(refusals.CLOSURE, t.scaler.step, t.benches[0].optimizer, closure=lambda: 5.0)


@check(1, issue="davda54/sam#97", needs="refusals")
def a_positional_closure_is_refused(t: Trial) -> None:
    """step(optimizer, closure) is refused as step(optimizer, closure=...) is."""
    _ready(t)
    t.refuses(refusals.CLOSURE, t.scaler.step, t.benches[0].optimizer, lambda: 5.0)


@check(1, needs="refusals", junk=st.sampled_from([3.0, None]))
def what_is_no_loss_is_refused(t: Trial, junk: object) -> None:
    """scale() refuses what is neither a tensor nor an iterable of tensors."""
    scaler = t.start()
    t.refuses(refusals.NOT_A_LOSS, scaler.scale, junk)


@check(1, needs="refusals", factors=st.sampled_from([(1.0, 0.5), (0.5, 0.5), (2.0, 1.0), (2.0, 2.0)]))
def factors_that_do_not_move_the_scale_are_refused(t: Trial, factors: tuple[float, float]) -> None:
    """A growth factor of at most 1 and a backoff factor of at least 1 are refused at construction."""
    growth, backoff = factors
    t.requested = Rule.unchecked(growth_factor=growth, backoff_factor=backoff)
    got = outcome(lambda: t.subject.make(t.requested))
    expected = refusals.GROWTH_FACTOR if growth <= 1 else refusals.BACKOFF_FACTOR
    t.require_refusal(got, expected, "construction")


NONSENSE = (
    *(("init_scale", value) for value in (0.0, -1.0, math.inf, math.nan)),
    *(("growth_factor", math.nan), ("backoff_factor", 0.0), ("backoff_factor", -1.0), ("growth_interval", 0)),
)


@check(1, issue="ooples/AiDotNet.Tensors#277", needs="refusals", constant=st.sampled_from(NONSENSE))
def constants_that_no_run_could_want_are_refused(t: Trial, constant: tuple[str, float]) -> None:
    """A scale of 0, -1, inf or NaN, a factor of NaN, 0 or -1 and an interval of 0 are refused at construction."""
    t.requested = Rule.unchecked(**dict([constant]))
    got = outcome(lambda: t.subject.make(t.requested))
    t.require(isinstance(got, refusals.Refusal), "{}={!r} was taken".format(*constant))


def _ready(t: Trial) -> Scaler:
    """Start a scaler whose optimizer has clean gradients and may be stepped."""
    t.start()
    t.benches[0].put(t.loss_scale())
    return t.scaler
