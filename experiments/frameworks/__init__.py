"""Every framework whose loop is judged: its file here, and what is known to be broken in it.

One file per framework, which alone imports it. ``make(scaler)`` there is the framework's own loop
over the tiny model or data of `tiny`, ``batches`` is what it is fed.
"""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

SKIPPED, SCALE, SPLIT = (
    "skipped_step_changes_nothing",
    "gradients_do_not_depend_on_loss_scale",
    "micro_batches_equal_one_batch",
)


@dataclass(frozen=True)
class Framework:
    """A loop of a framework.

    Attributes:
        package: what it imports, which is also the name of its file here.
        expected: check -> why it is broken there, with a link.
        function: the name of its maker.
    """

    package: str
    expected: Mapping[str, str] = field(default_factory=dict)
    function: str = "make"

    @property
    def version(self) -> str | None:
        """The version that is installed, None for none."""
        return (
            importlib.metadata.version(self.package)
            if importlib.util.find_spec(self.package)
            else None
        )

    @property
    def make(self) -> Callable[[Any], Any]:
        """The maker of its loop; imports the framework."""
        return getattr(self._module, self.function)  # type: ignore[no-any-return]

    @property
    def batches(self) -> list[Any]:
        """What the loop is fed."""
        return self._module.batches  # type: ignore[no-any-return]

    @property
    def _module(self) -> Any:
        return importlib.import_module(f"experiments.frameworks.{self.package}")


_COUNTS = "global_step counts the skipped step, and is documented as the number of {}; no report was found"
_FUSED = (
    "a fused optimizer is called in a skipped step too, which is taken for a step, and the schedule goes on: "
    "https://github.com/huggingface/accelerate/issues/4242"
)
_TWO = (
    "each optimizer's step updates the scaler, which forgets that clipping has unscaled the second one's gradients and "
    "backs off twice: https://github.com/huggingface/accelerate/issues/439"
)
_SCHEDULE = (
    "the schedule goes on: https://github.com/Lightning-AI/pytorch-lightning/issues/5558; and "
    + _COUNTS.format("optimizer steps taken")
)
_CLIPPED = "self.clip_gradients clips what is still scaled: https://github.com/Lightning-AI/pytorch-lightning/issues/18089"
_EXAMPLE = (
    "its ImageNet example chooses params and opt_state by is_fin, "
    "but neither step nor batch_stats; no report was found"
)
FRAMEWORKS = {
    "torch": Framework("torch"),
    "accelerate": Framework("accelerate"),
    "accelerate, fused": Framework("accelerate", {SKIPPED: _FUSED}, "make_fused"),
    "accelerate, two optimizers": Framework(
        "accelerate", dict.fromkeys((SCALE, SPLIT), _TWO), "make_two"
    ),
    "lightning": Framework("lightning", {SKIPPED: _SCHEDULE}),
    "lightning, manual": Framework(
        "lightning",
        {SCALE: _CLIPPED, SKIPPED: _COUNTS.format("optimizer steps taken")},
        "make_manual",
    ),
    "transformers": Framework(
        "transformers", {SKIPPED: _COUNTS.format("update steps completed")}
    ),
    "transformers, fused": Framework("transformers", {SKIPPED: _FUSED}, "make_fused"),
    "flax": Framework("flax", {SKIPPED: _EXAMPLE}),
    "flax, nnx": Framework("flax", function="make_nnx"),
    "equinox": Framework("equinox"),
    "jmp": Framework("jmp"),
}
