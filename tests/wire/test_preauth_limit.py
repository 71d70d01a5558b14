from __future__ import annotations

from deadpool.wire.deadline import PeerDeadline
from deadpool.wire.listener import PreauthLimit


def test_full_room_is_emptied_from_the_oldest_after_a_grace():
    peers: PreauthLimit[str] = PreauthLimit(limit=2, grace_s=1.0)
    peers.arrived("a", 0.0)
    assert peers.wait_s(0.1) == 0 and peers.crowded_out(0.1) is None
    peers.arrived("b", 0.4)
    assert peers.wait_s(0.4) == 0.6 and peers.crowded_out(0.4) is None
    assert peers.wait_s(1.0) == 0 and peers.crowded_out(1.0) == "a"
    peers.arrived("c", 1.0)
    peers.known("b")
    assert peers.wait_s(1.0) == 0 and len(peers) == 1


def test_slowness_adds_up_and_a_stall_of_our_own_counts_once():
    patience = PeerDeadline(4.0)
    for _ in range(39):
        patience.waited(0.1)
    assert not patience.over
    patience.waited(0.2)
    assert patience.over
    stalled = PeerDeadline(4.0)
    stalled.waited(1000.0)
    assert not stalled.over
