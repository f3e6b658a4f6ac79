"""TensorFlow's two scalers of before Keras 3: tf_keras' optimizer and tf.compat.v1's, which is the same rule apart."""

import base64
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ampsim.peers.peer import Peer, Step


class _Tracked(Peer):
    """A scaler that tf.train.Checkpoint saves, here as its files in base64."""

    scaler: Any

    def state_dict(self) -> object:
        import tensorflow as tf

        with tempfile.TemporaryDirectory() as folder:
            tf.train.Checkpoint(scaler=self.scaler).write(str(Path(folder, "saved")))
            return {path.name: base64.b64encode(path.read_bytes()).decode() for path in Path(folder).iterdir()}

    def load_state_dict(self, state: Any) -> None:
        import tensorflow as tf

        self._folder = tempfile.TemporaryDirectory()  # it is read again when more variables are made
        for name, text in state.items():
            Path(self._folder.name, name).write_bytes(base64.b64decode(text))
        tf.train.Checkpoint(scaler=self.scaler).read(str(Path(self._folder.name, "saved")))


class TfKeras(_Tracked):
    """tf_keras' optimizer, by the calls that a loop of one's own makes."""

    name = "tf-keras"
    requirement = "tf_keras==2.21.0"
    environment = "numpy2"
    target = "tf_keras.mixed_precision.LossScaleOptimizer"
    source = (
        "https://github.com/keras-team/tf-keras/blob/v2.21.0/tf_keras/src/mixed_precision/loss_scale_optimizer.py#L587"
    )
    dialect = "tf_keras.LossScaleOptimizer"
    constants = {"initial_scale": "init", "dynamic_growth_steps": "interval"}

    def start(self, **constants: Any) -> None:
        import tf_keras

        self._seen: list[Any] = []
        seen = self._seen

        class Noting(tf_keras.optimizers.legacy.SGD):  # type: ignore[misc]
            def _resource_apply_dense(self, grad: Any, var: Any, apply_state: Any = None) -> Any:
                seen.append(grad)
                return super()._resource_apply_dense(grad, var, apply_state)

        self.scaler = tf_keras.mixed_precision.LossScaleOptimizer(Noting(1.0), **constants)

    def get_scale(self) -> float:
        return float(self.scaler.loss_scale)

    def scale_loss(self, loss: float) -> float:
        import tensorflow as tf

        return float(self.scaler.get_scaled_loss(tf.constant(loss, tf.float32)))

    def step(self, scaled: Sequence[float]) -> Step:
        import tensorflow as tf

        used = self.get_scale()
        self.scale_loss(0.0)  # else it warns that the loss was not scaled
        self._seen.clear()
        gradients = self.scaler.get_unscaled_gradients([tf.constant(scaled, tf.float32)])
        self.scaler.apply_gradients(zip(gradients, [tf.Variable([0.0] * len(scaled))], strict=True))
        unscaled = tuple(self._seen[0].numpy().tolist()) if self._seen else None
        return Step(used, bool(self._seen), unscaled, self.get_scale())


class TensorflowV1(_Tracked):
    """tf.compat.v1's scaler, which its v1 optimizer wrapper asks what to do; the division is the wrapper's."""

    name = "tensorflow-v1"
    requirement = "tensorflow-cpu==2.21.0"
    environment = "numpy2"
    target = "tensorflow.compat.v1.mixed_precision.DynamicLossScale"
    source = (
        "https://github.com/tensorflow/tensorflow/blob/v2.21.0/tensorflow/python/training/experimental/loss_scale.py"
        "#L306"
    )
    dialect = "tf.compat.v1.mixed_precision.DynamicLossScale"
    constants = {"initial_loss_scale": "init", "increment_period": "interval", "multiplier": "factor"}

    def start(self, **constants: Any) -> None:
        import tensorflow as tf

        self.scaler = tf.compat.v1.mixed_precision.DynamicLossScale(**constants)

    def get_scale(self) -> float:
        return float(self.scaler())

    def scale_loss(self, loss: float) -> float:
        import tensorflow as tf

        return float(tf.constant(loss, tf.float32) * self.scaler())

    def step(self, scaled: Sequence[float]) -> Step:
        import tensorflow as tf

        used = self.get_scale()
        _, should_apply = self.scaler.update([tf.constant(scaled, tf.float32)])
        return Step(used, bool(should_apply), None, self.get_scale())
