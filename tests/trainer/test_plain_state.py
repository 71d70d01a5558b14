"""Attributes of plain data come back, whatever has become of them since."""

from __future__ import annotations

from collections import defaultdict

from deadpool.integrations.plain_state import plain_attributes, set_plain_attributes
from deadpool.snapshot.record import decode, encode


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
