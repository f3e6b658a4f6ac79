"""Exponent histograms of gradients, and the underflow and overflow at any loss scale.

>>> import torch
>>> from ampsim.core.formats import FP16
>>> from ampsim.probe import Histogram
>>> gradients = Histogram.of(torch.tensor([3e-9, 1e-6, 0.5, 0.0]))
>>> [gradients.lost(scale, FP16).flushed.low for scale in (1.0, 1024.0)]
[0.3333333333333333, 0.0]
>>> gradients.overflow_threshold(FP16)
65536.0
"""

from ampsim.core.extras import needing as _needing

with _needing():
    from ampsim.probe.fp32_modules import find_fp32_modules
    from ampsim.probe.histogram import Bounds, CastLoss, Histogram
    from ampsim.probe.initial_scale import Calibration, calibrate
    from ampsim.probe.probe import GradientRecord, Probe, overflow_thresholds

__all__ = [
    "Bounds",
    "Calibration",
    "CastLoss",
    "GradientRecord",
    "Histogram",
    "Probe",
    "calibrate",
    "find_fp32_modules",
    "overflow_thresholds",
]
