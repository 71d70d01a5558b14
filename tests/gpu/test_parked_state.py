"""A parked trainer gives back device memory, and a restore into what it allocates again gives the same state."""

from __future__ import annotations

import torch
from cuda_job import CudaJob, registered_slot


def test_memory_is_given_back_and_the_state_restored() -> None:
    job = CudaJob("master", width=200_000)
    job.train(2)
    job.optimizer.zero_grad()
    with registered_slot(job.state) as slot:
        assert slot.open(job.state).advance(lambda: False)
        digest = job.state.digest()
        losses = job.train(3)
        job.optimizer.zero_grad()
        torch.cuda.empty_cache()
        before = torch.cuda.mem_get_info()[0]
        freed = job.state.free_parked()
        assert torch.cuda.mem_get_info()[0] - before > 0.9 * freed.nbytes > 100_000_000
        freed.allocate()
        slot.restore(job.state)
        assert job.state.digest() == digest
        assert job.train(3) == losses
