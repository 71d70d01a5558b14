from __future__ import annotations

from deadpool.control.coordinator.progress import console_line
from deadpool.control.coordinator.status import bandwidth


def test_rates_of_all_nodes_that_sent_are_told():
    facts = {
        "n0": {"bytes_pushed": 2_000_000_000, "push_gbps": 3.0},
        "n1": {"bytes_pushed": 1_000_000_000, "push_gbps": 1.0},
        "spare": {"bytes_pushed": 0, "push_gbps": None},
        "silent": {},
    }
    event = bandwidth(facts)
    assert event is not None and event.detail["push_gbps"] == {"n0": 3.0, "n1": 1.0}
    line = "copies: 3 GB to holders by 2 nodes, a transfer at 2.00 GB/s, slowest n1 at 1.00 GB/s"
    assert console_line(event.record()) == line


def test_nothing_sent_is_nothing_told():
    assert bandwidth({"n0": {"push_gbps": None}, "n1": {}}) is None
