"""torch's GradScaler as a pure model: protocol, refusals, arithmetic, state dict. It knows no torch."""
