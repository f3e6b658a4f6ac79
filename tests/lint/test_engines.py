"""Libraries that own a part of the loop: Lightning's manual optimization, accelerate, pipelines,
flax.nnx.
"""

import pytest

from ampsim.lint.engine import lint

LIGHTNING = """\
import lightning
class Gan(lightning.LightningModule):
    def training_step(self, batch, index):
        maker_opt, judge_opt = self.optimizers()
        self.manual_backward(self.maker_loss(batch))
        {clip}
        {between}
        maker_opt.step()
        judge_opt.step()
lightning.Trainer(precision="{precision}").fit(Gan())
"""


@pytest.mark.parametrize(
    ("clip", "precision", "codes"),
    [
        ("clip_grad_norm_(self.parameters(), 1.0)", "16-mixed", ["AMP103"]),
        ("self.clip_gradients(maker_opt, 1.0)", "16-mixed", ["AMP103"]),
        ("clip_grad_norm_(self.parameters(), 1.0)", "bf16-mixed", []),
        ("pass", "16-mixed", []),
    ],
)
def test_lightning_clips_scaled_gradients(
    clip: str, precision: str, codes: list[str]
) -> None:
    text = LIGHTNING.format(clip=clip, between="pass", precision=precision)
    assert [each.code for each in lint(text)] == codes


ACCELERATE = """\
from accelerate import Accelerator
accelerator = Accelerator(mixed_precision="fp16", gradient_accumulation_steps=4)
for batch in loader:
    with accelerator.accumulate(model):
        accelerator.backward(model(batch))
        {clip}
        optimizer.step()
"""


@pytest.mark.parametrize(
    ("clip", "found"),
    [
        ("accelerator.clip_grad_norm_(model.parameters(), 1.0)", True),
        (
            "if accelerator.sync_gradients: accelerator.clip_grad_norm_(params, 1.0)",
            False,
        ),
    ],
)
def test_accelerate_clips_once_per_window(clip: str, found: bool) -> None:
    text = ACCELERATE.format(clip=clip)
    assert [each.code for each in lint(text)] == ["AMP135"] * found


NNX = """\
from flax.training.dynamic_scale import DynamicScale
def step(model, optimizer, scale, batch):
    scale, is_finite, loss, grads = scale.value_and_grad(loss_of)(model)
    optimizer.update(model, grads)
    return scale, {result}
"""


@pytest.mark.parametrize(
    ("result", "lines"),
    [("loss", [3]), ("is_finite", []), ("jnp.where(is_finite, loss, 0)", [])],
)
def test_nnx_update_needs_the_flag(result: str, lines: list[int]) -> None:
    text = NNX.format(result=result)
    assert [each.line for each in lint(text, codes=["AMP118"])] == lines


OPTAX = """\
def train_step(state, batch):
    scale, is_finite, loss, grads = state.dynamic_scale.value_and_grad(loss_of)(state.params)
    updates, opt_state = optimizer.update(grads, state.opt_state)
    params = optax.apply_updates(state.params, updates)
    metrics = {{"loss": loss, "finite": is_finite}}
    {select}
    return state.replace(params=params, opt_state=opt_state, dynamic_scale=scale), metrics
"""


@pytest.mark.parametrize(
    ("select", "lines"),
    [
        ("pass", [2]),
        (
            "params = jax.tree.map(lambda a, b: jnp.where(is_finite, a, b), params, old)",
            [],
        ),
        ("params = jax.lax.cond(is_finite, new, old)", []),
    ],
)
def test_optax_update_needs_the_flag(select: str, lines: list[int]) -> None:
    text = OPTAX.format(select=select)
    assert [each.line for each in lint(text, codes=["AMP118"])] == lines


def test_nnx_flag_is_only_logged() -> None:
    text = NNX.format(result="loss").replace(
        "    return", "    log(is_finite)\n    return"
    )
    assert [each.line for each in lint(text, codes=["AMP118"])] == [3]


@pytest.mark.parametrize(
    ("change", "found"),
    [("p.grad += noise", True), ("p.grad /= scaler.get_scale()", False)],
)
def test_gradients_changed_before_the_clip(change: str, found: bool) -> None:
    text = f"""\
scaler = torch.amp.GradScaler()
for batch in loader:
    scaler.scale(model(batch)).backward()
    for p in model.parameters():
        {change}
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    scaler.step(optimizer)
    scaler.update()
"""
    assert ("AMP103" in [each.code for each in lint(text)]) == found


def test_apex_clip_per_micro_batch() -> None:
    text = """\
for index, batch in enumerate(loader):
    with amp.scale_loss(model(batch), optimizer) as scaled_loss:
        scaled_loss.backward()
    clip_grad_norm_(amp.master_params(optimizer), 1.0)
    if (index + 1) % window == 0:
        optimizer.step()
        optimizer.zero_grad()
"""
    assert [(each.line, each.code) for each in lint(text)] == [(4, "AMP125")]


def test_clip_is_told_once() -> None:
    """Not for the branch without a scaler, too."""
    clip = "        clip_grad_norm_(model.parameters(), 1.0)\n"
    ends = "        if (index + 1) % window == 0:\n            "
    text = (
        "scaler = GradScaler()\nfor index, batch in enumerate(loader):\n    if amp:\n"
        f"        scaler.scale(model(batch)).backward()\n        scaler.unscale_(optimizer)\n{clip}"
        f"{ends}scaler.step(optimizer)\n            scaler.update()\n"
        f"    else:\n        model(batch).backward()\n{clip}{ends}optimizer.step()\n"
        "    zero_grad()\n"
    )
    assert [(each.line, each.code) for each in lint(text)] == [(5, "AMP135")]
