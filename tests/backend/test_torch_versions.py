"""What differs between versions of torch: rank and size of groups, constructors, NCCL2. Each test is of all of them."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import connect
from backend_fleet import run_in_children
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard

from deadpool.backend import nccl_backends as nccl
from deadpool.backend import torch_versions, world
from deadpool.backend.groups import Groups
from deadpool.errors import ConfigError
from deadpool.trainer.shares.layout import present_members

WORLD, RANK = 4, 2


@contextmanager
def rehearsal(backend: str = "gloo", device: torch.device | None = None) -> Iterator[Groups]:
    groups = Groups(timeout_s=5)
    groups.install()
    if device is not None:
        groups.use_device(device)
    groups.init(backend=backend, store=dist.HashStore(), rank=RANK, world_size=WORLD, detached=True)
    try:
        yield groups
    finally:
        dist.destroy_process_group()
        groups.uninstall()


# --- the layout of a rehearsal ----------------------------------------------------------------------------------------


def layout_of_rehearsal(rank: int, port: int) -> list[Any]:
    with rehearsal():
        half = dist.new_group([1, 2])
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("a", "b"))
        split: Any = dist.group.WORLD.split_group([0, 2, 3])
        groups = [dist.group.WORLD, half, mesh.get_group("a"), mesh.get_group("b"), split]
        shards = fully_shard(nn.Linear(8, 8)).parameters()
        return [*((each.rank(), each.size()) for each in groups), *(tuple(each.to_local().shape) for each in shards)]


@pytest.mark.e2e
def test_rehearsal_has_the_layout_of_the_job():
    """A group that says it is alone would shard over one rank, and nothing would fail before a snapshot is loaded."""
    (found,) = run_in_children(layout_of_rehearsal, deadline_s=90.0)
    *groups, weight, bias = found
    assert groups == [(RANK, WORLD), (1, 2), (1, 2), (0, 2), (1, 3)]
    assert (weight, bias) == ((2, 8), (2,))


def size_with_carried_ranks(carried: dict[int, int], rank: int, port: int) -> tuple[int, int, float]:
    groups = Groups(timeout_s=10)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=WORLD, detached=True)
    members = functools.partial(present_members, carried=carried)
    groups.rebuild(connect(port), "groups", after_abort=groups.abort_count, members=members)
    ones = torch.ones(1)
    dist.all_reduce(ones)
    return dist.get_rank(), dist.get_world_size(), ones.item()


@pytest.mark.e2e
def test_size_of_a_group_stays_while_some_of_its_ranks_have_no_process():
    found = run_in_children(functools.partial(size_with_carried_ranks, {2: 0, 3: 1}), 2, deadline_s=90.0)
    assert found == [(rank, WORLD, 2.0) for rank in range(2)]


def test_backend_that_would_have_to_be_reconfigured_is_refused():
    if not torch_versions.gloo_can_stay_unconnected():
        pytest.skip("this torch has no such argument")
    groups = Groups(timeout_s=5)
    groups.install()
    with pytest.raises(ConfigError, match="enable_reconfigure=True cannot be used"):
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1, enable_reconfigure=True)
    groups.uninstall()


def refusal_of_an_unknown_class(rank: int, port: int) -> str:
    from deadpool.backend import plain_groups

    plain_groups._known_classes = lambda: (torch_versions.FakeProcessGroup,)
    with pytest.raises(ConfigError) as caught, rehearsal():
        raise AssertionError("the group was made")
    return str(caught.value)


@pytest.mark.e2e
def test_backend_of_a_class_that_nobody_knows_is_refused():
    """It would be taken for one that can be aborted, and a recovery would wait for it."""
    (refused,) = run_in_children(refusal_of_an_unknown_class)
    assert "makes 'gloo' by ProcessGroupGloo, which DeadPool does not know" in refused


def timeouts_after_a_rehearsal(rank: int, port: int) -> list[float]:
    groups = Groups(timeout_s=5)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=1, detached=True)
    alone: Any = dist.new_group([0])
    set_timeout: Any = getattr(dist, "set_timeout", dist.distributed_c10d._set_pg_timeout)
    set_timeout(timedelta(seconds=70))
    set_timeout(timedelta(seconds=80), alone)
    groups.rebuild(connect(port), "again", after_abort=groups.abort_count)
    return [group.timeout.total_seconds() for group in world.joined_groups()]


@pytest.mark.e2e
def test_timeout_that_is_set_in_a_rehearsal_is_that_of_the_rebuilt_group():
    assert run_in_children(timeouts_after_a_rehearsal) == [[70.0, 80.0]]


# --- NCCL2, without a GPU: a stand-in is made in its place ------------------------------------------------------------


class StandIn(type):
    """A class of backends that communicate with no peer, and a list of how they were made."""

    made: list[tuple[int, int, bool, Any]]

    def __call__(cls, store: Any, rank: int, size: int, options: Any, device: Any = None) -> Any:
        cls.made.append((rank, size, options.lazy_init, device))
        fake: Any = torch._C._distributed_c10d.FakeProcessGroup
        return fake._create_internal(rank, size, fake.Options())


@pytest.fixture
def nccl2(monkeypatch):
    if torch_versions.ProcessGroupNCCL2 is None:
        pytest.skip("this torch has no NCCL2 that can be rehearsed")
    kind = StandIn("ProcessGroupNCCL2", (), {"made": []})
    monkeypatch.setattr(torch_versions, "ProcessGroupNCCL2", kind)
    monkeypatch.setattr(nccl, "ProcessGroupNCCL2", kind)
    monkeypatch.setattr(nccl, "prepare_environment", lambda: None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    monkeypatch.setenv("LOCAL_RANK", "3")
    return kind


def test_nccl2_of_a_rehearsal_does_not_connect_and_later_groups_are_not_split_off(nccl2):
    with rehearsal("nccl"):
        half = dist.new_group([1, 2])
        assert nccl2.made == [(RANK, WORLD, True, torch.device("cuda", 3)), (1, 2, True, torch.device("cuda", 3))]
        assert dist.group.WORLD.bound_device_id is None and half.bound_device_id is None
        assert (dist.get_rank(), dist.get_world_size(), half.size()) == (RANK, WORLD, 2)
        del half


def test_nccl2_is_made_anew_on_its_device_and_connects_then(nccl2):
    server = dist.TCPStore("localhost", 0, is_master=True, timeout=timedelta(seconds=5))
    hooks = dist.distributed_c10d._world.pg_flight_recorder_hooks
    with rehearsal("nccl", torch.device("cuda", 5)) as groups:
        fake, recorder = world.joined_groups()[0].backend("nccl"), hooks[dist.group.WORLD]
        groups.rebuild(server, "again")
        assert nccl2.made == [(RANK, WORLD, lazy, torch.device("cuda", 5)) for lazy in (True, False)]
        assert world.joined_groups()[0].backend("nccl") is not fake
        assert list(hooks) == [dist.group.WORLD] and hooks[dist.group.WORLD] is not recorder


def test_group_over_nccl_beside_gloo_prepares_the_environment_and_is_made_on_its_own_device(monkeypatch, nccl2):
    """Connecting it at once, as torch does with a device_id, would need the peers that a rehearsal does not have."""
    prepared: list[int] = []
    monkeypatch.setattr(nccl, "prepare_environment", lambda: prepared.append(1))
    with rehearsal():
        half = dist.new_group([1, 2], backend="nccl", device_id=torch.device("cuda", 6))
        later = dist.new_group([1, 2], backend="nccl")
        assert [device for *_, device in nccl2.made] == [torch.device("cuda", 6), torch.device("cuda", 3)]
        assert len(prepared) == 2 and half.bound_device_id is None
        del half, later


def test_both_names_of_nccl_are_accepted_where_torch_has_both(monkeypatch, nccl2):
    from deadpool.backend.plain_groups import check_backend

    for name in ("nccl", "nccl-legacy", "nccl2", "cpu:gloo,cuda:nccl-legacy"):
        check_backend(name)
    for name in ("nccl-lazy", "cpu:nccl-legacy"):
        with pytest.raises(ConfigError, match="cannot be used"):
            check_backend(name)
