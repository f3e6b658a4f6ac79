"""What public threads say of the checks that peers break."""

from collections.abc import Mapping
from urllib.parse import urlsplit

from ampsim.peers.peer import Peer

NONE = "no report of it was found in stored public threads, searched by similarity on 2026-11-22"
_TORCH = "reported of torch: https://github.com/pytorch/pytorch/issues/99640, "
_TORCH += "https://github.com/pytorch/pytorch/issues/96755"
_BELOW = (
    "no_nonfinite_step_below_scale_one",
    "no_nonfinite_step_at_subnormal_scale",
    "scale_is_never_subnormal",
    "scale_recovers_after_overflows",
)
_JMP = "reported: https://github.com/google-deepmind/jmp/pull/44"
_OF_TORCH = ("torch", "torch-sharded", "accelerate", "lightning", "roundpipe")
_UPDATES_FIRST = (
    "reported: https://github.com/deepspeedai/DeepSpeed/pull/8588 (a comment of 2026-09-21)"
)
REPORTS: Mapping[tuple[str, str], str] = {  # (peer, check) -> addresses
    **{(peer, check): _TORCH for peer in _OF_TORCH for check in _BELOW},
    (
        "torch-sharded",
        "scale_is_never_infinite",
    ): "reported of torch's own kernel, and mended there only: "
    "https://github.com/pytorch/pytorch/issues/98828",
    **{
        ("jmp-jit", check): _JMP
        for check in (
            "overflow_never_raises_scale",
            "overflow_backs_off_once",
            "scale_falls_to_min_scale",
        )
    },
    **{
        (name, "unscale_uses_scale_of_loss"): _UPDATES_FIRST
        for name in ("deepspeed-fp16", "deepspeed-unfused")
    },
}


def reported(peer: Peer, check: str) -> str:
    """Return what is known of a check that a peer breaks: a thread of another repository was only seen there."""
    text = REPORTS.get((peer.name, check), NONE)
    words, _, address = text.partition(": https://")
    elsewhere = words.startswith("reported") and not address.startswith(
        f"github.com/{_repository(peer)}/"
    )
    return f"also seen in: https://{address}" if elsewhere else text


def _repository(peer: Peer) -> str:
    """Return the owner and the name of a peer's repository."""
    return "/".join(urlsplit(peer.source).path.strip("/").split("/")[:2])
