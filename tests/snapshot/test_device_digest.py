"""Digests as a device computes them: every bit counts, and so does its place. They are computed on the CPU here, once
by a product of matrices and once without."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from deadpool.snapshot.state import device_digest
from deadpool.snapshot.state.device_digest import ROW_BYTES, begin, digest_all, finish

Digest = Callable[[Tensor], int]
DTYPES = (
    torch.float64, torch.float32, torch.bfloat16, torch.float16, torch.float8_e4m3fn, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.complex128,
)  # fmt: skip
SIZES = (1, 7, ROW_BYTES, 17 * ROW_BYTES - 1, 17 * ROW_BYTES, 19 * ROW_BYTES + 5)


def of(tensor: Tensor) -> int:
    return finish([begin(tensor)])[0]


def drawn(nbytes: int, seed: int = 0) -> Tensor:
    return torch.randint(0, 256, (nbytes,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def with_byte(data: Tensor, place: int, change: int) -> Tensor:
    changed = data.clone()
    changed[place] = (int(changed[place]) + change) % 256
    return changed


@pytest.mark.parametrize("nbytes", SIZES)
def test_one_byte_that_is_another_one_always_shows(nbytes):
    data = drawn(nbytes)
    digest = of(data)
    others = [of(with_byte(data, place, 1 << bit)) for place in {0, nbytes // 2, nbytes - 1} for bit in (0, 4, 7)]
    assert digest == of(data.clone()) and digest not in others
    assert len(set(others)) == len(others), "nor do two such errors look alike"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_elements_of_every_type_that_change_places_show(dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    data = drawn(18 * ROW_BYTES)
    data = (data % 2 if dtype is torch.bool else data).view(dtype)
    digest, last = of(data), data.numel() - 1
    for one, other in ((0, 1), (3, 3 + ROW_BYTES // size), (0, last), (last - 1, last)):
        swapped = data.clone()
        swapped[one], swapped[other] = data[other], data[one]
        same = bytes(swapped.view(torch.uint8)) == bytes(data.view(torch.uint8))
        assert (of(swapped) == digest) == same


def test_rows_that_change_places_show():
    data = drawn(18 * ROW_BYTES)
    rows = list(data.view(-1, ROW_BYTES))
    swapped = torch.cat([rows[5], *rows[1:5], rows[0], *rows[6:]])
    assert of(swapped) != of(data)
    assert of(torch.cat([*rows[1:], rows[0]])) != of(data)


def test_tensors_that_change_places_show():
    one, other = drawn(ROW_BYTES), drawn(20 * ROW_BYTES)
    first, second = finish([begin(one), begin(other)])
    assert finish([begin(other), begin(one)]) == [second, first]
    assert (of(one), of(other)) == (first, second), "each has its own, whatever comes with it"


def test_bits_count_and_not_values():
    zero, nan = torch.zeros(64), torch.full((64,), math.nan)
    minus = zero.clone()
    minus[7] = -0.0
    assert torch.equal(zero, minus) and of(zero) != of(minus)
    payload = nan.clone()
    payload.view(torch.int32)[9] ^= 1
    assert payload.isnan().all() and of(payload) != of(nan)


def test_zeros_of_other_lengths_are_others():
    lengths = (1, 2, ROW_BYTES - 1, ROW_BYTES, 2 * ROW_BYTES, 17 * ROW_BYTES, 18 * ROW_BYTES)
    assert len({of(torch.zeros(each, dtype=torch.int8)) for each in lengths}) == len(lengths)


def test_all_digests_at_once_are_those_of_each():
    tensors = [drawn(each, seed) for seed, each in enumerate((*SIZES, 3, *SIZES))]
    assert finish([begin(each) for each in tensors]) == [of(each) for each in tensors]


@pytest.mark.parametrize("gathered", [1, 64])
def test_gathered_or_each_for_itself_they_are_the_same(gathered, monkeypatch):
    """And however many fit into a group."""
    tensors = [drawn(each, seed) for seed, each in enumerate((*SIZES, 3, *SIZES))] + [torch.arange(40.0).view(8, 5).t()]
    expected = [of(each) for each in tensors]
    assert digest_all(tensors) == expected and digest_all([]) == []
    monkeypatch.setattr(device_digest, "_GATHERED_BYTES", 17 * ROW_BYTES * gathered)
    monkeypatch.setattr(device_digest, "_GROUP_BYTES", 30 * ROW_BYTES)
    assert digest_all(tensors) == expected


def test_what_was_begun_keeps_its_digest_when_the_tensor_changes():
    data = drawn(18 * ROW_BYTES + 7)
    expected, begun = of(data), begin(data)
    data.zero_()
    assert finish([begun]) == [expected]


def test_shape_and_strides_do_not_count_but_the_order_of_elements_does():
    data = torch.arange(5 * ROW_BYTES, dtype=torch.float32).view(80, -1)
    assert of(data) == of(data.reshape(-1)) == of(data.t().contiguous().t())
    assert of(data) != of(data.t())
    assert of(data.to(torch.complex64).conj()) == of(data.to(torch.complex64).conj().resolve_conj())


@pytest.mark.parametrize("offset", [1, 4, 8])
def test_memory_that_is_not_aligned(offset, monkeypatch):
    monkeypatch.setattr(device_digest, "_COPIED_BYTES", 20 * ROW_BYTES)
    data = drawn(38 * ROW_BYTES + offset)
    assert of(data[offset:]) == of(data[offset:].clone())


def test_tensor_that_is_read_piece_by_piece(monkeypatch):
    data = drawn(38 * ROW_BYTES + 3)
    whole = of(data)
    monkeypatch.setattr(device_digest, "_PIECE_BYTES", 20 * ROW_BYTES)
    assert len(begin(data).sums) == 2 and of(data) == whole


def test_without_a_product_of_matrices_they_are_the_same(monkeypatch):
    tensors = [drawn(each) for each in SIZES]
    fast = finish(list(map(begin, tensors)))
    monkeypatch.setattr(device_digest, "_can_multiply", lambda _: False)
    assert finish(list(map(begin, tensors))) == fast


def test_weights_are_what_the_claims_rest_on():
    matrix = device_digest._matrix(torch.device("cpu"))
    assert len(set(map(bytes, matrix.t().contiguous().numpy()))) == ROW_BYTES, "no two places have equal ones"
    assert (matrix[1:] & 1).all() and not (matrix[0] & 1).any() and matrix[0].all()
    weights = device_digest._odd_weights(torch.arange(1 << 16))
    assert (weights & 1).all() and len(weights.unique()) == len(weights)


def test_digests_do_not_depend_on_the_process():
    assert of(torch.arange(3 * ROW_BYTES, dtype=torch.int32)) == 3917242608733104736


def test_scripts_that_ask_for_what_is_deterministic(monkeypatch):
    data = drawn(20 * ROW_BYTES)
    digest = of(data)
    torch.use_deterministic_algorithms(True)
    try:
        assert of(data) == digest
    finally:
        torch.use_deterministic_algorithms(False)
