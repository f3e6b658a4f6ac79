"""Every framework whose loop is judged here: its file, what installs it, and what is known to be broken there."""

import importlib
import importlib.metadata
import importlib.util
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

CLIENTS = "pip install -c constraints.txt 'ampsim[clients]'"
PEERS = "pip install -c constraints.txt 'ampsim[peers]'"
SKIPPED, SCALE = "skipped_step_never_happened", "scale_is_invisible"
RESUME, SPLIT = "resume_is_invisible", "splitting_is_invisible"


@dataclass(frozen=True)
class Framework:
    """A loop of a framework.

    Attributes:
        package: what it imports, which is also the name of its file here.
        install: the command that installs it.
        expected: law -> why it is broken there, with a link; strict, as in `check_loop`.
        function: the name of its maker.
    """

    package: str
    install: str = CLIENTS
    expected: Mapping[str, str] = field(default_factory=dict)
    function: str = "make"

    @property
    def version(self) -> str | None:
        """The version that is installed, None for none."""
        return importlib.metadata.version(self.package) if importlib.util.find_spec(self.package) else None

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
        return importlib.import_module(f"ampsim.testing.loop.adapters.{self.package}")


_COUNTS = "global_step counts the skipped step, and is documented as the number of {}; no report was found"
_FUSED = (
    "a fused optimizer is called in a skipped step too, which is taken for a step, and the schedule goes on: "
    "https://github.com/huggingface/accelerate/issues/4242"
)
_TWO = (
    "each optimizer's step updates the scaler, which forgets that clipping has unscaled the second one's gradients and "
    "backs off twice: https://github.com/huggingface/accelerate/issues/439"
)
FRAMEWORKS = {
    "torch": Framework("torch", "pip install -c constraints.txt 'ampsim[torch]'"),
    "accelerate": Framework("accelerate"),
    "accelerate, fused": Framework("accelerate", expected={SKIPPED: _FUSED}, function="make_fused"),
    "accelerate, two optimizers": Framework(
        "accelerate", expected=dict.fromkeys((SCALE, SPLIT), _TWO), function="make_two"
    ),
    "lightning": Framework(
        "lightning",
        expected={
            SKIPPED: "the schedule goes on: https://github.com/Lightning-AI/pytorch-lightning/issues/5558; and "
            + _COUNTS.format("optimizer steps taken")
        },
    ),
    "lightning, manual": Framework(
        "lightning",
        expected={
            SCALE: "self.clip_gradients clips what is still scaled: "
            "https://github.com/Lightning-AI/pytorch-lightning/issues/18089",
            SKIPPED: _COUNTS.format("optimizer steps taken"),
        },
        function="make_manual",
    ),
    "transformers": Framework("transformers", expected={SKIPPED: _COUNTS.format("update steps completed")}),
    "transformers, fused": Framework("transformers", expected={SKIPPED: _FUSED}, function="make_fused"),
    "flax": Framework(
        "flax",
        PEERS,
        {
            SKIPPED: "its ImageNet example chooses params and opt_state by is_fin, but neither step nor batch_stats; "
            "no report was found"
        },
    ),
    "keras": Framework("keras", "pip install -c constraints.txt 'ampsim[keras]'"),
    "flax, nnx": Framework("flax", PEERS, function="make_nnx"),
    "equinox": Framework("equinox", PEERS),
    "jmp": Framework("jmp", PEERS),
    "deepspeed": Framework(
        "deepspeed",
        "DS_BUILD_OPS=0 pip install -c constraints.txt --no-build-isolation deepspeed==0.19.8",
        {
            SKIPPED: "the engine asks its optimizer for `overflow`, which torch's has not: the schedule goes on and "
            "skipped_steps stays 0; no report was found",
            RESUME: "save_checkpoint leaves the scaler of torch_autocast out; no report was found",
        },
    ),
}
