"""Templates of torch's calls: what they return and refuse, and several optimizers."""

from collections.abc import Sequence

from ampsim.core.torch_model import refusals
from ampsim.testing.emit.case import ITERATE, OPTIMIZER, TEMPLATES, Case, iterates, number, sequence, template

HELD = ("param.tolist()", "param.grad.tolist()")
UNSCALE, STEP, UPDATE = "scaler.unscale_(optimizer)", "scaler.step(optimizer)", "scaler.update()"
TWO = """one, two = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))
first, second = (torch.optim.SGD([param], lr=1.0) for param in (one, two))"""


@template
def loss_is_multiplied_by_the_scale(case: Case) -> Sequence[str]:
    return (
        case.scaler,
        f"loss = torch.full({case.drawn['shape']}, 0.3, dtype={case.drawn['dtype']})",
        "expected = loss * torch.tensor(scaler.get_scale())",
        "first, (second,) = scaler.scale([loss, (loss,)])",
        "for got in (scaler.scale(loss), first, second):",
        "    assert got.dtype == expected.dtype",
        "    assert torch.equal(got, expected), (got, expected)"
        if case.trial.traits.scale_dtype == "float32"
        else "    assert torch.allclose(got, expected), (got, expected)",
    )


@template
def skip_is_reported(case: Case) -> Sequence[str]:
    optimizer = "AdamW([param], lr=0.125, fused=True)" if case.is_fused else "SGD([param], lr=0.001)"
    return (
        "param = torch.nn.Parameter(torch.ones(3))",
        f"optimizer = torch.optim.{optimizer}",
        ITERATE,
        case.scaler,
        *iterates(
            case.drawn["found_inf"],
            '    assert hasattr(scaler, "last_step"), "nothing tells whether the step was skipped"',
            "    assert bool(scaler.last_step.skipped) == found_inf",
        ),
    )


@template
def step_returns_what_the_optimizer_returns(case: Case) -> Sequence[str]:
    bad = "math.inf" if case.drawn["overflows"] else "scale"
    return (
        "class Returns(torch.optim.SGD):",
        "    def step(self, closure=None):",
        "        super().step()",
        "        return 5.0\n",
        "param = torch.nn.Parameter(torch.ones(3))",
        case.scaler,
        "scale = float(scaler.scale(torch.ones(())))",
        f"param.grad = torch.tensor([scale, scale, {bad}])",
        f"assert scaler.step(Returns([param], lr=0.1)) == {None if case.drawn['overflows'] else 5.0}",
    )


# ------------------------------------------------------------------------------------------- what is refused

REFUSED = {  # check -> what comes before with clean gradients, the call that is refused, and how torch refuses it
    "unscaling_twice_is_refused": ((UNSCALE,), UNSCALE, refusals.UNSCALED_TWICE),
    "unscaling_after_step_is_refused": ((STEP,), UNSCALE, refusals.UNSCALED_LATE),
    "stepping_twice_is_refused": ((STEP,), STEP, refusals.STEPPED_TWICE),
    "a_keyword_closure_is_refused": ((), "scaler.step(optimizer, closure=lambda: 5.0)", refusals.CLOSURE),
    "a_positional_closure_is_refused": ((), "scaler.step(optimizer, lambda: 5.0)", refusals.CLOSURE),
}


def _refused(case: Case) -> Sequence[str]:
    before, call, refusal = REFUSED[case.check.name]
    return *case.ready, *before, case.refused(call, refusal, *HELD)


TEMPLATES |= dict.fromkeys(REFUSED, _refused)


@template
def calls_before_the_first_scale_are_refused(case: Case) -> Sequence[str]:
    return (
        OPTIMIZER,
        case.scaler,
        "param.grad = torch.ones(3)",
        case.refused(UNSCALE, refusals.before_scale("unscale_"), *HELD),
        case.refused(STEP, refusals.before_scale("step"), *HELD),
        case.refused(UPDATE, refusals.before_scale("update"), *HELD),
    )


@template
def a_step_without_gradients_is_refused(case: Case) -> Sequence[str]:
    refused = case.refused(STEP, refusals.NOTHING_CHECKED, "param.tolist()")
    return OPTIMIZER, case.scaler, "scaler.scale(torch.ones(()))", refused


@template
def an_update_without_a_step_is_refused(case: Case) -> Sequence[str]:
    refused = case.refused(UPDATE, refusals.NOTHING_CHECKED_AT_ALL)
    return *case.ready, STEP, UPDATE, "scaler.scale(torch.ones(()))", refused


@template
def float16_gradients_are_refused(case: Case) -> Sequence[str]:
    return (
        "param = torch.nn.Parameter(torch.ones(3, dtype=torch.float16))",
        "optimizer = torch.optim.SGD([param], lr=0.125)",
        case.scaler,
        "scaler.scale(torch.ones(()))",
        "param.grad = torch.ones_like(param)",
        case.refused(UNSCALE, refusals.FLOAT16, *HELD),
    )


@template
def what_is_no_loss_is_refused(case: Case) -> Sequence[str]:
    return case.scaler, case.refused(f"scaler.scale({case.drawn['junk']!r})", refusals.NOT_A_LOSS)


@template
def factors_that_do_not_move_the_scale_are_refused(case: Case) -> Sequence[str]:
    growth, _ = case.drawn["factors"]
    return (case.refused(case.make(), refusals.GROWTH_FACTOR if growth <= 1 else refusals.BACKOFF_FACTOR),)


@template
def constants_that_no_run_could_want_are_refused(case: Case) -> Sequence[str]:
    return ("with TestCase().assertRaises(Exception):", f"    {case.make()}")


# ----------------------------------------------------------------------------------------- several optimizers


@template
def overflow_in_any_parameter_group_skips(case: Case) -> Sequence[str]:
    group, bad = case.drawn["group"], case.drawn["bad"]
    return (
        "params = [torch.nn.Parameter(torch.ones(shape)) for shape in ((3,), (2,), ())]",
        'optimizer = torch.optim.SGD([{"params": [param]} for param in params], lr=0.125)',
        case.scaler,
        "scale = float(scaler.scale(torch.ones(())))",
        "for param in params:",
        "    param.grad = torch.full_like(param, scale)",
        f"params[{group}].grad.view(-1)[0] = {number(bad)}",
        STEP,
        "assert all((param == 1.0).all() for param in params), params",
    )


@template
def overflow_in_any_micro_batch_skips(case: Case) -> Sequence[str]:
    micro = case.drawn["micro"]
    return (
        OPTIMIZER,
        case.scaler,
        f"for overflows in {sequence(micro)}:",
        "    scaler.scale((param * (math.inf if overflows else 1.0)).sum()).backward()",
        STEP,
        f"assert param.tolist() == [{1.0 if any(micro) else 1.0 - 0.125 * len(micro)}] * 3",
    )


@template
def overflow_that_is_unscaled_backs_off(case: Case) -> Sequence[str]:
    which, steps = case.drawn["which"], case.drawn["steps"]
    lines = [TWO, case.scaler, "scale = float(scaler.scale(torch.ones(())))"]
    for i, (param, optimizer, stepped) in enumerate(zip(("one", "two"), ("first", "second"), steps, strict=True)):
        lines.append(f"{param}.grad = torch.tensor([scale, scale, {'math.inf' if i == which else 'scale'}])")
        lines.append(f"scaler.unscale_({optimizer})")
        lines += [f"scaler.step({optimizer})"] if stepped else []
    return *lines, UPDATE, *case.backed_off()


@template
def optimizers_of_one_loss_see_one_scale(case: Case) -> Sequence[str]:
    overflows, every = case.drawn["overflows"], case.trial.traits.skips == "all"
    moves = [not (any(overflows) if every else each) for each in overflows]
    return (
        "params = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]",
        case.scaler,
        f"gradients = [{', '.join('math.inf' if each else '3.0' for each in overflows)}]",
        "scaler.scale(sum((param * each).sum() for param, each in zip(params, gradients))).backward()",
        "for param in params:",
        "    scaler.step(torch.optim.SGD([param], lr=1.0))",
        UPDATE,
        f"assert [(1.0 - param)[0].item() for param in params] == {[3.0 * each for each in moves]}",
    )


@template
def an_update_between_two_steps_divides_nothing_wrong(case: Case) -> Sequence[str]:
    unscales, overflows = case.drawn["unscales"] and case.trial.has("unscale_"), case.drawn["overflows"]
    return (
        TWO,
        case.scaler,
        f"scaler.scale((one * {'math.inf' if overflows else 3.0}).sum() + (two * 3.0).sum()).backward()",
        "scaler.step(first)",
        UPDATE,
        "expected = [-2.0] * 3  # a step of the true gradient, 3",
        "try:",
        *["    scaler.unscale_(second)"] * unscales,
        "    scaler.step(second)",
        "    scaler.update()",
        "except Exception:  # or a refusal",
        "    expected = [1.0] * 3",
        "assert two.tolist() == expected",
        f"assert one.tolist() == [{1.0 if overflows else -2.0}] * 3",
    )


@template
def optimizers_are_told_apart(case: Case) -> Sequence[str]:
    return (
        case.scaler,
        "scaler.scale(torch.ones(()))",
        "for _ in range(64):  # the second or third gets the id of the one before",
        "    param = torch.nn.Parameter(torch.ones(2))",
        "    param.grad = torch.ones(2)",
        "    try:",
        "        scaler.step(torch.optim.SGD([param], lr=0.125))",
        "    except Exception as error:",
        '        raise AssertionError("the step of a new optimizer was refused") from error',
    )
