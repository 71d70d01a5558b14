"""The rules of step.shares(), with protection and without it: every share of a step is done, or the step fails."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pytest
import torch.distributed as dist
from capture_bench import SECOND, CaptureBench
from device_twin import DeviceTwin
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore

from deadpool.errors import ConfigError
from deadpool.protocol.identity import Schedule
from deadpool.protocol.messages import Shares, UsesShares
from deadpool.snapshot.record.layout import join_record, split_record
from deadpool.snapshot.record.record import encode
from deadpool.trainer.capture.boundary_groups import GROUPS
from deadpool.trainer.job_journal import JOURNAL, JobJournal
from deadpool.trainer.shares import shares as step_shares
from deadpool.trainer.shares.layout import _block, find_shares
from deadpool.trainer.shares.shares import make_own
from deadpool.trainer.step import Step
from deadpool.trainer.unprotected import UnprotectedRank

Way = Callable[[Step], None]


@pytest.fixture
def four_ranks() -> Iterator[None]:
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield
    dist.destroy_process_group()


@pytest.fixture
def bench() -> Iterator[CaptureBench]:
    made = CaptureBench(DeviceTwin())
    yield made
    made.close()
    made.job.waits.close()


def carry(bench: CaptureBench, *ranks: int) -> None:
    layout, host = split_record(bench.job.record)
    journal = encode(JobJournal(bench.session).state_dict(), JOURNAL)  # type: ignore[arg-type]
    host["stateful"] = {**host["stateful"], GROUPS: b"", JOURNAL: journal}
    bench.job.shares.carry({rank: join_record(layout, host) for rank in ranks})


def every_share(step: Step) -> None:
    for share in step.shares():
        with share:
            pass


def first_share(step: Step) -> None:
    with next(step.shares()):
        pass


def left_early(step: Step) -> None:
    for share in step.shares():
        with share:
            break


def not_entered(step: Step) -> None:
    next(step.shares())


def own_not_entered(step: Step) -> None:
    for share in step.shares():
        if not share.is_own:
            with share:
                pass


def skipped_by_an_error(step: Step) -> None:
    for share in step.shares():
        with contextlib.suppress(ZeroDivisionError), share:
            raise ZeroDivisionError


def two_loops_the_first_cut_short(step: Step) -> None:
    left_early(step)
    every_share(step)


def run_protected(bench: CaptureBench, *ways: Way) -> None:
    for way in ways:
        with Step(bench.job, bench.job.number) as step:
            way(step)
        bench.job.complete_step()


def run_unprotected(*ways: Way) -> None:
    job = UnprotectedRank().protect(model=nn.Linear(2, 2))
    for step, way in zip(job.steps(len(ways)), ways, strict=True):
        with step:
            way(step)


def test_all_shares_of_a_step_have_to_be_done_where_a_rank_is_carried(bench):
    carry(bench, 2, 3)
    run_protected(bench, every_share, skipped_by_an_error)
    for way, missing in (
        (first_share, "3, 0"),
        (left_early, "3, 0"),
        (not_entered, "2, 3, 0"),
        (two_loops_the_first_cut_short, "3, 0"),
    ):
        before = bench.job.number
        with pytest.raises(ConfigError, match=f"step {before} ended its loop .* the work of rank {missing} was done"):
            run_protected(bench, way)
        assert bench.job.number == before, "the step does not count"
    with pytest.raises(ConfigError, match="share of rank 0 in step 2 was not entered"):
        run_protected(bench, own_not_entered)
    with pytest.raises(ConfigError, match="rank 0 carries rank 2, 3: take the work from"):
        run_protected(bench, lambda step: None)


@pytest.mark.parametrize("protected", [True, False])
def test_script_that_would_fail_in_a_shrunk_job_fails_in_a_whole_one_too(bench, four_ranks, protected):
    def run(*ways: Way) -> None:
        run_protected(bench, *ways) if protected else run_unprotected(*ways)

    run(every_share, first_share, left_early, lambda step: None, skipped_by_an_error)
    with pytest.raises(ConfigError, match="before the work of rank 0 was done"):
        run(not_entered)
    with pytest.raises(ConfigError, match=r"share of rank 0 in step \d was not entered"):
        run(own_not_entered)


def test_error_of_the_script_is_not_replaced_by_one_about_shares(bench, four_ranks):
    def fails(step: Step) -> None:
        next(step.shares())
        raise ZeroDivisionError

    for run in (lambda: run_protected(bench, fails), lambda: run_unprotected(fails)):
        with pytest.raises(ZeroDivisionError):
            run()


# --- objects that are made per rank -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["rank", "is_own", "entered", "_shares"])
def test_names_that_a_share_has_itself_are_refused(four_ranks, name):
    for protect in (
        lambda makers: make_own(makers, {}, 0),
        lambda makers: UnprotectedRank().protect(model=nn.Linear(2, 2), shares=makers),
    ):
        with pytest.raises(ConfigError, match=f"share.{name} is the share's own: give it another name"):
            protect({name: int})


def test_object_that_is_given_twice_is_refused_without_protection_too(four_ranks):
    with pytest.raises(ConfigError, match=r"protect\(\) got data= and shares=\{'data': ...\}: give it once"):
        UnprotectedRank().protect(
            model=nn.Linear(2, 2), data=nn.Linear(1, 1), shares={"data": lambda _: nn.Linear(1, 1)}
        )


def test_unprotected_share_has_what_a_share_has(four_ranks):
    job = UnprotectedRank().protect(model=nn.Linear(2, 2), shares={"data": lambda rank: nn.Linear(1, rank + 1)})
    for step in job.steps(1):
        with step:
            for share in step.shares():
                assert not share.entered
                with share:
                    assert (share.rank, share.is_own, share.entered) == (0, True, True)
                    assert share.data.out_features == 1


# --- what is told of the layout ---------------------------------------------------------------------------------------


def test_layout_is_looked_at_once_per_generation(bench, monkeypatch):
    looked: list[int] = []

    def find(job):
        looked.append(job.session.rank)
        return Shares(refused="one node only")

    monkeypatch.setattr(step_shares, "find_shares", find)
    run_protected(bench, lambda step: None)
    assert not looked, "the script has not asked for shares"
    run_protected(bench, *[every_share] * 4)
    assert len(looked) == 1
    bench.session.core.take_seat(SECOND, 0, Schedule(every=1))
    bench.job.shares.report()
    bench.job.shares.report()
    assert len(looked) == 2
    assert len(bench.session.of_kind(UsesShares)) == 1, "nothing has changed"


def test_ranks_of_all_sharded_modules_work_together(four_ranks):
    pairs = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    parts = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    assert _block([parts], 0) == (0,)
    fully_shard(parts[0], mesh=pairs)
    assert _block([parts], 0) == (0, 1), "also where the outermost module is not sharded"
    fully_shard(parts[1], mesh=init_device_mesh("cpu", (4,)))
    assert _block([parts], 0) == (0, 1, 2, 3), "and where one module is sharded more widely"


def test_job_that_synchronises_gradients_twice_in_a_step_waits(bench):
    assert "no other node holds the tensors" in find_shares(bench.job).refused
    bench.job.shares.sync.repeated.found = True
    assert "rank 0 lets DDP synchronise the same gradients twice in a step" in find_shares(bench.job).refused
