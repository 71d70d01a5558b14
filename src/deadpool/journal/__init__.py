"""Sinks for the values of `job.log`: `job.log_to(Jsonl("loss.jsonl"), TensorBoard("runs"), WandB(project="mine"))`.

A sink is any object with the methods of `Sink`. The three sinks here read from their destination which steps it already
has. So every step is written once, even if the rank moves to another process in between.
"""

from __future__ import annotations

from deadpool.journal.entry import Entry, Run, Sink
from deadpool.journal.jsonl import Jsonl
from deadpool.journal.trackers import TensorBoard, WandB

__all__ = ["Entry", "Jsonl", "Run", "Sink", "TensorBoard", "WandB"]
