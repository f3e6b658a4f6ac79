"""Training loops that are wrong, each as in a public thread, with the check that must catch it.

A bug is a step, given a `Trainer` and a batch; what it sets up, saves or loads otherwise stands in
its decorator.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from ampsim.testing import Loop
from experiments.bugs.trainer import FUSED, SGD, Trainer
from experiments.frameworks.tiny import cut, loss_of, parts

SCALE, SKIP, RESUME = (
    "gradients_do_not_depend_on_loss_scale",
    "skipped_step_changes_nothing",
    "resume_is_exact",
)
SPLIT, LEARNS = "micro_batches_equal_one_batch", "step_changes_parameters"


@dataclass(frozen=True)
class Bug:
    """A loop with one bug, the check that must catch it, the thread that it is from, and the array
    that shows it.
    """

    make: Callable[..., Loop]
    check: str
    link: str


BUGS: dict[str, Bug] = {}


def bug(check, thread, setup=lambda t: None, *, save=None, load=None, optimizer=SGD):
    """Register a step under its name; `thread` is ``owner/repository#number``."""
    repository, number = thread.split("#")

    def register(step):
        def make(scaler):
            trainer = Trainer(scaler, optimizer)
            setup(trainer)
            return Loop(
                partial(step, trainer),
                trainer.state,
                logged=lambda: trainer.logs,
                split=cut if check == SPLIT else None,
                save=partial(save, trainer) if save else trainer.save if load else None,
                load=partial(load, trainer) if load else trainer.load if save else None,
            )

        make.__name__ = step.__name__
        BUGS[step.__name__] = Bug(
            make, check, f"https://github.com/{repository}/issues/{number}"
        )
        return step

    return register


# ------------------------------------------------------------------------------------------- the
# scale is invisible


@bug(SCALE, "redai-studio/Relax#44")
def relax_44_unscaled_twice(t, batch):
    t.backward(batch)
    for param in t.params():
        param.grad /= t.scaler.get_scale()
    t.update()


@bug(SCALE, "milesial/Pytorch-UNet#468")
def unet_468_clipped_before_unscaling(t, batch):
    t.backward(batch)
    nn.utils.clip_grad_norm_(t.params(), 1.0)
    t.update()


@bug(SCALE, "nerfstudio-project/nerfacc#307")
def nerfacc_307_never_unscaled(t, batch):
    t.backward(batch)
    t.optimizer.step()


@bug(SCALE, "areal-project/AReaL#1659")
def areal_1659_one_branch_not_scaled(t, batch):
    t.backward(batch)
    t.model[2].weight.square().sum().backward()
    t.update()


class Inject(torch.autograd.Function):
    """The auxiliary scaler of Megatron-LM: adds the gradient of a loss while another one's flows
    back.
    """

    @staticmethod
    def forward(ctx, output, loss):
        return output

    @staticmethod
    def backward(ctx, grad):
        return grad, torch.ones(())


@bug(SCALE, "NVIDIA-NeMo/RL#3881")
def nemo_rl_3881_injected_at_scale_1(t, batch):
    t.optimizer.zero_grad()
    loss = Inject.apply(loss_of(t.model, batch), t.model[0].weight.square().sum())
    t.scaler.scale(loss).backward()
    t.update()


@bug(SCALE, "deepspeedai/DeepSpeed#8588")
def deepspeed_8588_divided_by_the_next_scale(t, batch):
    t.backward(batch)
    kept = [param.grad.clone() for param in t.params()]
    scale = t.scaler.get_scale()
    t.scaler.unscale_(t.optimizer)
    t.scaler.update()
    if t.scaler.get_scale() >= scale:
        for param, grad in zip(t.params(), kept, strict=True):
            param.grad = grad / t.scaler.get_scale()
        t.optimizer.step()


@bug(SCALE, "deepspeedai/DeepSpeed#8588")
def deepspeed_8588_norm_of_scaled_gradients(t, batch):
    t.backward(batch)
    t.logs["grad_norm"] = nn.utils.get_total_norm([param.grad for param in t.params()])
    t.update()


@bug(SCALE, "meta-pytorch/tnt#354")
def tnt_354_scaled_loss_logged(t, batch):
    t.optimizer.zero_grad()
    loss = t.scaler.scale(loss_of(t.model, batch))
    loss.backward()
    t.logs["loss"] = loss
    t.update()


@bug(SCALE, "NVIDIA/apex#1030")
def apex_1030_trust_ratio_of_scaled_gradients(t, batch):
    t.backward(batch)
    for param in t.params():
        param.grad *= param.detach().norm() / (
            param.grad.norm() + 1e-3 * param.detach().norm()
        )
    t.update()


@bug(SCALE, "pytorch/pytorch#25081")
def pytorch_25081_penalty_of_scaled_gradients(t, batch):
    t.optimizer.zero_grad()
    loss = loss_of(t.model, batch)
    grads = torch.autograd.grad(t.scaler.scale(loss), t.params(), create_graph=True)
    t.scaler.scale(loss + sum(grad.square().sum() for grad in grads)).backward()
    t.update()


@bug(SCALE, "fastai/fastai#3049")
def fastai_3049_smoothed_loss_is_scaled(t, batch):
    t.optimizer.zero_grad()
    loss = t.scaler.scale(loss_of(t.model, batch))
    loss.backward()
    t.logs["smooth_loss"] = 0.9 * t.logs.get("smooth_loss", 0.0) + 0.1 * loss.item()
    t.update()


# ---------------------------------------------------------------------------------- a skipped step
# never happened


@bug(SKIP, "Lightning-AI/pytorch-lightning#18828", Trainer.schedule)
def lightning_18828_schedule_goes_on(t, batch):
    t.backward(batch)
    t.update()
    t.state["scheduler"].step()


@bug(SKIP, "princeton-vl/RAFT#104", Trainer.schedule)
def raft_104_schedule_between_step_and_update(t, batch):
    t.backward(batch)
    t.scaler.step(t.optimizer)
    t.state["scheduler"].step()
    t.scaler.update()


@bug(SKIP, "huggingface/lerobot#4652", Trainer.average)
def lerobot_4652_average_goes_on(t, batch):
    t.backward(batch)
    t.update()
    t.state["ema"].update_parameters(t.model)


@bug(
    SKIP, "deepspeedai/DeepSpeed#8432", lambda t: t.carry("momentum", torch.zeros(4, 3))
)
def deepspeed_8432_momentum_before_the_check(t, batch):
    t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    grad = t.model[0].weight.grad
    grad.copy_(t.state["momentum"].lerp_(grad, 0.1))
    t.update()


@bug(SKIP, "NVIDIA/NVFlare#4838", lambda t: t.carry("control", torch.zeros(4, 3)))
def nvflare_4838_control_variate_goes_on(t, batch):
    t.backward(batch)
    t.update()
    t.state["control"].lerp_(t.model[0].weight.detach(), 0.5)


@bug(SKIP, "NVIDIA-NeMo/Speech#3293", lambda t: t.carry("steps", torch.zeros(())))
def nemo_speech_3293_counter_goes_on(t, batch):
    t.backward(batch)
    t.update()
    t.state["steps"] += 1


def count_calls(t):
    t.called = False
    t.schedule()
    t.optimizer.register_step_post_hook(lambda *_: setattr(t, "called", True))


@bug(SKIP, "huggingface/accelerate#4242", count_calls, optimizer=FUSED)
def accelerate_4242_fused_call_taken_for_a_step(t, batch):
    t.called = False
    t.backward(batch)
    t.update()
    if t.called:
        t.state["scheduler"].step()


@bug(SKIP, "hpcaitech/ColossalAI#2382")
def colossalai_2382_norm_kept_from_the_skipped_step(t, batch):
    t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    if t.logs.get("norm") is None:
        t.logs["norm"] = nn.utils.get_total_norm([param.grad for param in t.params()])
    nn.utils.clip_grads_with_norm_(t.params(), 0.1, t.logs["norm"])
    if t.update():
        t.logs["norm"] = None


def two_optimizers(t):
    t.state["two"] = torch.optim.SGD(t.params()[:2], lr=0.01)


@bug(SKIP, "IAHispano/Applio#860", two_optimizers)
def applio_860_second_optimizer_called_directly(t, batch):
    t.backward(batch)
    t.update()
    t.state["two"].step()


@bug(SKIP, "PaddlePaddle/Paddle#67895")
def paddle_67895_gradients_not_cleared(t, batch):
    t.scaler.scale(loss_of(t.model, batch)).backward()
    if t.update():
        t.optimizer.zero_grad()


@bug(SKIP, "marin-community/levanter#973")
def levanter_973_zero_gradients_for_a_skip(t, batch):
    t.backward(batch)
    t.scaler.unscale_(t.optimizer)
    if not all(param.grad.isfinite().all() for param in t.params()):
        for param in t.params():
            param.grad.zero_()
    t.optimizer.step()
    t.scaler.update()


# ------------------------------------------------------------------------------------------------
# resuming is invisible


def plain(t, batch):
    t.backward(batch)
    if t.update() and "ema" in t.state:
        t.state["ema"].update_parameters(t.model)


def checkpoint_without(name):
    return lambda t: {key: value for key, value in t.save().items() if key != name}


def load_what_there_is(t, checkpoint):
    t.load({**t.save(), **checkpoint})


def resume(thread, **changes):
    """Register a loop whose step is right and whose checkpoint is not."""

    def register(name, setup=lambda t: None):
        def step(t, batch):
            plain(t, batch)

        step.__name__ = name
        bug(RESUME, thread, setup, **changes)(step)

    return register


def advance_the_scaler(t, checkpoint):
    t.load(checkpoint)
    t.scaler.scale(torch.ones(()))
    for param in t.params():
        param.grad = torch.zeros_like(param)
    t.update()  # a dummy step, which is to make the optimizer's state
    t.model.load_state_dict(checkpoint["model"])
    t.optimizer.load_state_dict(checkpoint["optimizer"])


def make_the_scaler_late(t, checkpoint):
    fresh = t.scaler.state_dict()
    t.load(checkpoint)
    t.scaler.load_state_dict(fresh)


def leave_the_average_in_the_model(t):
    t.model.load_state_dict(t.state["ema"].module.state_dict())
    return t.save()


def overwrite_the_average(t, checkpoint):
    t.load(checkpoint)
    t.state["ema"].module.load_state_dict(checkpoint["model"])


def load_the_average_twice(t, checkpoint):
    t.load(checkpoint)
    t.model.load_state_dict(t.state["ema"].module.state_dict())


resume(
    "huggingface/transformers#11663",
    save=checkpoint_without("scaler"),
    load=load_what_there_is,
)("transformers_11663_scaler_not_saved")
resume("huggingface/accelerate#4289", load=advance_the_scaler)(
    "accelerate_4289_loading_advances_the_scaler"
)
resume("mosaicml/composer#1376", load=make_the_scaler_late)(
    "composer_1376_scaler_made_after_loading"
)
resume("ai2cm/ace#349", save=checkpoint_without("ema"), load=load_what_there_is)(
    "ace_349_average_not_saved", Trainer.average
)
resume("harubaru/waifu-diffusion#31", save=leave_the_average_in_the_model)(
    "waifu_31_saving_leaves_the_average_in_the_model", Trainer.average
)
resume("m2lines/Samudra#282", load=overwrite_the_average)(
    "samudra_282_average_overwritten", Trainer.average
)
resume("Megvii-BaseDetection/YOLOX#1318", load=load_the_average_twice)(
    "yolox_1318_only_the_average", Trainer.average
)


# ----------------------------------------------------------------------------------------------
# splitting is invisible


@bug(SPLIT, "marin-community/marin#7659")
def marin_7659_last_micro_batch_wins(t, batch):
    t.optimizer.zero_grad()
    for part in parts(batch):
        t.scaler.scale(loss_of(t.model, part) / len(parts(batch))).backward()
        found = not all(param.grad.isfinite().all() for param in t.params())
        for param in t.params():
            param.grad.nan_to_num_(0.0, 0.0, 0.0)
    if found:
        t.params()[0].grad.fill_(torch.inf)
    t.update()


@bug(SPLIT, "bytetriper/RAE#67")
def rae_67_cleared_per_micro_batch(t, batch):
    for part in parts(batch):
        t.optimizer.zero_grad()
        t.scaler.scale(loss_of(t.model, part) / len(parts(batch))).backward()
    t.update()


@bug(SPLIT, "huggingface/transformers#40709")
def transformers_40709_divided_twice(t, batch):
    t.optimizer.zero_grad()
    for part in parts(batch):
        t.scaler.scale(
            loss_of(t.model, part) / len(parts(batch)) / len(parts(batch))
        ).backward()
    t.update()


@bug(SPLIT, "allenai/open-instruct#1498")
def open_instruct_1498_last_gradient_survives(t, batch):
    kept = []
    for part in parts(batch):
        t.backward(part)
        kept = [param.grad / len(parts(batch)) for param in t.params()]
    for param, grad in zip(t.params(), kept, strict=True):
        param.grad = grad
    t.update()


@bug(SPLIT, "ISEEKYAN/Megatron-LM#56")
def iseekyan_56_auxiliary_loss_not_divided(t, batch):
    t.optimizer.zero_grad()
    for part in parts(batch):
        auxiliary = sum(param.square().sum() for param in t.params())
        t.scaler.scale(
            loss_of(t.model, part) / len(parts(batch)) + auxiliary
        ).backward()
    t.update()


@bug(SPLIT, "lightly-ai/lightly-train#968", Trainer.average)
def lightly_968_average_per_micro_batch(t, batch):
    t.optimizer.zero_grad()
    for part in parts(batch):
        t.scaler.scale(loss_of(t.model, part) / len(parts(batch))).backward()
        t.state["ema"].update_parameters(t.model)
    t.update()


# ------------------------------------------------------------------------------------------------------------
# it learns


@bug(LEARNS, "deepspeedai/DeepSpeed#8415")
def deepspeed_8415_every_step_skipped(t, batch):
    t.optimizer.zero_grad()
    t.scaler.scale(
        loss_of(t.model, batch) + (0.0 * t.model[0].bias).square().sum().sqrt()
    ).backward()
    t.update()


@bug(
    LEARNS,
    "NVIDIA-NeMo/Automodel#1408",
    lambda t: t.optimizer.add_param_group({"params": [router(t)]}),
)
def automodel_1408_return_value_discarded(t, batch):
    t.optimizer.zero_grad()
    loss = loss_of(t.model, batch)
    Inject.apply(loss, t.router.square().sum())
    t.scaler.scale(loss).backward()
    t.update()


def router(t):
    t.router = nn.Parameter(torch.ones(2))
    return t.router


@bug(
    LEARNS,
    "workofart/ml-by-hand#85",
    lambda t: t.model.to(torch.bfloat16),
    optimizer=partial(torch.optim.SGD, lr=1e-5),
)
def ml_by_hand_85_no_master_copy(t, batch):
    t.backward([tensor.bfloat16() for tensor in batch])
    t.update()


@bug(LEARNS, "AI-Hypercomputer/maxtext#5021")
def maxtext_5021_new_values_overwritten_by_old(t, batch):
    old = {name: value.clone() for name, value in t.model.state_dict().items()}
    t.backward(batch)
    t.update()
    t.model.load_state_dict(old)
