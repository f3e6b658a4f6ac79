"""Check the training of a transformers Trainer."""

from contextlib import ExitStack
from typing import Any

from ampsim.core.extras import needing
from ampsim.testing.script_checks.block import Checked, checked

with needing():
    from transformers import TrainerCallback


class CheckCallback(TrainerCallback):  # type: ignore[misc]  # mypy does not read transformers
    """Check what a Trainer does, see `ampsim.testing.checked`.

    Example::

        Trainer(model, args, train_dataset=data, callbacks=[CheckCallback()]).train()

    Args:
        options: Arguments of `checked`.

    Attributes:
        found: The results, once the training has ended; None before it starts.
    """

    def __init__(self, **options: Any) -> None:
        self.found: Checked | None = None
        self._options, self._block = options, ExitStack()

    def on_train_begin(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Start to record."""
        self.found = self._block.enter_context(checked(**self._options))

    def on_train_end(self, args: Any, state: Any, control: Any, **parts: Any) -> None:
        """Run the checks; raise AssertionError for findings, unless ``raises=False`` was passed."""
        self._block.close()
