"""Known failures of scalers, each with its reason and a link: pass them as ``expected_failures``.

The failures of ``_RANKS`` occur if each rank has gradients of its own. Those of ``_DDP`` and
``_FSDP2`` occur under torch's DistributedDataParallel and fully_shard, where torch.amp.GradScaler
has none. If a link is to the source, a search of the issues at torch 2.13 found no report.
"""

_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/amp/grad_scaler.py"
_KERNEL = "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp"
_FUSED = "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/FusedSGDKernel.cpp"
_SHARDED = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/sharded_grad_scaler.py"
_ISSUE = "https://github.com/pytorch/pytorch/issues/"

# At the limits of float32: torch.amp.GradScaler's own, which no other scaler has to repeat.
_FLOAT32 = {
    "no_nonfinite_step_below_scale_one": f"only the scaled gradient is checked: {_ISSUE}96755, {_ISSUE}99640",
    "scale_is_never_subnormal": f"no min_scale: {_ISSUE}157436",
    "scale_recovers_after_overflows": f"the scale is 0 after 166 overflows, and 0 * growth is 0: {_ISSUE}99640",
}
TORCH = {  # torch.amp.GradScaler of torch 2.13, and what inherits from it
    "last_step_reports_skip": f"no attribute reports a skipped step: {_ISSUE}67590",
    "positional_closure_raises": f"step() checks only for the keyword: {_SOURCE}",
    "invalid_arguments_raise": f"only two assertions, which NaN passes: {_SOURCE}",
    "optimizers_with_reused_id_are_distinct": f"stages are stored by id(optimizer), which Python reuses: {_SOURCE}",
    "growth_continues_after_interval_is_lowered": f"the growth tracker is compared with ==: {_KERNEL}",
    "update_between_steps_keeps_gradients_correct": f"a step divides by the current scale: {_SOURCE}",
    "fused_step_respects_strides": f"its kernel reads the gradient with the strides of the parameter: {_FUSED}",
    "gradients_are_divided_once": f"each optimizer divides the gradient of a parameter in both: {_SOURCE}",
    "no_nonfinite_step_after_unscale": f"unscale_() checks gradients, and step() does not again: {_ISSUE}97415",
    "state_dict_is_atomic": f"scale and growth tracker are read one after the other: {_SOURCE}",
    "invalid_state_dict_changes_nothing": f"keys are loaded one by one: {_SOURCE}",
    **_FLOAT32,
}


def known(check: str, *, inherits: bool) -> str | None:
    """Return why a failure of a check is no finding: torch.amp.GradScaler fails it too; else None.

    Args:
        check: Name of the check.
        inherits: Whether the scaler inherits from torch's. If not, it has no reason to fail at the
            limits of float32, where the scale is lost.
    """
    if check not in TORCH or (check in _FLOAT32 and not inherits):
        return None
    return f"torch.amp.GradScaler fails this too: {TORCH[check]}"


_ALONE = "it does not synchronize across ranks, which plain tensors need: https://github.com/facebookresearch/fairscale/pull/179"
# torch.amp.GradScaler, of plain tensors; DTensors, as FSDP2's, reduce the flag themselves
TORCH_RANKS = {
    "rank_without_gradients_participates": f"step() asserts that a gradient was checked: {_SOURCE}",
    "no_rank_steps_on_overflow": _ALONE,
    "desynchronized_rank_is_detected": _ALONE,
    "ranks_agree_on_skips": _ALONE,
    "ranks_agree_on_scale": _ALONE,
    "simultaneous_overflows_count_once": _ALONE,
    "resume_from_one_rank_is_exact": _ALONE,
}

_FUSED_ALONE = (
    f"unscale_() reduces the flag, a fused step without it does not: {_SHARDED}"
)
_SHAPE = f"its flag has the shape (1,), and fused AdamW's step counts have none: {_ISSUE}140514"
_ADDED = f"flags are added, and kernels skip at exactly 1, not at 2: {_SHARDED}"
_NO_KEY = f"the n-th flags of all ranks are added, even if they belong to different optimizers: {_SHARDED}"
# torch.distributed's ShardedGradScaler; unfused only desynchronized_rank_is_detected
SHARDED_RANKS = {
    "no_rank_raises": _SHAPE,
    "parameters_stay_finite": _ADDED,
    "no_rank_steps_on_overflow": _FUSED_ALONE,
    "desynchronized_rank_is_detected": _NO_KEY,
    "ranks_agree_on_skips": _FUSED_ALONE,
    "ranks_agree_on_scale": _FUSED_ALONE,
    "simultaneous_overflows_count_once": _FUSED_ALONE,
}
SHARDED_DDP = {
    "no_rank_raises": _SHAPE,
    "parameters_stay_finite": _ADDED,
    "no_rank_steps_on_overflow": _ADDED,
}
SHARDED_FSDP2 = {
    "no_rank_raises": _SHAPE
}  # torch 2.13 has no fused SGD of DTensors, whose kernel would see a 2
