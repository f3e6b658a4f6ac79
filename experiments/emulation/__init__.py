"""What other devices compute, on this CPU: their products of halves, and CUDA's autocast lists."""

import os
from importlib.util import find_spec

from experiments import KERNELS


def speed_up_halves() -> None:
    """Compute products of halves faster, with torch's bits, if the common kernels are in force."""
    if os.environ.items() >= KERNELS.items() and find_spec("numba"):
        from experiments.emulation import half_products

        half_products.install()
