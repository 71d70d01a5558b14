"""Links over which little is said: the kernel finds out that the other machine is gone, which ended without a word."""

from __future__ import annotations

import asyncio
import socket

_IDLE_S, _PROBE_EVERY_S, _PROBES = 10, 5, 3


def notice_silence(writer: asyncio.StreamWriter) -> None:
    """The connection ends within half a minute if the machine at its other end does not answer."""
    sock = writer.get_extra_info("socket")
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _PROBE_EVERY_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, 1000 * (_IDLE_S + _PROBES * _PROBE_EVERY_S))
