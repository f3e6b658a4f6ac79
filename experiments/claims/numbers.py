"""Claims about fp16 arithmetic and autocast on a device; see `experiments.device_claims`."""

from collections.abc import Callable
from contextlib import nullcontext

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from experiments.claims.claim import Claim, into, same
from experiments.emulation.autocast_lists import cuda_ops

CLAIMS: dict[str, Claim] = {}
claim = into(CLAIMS)


def row_times_column(
    values: list[float], weight: float, device: str, dtype: torch.dtype = torch.float16
) -> float:
    """Return the sum of `weight` times each value, by a product of (16, n) and (n, 16); NaN unless all agree."""
    rows = torch.tensor(values, dtype=dtype, device=device).expand(16, -1).contiguous()
    product = rows @ torch.full((len(values), 16), weight, dtype=dtype, device=device)
    low, high = (v.double().item() for v in torch.aminmax(product))
    return low if low == high else float("nan")


@claim(
    "A product of fp16 matrices adds up in more than fp16: 4096 ones are not stuck at 2048, and 60000 + 60000 - 60000 "
    "does not overflow on the way.",
    {"4096 ones": 4096.0, "60000 + 60000 - 60000": 60000.0},
)
def sums_in_a_product(device: str) -> object:
    return {
        "4096 ones": row_times_column([1.0] * 4096, 1.0, device),
        "60000 + 60000 - 60000": row_times_column(
            [60000.0, 60000.0, -60000.0] + [0.0] * 13, 1.0, device
        ),
    }


@claim(
    "Subnormals of fp16 are neither flushed on the way into a product nor on the way out. In units of 2^-24:",
    {"2^-24 * 1": 1.0, "2^-12 * 2^-12": 1.0, "2^-24 * 2^10": 1024.0, "16 of 2^-13 * 2^-12": 8.0},
)
def subnormals_in_a_product(device: str) -> object:
    def units(values: list[float], weight: float) -> float:
        return row_times_column(values + [0.0] * (16 - len(values)), weight, device) * 2.0**24

    return {
        "2^-24 * 1": units([2.0**-24], 1.0),
        "2^-12 * 2^-12": units([2.0**-12], 2.0**-12),
        "2^-24 * 2^10": units([2.0**-24], 2.0**10),
        "16 of 2^-13 * 2^-12": units([2.0**-13] * 16, 2.0**-12),
    }


@claim(
    "Elementwise fp16 keeps subnormals, in units of 2^-24, and rounds to nearest even at both ends.",
    {
        "2^-24 * 1": 1.0, "2^-14 / 4": 256.0, "2^-24 + 2^-24": 2.0, "2^-20 cast": 16.0,
        "2^-25 cast": 0.0, "just above it": 1.0, "65519 cast": 65504.0, "65520 cast": float("inf"),
    },
)  # fmt: skip
def ends_of_fp16(device: str) -> object:
    def half(value: float) -> Tensor:
        return torch.tensor([value], dtype=torch.float32, device=device).half()

    tiny = half(2.0**-24)
    in_units = {
        "2^-24 * 1": tiny * half(1.0), "2^-14 / 4": half(2.0**-14) / half(4.0), "2^-24 + 2^-24": tiny + tiny,
        "2^-20 cast": half(2.0**-20), "2^-25 cast": half(2.0**-25), "just above it": half(2.0**-25 * (1 + 2.0**-23)),
    }  # fmt: skip
    seen = {name: value.double().item() * 2.0**24 for name, value in in_units.items()}
    return {**seen, "65519 cast": half(65519.0).item(), "65520 cast": half(65520.0).item()}


@claim(
    "Casts from float32 to fp16 and bfloat16 and back are numpy's and the CPU's: of 2^20 float32 numbers of every "
    "exponent, NaN aside, those whose result differs:",
    {"float16": 0, "bfloat16": 0},
)
def casts(device: str) -> object:
    bits = np.random.default_rng(0).integers(0, 2**32, 2**20, dtype=np.uint32)
    values = torch.from_numpy(bits.view(np.float32).copy())
    values = values[~values.isnan()]
    with np.errstate(over="ignore", under="ignore"):
        by_numpy = torch.from_numpy(values.numpy().astype(np.float16).astype(np.float32))
    on_device = values.to(device)
    return {
        "float16": len(values) - same(on_device.half().float(), by_numpy),
        "bfloat16": len(values) - same(on_device.bfloat16().float(), values.bfloat16().float()),
    }


@claim(
    "Float32 products and convolutions are not shortened to 10 bits: 1 + 2^-12 comes out as it went in.",
    {"product": True, "convolution": True},
)
def float32_is_float32(device: str) -> object:
    value = 1 + 2.0**-12
    image = torch.full((1, 16, 8, 8), value, device=device)
    weight = torch.zeros(16, 16, 1, 1, device=device)
    weight[:, 0] = 1.0
    convolved = functional.conv2d(image, weight)
    product = row_times_column([value] + [0.0] * 15, 1.0, device, torch.float32)
    return {"product": product == value, "convolution": bool((convolved == value).all())}


@claim(
    "Sums of fp16 add up in more than fp16: 60000 + 60000 - 60000, 4096 ones, and the mean of 4096 times 60000.",
    {"60000 + 60000 - 60000": 60000.0, "4096 ones": 4096.0, "mean": 60000.0},
)
def sums(device: str) -> object:
    def half(*values: float) -> Tensor:
        return torch.tensor(values, dtype=torch.float16, device=device)

    return {
        "60000 + 60000 - 60000": half(60000.0, 60000.0, -60000.0).sum().item(),
        "4096 ones": half(1.0).repeat(4096).sum().item(),
        "mean": half(60000.0).repeat(4096).mean().item(),
    }


@claim(
    "Under autocast a weight's gradient is made in fp16 and then widened: every element is an fp16 number.",
    {"linear": True, "convolution": True, "attention": True},
)
def weight_gradients_are_fp16_numbers(device: str) -> object:
    torch.manual_seed(0)
    layers = {
        "linear": nn.Linear(32, 32),
        "convolution": nn.Conv2d(4, 8, 3),
        "attention": nn.Linear(32, 96),
    }
    shapes = {"linear": (64, 32), "convolution": (8, 4, 8, 8), "attention": (4, 16, 32)}
    seen = {}
    for name, layer in layers.items():
        layer.to(device)
        with torch.autocast(device, dtype=torch.float16):
            out = layer(torch.randn(shapes[name]).to(device))
            if name == "attention":
                query, key, value = out.chunk(3, dim=-1)
                out = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
            loss = out.float().square().mean()
        loss.backward()
        (grad,) = (p.grad for p in layer.parameters() if p.dim() > 1 and p.grad is not None)
        seen[name] = torch.equal(grad, grad.half().float())
    return seen


# ------------------------------------------------------------------------------------------- autocast's lists

OPERATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "matmul": lambda x: x @ x,
    "linear": lambda x: functional.linear(x, x),
    "addmm": lambda x: torch.addmm(x, x, x),
    "conv2d": lambda x: functional.conv2d(x[None, None], x[None, None]),
    "attention": lambda x: functional.scaled_dot_product_attention(x[None], x[None], x[None]),
    "prelu": lambda x: functional.prelu(x, x[0, :1]),
    "add": lambda x: x + x,
    "relu": functional.relu,
    "gelu": functional.gelu,
    "tanh": torch.tanh,
    "sigmoid": torch.sigmoid,
    "softmax": lambda x: x.softmax(-1),
    "log_softmax": lambda x: x.log_softmax(-1),
    "logsumexp": lambda x: x.logsumexp(-1),
    "softplus": functional.softplus,
    "exp": torch.exp,
    "expm1": torch.expm1,
    "log": torch.log,
    "log1p": torch.log1p,
    "pow": lambda x: x.pow(2),
    "square": torch.square,
    "sqrt": torch.sqrt,
    "rsqrt": torch.rsqrt,
    "reciprocal": torch.reciprocal,
    "sum": torch.sum,
    "mean": torch.mean,
    "var": torch.var,
    "prod": torch.prod,
    "cumsum": lambda x: x.cumsum(-1),
    "cumprod": lambda x: x.cumprod(-1),
    "norm": torch.norm,
    "vector_norm": torch.linalg.vector_norm,
    "layer_norm": lambda x: functional.layer_norm(x, x.shape[-1:]),
    "group_norm": lambda x: functional.group_norm(x, 2),
    "cross_entropy": lambda x: functional.cross_entropy(x, x.argmax(-1)),
    "mse_loss": lambda x: functional.mse_loss(x, x.flip(0)),
    "l1_loss": lambda x: functional.l1_loss(x, x.flip(0)),
    "smooth_l1_loss": lambda x: functional.smooth_l1_loss(x, x.flip(0)),
    "bce_with_logits": lambda x: functional.binary_cross_entropy_with_logits(x, x),
    "cosine_similarity": lambda x: functional.cosine_similarity(x, x.flip(0)),
    "cdist": lambda x: torch.cdist(x, x),
    "cat": lambda x: torch.cat([x, x.float()]),
}


def autocast_to(operation: Callable[[Tensor], Tensor], device: str) -> str:
    """Return the dtype of the result, whatever the input's; `as its input`; or the error."""
    made = []
    for dtype in (torch.float16, torch.float32):
        x = torch.linspace(0.1, 0.9, 64).reshape(8, 8).to(device, dtype)
        with torch.autocast(device, dtype=torch.float16):
            try:
                made.append(str(operation(x).dtype).removeprefix("torch."))
            except RuntimeError as error:
                made.append(type(error).__name__)
    if made == ["float16", "float32"]:
        return "as its input"
    return made[0] if made[0] == made[1] else " and ".join(made)


TO_FLOAT16 = ("matmul", "linear", "addmm", "conv2d", "attention", "prelu")
AS_INPUT = ("add", "relu", "gelu", "tanh", "sigmoid", "sqrt", "mean", "var")
ON_CUDA = (
    dict.fromkeys(OPERATIONS, "float32")
    | dict.fromkeys(TO_FLOAT16, "float16")
    | dict.fromkeys(AS_INPUT, "as its input")
)


@claim("What autocast to fp16 makes of an operation, by CUDA's lists.", ON_CUDA)
def autocast_lists(device: str) -> object:
    with cuda_ops() if device == "cpu" else nullcontext():
        return {name: autocast_to(operation, device) for name, operation in OPERATIONS.items()}
