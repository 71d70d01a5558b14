"""How schedules are found, and what they have agreed on, whichever torch made them."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist
from backend_child import Scenario
from backend_fleet import run_in_children
from pipeline_job import PipelineJob
from torch.distributed.pipelining import PipelineStage
from torch.distributed.pipelining.schedules import _PipelineSchedule

from deadpool.backend.groups import Groups
from deadpool.backend.torch_versions import receives_own_their_buffers
from deadpool.trainer.adapters import PipelineAdapter, negotiators
from deadpool.trainer.adapters.pipeline import _known, _note_shapes, watch_schedules

P2P = "0" if receives_own_their_buffers() else ""
"""Every schedule of a torch that has it has one flag more, which is not set until its stages are connected."""


class StageOfOldTorch(PipelineStage):
    """Keeps its shapes, given or found."""

    def __init__(self, given: tuple[str, ...] | None) -> None:
        self.inputs_meta = self._outputs_meta = given


class ScheduleOfOldTorch(_PipelineSchedule):
    """One flag for everything."""

    def __init__(self, given: tuple[str, ...] | None = None) -> None:
        super().__init__(n_microbatches=1)
        self._stage_initialized = True
        self._stage = _made(given)
        self._stage.inputs_meta = self._stage._outputs_meta = given or ("found",)

    def step(self, *args: Any, **kwargs: Any) -> None: ...

    def _step_microbatches(self, *args: Any, **kwargs: Any) -> None: ...


def _made(given: tuple[str, ...] | None) -> Any:
    """As a stage of old torch looks when its constructor is done."""
    stage = StageOfOldTorch(given)
    _note_shapes(stage)
    return stage


@pytest.fixture
def adapter() -> Any:
    watch_schedules()
    _known.clear()
    yield PipelineAdapter()
    _known.clear()


def test_schedule_made_after_the_adapter_is_found(adapter: PipelineAdapter) -> None:
    assert (adapter.agreement(), adapter.dry_steps) == ("", 0)
    schedule = ScheduleOfOldTorch()
    assert (adapter.agreement(), adapter.dry_steps) == (f"1{P2P}", 1)
    del schedule
    assert adapter.agreement() == "", "it is held by the script alone"


def test_old_torch_forgets_shapes_too(adapter: PipelineAdapter) -> None:
    schedule = ScheduleOfOldTorch()
    adapter.seated(3)
    assert adapter.agreement() == f"1{P2P}"
    adapter.seated(0)
    assert adapter.agreement() == f"0{P2P}"
    assert (schedule._stage.inputs_meta, schedule._stage._outputs_meta) == (None, None)


def test_shapes_that_the_script_gave_are_kept(adapter: PipelineAdapter) -> None:
    schedule = ScheduleOfOldTorch(given=("shape",))
    adapter.seated(0)
    assert adapter.agreement() == f"0{P2P}"
    assert schedule._stage.inputs_meta == ("shape",)


def test_only_pipelines_negotiate(adapter: PipelineAdapter) -> None:
    watch_schedules()
    assert list(negotiators([adapter])) == [adapter]
    assert _PipelineSchedule.__init__.__wrapped__.__qualname__ == "_PipelineSchedule.__init__", "wrapped once"


def agreements(rank: int, port: int) -> list[str]:
    groups = Groups(timeout_s=5)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=0, world_size=1, detached=True)
    found = []
    for framework in ("pp-1f1b", "pp-interleaved"):
        job = PipelineJob(Scenario(framework=framework, directory="/nowhere", world_size=1), 0)
        [adapter] = negotiators(job.adapters)
        found.append(adapter.agreement())
        job.train_one()
        found.append(adapter.agreement())
        adapter.renegotiate()
        found.append(adapter.agreement())
        job.train_one()
        del job
        _known.clear()
    return found


@pytest.mark.e2e
def test_flags_of_this_torch() -> None:
    none, all_set = "0" * (2 + len(P2P)), "1" * (2 + len(P2P))
    assert run_in_children(agreements) == [[none, all_set, none] * 2]
