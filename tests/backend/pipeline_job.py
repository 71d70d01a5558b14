"""A pipeline of as many stages as ranks, or twice as many, in the shape of backend_child's other jobs.

A live rank leaves the recording book of its first step in the scenario's folder, and a stand-in rehearses with it.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from backend_child import WIDTH, Job, Scenario
from torch import nn
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleGPipe, ScheduleInterleaved1F1B

from deadpool.backend.interception import CollectiveReplay
from deadpool.backend.recorded_collectives import RecordedCollectives
from deadpool.trainer.adapters import adapters_for
from deadpool.trainer.adapters.pipeline import watch_schedules

MICROBATCHES = 4
BOOK_WAIT_S = 300.0


class PipelineJob(Job):
    def __init__(self, scenario: Scenario, rank: int) -> None:
        self._scenario, self._rank = scenario, rank
        self._replay = CollectiveReplay()
        watch_schedules()
        torch.manual_seed(7)
        per_rank = 2 if scenario.framework == "pp-interleaved" else 1
        count = per_rank * scenario.world_size
        parts = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh()) for _ in range(count)]
        mine = {index: parts[index] for index in range(rank, count, scenario.world_size)}
        stages = [PipelineStage(part, index, count, torch.device("cpu")) for index, part in mine.items()]
        self.model: Any = nn.ModuleList(mine.values())
        self.schedule = _schedule(scenario.framework, stages)
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-2, foreach=False)
        self.adapters = adapters_for([self.model])
        self.step = 0

    @property
    def middle(self) -> nn.Module:
        return self.model[0]

    def train_one(self) -> float:
        generator = torch.Generator().manual_seed(self.step)
        inputs, targets = torch.randn(2, 2 * MICROBATCHES, WIDTH, generator=generator)
        losses: list[torch.Tensor] = []
        is_last = self._rank == self._scenario.world_size - 1
        self.schedule.step(
            *([inputs] if self._rank == 0 else []),
            target=targets if is_last else None,
            losses=losses if is_last else None,
        )
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)
        self.step += 1
        return sum(loss.item() for loss in losses)

    def begin_recording(self) -> None:
        self._replay.record()

    def save(self) -> None:
        super().save()
        if self._replay.is_recording and self.step == 1:
            self._replay.end()
            draft = self._book.with_suffix(".draft")
            draft.write_bytes(self._replay.recorded.pack())
            draft.rename(self._book)

    def rehearse(self) -> None:
        """Nothing that goes wrong in a rehearsal matters, as in rehearsal.py."""
        book = self._await_book()
        self._replay.replay(book.get)
        try:
            super().rehearse()
        except Exception as error:
            print(f"dry step of rank {self._rank} failed: {error}")
        self._replay.end()
        self.reset()

    def reset(self) -> None:
        self._replay.end()
        super().reset()

    @property
    def _book(self) -> Path:
        return Path(self._scenario.directory) / f"rank{self._rank}.book"

    def _await_book(self) -> RecordedCollectives:
        if self._scenario.omitted == "recordings" or self._scenario.dies_at_step == 0:
            return RecordedCollectives()
        deadline = time.monotonic() + BOOK_WAIT_S
        while not self._book.exists():
            assert time.monotonic() < deadline, "the live rank left no book"
            time.sleep(0.01)
        return RecordedCollectives.unpack(self._book.read_bytes())


def _schedule(framework: str, stages: list[PipelineStage]) -> Any:
    match framework:
        case "pp-gpipe":
            return ScheduleGPipe(stages[0], MICROBATCHES, loss_fn=F.mse_loss)
        case "pp-1f1b":
            return Schedule1F1B(stages[0], MICROBATCHES, loss_fn=F.mse_loss)
        case "pp-interleaved":
            return ScheduleInterleaved1F1B(stages, MICROBATCHES, loss_fn=F.mse_loss)
    raise AssertionError(framework)
