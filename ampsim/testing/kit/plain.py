"""The same bench in numpy, where torch is not installed: for a scaler that works on arrays."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]


def loss() -> np.float32:
    """Return a loss of 1."""
    return np.float32(1.0)


class Parameter:
    """An array and its gradient."""

    def __init__(self) -> None:
        self.value = np.ones(3, np.float32)
        self.momentum = np.zeros(3, np.float32)
        self.grad: Array | None = None


class SGD:
    """Gradient descent with momentum."""

    def __init__(self, params: list[Parameter]) -> None:
        self.param_groups = [{"params": params}]
        self.calls = 0

    def step(self) -> None:
        """Move every parameter that has a gradient."""
        self.calls += 1
        for param in self.param_groups[0]["params"]:
            if param.grad is not None:
                param.momentum = np.float32(0.9) * param.momentum + param.grad
                param.value = param.value - np.float32(0.125) * param.momentum


class Bench:
    """An optimizer, the parameters it owns, and how often it was called."""

    def __init__(self) -> None:
        self.params = [Parameter()]
        self.optimizer = SGD(self.params)

    @property
    def calls(self) -> int:
        """How often the optimizer was called."""
        return self.optimizer.calls

    def put(self, value: float, bad: float | None = None) -> None:
        """Set every element of every gradient to `value`, and the last of the last parameter's to `bad`."""
        for param in self.params:
            param.grad = np.full_like(param.value, value)
        if bad is not None:
            self.grad(-1)[-1] = bad

    def grad(self, index: int = 0) -> Array:
        """Return the gradient of a parameter that has one."""
        grad = self.params[index].grad
        assert grad is not None  # noqa: S101
        return grad

    def held(self) -> list[object]:
        """Return every bit of parameters and optimizer state."""
        return [bits(each) for param in self.params for each in (param.value, param.momentum)]

    def finite(self) -> bool:
        """Return whether every parameter is finite."""
        return all(bool(np.isfinite(param.value).all()) for param in self.params)


def bits(value: object) -> object:
    """Return an array as its bytes, and any other value as it is."""
    return value.tobytes() if isinstance(value, np.ndarray) else value
