"""The ranks of a process group that train together, each with a scaler, step and scale as one.

scenario What every rank does: iterations, and who overflows in which; and what was seen of it on
    one rank.
gradients Where a rank's gradients come from: set by hand, or torch's DistributedDataParallel and
    fully_shard.
checks
    What must be true of what all ranks were seen to do.
threads
    Ranks as threads under `ampsim.testing.scheduler`: each rank first or late, in milliseconds.
processes
    Ranks as processes with gloo: the truth, in the one order that comes.
judge
    To play the scenarios in both, and to hold what was seen to the checks.
"""
