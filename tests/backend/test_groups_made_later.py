"""Groups that are made in a step: who comes back to the boundary before it has forgotten them, and all agree again."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import connect
from backend_fleet import run_in_children
from test_group_abort import joined_groups, meet
from torch.distributed import _functional_collectives
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

from deadpool.backend.groups import Groups
from deadpool.errors import GroupError

pytestmark = pytest.mark.e2e

RANKS = 4


def sum_over(group: Any, rank: int) -> float:
    """1 + the sum of the members' ranks squared: tells which ranks took part."""
    value = torch.tensor([float(rank * rank)])
    dist.all_reduce(value, group=group)
    return 1.0 + float(value)


def fault(groups: Groups, store: dist.Store, number: int) -> None:
    groups.abort()
    meet(store, f"aborted {number}", RANKS)


def rebuild(groups: Groups, store: dist.Store, number: int) -> None:
    groups.rebuild(store, f"g{number}", after_abort=groups.abort_count)


def make_alone(rank: int) -> None:
    """Numbers one more group on all ranks, and needs nobody else: some ranks get through it, others do not."""
    dist.new_group([0])


def step_cut_off(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, RANKS), connect(port)
    kept = dist.new_group([0, 1, 2, 3])
    mark = groups.mark()
    meet(store, "marked", RANKS)
    if rank < 2:
        make_alone(rank)
        dist.new_group([0, 1])
        meet(store, "made", 2)  # a group is there for one rank a moment before it is there for the other
    fault(groups, store, 1)
    forgotten = groups.return_to(mark)
    rebuild(groups, store, 1)
    make_alone(rank)
    pair = dist.new_group([0, 1])
    found = [forgotten, sum_over(kept, rank)]
    if rank < 2:
        found += [pair.group_name, sum_over(pair, rank)]
    meet(store, "used", RANKS)
    return found


def test_step_cut_off_while_only_some_ranks_had_made_the_group() -> None:
    found = run_in_children(step_cut_off, ranks=RANKS)
    assert found == [[("2", "3"), 15.0, "3", 2.0], [("3",), 15.0, "3", 2.0], [(), 15.0], [(), 15.0]]


def step_cut_off_and_nobody_returns(rank: int, port: int) -> Any:
    groups, store = joined_groups(rank, port, 2), connect(port)
    meet(store, "joined", 2)
    if rank == 0:
        make_alone(rank)
    groups.abort()
    meet(store, "aborted", 2)
    groups.rebuild(store, "g1")
    return groups.mark()["made"]


def test_control_without_the_way_back_ranks_number_their_groups_differently() -> None:
    first, second = run_in_children(step_cut_off_and_nobody_returns, ranks=2)
    assert first == second + 1


def hashed_names(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, RANKS), connect(port)
    pair = [0, 1] if rank < 2 else [2, 3]
    before = dist.new_group(pair, use_local_synchronization=True)
    mark = groups.mark()
    meet(store, "marked", RANKS)
    if rank < 2:
        made = dist.new_group(pair, use_local_synchronization=True).group_name
        meet(store, "made", 2)
    fault(groups, store, 1)
    forgotten = groups.return_to(mark)
    rebuild(groups, store, 1)
    again = dist.new_group(pair, use_local_synchronization=True)
    assert rank >= 2 or (again.group_name == made and forgotten == (made,))
    found = [sum_over(before, rank), sum_over(again, rank), sum_over(None, rank)]
    meet(store, "used", RANKS)
    return found


def test_groups_with_hashed_names() -> None:
    assert run_in_children(hashed_names, ranks=RANKS) == [[2.0, 2.0, 15.0]] * 2 + [[14.0, 14.0, 15.0]] * 2


def one_group_per_step(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, RANKS), connect(port)

    def step() -> str:
        group = dist.new_group([0, 1, 2, 3])
        assert sum_over(group, rank) == 15.0
        name = str(group.group_name)
        dist.destroy_process_group(group)
        return name

    names = [step(), step()]
    mark = groups.mark()
    names.append(step())
    meet(store, "stepped", RANKS)
    fault(groups, store, 1)
    forgotten = groups.return_to(mark)
    rebuild(groups, store, 1)
    names.append(step())
    meet(store, "used", RANKS)
    return [names, forgotten]


def test_group_that_lives_for_one_step() -> None:
    assert run_in_children(one_group_per_step, ranks=RANKS) == [[["1", "2", "3", "3"], ()]] * RANKS


def newcomer_of_another_history(rank: int, port: int) -> list[str]:
    """Rehearsed a step that made a group; the job it comes to has made others since."""
    groups = Groups(timeout_s=5)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=1, world_size=4, detached=True)
    dist.new_group([1, 2])
    at_start = groups.mark()
    kept = dist.new_group([0, 1])
    lazily_made = groups.mark()
    dist.new_group([0, 1])
    assert groups.return_to(lazily_made) == ("3",)
    said = [_refusal(groups, {**at_start, "groups": {**at_start["groups"], "2": "ranks 1, 3"}})]
    said.append(_refusal(groups, {**at_start, "groups": {**at_start["groups"], "7": "ranks 0, 1"}}))
    assert groups.return_to({**at_start, "made": 40}) == ("2",)
    assert dist.new_group([0, 1]).group_name == "40"
    with pytest.raises(ValueError, match="not initialized"):  # a fake one would have gone on, silently
        dist.all_reduce(torch.ones(1), group=kept)
    return said


def _refusal(groups: Groups, mark: dict[str, Any]) -> str:
    with pytest.raises(GroupError) as caught:
        groups.return_to(mark)
    return str(caught.value)


def test_newcomer_keeps_what_the_job_has_and_says_what_it_lacks() -> None:
    [[other_ranks, never_made]] = run_in_children(newcomer_of_another_history)
    assert "group '2' of ranks 1, 3 is not in this process" in other_ranks
    assert "group '7' of ranks 0, 1 is not in this process" in never_made
    assert "before the loop" in never_made


def flattened_in_the_step(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, RANKS), connect(port)
    mesh = init_device_mesh("cpu", (2, 1, 2), mesh_dim_names=("data", "pipe", "tensor"))
    mark = groups.mark()
    meet(store, "marked", RANKS)
    if rank in (0, 2):
        mesh["data", "pipe"]._flatten("both")
        meet(store, "made", 2)
    fault(groups, store, 1)
    groups.return_to(mark)
    rebuild(groups, store, 1)
    both = mesh["data", "pipe"]._flatten("both")
    found = [both.get_group().group_name, sum_over(both.get_group(), rank), sum_over(mesh["both"].get_group(), rank)]
    meet(store, "used", RANKS)
    return found


def test_mesh_that_was_flattened_in_the_step() -> None:
    found = run_in_children(flattened_in_the_step, ranks=RANKS)
    assert len({name for name, *_ in found}) == 2
    assert [totals for _, *totals in found] == [[5.0, 5.0], [11.0, 11.0]] * 2


def every_kind_of_group(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, RANKS), connect(port)
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("data", "tensor"))
    whole = init_device_mesh("cpu", (4,), mesh_dim_names=("all",))
    mine, _ = dist.new_subgroups(2)
    held = {
        "slice": mesh["tensor"].get_group(),
        "flat": mesh._flatten("flat").get_group(),
        "unflattened": whole._unflatten(0, (2, 2), ("outer", "inner"))["outer"].get_group(),
        "subgroup": mine,
        "timeout": dist.new_group([0, 1, 2, 3], timeout=timedelta(seconds=7), backend="gloo"),
        "alone": [dist.new_group([each]) for each in range(RANKS)][rank],
    }
    before = {name: sum_over(group, rank) for name, group in held.items()}
    sharded = distribute_tensor(torch.arange(8.0).reshape(4, 2), mesh, [Shard(0), Shard(1)])
    expected = _use(sharded, mesh)
    meet(store, "made", RANKS)
    for number in range(2):
        fault(groups, store, number)
        with pytest.raises(RuntimeError):
            sum_over(held["slice"], rank)
        rebuild(groups, store, number)
        assert {name: sum_over(group, rank) for name, group in held.items()} == before
        assert torch.equal(_use(sharded, mesh), expected)
        meet(store, f"used {number}", RANKS)
    timeout = held["timeout"]._get_backend(torch.device("cpu")).options._timeout
    return [before, timeout.total_seconds(), _held_objects(held, mesh)]


def _use(sharded: Any, mesh: DeviceMesh) -> torch.Tensor:
    """DTensor's own collectives, and functional ones on the mesh that the caller holds."""
    doubled = (sharded + sharded).redistribute(placements=[Replicate(), Replicate()]).to_local()
    product = (sharded @ sharded.t()).full_tensor()
    local = sharded.to_local().contiguous()
    gathered = _functional_collectives.all_reduce(local, "sum", (mesh, 0))
    return torch.cat([doubled.flatten(), product.flatten(), gathered.flatten()])


def _held_objects(held: dict[str, Any], mesh: DeviceMesh) -> list[Any]:
    assert mesh["tensor"].get_group() is held["slice"]
    return [
        dist.get_process_group_ranks(held["slice"]),
        list(mesh.get_coordinate() or ()),
        dist.get_world_size(held["subgroup"]),
    ]


def test_every_kind_of_group_is_rebuilt_and_whoever_holds_it_goes_on() -> None:
    """Twice, with DTensor's caches warm from before: what they hold stays valid, nothing has to be cleared."""
    found = run_in_children(every_kind_of_group, ranks=RANKS)
    sums = {key: [totals[key] for totals, *_ in found] for key in found[0][0]}
    assert sums == {
        "slice": [2.0, 2.0, 14.0, 14.0],
        "flat": [15.0] * 4,
        "unflattened": [5.0, 11.0, 5.0, 11.0],
        "subgroup": [2.0, 2.0, 14.0, 14.0],
        "timeout": [15.0] * 4,
        "alone": [1.0, 2.0, 5.0, 10.0],
    }
    assert {timeout_s for _, timeout_s, _ in found} == {7.0}
    assert [objects for *_, objects in found] == [
        [[0, 1], [0, 0], 2],
        [[0, 1], [0, 1], 2],
        [[2, 3], [1, 0], 2],
        [[2, 3], [1, 1], 2],
    ]


def split(rank: int, port: int) -> tuple[str, list[float]]:
    """How torch refuses, or what the new group adds up before and after it is made anew."""
    groups, found = joined_groups(rank, port, 2), []
    try:
        group = dist.split_group(split_ranks=[[0, 1]])
    except RuntimeError as error:
        return str(error), []
    for generation in ("first", "second", "third"):
        value = torch.tensor([rank + 1.0])
        dist.all_reduce(value, group=group)
        found.append(value.item())
        meet(connect(port), generation, 2)
        groups.abort()
        meet(connect(port), f"{generation}, aborted", 2)
        groups.rebuild(connect(port), generation, after_abort=groups.abort_count)
    return "", found


def test_split_group_is_refused_by_torch_without_a_gpu_or_made_anew_like_others() -> None:
    """Since torch 2.15 it splits gloo groups too, by a method of the group that is replaced (constructor_patch.py)."""
    for refused, found in run_in_children(split, ranks=2):
        assert found == [3.0] * 3 if not refused else "not safe to split" in refused
