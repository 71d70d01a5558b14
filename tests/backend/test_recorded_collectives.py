"""What collectives gave a live rank is given to whoever rehearses it, and nothing else is changed by that."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from backend_child import GROUP_TIMEOUT_S, connect
from backend_fleet import run_in_children

from deadpool.backend.groups import Groups
from deadpool.backend.interception import METHODS_WITH_RESULTS, CollectiveReplay
from deadpool.backend.recorded_collectives import RecordedCollectives, copy_into, is_recordable

KEY = ("recv", "0", 0)
HALF = torch.tensor([0.5, -1.0], dtype=torch.bfloat16)


# --- the book --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tensor", [HALF, torch.tensor(7), torch.tensor([True, False]), torch.empty(0), HALF[::2]])
def test_book_comes_back_from_bytes(tensor: torch.Tensor) -> None:
    book = RecordedCollectives()
    book.add(KEY, [tensor])
    result = RecordedCollectives.unpack(book.pack()).get(KEY)
    filled = torch.zeros_like(tensor)
    assert result is not None and copy_into([filled], result)
    assert torch.equal(filled, tensor)


def test_result_of_another_size_is_not_used() -> None:
    tensor = torch.zeros(3)
    assert not copy_into([tensor], (b"1234",))
    assert tensor.tolist() == [0, 0, 0]


def test_buffer_that_autograd_knows_can_be_filled() -> None:
    leaf = torch.zeros(1, requires_grad=True)
    product = leaf * leaf
    assert copy_into([leaf], (torch.ones(1).numpy().tobytes(),))
    product.backward()


def test_full_book_takes_nothing_more() -> None:
    book = RecordedCollectives(limit_bytes=10)
    book.add(("recv", "0", 0), [torch.zeros(1)])
    book.add(("recv", "0", 1), [torch.zeros(2)])
    book.add(("recv", "0", 2), [torch.zeros(1)])
    assert (len(book), book.closed) == (1, "more than 10 bytes")


def test_tensor_that_has_no_bytes_closes_the_book_and_harms_nobody() -> None:
    book = RecordedCollectives()
    book.add(KEY, [torch.empty(2, device="meta")])
    assert book.closed is not None and "recv" in book.closed


def test_large_tensors_are_never_kept() -> None:
    assert is_recordable([torch.empty(16384)])
    assert not is_recordable([torch.empty(16385), torch.empty(1)])
    assert not is_recordable([])


# --- recording and replay ---------------------------------------------------------------------------------------------


def talk(rank: int) -> list[Any]:
    """One of each kind: what this rank heard from the other one."""
    heard: list[Any] = []
    config: list[Any] = [{"from": 0} if rank == 0 else None]
    dist.broadcast_object_list(config, src=0)
    names: list[Any] = [None, None]
    dist.all_gather_object(names, f"rank {rank}, not {'more' * (1 + rank)}")
    heard += [config, names]
    if rank == 0:
        dist.send_object_list([{"shape": (2, 3)}], dst=1, use_batch=True)
    else:
        objects = [None]
        dist.recv_object_list(objects, src=0, use_batch=True)
        heard.append(objects)
    total = torch.tensor([1.5 + rank])
    dist.all_reduce(total, async_op=True).wait()
    gathered = torch.zeros(2, 2)
    getattr(dist, "all_gather_single", dist.all_gather_into_tensor)(gathered, torch.full((1, 2), float(rank)))
    swapped = torch.zeros(2)
    dist.all_to_all_single(swapped, torch.tensor([10.0, 20.0]) + rank)
    part = torch.zeros(1)
    dist.scatter(part, [torch.tensor([3.0]), torch.tensor([4.0])] if rank == 0 else None, src=0)
    heard += [each.tolist() for each in (total, gathered, swapped, part)]
    return [*heard, *_neighbours(rank)]


def _neighbours(rank: int) -> list[Any]:
    """As a pipeline does: sends and receives in one batch, in a group of its own."""
    group = dist.new_group([0, 1])
    received = torch.zeros(2)
    sent = torch.tensor([5.0, 6.0 + rank])
    operations = [dist.P2POp(dist.isend, sent, 1 - rank, group), dist.P2POp(dist.irecv, received, 1 - rank, group)]
    for work in dist.batch_isend_irecv(operations):
        work.wait()
    return [received.tolist()]


def converse(rank: int, port: int) -> tuple[list[Any], bytes, bool]:
    groups, replay, originals = Groups(timeout_s=GROUP_TIMEOUT_S), CollectiveReplay(), dict(vars(dist.ProcessGroup))
    groups.install()
    replay.record()
    groups.init(backend="gloo", store=connect(port), rank=rank, world_size=2, detached=False)
    heard = talk(rank)
    replay.end()
    restored = all(
        vars(dist.ProcessGroup)[name] is originals[name] for name in METHODS_WITH_RESULTS if name in originals
    )
    dist.barrier()
    dist.destroy_process_group()
    return heard, replay.recorded.pack(), restored


def rehearse(rank: int, port: int, played: int, book: bytes) -> list[Any]:
    groups, replay = Groups(timeout_s=GROUP_TIMEOUT_S), CollectiveReplay()
    groups.install()
    replay.replay(RecordedCollectives.unpack(book).get)
    groups.init(backend="gloo", store=dist.HashStore(), rank=played, world_size=2, detached=True)
    return talk(played)


class Rehearsal:
    """A call that can travel to a child: run_in_children gives it a rank and a port."""

    def __init__(self, played: int, book: bytes) -> None:
        self._played, self._book = played, book

    def __call__(self, rank: int, port: int) -> list[Any]:
        return rehearse(rank, port, self._played, self._book)


@pytest.mark.e2e
def test_rehearsal_hears_what_the_live_rank_heard() -> None:
    for rank, (heard, book, restored) in enumerate(run_in_children(converse, ranks=2)):
        assert restored
        assert run_in_children(Rehearsal(rank, book)) == [heard]


def rehearse_without_a_book(rank: int, port: int) -> list[Any]:
    groups, replay = Groups(timeout_s=GROUP_TIMEOUT_S), CollectiveReplay()
    groups.install()
    replay.replay(lambda key: None)
    groups.init(backend="gloo", store=dist.HashStore(), rank=1, world_size=2, detached=True)
    received, total = torch.full((2,), float("nan")), torch.ones(1)
    dist.recv(received, src=0)
    dist.all_reduce(total)
    return [received.tolist(), total.tolist()]


@pytest.mark.e2e
def test_without_an_entry_a_receive_gives_zeros_and_the_rest_is_left_alone() -> None:
    assert run_in_children(rehearse_without_a_book) == [[[0.0, 0.0], [1.0]]]


def record_twice(rank: int, port: int) -> list[list[float]]:
    """The first step is cut off and done again; then another process goes on from the lost one's book."""
    groups, replay = Groups(timeout_s=GROUP_TIMEOUT_S), CollectiveReplay()
    groups.install()
    replay.record()
    groups.init(backend="gloo", store=dist.HashStore(), rank=0, world_size=1, detached=False)
    _reduce(1.0)
    replay.mark()
    _reduce(2.0)
    replay.rewind()
    _reduce(3.0)
    replay.end()
    _reduce(4.0)
    done_again = replay.recorded
    lost = RecordedCollectives()
    lost.add(("allreduce", "0", 0), [torch.tensor([5.0])])
    replay.record_first_step(lost)
    _reduce(6.0)
    return [_results(done_again), _results(replay.recorded)]


def _reduce(value: float) -> None:
    dist.all_reduce(torch.tensor([value]))


def _results(book: RecordedCollectives) -> list[float]:
    found = (book.get(("allreduce", "0", number)) for number in range(len(book)))
    return [torch.frombuffer(bytearray(result[0]), dtype=torch.float32).item() for result in found if result]


@pytest.mark.e2e
def test_first_step_that_was_cut_off_is_recorded_anew() -> None:
    assert run_in_children(record_twice) == [[[1.0, 3.0], [5.0, 6.0]]]
