"""The synchronous loss scaler: torch.amp.GradScaler, and what it lacks.

Theory of operation
-------------------
`GradScaler` inherits torch's class and keeps torch's state: the tensors ``_scale`` and
``_growth_tracker``, which `update` writes in place, and the dict ``_per_optimizer_states``. Stages,
error texts, checkpoints, private names, and CUDA graphs are torch's own code. The overrides below
do three things: they read and divide gradients with the functions of `ampsim.torch.gradients`, they
join the flags of a process group before a step reads them, and they keep the scale within bounds.

torch's methods call four of the overrides: ``scale`` calls `_lazy_init_scale_growth_tracker`,
``unscale_`` calls `_unscale_grads_`, and ``step`` calls `unscale_`, or `_check_inf_per_device` for a
fused optimizer. All others are called by the loop.

An iteration's own data stands beside torch's in the dict of an optimizer, as one `_Record`. So
several threads may step different optimizers, as with torch's class. `update` drops all of it.
"""

import functools
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.amp.grad_scaler import OptState
from torch.optim import Optimizer

from ampsim.core import refusals
from ampsim.core.machine import Rule
from ampsim.core.policies import Policy
from ampsim.core.validation import check_choice
from ampsim.torch import fused
from ampsim.torch.bounds import (
    SMALLEST_NORMAL,
    bounds_of,
    check_max_norm,
    check_scale,
    check_state_dict,
    loss_scale_error,
    make_rule,
)
from ampsim.torch.gradients import clip, collect, divided, unscale
from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.unscale import FoundInf, copied, largest_flag
from ampsim.torch.policy import PolicyRun
from ampsim.torch.ranks import Joined, Ranks
from ampsim.torch.step_report import StepReport

_DEFAULTS = (2.0**16, 2.0, 0.5, 2000, None, None)
States = dict[int, dict[str, Any]]  # by id of an optimizer
_TORCHS_UNSCALE = torch.amp.GradScaler._unscale_grads_  # to see a client's patch


@dataclass(eq=False)
class _Record:
    """What an iteration knows of an optimizer beside torch's stage and flags."""

    optimizer: Optimizer | None = None  # once its step was made or skipped
    largest: Tensor | None = None  # unscaled gradient, (), for a policy
    plain: list[Tensor] | None = None  # gradients, to mark as divided
    # The attributes before `unscale_and_clip_`, if the next step is still to divide.
    folded: fused.Attributes | None = None
    # Waits for the all-reduce that is on its way.
    join: Callable[[], Joined] | None = None


def _record(state: dict[str, Any]) -> _Record:
    """Return the record in torch's state of an optimizer, which torch has created without one."""
    if "ampsim" not in state:
        state["ampsim"] = _Record()
    record: _Record = state["ampsim"]
    return record


class GradScaler(torch.amp.GradScaler):
    """Drop-in replacement for `torch.amp.GradScaler` that checks gradients at every scale.

    A subclass of torch's class with torch's state. It skips each step whose gradients are inf or
    NaN when they are unscaled. ``check_at_step=True`` also catches what the loop writes after
    `unscale_`. It divides a gradient that two optimizers share only once, and can skip on all ranks
    together (`group`). The note lists all differences.

    >>> import torch
    >>> from ampsim.torch import GradScaler
    >>> weight = torch.nn.Parameter(torch.ones(2))
    >>> optimizer = torch.optim.SGD([weight], lr=0.5)
    >>> scaler = GradScaler("cpu", init_scale=1024.0, min_scale=1.0)
    >>> for x in (1.0, float("inf")):
    ...     optimizer.zero_grad()
    ...     scaler.scale((weight * x).sum()).backward()
    ...     _ = scaler.step(optimizer)
    ...     scaler.update()
    >>> weight.tolist(), scaler.get_scale()
    ([0.5, 0.5], 512.0)

    Args:
        device: Device type of the scale. The first scaled output determines the device.
        init_scale: Initial loss scale, a positive factor within the bounds.
        growth_factor: Factor of a growth; above 1.
        backoff_factor: Factor of a backoff; above 0 and below 1.
        growth_interval: Number of consecutive finite steps before a growth; at least 1.
        enabled: If False, all methods pass their inputs through.
        min_scale: Lower bound of the scale; at least 2^-126, the default. On an accelerator, 1.0 or
            more saves the second check of the gradients.
        max_scale: Upper bound of the scale; default: the largest float32 number. As in torch, a
            growth whose product is beyond float32 keeps the scale.
        on_min_scale: Action for an overflow at ``min_scale``: "clamp" keeps the scale, "warn" also
            warns, "raise" raises FloatingPointError. "warn" and "raise" wait for the device.
        check_at_step: Whether `step` checks gradients again that `unscale_` has checked, because
            the loop may have written inf or NaN since. Costs one more read.
        policy: Policy of `ampsim.core.policies` with ``delay=0``. It replaces the constants and
            bounds, which must keep their defaults. It runs on the host, so each update waits.
        allow_fp16: Whether to unscale float16 gradients instead of raising.
        group: Process group of torch.distributed, or "world". One asynchronous all-reduce per
            optimizer and iteration computes the largest flag. All ranks must make the same calls in
            the same order, with equal constants: a missing step or another scale raises on all
            ranks. Tested with gloo.

    Raises:
        AssertionError: With torch's text, if growth_factor <= 1 or backoff_factor >= 1.
        TypeError: If a constant is no number, or `policy` no policy.
        ValueError: If a constant or a bound is out of range.

    Note:
        It differs from torch's class as follows:

        - Gradients are checked after the division too if the scale is below 1. ``min_scale`` is
          2^-126 by default, because 1/scale is inf below 2^-128.
        - Sparse gradients are checked after their duplicates are summed.
        - A gradient is divided once in an iteration, even if two optimizers share its parameter.
          If the loop writes the gradient in between, the second call raises.
        - On the CPU, the first step after a change of the scale raises if neither `scale` nor
          `get_scale` was called since: the gradients have another scale.
        - New arguments: `min_scale`, `max_scale`, `on_min_scale`, `check_at_step`, `policy`,
          `allow_fp16`, and `group`. New members: `unscale_and_clip_`, `loss_value`, `last_step`.
        - Invalid constants, scales, and state dicts raise before anything changes. `step` raises
          for a closure as a positional argument too. `update` also takes an int or a tensor of
          shape (1,).
        - A fused step that is skipped leaves no optimizer state, and one that raises leaves no
          ``grad_scale``. A fused optimizer can be unscaled before it has gradients. On the CPU, a
          gradient gets the memory layout of its parameter, because fused kernels ignore strides.
        - If the growth interval is set below ``_growth_tracker``, the next finite step grows the
          scale. torch's scaler waits for the next overflow.
        - If the first `scale` runs in inference mode, training can still update the scale.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        min_scale: float | None = None,
        max_scale: float | None = None,
        on_min_scale: str = "clamp",
        check_at_step: bool = False,
        policy: Policy | None = None,
        allow_fp16: bool = False,
        group: Any = None,
    ) -> None:
        # torch's class takes a tensor of one element too.
        init_scale = init_scale.item() if isinstance(init_scale, Tensor) else init_scale
        constants = (growth_factor, backoff_factor, growth_interval)
        self._policy = None
        if policy is not None:
            given = (init_scale, *constants, min_scale, max_scale)
            if given != _DEFAULTS:
                raise ValueError(
                    f"policy= with {given}: expected the defaults of the constants and bounds; "
                    "pass these numbers to the policy"
                )
            self._policy = PolicyRun(policy)
            init_scale = policy.init_scale
            min_scale = policy.min_scale
            max_scale = policy.max_scale
        check_choice("on_min_scale", on_min_scale, ("clamp", "warn", "raise"))
        super().__init__(device, init_scale, *constants, enabled)
        self._rule = Rule()  # the constants as they were given, to check later ones
        if self._enabled:
            low = SMALLEST_NORMAL if min_scale is None else min_scale
            self._rule = make_rule(
                init_scale, *constants, min_scale=low, max_scale=max_scale
            )
        self._min_scale, self._max_scale = bounds_of(self._rule)
        self._interval_is_new = False  # so the tracker may be above it
        self._on_min_scale = on_min_scale
        self._checks_at_step = check_at_step
        self._allow_fp16 = allow_fp16
        self._ranks = None if group is None else Ranks(group, str(device))
        self._begin_process()

    def _begin_process(self) -> None:
        """Start without what belongs to one process or one iteration."""
        self._division_key = divided.new_key()
        self._folded: list[Any] = []  # optimizers whose fused step divides and clips
        self._iteration = 0  # for ranks: updates so far
        # The scale of the last scale(), once update() has changed it.
        self._loss_scale: Tensor | None = None
        # Whether update() has changed the scale on the CPU, and no loss has it yet.
        self._is_unread = False
        self._last_states: States = {}  # of the iteration before the last update()
        self._stepped_states: States = {}  # of the iteration of the last step()

    # ------------------------------------------------------------------------------ scale

    def _lazy_init_scale_growth_tracker(self, dev: torch.device) -> None:
        # Else update() could not write it, as an inference tensor.
        with torch.inference_mode(mode=False):
            super()._lazy_init_scale_growth_tracker(dev)

    def scale(self, outputs: Any) -> Any:
        """Multiply outputs by the loss scale.

        Args:
            outputs: A tensor of any shape, or nested iterables of tensors.

        Returns:
            The scaled tensors, with dtypes as in torch.

        Raises:
            ValueError: If `outputs` has an object that is neither a tensor nor an iterable.
        """
        self._loss_scale = None
        self._is_unread = False
        return super().scale(outputs)

    def loss_value(self, loss: Tensor) -> Tensor:
        """Return the unscaled loss: `loss` divided by the scale it was multiplied by.

        Correct after `update` too; waits for no device. In contrast,
        ``loss.item() / scaler.get_scale()`` is wrong if `update` has changed the scale.

        Args:
            loss: Result of the last `scale`, of any shape.

        Returns:
            Detached tensor of the same shape.
        """
        if not self._enabled or self._scale is None:
            return loss.detach()
        scale = self._scale if self._loss_scale is None else self._loss_scale
        return loss.detach() / copied(scale, loss.device)

    def _may_be_below_one(self) -> bool:
        """Return whether a division may overflow. On an accelerator the scale would be a wait."""
        scale = self._scale
        if scale is None or not scale.is_cpu:
            return self._min_scale < 1.0
        return not scale.item() >= 1.0

    # ---------------------------------------------------------------------------- unscale

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide the gradients by the loss scale in place, and record whether all were finite.

        Args:
            optimizer: Optimizer whose gradients to unscale.

        Raises:
            RuntimeError: If the gradients were already unscaled or stepped, or if a gradient that
                another optimizer shares was divided and then written.
            ValueError: If a gradient is float16 and `allow_fp16` is False.
        """
        if not self._enabled:
            return
        self._check_loss_scale(optimizer)
        super().unscale_(optimizer)
        self._mark_divided(optimizer)
        self._begin_to_agree(optimizer)

    def unscale_and_clip_(
        self, optimizer: Optimizer, max_norm: float | Tensor
    ) -> Tensor:
        """Unscale gradients and clip their total 2-norm, with one read of the gradients.

        Equivalent to `unscale_` and ``torch.nn.utils.clip_grad_norm_``. A fused optimizer does both
        multiplications in its step, also in a step by hand: until then ``.grad`` stays scaled.

        Args:
            optimizer: Optimizer whose gradients to unscale and clip.
            max_norm: Maximum norm, at least 0; ``math.inf`` does not clip. A tensor of one element
                is read at once.

        Returns:
            The norm of all unscaled gradients before the clip, shape (), float32.

        Raises:
            TypeError: If `max_norm` is no number.
            ValueError: If `max_norm` is NaN or negative.
            RuntimeError: If the gradients were already unscaled or stepped.
        """
        limit = check_max_norm(max_norm)
        if not self._enabled or self._divides_otherwise():
            self.unscale_(optimizer)
            params = collect.parameters(optimizer)
            return torch.nn.utils.clip_grad_norm_(params, limit)
        scale, _ = self._check_scale_growth_tracker("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise refusals.UNSCALED_TWICE.error()
        if state["stage"] is OptState.STEPPED:
            raise refusals.UNSCALED_LATE.error()
        self._check_loss_scale(optimizer)
        if self._undivided(optimizer) is not None:
            raise clip.divided_error()
        folds = fused.divides_by_grad_scale(optimizer)
        allow_fp16 = folds or self._allow_fp16
        groups = self._scaled_groups(optimizer, allow_fp16, sums=True)
        norm, found, divisor = clip.unscale_and_clip_(
            groups,
            scale,
            limit,
            folds=folds,
            may_be_below_one=self._may_be_below_one(),
        )
        state["found_inf_per_device"] = found
        state["stage"] = OptState.UNSCALED
        if divisor is None:
            self._mark_divided(optimizer)
        else:
            self._fold(optimizer, divisor, next(iter(found.values())))
        self._begin_to_agree(optimizer)
        return norm

    def _divides_otherwise(self) -> bool:
        """Return whether a client has replaced `_unscale_grads_`, of this class or of torch's."""
        divide: Any = self._unscale_grads_
        is_ours = getattr(divide, "__func__", None) is GradScaler._unscale_grads_
        return not is_ours or self._torchs_is_patched()

    def _torchs_is_patched(self) -> bool:
        """Return whether a client has replaced `_unscale_grads_` of torch's class."""
        inherited: Any = super()._unscale_grads_
        return inherited.__func__ is not _TORCHS_UNSCALE

    def _unscale_grads_(
        self,
        optimizer: Optimizer,
        inv_scale: Tensor,
        found_inf: Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, Tensor]:
        """Divide and check as torch does, but check what the optimizer will step with."""
        allow_fp16 = allow_fp16 or self._allow_fp16
        if self._torchs_is_patched():
            return super()._unscale_grads_(optimizer, inv_scale, found_inf, allow_fp16)
        rest = self._undivided(optimizer)
        groups = self._scaled_groups(optimizer, allow_fp16)
        below_one = self._may_be_below_one()
        return divided.divide_(
            optimizer, groups, inv_scale, rest=rest, below_one=below_one
        )

    def _undivided(self, optimizer: Optimizer) -> list[Tensor] | None:
        """Do `divided.undivided`, if another optimizer may have divided a gradient."""
        states = self._per_optimizer_states
        if len(states) == (id(optimizer) in states):
            return None
        for other in self._folded:
            if other is optimizer or states[id(other)]["stage"] is OptState.STEPPED:
                continue
            mine = set(map(id, collect.gradients(optimizer)))
            if not mine.isdisjoint(map(id, collect.gradients(other))):
                raise RuntimeError(
                    "a gradient that unscale_and_clip_ has left to another optimizer's fused step "
                    "would be divided twice: expected that step first; call scaler.step() with "
                    "that optimizer"
                )
        return divided.undivided(optimizer, self._division_key)

    def _mark_divided(
        self, optimizer: Optimizer, found_inf: Tensor | None = None
    ) -> None:
        record = _record(self._per_optimizer_states[id(optimizer)])
        plain = record.plain
        record.plain = None
        divided.mark(optimizer, self._division_key, found_inf=found_inf, plain=plain)

    def _check_loss_scale(self, optimizer: Optimizer) -> None:
        """Raise for gradients of a loss from before the last `update`, which changed the scale.

        There is no newer loss, and the optimizer has not stepped before that `update`.
        """
        if not self._is_unread:
            return
        state = self._last_states.get(id(optimizer))
        if state is None or state["stage"] is not OptState.STEPPED:
            raise loss_scale_error(self._loss_scale, self._scale)

    def _scaled_groups(
        self, optimizer: Optimizer, allow_fp16: bool, *, sums: bool = False
    ) -> Groups:
        """Group gradients that are still scaled; note what `_mark_divided` and a policy need."""
        params = collect.parameters(optimizer)
        groups = collect.group(params, allow_fp16=allow_fp16, sums=sums)
        record = _record(self._per_optimizer_states[id(optimizer)])
        record.plain = groups.plain
        if self._ranks is not None and not sums:
            groups = self._ranks.own_part(groups)
        if self._policy is not None:
            scale: Any = self._get_scale_async()
            record.largest = self._policy.largest(groups, scale)
        return groups

    def _fold(self, optimizer: Any, divisor: Tensor, flag: Tensor) -> None:
        """Leave the division to the next step of a fused optimizer, the scaler's or one by hand."""
        attributes = fused.attributes_of(optimizer)
        _record(self._per_optimizer_states[id(optimizer)]).folded = attributes
        own = attributes.grad_scale
        optimizer.grad_scale = divisor if own is None else own * divisor
        optimizer.found_inf = flag
        self._folded.append(optimizer)

    def _check_inf_per_device(self, optimizer: Optimizer) -> dict[Any, Tensor]:
        """Record whether gradients that a fused step will divide are finite before and after."""
        scale = self._scale
        if scale is None or self._divides_otherwise():
            # torch raises, or calls a client's `_unscale_grads_`.
            super()._check_inf_per_device(optimizer)
        else:
            groups = self._scaled_groups(optimizer, allow_fp16=True)
            found = FoundInf()
            if any(device.type == "cpu" for device, _ in groups):
                collect.lay_out_for_kernel(optimizer, plain=groups.plain)
            unscale.check(groups, found, scale if self._may_be_below_one() else None)
            self._per_optimizer_states[id(optimizer)]["found_inf_per_device"] = found
        self._begin_to_agree(optimizer)
        flag = self._make_one_flag(optimizer)
        return {flag.device: flag}

    # ------------------------------------------------------------------------------ flags

    def _begin_to_agree(self, optimizer: Optimizer) -> None:
        """Start the all-reduce of an optimizer's flags, with a group; `_join` waits for it."""
        if self._ranks is None:
            return
        state = self._per_optimizer_states[id(optimizer)]
        record = _record(state)
        flags = [*state["found_inf_per_device"].values()]
        scale: Any = self._get_scale_async()
        seen = self._iteration, scale, flags, record.largest
        begin = functools.partial(self._ranks.begin, optimizer, *seen)

        def begin_and_wait() -> Joined:
            return begin()()

        # If begin() raises, a loop that goes on must not step with this rank's flags alone: the
        # next look begins again, and raises again.
        record.join = begin_and_wait
        record.join = begin()

    def _join(self, state: dict[str, Any]) -> None:
        """Replace this rank's flags by what any rank found, if they are on their way."""
        record = _record(state)
        if record.join is None:
            return
        flag, amax = record.join()
        record.join = None
        home = next(iter(state["found_inf_per_device"]), flag.device)
        state["found_inf_per_device"] = {home: copied(flag, home)}
        if self._policy is not None:
            record.largest = amax

    def _make_one_flag(self, optimizer: Optimizer) -> Tensor:
        """Return one flag: a fused kernel skips if it is 1, and a sum over devices would be 2."""
        state = self._per_optimizer_states[id(optimizer)]
        self._join(state)
        found: dict[torch.device, Tensor] = state["found_inf_per_device"]
        if len(found) == 1:
            return next(iter(found.values()))
        scale: Any = self._get_scale_async()
        home = next(iter(found), scale.device)
        flag = largest_flag(found.values(), home)
        state["found_inf_per_device"] = {home: flag}
        return flag

    def _check_again(self, optimizer: Optimizer) -> None:
        """Check gradients that were unscaled: the loop may have written inf or NaN since."""
        state = self._per_optimizer_states[id(optimizer)]
        self._join(state)
        found = FoundInf(state["found_inf_per_device"])
        groups = collect.group(collect.parameters(optimizer), allow_fp16=True)
        if self._ranks is not None:
            groups = self._ranks.own_part(groups)
        unscale.check(groups, found)
        state["found_inf_per_device"] = found
        self._begin_to_agree(optimizer)

    # ------------------------------------------------------------------------------- step

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """Step the optimizer, or skip the step if any gradient is not finite.

        Unscales the gradients first if `unscale_` was not called.

        Args:
            optimizer: Optimizer to step.
            args: Positional arguments of ``optimizer.step``; no closure.
            kwargs: Keyword arguments of ``optimizer.step``.

        Returns:
            The result of ``optimizer.step``; None for a skipped step.

        Raises:
            RuntimeError: If the optimizer already stepped, or a closure is passed.
            AssertionError: If no gradient was checked, as in torch.
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if "closure" in kwargs or (args and callable(args[0])):
            raise refusals.CLOSURE.error()
        if fused.divides_by_grad_scale(optimizer):
            result = self._step_fused(optimizer, args, kwargs)
        else:
            looks = self._ranks is not None or self._checks_at_step
            # The step of a fused optimizer looks at the scaler itself.
            if looks and not fused.is_fused(optimizer):
                self._prepare(optimizer)
            result = super().step(optimizer, *args, **kwargs)
        self._stepped_states = states = self._per_optimizer_states
        _record(states[id(optimizer)]).optimizer = optimizer
        return result

    def _prepare(self, optimizer: Optimizer) -> None:
        """Do what torch's step does before it reads the flags, then join and check them."""
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.READY:
            self.unscale_(optimizer)
        elif state["stage"] is OptState.UNSCALED and self._checks_at_step:
            self._check_again(optimizer)
        self._join(state)

    def _step_fused(
        self, optimizer: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Step as torch does, without a look at the signature of each step."""
        self._check_scale_growth_tracker("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise refusals.STEPPED_TWICE.error()
        if state["stage"] is OptState.READY and self._undivided(optimizer) is not None:
            self.unscale_(optimizer)  # the kernel would divide some gradients again
        elif state["stage"] is OptState.UNSCALED and self._checks_at_step:
            self._check_again(optimizer)
        grad_scale = fused.attributes_of(optimizer).grad_scale
        is_scaled = state["stage"] is OptState.READY
        if is_scaled:
            self._check_loss_scale(optimizer)
            self._check_inf_per_device(optimizer)
        flag = self._make_one_flag(optimizer)
        if is_scaled:
            scale: Any = self._get_scale_async()
            grad_scale = scale.clone() if grad_scale is None else scale * grad_scale
        elif flag.is_cpu:
            collect.lay_out_for_kernel(optimizer)
        stepped_before = fused.count_states(optimizer)
        result = fused.step(optimizer, args, kwargs, fused.Attributes(grad_scale, flag))
        state["stage"] = OptState.STEPPED
        if fused.count_states(optimizer) > stepped_before and flag:
            fused.drop_states(optimizer, stepped_before)
        self._mark_divided(optimizer, flag)
        return result

    @property
    def last_step(self) -> StepReport:
        """Report of the newest iteration's steps: ``.skipped``, ``.skipped_by(optimizer)``.

        Correct for fused optimizers too. Nothing waits for a device until you read it.
        """
        steps = []
        for state in [*self._stepped_states.values()]:
            optimizer = _record(state).optimizer
            if optimizer is not None:
                flags = [*state["found_inf_per_device"].values()]
                steps.append((optimizer, flags))
        return StepReport(steps)

    # ----------------------------------------------------------------------------- update

    def update(self, new_scale: float | Tensor | None = None) -> None:
        """End the iteration: grow or back off the scale, or set it.

        Args:
            new_scale: Scale to set, copied at once; None updates the scale by what the steps found.

        Raises:
            AssertionError: If no gradient was checked in the iteration, as in torch.
            FloatingPointError: If ``on_min_scale="raise"`` and a step overflowed at ``min_scale``.
            TypeError: If `new_scale` is no number.
            ValueError: If `new_scale` is out of bounds.
        """
        if not self._enabled:
            return
        scale, tracker = self._check_scale_growth_tracker("update")
        before = scale.clone()
        states = self._per_optimizer_states
        if new_scale is not None:
            new_scale = self._check_new_scale(new_scale)
        else:
            self._join_all()
            flags = self._flags()
            if self._on_min_scale != "clamp":
                self._check_min_scale(before.item(), flags)
            if self._policy is None:
                self._merge_flags(flags)
            elif flags:  # else torch raises
                new_scale = self._policy_scale(self._policy, before.item(), flags)
        if self._interval_is_new:
            # torch's kernel compares by ==.
            tracker.clamp_(max=self._growth_interval - 1)
        try:
            super().update(new_scale)
        except BaseException:
            self._per_optimizer_states = states
            raise
        self._loss_scale = before if self._loss_scale is None else self._loss_scale
        scale.clamp_(self._min_scale, self._max_scale)
        if scale.is_cpu:
            self._is_unread = scale.item() != before.item()
        self._end_iteration(states)

    def _join_all(self) -> None:
        """Join the flags of each optimizer, also of one that was unscaled and not stepped."""
        if self._ranks is not None:
            for state in self._per_optimizer_states.values():
                self._join(state)

    def _flags(self) -> list[Tensor]:
        """Return the flags of all optimizers and devices."""
        flags: list[Tensor] = []
        for state in self._per_optimizer_states.values():
            flags += state["found_inf_per_device"].values()
        return flags

    def _policy_scale(
        self, policy: PolicyRun, scale: float, flags: list[Tensor]
    ) -> float:
        """Return the scale after an iteration with `scale`."""
        largest = []
        for state in self._per_optimizer_states.values():
            record = _record(state)
            if record.largest is not None:
                largest.append(record.largest)
        return policy.next_scale(any(flags), largest, scale)

    def _merge_flags(self, flags: list[Tensor]) -> None:
        """Give torch's `update` one flag: it adds several in place, and `last_step` has them."""
        if len(flags) > 1:
            home = flags[0].device
            found = {home: largest_flag(flags, home)}
            self._per_optimizer_states = {0: {"found_inf_per_device": found}}

    def _check_min_scale(self, scale: float, flags: list[Tensor]) -> None:
        if scale > self._min_scale or not any(flags):
            return
        text = (
            f"overflow at scale {scale!r}, which is min_scale: the scale cannot decrease further; "
            "the loss or the forward pass itself may overflow; lower the learning rate, clip "
            "gradients, or pass a lower min_scale"
        )
        if self._on_min_scale == "raise":
            raise FloatingPointError(text)
        warnings.warn(text, RuntimeWarning, stacklevel=3)

    def _end_iteration(self, states: States) -> None:
        self._division_key = divided.new_key()
        self._interval_is_new = False
        self._iteration += 1
        for optimizer in self._folded:  # a step by hand or none has left the attributes
            state = states[id(optimizer)]
            before = _record(state).folded
            if state["stage"] is OptState.UNSCALED and before is not None:
                fused.restore_attributes(optimizer, before)
        self._folded.clear()
        self._last_states = states

    def _check_new_scale(self, new_scale: Any) -> Any:
        """Return a scale as torch's `update` takes it."""
        if isinstance(new_scale, Tensor):
            is_number = new_scale.numel() == 1 and not new_scale.requires_grad
            if new_scale.device.type != self._device or not is_number:
                raise refusals.NEW_SCALE.error()
            if not new_scale.is_cpu:
                # Its value would be a wait: a number that is none keeps the scale, and the
                # bounds apply later.
                scale, _ = self._check_scale_growth_tracker("update")
                return torch.where(new_scale.isfinite(), new_scale, scale).reshape(())
        return check_scale("new_scale", new_scale, self._rule)

    def _check_constant(self, **changed: float) -> None:
        """Raise for a constant with which torch's kernel would compute nonsense."""
        if self._enabled:
            self._rule.replace(**changed)

    def set_growth_factor(self, new_factor: float) -> None:
        """Set the growth factor; ValueError unless it is at least 1."""
        self._check_constant(growth_factor=new_factor)
        super().set_growth_factor(new_factor)

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set the backoff factor; ValueError unless it is above 0 and at most 1."""
        self._check_constant(backoff_factor=new_factor)
        super().set_backoff_factor(new_factor)

    def set_growth_interval(self, new_interval: int) -> None:
        """Set the growth interval; ValueError unless it is at least 1."""
        self._check_constant(growth_interval=new_interval)
        super().set_growth_interval(new_interval)
        self._interval_is_new = True

    def get_scale(self) -> float:
        """Return the loss scale; waits for the device. 1.0 if disabled."""
        self._is_unread = False  # the loop may multiply a loss by it
        return super().get_scale()

    # ------------------------------------------------------------------- saving and loading

    def state_dict(self) -> dict[str, Any]:
        """Return the state as a dict; waits for the device.

        Returns:
            torch's five keys; with a policy also its name and its state. {} if disabled.
        """
        saved = super().state_dict()
        if saved and self._policy is not None:
            saved |= self._policy.state_dict()
        return saved

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load a state dict of this class or of torch's. A call that raises changes nothing.

        Args:
            state_dict: Result of `state_dict`. With a group, load equal dicts on all ranks.

        Raises:
            KeyError: If a key is missing.
            RuntimeError: If the dict is empty.
            TypeError: If a value has an invalid type.
            ValueError: If a value is out of bounds, or belongs to another policy.
        """
        if not self._enabled:
            return
        if state_dict:
            state_dict, _ = check_state_dict(state_dict, self._rule)
            if self._policy is not None:
                self._policy.load_state_dict(state_dict)
        if self._loss_scale is None and self._scale is not None:
            self._loss_scale = self._scale.clone()
        super().load_state_dict(state_dict)
        self._interval_is_new = True

    def __getstate__(self) -> dict[str, Any]:
        if self._ranks is not None:
            raise TypeError(
                "a scaler with a group cannot be pickled: expected group=None; "
                "save its state_dict() instead"
            )
        of_process = ("_folded", "_loss_scale", "_last_states", "_stepped_states")
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in of_process}

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self._begin_process()
