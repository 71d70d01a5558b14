"""Whether other nodes can be reached: a TCP connection to each of them, closed as soon as it is there."""

from __future__ import annotations

import errno
import select
import socket
import time
from collections.abc import Sequence

from deadpool.protocol.messages import Peer

PROBE_S = 1.5
"""Longer than it takes the kernel to send a lost first packet again."""
_ANSWERED = (0, errno.ECONNREFUSED, errno.ECONNRESET)
"""What the network says where the other machine answers, be it that no process listens there any more."""


def unreachable(peers: Sequence[Peer], timeout_s: float = PROBE_S) -> tuple[str, ...]:
    """The nodes that do not answer. Connections are made by the kernels of both sides: it makes no difference whether a
    process is slow, here or there."""
    pending: dict[socket.socket, str] = {}
    no_way: list[str] = []
    try:
        for peer in peers:
            sock = socket.socket(socket.AF_INET6 if ":" in peer.address.host else socket.AF_INET)
            sock.setblocking(False)
            code = sock.connect_ex((peer.address.host, peer.address.port))
            if code == errno.EINPROGRESS:
                pending[sock] = peer.node
                continue
            sock.close()
            if code not in _ANSWERED:
                no_way.append(peer.node)  # the error is told once: the socket itself would seem well afterwards
        _await(pending, time.monotonic() + timeout_s)
        return (*no_way, *pending.values())
    finally:
        for sock in pending:
            sock.close()


def _await(pending: dict[socket.socket, str], deadline: float) -> None:
    """Removes those that answer in time. Looks once more after the deadline: this process may not have run before."""
    by_descriptor = {sock.fileno(): sock for sock in pending}
    poller = select.poll()
    for descriptor in by_descriptor:
        poller.register(descriptor, select.POLLOUT)
    is_last = False
    while by_descriptor and not is_last:
        left_s = deadline - time.monotonic()
        is_last = left_s <= 0
        for descriptor, _ in poller.poll(1e3 * max(0.0, left_s)):
            sock = by_descriptor.pop(descriptor)
            poller.unregister(descriptor)
            if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR) in _ANSWERED:
                del pending[sock]
                sock.close()
