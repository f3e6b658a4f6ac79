"""The asynchronous scaler with RoundPipe's constructor."""

import sys
from concurrent.futures import Executor
from typing import Any

from ampsim.torch.async_scaler import AsyncGradScaler, Launch
from ampsim.torch.optimizer_thread import OptimizerThread


class GradScaler(AsyncGradScaler):
    """Drop-in replacement for ``roundpipe.GradScaler``: `AsyncGradScaler` with depth 1.

    `scale` uses the scale after all updates but the last, `update` returns at once, and `unscale_`
    and `step` run on the optimizer's thread.

    Args:
        init_scale: Initial loss scale, a positive factor within the bounds.
        growth_factor: Factor of a growth; above 1.
        backoff_factor: Factor of a backoff; above 0 and below 1.
        growth_interval: Number of consecutive finite steps before a growth; at least 1.
        enabled: If False, all methods pass their inputs through.
        depth: Number of updates by which the scale may lag; at least 0.
        executor: Where the optimizer runs, as in `AsyncGradScaler`. Default: RoundPipe's optimizer
            stream if RoundPipe is imported, else a new `OptimizerThread`.
        options: Other keywords of `AsyncGradScaler`.

    Attributes:
        executor: Where the optimizer runs.
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
        executor: OptimizerThread | Executor | Launch | None = None,
        **options: Any,
    ) -> None:
        stream = sys.modules.get("roundpipe.optim_stream")
        if executor is None and enabled:
            executor = (
                OptimizerThread() if stream is None else stream.launch_optim_kernel
            )
        self.executor = executor
        numbers = (init_scale, growth_factor, backoff_factor, growth_interval, enabled)
        super().__init__("cpu", *numbers, depth=depth, executor=executor, **options)

    @property
    def enabled(self) -> bool:
        """RoundPipe's name for `is_enabled`."""
        return self.is_enabled()
