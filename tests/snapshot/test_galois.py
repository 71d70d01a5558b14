"""The code decodes, whichever blocks are lost, for every scheme that is allowed; and back ends agree."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest

from deadpool.errors import TransferError
from deadpool.protocol.schemes import MOST_MEMBERS, MOST_PARITIES
from deadpool.snapshot.erasure import galois
from deadpool.snapshot.erasure.galois import (
    DataBlock,
    IsalCoder,
    NumpyCoder,
    ParityBlock,
    choose,
    chosen_coder,
    coefficient,
    invert,
    libraries,
    multiply,
    weights,
)

SCHEMES = [(2, 1), (3, 1), (4, 1), (4, 2), (8, 2), (5, 3), (4, 4)]


def isal() -> IsalCoder:
    coder = choose(libraries())
    if not isinstance(coder, IsalCoder):
        pytest.skip("ISA-L is not installed: scripts/packages coding installs it")
    return coder


def slow_product(a: int, b: int) -> int:
    """By the definition: polynomials modulo x^8 + x^4 + x^3 + x^2 + 1."""
    product = 0
    for bit in range(8):
        if b >> bit & 1:
            product ^= a << bit
    for bit in range(15, 7, -1):
        if product >> bit & 1:
            product ^= 0x11D << (bit - 8)
    return product


def test_products_are_those_of_the_field():
    assert all(multiply(a, b) == slow_product(a, b) for a in range(256) for b in range(256))
    assert all(multiply(a, invert(a)) == 1 for a in range(1, 256))


def determinant(matrix: list[list[int]]) -> int:
    """By expansion along the first row; there are no signs in this field."""
    if not matrix:
        return 1
    first, *rest = matrix
    total = 0
    for column, value in enumerate(first):
        total ^= multiply(value, determinant([row[:column] + row[column + 1 :] for row in rest]))
    return total


@pytest.mark.parametrize("parities", range(1, MOST_PARITIES + 1))
def test_every_square_part_of_the_coefficients_can_be_inverted(parities):
    """This is what makes a code decode from any k blocks. It is tried up to the largest group that is allowed."""
    matrix = [[coefficient(parities, index, member) for member in range(MOST_MEMBERS)] for index in range(parities)]
    assert matrix[0] == [1] * MOST_MEMBERS
    for size in range(1, parities + 1):
        for rows in itertools.combinations(matrix, size):
            for columns in itertools.combinations(range(MOST_MEMBERS), size):
                assert determinant([[row[column] for column in columns] for row in rows]), (rows, columns)


def encode(data: dict[int, bytes], parities: int, coder) -> dict[object, bytes]:
    longest = max(map(len, data.values()))
    blocks: dict[object, bytes] = {DataBlock(member): piece for member, piece in data.items()}
    for index in range(parities):
        parity = bytearray(longest)
        for member, piece in data.items():
            coder.fold(memoryview(parity), coefficient(parities, index, member), piece)
        blocks[ParityBlock(index)] = bytes(parity)
    return blocks


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_block_follows_from_any_k_others(scheme):
    """Members of a stripe are some of a group's, and their pieces have different lengths."""
    data_blocks, parities = scheme
    noise = random.Random(1)
    members = sorted(noise.sample(range(data_blocks + parities), data_blocks))
    data = {member: noise.randbytes(noise.choice([0, 1, 30, 31, 33])) for member in members}
    data[members[-1]] = noise.randbytes(33)
    blocks = encode(data, parities, NumpyCoder())
    for available in itertools.combinations(blocks, data_blocks):
        for wanted, block in blocks.items():
            recipe = weights(wanted, parities, members, available)
            assert set(recipe) <= set(available)
            found = bytearray(len(block))
            for used, weight in recipe.items():
                NumpyCoder().fold(memoryview(found), weight, blocks[used][: len(block)])
            assert found == block


def test_too_few_blocks_are_refused():
    available = [DataBlock(0), DataBlock(2), ParityBlock(1)]
    with pytest.raises(TransferError, match="3 blocks are left where 4 are needed"):
        weights(DataBlock(1), 2, [0, 1, 2, 3], available)


def test_data_is_used_before_parity_and_the_plain_sum_before_others():
    available = [ParityBlock(1), ParityBlock(0), DataBlock(0), DataBlock(1)]
    assert weights(DataBlock(2), 2, [0, 1, 2], available) == {DataBlock(0): 1, DataBlock(1): 1, ParityBlock(0): 1}


# --- back ends


@pytest.mark.parametrize("factor", [1, 2, 3, 0x1D, 0xFF])
@pytest.mark.parametrize("size", [0, 1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 4095, 65537, 131073])
def test_back_ends_give_the_same_bytes(factor, size):
    noise = np.random.default_rng(size)
    before, piece = noise.integers(0, 256, size + 5, np.uint8), noise.integers(0, 256, size, np.uint8)
    results = []
    for coder in (isal(), NumpyCoder()):
        parity = before.copy()
        coder.fold(memoryview(parity), factor, memoryview(piece))
        results.append(parity.tobytes())
    assert results[0] == results[1]
    assert results[0][size:] == before[size:].tobytes(), "beyond the piece nothing changes"
    assert all(results[0][at] == before[at] ^ multiply(factor, int(piece[at])) for at in range(0, size, 997))


def test_numpy_is_chosen_where_there_is_no_library():
    coder = choose(["libisal-that-is-not-here.so.2", "libm.so.6"])  # the second is a library, of something else
    assert isinstance(coder, NumpyCoder)
    assert (coder.name, coder.is_fast) == ("numpy", False)


def test_library_that_computes_something_else_is_not_used(monkeypatch):
    isal()
    monkeypatch.setattr(IsalCoder, "fold", lambda self, parity, coefficient, piece: None)
    assert isinstance(choose(libraries()), NumpyCoder)


def test_choice_is_made_once(monkeypatch):
    chosen_coder.cache_clear()
    monkeypatch.setattr(galois, "libraries", lambda: iter(()))
    assert isinstance(chosen_coder(), NumpyCoder)
    monkeypatch.undo()
    assert isinstance(chosen_coder(), NumpyCoder)
    chosen_coder.cache_clear()


def test_library_inside_a_wheel_is_found(monkeypatch, tmp_path):
    (tmp_path / "pyeclib").mkdir()
    (tmp_path / "pyeclib" / "__init__.py").touch()
    (tmp_path / "pyeclib.libs").mkdir()
    inside = tmp_path / "pyeclib.libs" / "libisal-0f1e.so.2"
    inside.touch()
    monkeypatch.syspath_prepend(tmp_path)
    assert list(libraries()) == ["libisal.so.2", str(inside)]
