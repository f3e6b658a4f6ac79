"""Loss scalers of frameworks as data: a `Rule`, parameter names, and the source they were read
from.

A `Dialect` is the default rule of a framework's scaler with the framework's own parameter names.
``get("megatron.core.DynamicGradScaler", init_scale=2.0**32, hysteresis=2)`` returns the `Rule`.
Tests compare the rules bit for bit with trajectories recorded from the frameworks. No rule was
fitted to these trajectories: each line was read from the source named next to it.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from ampsim.core.formats import FP16, FP32
from ampsim.core.machine import Arithmetic, Rule
from ampsim.core.quirks import (
    ClipEveryUpdate,
    FirstUpdateInDouble,
    HoldAtBounds,
    RaiseAfterConsecutive,
    RaiseAtMin,
    RaiseBelow,
    RampUntilOverflow,
    StepsInLog2,
    StreakStartsAt,
    Tolerance,
)
from ampsim.core.validation import as_float, nearest

# Arithmetics of the frameworks. Only torch multiplies by a factor that is still a double.
F32 = Arithmetic(round_factors=True)
F32_UNGUARDED = Arithmetic(round_factors=True, keeps_finite=False)
XLA = Arithmetic(round_factors=True, flush_subnormals=True)
XLA_UNGUARDED = Arithmetic(
    round_factors=True, flush_subnormals=True, keeps_finite=False
)
F64 = Arithmetic(dtype="float64", keeps_finite=False)


def _dividing(arithmetic: Arithmetic) -> Arithmetic:
    return dataclasses.replace(arithmetic, backoff="divide")


Options = Mapping[str, object]
Build = Callable[[Rule, Options], Rule]


@dataclass(frozen=True)
class Dialect:
    """The loss scaler of one framework as data.

    Call it with parameters of the framework to get a `Rule`.
    """

    name: str
    source: str
    """Version and file of the source code."""
    rule: Rule
    """Rule with the framework's defaults."""
    parameters: Mapping[str, str]
    """Parameter name in the framework -> field of `Rule`; 'factor' sets both factors."""
    options: Options = field(default_factory=dict)
    """Other parameters, with their defaults."""
    build: Build | None = None
    """(rule with the fields set, all options) -> final rule."""

    def __call__(self, **given: object) -> Rule:
        """Return the rule with these parameters.

        Args:
            given: Parameters under the framework's own names; others keep the framework's defaults.

        Returns:
            Rule: The rule of the scaler.

        Raises:
            TypeError: If the framework has no such parameter, or its type is invalid.
            ValueError: If a value is invalid (see `Rule`), or the framework fixes another value.
        """
        known = {*self.parameters, *self.options}
        for name in given:
            if name not in known:
                raise TypeError(
                    f"{self.name} has no parameter {name!r}: {nearest(name, known)}"
                )
        options = {
            name: given.get(name, default) for name, default in self.options.items()
        }
        fields: dict[str, object] = {}
        for name, target in self.parameters.items():
            if name in given:
                fields |= (
                    _both_factors(name, given[name])
                    if target == "factor"
                    else {target: given[name]}
                )
        rule = self.rule.replace(**fields)
        return self.build(rule, options) if self.build else rule


def _both_factors(name: str, value: object) -> dict[str, float]:
    factor = as_float(name, value)
    if not (math.isfinite(factor) and factor >= 1):
        raise ValueError(
            f"{name}={value!r}: expected a finite number >= 1; to never grow pass {name}=1.0"
        )
    return {"growth_factor": factor, "backoff_factor": 1.0 / factor}


def _fixed_factor(rule: Rule, options: Options) -> Rule:
    if options["factor"] != 2.0:
        raise ValueError(
            f"factor={options['factor']!r}: this framework fixes it; expected 2.0; omit it"
        )
    return rule


# ----------------------------------------------------------------------------------------------
# torch and related

_INIT = {"init_scale": "init_scale", "growth_interval": "growth_interval"}
_GROWTH_BACKOFF = {
    **_INIT,
    "growth_factor": "growth_factor",
    "backoff_factor": "backoff_factor",
}
_FACTOR = {**_INIT, "factor": "factor"}

TORCH = Dialect(
    "torch.amp.GradScaler",
    "torch 2.13.0 torch/amp/grad_scaler.py; aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp",
    Rule(),
    _GROWTH_BACKOFF,
)
# its own Python update: float32 tensor times Python float, and no guard against inf
SHARDED = Dialect(
    "torch.fsdp.ShardedGradScaler[cpu]",
    "torch 2.13.0 torch/distributed/fsdp/sharded_grad_scaler.py:288-307",
    Rule(arithmetic=F32_UNGUARDED),
    _GROWTH_BACKOFF,
)
COMPOSER = Dialect(
    "composer.ClosureGradScaler",
    "mosaicml 0.32.1 composer/trainer/_scaler.py",
    Rule(),
    _GROWTH_BACKOFF,
)
NEMO = Dialect(  # hysteresis counts consecutive overflows: a finite step resets it
    "nemo.GradScaler",
    "nemo_toolkit 2.7.3 nemo/collections/common/parts/nlp_overrides.py; apex csrc/update_scale_hysteresis.cu",
    Rule(hysteresis_reset=frozenset({"clean"})),
    {**_GROWTH_BACKOFF, "hysteresis": "hysteresis"},
)
_ROUNDPIPE = "RoundPipe e813c67 roundpipe/grad_scaler.py:164-221"
ROUNDPIPE_ASYNC = Dialect(
    "roundpipe.GradScaler[async]", _ROUNDPIPE, Rule(delay=1), _GROWTH_BACKOFF
)
ROUNDPIPE_MIXED = dataclasses.replace(
    ROUNDPIPE_ASYNC, name="roundpipe.GradScaler[mixed]"
)
ROUNDPIPE_SYNC = Dialect(
    "roundpipe.GradScaler[sync]", _ROUNDPIPE, Rule(), _GROWTH_BACKOFF
)

# ---------------------------------------------------------------------- large-model training stacks


def _megatron(rule: Rule, options: Options) -> Rule:
    low = rule.min_scale
    if low is None or not 0 < low <= rule.init_scale:
        raise ValueError(
            f"min_scale={low!r}: expected 0 < min_scale <= init_scale={rule.init_scale!r}; lower it"
        )
    return rule


MEGATRON = (
    Dialect(  # documents consecutive overflows, counts them since the last growth
        "megatron.core.DynamicGradScaler",
        "megatron-core 0.16.1 megatron/core/optimizer/grad_scaler.py:53-142",
        Rule(
            2.0**32,
            growth_interval=1000,
            min_scale=1.0,
            hysteresis=2,
            arithmetic=F32_UNGUARDED,
        ),
        {**_GROWTH_BACKOFF, "min_scale": "min_scale", "hysteresis": "hysteresis"},
        build=_megatron,
    )
)


def _colossalai(rule: Rule, options: Options) -> Rule:
    hysteresis = options["hysteresis"]
    return rule.replace(
        hysteresis=1
        if hysteresis == 0 and not isinstance(hysteresis, bool)
        else hysteresis,  # 0 acts as 1
        min_scale=rule.min_scale or None,  # `if self._min_scale`: 0 is none
        max_scale=rule.max_scale or None,
    )


COLOSSALAI = Dialect(
    "colossalai.DynamicGradScaler",
    "colossalai 0.5.0 colossalai/amp/naive_amp/grad_scaler/dynamic_grad_scaler.py:78-129",
    Rule(growth_interval=1000, arithmetic=F32_UNGUARDED),
    {**_GROWTH_BACKOFF, "min_scale": "min_scale", "max_scale": "max_scale"},
    {"hysteresis": 2},
    _colossalai,
)


def _deepspeed(rule: Rule, options: Options) -> Rule:
    _fixed_factor(rule, options)
    reset = "clean" if options["consecutive_hysteresis"] else "growth"
    quirks = (
        *rule.quirks,
        *([RaiseAtMin()] if options["raise_error_at_min_scale"] else []),
    )
    return rule.replace(hysteresis_reset=frozenset({reset}), quirks=quirks)


_DEEPSPEED_RULE = Rule(
    min_scale=1.0,
    growth_interval=1000,
    arithmetic=_dividing(F64),
    quirks=(StreakStartsAt(-1),),
)
DEEPSPEED = Dialect(
    "deepspeed.DynamicLossScaler",
    "deepspeed 0.19.8 deepspeed/runtime/fp16/loss_scaler.py:219-288; precision_config.py:85-89",
    _DEEPSPEED_RULE.replace(hysteresis=2),
    {**_INIT, "min_scale": "min_scale", "delayed_shift": "hysteresis"},
    {"consecutive_hysteresis": False, "raise_error_at_min_scale": True, "factor": 2.0},
    _deepspeed,
)
# and earlier: until June 2025 the first finite step counted as one
DEEPSPEED_0_17_0 = dataclasses.replace(
    DEEPSPEED,
    name="deepspeed.DynamicLossScaler[0.17.0]",
    source="deepspeed 0.17.0 deepspeed/runtime/fp16/loss_scaler.py:113-210; config.py",
    rule=DEEPSPEED.rule.replace(quirks=()),
)
DEEPSPEED_FP16 = Dialect(  # a second copy of the rule: no hysteresis, never raises
    "deepspeed.FP16_Optimizer",
    "deepspeed 0.19.8 deepspeed/runtime/fp16/fused_optimizer.py:404-429",
    _DEEPSPEED_RULE.replace(init_scale=2.0**32),
    {**_INIT, "min_scale": "min_scale"},
    {"factor": 2.0},
    _fixed_factor,
)
DEEPSPEED_UNFUSED = dataclasses.replace(
    DEEPSPEED_FP16,
    name="deepspeed.FP16_UnfusedOptimizer",
    source="deepspeed 0.19.8 deepspeed/runtime/fp16/unfused_optimizer.py:277-",
    rule=_DEEPSPEED_RULE.replace(min_scale=0.25),
)


def _fairseq(rule: Rule, options: Options) -> Rule:
    fraction = as_float("tolerance", options["tolerance"])
    limit = as_float("min_loss_scale", options["min_loss_scale"])
    quirks = (*([Tolerance(fraction)] if fraction > 0 else []), RaiseBelow(limit))
    return rule.replace(quirks=quirks)


FAIRSEQ = Dialect(
    "fairseq.DynamicLossScaler",
    "fairseq 0.12.2 fairseq/optim/dynamic_loss_scaler.py:31-69",
    Rule(2.0**15, arithmetic=_dividing(F64)),
    {**_FACTOR, "threshold": "min_scale"},
    {"tolerance": 0.0, "min_loss_scale": 1e-4},
    _fairseq,
)


def _apex(rule: Rule, options: Options) -> Rule:
    high = as_float("max_loss_scale", options["max_loss_scale"])
    low = rule.min_scale or None  # `if self._min_loss_scale`: 0 is none
    # apex clamps at construction.
    return rule.replace(
        init_scale=min(high, rule.init_scale), max_scale=high, min_scale=low
    )


APEX = Dialect(
    "apex.amp.LossScaler",
    "apex e13873de apex/amp/scaler.py:33-55,197-217",
    Rule(arithmetic=_dividing(F64)),
    {**_INIT, "min_loss_scale": "min_scale"},
    {
        "factor": 2.0,
        "max_loss_scale": 2.0**24,
    },  # apex accepts the factor and ignores it: always 2
    _apex,
)
APEX_FP16_UTILS = Dialect(
    "apex.fp16_utils.DynamicLossScaler",
    "apex e13873de apex/fp16_utils/loss_scaler.py:49-123",
    Rule(2.0**32, growth_interval=1000, min_scale=1.0, arithmetic=_dividing(F64)),
    _FACTOR,
)

MMCV = dataclasses.replace(  # apex's rule, with a modulo for the window
    APEX_FP16_UTILS,
    name="mmcv.runner.LossScaler",
    source="mmcv 1.7.2 (open-mmlab/mmcv@4c01b02) mmcv/runner/fp16_utils.py:334-410",
)


def _fairscale(rule: Rule, options: Options) -> Rule:
    low = rule.min_scale or 0.0
    high = math.inf if rule.max_scale is None else rule.max_scale
    # fairscale applies both bounds to each change, the plain machine one of them.
    if not low <= rule.init_scale <= high:
        raise ValueError(
            f"init_scale={rule.init_scale!r}: expected a scale from {low!r} to {high!r}; change it or the bounds"
        )
    return rule


# one layer: each layer has its own scale and growth tracker, and overflows on its own
FAIRSCALE = Dialect(
    "fairscale.LayerwiseGradientScaler",
    "fairscale 0.4.13 (facebookresearch/fairscale@10d21b3) fairscale/optim/layerwise_gradient_scaler.py:114-272",
    Rule(
        1.0,
        growth_interval=10000,
        min_scale=2.0**-126,
        max_scale=FP32.max_finite,
        arithmetic=F64,
    ),
    {**_GROWTH_BACKOFF, "min_scale": "min_scale", "max_scale": "max_scale"},
    build=_fairscale,
)


def _bmtrain(rule: Rule, options: Options) -> Rule:
    low, high = (
        as_float(name, options[name]) for name in ("min_loss_scale", "max_loss_scale")
    )
    return rule.replace(quirks=(HoldAtBounds(low, high),))


BMTRAIN = Dialect(
    "bmtrain.OptimManager",
    "bmtrain 1.0.1 bmtrain/optim/optim_manager.py:47-156,203-208",
    Rule(growth_interval=1024, growth_test=">=", arithmetic=_dividing(F64)),
    _FACTOR,
    {"min_loss_scale": 1.0, "max_loss_scale": math.inf},
    _bmtrain,
)

# -------------------------------------------------------------------------------------------------------
# JAX


def _late(rule: Rule, options: Options) -> Rule:
    """Return the rule of a scaler that compares its count before it adds one: growth comes one
    finite step late.
    """
    return rule.replace(growth_interval=rule.growth_interval + 1)


def _flax(rule: Rule, options: Options) -> Rule:
    late = _late(rule, options)
    return late if options["jit"] else late.replace(quirks=(FirstUpdateInDouble(),))


FLAX = Dialect(
    "flax.DynamicScale",
    "flax 0.12.8 flax/training/dynamic_scale.py:122-161",
    Rule(min_scale=2.0**-126, max_scale=FP32.max_finite, arithmetic=XLA),
    {**_GROWTH_BACKOFF, "minimum_scale": "min_scale"},
    {"jit": True},
    _flax,
)


def _jmp(rule: Rule, options: Options) -> Rule:
    if not options["jit"]:
        return rule.replace(arithmetic=_dividing(XLA))
    # Under jit XLA turns S / constant into S * (1 / constant), and tree_flatten loses
    # min_loss_scale.
    return rule.replace(
        min_scale=1.0, arithmetic=dataclasses.replace(XLA, backoff="reciprocal")
    )


JAXAMP = Dialect(  # an update is an attempt: `redo_on_nan` makes several with one batch
    "jaxamp.DynamicScalerState",
    "jaxamp 0.0.4 (acutkosky/jaxamp@243f346) src/jaxamp/_dynamic_scaler.py:25-88",
    Rule(2.0**15, growth_test=">=", arithmetic=_dividing(XLA_UNGUARDED)),
    _FACTOR,
    build=_late,
)
JMP = Dialect(
    "jmp.DynamicLossScale",
    "jmp 0.0.4 jmp/_src/loss_scale.py:138-174",
    Rule(2.0**15, min_scale=1.0, arithmetic=_dividing(XLA)),
    {**_FACTOR, "min_loss_scale": "min_scale"},
    {"jit": False},
    _jmp,
)


def _mpx(rule: Rule, options: Options) -> Rule:
    low = rule.min_scale if rule.min_scale is not None else 0.0
    return rule.replace(quirks=(ClipEveryUpdate(low, FP16.max_finite),))


MPX = Dialect(
    "mpx.DynamicLossScaling",
    "mixed_precision_for_jax 0.1.8 mpx/_loss_scaling.py:109-176",
    Rule(2.0**15, min_scale=1.0, arithmetic=_dividing(XLA)),
    {**_FACTOR, "min_loss_scaling": "min_scale"},
    build=_mpx,
)

# ----------------------------------------------------------------------------- Keras and TensorFlow

_KERAS = "keras 3.15.1 keras/src/optimizers/loss_scale_optimizer.py:144-244"
KERAS_TORCH = Dialect(
    "keras.LossScaleOptimizer[torch]",
    _KERAS,
    Rule(2.0**15, arithmetic=F32_UNGUARDED),
    _INIT,
    {"factor": 2.0},
    _fixed_factor,
)
KERAS_TENSORFLOW = dataclasses.replace(
    KERAS_TORCH,
    name="keras.LossScaleOptimizer[tensorflow]",
    rule=KERAS_TORCH.rule.replace(arithmetic=XLA_UNGUARDED),
)
KERAS_JAX = dataclasses.replace(
    KERAS_TENSORFLOW,
    name="keras.LossScaleOptimizer[jax]",
    options={"factor": 2.0, "stateless_jit": True},
)
_TF_RULE = Rule(2.0**15, min_scale=1.0, growth_test=">=", arithmetic=_dividing(F32))
TF_KERAS_STATE = Dialect(
    "tf_keras._DynamicLossScaleState",
    "tf_keras 2.21.0 tf_keras/src/mixed_precision/loss_scale_optimizer.py:253-316",
    _TF_RULE,
    _FACTOR,
)
TF_KERAS = dataclasses.replace(
    TF_KERAS_STATE,
    name="tf_keras.LossScaleOptimizer",
    parameters=_INIT,
    options={"factor": 2.0},
    build=_fixed_factor,
)
TF_V1 = Dialect(
    "tf.compat.v1.mixed_precision.DynamicLossScale",
    "tensorflow 2.21.0 tensorflow/python/training/experimental/loss_scale.py:373-420",
    _TF_RULE,
    _FACTOR,
)
TF_CONTRIB = Dialect(
    "tf.contrib.ExponentialUpdateLossScaleManager",
    "tensorflow 813c55a tensorflow/contrib/mixed_precision/python/loss_scale_manager.py",
    Rule(
        backoff_factor=0.8,
        min_scale=1.0,
        hysteresis=2,
        hysteresis_reset=frozenset({"growth", "backoff"}),
        growth_test=">=",
        arithmetic=F32,
    ),
    {**_GROWTH_BACKOFF, "decr_every_n_nan_or_inf": "hysteresis"},
)


def _openseq2seq(rule: Rule, options: Options) -> Rule:
    window = options["step_window"]
    interval = options["growth_interval"]
    if interval is not None and window is not None and interval != window:
        raise ValueError(
            f"growth_interval={interval!r} and step_window={window!r} set the same parameter; pass one of them"
        )
    steps = next((n for n in (window, interval) if n is not None), rule.growth_interval)
    high = rule.max_scale if rule.max_scale is not None else 2.0**14
    return rule.replace(init_scale=high, growth_interval=steps)  # starts at max_scale


OPENSEQ2SEQ = Dialect(
    "openseq2seq.BackoffScaler",
    "OpenSeq2Seq 8681d38 open_seq2seq/optimizers/automatic_loss_scaler.py",
    Rule(
        2.0**14,
        min_scale=1.0,
        max_scale=2.0**14,
        arithmetic=dataclasses.replace(F32, backoff="reciprocal"),
    ),
    {"scale_min": "min_scale", "scale_max": "max_scale", "step_factor": "factor"},
    {"step_window": None, "growth_interval": None, "resource_variables": False},
    _openseq2seq,
)

# ----------------------------------------------------- Paddle, MindSpore, MXNet, Chainer and nnabla

PADDLE = Dialect(
    "paddle.amp.GradScaler[dygraph]",
    "paddlepaddle 3.3.1 paddle/amp/grad_scaler.py:111-185,458-481",
    Rule(hysteresis_reset=frozenset({"clean", "backoff"}), arithmetic=F32_UNGUARDED),
    {**_GROWTH_BACKOFF, "decr_every_n_nan_or_inf": "hysteresis"},
)
# the kernel has a min_scale and a guard against inf; the dygraph class has neither
PADDLE_STATIC = Dialect(
    "paddle.static.update_loss_scaling[cpu kernel]",
    "paddlepaddle 3.3.1 paddle/phi/kernels/impl/amp_kernel_impl.h:42-",
    Rule(
        min_scale=1.0, hysteresis_reset=frozenset({"clean", "backoff"}), arithmetic=F32
    ),
    {**_GROWTH_BACKOFF, "decr_every_n_nan_or_inf": "hysteresis"},
)
MINDSPORE_AMP = Dialect(
    "mindspore.amp.DynamicLossScaler",
    "mindspore 2.10.0 mindspore/amp.py:325-417",
    Rule(min_scale=1.0, arithmetic=_dividing(F32)),
    _FACTOR,
)
MINDSPORE_CELL = Dialect(
    "mindspore.nn.DynamicLossScaleUpdateCell",
    "mindspore 2.10.0 mindspore/nn/wrap/loss_scale.py:88-198",
    Rule(
        min_scale=1.0,
        growth_test=">=",
        arithmetic=dataclasses.replace(F32_UNGUARDED, backoff="reciprocal"),
    ),
    _FACTOR,
)
MINDSPORE_MANAGER = Dialect(
    "mindspore.amp.DynamicLossScaleManager",
    "mindspore 2.10.0 mindspore/train/loss_scale_manager.py:122-200",
    Rule(2.0**24, min_scale=1.0, arithmetic=F64, quirks=(RaiseAfterConsecutive(1000),)),
    _FACTOR,
)


def _mxnet(rule: Rule, options: Options) -> Rule:
    _fixed_factor(rule, options)
    return rule.replace(max_scale=as_float("max_loss_scale", options["max_loss_scale"]))


MXNET = Dialect(
    "mxnet.contrib.amp.LossScaler",
    "mxnet 1.9.1 mxnet/contrib/amp/loss_scaler.py:45-68; gluon/trainer.py:431-433",
    Rule(delay=1, arithmetic=_dividing(F64)),
    _INIT,
    {"factor": 2.0, "max_loss_scale": 2.0**24},
    _mxnet,
)


def _chainer(rule: Rule, options: Options) -> Rule:
    # The updates in which the scale doubles, a little at each.
    interval = rule.growth_interval
    return rule.replace(growth_factor=2.0 ** (1.0 / interval), growth_interval=1)


CHAINER = Dialect(
    "chainer.GradientMethod.loss_scaling",
    "chainer 7.8.1 chainer/optimizer.py:736-791,879-894",
    Rule(
        1.0,
        growth_interval=1000,
        min_scale=1.0,
        max_scale=FP16.max_finite,
        arithmetic=F64,
        quirks=(RampUntilOverflow(2.0),),
    ),
    {**_INIT, "scale_min": "min_scale", "scale_max": "max_scale"},
    build=_chainer,
)

NNABLA = Dialect(  # counts as DeepSpeed does; an update is an attempt, and a batch has up to 101
    "nnabla.DynamicLossScalingUpdater",
    "nnabla 1.39.0 (sony/nnabla@2814df0) nnabla/experimental/mixed_precision_training.py:66-143",
    Rule(
        8.0, growth_test=">=", arithmetic=_dividing(F64), quirks=(StreakStartsAt(-1),)
    ),
    _FACTOR,
    build=_late,
)


def _guided_diffusion(rule: Rule, options: Options) -> Rule:
    growth = as_float("growth", options["growth"])
    if not 0 <= growth <= 1:
        raise ValueError(
            f"growth={growth!r}: expected 0 to 1, in log2 per finite step; the default is 0.001"
        )
    return rule.replace(growth_factor=2.0**growth, quirks=(StepsInLog2(growth),))


GUIDED_DIFFUSION = Dialect(
    "guided_diffusion.MixedPrecisionTrainer",
    "openai/guided-diffusion 22e0df8 guided_diffusion/fp16_util.py:158-220",
    Rule(2.0**20, growth_interval=1, arithmetic=F32_UNGUARDED),
    {"init_scale": "init_scale"},
    {"growth": 1e-3},
    _guided_diffusion,
)

# A dialect is a constant of this module, and is registered by being one.
ALL: Mapping[str, Dialect] = {
    d.name: d for d in tuple(globals().values()) if isinstance(d, Dialect)
}
"""All dialects, by name."""


def names() -> list[str]:
    """Return the names of all dialects.

    Returns:
        The names in alphabetical order, such as ``"torch.amp.GradScaler"``.
    """
    return sorted(ALL)


def get(name: str, **parameters: object) -> Rule:
    """Return the `Rule` of a framework's scaler.

    Args:
        name: Name of a dialect, see `names`.
        parameters: Parameters under the framework's own names; others keep the framework's
            defaults.

    Returns:
        Rule: The rule of the scaler.

    Raises:
        UnknownDialectError: If there is no such dialect; the message has the closest names. A
            KeyError.
        TypeError: If the framework has no such parameter, or its type is invalid.
        ValueError: If a value is invalid; see `Dialect.__call__`.

    >>> get("torch.amp.GradScaler", growth_interval=200).growth_interval
    200
    """
    if name not in ALL:
        raise UnknownDialectError(f"unknown dialect {name!r}: {nearest(name, ALL)}")
    return ALL[name](**parameters)


class UnknownDialectError(KeyError):
    """Raised for an unknown name of a dialect."""

    def __str__(self) -> str:
        """Return the message itself; KeyError would print its repr."""
        return str(self.args[0])
