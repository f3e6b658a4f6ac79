"""A pure model of torch's GradScaler.

`protocol` models the calls of an iteration, `refusals` has torch's exceptions and their texts, `arithmetic` has its
kernels in numpy, and `state_dict` models getters, setters, and state dicts. The package does not import torch.
"""
