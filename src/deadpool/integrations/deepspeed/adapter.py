"""The adapter of an engine: drops what a step that was cut off left in it, and says what ranks hold alike."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

import torch.distributed as dist

from deadpool.integrations.deepspeed.leftovers import Leftovers
from deadpool.trainer.adapters.adapter import Adapter


class EngineAdapter(Adapter):
    name = "deepspeed"

    def __init__(self, engine: Any, leftovers: Leftovers) -> None:
        self._engine, self._leftovers = engine, leftovers

    def reset(self) -> None:
        engine = self._engine
        engine._running_engine_step = engine._manual_backward_expected = engine.inside_no_sync_ctxt = False
        engine.losses = None
        for timer in engine.timers.get_timers().values():
            timer.reset()  # one that runs refuses to be started
        engine.tput_timer.started = False
        self._leftovers.drop()

    def rehearsing(self) -> AbstractContextManager[None]:
        return self._leftovers.rehearsing()

    def seated(self, resume_step: int) -> None:
        self._leftovers.seated()

    def replicas(self) -> dict[int, tuple[int, ...]]:
        ranks = tuple(sorted(dist.get_process_group_ranks(self._engine.seq_data_parallel_group)))
        return {id(each): ranks for each in self._leftovers.replicated()} if len(ranks) > 1 else {}
