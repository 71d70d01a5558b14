"""Destroys its groups after its loop, and then rank 0 stands still for ever with Python's lock held, as torch can."""

from __future__ import annotations

import ctypes

import small_job

import deadpool

SEMAPHORE_BYTES = 64


def stand_still() -> None:
    """Waits for a semaphore that nobody raises. A call by PyDLL does not give up Python's lock."""
    semaphore = ctypes.create_string_buffer(SEMAPHORE_BYTES)
    library = ctypes.PyDLL(None)
    library.sem_init(semaphore, 0, 0)
    library.sem_wait(semaphore)


args = small_job.make_parser().parse_args()
pool = deadpool.join(backend="gloo")
small_job.train(
    pool,
    small_job.make_model(),
    args.out,
    reduce=lambda model, step: small_job.reduce_over(None, model),
    following=lambda step: small_job.inputs_of(step, pool.rank),
)
if pool.rank == 0:
    stand_still()
