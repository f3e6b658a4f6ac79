"""What formats lose is what casting loses, T9 holds where its assumption does, and whether one scale suffices."""

from statistics import mean
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from ampsim.core import theory
from ampsim.core.formats import BF16, E4M3, E5M2, FP16, Format, Kind
from ampsim.probe import Histogram
from experiments import formats
from figures import formats as figure
from figures import results

CONFIG = formats.Config()
DATA = results.load("formats").records
KINDS = ("parameters", "activations")
NARROW = (FP16, E5M2, E4M3)


def log_normal(elements: int, mean: float, sigma: float, seed: int) -> Tensor:
    return torch.exp2(mean + sigma * torch.randn(elements, generator=torch.Generator().manual_seed(seed)))


def measured(*tensors: Tensor) -> dict[str, Any]:
    return formats.measured({str(i): Histogram.of(tensor) for i, tensor in enumerate(tensors)})


def cast(tensor: Tensor, fmt: Format, log2_scale: int) -> list[int]:
    """Elements of each `Kind`."""
    scaled = tensor.double().numpy() * 2.0**log2_scale
    return np.bincount(fmt.classify(scaled), minlength=len(Kind)).tolist()


def lost(arm: str, kind: str, fmt: str, column: str) -> list[float]:
    return [row[kind]["formats"][fmt][column] for row in DATA if row["arm"] == arm]


# ------------------------------------------------------------------------------------------------ measuring it


@given(
    means=st.lists(st.integers(-30, 10), min_size=1, max_size=4),
    sigma=st.floats(0.5, 7),
    seed=st.integers(0, 99),
    fmt=st.sampled_from(NARROW),
)
@settings(deadline=None, max_examples=40)
def test_the_best_scale_and_what_it_flushes_are_those_of_casting(
    means: list[int], sigma: float, seed: int, fmt: Format
) -> None:
    tensors = [log_normal(200, m, sigma, seed + i) for i, m in enumerate(means)]
    together = torch.cat(tensors)
    found = measured(*tensors)["formats"][fmt.name]
    k = found["log2_scale"]
    assert cast(together, fmt, k)[Kind.OVERFLOWED] == 0
    assert cast(together, fmt, k + 1)[Kind.OVERFLOWED] > 0
    assert found["flushed"] == pytest.approx(cast(together, fmt, k)[Kind.FLUSHED] / len(together), rel=1e-5)
    own = sum(
        cast(tensor, fmt, measured(tensor)["formats"][fmt.name]["log2_scale"])[Kind.FLUSHED] for tensor in tensors
    )
    assert found["flushed_per_tensor"] == pytest.approx(own / len(together), rel=1e-5)
    assert found["flushed_per_tensor"] <= found["flushed"]
    assert found["least_lost"] <= found["flushed"]
    assert min(found["log2_scales"]) == k
    assert sum(n for _, n in found["most_flushed"]) == cast(together, fmt, k)[Kind.FLUSHED]  # at most four tensors


def test_the_scale_that_loses_least_lets_outliers_overflow() -> None:
    outlier = torch.cat([log_normal(1000, -10, 3, 0), torch.tensor([2.0**8])])
    found = measured(outlier)["formats"]["e4m3"]
    assert found["log2_scale"] == 0
    kinds = cast(outlier, E4M3, found["log2_least"])
    assert kinds[Kind.OVERFLOWED] >= 1
    lost_elements = kinds[Kind.OVERFLOWED] + kinds[Kind.FLUSHED]
    assert lost_elements / 1001 <= found["least_lost"] < lost_elements / 1001 + 0.02  # a bound, of one binade
    assert found["least_lost"] < found["flushed"] / 4


@given(mean=st.integers(-40, 20), sigma=st.floats(0.7, 9), seed=st.integers(0, 9))
@settings(deadline=None, max_examples=30)
def test_the_fit_finds_mean_and_spread_of_a_log_normal(mean: int, sigma: float, seed: int) -> None:
    values = log_normal(20_000, mean, sigma, seed)
    spread = formats.fit(Histogram.of(values))
    logs = values.log2().double()
    assert spread.elements == 20_000
    assert spread.mean == pytest.approx(logs.mean().item(), abs=0.02 + 0.01 * sigma)
    assert spread.sigma == pytest.approx(logs.std().item(), rel=0.03)


def test_spread_is_within_tensors_and_between_them() -> None:
    row = measured(log_normal(5000, 0, 2, 0), log_normal(5000, -12, 2, 1), torch.zeros(7))
    assert row["log2_sigma_within"] == pytest.approx(2, rel=0.05)
    assert row["log2_sigma"] ** 2 == pytest.approx(row["log2_sigma_within"] ** 2 + 36, rel=0.03)
    assert (row["tensors"], row["elements"]) == (3, 10_000)


def test_counts_go_down_from_the_largest() -> None:
    row = measured(torch.tensor([3.0, 1.0, 0.9, 2.0**-63, 2.0**-100, 0.0]))
    assert row["counts"] == [1, 1, 1, *[0] * 61, 2]


@pytest.mark.parametrize("fmt", NARROW)
@pytest.mark.parametrize("sigma", [3.0, 5.0, 8.0])
def test_t9_foretells_what_is_flushed_of_a_log_normal(fmt: Format, sigma: float) -> None:
    found = [measured(log_normal(100_000, -7, sigma, seed))["formats"][fmt.name] for seed in range(4)]
    flushed, expected, largest = (mean(f[name] for f in found) for name in ("flushed", "predicted", "from_largest"))
    assert largest == pytest.approx(flushed, rel=0.1, abs=2e-4)
    assert expected == pytest.approx(flushed, rel=0.6, abs=1e-3)  # of four maxima


def test_a_range_is_from_what_is_flushed_to_what_overflows() -> None:
    assert formats.binades(FP16) == pytest.approx(theory.FP16_BINADES, abs=1e-3)
    assert [round(formats.binades(fmt), 1) for fmt in (E5M2, E4M3)] == [32.9, 18.9]
    for fmt in NARROW:
        assert figure.LOOKS[fmt.name].binades == pytest.approx(formats.binades(fmt))


def test_a_loss_scale_is_a_float32_number() -> None:
    assert formats.best_scale(Histogram.of(torch.tensor([1e-9])), BF16) == 2.0**127


# ---------------------------------------------------------------------------------------------------- the data


def test_every_record_is_whole() -> None:
    for row in DATA:
        for kind in KINDS:
            assert sum(row[kind]["counts"]) == row[kind]["elements"]
            assert row[kind]["log2_sigma_within"] <= row[kind]["log2_sigma"]
            assert list(row[kind]["formats"]) == ["bf16", "fp16", "e5m2", "e4m3"]


def test_a_narrower_format_never_loses_less_and_a_scale_a_tensor_never_more() -> None:
    for row in DATA:
        for kind in KINDS:
            flushed = [fmt["flushed"] for fmt in row[kind]["formats"].values()]
            assert flushed == sorted(flushed)
            assert flushed[0] == 0.0
            for fmt in row[kind]["formats"].values():
                assert fmt["least_lost"] <= fmt["flushed"]
                assert fmt["flushed_per_tensor"] <= fmt["flushed"]


def test_one_scale_suffices_for_fp16_and_not_for_e4m3() -> None:
    for arm in formats.arms(CONFIG):
        for kind in KINDS:
            assert max(lost(arm, kind, "fp16", "flushed")) < 2 * formats.SHARE
    for arm in ("sigmoid", "gpt", "vit"):
        assert min(lost(arm, "activations", "e4m3", "flushed")) > 5 * formats.SHARE
    for arm in ("gpt", "vit"):  # a scale a tensor is the cure
        whole, own = (mean(lost(arm, "activations", "e4m3", name)) for name in ("flushed", "flushed_per_tensor"))
        assert own < whole / 5
    assert mean(lost("sigmoid", "activations", "e4m3", "flushed_per_tensor")) > 0.05  # but not of every spread


def test_gradients_are_not_log_normal_the_largest_is_nearer_and_the_smallest_are_more() -> None:
    for arm in ("gpt", "sigmoid"):
        pairs = zip(*(lost(arm, "activations", "e4m3", name) for name in ("predicted", "flushed")), strict=True)
        assert all(predicted > 1.2 * flushed for predicted, flushed in pairs)
    for arm in ("gpt", "vit"):
        assert (
            max(lost(arm, "parameters", "e5m2", "predicted")) < 1e-9 < min(lost(arm, "parameters", "e5m2", "flushed"))
        )


def test_what_e5m2_flushes_of_a_transformers_parameters_are_key_biases_whose_gradient_is_zero() -> None:
    """Softmax does not change when all its inputs do: float32 has nothing but rounding there."""
    for arm in ("gpt", "vit"):
        for tensors in lost(arm, "parameters", "e5m2", "most_flushed"):
            assert tensors  # type: ignore[truthy-bool]
            assert all(name.endswith("qkv.bias") for name, _ in tensors)  # type: ignore[attr-defined]
