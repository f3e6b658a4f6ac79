"""Ways to read all gradients, and to make a whole step with them, side by side: what `experiments.kernels` times."""

import contextlib
import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from types import ModuleType
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.utils import clip_grad_norm_

from ampsim.torch import GradScaler
from ampsim.torch.gradients import kernels, unscale
from experiments.timing import roundpipe
from experiments.timing.clocks import Work
from experiments.timing.shapes import shapes

MAX_NORM = 1.0
Scaler = torch.amp.GradScaler | GradScaler
NO_CLIP = 1e30
OURS, THEIRS, BARE = "ours", "torch", "bare"


class Way(NamedTuple):
    words: int  # an element that it has to move
    work: Work


@dataclass
class Model:
    """Parameters with gradients, their optimizer, and a loss to be scaled."""

    size: str  # as in `shapes`
    dtype: torch.dtype
    device: str

    def __post_init__(self) -> None:
        made = (torch.randn(shape, device=self.device).to(self.dtype) for shape in shapes(self.size))
        self.params = [nn.Parameter(values) for values in made]
        for p in self.params:
            p.grad = torch.randn_like(p)
        self.grads: list[Tensor] = [p.grad for p in self.params if p.grad is not None]
        self.optimizer = torch.optim.AdamW(self.params, lr=1e-4, fused=True)
        self.loss = torch.ones((), device=self.device)

    def restorer(self) -> Work:
        """Return what puts the gradients back in place; what a step has made of the parameters stays."""
        source = [grad.clone() for grad in self.grads]
        return lambda: torch._foreach_copy_(self.grads, source)

    def norm(self) -> float:
        """Return the norm of all gradients, in float64."""
        norms = [torch.linalg.vector_norm(grad, dtype=torch.float64) for grad in self.grads]
        return float(torch.linalg.vector_norm(torch.stack(norms)))


@contextlib.contextmanager
def replaced(module: ModuleType, **values: object) -> Iterator[None]:
    """Replace some of a module's names for a while."""
    before = {name: getattr(module, name) for name in values}
    vars(module).update(values)
    try:
        yield
    finally:
        vars(module).update(before)


def without_triton(work: Work) -> Work:
    """Return the same work with torch's own kernels."""

    def plain() -> object:
        with replaced(unscale, KERNEL_DEVICES=set()):
            return work()

    return plain


# ------------------------------------------------------------------------------------------------ reading gradients


def reads(model: Model) -> dict[str, Way]:
    """Return ways to the norm, to the check, or to both; all leave the gradients as they were."""
    grads, one, found = model.grads, model.loss, torch.zeros((), device=model.device)
    groups = {(grads[0].device, grads[0].dtype): grads}

    def check_and_unscale() -> None:
        torch._amp_foreach_non_finite_check_and_unscale_(grads, found, one)

    def unscale_then_clip() -> None:
        check_and_unscale()
        clip_grad_norm_(model.params, NO_CLIP)

    ways = {
        "ours, without Triton": Way(1, without_triton(lambda: unscale.norm_and_check(groups, one))),
        "foreach_norm, isfinite": Way(1, lambda: norm_of(grads).isfinite()),
        "torch: check and unscale": Way(2, check_and_unscale),
        "torch: clip_grad_norm_": Way(3, lambda: clip_grad_norm_(model.params, NO_CLIP)),
        "torch: unscale, then clip": Way(5, unscale_then_clip),
    }
    return {OURS: Way(1, lambda: kernels.norm_and_flag(grads, one)), **ways} if kernels.takes(grads) else ways


def norm_of(grads: list[Tensor]) -> Tensor:
    """Return the norm as torch's clip takes it."""
    norm: Tensor = torch.linalg.vector_norm(torch.stack(list(torch._foreach_norm(grads))))  # noqa: SLF001
    return norm


def norm_errors(model: Model) -> dict[str, float]:
    """Return the relative errors of three ways to the norm, against float64."""
    norms = {"clip_grad_norm_": clip_grad_norm_(model.params, NO_CLIP), "foreach_norm": norm_of(model.grads)}
    if kernels.takes(model.grads):
        norms[OURS] = kernels.norm_and_flag(model.grads, model.loss).norm
    exact = model.norm()
    return {name: float(f"{abs(norm.double().item() / exact - 1):.2g}") for name, norm in norms.items()}


def tried(model: Model, tiles: tuple[tuple[int, int], ...]) -> dict[str, Work]:
    """Return our read with other tiles and warps."""
    if not kernels.takes(model.grads):
        return {}
    return {f"{block} elements, {warps} warps": read_with(model.grads, block, warps) for block, warps in tiles}


def read_with(grads: list[Tensor], block: int, warps: int) -> Work:
    """Return `norm_and_flag` with two of its constants replaced; its tiles are sent at its first call."""
    tiles, made = kernels._tiles.__wrapped__, {}  # noqa: SLF001

    def keep(*key: object) -> object:
        if key not in made:
            made[key] = tiles(*key)
        return made[key]

    def work() -> object:
        options = {**kernels.OPTIONS, "num_warps": warps}
        with replaced(kernels, BLOCK=block, OPTIONS=options, _tiles=keep):
            return kernels.norm_and_flag(grads)

    return work


# ------------------------------------------------------------------------------------------------------ whole steps


def steps(model: Model) -> dict[str, Way]:
    """Return ways to a step that unscales and clips; `bare` does neither. Each has a scaler of its own, in use."""
    theirs, ours = torch.amp.GradScaler(model.device), GradScaler(model.device)
    ways = {
        BARE: Way(7, model.optimizer.step),
        THEIRS: Way(12, lambda: step_with(theirs, model)),
        OURS: Way(9, lambda: step_with(ours, model)),
        "ours: unscale, then clip": Way(12, lambda: step_with(ours, model, in_one_read=False)),
        "ours, without Triton": Way(9, without_triton(lambda: step_with(ours, model))),
    }
    if importlib.util.find_spec("roundpipe") is not None:
        ways["roundpipe"] = Way(12, on_roundpipe(model))
    return ways


def step_with(scaler: Scaler, model: Model, *, in_one_read: bool = True) -> None:
    scaler.scale(model.loss)
    unscale_clip_and_step(scaler, model, in_one_read=in_one_read)
    scaler.update()


def unscale_clip_and_step(scaler: Scaler, model: Model, *, in_one_read: bool = True) -> None:
    """Step with ours in one read, if wished, and with anyone else's scaler in torch's way."""
    if in_one_read and isinstance(scaler, GradScaler):
        scaler.unscale_and_clip_(model.optimizer, MAX_NORM)
    else:
        scaler.unscale_(model.optimizer)
        clip_grad_norm_(model.params, MAX_NORM)
    scaler.step(model.optimizer)


def on_roundpipe(model: Model) -> Work:
    """Return a step with RoundPipe's scaler, loaded at the first call, so that a failure is this way's alone."""
    loaded: list[tuple[roundpipe.RoundPipe, Scaler]] = []

    def work() -> None:
        if not loaded:
            peer = roundpipe.load()
            assert peer is not None  # noqa: S101 - it is installed
            loaded.append((peer, peer.scaler()))
        step_on_thread(*loaded[0], model)

    return work


def step_on_thread(peer: roundpipe.RoundPipe, scaler: Scaler, model: Model) -> None:
    """Step as RoundPipe's loop does, but raise an error here: on RoundPipe's thread it would end the process."""
    errors: list[Exception] = []

    def work() -> None:
        try:
            unscale_clip_and_step(scaler, model)
        except Exception as error:
            errors.append(error)

    scaler.scale(model.loss)
    peer.launch(work)
    peer.synchronize()
    if errors:
        raise errors[0]
    scaler.update()
    peer.synchronize()
