"""A group that was rebuilt is like one that torch has made: it can be split, counts its collectives, lets callbacks of
collectives begin further ones, and the rebuild can be done as often as a long job needs it."""

from __future__ import annotations

import functools
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import GROUP_TIMEOUT_S, connect
from backend_fleet import JobFailed, run_in_children
from test_group_abort import joined_groups, meet
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from deadpool.backend import backend_release, torch_versions, world
from deadpool.backend.groups import Groups
from deadpool.backend.store import ReleasableStore
from deadpool.errors import ConfigError, GroupError

pytestmark = pytest.mark.e2e

CPU = torch.device("cpu")
PLAIN_ATTEMPTS, PLAIN_LIMIT_S = 6, 45.0
HAS_DEVICE_FILTER = "device_types" in (dist.ProcessGroup.split_group.__doc__ or "")  # since torch 2.13


def rebuild(groups: Groups, store: dist.Store, ranks: int, number: int = 1) -> None:
    meet(store, f"made {number}", ranks)  # a group is there for one rank a moment before it is there for the others
    groups.abort()
    meet(store, f"aborted {number}", ranks)
    groups.rebuild(store, f"g{number}", after_abort=groups.abort_count)


def summed(group: Any, rank: int) -> float:
    value = torch.tensor([float(1 + rank)])
    group.allreduce([value]).wait()
    return float(value)


def detached(rank: int, world_size: int) -> Groups:
    groups = Groups(timeout_s=GROUP_TIMEOUT_S)
    groups.install()
    groups.init(backend="gloo", store=dist.HashStore(), rank=rank, world_size=world_size, detached=True)
    return groups


# --- split_group -----------------------------------------------------------------------------------------------------


def split_alone_after_rebuild(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    rebuild(groups, store, 2)
    alone = dist.group.WORLD.split_group([0])
    by_device = {"device_types": [CPU]} if HAS_DEVICE_FILTER else {}
    filtered = dist.group.WORLD.split_group([1], group_name="by device", **by_device)
    sums = [None if group is None else summed(group, rank) for group in (alone, filtered)]
    meet(store, "split", 2)
    return sums


def test_a_group_of_one_can_be_split_off_a_rebuilt_group() -> None:
    """It ended the process with SIGSEGV."""
    assert run_in_children(split_alone_after_rebuild, ranks=2) == [[1.0, None], [None, 2.0]]


class StoreInPython(ReleasableStore):
    """As the one in which a job's trainers meet."""

    def clone(self) -> dist.Store:
        return StoreInPython(self._client().clone())


def split_at_once(rank: int, port: int) -> float:
    groups, store = Groups(timeout_s=GROUP_TIMEOUT_S), connect(port)
    groups.install()
    groups.init(backend="gloo", store=StoreInPython(connect(port)), rank=rank, world_size=2, detached=False)
    pair = dist.group.WORLD.split_group([0, 1])
    total = summed(pair, rank)
    meet(store, "summed", 2)
    return total


def test_groups_that_meet_in_a_store_of_ours_can_be_split() -> None:
    assert run_in_children(split_at_once, ranks=2) == [3.0, 3.0]


def split_many_times(rank: int, port: int) -> list[float]:
    joined_groups(rank, port, 6)
    groups = [dist.group.WORLD.split_group(list(range(6)), group_name=f"split {number}") for number in range(8)]
    sums = [summed(group, rank) for group in groups]
    meet(connect(port), "summed", 6)
    return sums


def test_six_ranks_split_a_group_many_times() -> None:
    """Plain gloo hung in almost each run of this."""
    assert run_in_children(split_many_times, ranks=6) == [[21.0] * 8] * 6


def split_after_rebuild(rank: int, port: int) -> list[Any]:
    groups, store = joined_groups(rank, port, 3), connect(port)
    rebuild(groups, store, 3)
    whole = dist.group.WORLD
    pair = whole.split_group([0, 2])
    by_device = {"device_types": [CPU]} if HAS_DEVICE_FILTER else {}
    one_device = whole.split_group([0, 1, 2], group_name="by device", **by_device)
    sums = [summed(pair, rank) if pair is not None else None, summed(one_device, rank)]
    meet(store, "summed", 3)
    return sums


def test_a_rebuilt_group_can_be_split() -> None:
    assert run_in_children(split_after_rebuild, ranks=3) == [[4.0, 6.0], [None, 6.0], [4.0, 6.0]]


def split_then_rebuild(rank: int, port: int) -> list[Any]:
    """All are newcomers: they have split their groups alone, in rehearsals."""
    groups, store = detached(rank, 3), connect(port)
    pair = dist.group.WORLD.split_group([1, 2])
    mark = groups.mark()
    meet(store, "split", 3)
    groups.rebuild(store, "g1", after_abort=groups.abort_count)
    first = summed(pair, rank) if pair is not None else None
    meet(store, "summed", 3)
    rebuild(groups, store, 3, 2)
    again = summed(pair, rank) if pair is not None else None
    meet(store, "summed again", 3)
    return [first, again, sorted(mark["groups"])]


def test_a_group_that_was_split_off_is_rebuilt_with_the_others() -> None:
    without, *pair = run_in_children(split_then_rebuild, ranks=3)
    assert without == [None, None, ["0"]]
    assert pair == [[5.0, 5.0, ["0", "0:split:[1, 2]"]]] * 2


def split_is_cut_off(rank: int, port: int) -> str:
    """Rank 1 does not come: the abort ends the waiting, as of any other group in the making."""
    groups, store = joined_groups(rank, port, 2), connect(port)
    meet(store, "joined", 2)
    if rank == 1:
        store.wait(["cut off"])
        return ""
    threading.Timer(0.5, groups.abort).start()
    with pytest.raises(GroupError) as caught:
        dist.group.WORLD.split_group([0, 1])
    store.set("cut off", "")
    return str(caught.value)


def test_an_abort_ends_a_split_that_waits_for_a_peer() -> None:
    assert "splitting group 0: aborted" in run_in_children(split_is_cut_off, ranks=2)[0]


def order_of_split(under_deadpool: bool, rank: int, port: int) -> list[Any]:
    """Of plain torch, or of a job whose groups are made anew in between; each seen from this rank. "not split": this
    torch splits no gloo group by the public function."""
    store, found = connect(port), list[Any]()
    if under_deadpool:
        groups = joined_groups(rank, port, 3)
    else:
        dist.init_process_group("gloo", store=store, rank=rank, world_size=3)
    for split in (lambda: dist.split_group(split_ranks=[[2, 0]]), lambda: dist.group.WORLD.split_group([2, 1])):
        try:
            group = split()
        except RuntimeError:  # torch before 2.15, without a GPU
            found.append("not split")
            continue
        meet(store, f"split after {len(found)}", 3)  # plain gloo fails if one uses the group before another has it
        for number in range(2 if under_deadpool else 1):
            found.append(_seen_in(group, rank))
            meet(store, f"seen {len(found)}", 3)
            if under_deadpool and number == 0:
                rebuild(groups, store, 3, len(found))
    meet(store, "done", 3)
    return found


def _seen_in(group: Any, rank: int) -> tuple[int, float] | None:
    """This rank's number in the group, and what the first rank of it broadcasts."""
    if not isinstance(group, dist.ProcessGroup):
        return None
    value = torch.tensor([float(rank)])
    options = dist.BroadcastOptions()
    options.rootRank, options.rootTensor = 0, 0
    group.broadcast([value], options).wait()
    return group.rank(), value.item()


def order_in_plain_torch() -> list[Any]:
    """Plain gloo hangs now and then while it splits a group, the more often the busier the machine is."""
    for attempts_left in reversed(range(PLAIN_ATTEMPTS)):
        try:
            return run_in_children(functools.partial(order_of_split, False), ranks=3, deadline_s=PLAIN_LIMIT_S)
        except JobFailed:
            if not attempts_left:
                raise
    raise AssertionError


def test_ranks_of_a_split_group_have_the_order_that_torch_gives_them() -> None:
    """Another order than that of plain torch would be wrong data, and no error."""
    plain = order_in_plain_torch()
    ours = run_in_children(functools.partial(order_of_split, True), ranks=3)
    for of_plain, of_ours in zip(plain, ours, strict=True):
        assert of_ours == [seen for each in of_plain for seen in ([each] if each == "not split" else [each] * 2)]
    assert torch_versions.splits_keep_order() == (plain[2][-1] == (0, 2.0))


def order_in_a_rehearsal(rank: int, port: int) -> tuple[int, int]:
    groups, store = detached(rank, 3), connect(port)
    split: Any = dist.group.WORLD.split_group([2, 0, 1])
    rehearsed = split.rank()
    groups.rebuild(store, "again", after_abort=groups.abort_count)
    meet(store, "made", 3)
    return rehearsed, split.rank()


def test_ranks_of_a_split_group_have_that_order_in_a_rehearsal_too() -> None:
    in_order = [(1, 1), (2, 2), (0, 0)] if torch_versions.splits_keep_order() else [(0, 0), (1, 1), (2, 2)]
    assert run_in_children(order_in_a_rehearsal, ranks=3) == in_order


# --- sequence numbers ------------------------------------------------------------------------------------------------


def count_collectives(rank: int, port: int) -> list[int]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    counts = []
    for number in (1, 2):
        for _ in range(3):
            dist.all_reduce(torch.ones(1))
        counts.append(dist.group.WORLD._get_sequence_number_for_group())
        meet(store, f"counted {number}", 2)
        rebuild(groups, store, 2, number)
    dist.all_reduce(torch.ones(1))
    return [*counts, dist.group.WORLD._get_sequence_number_for_group()]


def test_a_rebuilt_group_counts_its_own_collectives() -> None:
    first, second, last = run_in_children(count_collectives, ranks=2)[0]
    assert second == first  # from the beginning again, as in a group that is new
    assert 0 < last < second


# --- collectives in callbacks ----------------------------------------------------------------------------------------


def train_with_power_sgd(rank: int, port: int) -> list[float]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    torch.manual_seed(1)
    model = DistributedDataParallel(nn.Sequential(nn.Linear(32, 32), nn.Linear(32, 32)))
    state = powerSGD_hook.PowerSGDState(None, matrix_approximation_rank=1, start_powerSGD_iter=2)
    model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
    losses = []
    for step in range(6):
        if step == 4:
            rebuild(groups, store, 2)
        loss = model(torch.ones(4, 32) * (rank + 1)).square().mean()
        loss.backward()
        losses.append(loss.item())
        for parameter in model.parameters():
            parameter.data -= 0.1 * parameter.grad
            parameter.grad = None
    meet(store, "trained", 2)
    return losses


@pytest.mark.skipif(
    torch.cuda.is_available(), reason="PowerSGD of torch 2.11 takes gradients for CUDA's if there is any"
)
def test_powersgd_begins_collectives_in_callbacks_of_others() -> None:
    losses = run_in_children(train_with_power_sgd, ranks=2)
    assert all(len(each) == 6 and each[-1] < each[0] for each in losses)


# --- groups of the script's own --------------------------------------------------------------------------------------


def rebuild_beside_fake_group(rank: int, port: int) -> float:
    from torch.testing._internal.distributed.fake_pg import FakeStore

    assert FakeStore  # its import registers the backend "fake"
    groups, store = joined_groups(rank, port, 2), connect(port)
    own = dist.new_group([0, 1], backend="fake")
    rebuild(groups, store, 2)
    dist.all_reduce(torch.ones(1), group=own)
    total = summed(dist.group.WORLD, rank)
    meet(store, "summed", 2)
    return total


def test_a_fake_group_of_the_scripts_own_stays_as_it_is() -> None:
    assert run_in_children(rebuild_beside_fake_group, ranks=2) == [3.0, 3.0]


def make_group_of_a_plugin(rank: int, port: int) -> str:
    groups = detached(rank, 1)
    dist.Backend.register_backend("odd", lambda *_: groups._gloo.make_fake(0, 1, torch.distributed.default_pg_timeout))
    with pytest.raises(ConfigError) as caught:
        dist.new_group([0], backend="odd")
    return str(caught.value)


def test_a_backend_that_cannot_be_rebuilt_is_refused() -> None:
    assert "backend 'odd' cannot be aborted and made anew" in run_in_children(make_group_of_a_plugin)[0]


def accepted(rank: int, port: int) -> dict[str, str]:
    found = {}
    for backend in ("gloo", "cpu:gloo", "cpu:gloo,cuda:gloo", "cuda:nccl,cpu:gloo", "cpu:nccl", "gloo,gloo", "mpi", ""):
        groups = Groups(timeout_s=GROUP_TIMEOUT_S)
        groups.install()
        try:
            groups.init(backend=backend, store=dist.HashStore(), rank=0, world_size=1, detached=True)
            found[backend] = "accepted"
        except ConfigError as error:
            found[backend] = "no GPU" if "finds no GPU" in str(error) or "has no NCCL" in str(error) else "refused"
        finally:
            if dist.is_initialized():
                dist.destroy_process_group()
            groups.uninstall()
    return found


def test_backends_are_named_in_any_order() -> None:
    with_nccl = "accepted" if torch.cuda.is_available() else "no GPU"
    assert run_in_children(accepted)[0] == {
        "gloo": "accepted",
        "cpu:gloo": "accepted",
        "cpu:gloo,cuda:gloo": "accepted",
        "cuda:nccl,cpu:gloo": with_nccl,
        "cpu:nccl": "refused",
        "gloo,gloo": "refused",
        "mpi": "refused",
        "": "refused",
    }


# --- as often as it takes --------------------------------------------------------------------------------------------


def rebuild_often(rank: int, port: int) -> list[tuple[int, int]]:
    groups, store = joined_groups(rank, port, 2), connect(port)
    pair = dist.new_group([0, 1])
    counts = []
    for number in range(300):
        rebuild(groups, store, 2, number)
        dist.barrier(group=pair)
        dist.barrier()
        meet(store, f"used {number}", 2)
        counts.append((_entries("/proc/self/fd"), _entries("/proc/self/task")))
    return counts


def _entries(directory: str) -> int:
    return len(list(Path(directory).iterdir()))


@pytest.mark.thorough
def test_300_rebuilds_leave_nothing_behind() -> None:
    for counts in run_in_children(rebuild_often, ranks=2):
        descriptors, threads = zip(*counts, strict=True)
        # Replaced backends go in threads of their own, a bit later: now and then some are counted that are about to go.
        assert min(descriptors[-20:]) <= max(descriptors[:10])
        assert min(threads[-20:]) <= max(threads[:10])


def rebuild_with_numbers(rank: int, port: int) -> tuple[int, bool, str]:
    backend_release.is_possible = lambda: False  # type: ignore[assignment]
    groups = joined_groups(rank, port, 1)
    for count in range(1000):
        if not groups.can_rebuild:
            with pytest.raises(GroupError) as caught:
                groups.rebuild(dist.HashStore(), f"g{count}")
            return count, groups.can_rebuild, str(caught.value)
        groups.rebuild(dist.HashStore(), f"g{count}")
    return -1, True, ""


def test_where_groups_cannot_be_emptied_the_end_of_rebuilds_is_foreseen() -> None:
    """Of a torch that is laid out differently: the process is replaced before its numbers run out (recovery.py)."""
    [(count, can_rebuild, message)] = run_in_children(rebuild_with_numbers)
    assert (count, can_rebuild) == (world.SWAP_LIMIT, False)
    assert "rebuilds done" in message
