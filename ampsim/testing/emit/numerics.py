"""Templates of what float32 does to gradients: inf and NaN, subnormals, dtypes, sparse ones, fused kernels."""

from collections.abc import Sequence

from ampsim.testing.emit.case import ITERATE, Case, iterates, number, sequence, template

STEP = "scaler.step(optimizer)"
READ = "scale = float(scaler.scale(torch.ones(())))"


def _optimizer(case: Case, params: str, lr: str) -> str:
    kind = f"AdamW({params}, lr={lr}, fused=True)" if case.is_fused else f"SGD({params}, lr={lr})"
    return f"optimizer = torch.optim.{kind}"


def _never_steps(case: Case, size: float, bad: float | None = None) -> Sequence[str]:
    overflows = sum(event == "inf" for event in case.trial.events)
    fall = [ITERATE, f"for _ in range({overflows}):", "    iterate(True)"] if overflows else []
    return (
        "param = torch.nn.Parameter(torch.ones(3))",
        _optimizer(case, "[param]", "2.0**-10"),
        *fall[:1],
        case.scaler,
        *fall[1:],
        "scaler.scale(torch.ones(()))",
        f"param.grad = torch.tensor([{', '.join([number(size)] * 2 + [number(size if bad is None else bad)])}])",
        *(["before = param.tolist()"] * (bad is not None)),
        STEP,
        "assert all(map(math.isfinite, param.tolist())), param" if bad is None else "assert param.tolist() == before",
    )


@template
def never_steps_on_nonfinite(case: Case) -> Sequence[str]:
    return _never_steps(case, case.drawn["size"], case.drawn["bad"])


@template
def never_steps_on_nonfinite_below_scale_one(case: Case) -> Sequence[str]:
    return _never_steps(case, case.drawn["size"])


@template
def never_steps_on_nonfinite_at_subnormal_scales(case: Case) -> Sequence[str]:
    return _never_steps(case, 2.0**-149)


@template
def finds_every_nonfinite(case: Case) -> Sequence[str]:
    dtypes, which, where = case.drawn["dtypes"], case.drawn["which"], case.drawn["where"]
    shapes = [(37,), (3, 2), (255, 257), ()]
    kinds = [dtypes[i % len(dtypes)] for i in range(len(shapes))]
    place = int(where * ([37, 6, 255 * 257, 1][which] - 1))
    return (
        f"shapes, dtypes = {shapes}, [{', '.join(map(str, kinds))}]",
        "params = [torch.nn.Parameter(torch.ones(each, dtype=kind)) for each, kind in zip(shapes, dtypes)]",
        _optimizer(case, "params", "0.125"),
        case.scaler,
        "scaler.scale(torch.ones(()))",
        "for param in params:",
        "    param.grad = torch.ones_like(param)",
        f"params[{which}].grad.view(-1)[{place}] = {number(case.drawn['bad'])}",
        STEP,
        'assert all((param == 1.0).all() for param in params), "the optimizer stepped"',
        "scaler.update()",
        *case.backed_off(),
    )


@template
def sparse_gradients_are_checked(case: Case) -> Sequence[str]:
    bad, which = case.drawn["bad"], case.drawn["which"]
    spoil = [f"params[{which}].grad._values()[1, 1] = {number(bad)}"] if bad is not None else []
    backs_off = ["    scaler.update()", *case.backed_off("    ")]
    return (
        "params, expected = [torch.nn.Parameter(torch.ones(4, 2)) for _ in range(2)], torch.ones(4, 2)",
        "optimizer = torch.optim.SGD(params, lr=1.0)",
        case.scaler,
        READ,
        "for param in params:",
        "    values = torch.full((2, 2), 3 * scale)",
        "    param.grad = torch.sparse_coo_tensor([[3, 1]], values, (4, 2), check_invariants=True)",
        *spoil,
        "try:",
        f"    {STEP}",
        "except Exception:  # sparse gradients may be refused",
        "    pass",
        "else:",
        *(["    expected[[1, 3]] = -2.0"] if bad is None else backs_off),
        "assert all(torch.equal(param, expected) for param in params), params",
    )


@template
def unscaling_by_a_power_of_two_is_exact(case: Case) -> Sequence[str]:
    return (
        f"param = torch.nn.Parameter(torch.ones(3, dtype={case.drawn['dtype']}))",
        "optimizer = torch.optim.SGD([param], lr=0.0)",
        case.scaler,
        READ,
        f"true = torch.tensor(1 / 3, dtype=param.dtype) * {number(2.0 ** case.drawn['size'])}",
        "param.grad = torch.ones_like(param) * true * scale",
        STEP,
        "assert (param.grad == true).all(), (param.grad, true)",
    )


@template
def unscale_divides_by_the_scale_of_the_loss(case: Case) -> Sequence[str]:
    run = iterates(found) if (found := case.drawn["found_inf"]) else []
    return (
        "param = torch.nn.Parameter(torch.ones(3))",
        "optimizer = torch.optim.SGD([param], lr=1.0)",
        *[ITERATE][: len(run)],
        case.scaler,
        *run,
        "param.grad, before = None, param.detach().clone()",
        "scaler.scale((3 * param).sum()).backward()",
        *case.unscale,
        STEP,
        "seen = (before - param)[0].item()",
        "assert math.isclose(seen, 3.0, rel_tol=1e-5), seen",
        "scaler.update()",
    )


@template
def fused_agrees_with_unfused(case: Case) -> Sequence[str]:
    unscale = ["        if number % 2:", "            scaler.unscale_(optimizer)"] if case.trial.has("unscale_") else []
    return (
        "one, two = (torch.nn.Parameter(torch.ones(3)) for _ in range(2))",
        "fused = torch.optim.AdamW([one], lr=0.125, fused=True)",
        "plain = torch.optim.AdamW([two], lr=0.125, foreach=False)",
        case.scaler,
        f"for number, found_inf in enumerate({sequence(case.drawn['flags'])}):",
        f"    {READ}",
        "    for param, optimizer in ((one, fused), (two, plain)):",
        "        param.grad = torch.tensor([scale, scale, math.inf if found_inf else scale])",
        *unscale,
        "        scaler.step(optimizer)",
        "    scaler.update()",
        "    assert torch.allclose(one, two, rtol=1e-5), (one, two)",
    )


@template
def fused_steps_follow_strides(case: Case) -> Sequence[str]:
    memory = "torch.zeros(2, 6)[:, ::2]" if case.drawn["wide"] else "torch.zeros(3, 2).t()"
    return (
        "param = torch.nn.Parameter(torch.ones(2, 3))",
        "optimizer = torch.optim.SGD([param], lr=1.0, fused=True)",
        case.scaler,
        READ,
        "true = torch.arange(6.0).reshape(2, 3)",
        f"param.grad = {memory}.copy_(true * scale)  # lies in memory otherwise than param",
        *case.unscale,
        "expected = 1.0 - true",
        "try:",
        f"    {STEP}",
        "except Exception:  # it may be refused",
        "    expected = torch.ones(2, 3)",
        "assert torch.equal(param, expected), (param, expected)",
    )
