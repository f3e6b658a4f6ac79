"""Unscale, clip, and step one optimizer within one ticket."""

import functools
import inspect
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from ampsim.core.machine import Rule
from ampsim.core.policies import Policy
from ampsim.core.torch_model import refusals
from ampsim.torch.gradients import collect, unscale
from ampsim.torch.gradients.collect import Groups, PlainGroups
from ampsim.torch.gradients.unscale import FoundInf
from ampsim.torch.state.version import AnyVersion
from ampsim.torch.step.ranks import Ranks
from ampsim.torch.step.records import Record, Stage

T = TypeVar("T")
_OPTIM = torch.optim.__path__[0]  # where torch's own steps are
_HOOKS_OF_ALL = (_global_optimizer_pre_hooks, _global_optimizer_post_hooks)
_NO_SCALER = "  Its step is handed no grad_scaler: expected a backward pass before it; run that before scaler.step()."
Args = tuple[Any, ...]  # of the optimizer's own step
Kwargs = dict[str, Any]


def is_fused(optimizer: Optimizer) -> bool:
    """Return whether the optimizer's kernel divides by ``grad_scale`` and skips on ``found_inf``.

    One that wants the scaler itself, as ``step(grad_scaler=...)``, does not: torch stopped recommending that,
    and here its gradients are unscaled before its step, as those of other optimizers.
    """
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return False
    step = getattr(
        type(optimizer), "step", None
    )  # one that is set on the optimizer is as new as it
    return not (
        _wants_scaler(step) if callable(step) else _wants_scaler.__wrapped__(optimizer.step)
    )


@functools.lru_cache(maxsize=64)
def _wants_scaler(step: Callable[..., object]) -> bool:
    wants = "grad_scaler" in inspect.signature(step).parameters
    if wants:
        warnings.warn(
            f"{step.__qualname__} takes grad_scaler: it gets gradients that are unscaled, and no scaler; expected one "
            "that divides nothing then, by a scale that it was told elsewhere either; else use its class without "
            "scaling of its own",
            RuntimeWarning,
            stacklevel=2,
        )
    return wants


class Overrides(NamedTuple):
    """A subclass's methods in place of torch's private ones: ``_unscale_grads_`` and ``_maybe_opt_step``."""

    unscale_grads_: (
        Callable[[Optimizer, Tensor, Tensor, bool], dict[torch.device, Tensor]] | None
    ) = None
    maybe_opt_step: Callable[..., object] | None = (
        None  # of the optimizer and its step's own arguments
    )


class Means(NamedTuple):
    """The part that is the same for all steps of one scaler."""

    exact_torch: (
        bool  # check gradients scaled only, so that at a scale below 1 a step with inf is possible
    )
    allow_fp16: bool
    ranks: Ranks | None  # that must know what was found before any steps


@dataclass(eq=False, slots=True)
class OptimizerStep:
    """One optimizer's way through one ticket, for the thread that holds its record."""

    ticket: int  # its number
    version: AnyVersion
    record: Record
    rule: Rule | Policy
    means: Means
    overrides: Overrides
    show: (
        Callable[[], None] | None
    )  # the gradients to observers, before they are divided or checked

    def divide_gradients(self) -> None:
        """Divide all gradients by the scale, and note whether all were finite."""
        self._unscaling(self._divide)

    def divide_and_clip(self, max_norm: float | Tensor) -> Tensor:
        """Unscale and clip in one read; with a fused optimizer the multiplication is left to its kernel.

        Returns the unscaled 2-norm before clipping, shape (), float32.
        """
        if self.overrides.unscale_grads_:
            raise RuntimeError(
                "unscale_and_clip_ would not call the _unscale_grads_ that was overridden: expected torch's own; call "
                "unscale_ and torch.nn.utils.clip_grad_norm_"
            )
        return self._unscaling(partial(self._divide_and_clip, max_norm))

    def take(self, args: Args, kwargs: Kwargs, *, divides: bool = True) -> object:
        """Step the optimizer, or skip it; divide its gradients before, unless that was done or its kernel does it.

        And unless not `divides`: a subclass's `unscale_` has had them, and torch does not ask what it did.
        """
        record = self.record
        record.check_steppable()
        if is_fused(record.optimizer):
            result = self._take_fused(args, kwargs)
        else:
            if divides and record.stage is Stage.READY:
                self.divide_gradients()
            result = self._take_plain(args, kwargs)
        record.stage = Stage.STEPPED
        return result

    def _unscaling(self, work: Callable[[], T]) -> T:
        """Move on to UNSCALED by `work`, or back to the beginning if it fails."""
        record = self.record
        record.check_unscalable()
        if record.found_inf:  # by `check`, or by hand
            record.found_inf = FoundInf()
        if self.show:
            self.show()
        try:
            result = work()
            if self.means.ranks:
                self._tell_ranks()
            record.stage = Stage.UNSCALED
        except BaseException:
            record.forget()
            raise
        return result

    def _gradients(
        self, *, allow_fp16: bool, sums: bool = False, uncoalesced: list[Tensor] | None = None
    ) -> Groups:
        """Group the gradients, after a policy's look at them."""
        groups = collect.gradients(
            self.record.optimizer, allow_fp16=allow_fp16, sums=sums, uncoalesced=uncoalesced
        )
        groups = self.means.ranks.own_part(groups) if self.means.ranks and not sums else groups
        if self.version.observes:
            self.record.observed = self.version.observe(self.rule, groups)
        return groups

    def _tell_ranks(self) -> None:
        if ranks := self.means.ranks:
            ranks.begin_to_agree(
                self.record, self.ticket, joins_amax="amax" in getattr(self.rule, "needs", ())
            )

    def check(self) -> FoundInf:
        """Note whether all gradients, still scaled, are finite; return the flags."""
        self._check(self._gradients(allow_fp16=True))
        return self.record.found_inf

    def _check(self, groups: Groups, *, is_stepped: bool = False) -> None:
        self.record.found_inf = self._check_for_kernel(groups, is_stepped)
        self._tell_ranks()

    def _divide(self) -> None:
        version, means, found = self.version, self.means, self.record.found_inf
        overridden = self.overrides.unscale_grads_ is not None
        uncoalesced: list[Tensor] = []
        groups = self._gradients(allow_fp16=means.allow_fp16 or overridden, uncoalesced=uncoalesced)
        if not means.exact_torch:
            collect.check_separate(groups)
        if overridden:
            found |= self._by_override(version.inverse_on(version.device), means.allow_fp16)
            self.record.found_inf = found  # which it may have written too
            if not means.exact_torch and version.may_be_below_one:
                unscale.check(groups, found)  # a finite gradient may have left its format just now
        elif means.exact_torch:
            unscale.check_and_multiply_(groups, version.inverse_on, found)
        else:
            unscale.multiply_and_check_(
                groups, version.inverse_on, found, below_one=version.may_be_below_one
            )
        for grad in (
            () if means.exact_torch else uncoalesced
        ):  # the optimizer adds its duplicates up
            unscale.check({(grad.device, grad.dtype): [grad.coalesce().values()]}, found)

    def _divide_and_clip(self, max_norm: float | Tensor) -> Tensor:
        fused, version = is_fused(self.record.optimizer), self.version
        groups = self._gradients(allow_fp16=fused or self.means.allow_fp16, sums=True)
        if not groups:
            return torch.zeros(())
        home = next(iter(groups))[0]
        on_host = home.type == version.device.type == "cpu"
        if on_host and fused and not isinstance(max_norm, Tensor) and max_norm > 0:
            norm = self._fold_on_host(groups, max_norm, home)
            if norm is not None:
                return norm
        norm, self.record.found_inf[home] = unscale.norm_and_check(groups, version.inverse_on(home))
        self._note_narrow(groups, math.inf if isinstance(max_norm, Tensor) else max_norm)
        if isinstance(max_norm, Tensor):
            max_norm = max_norm.to(home, torch.float32, non_blocking=home.type != "cpu")
            self.record.found_inf.join((~(max_norm >= 0)).float())
        # torch's clip: g * min(1, max_norm / (norm + 1e-6)), here in one product with 1 / scale
        clip = (max_norm / (norm + 1e-6)).clamp(max=1.0)
        if fused:
            self.record.folded = version.scale_on(home) / clip
        else:
            collect.check_separate(groups)
            factor = version.inverse_on(home) * clip
            unscale.multiply_(groups, lambda device: unscale.copied(factor, device))
        return norm

    def _fold_on_host(self, groups: Groups, max_norm: float, home: torch.device) -> Tensor | None:
        """Do `divide_and_clip` with Python's numbers; None where they would be a wait, or do not suffice.

        Right after a read of all gradients nothing else is in the cache, and each operation on a tensor takes 10 us.
        """
        scale = self.version.read().scale
        number = unscale.norm_on_host(groups, scale)
        if number is None:
            return None
        divisor = scale / min(1.0, max_norm / (number + 1e-6))
        self.record.folded = torch.tensor(divisor, dtype=torch.float32, device=home)
        self.record.found_inf[home] = torch.zeros((), device=home)
        return torch.tensor(number, dtype=torch.float32, device=home)

    def _by_override(self, inverse: Tensor, allow_fp16: bool) -> FoundInf:
        """Divide and check by the method of a subclass, called as torch calls it."""
        override, found_inf = self.overrides.unscale_grads_, torch.zeros_like(inverse)
        assert override is not None  # noqa: S101 - for the type checker
        return FoundInf(override(self.record.optimizer, inverse, found_inf, allow_fp16))

    def _note_narrow(self, groups: Groups, max_norm: float) -> None:
        """Note gradients that leave a format narrower than float32: their norm does not tell.

        A clipped gradient is at most `max_norm`, so that only a clip to more than the format holds needs another
        read.
        """
        narrow = {key: grads for key, grads in groups.items() if max_norm > torch.finfo(key[1]).max}
        if narrow and self.version.may_be_below_one:
            unscale.check_unscaled(narrow, self.version.scale_on, self.record.found_inf)

    def _take_plain(self, args: Args, kwargs: Kwargs) -> object:
        """Call ``optimizer.step`` unless a flag is set. Reads the flags: waits for their devices."""
        found, optimizer = self.record.found_inf, self.record.optimizer
        if not found:
            why = _NO_SCALER if getattr(optimizer, "_step_supports_amp_scaling", False) else ""
            raise AssertionError(refusals.NOTHING_CHECKED.text + why)
        if self.overrides.maybe_opt_step:
            return self.overrides.maybe_opt_step(optimizer, *args, **kwargs)
        return (
            None
            if sum([flag.item() for flag in found.values()])
            else optimizer.step(*args, **kwargs)
        )

    def _take_fused(self, args: Args, kwargs: Kwargs) -> object:
        """Hand scale and flag to the optimizer's kernel. Waits only where the optimizer has no state yet."""
        record, scale = self.record, self.record.folded
        if record.stage is Stage.READY:
            if self.show:
                self.show()
            groups = self._gradients(allow_fp16=True)
            self._check(groups, is_stepped=True)
            scale = self.version.scale_on(record.home)
        else:
            self._lay_out({device.type for device in record.found_inf})
        state = getattr(self.record.optimizer, "state", None)
        state = (
            state if isinstance(state, dict) else {}
        )  # what is none of torch's optimizers may have none
        had_state = len(state)
        result = _call_fused(record.optimizer, scale, record, args, kwargs)
        if not self.means.exact_torch and len(state) > had_state:
            self._drop_if_skipped(state, list(state)[had_state:])
        return result

    def _lay_out(self, kinds: set[str], *, are_plain: bool = False) -> None:
        """Lay gradients out as torch's kernel on the CPU reads them, where some may be there; others see strides."""
        if not kinds or "cpu" in kinds:
            collect.lay_out_for_kernel(self.record.optimizer, are_plain=are_plain)

    def _drop_if_skipped(self, state: dict[Any, Any], made: list[Any]) -> None:
        """Drop the state of these parameters, which a step has just made, if its kernel skipped. Waits for the flags.

        torch's fused SGD allocates its momentum, the kernel leaves it as it is, and the next step would take what the
        memory held for the momentum.
        """
        if any(flag.item() for flag in self.record.found_inf.values()):
            for param in made:
                del state[param]

    def _check_for_kernel(self, groups: Groups, is_stepped: bool) -> FoundInf:
        found = FoundInf()
        if is_stepped:
            self._lay_out(
                {device.type for device, _ in groups}, are_plain=isinstance(groups, PlainGroups)
            )
        if self.overrides.unscale_grads_:
            return self._by_override(torch.ones((), device=self.version.device), allow_fp16=True)
        if self.means.exact_torch:
            unscale.check_and_multiply_(groups, unscale.ones_on, found)
        elif (
            self.version.may_be_below_one and self.record.stage is Stage.READY
        ):  # else they are divided
            unscale.check_unscaled(groups, self.version.scale_on, found)
        else:
            unscale.check(groups, found)
        return found


def _call_fused(
    optimizer: Any, scale: Tensor | None, record: Record, args: Args, kwargs: Kwargs
) -> object:
    """Call ``optimizer.step`` with ``grad_scale`` and ``found_inf`` set; leave nothing behind, even if it raises."""
    theirs = {
        name: getattr(optimizer, name)
        for name in ("grad_scale", "found_inf")
        if hasattr(optimizer, name)
    }
    own = theirs.get("grad_scale")
    optimizer.grad_scale = own if scale is None else scale if own is None else scale * own
    optimizer.found_inf = _flag(optimizer, record)
    try:
        result: object = optimizer.step(*args, **kwargs)
    except BaseException:
        del optimizer.grad_scale, optimizer.found_inf
        for name, value in theirs.items():
            setattr(optimizer, name, value)
        raise
    del optimizer.grad_scale, optimizer.found_inf
    return result


def _is_read_by_torch_alone(optimizer: Any) -> bool:
    """Return whether torch's step is the only reader of the flag: no client hook or step sees it."""
    if not type(optimizer).__module__.startswith("torch.optim."):
        return False
    own = vars(optimizer).get("step")  # torch's schedules count calls by one of theirs
    is_torchs = _is_torchs(type(optimizer).step) if own is None else _is_torchs.__wrapped__(own)
    hooks = (
        optimizer._optimizer_step_pre_hooks,  # noqa: SLF001
        optimizer._optimizer_step_post_hooks,  # noqa: SLF001
        *_HOOKS_OF_ALL,
    )
    return is_torchs and not any(hooks)


@functools.lru_cache(maxsize=64)
def _is_torchs(step: Any) -> bool:
    """Return whether a step is torch's own, without wrappers of clients."""
    while getattr(getattr(step, "__code__", None), "co_filename", "").startswith(_OPTIM):
        step = getattr(step, "__wrapped__", None)
    return step is None


def _flag(optimizer: Optimizer, record: Record) -> Tensor | None:
    """Return one flag for the kernel, shape (), float32; or None where it is known to be 0 and None will do.

    torch's own optimizers take None, and then do not subtract the flag from the step count of every parameter.
    """
    home, flags = record.home, list(record.found_inf.values())
    if home.type == "cpu" and _is_read_by_torch_alone(optimizer) and not any(flags):
        return None
    if len(flags) == 1:
        return flags[0]
    # Kernels compare the flag with 1, so a sum over devices must not make it 2.
    on_home = [unscale.copied(flag, home) for flag in flags]
    return torch.stack(on_home).amax() if flags else torch.zeros((), device=home)
