"""nnabla's DynamicLossScalingUpdater, one of its repeated attempts at a time."""

import contextlib
from collections.abc import Sequence
from typing import Any

from ampsim.peers.peer import Peer, Step


class _NextAttemptError(Exception):
    """The end of an update, before it tries the same batch again with a smaller scale."""


class Nnabla(Peer):
    """nnabla's scaler, whose update() repeats the iteration until it is finite, at most 101 times.

    An attempt is a step here: the data feeder, which is the caller's, ends the update where the next attempt begins,
    and the next step calls update() again, which is what update() does itself.
    """

    name = "nnabla"
    requirement = "nnabla==1.39.0"
    environment = "python310"
    target = "nnabla.experimental.mixed_precision_training.DynamicLossScalingUpdater"
    source = (
        "https://github.com/sony/nnabla/blob/v1.39.0/python/src/nnabla/experimental/mixed_precision_training.py#L16"
    )
    dialect = "nnabla.DynamicLossScalingUpdater"
    constants = {"scale": "init", "scaling_factor": "factor", "N": "interval"}

    def start(self, **constants: Any) -> None:
        from nnabla.experimental.mixed_precision_training import DynamicLossScalingUpdater

        self._attempts = 0
        self.scaler: Any = DynamicLossScalingUpdater(None, None, self._feed, **constants)

    def _feed(self) -> None:
        self._attempts += 1
        if self._attempts > 1:
            raise _NextAttemptError

    def get_scale(self) -> float:
        return float(self.scaler.scale)

    def scale_loss(self, loss: float) -> float:
        import nnabla as nn

        factor = nn.Variable.from_numpy_array(1.0).apply(need_grad=True)
        (factor * loss).apply(persistent=True).backward(self.scaler.scale)
        return float(factor.g)

    def step(self, scaled: Sequence[float]) -> Step:
        import nnabla as nn
        import numpy as np
        from nnabla import solvers
        from nnabla.function import PythonFunction

        class Prescribed(PythonFunction):  # type: ignore[misc]
            """A loss whose gradient is prescribed, whatever multiplies it."""

            @property
            def name(self) -> str:
                return "Prescribed"

            def min_outputs(self) -> int:
                return 1

            def setup_impl(self, inputs: Any, outputs: Any) -> None:
                outputs[0].reset_shape((), force=True)

            def forward_impl(self, inputs: Any, outputs: Any) -> None:
                outputs[0].data.zero()

            def backward_impl(self, inputs: Any, outputs: Any, propagate_down: Any, accum: Any) -> None:
                inputs[0].g = np.array(scaled, np.float32)

            def grad_depends_output_data(self, i: int, o: int) -> bool:
                return False

            def grad_depends_input_data(self, i: int, j: int) -> bool:
                return False

        used, self._attempts = self.get_scale(), 0
        param = nn.Variable.from_numpy_array(np.zeros(len(scaled), np.float32)).apply(need_grad=True)
        self.scaler.solver = solvers.Sgd(lr=1.0)
        self.scaler.solver.set_parameters({"param": param})
        self.scaler.loss = Prescribed(nn.get_current_context())(param)
        with contextlib.suppress(_NextAttemptError):
            self.scaler.update()
        stepped = self.scaler.solver.get_states()["param"].t > 0
        return Step(used, stepped, tuple((-param.d).tolist()) if stepped else None, self.get_scale())
