"""torch.optim.Adam and AdamW by kernels of ours, in the place of torch's; all else of their step is torch's own."""

import functools
import warnings
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim import Optimizer

from ampsim.torch.gradients.collect import Groups
from ampsim.torch.gradients.unscale import KERNEL_DEVICES, copied, triton_kernels
from ampsim.torch.step.known_group import KnownGroup, Read

if TYPE_CHECKING:
    from ampsim.torch.gradients.adam import Addresses, Tensors

T = TypeVar("T")
Lists = tuple[list[Tensor], ...]  # what `_init_group` fills: see `FusedStep._stepped`

KINDS = (torch.optim.Adam, torch.optim.AdamW)
_adam = functools.cache(partial(import_module, "ampsim.torch.gradients.adam"))  # and Triton, for nothing else needs it


class FusedStep:
    """The step of Adam and AdamW in eight words per element: unscale, check, norm, clip and update in two launches.

    Guarantees:
        * State tensors, state dict, hooks, closures' refusal and schedulers are torch's: its ``step`` is called, and
          makes the state; only what it would hand to its kernel goes to ours.
        * Float32 parameters, with gradients in float32, float16 or bfloat16.
        * A skipped step changes no bit of parameters, moments or step counts. Nothing waits for the device.
        * Where ours cannot step, torch's kernel does, and a RuntimeWarning says why, once per reason.

    Differs from torch's kernel:
        * ``.grad`` stays as the backward pass left it, scaled and unclipped: to write it is the ninth word.
        * Rounding: none known, float32 in torch's order of operations, with powers that torch makes. In Triton's
          interpreter the bits are those of torch's formula, with powers that are rounded from float64.

    torch's kernel for the CPU takes its powers and betas in float64. From that ours was at most 2 ulp and 2.3e-5 lr
    away per step, with betas up to 0.9999, and torch's CUDA arithmetic is as far.

    Assumes that one thread steps an optimizer at a time, as the scaler does, and that step counts are written by
    operations that torch counts: what ``state["step"].data`` is written is not seen.
    """

    def __init__(self) -> None:
        self._told: set[str] = set()
        self._known: WeakKeyDictionary[Any, list[KnownGroup]] = WeakKeyDictionary()  # by optimizer

    def tell_of(self, optimizer: Optimizer) -> bool:
        """Tell whether an optimizer is left to torch whatever its tensors are, and warn of it once."""
        why = _of_other_kind(optimizer)
        if why:
            self._tell(why)
        return why is not None

    def _tell(self, why: str) -> None:
        if why not in self._told:
            self._told.add(why)
            warnings.warn(f"fused_step=True, but {why}; torch's own kernels step it", RuntimeWarning, stacklevel=2)

    def takes(self, optimizer: Optimizer, groups: Groups) -> bool:
        """Tell whether `kernels.check` can read all gradients for a step by ours; warn where it cannot."""
        if _of_other_kind(optimizer):
            return False
        why = _elsewhere(next(iter(groups))[0])
        if not why:
            why = _adam().why_not_check(groups)
        if why:
            self._tell(why)
        return not why

    def within(self, step: Callable[[], T], optimizer: Any, read: "Read | None") -> T:
        """Return what `step` returns, which calls the optimizer's own; in that our kernel steps each group that it can.

        `read` are its gradients as the check read them, where they were plain; they may have been replaced since.
        """
        if self.tell_of(optimizer):
            return step()
        begin = 0  # of the group's gradients among those that were read

        def init_group(group: dict[str, Any], *lists: list[Tensor]) -> bool:
            nonlocal begin
            part = read and read.part(begin, begin + len(group["params"]))
            if self._stepped_again(optimizer, group, part):
                begin += len(group["params"])
                return False
            has_complex: bool = type(optimizer)._init_group(optimizer, group, *lists)  # noqa: SLF001
            begin += len(lists[1])
            if lists[0] and self._stepped(optimizer, group, lists):
                for each in lists:
                    each.clear()  # torch's kernel gets nothing
            return has_complex

        optimizer._init_group = init_group  # noqa: SLF001 - where torch's step gathers what it hands to its kernel
        try:
            return step()
        finally:
            del optimizer._init_group  # noqa: SLF001

    def _stepped_again(self, optimizer: Any, group: dict[str, Any], read: "Read | None") -> bool:
        """Step a group that is known by our kernel; False if it is not, or cannot be stepped now."""
        for known in self._known.get(optimizer, ()):
            if known.group is group and (now := known.again(optimizer, read)):
                return not _options_of(group) and known.step(partial(self._launched, optimizer, group, *now))
        return False

    def _stepped(self, optimizer: Any, group: dict[str, Any], lists: Lists) -> bool:
        """Step one group by our kernel; False where it cannot."""
        params, grads, exp_avgs, exp_avg_sqs, _, steps = lists
        if why := _options_of(group) or _elsewhere(params[0].device):
            self._tell(why)
            return False
        adam = _adam()
        tensors = adam.Tensors([*grads], [*params], [*exp_avgs], [*exp_avg_sqs], [*steps])
        if why := adam.why_not_step(tensors):
            self._tell(why)
            return False
        addresses = adam.Addresses.of(tensors)
        if self._launched(optimizer, group, tensors, addresses) is None:
            return False
        known = [each for each in self._known.get(optimizer, ()) if each.group is not group]
        if KnownGroup.fits(group, tensors):
            known.append(KnownGroup(optimizer, group, tensors, addresses))
        self._known[optimizer] = known
        return True

    def _launched(
        self,
        optimizer: Any,
        group: dict[str, Any],
        tensors: "Tensors",
        addresses: "Addresses",
        counts: Tensor | None = None,
    ) -> Tensor | None:
        """Launch the step of tensors that are known to be right; return their counts, None in a capture of others."""
        adam, device = _adam(), tensors.params[0].device
        (beta1, beta2), decoupled = group["betas"], group["decoupled_weight_decay"]
        chosen = adam.Hyperparameters(
            group["lr"], beta1, beta2, group["eps"], group["weight_decay"], decoupled, group["maximize"]
        )
        found_inf, divisor = optimizer.found_inf, optimizer.grad_scale
        found_inf = torch.zeros((), device=device) if found_inf is None else copied(found_inf, device)  # None: known
        divisor = None if divisor is None else copied(divisor, device)
        try:
            counts = adam.step(tensors, found_inf, divisor, chosen, addresses, counts)
        except triton_kernels().NewAddressesError:  # a graph's own gradients: torch's kernel takes addresses by value
            return None
        # As torch's kernel does; the backward pass looks at it.
        increment_version([*tensors.params, *tensors.exp_avgs, *tensors.exp_avg_sqs])
        return counts


def _of_other_kind(optimizer: Any) -> str | None:
    """Say why the kernels cannot step an optimizer."""
    name = type(optimizer).__name__
    if type(optimizer) not in KINDS:
        return f"{name} is none of torch.optim.Adam and AdamW, subclasses not included"
    if not getattr(optimizer, "_step_supports_amp_scaling", False):
        return f"{name} was made without fused=True"
    if "_init_group" in vars(optimizer) or not hasattr(type(optimizer), "_init_group"):
        return f"{name} has no _init_group of torch's to be called from"
    return None


def _options_of(group: dict[str, Any]) -> str | None:
    """Say which option of a parameter group the kernel does not have."""
    for name in ("amsgrad", "differentiable"):
        if group[name]:
            return f"{name}={group[name]!r}: expected False"
    if any(isinstance(number, Tensor) for number in (group["lr"], *group["betas"])):
        return "lr or betas is a tensor: expected numbers"
    return None


def _elsewhere(device: torch.device) -> str | None:
    """Say why the kernels do not run on a device, without Triton where nothing else needs it."""
    if device.type in KERNEL_DEVICES:
        try:
            if _adam().available(device):
                return None
        except triton_kernels().NewAddressesError:
            return "it is first stepped in the capture of a CUDA graph: expected a step before it"
    return f"its gradients are on {device}: expected CUDA, with Triton"
