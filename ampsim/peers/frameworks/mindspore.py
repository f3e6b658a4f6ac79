"""MindSpore's three scalers: amp's class, the Cell of compiled training, and the manager that Model asks."""

from collections.abc import Sequence
from typing import Any

from ampsim.peers.peer import Peer, Step


class MindsporeAmp(Peer):
    """amp.DynamicLossScaler, by the calls of its own example; the step is its caller's."""

    name = "mindspore-amp"
    requirement = "mindspore==2.10.0"
    environment = "mindspore"
    target = "mindspore.amp.DynamicLossScaler"
    source = "https://gitee.com/mindspore/mindspore/blob/v2.10.0/mindspore/python/mindspore/amp.py#L325"
    dialect = "mindspore.amp.DynamicLossScaler"
    constants = {"scale_value": "init", "scale_factor": "factor", "scale_window": "interval"}

    def start(self, **constants: Any) -> None:
        from mindspore import amp

        self.scaler: Any = amp.DynamicLossScaler(
            **{"scale_value": 2.0**16, "scale_factor": 2, "scale_window": 2000, **_whole(constants)}
        )

    def get_scale(self) -> float:
        return float(self.scaler.scale_value.asnumpy())

    def scale_loss(self, loss: float) -> float:
        return float(self.scaler.scale(_tensor([loss])).asnumpy()[0])

    def step(self, scaled: Sequence[float]) -> Step:
        from mindspore import amp

        used = self.get_scale()
        (gradients,) = self.scaler.unscale((_tensor(scaled),))
        finite = amp.all_finite((gradients,))
        self.scaler.adjust(finite)
        return Step(used, None, tuple(gradients.asnumpy().tolist()) if finite else None, self.get_scale())

    def state_dict(self) -> object:
        return {name: getattr(self.scaler, name).asnumpy().item() for name in ("scale_value", "counter")}

    def load_state_dict(self, state: Any) -> None:
        for name, value in state.items():
            parameter = getattr(self.scaler, name)
            parameter.set_data(_tensor(value, parameter.dtype))


class MindsporeCell(Peer):
    """nn.DynamicLossScaleUpdateCell, which TrainOneStepWithLossScaleCell gives the scale and whether one overflowed."""

    name = "mindspore-cell"
    requirement = "mindspore==2.10.0"
    environment = "mindspore"
    target = "mindspore.nn.DynamicLossScaleUpdateCell"
    source = "https://gitee.com/mindspore/mindspore/blob/v2.10.0/mindspore/python/mindspore/nn/wrap/loss_scale.py#L88"
    dialect = "mindspore.nn.DynamicLossScaleUpdateCell"
    constants = {"loss_scale_value": "init", "scale_factor": "factor", "scale_window": "interval"}

    def start(self, **constants: Any) -> None:
        from mindspore import Parameter, nn

        self.scaler: Any = nn.DynamicLossScaleUpdateCell(
            **{"loss_scale_value": 2.0**16, "scale_factor": 2, "scale_window": 2000, **_whole(constants)}
        )
        self._scale = Parameter(_tensor(self.scaler.get_loss_scale()), name="scale_sense")

    def get_scale(self) -> float:
        return float(self._scale.asnumpy())

    def scale_loss(self, loss: float) -> float:
        return float((_tensor([loss]) * self._scale).asnumpy()[0])

    def step(self, scaled: Sequence[float]) -> Step:
        from mindspore import Tensor, amp

        used, finite = self.get_scale(), bool(amp.all_finite((_tensor(scaled),)))
        self.scaler(self._scale, Tensor(not finite))
        return Step(used, None, None, self.get_scale())


class MindsporeManager(Peer):
    """amp.DynamicLossScaleManager as a loop without data sinking asks it: for a scale, and with an overflow."""

    name = "mindspore-manager"
    requirement = "mindspore==2.10.0"
    environment = "mindspore"
    target = "mindspore.amp.DynamicLossScaleManager"
    source = (
        "https://gitee.com/mindspore/mindspore/blob/v2.10.0/mindspore/python/mindspore/train/loss_scale_manager.py#L122"
    )
    dialect = "mindspore.amp.DynamicLossScaleManager"
    constants = {"init_loss_scale": "init", "scale_factor": "factor", "scale_window": "interval"}

    def start(self, **constants: Any) -> None:
        from mindspore import amp

        self.scaler: Any = amp.DynamicLossScaleManager(**_whole(constants))

    def get_scale(self) -> float:
        return float(self.scaler.get_loss_scale())

    def scale_loss(self, loss: float) -> float:
        return float((_tensor([loss]) * _tensor(self.get_scale())).asnumpy()[0])

    def step(self, scaled: Sequence[float]) -> Step:
        from mindspore import amp

        used, finite = self.get_scale(), bool(amp.all_finite((_tensor(scaled),)))
        self.scaler.update_loss_scale(not finite)
        return Step(used, None, None, self.get_scale())


def _tensor(numbers: Any, dtype: Any = None) -> Any:
    import mindspore

    return mindspore.Tensor(numbers, dtype or mindspore.float32)


def _whole(constants: dict[str, Any]) -> dict[str, Any]:
    """Return constants with a factor such as 2.0 as the integer that MindSpore wants."""
    factor = constants.get("scale_factor", 2)
    return {**constants, "scale_factor": int(factor) if factor == int(factor) else factor}
