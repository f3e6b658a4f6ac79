"""Claims about torch's scaler at the ends of the scale, and about fused optimizers; see `experiments.device_claims`."""

import math

import torch
from torch import Tensor, nn

from experiments.claims.claim import (
    OPTIMIZERS,
    Claim,
    Scaler,
    after_one_step,
    at_scale,
    finite_by_kind,
    into,
    iterate,
    ours,
    theirs,
    told,
    trainee,
)

INF = math.inf
CLAIMS: dict[str, Claim] = {}
claim = into(CLAIMS)


# ------------------------------------------------------------------------------------------ the ends of the scale


@claim(
    "At scale 2^-128 torch steps with inf where it multiplies by the reciprocal, which is inf in float32; a fused "
    "optimizer divides. Whether the parameter is finite after one clean step:",
    {"SGD": False, "AdamW": False, "fused SGD": True, "fused AdamW": True},
)
def torch_at_scale_2_to_minus_128(device: str) -> object:
    return finite_by_kind(theirs, device, 2.0**-128, 2.0**-128)


@claim(
    "Ours refuses a scale below 2^-126, and there every parameter stays finite.",
    {"2^-128": "ValueError", "2^-126": dict.fromkeys(OPTIMIZERS, True)},
)
def ours_at_the_lowest_scale(device: str) -> object:
    refused = told(lambda: at_scale(ours(device), 2.0**-128, device))
    return {"2^-128": refused, "2^-126": finite_by_kind(ours, device, 2.0**-126, 2.0**-126)}


@claim(
    "Below scale 1 torch turns a finite scaled gradient into inf and steps with it. Whether the parameter is finite "
    "after 3e38 at scale 1/4:",
    dict.fromkeys(OPTIMIZERS, False),
)
def torch_below_scale_1(device: str) -> object:
    return finite_by_kind(theirs, device, 3e38, 0.25)


@claim("There ours skips the step: the parameter stays 0.", dict.fromkeys(OPTIMIZERS, 0.0))
def ours_below_scale_1(device: str) -> object:
    return {kind: after_one_step(ours, device, kind, 3e38, 0.25) for kind in OPTIMIZERS}


def overflowing(scaler: Scaler, device: str) -> list[float]:
    """Return the scale after each of 166 overflows."""
    optimizer, scales = trainee(device)[1], []
    for _ in range(166):
        iterate(scaler, optimizer, INF)
        scales.append(scaler.get_scale())
    return scales


@claim(
    "From the default scale torch is 144 overflows from 2^-128, 165 from 2^-149 and 166 from 0.",
    [2.0**-128, 2.0**-149, 0.0],
)
def torch_collapse(device: str) -> object:
    scales = overflowing(theirs(device), device)
    return [scales[143], scales[164], scales[165]]


@claim("The same 166 overflows leave ours at 2^-126.", 2.0**-126)
def ours_does_not_collapse(device: str) -> object:
    return overflowing(ours(device), device)[-1]


@claim(
    "At scale 0 torch steps with inf or NaN and stays at 0, growing or not.",
    {"finite": False, "scale": 0.0},
)
def torch_at_scale_0(device: str) -> object:
    scaler, (param, optimizer) = (
        at_scale(torch.amp.GradScaler(device, growth_interval=1), 0.0, device),
        trainee(device),
    )
    iterate(scaler, optimizer, 1.0)
    return {"finite": math.isfinite(param.item()), "scale": scaler.get_scale()}


@claim(
    "A growth out of float32 leaves torch's scale at 2^127 and restarts the count.",
    {"scale": 2.0**127, "count": 0},
)
def torch_at_the_highest_scale(device: str) -> object:
    scaler = at_scale(torch.amp.GradScaler(device, growth_interval=1), 2.0**127, device)
    iterate(scaler, trainee(device)[1], 1.0)
    return {"scale": scaler.get_scale(), "count": scaler.state_dict()["_growth_tracker"]}


@claim(
    "Once the count is past a shortened interval torch never grows again.",
    {"scale after 20 clean steps": 2.0**16},
)
def torch_past_its_interval(device: str) -> object:
    scaler, optimizer = theirs(device), trainee(device)[1]
    for _ in range(5):
        iterate(scaler, optimizer, 1.0)
    scaler.set_growth_interval(3)
    for _ in range(20):
        iterate(scaler, optimizer, 1.0)
    return {"scale after 20 clean steps": scaler.get_scale()}


# ------------------------------------------------------------------------------------ fused optimizers and found_inf


def first_step_skipped(scaler: Scaler, device: str) -> float:
    """Return the parameter after a skipped first step and one with gradient 0, where new memory holds 777."""
    empty_like, param = torch.empty_like, nn.Parameter(torch.zeros(1, device=device))
    optimizer = torch.optim.SGD([param], lr=0.5, momentum=0.5, fused=True)
    vars(torch)["empty_like"] = lambda *args, **options: empty_like(*args, **options).fill_(777.0)
    try:
        iterate(scaler, optimizer, INF)
        iterate(scaler, optimizer, 0.0)
    finally:
        vars(torch)["empty_like"] = empty_like
    return param.item()


@claim(
    "If the first step of torch's fused SGD is skipped, its momentum is what the memory held; ours does not call it.",
    {"torch": -0.5 * 0.5 * 777.0, "ours": 0.0},
)
def momentum_of_a_skipped_first_step(device: str) -> object:
    return {
        "torch": first_step_skipped(theirs(device), device),
        "ours": first_step_skipped(ours(device), device),
    }


def after_a_step_that_raised(scaler: Scaler, device: str) -> dict[str, object]:
    param, optimizer = trainee(device, "fused SGD", gradient=1.0)
    at_scale(scaler, 4.0, device).scale(torch.ones((), device=device))
    raised = told(lambda: scaler.step(optimizer, nonsense=1))
    left = hasattr(optimizer, "grad_scale")
    scaler.step(optimizer)
    return {
        "raised": raised,
        "grad_scale left": left,
        "gradient": None if param.grad is None else param.grad.item(),
    }


@claim(
    "A fused step that raises leaves grad_scale on torch's optimizer, and the next step divides twice: 1 at scale 4 is "
    "1/16. Ours leaves nothing.",
    {
        "torch": {"raised": "TypeError", "grad_scale left": True, "gradient": 1 / 16},
        "ours": {"raised": "TypeError", "grad_scale left": False, "gradient": 1 / 4},
    },
)
def fused_step_that_raised(device: str) -> object:
    return {
        "torch": after_a_step_that_raised(theirs(device), device),
        "ours": after_a_step_that_raised(ours(device), device),
    }


def overflowed(
    device: str, kind: str
) -> tuple[torch.amp.GradScaler, torch.optim.Optimizer, nn.Parameter, Tensor]:
    """Return a scaler that has unscaled an overflow, and the found_inf that it will look at."""
    scaler, (param, optimizer) = theirs(device), trainee(device, kind, INF)
    scaler.scale(torch.ones((), device=device))
    scaler.unscale_(optimizer)
    found = next(iter(scaler._per_optimizer_states[id(optimizer)]["found_inf_per_device"].values()))  # noqa: SLF001
    return scaler, optimizer, param, found


@claim(
    "Torch's fused kernels step with the overflow unless found_inf is exactly 1. Whether the parameter is finite:",
    {"1": True, "2": False, "0.5": False, "-1": False, "1e-45": False, "nan": False},
)
def found_inf_that_is_not_1(device: str) -> object:
    seen = {}
    for text in ("1", "2", "0.5", "-1", "1e-45", "nan"):
        scaler, optimizer, param, found = overflowed(device, "fused AdamW")
        found.fill_(float(text))
        scaler.step(optimizer)
        seen[text] = math.isfinite(param.item())
    return seen


@claim(
    "Flags of +1 and -1 cancel in torch's update: the scale stays, although both overflowed.",
    2.0**16,
)
def found_infs_that_cancel(device: str) -> object:
    scaler, first, _, found = overflowed(device, "SGD")
    _, second = trainee(device, gradient=INF)
    scaler.unscale_(second)
    found.fill_(-1.0)
    scaler.update()
    del first  # kept so long: torch knows an optimizer by its address
    return scaler.get_scale()


@claim(
    "An update of torch's that raises has added the flags up in place: 1 is 2, and a fused step takes the overflow.",
    {"raised": "TypeError", "found_inf": 2.0, "finite": False},
)
def update_that_raised(device: str) -> object:
    scaler, optimizer, param, found = overflowed(device, "fused SGD")
    _, second = trainee(device, gradient=INF)
    scaler.unscale_(second)
    scaler.set_growth_interval(2.0)  # type: ignore[arg-type]
    raised = told(scaler.update)
    scaler.step(optimizer)
    return {"raised": raised, "found_inf": found.item(), "finite": math.isfinite(param.item())}


@claim(
    "A skipped first step makes the state of torch's fused AdamW, with step 0, and none of the plain one's.",
    {"fused AdamW": {"states": 1, "step": 0.0}, "AdamW": {"states": 0, "step": None}},
)
def state_of_a_skipped_first_step(device: str) -> object:
    seen = {}
    for kind in ("fused AdamW", "AdamW"):
        optimizer = trainee(device, kind)[1]
        iterate(theirs(device), optimizer, INF)
        steps = [state["step"].item() for state in optimizer.state.values()]
        seen[kind] = {"states": len(steps), "step": steps[0] if steps else None}
    return seen
