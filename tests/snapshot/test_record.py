"""The record codec returns every value exactly and in its type, and names the path of a value that it cannot store."""

from __future__ import annotations

import collections
import math
import random
import struct

import msgpack
import numpy as np
import pytest
import torch

from deadpool.errors import StateError
from deadpool.snapshot.record.record import decode, encode

hypothesis = pytest.importorskip("hypothesis")
given, settings, st = hypothesis.given, hypothesis.settings, hypothesis.strategies


def there_and_back(value):
    return decode(encode(value, "value"), "value")


def assert_same(a, b):
    """Compares types and values recursively, and floats by their bits."""
    assert type(a) is type(b)
    if isinstance(a, (torch.Tensor, np.ndarray)):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        if isinstance(a, torch.Tensor):
            assert (a.device, a.requires_grad) == (b.device, b.requires_grad)
            a, b = (
                a.detach().contiguous().view(-1).view(torch.uint8).numpy(),
                b.detach().view(-1).view(torch.uint8).numpy(),
            )
        assert a.tobytes() == b.tobytes()
    elif isinstance(a, dict):
        assert len(a) == len(b)
        for (key_a, value_a), (key_b, value_b) in zip(a.items(), b.items(), strict=True):
            assert_same(key_a, key_b)
            assert_same(value_a, value_b)
    elif isinstance(a, (list, tuple, collections.deque)):
        assert len(a) == len(b)
        for item_a, item_b in zip(a, b, strict=True):
            assert_same(item_a, item_b)
    elif isinstance(a, float):
        assert struct.pack("<d", a) == struct.pack("<d", b)
    elif isinstance(a, complex):
        assert struct.pack("<dd", a.real, a.imag) == struct.pack("<dd", b.real, b.imag)
    else:
        assert a == b


hashable_leaves = (
    st.none() | st.booleans() | st.integers() | st.text() | st.binary() | st.floats(allow_nan=False) | st.just(2**9000)
)
keys = st.recursive(
    hashable_leaves, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3), max_leaves=5
)
leaves = (
    hashable_leaves
    | st.floats()
    | st.complex_numbers()
    | st.sampled_from([torch.bfloat16, torch.device("cpu"), torch.Size([2, 3]), range(1, 9, 2), np.float32(0.1)])
)
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.lists(inner, max_size=4).map(tuple)
        | st.lists(inner, max_size=4).map(lambda items: collections.deque(items, maxlen=5))
        | st.dictionaries(keys, inner, max_size=4)
        | st.dictionaries(keys, inner, max_size=4).map(collections.OrderedDict)
        | st.dictionaries(keys, inner, max_size=4).map(lambda items: collections.defaultdict(list, items))
        | st.sets(keys, max_size=4)
    ),
    max_leaves=20,
)


@settings(max_examples=200, deadline=None)
@given(values)
def test_nested_state_comes_back_exactly(value):
    assert_same(value, there_and_back(value))


@pytest.mark.parametrize(
    "value",
    [
        math.inf,
        -0.0,
        struct.unpack("<d", bytes.fromhex("0100000000c0f87f"))[0],
        2**64,
        -(2**63) - 1,
        10**300,
        "\ud800 lone surrogate",
        collections.Counter("abca"),
        collections.defaultdict(None, {1: 2}),
        collections.defaultdict(int, {(1, "a"): 2}),
        collections.deque([1, 2], maxlen=None),
        {True: 1, "1": 2, 2.5: 3, None: 4, (1, (2,)): 5},
        random.getstate(),
        np.random.get_state(legacy=False),
        torch.get_rng_state(),
        np.arange(6).reshape(2, 3).T,
        np.zeros((0, 3), np.float16),
        np.array("2020-01-01", "M8[s]"),
        np.array(["ab", "c"]),
        np.int8(-3),
        np.float64(0.1),
        np.bool_(True),
        np.str_(""),
        np.longdouble("0.1"),
    ],
    ids=lambda value: f"{type(value).__name__}",
)
def test_odd_values(value):
    assert_same(value, there_and_back(value))


@pytest.mark.parametrize(
    "dtype",
    [
        *("float32", "float64", "float16", "bfloat16", "float8_e4m3fn", "bool", "int8", "int64", "uint16", "uint64"),
        *("complex64", "complex128"),
    ],
)
@pytest.mark.parametrize("shape", [(), (0, 3), (5,), (3, 4)], ids=str)
def test_tensors(dtype, shape):
    tensor = torch.randn(shape).mul(3).to(getattr(torch, dtype))
    assert_same(tensor, there_and_back(tensor))


def test_tensor_in_odd_memory_comes_back_by_value():
    base = torch.randn(4, 6, dtype=torch.complex64)
    for tensor in (base.t(), base[:, ::2], base.conj(), base[:1].expand(4, 6), base.real):
        assert torch.equal(tensor, there_and_back(tensor))


def test_nan_payloads_of_tensors_survive():
    tensor = torch.tensor([0x7FC00001, -1], dtype=torch.int32).view(torch.float32)
    assert_same(tensor, there_and_back(tensor))


def test_parameter_stays_a_parameter():
    for requires_grad in (True, False):
        assert_same(
            torch.nn.Parameter(torch.ones(2), requires_grad),
            there_and_back(torch.nn.Parameter(torch.ones(2), requires_grad)),
        )


def test_the_record_is_private():
    source = {"tensor": torch.zeros(3), "array": np.zeros(3), "list": [1]}
    data = encode(source, "value")
    source["tensor"].fill_(7)
    source["array"][:] = 7
    source["list"].append(2)
    back = decode(data, "value")
    assert (back["tensor"].sum(), back["array"].sum(), back["list"]) == (0, 0, [1])
    back["tensor"] += 1
    back["array"] += 1


def test_equal_sets_have_equal_bytes():
    words, backwards = ([f"word{n}" for n in order] for order in (range(50), range(49, -1, -1)))
    assert encode(set(words), "a") == encode(set(backwards), "b")


class Foo:
    pass


Point = collections.namedtuple("Point", "x y")


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ({"sampler": Foo()}, "data.state_dict()['sampler']: object of type Foo cannot be stored; make its state_dict"),
        ({"a": [1, (2, Foo())]}, "data.state_dict()['a'][1][1]: object of type Foo"),
        ({"p": Point(1, 2)}, "data.state_dict()['p']: object of type Point"),
        ({"f": collections.deque([len])}, "data.state_dict()['f'][0]: object of type builtin_function_or_method"),
        ({"o": np.array([Foo()])}, "data.state_dict()['o']: numpy array of dtype object"),
        ({"d": collections.defaultdict(lambda: 3)}, "data.state_dict()['d']: defaultdict with the factory"),
        ({"m": torch.empty(3, device="meta")}, "data.state_dict()['m']: tensor on meta"),
        ({"s": torch.eye(3).to_mkldnn()}, "data.state_dict()['s']: tensor on cpu with layout"),
        (Foo(), "data.state_dict(): object of type Foo"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_cannot_be_stored_is_named(value, message):
    with pytest.raises(StateError) as caught:
        encode(value, "data.state_dict()")
    assert str(caught.value).startswith(message)


def test_state_that_contains_itself():
    loop: list = []
    loop.append(loop)
    with pytest.raises(StateError, match=r"^data is nested too deeply, or contains itself"):
        encode(loop, "data")


@pytest.mark.parametrize("data", [b"", b"\xc1", b"\x93\x01", msgpack.packb(msgpack.ExtType(99, b""))])
def test_damaged_records_are_refused(data):
    with pytest.raises(StateError, match="rng: the stored state is damaged"):
        decode(data, "rng")


def test_decoding_refuses_object_arrays():
    payload = msgpack.packb(["|O", [1], b"12345678"])
    with pytest.raises(StateError):
        decode(msgpack.packb(msgpack.ExtType(11, payload)), "x")
