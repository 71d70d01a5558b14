"""A node says once what computes its parities, and that it is slow where ISA-L is missing."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from coded_access import coded_copies_for

from deadpool.control.coding import coded_copies
from deadpool.events.event import Event
from deadpool.protocol.effects import AcceptOffer, JointTarget
from deadpool.protocol.features.coding.stripes import parity_layout
from deadpool.protocol.identity import Generation, Version
from deadpool.protocol.messages import SlotRef
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Geometry
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.erasure.galois import IsalCoder, choose, libraries
from deadpool.snapshot.transfer import TransferClient
from deadpool.wire.credentials import read_credentials

GROUP = RankGroup(ranks=(0, 1, 2), parities=1)
GEOMETRIES = (Geometry(record_capacity=64, unique_bytes=4096, replica_bytes=0),) * 2


def told(coder: object, monkeypatch: pytest.MonkeyPatch) -> list[Event]:
    """What is told while two parities are begun."""
    monkeypatch.setattr(coded_copies, "chosen_coder", lambda: coder)
    monkeypatch.setenv("DEADPOOL_SECRET", "00" * 32)
    segment = Segment.create("test-coder", parity_layout(GROUP, 0, GEOMETRIES).geometry, 2)
    events: list[Event] = []
    client = TransferClient(credentials=read_credentials())
    with ThreadPoolExecutor(1) as hashers:
        coded = coded_copies_for(client, segment, hashers, events.append)
        for index in range(2):
            version = Version(Generation(1, 1), index)
            target = JointTarget(group=GROUP, member=0, version=version, geometries=GEOMETRIES)
            coded.begin(AcceptOffer(offer=index, slot=SlotRef(segment=0, index=index), joint=target, fresh=True))
        coded.forget(0)
    client.close()
    segment.close()
    return events


def test_library_is_missing(monkeypatch):
    (event,) = told(choose(["libisal.so.of-nobody"]), monkeypatch)
    assert (event.what, event.detail) == ("coder_slow", {"coder": "numpy"})


def test_library_is_there(monkeypatch):
    coder = choose(libraries())
    if not isinstance(coder, IsalCoder):
        pytest.skip("ISA-L is not installed here")
    (event,) = told(coder, monkeypatch)
    assert event.what == "coder_chosen" and event.detail["coder"].startswith("ISA-L")
