"""The names of the peers, and what each stands for."""

import importlib
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ampsim.peers.peer import Peer
    from ampsim.peers.wire import Remote

REGISTRY: Mapping[str, str] = {  # name of a peer -> module of `frameworks` and class, in alphabetical order
    "accelerate": "accelerate:Accelerate",
    "ampsim-jax": "ampsim_jax:AmpsimJax",
    "ampsim-torch": "ampsim_torch:AmpsimTorch",
    "bmtrain": "bmtrain:BMTrain",
    "chainer": "chainer:Chainer",
    "colossalai": "colossalai:ColossalAI",
    "composer": "composer:Composer",
    "deepspeed": "deepspeed:DeepSpeedScaler",
    "deepspeed-fp16": "deepspeed:Fused",
    "deepspeed-unfused": "deepspeed:Unfused",
    "fairscale-layerwise": "fairscale:FairscaleLayerwise",
    "fairscale-sharded": "fairscale:FairscaleSharded",
    "fairseq": "fairseq:Fairseq",
    "flax": "flax:Flax",
    "jaxamp": "jaxamp:Jaxamp",
    "jmp": "jmp:Jmp",
    "jmp-jit": "jmp:JmpJit",
    "keras-jax": "keras:KerasJax",
    "keras-tensorflow": "keras:KerasTensorflow",
    "keras-torch": "keras:KerasTorch",
    "lightning": "lightning:Lightning",
    "megatron": "megatron:Megatron",
    "megatron-chained": "megatron:Chained",
    "mindspore-amp": "mindspore:MindsporeAmp",
    "mindspore-cell": "mindspore:MindsporeCell",
    "mindspore-manager": "mindspore:MindsporeManager",
    "mmcv": "mmcv:MMCV",
    "mpx": "mpx:Mpx",
    "mxnet": "mxnet:Mxnet",
    "nemo": "nemo:NeMo",
    "nnabla": "nnabla:Nnabla",
    "paddle": "paddle:Paddle",
    "paddle-kernel": "paddle:PaddleKernel",
    "roundpipe": "roundpipe:RoundPipe",
    "tensorflow-v1": "tensorflow:TensorflowV1",
    "tf-keras": "tensorflow:TfKeras",
    "torch": "torch:Torch",
    "torch-sharded": "torch:Sharded",
}


def names() -> list[str]:
    """Return the names of all peers, in alphabetical order."""
    return sorted(REGISTRY)


def load(name: str) -> "type[Peer]":
    """Return the class that drives a peer, whose package need not be there; raise KeyError for an unknown name."""
    if name not in REGISTRY:
        raise KeyError(f"no peer {name!r}; there are {', '.join(names())}")
    module, _, attribute = REGISTRY[name].partition(":")
    found: type[Peer] = getattr(importlib.import_module(f"ampsim.peers.frameworks.{module}"), attribute)
    return found


def connect(name: str, *, limit: float = 60.0, first: float = 600.0) -> "Remote":
    """Return a peer that runs in a process of its own environment.

    Args:
        name: of the peer.
        limit: seconds per call.
        first: seconds for the first call, in which frameworks load and compile.

    Raises:
        KeyError: no such peer.
        NoEnvironmentError: its environment is not there, half built, or built of other pins.
    """
    from ampsim.peers.wire import Remote

    return Remote(load(name), limit=limit, first=first)
