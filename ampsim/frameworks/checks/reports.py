"""Public threads about failed checks of adapters."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from ampsim.frameworks.adapter import Adapter

NONE = "no report of it was found in stored public threads, searched by similarity on 2026-11-22"
_TORCH = "reported of torch: https://github.com/pytorch/pytorch/issues/99640, "
_TORCH += "https://github.com/pytorch/pytorch/issues/96755"
_BELOW = (
    "no_nonfinite_step_below_scale_one",
    "scale_is_never_subnormal",
    "scale_recovers_after_overflows",
)
_JMP = "reported: https://github.com/google-deepmind/jmp/pull/44"
_OF_TORCH = ("torch", "torch-sharded", "accelerate", "lightning", "roundpipe")
_UPDATES_FIRST = "reported: https://github.com/deepspeedai/DeepSpeed/pull/8588 (a comment of 2026-09-21)"
REPORTS: Mapping[tuple[str, str], str] = {  # (adapter, check) -> addresses
    **{(adapter, check): _TORCH for adapter in _OF_TORCH for check in _BELOW},
    (
        "torch-sharded",
        "scale_is_never_infinite",
    ): "reported of torch's own kernel, and mended there only: "
    "https://github.com/pytorch/pytorch/issues/98828",
    **{("jmp-jit", check): _JMP for check in ("overflow_backs_off_once",)},
    **{
        (name, "unscale_uses_scale_of_loss"): _UPDATES_FIRST
        for name in ("deepspeed-fp16", "deepspeed-unfused")
    },
}


def reported(adapter: Adapter, check: str) -> str:
    """Return the public thread about a failed check; name the repository if it is another one."""
    text = REPORTS.get((adapter.name, check), NONE)
    words, _, address = text.partition(": https://")
    elsewhere = words.startswith("reported") and not address.startswith(
        f"github.com/{_repository(adapter)}/"
    )
    return f"also seen in: https://{address}" if elsewhere else text


def _repository(adapter: Adapter) -> str:
    """Return the owner and the name of an adapter's repository."""
    return "/".join(urlsplit(adapter.source).path.strip("/").split("/")[:2])
