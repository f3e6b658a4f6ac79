"""Can one training run be shared by two frameworks, and do their loss scalers stay equal to the last bit?

A small network on scikit-learn's digits in fp16. In the arm `torch to optax` torch computes the scaled gradients,
`ampsim.jax` unscales, checks and keeps the scale, and optax makes the update. In the arm `jax to torch` JAX computes
the gradients and torch's Adam steps under `ampsim.torch.GradScaler`. Tensors cross by DLPack without a copy. In both
arms the other framework's scaler is told found_inf and nothing else. After every update the two states must be
equal; the run ends with an error where they are not.

Device: cpu.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from ampsim import Rule
from ampsim.jax import LossScale, SkipState, interop, skip_nonfinite, to_jax, to_torch
from ampsim.records import Record
from ampsim.torch import GradScaler
from experiments import runner
from experiments.training import digits_data, fp16, series, tasks

REQUIRES = ("jax", "optax")
DEVICES = ("cpu",)  # the one device that both frameworks see


@dataclass(frozen=True)
class Config(runner.Config):
    steps: int = 1000  # optimizer steps per unit
    seeds: tuple[int, ...] = (0,)
    batch: int = 128  # images per step
    width: int = 64  # units of the hidden layer
    lr: float = 1e-3  # of Adam
    init_scale: float = 2.0**17
    growth_interval: int = 50  # so that there are growths and overflows


SMOKE = Config(steps=12, growth_interval=3, init_scale=2.0**24)


@dataclass(frozen=True)
class Arm:
    """Which framework computes the gradients; the other one steps."""

    gradients: str  # torch or jax


ARMS = {"torch to optax": Arm("torch"), "jax to torch": Arm("jax")}


def arms(config: Config) -> Mapping[str, Arm]:
    return ARMS


def inputs() -> dict[str, str]:
    return tasks.inputs("sigmoid")


def rule_of(config: Config) -> Rule:
    """Return torch's rule, with the floor that `ampsim.torch.GradScaler` has."""
    return Rule(config.init_scale, growth_interval=config.growth_interval, min_scale=2.0**-126)


def run(config: Config, arm: Arm, seed: int, device: str, tick: Callable[[int], None]) -> Record:
    """Train one arm with one seed; the columns are explained in `data/README.md`."""
    batches = fp16.prepare(seed)
    data = digits_data.load(device)
    model = nn.Sequential(
        nn.Linear(digits_data.PIXELS, config.width), nn.ReLU(), nn.Linear(config.width, digits_data.CLASSES)
    )
    side: Side = (TorchToOptax if arm.gradients == "torch" else JaxToTorch)(model, config)
    losses, scales, found_inf = [], [], []
    for step in range(config.steps):
        rows = torch.randint(digits_data.TRAIN, (config.batch,), generator=batches)
        scales.append(side.jax_scaler.state.scale)
        loss, found = side.step(data.train_x[rows], data.train_y[rows])
        require_equal(step, side)
        losses.append(loss)
        found_inf += [step] * found
        tick(step + 1)
    return {
        "loss": series.six_digits(losses[::10]),
        "scale_changes": series.changes(scales),
        "found_inf": found_inf,
        "equal": True,  # or require_equal had raised
        "torch_state": side.torch_scaler.state_dict(),
        "jax_state": as_torch(side.jax_scaler),
        "test_accuracy": accuracy(model, data),
    }


def as_torch(scaler: LossScale) -> dict[str, object]:
    """Return the JAX side's state in torch's five keys; the floor is the torch side's own."""
    return interop.to_torch_state_dict(scaler, elsewhere=("min_scale",))


def require_equal(step: int, side: "Side") -> None:
    """Raise unless both states are the same numbers."""
    ours, theirs = as_torch(side.jax_scaler), side.torch_scaler.state_dict()
    if ours != theirs:
        raise AssertionError(f"step {step}: JAX's scaler is at {ours}, torch's at {theirs}: expected the same")


@torch.no_grad()
def accuracy(model: nn.Module, data: digits_data.Digits) -> float:
    """Return the accuracy on the test images, in float32."""
    return float(f"{(model(data.test_x).argmax(dim=1) == data.test_y).float().mean().item():.6g}")


class Side:
    """A model with its parameters in torch, and two scalers, one of which follows the other."""

    def __init__(self, model: nn.Sequential, config: Config) -> None:
        self.model, self.config = model, config
        self.params = list(model.parameters())
        constants = {"init_scale": config.init_scale, "growth_interval": config.growth_interval}
        self.torch_scaler = GradScaler("cpu", **constants)  # type: ignore[arg-type]

    @property
    def jax_scaler(self) -> LossScale:
        raise NotImplementedError

    def step(self, x: Tensor, y: Tensor) -> tuple[float, bool]:
        """Make one step; return the true loss, and whether the step was skipped."""
        raise NotImplementedError


class TorchToOptax(Side):
    """Torch differentiates, optax steps, the scale lives in JAX."""

    def __init__(self, model: nn.Sequential, config: Config) -> None:
        super().__init__(model, config)
        optimizer = skip_nonfinite(optax.adam(config.lr), rule_of(config))
        self.update = jax.jit(optimizer.update)
        self.state: SkipState = optimizer.init(self.shared())
        self.flag = nn.Parameter(torch.zeros(()))  # what the following scaler sees of the gradients
        self.no_step = torch.optim.SGD([self.flag], lr=0.0)

    @property
    def jax_scaler(self) -> LossScale:
        return self.state.loss_scale

    def shared(self) -> list[jax.Array]:
        """Return the parameters, in torch's memory."""
        arrays: list[jax.Array] = to_jax([p.detach() for p in self.params])
        return arrays

    def step(self, x: Tensor, y: Tensor) -> tuple[float, bool]:
        with fp16.autocast("cpu", fp16=True):
            loss = cross_entropy(self.model(x), y)
        scale = to_torch(self.state.loss_scale.loss_scale)
        grads = to_jax(list(torch.autograd.grad(loss * scale, self.params)))
        updates, self.state = jax.block_until_ready(self.update(grads, self.state, self.shared()))  # type: ignore[no-untyped-call]
        with torch.no_grad():  # JAX is done with this memory
            for p, change in zip(self.params, to_torch(updates), strict=True):
                p.add_(change)
        found = not bool(self.state.finite)
        self.follow(found)
        return loss.item(), found

    def follow(self, found: bool) -> None:
        self.flag.grad = self.torch_scaler.scale(torch.tensor(float("inf") if found else 0.0))
        self.torch_scaler.step(self.no_step)
        self.torch_scaler.update()


class JaxToTorch(Side):
    """JAX differentiates, torch steps, the scale lives in torch."""

    def __init__(self, model: nn.Sequential, config: Config) -> None:
        super().__init__(model, config)
        self.optimizer = torch.optim.Adam(self.params, lr=config.lr, fused=True)
        self.follower = LossScale.create(rule_of(config))

    @property
    def jax_scaler(self) -> LossScale:
        return self.follower

    def step(self, x: Tensor, y: Tensor) -> tuple[float, bool]:
        scale = to_jax(self.torch_scaler.scale(torch.ones(())))
        grads, loss = gradients(to_jax(self.params), scale, to_jax(x), to_jax(y.int()))
        for p, grad in zip(self.params, to_torch(jax.block_until_ready(grads)), strict=True):  # type: ignore[no-untyped-call]
            p.grad = grad.clone()  # the optimizer may write to it, and JAX's arrays are constant
        self.torch_scaler.step(self.optimizer)
        self.torch_scaler.update()
        found = self.torch_scaler.last_step.skipped
        self.follower = follow(self.follower, found)
        return float(loss), found


def scaled_loss(params: list[jax.Array], scale: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return the scaled and the true cross-entropy of the same network, its matrix products in fp16."""
    w1, b1, w2, b2 = (p.astype(jnp.float16) for p in params)
    hidden = jax.nn.relu(x.astype(jnp.float16) @ w1.T + b1)
    logits = (hidden @ w2.T + b2).astype(jnp.float32)
    loss = -jnp.mean(jax.nn.log_softmax(logits)[np.arange(len(x)), y])
    return loss * scale, loss


gradients = jax.jit(jax.grad(scaled_loss, has_aux=True))
follow = jax.jit(LossScale.update)


if __name__ == "__main__":
    raise SystemExit(runner.main("interop"))
