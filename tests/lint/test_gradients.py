"""Gradients that are still scaled, half models, and accumulation windows."""

import pytest

from ampsim.lint.engine import RULES, lint
from tests.lint.loops import END, LOOP, MAKES

OWN_PASSES = """\
for index, batch in enumerate(loader):
    if args.accumulate > 1:
        with amp.scale_loss(model(batch) / args.accumulate, optimizer) as scaled:
            scaled.backward()
        if (index + 1) % args.accumulate == 0:
            optimizer.step()
            scheduler.step()
    else:
        with amp.scale_loss(model(batch), optimizer) as scaled:
            scaled.backward()
        optimizer.step()
        ema.update(model)
"""


def test_both_accumulation_branches_are_linted() -> None:
    assert {each.code for each in lint(OWN_PASSES, codes=RULES)} == {"AMP101", "AMP102"}


def test_norm_before_conditional_unscale_is_flagged() -> None:
    clip = "\ndef clip(params, most):\n    if most is None:\n        return sum(p.grad.norm() for p in params)\n"
    lines = [
        "if torch.isnan(loss):",
        "    break",
        "if most is not None:",
        "    scaler.unscale_(optimizer)",
    ]
    lines += [
        "clip(model.parameters(), most)",
        "scaler.step(optimizer)",
        "scaler.update()",
    ]
    text = clip + MAKES + LOOP + "".join(f"    {line}\n" for line in lines)
    assert [each.code for each in lint(text)] == ["AMP106"]
    assert lint(text.replace("if most is not None", "if True")) == []


def test_clipping_is_recognized_by_name() -> None:
    assert [
        each.code
        for each in lint(f"{MAKES}{LOOP}    clip_gradient(optimizer, 0.5)\n{END}")
    ] == ["AMP103"]
    unscales = (
        "def clip_gradient(optimizer):\n"
        "    scaler.unscale_(optimizer)\n"
        "    clip_grad_norm_(model.parameters(), 1)\n"
    )
    assert lint(f"{unscales}{MAKES}{LOOP}    clip_gradient(optimizer)\n{END}") == []
    cuts = "def clip_gradient(optimizer):\n    for p in params:\n        p.grad.data.clamp_(-1, 1)\n"
    assert [
        each.code
        for each in lint(f"{cuts}{MAKES}{LOOP}    clip_gradient(optimizer)\n{END}")
    ] == ["AMP106"]


@pytest.mark.parametrize(("indent", "found"), [("        ", True), ("    ", False)])
def test_apex_unscales_at_block_end(indent: str, found: bool) -> None:
    text = (
        "for batch in loader:\n"
        "    with amp.scale_loss(model(batch), optimizer) as scaled:\n"
        "        scaled.backward()\n"
        f"{indent}clip_grad_norm_(amp.master_params(optimizer), 1.0)\n"
        "    optimizer.step()\n"
    )
    assert [each.code for each in lint(text)] == ["AMP103"] * found


@pytest.mark.parametrize(
    ("condition", "codes"),
    [("True", ["AMP111"]), ("isfinite(norm)", []), ("not skipped", [])],
)
def test_unscaled_gradients_need_a_check(condition: str, codes: list[str]) -> None:
    end = f"    scaler.unscale_(optimizer)\n    if {condition}:\n        optimizer.step()\n"
    assert [each.code for each in lint(f"{MAKES}{LOOP}{end}")] == codes
    # Unscaled gradients are of a scaled loss, whoever passes it back.
    assert [
        each.code for each in lint(f"def update(scaler, optimizer):\n{end}")
    ] == codes


@pytest.mark.parametrize(
    ("condition", "found"),
    [
        ("args.use_amp", False),
        ("torch.device(args.device).type == 'cuda'", False),
        ("torch.cuda.is_available()", False),
        ("draw() > 0.5", True),
    ],
)
def test_unscaled_step_beside_scaler_step(condition: str, found: bool) -> None:
    text = (
        f"scaler = GradScaler(enabled=args.use_amp)\n{LOOP}    scaler.unscale_(optimizer)\n"
        f"    if {condition}:\n        scaler.step(optimizer)\n        scaler.update()\n"
        "    else:\n        optimizer.step()\n"
    )
    assert bool(lint(text, codes=["AMP111"])) == found


@pytest.mark.parametrize(
    "zeroes",
    ["model.zero_grad()", "parameter.grad = None", "parameter.grad.zero_()"],
)
def test_gradients_are_zeroed_anywhere(zeroes: str) -> None:
    assert [each.code for each in lint(RULES["AMP139"].wrong)] == ["AMP139"]
    assert lint(f"{RULES['AMP139'].wrong}    {zeroes}\n") == []
    step = RULES["AMP139"].wrong.replace("for batch in loader", "if batch")
    assert lint(step) == []


@pytest.mark.parametrize(
    ("old", "new", "found"),
    [
        ("for epoch in range(10):", "for epoch in forever():", True),
        ("(index + 1)", "steps_of_all_epochs", False),
        ("% window == 0", "% window == 0 or index + 1 == len(loader)", False),
        ("% window == 0", "% window == 0 or last", False),
        ("for epoch in range(10):", "def train(loader):", True),
        ("for epoch in range(10):", "if True:", False),
    ],
)
def test_lost_window_is_an_epochs_last(old: str, new: str, found: bool) -> None:
    text = RULES["AMP138"].wrong.replace(old, new)
    assert ("AMP138" in [each.code for each in lint(text)]) == found
    ended = text + "    scaler.step(optimizer)\n    scaler.update()\n"
    assert "AMP138" not in [each.code for each in lint(ended)]
