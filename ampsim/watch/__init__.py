"""Record the loss scale, skip flag, gradient norm, and sampled exponents of each training step.

``examples.md`` has training loops with torch, accelerate, Lightning, Weights & Biases, and TensorBoard.

Modules: `attach` hooks into a scaler or optimizers, `measure` reads gradients, `run` builds the records, and `sinks`
writes them.
"""

from ampsim.core.extras import needing as _needing

with _needing():
    from ampsim.watch.run import Run, watch

__all__ = ["Run", "watch"]
