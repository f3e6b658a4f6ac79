"""Training engines, run as they are in fp16 on the CPU.

`job` is what an engine trains; `checks` is what it must satisfy. Each other module has the
functions that train with one project's engines. An engine that accepts fp16 only on CUDA gets a CPU
GradScaler and CPU autocast; `Engine.replaced` states what was replaced, and the rest is the
engine's own code.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """An engine of the table.

    Attributes:
        function: The function that trains, as `module:name` below this package.
        package: The distribution to install.
        module: What the distribution is imported as.
        replaced: What was replaced to run on a CPU.
    """

    function: str
    package: str
    module: str
    replaced: str


VERL = (
    "the constructor of FSDPEngine; a CPU ShardedGradScaler; the CUDA device is the CPU"
)
HERE = "fp16 and a CPU GradScaler set after construction"
PASSED = "a CPU GradScaler is passed"
CUDA = "CUDA devices are the CPU, and CUDA tensor types too"
ENGINES = {
    "torch": Engine("torch_loops:grad_scaler", "torch", "torch", "nothing"),
    "fsdp2": Engine("torch_loops:fsdp2", "torch", "torch", "nothing"),
    "accelerate": Engine("hugging_face:accelerate", "accelerate", "accelerate", HERE),
    "transformers": Engine("hugging_face:transformers", "transformers", "transformers", HERE),
    "trl": Engine("trl_sft:train", "trl", "trl", f"{HERE}; the loss"),
    "fabric": Engine("lightning_ai:fabric", "lightning", "lightning", PASSED),
    "lightning": Engine("lightning_ai:trainer", "lightning", "lightning", PASSED),
    "mmengine": Engine("torch_loops:mmengine", "mmengine", "mmengine", "the CUDA check; a CPU GradScaler"),
    "megatron": Engine("megatron_core:train", "megatron-core", "megatron", CUDA),
    "slime": Engine("megatron_core:slime", "megatron-core", "megatron", f"{CUDA}; slime's calls are copied"),
    "deepspeed": Engine("deepspeed_zero:train", "deepspeed", "deepspeed", "the fp16 check of the CPU accelerator"),
    "deepspeed-3": Engine("deepspeed_zero:stage3", "deepspeed", "deepspeed", "the fp16 check of the CPU accelerator"),
    "verl": Engine("verl_fsdp:train", "verl", "verl", VERL),
}  # fmt: skip

# Engines that were not run: source, and what it does with fp16 there.
READ = {
    "OpenRLHF": ("OpenRLHF 3c3be623", "DeepSpeed's fp16, by param_dtype fp16"),
    "torchtitan": (
        "torchtitan b5bcd76c",
        "no loss scaler; mixed_precision_param has no float16",
    ),
    "prime-rl": (
        "prime-rl 559b4477",
        "the trainer's optimization_dtype has no float16",
    ),
}
