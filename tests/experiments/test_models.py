"""The models are the architectures they are named after, and their gradients reach every parameter."""

import math

import pytest
import torch
from torch import Tensor, nn

from experiments.models import resnet, vit
from experiments.models.gpt import GPT, GPT2_SMALL, Size
from experiments.models.resnet import ResNet
from experiments.models.vit import ViT

TINY = Size(vocabulary=64, context=12, layers=2, heads=4, width=32)
TINY_VIT = vit.Size(pixels=12, patch=4, layers=2, heads=4, width=32)  # 3 x 3 patches


def parameters(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


def gpt(size: Size = TINY, seed: int = 0) -> GPT:
    torch.manual_seed(seed)
    return GPT(size)


def image_model(pixels: int) -> tuple[ResNet, Tensor]:
    torch.manual_seed(0)
    colours, channels = (1, resnet.DIGITS) if pixels == 8 else (3, resnet.IMAGES_32)
    return ResNet(colours, channels, blocks=2, classes=10), torch.randn(
        4, colours, pixels, pixels
    )


def vision(size: vit.Size = TINY_VIT) -> tuple[ViT, Tensor]:
    torch.manual_seed(0)
    return ViT(size), torch.randn(2, 3, size.pixels, size.pixels)


def moved(model: nn.Module, x: Tensor, down: int, across: int) -> Tensor:
    """Which patches of the output change, (3, 3), when one patch of the input does."""
    changed = x.clone()
    changed[:, :, 4 * down : 4 * down + 4, 4 * across : 4 * across + 4] += 1
    difference = (model(x) - model(changed)).abs().amax(dim=(0, 1))
    return difference.unflatten(0, (3, 4)).unflatten(2, (3, 4)).amax(dim=(1, 3)) > 1e-6


def tokens(count: int = TINY.context, seed: int = 0) -> Tensor:
    return torch.randint(
        TINY.vocabulary, (3, count), generator=torch.Generator().manual_seed(seed)
    )


def test_gpt2_small_has_124_million_parameters() -> None:
    with torch.device("meta"):
        model = GPT(GPT2_SMALL)
    assert parameters(model) == pytest.approx(124.44e6, rel=1e-3)


@pytest.mark.parametrize("size", [TINY, Size(256, 32, 2, 4, 64), Size(7, 3, 1, 1, 8)])
def test_gpt_parameter_count_matches_formula(size: Size) -> None:
    w = size.width
    layer = 12 * w * w + 13 * w  # four matrices with biases, two norms
    assert (
        parameters(GPT(size))
        == (size.vocabulary + size.context) * w + size.layers * layer + 2 * w
    )


@pytest.mark.parametrize("count", [1, 5, 12])
def test_gpt_gives_logits_per_token(count: int) -> None:
    assert gpt()(tokens(count)).shape == (3, count, TINY.vocabulary)


def test_gpt_is_causal() -> None:
    model, x = gpt(), tokens()
    changed = x.clone()
    changed[:, 7] = (x[:, 7] + 1) % TINY.vocabulary
    before, after = model(x), model(changed)
    torch.testing.assert_close(before[:, :7], after[:, :7])
    assert (
        (before - after).abs().amax(dim=(0, 2))[7:] > 1e-6
    ).all()  # it does see what came before


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["gpt", "vit", "8", "32"])
def test_a_gradient_reaches_every_parameter(kind: str, dtype: torch.dtype) -> None:
    model, x = (
        (gpt(), tokens())
        if kind == "gpt"
        else vision()
        if kind == "vit"
        else image_model(int(kind))
    )
    with torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        out = model(x)
    out.float().square().mean().backward()
    for name, p in model.named_parameters():
        assert p.grad is not None, name
        assert p.grad.isfinite().all(), name
        assert p.grad.abs().max() > 0, name


@pytest.mark.parametrize(
    ("pixels", "count"), [(8, 42_874), (32, 175_066)]
)  # added up by hand
def test_resnet_shapes(pixels: int, count: int) -> None:
    model, x = image_model(pixels)
    assert model(x).shape == (4, 10)
    assert model.blocks(model.enter(x)).shape[2:] == ((4, 4) if pixels == 8 else (8, 8))
    assert parameters(model) == count


def test_resnet_images_are_independent() -> None:
    model, x = image_model(8)
    before = {name: value.clone() for name, value in model.state_dict().items()}
    together = model(x)
    model(torch.full_like(x, math.inf))
    torch.testing.assert_close(model(x[:1]), together[:1])
    assert all(
        torch.equal(value, before[name]) for name, value in model.state_dict().items()
    )
    assert not list(model.buffers())


def test_vit_parameter_count_matches_formula() -> None:
    with torch.device("meta"):
        assert parameters(ViT(vit.VIT_SMALL)) == pytest.approx(21.4e6, rel=1e-2)
    for size in (TINY_VIT, vit.Size(pixels=16, patch=2, layers=1, heads=1, width=8)):
        w, values, patches = (
            size.width,
            3 * size.patch**2,
            (size.pixels // size.patch) ** 2,
        )
        layer = 12 * w * w + 13 * w  # as in a GPT
        rest = (
            (values + 1) * w + patches * w + 2 * w + (w + 1) * values
        )  # in, places, last norm, out
        assert parameters(ViT(size)) == size.layers * layer + rest


def test_vit_patches_attend_to_all_patches() -> None:
    model, x = vision()
    assert model(x).shape == x.shape
    for down, across in ((0, 0), (1, 2), (2, 1)):
        assert moved(model, x, down, across).all()


def test_vit_without_blocks_keeps_patches() -> None:
    model, x = vision()
    for block in model.blocks:
        nn.init.zeros_(block.mix.weight), nn.init.zeros_(block.narrow.weight)
    for down, across in ((0, 0), (1, 2), (2, 1)):
        assert moved(model, x, down, across).nonzero().tolist() == [[down, across]]


def test_seed_determines_model() -> None:
    a, b, c = (gpt(seed=seed)(tokens()) for seed in (0, 0, 1))
    assert torch.equal(a, b)
    assert not torch.allclose(a, c)
