"""Which nodes can be reached, by real connections."""

from __future__ import annotations

import socket
import time
from types import SimpleNamespace

import pytest

from deadpool.control.agent import coordinator_client
from deadpool.control.agent.coordinator_client import unreachable
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Peer


def peer(node: str, host: str, port: int) -> Peer:
    return Peer(node=node, address=Address(host=host, port=port))


@pytest.fixture
def moments(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Each at which the probe looked at its clock."""
    found: list[float] = []

    def look() -> float:
        found.append(time.monotonic())
        return found[-1]

    monkeypatch.setattr(coordinator_client, "time", SimpleNamespace(monotonic=look))
    return found


def test_machines_that_answer_are_reached_and_others_are_not(moments):
    with socket.create_server(("127.0.0.1", 0)) as never_accepts, socket.create_server(("127.0.0.1", 0)) as full:
        gone = socket.create_server(("127.0.0.1", 0))
        port_of_none = gone.getsockname()[1]
        gone.close()
        full.listen(0)
        begun = [_connect(full.getsockname()) for _ in range(4)]  # no more connections are answered
        found = unreachable(
            [
                peer("busy", *never_accepts.getsockname()),
                peer("its agent has ended", "127.0.0.1", port_of_none),
                peer("silent", *full.getsockname()),
            ],
            timeout_s=0.3,
        )
        assert found == ("silent",)
        assert moments[-1] - moments[0] >= 0.3, "it looked once more after the deadline, however late"
        for sock in begun:
            sock.close()


def _connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(address)
    return sock


def test_nobody_to_try():
    assert unreachable([]) == ()
