"""`deadpool status` as people see it, from a coordinator that was told what nodes tell."""

from __future__ import annotations

import pytest

from deadpool.cli.status import _print, _size
from deadpool.control.status import describe
from deadpool.protocol.coordinator import Coordinator
from deadpool.protocol.deadlines import Deadlines
from deadpool.protocol.effects import FromAgent
from deadpool.protocol.messages import Join, Settings
from deadpool.protocol.topology import Address, Layout, Schedule

FIGURES = {
    "unique_bytes": 8_000_000,
    "replica_bytes": 4_000_000,
    "record_bytes": 9_000,
    "peers": (1,),
    "pushed_version": 6,
    "wire_bytes": {"n1": 8_009_300},
}


def core_of(racks, **layout):
    deadlines = Deadlines(node_s=9, fence_s=9, prepare_s=9, connect_s=9, spare_wait_s=9, hang_s=9)
    shape = Layout(positions=len(racks), per_node=1, holders=1)
    settings = Settings(layout=shape, slots=2, heartbeat_s=1, unwind_s=4)
    core = Coordinator(settings=settings, deadlines=deadlines, schedule=Schedule(every=2))
    for index, rack in enumerate(racks):
        join = Join(node=f"n{index}", incarnation="a", data=Address(host="h", port=1), spare=False, rack=rack)
        core.step(FromAgent(node=join.node, message=join), now=0)
    return core


def shown(core, facts, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    _print(describe(core, facts))
    return capsys.readouterr().out


def test_bytes_of_a_rank_are_shown_per_step(capsys, monkeypatch):
    facts = {"n0": {"rank_figures": {"0": FIGURES}, "bytes_pushed": 1}}
    core = core_of([None, None])
    body = describe(core, facts)
    assert body["ranks"][0] == {"rank": 0, "node": "n0", **FIGURES, "wire_bytes_per_step": 4_004_650}
    assert body["ranks"][1] == {"rank": 1, "node": "n1", "wire_bytes_per_step": None}, "it has not told yet"
    assert "rank_figures" not in body["nodes"][0]
    text = shown(core, facts, capsys, monkeypatch)
    assert "8.0 MB" in text and "9.0 kB" in text and "4.0 MB" in text
    assert "rack" not in text


def test_racks_are_shown_where_they_were_given(capsys, monkeypatch):
    text = shown(core_of(["left", "right", None]), {}, capsys, monkeypatch)
    assert "rack" in text and "left" in text and "right" in text
    assert "copies in their own rack" not in text


def test_copies_that_share_their_ranks_rack_are_named(capsys, monkeypatch):
    assert "copies in their own rack: of positions 0, 1" in shown(core_of(["left", "left"]), {}, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (2.5e6, "2.5 MB"), (7e12, "7000.0 GB")]
)
def test_sizes(count, text):
    assert _size(count) == text
