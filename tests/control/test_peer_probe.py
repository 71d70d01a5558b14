"""Which nodes can be reached, by real connections."""

from __future__ import annotations

import socket
import time

from deadpool.control.peer_probe import unreachable
from deadpool.protocol.messages import Peer
from deadpool.protocol.topology import Address


def peer(node: str, host: str, port: int) -> Peer:
    return Peer(node=node, address=Address(host=host, port=port))


def test_machines_that_answer_are_reached_and_others_are_not():
    with socket.create_server(("127.0.0.1", 0)) as never_accepts, socket.create_server(("127.0.0.1", 0)) as full:
        gone = socket.create_server(("127.0.0.1", 0))
        port_of_none = gone.getsockname()[1]
        gone.close()
        full.listen(0)
        begun = [_connect(full.getsockname()) for _ in range(4)]  # no more connections are answered
        began = time.monotonic()
        found = unreachable(
            [
                peer("busy", *never_accepts.getsockname()),
                peer("its agent has ended", "127.0.0.1", port_of_none),
                peer("silent", *full.getsockname()),
            ],
            timeout_s=0.3,
        )
        assert found == ("silent",)
        assert time.monotonic() - began >= 0.3, "it was waited for, however long"
        for sock in begun:
            sock.close()


def _connect(address: tuple[str, int]) -> socket.socket:
    sock = socket.socket()
    sock.setblocking(False)
    sock.connect_ex(address)
    return sock


def test_nobody_to_try():
    assert unreachable([]) == ()
