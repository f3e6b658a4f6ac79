"""Watch a training run: one line, and each step's scale, skip, true norm and exponents are on record.

``examples.md`` here has loops with torch, accelerate, Lightning, Weights & Biases and TensorBoard.

It knows torch, the probe and the file of a run. What is attached to whose scaler is in `attach`, what is read of the
gradients in `measure`, how it comes to the host and into the record in `run`, where records go in `sinks`.
"""

from ampsim.core.extras import needing as _needing

with _needing():
    from ampsim.watch.run import Run, watch

__all__ = ["Run", "watch"]
