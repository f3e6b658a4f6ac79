"""What public threads say of the laws that peers break."""

from collections.abc import Mapping
from urllib.parse import quote_plus, urlsplit

from ampsim.peers.laws.law import Law
from ampsim.peers.peer import Peer

NONE = "no report of it was found in stored public threads, searched by similarity on 2026-11-22"
_TORCH = "reported of torch: https://github.com/pytorch/pytorch/issues/99640, "
_TORCH += "https://github.com/pytorch/pytorch/issues/96755"
_CLOSES = ("scale_never_becomes_zero", "scale_comes_back")
_BELOW = ("scale_below_one_hides_no_overflow", "subnormal_scales_apply_nothing_infinite", *_CLOSES)
_OF_TORCH = ("torch", "torch-sharded", "accelerate", "lightning", "composer", "roundpipe", "roundpipe-sync", "nemo")
_UPDATES_FIRST = "reported: https://github.com/deepspeedai/DeepSpeed/pull/8588 (a comment of 2026-09-21)"
REPORTS: Mapping[tuple[str, str], str] = {  # (peer, law) -> addresses
    **{(peer, law): _TORCH for peer in _OF_TORCH for law in _BELOW},
    ("torch-sharded", "scale_never_becomes_inf"): "reported of torch's own kernel, and mended there only: "
    "https://github.com/pytorch/pytorch/issues/98828",
    ("jmp-jit", "overflow_never_raises_the_scale"): "reported: https://github.com/google-deepmind/jmp/pull/44",
    ("jmp-jit", "overflows_end_at_the_minimum"): "reported: https://github.com/google-deepmind/jmp/pull/44",
    **{("paddle", law): "reported: https://github.com/PaddlePaddle/Paddle/issues/67895" for law in _CLOSES},
    **{(name, "unscaling_gives_the_gradient_back"): _UPDATES_FIRST for name in ("deepspeed-fp16", "deepspeed-unfused")},
    (
        "nemo",
        "saved_state_goes_on_alike",
    ): "near: https://github.com/NVIDIA-NeMo/Speech/pull/3459, which keeps the name",
}


def reported(peer: Peer, law: Law) -> str:
    """Return what is known upstream of a law that a peer breaks."""
    return REPORTS.get((peer.name, law.name), NONE)


def search(peer: Peer, law: Law) -> str:
    """Return the address of a search for a law's words in the issues of a peer's repository."""
    address = urlsplit(peer.source)
    repository = "/".join(address.path.strip("/").split("/")[:2])
    return f"https://{address.netloc}/{repository}/issues?q={quote_plus(law.words)}"
