"""torch's GradScaler as a pure model: what it refuses, skips, leaves behind and saves.

`protocol` is the calls of an iteration, `refusals` torch's exceptions and their texts, `arithmetic` its kernels in
numpy, `state_dict` what is read, set, saved and loaded. It knows torch's source and does not import torch.
"""
