"""One optimizer's step: what was recorded of it, whether it is taken, whose gradients it reads."""
