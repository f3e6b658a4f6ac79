"""The bits that a processor gives: a digest per operation of torch and numpy, under the settings in force.

torch and OpenBLAS choose kernels by what the processor can do, MKL also by who made it, so that sums come out in
another order. The settings of `experiments.KERNELS` make the choice the same wherever there is AVX2; this module shows
whether they do. `python -m experiments bits` compares this processor with those in `data/bits.jsonl`. It imports torch,
so whoever must start without torch imports it late.
"""

import functools
import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ampsim.core import json_lines
from ampsim.core.json_lines import Record
from experiments import KERNELS, emulation
from experiments.runner import device
from experiments.runner.experiment import DATA

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
SHAPES = (
    (8, 16, 8),
    (64, 64, 64),
    (256, 384, 256),
    (512, 128, 1000),
)  # of products: rows, inner, columns
SETTINGS = (*KERNELS, "ONEDNN_DEFAULT_FPMATH_MODE")
KNOWN = DATA / "bits.jsonl"  # one line per processor and settings


def settings() -> dict[str, str]:
    """Return those of the settings that are in force, by the name of their environment variable."""
    return {name: os.environ[name] for name in SETTINGS if name in os.environ}


@functools.cache
def digest() -> str:
    """Return one digest of all, in twelve hexadecimal digits: equal where every operation gives the same bits."""
    return _sha(json_lines.encode(digests()).encode())


@functools.cache
def digests() -> dict[str, str]:
    """Return a digest per operation, of what it gives for seeded normal numbers on one thread."""
    emulation.speed_up_halves()
    with _usual_flags():
        found = {
            f"{name} {str(dtype).removeprefix('torch.')}": _digest(*call())
            for dtype in DTYPES
            for name, call in _operations(dtype).items()
        }
        return found | {"fused adam": _digest(_after_five_steps())} | _of_numpy()


def line(cpu: str = "") -> Record:
    """Return what `data/bits.jsonl` holds of a processor; an emulated one is to be named, as Linux names its host."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    return {
        "cpu": cpu or device.cpu_name(),
        "settings": settings(),
        "versions": versions,
        "bits": digests(),
    }


def compare(here: Mapping[str, str], known: Path = KNOWN) -> list[str]:
    """Return a line per known processor: how many operations give equal bits here, and which differ."""
    said = []
    for text in known.read_text(encoding="utf-8").splitlines():
        row = json_lines.decode(text)
        names = sorted(here.keys() & row["bits"].keys())
        other = [name for name in names if here[name] != row["bits"][name]]
        chosen = (
            " ".join(f"{name}={value}" for name, value in row["settings"].items()) or "no settings"
        )
        unlike = f"; different: {', '.join(other)}" if other else ""
        said.append(
            f"{len(names) - len(other)} of {len(names)} operations equal those on {row['cpu']} with {chosen}{unlike}"
        )
    return said


def _draw(dtype: torch.dtype, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def _operations(dtype: torch.dtype) -> dict[str, Callable[[], tuple[Tensor, ...]]]:
    """Return what computes each operation in one dtype, by name."""
    draw = functools.partial(_draw, dtype)
    x, q = draw(64, 257), draw(2, 4, 32, 16)
    above_0 = x.abs() + 0.1
    return {
        "draw": lambda: (draw(1000),),
        **{f"matmul {m}x{k}x{n}": functools.partial(_product, draw, m, k, n) for m, k, n in SHAPES},
        **{
            f"matmul of a transpose {m}x{k}x{n}": functools.partial(_transposed, draw, m, k, n)
            for m, k, n in SHAPES
        },
        "bmm": lambda: (torch.bmm(draw(4, 32, 48), draw(4, 48, 32)),),
        "linear with bias": lambda: (functional.linear(draw(32, 64), draw(48, 64), draw(48)),),
        "exp": lambda: (x.exp(),),
        "tanh": lambda: (x.tanh(),),
        "sigmoid": lambda: (x.sigmoid(),),
        "log1p": lambda: (above_0.log1p(),),
        "erf": lambda: (x.erf(),),
        "rsqrt": lambda: (above_0.rsqrt(),),
        "softmax": lambda: (x.softmax(-1),),
        "sum": lambda: (x.sum(), x.sum(0), x.sum(1)),
        "layer_norm": lambda: (functional.layer_norm(x, (257,)),),
        "gelu": lambda: (functional.gelu(x),),
        "attention": lambda: (functional.scaled_dot_product_attention(q, q, q, is_causal=True),),
        "conv2d mkldnn=True": functools.partial(_convolution, draw, onednn=True),
        "conv2d mkldnn=False": functools.partial(_convolution, draw, onednn=False),
    }


def _product(draw: Callable[..., Tensor], m: int, k: int, n: int) -> tuple[Tensor]:
    return (draw(m, k) @ draw(k, n),)


def _transposed(draw: Callable[..., Tensor], m: int, k: int, n: int) -> tuple[Tensor]:
    return (draw(m, k) @ draw(n, k).T,)


def _convolution(draw: Callable[..., Tensor], *, onednn: bool) -> tuple[Tensor, ...]:
    """Return a convolution and its two gradients."""
    image, kernel = draw(2, 8, 12, 12).requires_grad_(), draw(16, 8, 3, 3).requires_grad_()
    with _onednn(on=onednn):
        out = functional.conv2d(image, kernel, padding=1)
        out.float().sum().backward()  # type: ignore[no-untyped-call]
    assert image.grad is not None  # noqa: S101 - for mypy
    assert kernel.grad is not None  # noqa: S101
    return out, image.grad, kernel.grad


def _after_five_steps() -> Tensor:
    """Return a parameter after five steps of fused Adam."""
    parameter = torch.nn.Parameter(_draw(torch.float32, 1000))
    gradient, optimizer = parameter.detach().clone(), torch.optim.Adam([parameter], fused=True)
    for step in range(1, 6):
        parameter.grad = gradient * step
        optimizer.step()
    return parameter


def _of_numpy() -> dict[str, str]:
    x = np.abs(np.random.default_rng(0).standard_normal((64, 257))) + 0.1
    found = {
        "draw": x,
        "exp": np.exp(x),
        "log2": np.log2(x),
        "sum": x.sum(axis=0),
        "matmul": x @ x.T,
    }
    return {f"numpy {name}": _sha(array.tobytes()) for name, array in found.items()}


def _digest(*tensors: Tensor) -> str:
    parts = (
        t.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() for t in tensors
    )
    return _sha(b"".join(parts))


def _sha(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:12]


@contextmanager
def _onednn(*, on: bool) -> Iterator[None]:
    before = torch._C._get_mkldnn_enabled()  # noqa: SLF001 - `torch.backends.mkldnn.flags` warns
    torch.backends.mkldnn.set_flags(on)  # type: ignore[no-untyped-call]
    try:
        yield
    finally:
        torch.backends.mkldnn.set_flags(before)  # type: ignore[no-untyped-call]


@contextmanager
def _usual_flags() -> Iterator[None]:
    """Take the digests as a new process would, whatever an experiment has set before."""
    threads, exact = torch.get_num_threads(), torch.are_deterministic_algorithms_enabled()
    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(mode=False)
    try:
        with _onednn(on=True):
            yield
    finally:
        torch.set_num_threads(threads)
        torch.use_deterministic_algorithms(exact)
