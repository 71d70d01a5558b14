"""Two ranks that rebuild their groups and then simply end, one with destroy_process_group and one without."""

import os
import sys

import torch
import torch.distributed as dist

from deadpool.backend.groups import Groups


def meet(name: str) -> None:
    if store.add(name, 1) == 2:
        store.set(f"{name}/all", "")
    store.wait([f"{name}/all"])


torch.set_num_threads(1)
here, there = os.pipe()
rank = 0 if os.fork() else 1
if rank == 0:
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.write(there, str(store.port).encode())
else:
    store = dist.TCPStore("127.0.0.1", int(os.read(here, 10)), is_master=False)
groups = Groups(timeout_s=3600)
groups.install()
groups.init(backend="gloo", store=store, rank=rank, world_size=2, detached=False)
dist.barrier()
meet("used")
groups.abort()
meet("aborted")
groups.rebuild(store, "g2")
dist.barrier()
meet("rebuilt")
print("ended", flush=True)
if rank == 1:
    dist.destroy_process_group()
else:
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
