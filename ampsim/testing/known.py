"""Checks that known scalers fail, each with its reason and a link: pass them as ``expected_failed_checks``."""

_SOURCE = "https://github.com/pytorch/pytorch/blob/v2.13.0/torch/amp/grad_scaler.py"
_KERNEL = "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/AmpGradScalerKernels.cpp"
_FUSED = "https://github.com/pytorch/pytorch/blob/v2.13.0/aten/src/ATen/native/cpu/FusedSGDKernel.cpp"
_ISSUE = "https://github.com/pytorch/pytorch/issues/"

TORCH = {  # torch.amp.GradScaler of torch 2.13, and what inherits from it
    "skip_is_reported": f"nothing tells a skipped step: {_ISSUE}67590",
    "a_positional_closure_is_refused": f"step() looks for the keyword only: {_SOURCE}",
    "constants_that_no_run_could_want_are_refused": f"two assertions, which NaN passes: {_SOURCE}",
    "optimizers_are_told_apart": f"stages are kept by id(optimizer), which Python gives out again: {_SOURCE}",
    "growth_goes_on_when_the_interval_is_lowered": f"the streak is compared by ==: {_KERNEL}",
    "an_update_between_two_steps_divides_nothing_wrong": f"a step divides by the scale of the moment: {_SOURCE}",
    "fused_steps_follow_strides": f"its kernel walks over memory in the parameter's order: {_FUSED}",
    "gradients_keep_their_scale_behind_a_queue": f"one scale, written in place by update(): {_SOURCE}",
    "a_state_dict_is_never_torn": f"scale and growth tracker are read one after the other: {_SOURCE}",
    "a_refused_state_dict_changes_nothing": f"keys are taken over one by one: {_SOURCE}",
    "never_steps_on_nonfinite_below_scale_one": f"only the scaled gradient is checked: {_ISSUE}96755",
    "never_steps_on_nonfinite_at_subnormal_scales": f"float32(1/S) is inf for S <= 2^-128: {_ISSUE}99640",
    "scale_stays_normal": f"no floor: {_ISSUE}157436",
    "scale_comes_back": f"166 overflows lead to 0, and 0 * growth is 0: {_ISSUE}99640",
}
