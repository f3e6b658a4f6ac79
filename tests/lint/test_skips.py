"""What goes on in a skipped step: schedules, averages, rates, and what waits for a verdict."""

import pytest

from ampsim.lint.engine import RULES, lint
from tests.lint.loops import END, LOOP, MAKES


@pytest.mark.parametrize(
    ("module", "name", "codes"),
    [
        ("torch.optim.lr_scheduler", "StepLR", ["AMP101"]),
        (
            "schedulers",
            "Poly",
            ["AMP101"],
        ),  # most classes of projects count their calls
        ("schedulers", "make_poly", ["AMP101"]),
    ],
)
def test_imported_schedule_counts_its_calls(
    module: str, name: str, codes: list[str]
) -> None:
    made = f"from {module} import {name}\nscheduler = {name}(optimizer)\n"
    found = lint(f"{made}{MAKES}{LOOP}{END}    scheduler.step()\n")
    assert [each.code for each in found] == codes


def test_two_leaving_branches_exclude_nothing() -> None:
    chosen = """\
    if kind == "epsilon":
        target = noise
    elif kind == "velocity":
        raise NotImplementedError
    else:
        raise ValueError
"""
    found = lint(f"{MAKES}{LOOP}{chosen}{END}    scheduler.step()\n")
    assert [each.code for each in found] == ["AMP101"]


FLAX = """\
def train_step(state, batch):
    dynamic_scale, is_finite, loss, grads = state.dynamic_scale.value_and_grad(loss_fn)(state.params)
    state = state.apply_gradients(grads=grads).replace(dynamic_scale=dynamic_scale)
    return jax.tree.map(functools.partial(jnp.where, is_finite), state, state)
"""


def test_select_between_equal_states_is_flagged() -> None:
    assert [(each.line, each.code) for each in lint(FLAX, codes=RULES)] == [
        (4, "AMP118")
    ]
    assert (
        lint(
            FLAX.replace("state = state.apply", "new = state.apply").replace(
                "finite), state", "finite), new"
            )
        )
        == []
    )


def test_dynamic_scale_read_later_is_kept() -> None:
    step = FLAX.replace("state.dynamic_scale", "dynamic_scale").replace(
        ".replace(dynamic_scale=dynamic_scale)", ""
    )
    loop = "def train(state, dynamic_scale):\n    for batch in batches:\n        old = state\n"
    body = [
        f"    {line}"
        for line in step.replace("state, state)", "state, old)").splitlines()[1:3]
    ]
    select = "        state = jax.tree.map(functools.partial(jnp.where, is_finite), state, old)\n"
    assert lint("\n".join([loop.rstrip(), *body, select]), codes=RULES) == []
    assert [each.code for each in lint(step, codes=["AMP128"])] == ["AMP128"]


WRAPPER = """\
class Prepared:
    def __init__(self, optimizer):
        self.optimizer = optimizer
    def step(self):
        {step}
optimizer = Prepared(torch.optim.SGD(model.parameters(), lr=0.1))
def train(batch):
    scaler.scale(loss_of(model, batch)).backward()
    optimizer.step()
    scaler.update()
"""


@pytest.mark.parametrize(
    "step", ["scaler.step(self.optimizer)", "self.optimizer.step()"]
)
def test_wrapper_class_may_step_with_scaler(step: str) -> None:
    found = {each.code for each in lint(MAKES + WRAPPER.format(step=step), codes=RULES)}
    assert ("AMP111" in found) == step.startswith("self")


COMPARED = """
scaler = torch.amp.GradScaler()
for batch in loader:
    optimizer.zero_grad()
    scaler.scale(model(batch)).backward()
    {}
"""


@pytest.mark.parametrize(
    ("lines", "codes"),
    [
        (
            "a = scaler.get_scale(); scaler.step(optimizer); scaler.update(); skip = a != scaler.get_scale()",
            ["AMP129"],
        ),
        (
            "a = scaler.get_scale(); scaler.step(optimizer); scaler.update(); skip = a > scaler.get_scale()",
            [],
        ),
        (
            "scaler.step(optimizer); scaler.update(); a = scaler.get_scale(); skip = a != 65536.0",
            [],
        ),
    ],
)
def test_scale_comparison_detects_skip(lines: str, codes: list[str]) -> None:
    text = COMPARED.format(
        "\n    ".join([*lines.split("; "), "if not skip:", "    scheduler.step()"])
    )
    assert [each.code for each in lint(text)] == codes


def test_stored_or_printed_scale_is_allowed() -> None:
    kept = "scaler.step(optimizer); scaler.update(); s = scaler.get_scale(); if s >= last: scheduler.step(); last = s"
    told = "a = scaler.get_scale(); scaler.step(optimizer); scaler.update(); print(a == scaler.get_scale())"
    for lines in (kept, told):
        assert lint(COMPARED.format("\n    ".join(lines.split("; ")))) == []


def test_disabled_scaler_branch_has_no_skips() -> None:
    lines = [
        "scaler.step(optimizer)",
        "scaler.update()",
        "if {}scaler.is_enabled():",
        "    scheduler.step()",
    ]
    text = COMPARED.format("\n    ".join(lines))
    assert lint(text.format("not ")) == []


FIXED = [
    "m, o = amp.initialize(make(), opt(), loss_scale=128.0)",
    "loss_scale = '128.0'",
]


@pytest.mark.parametrize("made", [*FIXED, "def f(loss_scale=8192): pass"])
def test_apex_fixed_scale_skips_nothing(made: str) -> None:
    loop = "for x in loader:\n    with amp.scale_loss(m(x), optimizer) as loss:\n        loss.backward()\n"
    text = f"{made}\n{loop}    optimizer.step()\n    scheduler.step()\n"
    assert [each.code for each in lint(text)] == ([] if made in FIXED else ["AMP101"])


def test_epoch_schedule_ignores_earlier_step() -> None:
    step = "scaler = GradScaler()\nscaler.scale(model(x)).backward()\nscaler.step(optimizer)\nscaler.update()\n"
    for body in ("fit(model)", "optimizer.step()"):
        assert (
            lint(
                f"{step}for epoch in range(9):\n    {body}\n    scheduler.step()\n",
                codes=["AMP101"],
            )
            == []
        )


@pytest.mark.parametrize(
    ("guard", "call", "found"),
    [
        ("index % every == 0", "ema.update(model)", True),
        ("self.step_loss > 2", "ema.update(model)", False),
        (
            "index % every == 0 and scaler.get_scale() >= scale",
            "ema.update(model)",
            False,
        ),
        ("index % every == 0", "ema.update_average(old_buffer, new_buffer)", False),
        ("index % len(loader) == 0", "scheduler.step()", False),
    ],
)
def test_periodic_average_is_flagged(guard: str, call: str, found: bool) -> None:
    assert [
        each.code
        for each in lint(f"{MAKES}{LOOP}{END}    if {guard}:\n        {call}\n")
    ] == ["AMP102"] * found


def test_paddle_minimize_steps_and_updates() -> None:
    loop = LOOP.replace(
        "scaler.scale(model(batch)).backward()",
        "loss = scaler.scale(model(batch))\n    loss.backward()",
    )
    text = f"{MAKES}{loop}    scaler.minimize(optimizer, loss)\n    scheduler.step()\n"
    assert [each.code for each in lint(text)] == ["AMP101"]


@pytest.mark.parametrize(
    ("call", "found"),
    [
        ("update_ema_variables(model, teacher, 0.99, index)", True),
        ("learner.update_moving_average()", True),
        ("agent.update_parameters(memory)", False),
        ("accumulate(losses, outputs)", False),
        ("update_loss_ema(state)", False),
    ],
)
def test_average_is_recognized_by_name(call: str, found: bool) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}    {call}\n")] == [
        "AMP102"
    ] * found


@pytest.mark.parametrize(
    "steps",
    [
        "    for each in schedulers:\n        each.step()\n",
        "    for each, other in zip(models, schedulers):\n        other.step()\n",
        "    warmup_scheduler.dampen()\n",
    ],
)
def test_schedules_may_step_one_by_one(steps: str) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}{steps}")] == ["AMP101"]


def test_schedule_of_unscaled_optimizer_is_allowed() -> None:
    made = "other = StepLR(optimizer=opt_head, step_size=9)\nscheduler = StepLR(optimizer, 9)\n"
    steps = "    opt_head.step()\n    scheduler.step()\n    other.step()\n"
    rest = LOOP.partition(":")[2][1:]
    text = f"{made}{MAKES}for batch in loader:\n    head_loss(batch).backward()\n{rest}{END}{steps}"
    assert [(each.line, each.code) for each in lint(text, codes=["AMP101"])] == [
        (11, "AMP101")
    ]


def test_ema_decay_schedule_is_allowed() -> None:
    assert lint(f"{MAKES}{LOOP}{END}    ema_sched.step()\n") == []


@pytest.mark.parametrize(
    ("loop", "found"),
    [
        ("for k, v in ema.items():\n        v.copy_(state[k].lerp(v, decay))", True),
        ("model.apply_ema_weights()", False),
        ("apply_ema(optimizer, averaged, decay)", True),
    ],
)
def test_only_mixing_counts_as_average(loop: str, found: bool) -> None:
    assert [each.code for each in lint(f"{MAKES}{LOOP}{END}    {loop}\n")] == [
        "AMP102"
    ] * found


def test_average_may_share_step_condition() -> None:
    verdict = (
        "    good = not any(torch.isnan(p.grad).any() for p in params)\n"
        "    if good:\n"
        "        scaler.step(optimizer)\n"
    )
    text = f"{MAKES}{LOOP}    scaler.unscale_(optimizer)\n{verdict}    scaler.update()\n    if good:\n"
    assert lint(f"{text}        ema.update(model)\n") == []


def test_truth_tested_dynamic_scale_is_dropped() -> None:
    step = FLAX.replace("state.dynamic_scale", "dynamic_scale").replace(
        ".replace(dynamic_scale=dynamic_scale)", ""
    )
    asked = step.replace(
        "    return", "    if dynamic_scale:\n        state = state\n    return"
    )
    assert [each.code for each in lint(asked, codes=["AMP128"])] == ["AMP128"]


def test_unkept_replacement_drops_dynamic_scale() -> None:
    unkept = FLAX.replace(
        ".replace(dynamic_scale=dynamic_scale)",
        "\n    state.replace(dynamic_scale=dynamic_scale)",
    )
    assert [each.line for each in lint(unkept, codes=["AMP128"])] == [2]
    assert lint(FLAX, codes=["AMP128"]) == []


SAM = """\
for first in (True, False):
    if scaler is None:
        model(batch).backward()
    else:
        scaler.scale(model(batch)).backward()
        {unscale}
    if first:
        optimizer.first_step(zero_grad=True)
    else:
        optimizer.second_step(zero_grad=True)
"""


@pytest.mark.parametrize(
    ("unscale", "lines"), [("pass", [9, 11]), ("scaler.unscale_(optimizer)", [])]
)
def test_sam_steps_with_scaled_gradients(unscale: str, lines: list[int]) -> None:
    text = "scaler = torch.amp.GradScaler() if amp else None\n" + SAM.format(
        unscale=unscale
    )
    assert [each.line for each in lint(text, codes=["AMP111"])] == lines
