"""The scaler with RoundPipe's constructor: depth 1, and RoundPipe's optimizer stream if it is imported."""

import sys
from typing import Any

from ampsim.torch.grad_scaler import GradScaler as AnyDepth
from ampsim.torch.threads.launcher import Launch
from ampsim.torch.threads.optimizer_thread import shared_thread


class GradScaler(AnyDepth):
    """Drop-in for ``roundpipe.GradScaler``.

    `scale` uses the scale after all updates but the last, `update` returns at once, and `unscale_` and `step` run on
    the optimizer stream. In addition to RoundPipe's methods, it has `state_dict`, pickling, `loss_value`, `last_step`,
    and all keywords of `ampsim.torch.GradScaler`; errors reach the caller instead of ending the process.

    Args:
        init_scale: Initial loss scale, as RoundPipe's.
        growth_factor: Factor of a growth, as RoundPipe's.
        backoff_factor: Factor of a backoff, as RoundPipe's.
        growth_interval: Number of consecutive finite steps before a growth, as RoundPipe's.
        enabled: If False, all methods pass their inputs through.
        launch: Function that runs another function on the optimizer's thread, in order. Default: RoundPipe's stream if
            RoundPipe is imported, else `ampsim.torch.threads.optimizer_thread.shared_thread`, as in `Pipelined`.
    """

    def __init__(
        self,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
        *,
        depth: int = 1,
        launch: Launch | None = None,
        **more: Any,
    ) -> None:
        numbers = (init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        if launch is None and enabled:
            launch = optimizer_stream()
        super().__init__("cpu", *numbers, depth=depth, launch=launch, **more)
        if not self.is_enabled():  # torch's getters then know nothing, RoundPipe's what was given
            self.set_growth_factor(growth_factor)
            self.set_backoff_factor(backoff_factor)
            self.set_growth_interval(growth_interval)

    @property
    def enabled(self) -> bool:
        """RoundPipe's name for `is_enabled`."""
        return self.is_enabled()


def optimizer_stream() -> Launch:
    """Return RoundPipe's ``launch_optim_kernel`` if RoundPipe is imported, else ``launch`` of our thread."""
    theirs = sys.modules.get("roundpipe.optim_stream")
    if theirs is not None:
        return theirs.launch_optim_kernel  # type: ignore[no-any-return]
    return shared_thread().launch
