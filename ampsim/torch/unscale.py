"""The only arithmetic on gradients: the non-finite check, the division by the scale, the norm and the clip.

torch reads and writes every gradient to unscale it, reads it for the norm, and reads and writes it to clip.
Unscaling and clipping are multiplications by numbers that are known before the optimizer runs, so with a
fused optimizer one read, for norm and check together, is enough: the rest is folded into ``grad_scale``.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.optim import Optimizer

Groups = dict[tuple[torch.device, torch.dtype], list[Tensor]]

SMALL = 1 << 14  # elements; below this a copy into one buffer is cheaper than a call of its own


def gradients(optimizer: Optimizer, *, allow_fp16: bool) -> Groups:
    """An optimizer's gradients by device and dtype; of a sparse one, its values.

    Raises ValueError, with torch's text, for a float16 gradient unless `allow_fp16`. Sparse float16 gradients
    are coalesced first: duplicates may overflow when they are added, and the check must see the sum.
    """
    groups: Groups = defaultdict(list)
    for group in optimizer.param_groups:
        for param in group["params"]:
            grad = param.grad
            if grad is None:
                continue
            if not allow_fp16 and grad.dtype == torch.float16:
                raise ValueError("Attempting to unscale FP16 gradients.")
            if grad.is_sparse:
                if grad.dtype is torch.float16:
                    param.grad = grad = grad.coalesce()
                grad = grad._values()  # noqa: SLF001 - uncoalesced values have no public name
            groups[grad.device, grad.dtype].append(grad)
    return groups


@torch.no_grad()
def check_and_unscale_(
    groups: Groups, inverse_on: Callable[[torch.device], Tensor], found_on: Callable[[torch.device], Tensor]
) -> None:
    """Multiply by the inverse scale in place; set found_inf (shape (), float32) to 1 if any was not finite.

    The check is of the gradients as they come in, that is scaled.
    """
    for (device, _), grads in groups.items():
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found_on(device), inverse_on(device))


def check(groups: Groups, found_on: Callable[[torch.device], Tensor]) -> None:
    """Set found_inf to 1 if any gradient is not finite; an inverse scale of 1 leaves them as they are."""
    check_and_unscale_(groups, lambda device: torch.ones((), device=device), found_on)


@torch.no_grad()
def largest(groups: Groups, device: torch.device) -> Tensor:
    """Max |g| over all gradients, shape (), float32, on `device`; NaN if any is NaN. One read."""
    peaks = [
        peak.to(device, torch.float32, non_blocking=True)
        for grads in groups.values()
        for peak in torch._foreach_norm([g for g in grads if g.numel()], float("inf"))  # noqa: SLF001
    ]
    return torch.stack(peaks).amax() if peaks else torch.zeros((), device=device)


@torch.no_grad()
def norm_and_check(groups: Groups, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """The unscaled 2-norm of all gradients, and 1.0 if any is not finite once unscaled, else 0.0; both (), float32.

    One read. If the sum of squares is finite, every gradient is. On the CPU a sum that overflowed, as it may
    when a gradient exceeds 2^64, is looked at again in float64; elsewhere that would be a wait, and the step
    is skipped although it might have been saved.
    """
    norms = [norm for grads in groups.values() for norm in _norms(grads)]
    total = torch.linalg.vector_norm(torch.stack([n.to(inverse.device, torch.float32) for n in norms]))
    norm = total * inverse
    if norm.device.type == "cpu" and not norm.isfinite():
        exact = [torch.linalg.vector_norm(g, dtype=torch.float64) for grads in groups.values() for g in grads]
        norm = (torch.linalg.vector_norm(torch.stack([n.cpu() for n in exact])) * inverse.double()).float()
        peak = largest(groups, inverse.device) * inverse
        return norm, (~peak.isfinite()).float()
    return norm, (~norm.isfinite()).float()


def _norms(grads: list[Tensor]) -> Iterable[Tensor]:
    if grads[0].device.type != "cpu":
        return torch._foreach_norm(grads)  # noqa: SLF001 - one launch for all of them
    small = [g.reshape(-1) for g in grads if g.numel() <= SMALL]
    # Last first: what is read last is still in the cache when the optimizer begins with the first.
    large = [torch.linalg.vector_norm(g) for g in reversed(grads) if g.numel() > SMALL]
    return [*large, torch.linalg.vector_norm(torch.cat(small))] if small else large


@torch.no_grad()
def multiply_(groups: Groups, factor_on: Callable[[torch.device], Tensor]) -> None:
    """Multiply every gradient in place."""
    for (device, _), grads in groups.items():
        torch._foreach_mul_(grads, factor_on(device))
