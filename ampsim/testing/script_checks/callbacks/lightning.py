"""Check the training of a Lightning Trainer."""

from contextlib import ExitStack
from typing import Any

from ampsim.core.extras import needing
from ampsim.testing.script_checks.block import Checked, checked

with needing():
    from lightning.pytorch import Callback


class CheckCallback(Callback):  # type: ignore[misc]  # mypy does not read lightning
    """Check what a Lightning Trainer does, see `ampsim.testing.checked`.

    Example::

        Trainer(precision="16-mixed", callbacks=[CheckCallback()]).fit(module, data)

    Args:
        options: Arguments of `checked`.

    Attributes:
        found: The results, once the training has ended; None before it starts.
    """

    def __init__(self, **options: Any) -> None:
        self.found: Checked | None = None
        self._options, self._block = options, ExitStack()

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Start to record."""
        self.found = self._block.enter_context(checked(**self._options))

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Run the checks; raise AssertionError for findings, unless ``raises=False`` was passed."""
        self._block.close()
