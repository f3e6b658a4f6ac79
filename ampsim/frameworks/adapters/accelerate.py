"""accelerate's wrapper, which makes torch's scaler and calls its step and update in one."""

from typing import Any

from ampsim.frameworks.adapters.torch_like import TorchLike


class Accelerate(TorchLike):
    """AcceleratedOptimizer around torch's scaler."""

    name = "accelerate"
    requirement = "accelerate==1.15.0"
    target = "accelerate.optimizer.AcceleratedOptimizer"
    source = "https://github.com/huggingface/accelerate/blob/v1.15.0/src/accelerate/optimizer.py#L37"
    dialect = "torch.amp.GradScaler"
    same_class = "torch"
    patched = "the scaler is made by hand with device='cpu': on a CPU accelerate takes no fp16"

    def make(self, **constants: Any) -> Any:
        import torch

        return torch.amp.GradScaler("cpu", **constants)

    def start(self, **constants: Any) -> None:
        from accelerate import Accelerator
        from accelerate.optimizer import AcceleratedOptimizer

        super().start(**constants)
        Accelerator(cpu=True)  # the state that its optimizer asks for
        self.wrapped = AcceleratedOptimizer(
            self.optimized.optimizer, device_placement=False, scaler=self.scaler
        )

    def iterate(self) -> None:
        self.wrapped.step()
