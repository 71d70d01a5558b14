"""Wraps its model in the way that --way says, and protects what is inside: that has to be refused."""

from __future__ import annotations

import torch
from small_job import make_parser
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.nn.parallel import DistributedDataParallel

import deadpool

parser = make_parser()
parser.add_argument("--way", choices=("inside", "later", "fsdp1", "dropped"), required=True)
way = parser.parse_args().way
pool = deadpool.join()
net = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
for _ in range(2):
    DistributedDataParallel(net)  # dropped at once: does no harm
if way == "inside":
    ddp = DistributedDataParallel(net)
elif way == "fsdp1":
    net = FullyShardedDataParallel(net, device_id=torch.device("cpu"), use_orig_params=True)
job = pool.protect(model=net, optimizer=torch.optim.SGD(net.parameters(), lr=0.1))
if way == "later":
    ddp = DistributedDataParallel(net[0])
for step in job.steps(2):
    with step:
        pass
print("ended well", flush=True)
