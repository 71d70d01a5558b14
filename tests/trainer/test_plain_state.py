"""Attributes of plain data come back, whatever has become of them since."""

from __future__ import annotations

from collections import defaultdict

from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes
from deadpool.snapshot.record.record import decode, encode


class Owner:
    begun = 0

    def __init__(self) -> None:
        self.count, self.names, self.handle = 3, ["a"], object()
        self.figures = {"train": defaultdict(list, loss=[0.5])}
        self.later: object = object()


def test_everything_plain_is_as_it_was():
    owner = Owner()
    kept, names, figures, handle = (
        decode(encode(plain_attributes(owner), "x"), "x"),
        owner.names,
        owner.figures,
        owner.handle,
    )
    owner.count = 9
    owner.names.append("b")
    owner.figures["train"]["loss"].append(0.4)
    owner.figures["train"]["speed"].append(1)
    owner.figures["eval"] = defaultdict(list)
    owner.begun += 1
    owner.added = "since"
    owner.later = None
    set_plain_attributes(owner, kept)
    assert owner.count == 3 and owner.names == ["a"] and owner.figures == {"train": {"loss": [0.5]}}
    assert owner.names is names and owner.figures is figures and owner.handle is handle, "others may hold them"
    assert owner.begun == 0 and not hasattr(owner, "added")
    owner.figures["train"]["speed"].append(2)  # it still makes what is missing


def test_what_is_no_plain_data_is_left_alone():
    values = plain_attributes(Owner())["values"]
    assert sorted(values) == ["count", "figures", "names"]


def test_keys_come_back_in_their_order():
    """A log that lists what was added up has the order in which it was added up."""
    owner = Owner()
    sums = owner.figures["train"]
    sums["entropy"].append(1.0)
    state = decode(encode(plain_attributes(owner), "owner"), "owner")
    sums.clear()
    sums["entropy"].append(4.0)
    sums["later"].append(5.0)
    sums["loss"].append(3.0)
    set_plain_attributes(owner, state)
    assert owner.figures["train"] is sums
    assert list(sums.items()) == [("loss", [0.5]), ("entropy", [1.0])]


def test_a_dict_that_a_factory_made_is_made_again():
    owner, fresh = Owner(), Owner()
    for each in (owner, fresh):
        each.names = defaultdict(lambda: defaultdict(int))
    owner.names["a"]["count"] = 1
    set_plain_attributes(fresh, decode(encode(plain_attributes(owner), "owner"), "owner"))
    fresh.names["a"]["others"] += 1
    assert fresh.names == {"a": {"count": 1, "others": 1}}
