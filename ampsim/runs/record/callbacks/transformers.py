"""Record the runs of a transformers Trainer."""

from typing import Any

from ampsim.core.extras import needing
from ampsim.runs.record.watch import Run, watch

with needing():
    from transformers import TrainerCallback


class RecordCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Record each step of a Trainer. The process of rank 0 writes the file.

    The values that the Trainer logs, e.g. ``loss`` and ``learning_rate``, are added to the step
    that has just ended. ``loss`` is the Trainer's: an average over the steps since the last log. A
    resumed run continues at its step.

    For example::

        Trainer(model, args, train_dataset=data, callbacks=[RecordCallback("run.jsonl")]).train()

    Args:
        to: Destination, see `ampsim.runs.watch`.
        options: Other arguments of `watch`, e.g. ``sample_every=10``.
    """

    def __init__(self, to: Any, **options: Any) -> None:
        self._to, self._options = to, options
        self._run: Run | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Start recording."""
        if state.is_world_process_zero:
            first = {"first_step": state.global_step} if state.global_step else {}
            options = first | self._options
            self._run = watch(
                parts["model"], parts["optimizer"], to=self._to, **options
            )

    def on_log(
        self,
        args: Any,
        state: Any,
        control: Any,
        logs: dict[str, Any] | None = None,
        **parts: Any,
    ) -> None:
        """Add the logged values to the last step, except those that each record has."""
        if self._run is not None:
            names = ("loss", "learning_rate", "eval_loss")
            self._run.log(
                **{name: (logs or {})[name] for name in names if name in (logs or {})}
            )

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Write the remaining records and close the file."""
        if self._run is not None:
            self._run.close()
            self._run = None
