"""How checks drive a scaler: with torch's methods, on a parameter of three elements.

A reproducer contains this class, so it needs only torch.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch

Constants = dict[str, Any]  # of a rule
Flags = list[bool]  # found_inf of each iteration
Scales = list[float]  # of iterations


def sgd(*shape: int, value: float = 0.0, **options: Any) -> tuple[Any, Any]:
    """Return a parameter with this value in each element, and its optimizer; ``lr`` is 1."""
    param = torch.nn.Parameter(torch.full(shape, value))
    return param, torch.optim.SGD([param], **{"lr": 1.0, **options})


def gradient(scale: float, overflows: bool) -> torch.Tensor:
    """Return a scaled gradient, shape (3,), with an inf if it overflows."""
    return torch.tensor([scale, scale, math.inf if overflows else scale])


class ScalerAdapter:
    """Drives one scaler in one example of a check.

    Attributes:
        make: Makes a fresh scaler with these constants, as far as it supports them.
        construct: Makes a fresh scaler with exactly these constants, for which it may raise.
        traits: Declared differences of the scaler.
    """

    def __init__(self, make: Callable[..., Any], traits: Any) -> None:
        self.make, self.construct, self.traits = make, make, traits
        self.param, self.optimizer = sgd(
            3, value=1.0, lr=0.125, momentum=0.9, foreach=False
        )

    # -------------------------------------------------------------------------------- iterations

    def loss_scale(self, scaler: Any) -> float:
        """Return the factor by which the scaler multiplies a loss."""
        return float(scaler.scale(torch.ones(())))

    def iterate(
        self, scaler: Any, *found_inf: bool, optimizers: Sequence[Any] = ()
    ) -> float:
        """Run one iteration of the adapter's optimizer and return its loss scale.

        With `optimizers`, which have one parameter each, run them all, with a flag for each.
        """
        optimizers = optimizers or [self.optimizer]
        scale = float(scaler.scale(torch.ones(())))
        for optimizer, overflows in zip(optimizers, found_inf):
            (param,) = optimizer.param_groups[0]["params"]
            param.grad = gradient(scale, overflows)
        for optimizer in optimizers:
            scaler.step(optimizer)
        scaler.update()
        return scale

    def iterate_each(self, scaler: Any, found_inf: Iterable[bool]) -> Scales:
        """Run one iteration per flag and return their loss scales."""
        return [self.iterate(scaler, overflows) for overflows in found_inf]

    def run(self, scaler: Any, found_inf: Sequence[bool]) -> Scales:
        """Return the loss scale of each iteration, and of the one after them; a delay is removed."""
        delay = self.traits.delay
        used = self.iterate_each(scaler, [*found_inf, *[False] * delay])
        return [*used, self.loss_scale(scaler)][delay:]

    def applied(
        self,
        scaler: Any,
        gradients: Sequence[float],
        fused: bool = False,
        unscales: bool = False,
    ) -> Scales:
        """Return the gradients that an optimizer gets in one iteration, of these scaled gradients."""
        weights, optimizer = sgd(len(gradients), fused=fused)
        scaler.scale(torch.ones(()))
        weights.grad = torch.tensor(gradients)
        if unscales:
            scaler.unscale_(optimizer)
        scaler.step(optimizer)
        scaler.update()
        moved: Scales = (-weights).tolist()
        return moved

    def assert_scales(
        self,
        scaler: Any,
        found_inf: Sequence[bool],
        expected: Sequence[float],
        rounding: float = 0.0,
    ) -> None:
        """Check the loss scale of each iteration, and of the one after them, up to a relative
        error.
        """
        for overflows, due in zip([*found_inf, False], expected):
            scale = self.iterate(scaler, overflows)
            same = math.isclose(scale, due, rel_tol=rounding)
            assert same, f"the scale is {scale}, expected {due}"

    # ------------------------------------------------------------------------------ more scalers

    @property
    def overflows_per_binade(self) -> int:
        """Overflows that divide the scale by 2^16: one with that backoff factor, 16 with a fixed
        1/2.
        """
        return 16 if "factors" in self.traits.unsupported else 1

    def fallen_to(self, scale: float) -> Any:
        """Return a scaler that overflows have led to this scale, if they can."""
        scaler = self.make(init_scale=1.0, backoff_factor=2.0**-16)
        left = 9 * self.overflows_per_binade
        while self.loss_scale(scaler) > scale and left:
            with suppress(*self.traits.gives_up):
                self.iterate(scaler, True)
            left -= 1
        return scaler

    def ready_to_step(self) -> Any:
        """Return a scaler whose optimizer has finite gradients and may be stepped."""
        scaler = self.make(growth_interval=3)
        self.param.grad = torch.full((3,), self.loss_scale(scaler))
        return scaler

    # ------------------------------------------------------------------------------ observations

    def trained_bits(self) -> str:
        """Return every bit of the parameter and of the optimizer's state."""
        state = self.optimizer.state.get(self.param, {})
        tensors = [self.param, *state.values()]
        return repr([each.tolist() for each in tensors])

    @contextmanager
    def raises(self, scaler: Any, expected: str) -> Iterator[None]:
        """Check that the body raises, a drop-in torch's exception, and that it changes nothing."""
        before = self._bits(scaler)
        try:
            yield
        except Exception as error:
            same = repr(error) == expected or not self.traits.drop_in
            assert same, f"it raised {error!r}, expected {expected}"
        else:
            raise AssertionError(
                f"it was accepted, expected it to raise torch's {expected}"
            )
        same = self._bits(scaler) == before
        assert same, "it raised, but gradients or the scale changed"

    def _bits(self, scaler: Any) -> list[str]:
        grad = str(self.param.grad)
        return [repr(scaler.get_scale()), self.trained_bits(), grad]

    # ----------------------------------------- the reference: `Example` and a reproducer answer

    def expected_scales(self, *args: Any, **kwargs: Any) -> Scales:
        """Return what the reference state machine says, see `reference.scales`."""
        raise NotImplementedError

    def expected_calls(self, *args: Any, **kwargs: Any) -> Sequence[Any]:
        """Return what each call should do, see `reference.calls`."""
        raise NotImplementedError

    def backed_off_scale(self) -> float:
        """Return the scale after an overflow of a new scaler of growth interval 3."""
        return self.expected_scales([True], growth_interval=3)[-1]

    def assert_backs_off(self, scaler: Any, due: float) -> None:
        """Update, and check the scale, if it has no delay."""
        scaler.update()
        scale = self.loss_scale(scaler)
        same = scale == due or self.traits.delay
        assert same, f"the scale is {scale}, expected {due}"
