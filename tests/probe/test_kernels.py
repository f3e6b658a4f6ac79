"""The Triton kernel: on a GPU, or in Triton's interpreter, where tests/torch/test_kernels.py runs it."""

from ampsim.probe import Histogram, kernels
from tests.probe.helpers import EVERY_16, HALVES, random_bits, reference, same
from tests.torch.helpers import DEVICE, kernel_on_device


@kernel_on_device
def test_the_kernel_counts_the_same():
    tensors = [random_bits(0, 3000), *[EVERY_16.view(dtype)[7::61] for dtype in HALVES]]
    counts = kernels.exponent_counts([values.to(DEVICE) for values in tensors])
    for values, row in zip(tensors, counts.cpu().numpy(), strict=True):
        same(Histogram.from_counts(row), reference(values))
