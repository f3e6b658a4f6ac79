"""Loss scales of public CUDA runs: extracted from logs, and followed by the state machine."""
