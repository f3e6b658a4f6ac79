"""Sets of parameters by name: many small vectors, few large ones, or those of a GPT-2."""

FORM = r"(gpt2-)?[1-9]\d*x[1-9]\d*"


def shapes(size: str) -> list[tuple[int, ...]]:
    """Return the shapes of a set of parameters.

    Args:
        size: `400x1000` is 400 vectors of 1000; `gpt2-12x768` a GPT-2 of 12 layers and width 768, embeddings tied.
    """
    if not size.startswith("gpt2-"):
        tensors, elements = map(int, size.split("x"))
        return [(elements,)] * tensors
    layers, width = map(int, size.removeprefix("gpt2-").split("x"))
    norm: list[tuple[int, ...]] = [(width,), (width,)]
    maps = [(width, 3 * width), (width, width), (width, 4 * width), (4 * width, width)]
    block = norm * 2 + [shape for map_ in maps for shape in (map_, map_[1:])]
    return [(50257, width), (1024, width), *(block * layers), *norm]
