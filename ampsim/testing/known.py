"""Checks that known scalers break, each with its reason and a link: pass them as ``expected_failures``.

Those of ``_RANKS`` are checks that they break where each rank has gradients of its own. Those
of ``_DDP`` and ``_FSDP2`` they break under torch's DistributedDataParallel and fully_shard; torch.amp.GradScaler breaks
none there. Where a link is to the source, a search of the issues at torch 2.13 found no report.
"""

_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/amp/grad_scaler.py"
_KERNEL = "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp"
_FUSED = (
    "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/FusedSGDKernel.cpp"
)
_SHARDED = (
    "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/distributed/fsdp/sharded_grad_scaler.py"
)
_ISSUE = "https://github.com/pytorch/pytorch/issues/"

TORCH = {  # torch.amp.GradScaler of torch 2.13, and what inherits from it
    "skip_is_reported": f"nothing tells a skipped step: {_ISSUE}67590",
    "a_positional_closure_is_refused": f"step() looks for the keyword only: {_SOURCE}",
    "constants_that_no_run_could_want_are_refused": f"two assertions, which NaN passes: {_SOURCE}",
    "optimizers_are_told_apart": f"stages are kept by id(optimizer), which Python gives out again: {_SOURCE}",
    "growth_goes_on_when_the_interval_is_lowered": f"the streak is compared by ==: {_KERNEL}",
    "an_update_between_two_steps_divides_nothing_wrong": f"a step divides by the scale of the moment: {_SOURCE}",
    "fused_steps_follow_strides": f"its kernel walks over memory in the parameter's order: {_FUSED}",
    "a_state_dict_is_never_torn": f"scale and growth tracker are read one after the other: {_SOURCE}",
    "a_refused_state_dict_changes_nothing": f"keys are taken over one by one: {_SOURCE}",
    "never_steps_on_nonfinite_below_scale_one": f"only the scaled gradient is checked: {_ISSUE}96755",
    "never_steps_on_nonfinite_at_subnormal_scales": f"float32(1/S) is inf for S <= 2^-128: {_ISSUE}99640",
    "scale_stays_normal": f"no floor: {_ISSUE}157436",
    "scale_comes_back": f"166 overflows lead to 0, and 0 * growth is 0: {_ISSUE}99640",
}

_ALONE = "it asks no other rank, which plain tensors need: https://github.com/facebookresearch/fairscale/pull/179"
TORCH_RANKS = {  # torch.amp.GradScaler, of plain tensors; DTensors, as FSDP2's, reduce the flag themselves
    "a_rank_without_gradients_takes_part": f"step() asserts that a gradient was looked at: {_SOURCE}",
    "no_rank_steps_on_an_overflow": _ALONE,
    "a_rank_that_parts_misleads_nobody": _ALONE,
    "verdicts_agree": _ALONE,
    "scales_agree": _ALONE,
    "one_overflow_on_ranks_is_one_overflow": _ALONE,
    "resume_with_one_ranks_file_is_invisible": _ALONE,
}

_FUSED_ALONE = f"unscale_() reduces the flag, a fused step without it does not: {_SHARDED}"
_SHAPE = f"its flag has the shape (1,), and fused AdamW's step counts have none: {_ISSUE}140514"
_ADDED = f"flags are added, and kernels skip at exactly 1, not at 2: {_SHARDED}"
_NO_KEY = f"the n-th flag of one rank is added to the n-th of the others, whatever they are of: {_SHARDED}"
SHARDED_RANKS = {  # torch.distributed's ShardedGradScaler; without fused optimizers only the check of a rank that parts
    "no_rank_raises": _SHAPE,
    "parameters_stay_finite": _ADDED,
    "no_rank_steps_on_an_overflow": _FUSED_ALONE,
    "a_rank_that_parts_misleads_nobody": _NO_KEY,
    "verdicts_agree": _FUSED_ALONE,
    "scales_agree": _FUSED_ALONE,
    "one_overflow_on_ranks_is_one_overflow": _FUSED_ALONE,
}
SHARDED_DDP = {
    "no_rank_raises": _SHAPE,
    "parameters_stay_finite": _ADDED,
    "no_rank_steps_on_an_overflow": _ADDED,
}
SHARDED_FSDP2 = {
    "no_rank_raises": _SHAPE
}  # torch 2.13 has no fused SGD of DTensors, whose kernel would see a 2
