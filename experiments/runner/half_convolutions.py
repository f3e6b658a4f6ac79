"""What `products` has numba compile: convolutions of 16-bit numbers, as torch makes them without oneDNN.

Images are unfolded into columns, which are multiplied, in the orders of `half_kernels`. torch adds the gradients of a
weight image by image, and those of a pixel place by place of the kernel, and rounds each of these sums to 16 bits.
"""

import functools

import numpy as np
from numba import njit

from experiments.runner.half_kernels import (
    LANES,
    Bits,
    Floats,
    add,
    brain_rounded,
    dots,
    half_rounded,
    rounded,
    widened,
)

Geometry = tuple[int, int, int, int]  # side of the kernel, stride, padding, side of what comes out


@functools.cache
def seen(place: int, geometry: Geometry, wide: int) -> tuple[slice, slice]:
    """Return which pixels of a row that comes out see the image at a place of the kernel, and which they see."""
    _, stride, padding, side = geometry
    start = place - padding
    first, end = max(0, -(start // stride)), min(side, (wide - 1 - start) // stride + 1)
    return slice(first, end), slice(first * stride + start, (end - 1) * stride + start + 1, stride)


def unfolded(images: Floats, geometry: Geometry) -> Floats:
    """Return (channels, kernel, kernel, side, side, batch): what each place of the kernel sees of the images, or 0.

    The images come as (channels, high, wide, batch): what is done to all images goes along the memory.
    """
    kernel, _, _, side = geometry
    channels, high, wide, batch = images.shape
    columns = np.zeros((channels, kernel, kernel, side, side, batch), np.float32)
    for down in range(kernel):
        for across in range(kernel):
            (rows, from_rows), (places, from_places) = (
                seen(down, geometry, high),
                seen(across, geometry, wide),
            )
            columns[:, down, across, rows, places] = images[:, from_rows, from_places]
    return columns


@njit(
    "void(float32[:, :, :, :, :, ::1], UniTuple(int64, 4), float32[:, :, :, ::1], boolean)",
    cache=True,
)
def fold(columns: Floats, geometry: Geometry, images: Floats, brain: bool) -> None:
    """Add to each pixel what `unfolded` made of it, rounding each of them and each sum to 16 bits."""
    kernel, stride, padding, side = geometry
    channels, high, wide, batch = images.shape
    for channel, down, across in np.ndindex(channels, kernel, kernel):
        for y, x in np.ndindex(side, side):
            to_y, to_x = y * stride - padding + down, x * stride - padding + across
            if 0 <= to_y < high and 0 <= to_x < wide:
                given, pixel = columns[channel, down, across, y, x], images[channel, to_y, to_x]
                if brain:
                    for i in range(batch):
                        pixel[i] = brain_rounded(pixel[i] + brain_rounded(given[i]))
                else:
                    for i in range(batch):
                        pixel[i] = half_rounded(pixel[i] + half_rounded(given[i]))


@njit("void(float32[:, ::1], float32[:, ::1], boolean)", cache=True)
def add_rounded(total: Floats, more: Floats, brain: bool) -> None:
    """Add, and round each sum to 16 bits."""
    for i in range(len(total)):
        for j in range(total.shape[1]):
            total[i, j] = (
                brain_rounded(total[i, j] + more[i, j])
                if brain
                else half_rounded(total[i, j] + more[i, j])
            )


def batch_last(x: Floats) -> Floats:
    """Return (batch, ...) as (..., batch)."""
    return np.ascontiguousarray(x.transpose(*range(1, x.ndim), 0))


def batch_first(x: Floats) -> Floats:
    """Return (..., batch) as (batch, ...)."""
    return np.ascontiguousarray(x.transpose(-1, *range(x.ndim - 1)))


def convolve(images: Bits, weight: Bits, geometry: Geometry, out: Bits, brain: bool) -> None:
    """Set (batch, channels out, pixels out) to the convolution of images."""
    w = widened(weight, brain)
    columns = unfolded(batch_last(widened(images, brain)), geometry).reshape(w.shape[1], -1)
    sums = np.zeros((LANES, len(w), columns.shape[1]), np.float32)
    add(w, columns, sums)
    rounded(batch_first(sums[0].reshape(len(w), -1, len(images))), out, brain)


def convolve_back(
    given: Bits, images: Bits, weight: Bits, geometry: Geometry, out: tuple[Bits, Bits], brain: bool
) -> None:
    """Set the gradients of the images, unless there are none of them, and of the weight."""
    g, x, w = widened(given, brain), batch_last(widened(images, brain)), widened(weight, brain)
    of_images, of_weight = out
    columns = unfolded(x, geometry)
    total, one = np.zeros_like(w), np.empty_like(w)
    for pixels, column in zip(
        g, np.ascontiguousarray(columns.reshape(w.shape[1], -1, len(g)).T), strict=True
    ):
        dots(pixels, column, one)
        add_rounded(total, one, brain)
    rounded(total, of_weight, brain)
    if len(of_images):
        columns[:], x[:] = 0, 0
        add(w.T, batch_last(g).reshape(len(w), -1), columns.reshape(1, w.shape[1], -1))
        fold(columns, geometry, x, brain)
        rounded(batch_first(x), of_images, brain)
