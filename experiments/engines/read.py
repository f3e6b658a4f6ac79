"""Engines that were not run: what their source does with fp16, at a commit."""

READ = {
    "verl": (
        "verl b178a3cd",
        "FSDP actor: ShardedGradScaler, unscaled before clipping; checkpoints name no scaler",
    ),
    "OpenRLHF": ("OpenRLHF 3c3be623", "DeepSpeed's fp16, by param_dtype fp16"),
    "torchtitan": ("torchtitan b5bcd76c", "no loss scaler; mixed_precision_param has no float16"),
    "prime-rl": ("prime-rl 559b4477", "the trainer's optimization_dtype has no float16"),
}
