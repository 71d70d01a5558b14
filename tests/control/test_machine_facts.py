"""What an agent reports of its machine."""

from __future__ import annotations

import psutil

from deadpool.control.agent.machine import machine_facts


def test_machine_tells_its_memory_and_no_speed_of_loopback():
    assert machine_facts("127.0.0.1") == {"memory_bytes": psutil.virtual_memory().total, "link_gbps": None}
