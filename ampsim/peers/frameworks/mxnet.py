"""MXNet's scaler, inside a gluon Trainer."""

from collections.abc import Sequence
from typing import Any

from ampsim.peers.peer import Peer, Step


class Mxnet(Peer):
    """mxnet.contrib.amp's scaler, which Trainer.step asks; its constants are attributes that no call sets."""

    name = "mxnet"
    requirement = "mxnet==1.9.1"
    environment = "numpy1"
    target = "mxnet.contrib.amp.loss_scaler.LossScaler"
    source = "https://github.com/apache/mxnet/blob/1.9.1/python/mxnet/contrib/amp/loss_scaler.py#L26"
    dialect = "mxnet.contrib.amp.LossScaler"
    constants = {"_loss_scale": "init", "_scale_seq_len": "interval", "_max_loss_scale": "max_loss_scale"}
    patched = "the constants are set as attributes, which MXNet offers no other way for"

    def start(self, **constants: Any) -> None:
        from mxnet.contrib.amp.loss_scaler import LossScaler

        self.scaler: Any = LossScaler()
        if "_loss_scale" in constants:
            constants["_next_loss_scale"] = constants["_loss_scale"]
        vars(self.scaler).update(constants)
        if self.get_scale() > self.scaler._max_loss_scale:  # noqa: SLF001
            raise NotImplementedError("MXNet keeps its scale at its largest or below")

    def get_scale(self) -> float:
        return float(self.scaler.loss_scale)

    def scale_loss(self, loss: float) -> float:
        import mxnet

        trainer, _ = self._trainer([0.0])
        with mxnet.contrib.amp.scale_loss(mxnet.nd.array([loss]), trainer) as scaled:
            return float(scaled.asscalar())

    def step(self, scaled: Sequence[float]) -> Step:
        import mxnet

        used = self.get_scale()
        trainer, param = self._trainer(scaled)
        with mxnet.contrib.amp.scale_loss(mxnet.nd.array([0.0]), trainer):
            pass  # notes the scale that the gradients will be divided by
        trainer.update(1)
        stepped = trainer._optimizer.num_update > 0  # noqa: SLF001
        return Step(used, stepped, tuple((-param.data().asnumpy()).tolist()) if stepped else None, self.get_scale())

    def _trainer(self, gradients: Sequence[float]) -> tuple[Any, Any]:
        """Return a Trainer of SGD over one parameter with these gradients, as amp.init_trainer leaves it."""
        import mxnet

        param = mxnet.gluon.Parameter("weight", shape=(len(gradients),))
        param.initialize(mxnet.init.Zero())
        with mxnet.autograd.record():
            loss = (param.data() * 0).sum()
        loss.backward()
        param.grad()[:] = mxnet.nd.array(gradients)
        sgd = mxnet.optimizer.SGD(learning_rate=1.0, wd=0.0)
        trainer = mxnet.gluon.Trainer([param], sgd, kvstore=None)
        trainer._amp_loss_scaler, trainer._amp_original_scale = self.scaler, trainer._scale  # noqa: SLF001
        return trainer, param
