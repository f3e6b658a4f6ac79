"""torch: a gloo group that exists when torch.distributed.nn is imported outlives destroy_process_group.

torch/distributed/nn/functional.py has `group=group.WORLD` as a default argument. Imported later, the group's
threads are still there at the interpreter's end. Run with torch 2.13.0 on the CPU of Linux.
"""

import os
from pathlib import Path

import torch
import torch.distributed as dist


def threads():
    tasks = Path("/proc/self/task").iterdir()
    return any("gloo" in (task / "comm").read_text() for task in tasks)


for imported_first in (False, True):
    if pid := os.fork():
        os.waitpid(pid, 0)
        continue
    if imported_first:
        import torch.distributed.nn
    store = dist.HashStore()  # type: ignore[attr-defined]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    dist.all_reduce(torch.ones(1))
    import torch.distributed.nn

    dist.destroy_process_group()
    print(
        f"imported first: {imported_first}; gloo threads left: {threads()}", flush=True
    )
    os._exit(0)
