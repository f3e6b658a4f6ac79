"""The room that judges a training loop: laws that need no reference run, as multiplying by a power of two is exact."""
