"""Training scripts as functions, each right or with one mistake, whose line ends in ``# WRONG``."""

import inspect
import io
from pathlib import Path

import torch
from torch import nn
from torch.amp import GradScaler
from torch.nn.utils import clip_grad_norm_

STEPS = 14
RIGHT, WRONG = {}, {}


def right(train):
    RIGHT[train.__name__] = train
    return train


def wrong(check):
    """Register a script whose mistake a check finds, in the line that is marked."""

    def register(train):
        lines, start = inspect.getsourcelines(train)
        marked = [
            start + index for index, line in enumerate(lines) if "# WRONG" in line
        ]
        WRONG[train.__name__] = train, check, f"{Path(__file__).name}:{marked[0]}: "
        return train

    return register


def net(rows=8, columns=4):
    return nn.Sequential(nn.Linear(rows, 16), nn.Tanh(), nn.Linear(16, columns))


def loss_of(model, rows=8):
    data = torch.randn(rows, 8)
    return nn.functional.mse_loss(model(data), data[:, :4].sin())


def parts():
    torch.manual_seed(0)
    model = net()
    return model, torch.optim.AdamW(model.parameters(), lr=1e-3), GradScaler("cpu")


def step_is_taken(scaler):
    """Update; return whether the step was taken."""
    before = scaler.get_scale()
    scaler.update()
    return scaler.get_scale() >= before


def step(scaler, optimizer):
    """Step and update; return whether the step was taken."""
    scaler.step(optimizer)
    return step_is_taken(scaler)


# ----------------------------------------------------------------------------------------------------------
# right


@right
def normalizes_weights_in_each_iteration():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        with torch.no_grad():
            for param in model.parameters():
                param.div_(param.norm())
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)


@right
def accumulation_clipping_average_schedule():
    model, optimizer, scaler = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    average = [param.detach().clone() for param in model.parameters()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(2):
            scaler.scale(loss_of(model) / 2).backward()
        scaler.unscale_(optimizer)
        clip_grad_norm_(model.parameters(), 0.1)
        if step(scaler, optimizer):
            schedule.step()
            for old, new in zip(average, model.parameters(), strict=True):
                old.lerp_(new.detach(), 0.1)


@right
def three_complete_passes():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        for rows in (8, 4, 6):
            optimizer.zero_grad()
            scaler.scale(loss_of(model, rows)).backward()
            step(scaler, optimizer)


@right
def fused_optimizer():
    model, _, scaler = parts()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)


@right
def generator_and_discriminator():
    """The generator's backward pass leaves gradients in the discriminator, which clears them."""
    generator, optimizer, scaler = parts()
    critic = net(4, 1)
    other = torch.optim.Adam(critic.parameters())
    for _ in range(STEPS):
        optimizer.zero_grad()
        made = generator(torch.randn(8, 8))
        scaler.scale(-critic(made).mean()).backward()
        step(scaler, optimizer)
        other.zero_grad()
        scaler.scale(critic(made.detach()).mean()).backward()
        step(scaler, other)


@right
def optimizers_of_alternate_batches():
    model, optimizer, scaler = parts()
    other = torch.optim.SGD(model.parameters(), lr=1e-3)
    batches = torch.utils.data.DataLoader(torch.randn(STEPS, 8))
    for number, batch in enumerate(batches):
        chosen = other if number % 2 else optimizer
        chosen.zero_grad()
        scaler.scale(model(batch).square().mean()).backward()
        step(scaler, chosen)


@right
def one_update_after_both_steps():
    """The generator's backward pass reaches the discriminator, whose own step and update come
    later.
    """
    generator, optimizer, scaler = parts()
    critic = net(4, 1)
    other = torch.optim.Adam(critic.parameters())
    for _ in range(STEPS):
        made = generator(torch.randn(8, 8))
        other.zero_grad()
        scaler.scale(critic(made.detach()).mean()).backward()
        scaler.step(other)
        optimizer.zero_grad()
        scaler.scale(-critic(made).mean()).backward()
        step(scaler, optimizer)


@right
def two_scalers():
    model, optimizer, scaler = parts()
    other_model, other, other_scaler = parts()
    for _ in range(STEPS):
        for one in ((model, optimizer, scaler), (other_model, other, other_scaler)):
            one[1].zero_grad()
            one[2].scale(loss_of(one[0])).backward()
            step(one[2], one[1])


@right
def adversarial_examples():
    """The gradients of the parameters that belong to the attack are cleared."""
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        data = torch.randn(8, 8, requires_grad=True)
        model(data).square().mean().backward()
        optimizer.zero_grad()
        moved = data.detach() + 0.1 * data.grad.sign()
        scaler.scale(model(moved).square().mean()).backward()
        step(scaler, optimizer)


@right
def threshold_times_the_scale():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        clip_grad_norm_(model.parameters(), 0.1 * scaler.get_scale())
        step(scaler, optimizer)


@right
def divides_a_norm_by_the_scale():
    model, optimizer, scaler = parts()
    norms = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        norm = sum(param.grad.norm() for param in model.parameters()).item()
        norms.append(norm / scaler.get_scale())
        step(scaler, optimizer)


@right
def gradients_by_function():
    """No backward pass of torch's class reaches these gradients."""
    model, optimizer, scaler = parts()
    params = [*model.parameters()]
    for _ in range(STEPS):
        grads = torch.autograd.grad(scaler.scale(loss_of(model)), params)
        for param, grad in zip(params, grads, strict=True):
            param.grad = grad
        step(scaler, optimizer)


@right
def copies_a_target_of_averages():
    """A copy in each fourth iteration, whose line does not name an average, and an average of taken
    steps.
    """
    model, optimizer, scaler = parts()
    target, average = net(), net()
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        if step(scaler, optimizer):
            for old, new in zip(average.parameters(), model.parameters(), strict=True):
                old.data.lerp_(new.data, 0.1)
        if number % 4 == 3:
            target.load_state_dict(model.state_dict())


@right
def schedule_of_epochs():
    model, optimizer, scaler = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    best = [param.detach().clone() for param in model.parameters()]
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        if number % 4 == 3:
            schedule.step()
            best = [
                *best[-2:],
                *(param.detach().clone() for param in model.parameters()),
            ]


@right
def sharpness_aware():
    """The first pass moves the parameters, and its gradients are cleared."""
    model, optimizer, scaler = parts()

    def backward():
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()

    for _ in range(STEPS):
        backward()
        with torch.no_grad():
            scale = scaler.get_scale()
            olds = [param.clone() for param in model.parameters()]
            for param in model.parameters():
                param.add_(1e-3 * param.grad / scale)
        backward()
        with torch.no_grad():
            for param, old in zip(model.parameters(), olds, strict=True):
                param.copy_(old)
        step(scaler, optimizer)


@right
def combines_gradients_of_two_losses():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        found = []
        for _ in range(2):
            optimizer.zero_grad()
            scaler.scale(loss_of(model)).backward()
            found.append([param.grad.clone() for param in model.parameters()])
        for param, *grads in zip(model.parameters(), *found, strict=True):
            param.grad = sum(grads) / 2
        step(scaler, optimizer)


@right
def leaves_out_large_gradients():
    model, optimizer, scaler = parts()
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        norm = clip_grad_norm_(model.parameters(), 1.0)
        if number % 5 == 4 and norm > 1e-6:
            scaler.update()
            continue
        step(scaler, optimizer)


@right
def resumes_with_the_scaler():
    model, optimizer, scaler = parts()
    other, resumed, restored = parts()
    for number in range(STEPS):
        if number == 3:
            resumed.load_state_dict(optimizer.state_dict())
            restored.load_state_dict(scaler.state_dict())
            other.load_state_dict(model.state_dict())
            model, optimizer, scaler = other, resumed, restored
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=number % 2 == 3):
            loss = loss_of(model)
        scaler.scale(loss).backward()
        norm = clip_grad_norm_(model.parameters(), torch.inf)
        step(scaler, optimizer)
        print(f"{loss:.3f} {norm / scaler.get_scale():.3f}")


# ----------------------------------------------------------------------------------------------------------
# wrong


@wrong("gradients_do_not_depend_on_loss_scale")
def clips_scaled_gradients():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        clip_grad_norm_(model.parameters(), 0.1)  # WRONG
        step(scaler, optimizer)


@wrong("gradients_do_not_depend_on_loss_scale")
def clips_scaled_gradients_by_hand():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        for param in model.parameters():
            param.grad.div_(param.grad.norm())  # WRONG
        step(scaler, optimizer)


@wrong("gradients_do_not_depend_on_loss_scale")
def unscales_before_the_last_pass():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)  # WRONG
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)


@wrong("gradients_do_not_depend_on_loss_scale")
def shares_a_parameter():
    model, optimizer, scaler = parts()
    other = torch.optim.SGD(model[0].parameters(), lr=0.1)
    for _ in range(STEPS):
        model.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.step(other)  # WRONG
        scaler.update()


@wrong("losses_of_a_step_are_scaled")
def adds_a_plain_loss():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        (1e-3 * model[0].weight.square().sum()).backward()  # WRONG
        step(scaler, optimizer)


@wrong("gradients_do_not_depend_on_loss_scale")
def updates_between_two_steps():
    model, optimizer, scaler = parts()
    other_model, other, _ = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        other.zero_grad()
        scaler.scale(loss_of(model) + loss_of(other_model)).backward()
        scaler.step(optimizer)
        scaler.update()  # WRONG
        scaler.step(other)
        scaler.update()


@wrong("skipped_step_changes_nothing")
def steps_past_the_scaler():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)
        optimizer.step()  # WRONG
        scaler.update()


@wrong("step_changes_parameters")
def loses_the_step():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()  # WRONG
        scaler.unscale_(optimizer)
        scaler.update()


@wrong("scaler_is_created_once")
def makes_a_scaler_per_epoch():
    model, optimizer, _ = parts()
    for number in range(STEPS):
        if number % 7 == 0:
            scaler = GradScaler("cpu")  # WRONG
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)


@wrong("logged_numbers_are_unscaled")
def logs_the_scaled_loss():
    model, optimizer, scaler = parts()
    total = 0.0
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model))
        loss.backward()
        step(scaler, optimizer)
        total += loss.detach().item()  # WRONG


@wrong("logged_numbers_are_unscaled")
def logs_the_norm_of_scaled_gradients():
    model, optimizer, scaler = parts()
    norms = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        norm = sum(param.grad.norm() for param in model.parameters())
        norms.append(norm.item())  # WRONG
        step(scaler, optimizer)


@wrong("logged_numbers_are_unscaled")
def logs_scaled_norms_of_two_updates():
    """One place reads both norms, the second one after the update of the first step."""
    model, optimizer, scaler = parts()
    other_model, other, _ = parts()
    for _ in range(STEPS):
        for net_, optimizer_ in ((model, optimizer), (other_model, other)):
            optimizer_.zero_grad()
            scaler.scale(loss_of(net_)).backward()
            sum(param.grad.norm() for param in net_.parameters()).item()  # WRONG
            step(scaler, optimizer_)


@wrong("skipped_step_changes_nothing")
def removes_infs():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        for param in model.parameters():
            param.grad.nan_to_num_(0.0, 1.0, -1.0)  # WRONG
        step(scaler, optimizer)


@wrong("skipped_step_changes_nothing")
def decays_by_hand():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        with torch.no_grad():
            for param in model.parameters():
                param.mul_(0.999)  # WRONG


@wrong("skipped_step_changes_nothing")
def steps_the_schedule_always():
    model, optimizer, scaler = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        schedule.step()  # WRONG


@wrong("skipped_step_changes_nothing")
def steps_a_schedule_after_the_rest_of_an_epoch():
    """The schedule of whole iterations is right; the last one of an epoch has a place of its own."""
    model, optimizer, scaler = parts()
    schedule = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.9)
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        taken = step(scaler, optimizer)
        if number % 5 == 4:
            schedule.step()  # WRONG
        elif taken:
            schedule.step()


@wrong("skipped_step_changes_nothing")
def puts_an_average_into_a_table():
    """The optimizer has the average's parameters, too, as it was made of the whole module."""
    model, _, scaler = parts()
    average = net()
    optimizer = torch.optim.AdamW([*model.parameters(), *average.parameters()])
    table = {name: param.detach() for name, param in model.named_parameters()}
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
        for (name, new), old in zip(
            model.named_parameters(), average.parameters(), strict=True
        ):
            old.data = 0.999 * old.data + 0.001 * new.data  # WRONG
            table[name] = 0.5 * table[name] + 0.5 * new.detach()


@wrong("skipped_step_changes_nothing")
def moves_an_average_after_a_hundred_copies():
    model, optimizer, scaler = parts()
    average = net()
    for number in range(120):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        weight = 0.1 if number > 100 else 1.0
        for old, new in zip(average.parameters(), model.parameters(), strict=True):
            old.data.lerp_(new.data, weight)  # WRONG


@wrong("skipped_step_changes_nothing")
def moves_the_average_always():
    model, optimizer, scaler = parts()
    average = [param.detach().clone() for param in model.parameters()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        for old, new in zip(average, model.parameters(), strict=True):
            old.lerp_(new.detach(), 0.1)  # WRONG


@wrong("skipped_step_changes_nothing")
def keeps_initial_weights_beside_an_average():
    """The average still has the initial weights when iterations are repeated."""
    model, optimizer, scaler = parts()
    initial = [param.detach().clone() for param in model.parameters()]
    average = [param.detach().clone() for param in model.parameters()]
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        for old, new in zip(average, model.parameters(), strict=True):
            if number > 1:
                old.lerp_(new.detach(), 0.1)  # WRONG
    del initial


@wrong("skipped_step_changes_nothing")
def moves_a_slow_average_always():
    model, optimizer, scaler = parts()
    average = [param.detach().clone() for param in model.parameters()]
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        for old, new in zip(average, model.parameters(), strict=True):
            old.copy_(0.99999 * old + 0.00001 * new.detach())  # WRONG


@wrong("skipped_step_changes_nothing")
def moves_an_average_in_each_fourth_iteration():
    model, optimizer, scaler = parts()
    average = [param.detach().clone() for param in model.parameters()]
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        for old, new in zip(average, model.parameters(), strict=True):
            if number % 4 == 3:
                old.lerp_(new.detach(), 0.1)  # WRONG


@wrong("skipped_step_changes_nothing")
def keeps_the_inf_in_the_gradients():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        scaler.scale(loss_of(model)).backward()
        before = scaler.get_scale()
        scaler.step(optimizer)  # WRONG
        scaler.update()
        if scaler.get_scale() >= before:
            optimizer.zero_grad()


@wrong("skipped_step_changes_nothing")
def updates_after_finite_steps():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.unscale_(optimizer)  # WRONG
        if all(param.grad.isfinite().all() for param in model.parameters()):
            step(scaler, optimizer)


@wrong("gradients_are_used_once")
def clears_in_each_micro_batch():
    model, optimizer, scaler = parts()
    for number in range(2 * STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model) / 2).backward()  # WRONG
        if number % 2:
            step(scaler, optimizer)


@wrong("gradients_are_used_once")
def never_clears_gradients():
    """They are cleared after a skipped step only."""
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)  # WRONG
        if not step_is_taken(scaler):
            optimizer.zero_grad()


@wrong("gradients_are_used_once")
def steps_twice_with_the_same_gradients():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        scaler.step(optimizer)  # WRONG
        scaler.update()


@right
def updates_after_each_complete_pass():
    generator, optimizer, scaler = parts()
    critic = net(4, 1)
    other = torch.optim.Adam(critic.parameters())
    for batch in torch.utils.data.DataLoader(torch.randn(STEPS, 8)):
        optimizer.zero_grad()
        made = generator(batch)
        scaler.scale(-critic(made).mean()).backward()
        scaler.step(optimizer)
        scaler.update()
        other.zero_grad()
        scaler.scale(critic(made.detach()).mean()).backward()
        scaler.step(other)
        scaler.update()


@wrong("gradients_are_used_once")
def clips_after_the_step():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        clip_grad_norm_(model.parameters(), 1.0)  # WRONG


@wrong("scaler_scales_fp16_training")
def scales_bfloat16():
    model, optimizer, scaler = parts()
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            loss = loss_of(model)
        scaler.scale(loss).backward()  # WRONG
        step(scaler, optimizer)


@wrong("scaler_scales_fp16_training")
def never_uses_the_scaler():
    model = net()
    optimizer = torch.optim.AdamW(model.parameters())
    scaler = GradScaler("cpu")  # WRONG
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss_of(model).backward()
        optimizer.step()
    del scaler


@wrong("resume_is_exact")
def resumes_without_the_scaler():
    model, optimizer, scaler = parts()
    for number in range(STEPS):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        step(scaler, optimizer)
        if number == 3:
            states = {
                "optimizer": optimizer.state_dict(),
                "scaler": scaler.state_dict(),
            }
            torch.save(states, io.BytesIO())
            optimizer.load_state_dict(states["optimizer"])  # WRONG


@wrong("logged_numbers_are_unscaled")
def prints_the_scaled_loss_at_the_end():
    model, optimizer, scaler = parts()
    for number in range(STEPS):
        optimizer.zero_grad()
        loss = scaler.scale(loss_of(model))
        loss.backward()
        step(scaler, optimizer)
        if number == STEPS - 1:
            print(loss)  # WRONG
