"""Record the runs of a Lightning Trainer."""

from typing import Any

from ampsim.core.extras import needing
from ampsim.runs.record.watch import Run, watch

with needing():
    from lightning.pytorch import Callback


class RecordCallback(Callback):  # type: ignore[misc]  # mypy does not read lightning
    """Record each step of a Lightning Trainer, with the loss.

    The process of rank 0 writes the file.

    For example::

        Trainer(precision="16-mixed", callbacks=[RecordCallback("run.jsonl")]).fit(module, data)

    Args:
        to: Destination, see `ampsim.runs.watch`.
        options: Other arguments of `watch`, e.g. ``sample_every=10``.
    """

    def __init__(self, to: Any, **options: Any) -> None:
        self._to, self._options = to, options
        self._run: Run | None = None

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Start recording, once the optimizers exist."""
        if trainer.is_global_zero:
            scaler = getattr(trainer.precision_plugin, "scaler", None)
            first = {"first_step": trainer.global_step} if trainer.global_step else {}
            options = first | self._options
            self._run = watch(
                pl_module, trainer.optimizers, scaler, to=self._to, **options
            )

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        """Log the loss, which is not yet scaled."""
        if self._run is not None:
            self._run.log(loss=loss)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Write the remaining records and close the file."""
        if self._run is not None:
            self._run.close()
            self._run = None
