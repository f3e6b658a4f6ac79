"""Whether multiplying by a power of two was exact in a JAX program: no half precision, nothing near underflow.

XLA on the CPU makes 0 of what would be below the normal numbers, so that what was lost cannot be seen; what comes near
can.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.extend.core import Primitive

HALF = ("float16", "bfloat16")
NEAR = 2.0**12  # times the smallest normal number


@dataclass
class Seen:
    """The first operation that gave half precision, in words, and the first that came near underflow; "" for none."""

    half: str = ""
    tiny: str = ""


@contextmanager
def watched(*, values: bool) -> Iterator[Seen]:
    """Watch each operation that is not compiled with others, as under ``disable_jit``; with `values` its numbers."""
    seen, bind = Seen(), Primitive.bind

    def look(self: Primitive, *args: Any, **params: Any) -> Any:
        out = bind(self, *args, **params)  # type: ignore[no-untyped-call]
        for value in out if isinstance(out, (list, tuple)) else (out,):
            dtype = str(getattr(value, "dtype", ""))
            if dtype in HALF:
                seen.half = seen.half or f"{self.name} gives {dtype}"
            elif (
                values
                and dtype in ("float32", "float64")
                and not isinstance(value, jax.core.Tracer)
            ):
                size = np.abs(np.asarray(value))
                if ((size > 0) & (size < NEAR * np.finfo(dtype).tiny)).any():
                    seen.tiny = (
                        seen.tiny
                        or f"{self.name} gives numbers near the smallest normal ones of {dtype}"
                    )
        return out

    Primitive.bind = look  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        Primitive.bind = bind  # type: ignore[method-assign]
