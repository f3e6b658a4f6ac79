"""Torch tensors and JAX arrays over one memory."""

import jax
import jax.numpy as jnp
import pytest

from ampsim.jax import to_jax, to_torch

torch = pytest.importorskip("torch")

DTYPES = [
    "float32",
    "float16",
    "bfloat16",
    "int32",
    "int8",
    "uint8",
    "bool",
    "complex64",
    "float8_e4m3fn",
]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(4, 3), (), (0, 3)], ids=str)
def test_conversion_shares_memory(dtype, shape) -> None:
    tensor = torch.ones(shape).to(getattr(torch, dtype))
    array = to_jax(tensor)
    assert (str(array.dtype), array.shape) == (dtype, shape)
    assert array.unsafe_buffer_pointer() == tensor.data_ptr()
    again = to_torch(array)
    assert again.dtype == tensor.dtype
    assert again.data_ptr() == tensor.data_ptr()
    assert again.device == tensor.device


def test_parameter_trees_are_converted() -> None:
    model = torch.nn.Linear(3, 2)
    arrays = to_jax({"w": model.weight, "rest": [model.bias, (model.bias,)]})
    assert arrays["w"].unsafe_buffer_pointer() == model.weight.data_ptr()
    assert arrays["rest"][1][0].tolist() == model.bias.tolist()
    back = to_torch({"w": jnp.arange(6.0).reshape(2, 3)})
    assert back["w"].tolist() == [[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]


def test_array_keeps_tensor_memory_alive() -> None:
    array = to_jax(torch.full((1000,), 7.0))
    junk = [torch.zeros(1000) for _ in range(10)]
    assert array.tolist() == [7.0] * 1000
    del junk


@pytest.mark.parametrize(
    ("make", "error", "text"),
    [
        (
            lambda: torch.zeros(3, 4).t(),
            ValueError,
            r"strides \(1, 4\) and shape \(4, 3\): expected a contiguous tensor",
        ),
        (
            lambda: torch.zeros(1).expand(4),
            ValueError,
            "expected a contiguous tensor; pass tensor.contiguous",
        ),
        (
            lambda: torch.zeros(8)[1:],
            ValueError,
            r"expected alignment to 64 bytes; .* pass tensor.clone\(\)",
        ),
        (
            lambda: torch.zeros(2, dtype=torch.float64),
            TypeError,
            "float64, which JAX would round to 32 bits",
        ),
        (
            lambda: torch.zeros(2, dtype=torch.int64),
            TypeError,
            "int64, which JAX would round to 32 bits",
        ),
        (
            lambda: torch.zeros(2, dtype=torch.complex128),
            TypeError,
            "complex128, which JAX would round to 32 bits",
        ),
        (lambda: torch.zeros(2).to_sparse(), (TypeError, ValueError), "expected"),
        (lambda: [1.0], TypeError, "^a float: expected a torch.Tensor"),
    ],
)
def test_unsupported_tensor_raises(make, error, text) -> None:
    with pytest.raises(error, match=text):
        to_jax(make())


def test_64_bits_with_x64() -> None:
    with jax.enable_x64(True):
        tensor = torch.arange(8)
        assert to_jax(tensor).unsafe_buffer_pointer() == tensor.data_ptr()


@pytest.mark.parametrize("leaf", [1.0, torch.zeros(1)], ids=["float", "tensor"])
def test_non_jax_array_raises(leaf) -> None:
    with pytest.raises(TypeError, match=r"expected a jax.Array"):
        to_torch([leaf])


def test_tracer_raises() -> None:
    with pytest.raises(TypeError, match=r"expected a jax.Array outside of jit"):
        jax.jit(to_torch)(jnp.ones(1))
