"""The functions of the rules, by their names.

One of events is asked whether an event, of the kinds that its text lists, is a finding. One of a
file yields the nodes that are findings.
"""

import ast
from collections.abc import Callable, Iterator

from ampsim.lint.events import Event, Trace, Traces
from ampsim.lint.rules.jax import is_finite_ignored, new_scale_ignored
from ampsim.lint.rules.loop import gradients_never_zeroed, lost_accumulation
from ampsim.lint.rules.order import (
    average_updates_on_skip,
    clip_before_unscale,
    clip_per_micro_batch,
    optimizer_bypasses_scaler,
    scaled_gradients_read,
    scheduler_steps_on_skip,
    skip_detected_by_equality,
    unscale_per_micro_batch,
)
from ampsim.lint.rules.precision import (
    autocast_without_scaler,
    scaler_with_bfloat16,
    unused_scaler,
)
from ampsim.lint.rules.state import (
    scaler_not_loaded,
    scaler_not_saved,
    scaler_recreated_in_loop,
)
from ampsim.lint.source import Source

OfEvents = Callable[[Source, Trace, Event], bool]
OfFile = Callable[[Source, Traces], Iterator[ast.AST]]

OF_EVENTS = {
    each.__name__: each
    for each in (
        autocast_without_scaler,
        average_updates_on_skip,
        clip_before_unscale,
        clip_per_micro_batch,
        gradients_never_zeroed,
        optimizer_bypasses_scaler,
        scaled_gradients_read,
        scheduler_steps_on_skip,
        skip_detected_by_equality,
        unscale_per_micro_batch,
    )
}
OF_FILE = {
    each.__name__: each
    for each in (
        is_finite_ignored,
        lost_accumulation,
        new_scale_ignored,
        scaler_not_loaded,
        scaler_not_saved,
        scaler_recreated_in_loop,
        scaler_with_bfloat16,
        unused_scaler,
    )
}
