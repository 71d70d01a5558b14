"""Which sockets an abort ends, and which it leaves alone."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from deadpool.backend.supervisor import Supervisor


@pytest.fixture
def supervisor() -> Supervisor:
    return Supervisor()


@pytest.fixture
def own_port(supervisor: Supervisor) -> Iterator[socket.socket]:
    """As gloo's device opens it."""
    opened: list[socket.socket] = []
    supervisor.claim_ports(lambda: opened.append(socket.create_server(("127.0.0.1", 0))))
    with opened[0]:
        yield opened[0]


@pytest.fixture
def other_port() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server


def is_over(end: socket.socket) -> bool:
    end.settimeout(0.2)
    try:
        return end.recv(1) == b""
    except TimeoutError:
        return False


def test_peer_that_was_ahead_and_connected_between_two_calls(supervisor, own_port):
    with socket.create_connection(own_port.getsockname()) as peer, own_port.accept()[0]:
        supervisor.run("making the next group", lambda: None, connections=0)
        supervisor.abort()
        assert is_over(peer)


def test_peer_that_is_ahead_again_after_the_abort(supervisor, own_port):
    supervisor.abort()
    with socket.create_connection(own_port.getsockname()) as peer, own_port.accept()[0]:
        supervisor.allow()
        assert not is_over(peer)


def test_visitors_of_somebody_elses_port(supervisor, other_port):
    visitors: list[socket.socket] = []

    def be_visited() -> None:
        visitors.append(socket.create_connection(other_port.getsockname()))
        visitors.append(other_port.accept()[0])

    supervisor.run("making a group while a store is visited", be_visited, connections=0)
    supervisor.abort()
    try:
        assert not is_over(visitors[0])
    finally:
        for visitor in visitors:
            visitor.close()
