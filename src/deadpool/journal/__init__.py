"""Where the values of `job.log` go: `job.log_to(Jsonl("loss.jsonl"), TensorBoard("runs"), WandB(project="mine"))`.

A sink is anything with the methods of `Sink`; the three here know by what they find at their destination which steps
it has, so that each step is there once, whoever wrote it.
"""

from __future__ import annotations

from deadpool.journal.entry import Entry, Run, Sink
from deadpool.journal.jsonl import Jsonl
from deadpool.journal.tensorboard import TensorBoard
from deadpool.journal.wandb import WandB

__all__ = ["Entry", "Jsonl", "Run", "Sink", "TensorBoard", "WandB"]
