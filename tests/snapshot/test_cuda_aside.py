"""Where clones are placed, and that what is copied from them is what was cloned: host memory plays the device's."""

from __future__ import annotations

import pytest
import torch
from test_cuda_calls import LibraryTwin

from deadpool.snapshot.copying.cuda import Addresses, Clones, Runtime, aside_bytes, place_clones

STREAM = 77
SIZES = (5, 512, 513, 100_000, 1)


def filled(size: int, seed: int) -> torch.Tensor:
    return torch.randint(256, (size,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


class Batch:
    """Tensors that are contiguous, in two turns, and one that is not."""

    def __init__(self, *, registered: bool) -> None:
        self.live = [filled(size, size) for size in SIZES]
        self.stored = [torch.zeros(size, dtype=torch.uint8) for size in SIZES]
        moves = [
            (stored.data_ptr(), live.data_ptr(), live.numel())
            for stored, live in zip(self.stored, self.live, strict=True)
        ]
        self.turns = [Addresses.of(part, registered=registered) for part in (moves[:2], moves[2:])]
        turned = filled(60 * 4, 1).view(torch.int32).view(6, 10).t()
        self.strided = [(torch.zeros(10, 6, dtype=torch.int32), turned)]

    def before(self) -> list[torch.Tensor]:
        return [tensor.clone() for tensor in [*self.live, self.strided[0][1]]]

    def overwrite(self) -> None:
        for tensor in [*self.live, self.strided[0][1]]:
            tensor.fill_(7)

    def after(self) -> list[torch.Tensor]:
        return [*self.stored, self.strided[0][0]]


def carry_out(runtime: Runtime, clones: Clones, batch: Batch) -> None:
    """As the lane does it: the clones, then the optimizer, then the copies."""
    for addresses in clones.clone:
        runtime.issue(addresses, STREAM, to_host=True)
    for clone, live in clones.strided:
        clone.copy_(live)
    batch.overwrite()
    for addresses in clones.store:
        runtime.issue(addresses, STREAM, to_host=True)


@pytest.mark.parametrize("registered", [True, False])
def test_what_is_copied_is_what_was_cloned_although_it_was_overwritten(registered):
    library = LibraryTwin(13000)
    runtime = Runtime(library)
    batches = [Batch(registered=registered) for _ in range(2)]
    sizes = [aside_bytes(batch.turns, batch.strided) for batch in batches]
    memory, start = torch.zeros(sum(sizes), dtype=torch.uint8), 0
    for batch, size in zip(batches, sizes, strict=True):
        expected = batch.before()
        carry_out(runtime, place_clones(batch.turns, batch.strided, memory, start), batch)
        start += size
        assert all(torch.equal(*pair) for pair in zip(batch.after(), expected, strict=True))
    assert ("batch" in library.calls) == registered


def test_clones_lie_apart_and_within_what_was_measured():
    batch = Batch(registered=True)
    size = aside_bytes(batch.turns, batch.strided)
    memory = torch.zeros(size, dtype=torch.uint8)
    clones = place_clones(batch.turns, batch.strided, memory, 0)
    places = [
        (place - memory.data_ptr(), length)
        for addresses in clones.store
        for place, length in zip(addresses.device, addresses.sizes, strict=True)
    ]
    assert all(start % 512 == 0 for start, _ in places)
    ends = [start + length for start, length in sorted(places)]
    assert all(end <= start for end, (start, _) in zip(ends, sorted(places)[1:], strict=False))
    assert ends[-1] <= size


def test_an_empty_turn_needs_no_place():
    empty = Addresses.of([], registered=True)
    assert aside_bytes([empty], []) == 0
    clones = place_clones([empty], [], torch.zeros(0, dtype=torch.uint8), 0)
    assert [len(each) for each in clones.store] == [0]
