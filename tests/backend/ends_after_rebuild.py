"""Two ranks that rebuild their groups and then simply end, one with destroy_process_group and one without."""

import os
import sys

import torch
import torch.distributed as dist

from deadpool.backend.groups import Groups

torch.set_num_threads(1)
server = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
port, reading, writing = server.port, *os.pipe()
rank = 0 if os.fork() else 1
store = dist.TCPStore("127.0.0.1", port, is_master=False) if rank else server.clone()
groups = Groups(timeout_s=20)
groups.install()
groups.init(backend="gloo", store=store, rank=rank, world_size=2, detached=False)
dist.barrier()
store.add("used", 1)
while store.add("used", 0) < 2:
    pass
groups.abort()
store.add("aborted", 1)
while store.add("aborted", 0) < 2:
    pass
groups.rebuild(store, "g2")
dist.barrier()
print("ended", flush=True)
if rank == 1:
    dist.destroy_process_group()
    os.write(writing, b"x")
else:
    os.read(reading, 1)  # the store's server goes with this process
    sys.exit(os.waitstatus_to_exitcode(os.wait()[1]))
