"""A process with two data loader workers and a child that another thread forked; says who they are, then waits."""

import multiprocessing
import sys
import threading
import time

from torchdata.stateful_dataloader import StatefulDataLoader

from deadpool.trainer.process.forked_child import end_children_with_this_process

if sys.argv[1:] == ["injection_ordered"]:
    end_children_with_this_process()
loader = StatefulDataLoader(range(4), num_workers=2)
held = iter(loader)
other = multiprocessing.get_context("fork").Process(target=time.sleep, args=(600,))
thread = threading.Thread(target=other.start)
thread.start()
thread.join()
print(*(worker.pid for worker in held._workers), other.pid, flush=True)
time.sleep(600)
