"""Reads and writes of gradients: unscaling, the non-finite check, norms, kernels. It knows no tickets and no locks."""
