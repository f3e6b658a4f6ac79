"""Lightning's plugin of mixed precision around torch's scaler."""

import logging
from typing import Any

from ampsim.frameworks.adapters.torch_like import TorchLike


class Lightning(TorchLike):
    """MixedPrecision, which divides before the hooks that clip, then steps and updates."""

    name = "lightning"
    requirement = "lightning==2.6.6"
    target = "lightning.pytorch.plugins.precision.MixedPrecision"
    source = "https://github.com/Lightning-AI/pytorch-lightning/blob/2.6.6/src/lightning/pytorch/plugins/precision/amp.py#L29"
    dialect = "torch.amp.GradScaler"
    same_class = "torch"

    def make(self, **constants: Any) -> Any:
        import torch
        from lightning.pytorch import LightningModule, Trainer
        from lightning.pytorch.plugins.precision import MixedPrecision

        # A trainer logs which devices it found.
        logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
        scaler = torch.amp.GradScaler("cpu", **constants)
        self.plugin = MixedPrecision("16-mixed", "cpu", scaler)
        self.module = LightningModule()
        self.module.trainer = Trainer(
            accelerator="cpu", logger=False, enable_checkpointing=False
        )
        self.module.trainer.strategy.connect(self.module)
        return scaler

    def iterate(self) -> None:
        import torch

        self.plugin.optimizer_step(
            self.optimized.optimizer, self.module, lambda: torch.zeros(())
        )

    def state_dict(self) -> object:
        return self.plugin.state_dict()

    def load_state_dict(self, state: object) -> None:
        self.plugin.load_state_dict(state)
