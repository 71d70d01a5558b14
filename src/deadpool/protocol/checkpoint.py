"""A complete durable checkpoint as the cores know it, and what they are told to do about checkpoints. Values only."""

from __future__ import annotations

from deadpool.protocol.inventory_batches import Copy
from deadpool.protocol.structs import Value


class Checkpoint(Value, frozen=True, kw_only=True):
    """Complete in the store. `copies` has every rank's own seal, in the order of ranks."""

    name: str
    number: int
    copies: tuple[Copy, ...]
    recordings: tuple[bytes, ...] = ()  # of every rank; empty: the job itself has them


class DurableSettings(Value, frozen=True, kw_only=True):
    """Where and how often checkpoints are written, and how much of the machine that may take."""

    where: str
    job: str  # tells the checkpoints of this job from those of others in the same place
    every_s: float = 0.0  # 0: not by time
    every_steps: int = 0  # 0: not by steps
    bytes_per_s: float = 0.0  # of each node; 0: no limit
    nice: int = 10  # of the processes that write
    timeout_s: float = 1800.0  # after which a write is given up
    keep_last: int = 3  # 0: all
    keep_every: int = 0  # checkpoints whose step is a multiple of this stay too; 0: none
