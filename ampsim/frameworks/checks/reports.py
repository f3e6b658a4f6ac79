"""Public threads about failed checks of adapters."""

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from ampsim.frameworks.adapter import Adapter

NONE = "no report of it was found in stored public threads, searched by similarity on 2026-11-22"


class Thread(NamedTuple):
    """A public thread about a failure.

    Attributes:
        words: What it is.
        address: Of the thread; another one, or a remark, may follow it.
    """

    words: str
    address: str


_TORCH = Thread(
    "reported of torch",
    "https://github.com/pytorch/pytorch/issues/99640, "
    "https://github.com/pytorch/pytorch/issues/96755",
)
_BELOW = (
    "no_nonfinite_step_below_scale_one",
    "scale_is_never_subnormal",
    "scale_recovers_after_overflows",
)
_JMP = Thread("reported", "https://github.com/google-deepmind/jmp/pull/44")
_OF_TORCH = ("torch", "torch-sharded", "accelerate", "lightning", "roundpipe")
_UPDATES_FIRST = Thread(
    "reported",
    "https://github.com/deepspeedai/DeepSpeed/pull/8588 (a comment of 2026-09-21)",
)
_INFINITE = Thread(
    "reported of torch's own kernel, and mended there only",
    "https://github.com/pytorch/pytorch/issues/98828",
)
REPORTS: Mapping[tuple[str, str], Thread] = {  # by adapter and check
    **{(adapter, check): _TORCH for adapter in _OF_TORCH for check in _BELOW},
    ("torch-sharded", "scale_is_never_infinite"): _INFINITE,
    ("jmp-jit", "overflow_backs_off_once"): _JMP,
    **{
        (name, "unscale_uses_scale_of_loss"): _UPDATES_FIRST
        for name in ("deepspeed-fp16", "deepspeed-unfused")
    },
}


def reported(adapter: Adapter, check: str) -> str:
    """Return the public thread about a failed check; name the repository if it is another one."""
    thread = REPORTS.get((adapter.name, check))
    if thread is None:
        return NONE
    if not thread.address.startswith(f"https://github.com/{_repository(adapter)}/"):
        return f"also seen in: {thread.address}"
    return f"{thread.words}: {thread.address}"


def _repository(adapter: Adapter) -> str:
    """Return the owner and the name of an adapter's repository."""
    return "/".join(urlsplit(adapter.source).path.strip("/").split("/")[:2])
