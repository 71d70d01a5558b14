"""One authenticated TCP stream between two agents: frames, bulk bytes, timeouts, and a cut from any thread.

One thread at a time reads from a connection; any thread may send a whole frame; any thread may cut it. Every error is a
TransferError, or a WireError if the peer violates the protocol, and names the peer.
"""

from __future__ import annotations

import contextlib
import os
import socket
import ssl
import struct
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from deadpool.errors import TransferError, WireError
from deadpool.protocol.causes import Refusal
from deadpool.protocol.identity import Generation
from deadpool.snapshot.arena.checksums import checksum, pieces
from deadpool.snapshot.transfer.frames import (
    HEAD_BYTES,
    Frame,
    Head,
    Kind,
    pack_frame,
    pack_refusal,
    unpack_body,
    unpack_head,
    unpack_refusal,
)
from deadpool.snapshot.transfer.streams import ByteStream, PlainStream, TlsStream
from deadpool.wire.deadline import PeerDeadline


class ConnectionLost(TransferError):
    """The stream ended or fell silent."""


class PeerRefused(TransferError):
    """The peer has answered REFUSED."""

    def __init__(self, peer: str, refusal: Refusal, reason: str) -> None:
        super().__init__(f"{peer} refused: {reason or refusal.value}")
        self.refusal = refusal


@dataclass(frozen=True, slots=True)
class Midway:
    """What happens when half of the first bytes of a push are on the wire. For drills only."""

    act: Callable[[], None]
    flips: bool = False  # a bit of the byte that is sent next, and not of what this node has


class Connection:
    """Wraps a connected socket, which it owns."""

    def __init__(self, sock: socket.socket, peer: str, deadline_s: float) -> None:
        self.peer = peer
        self.generation: Generation | None = None  # set by the first frame, then fixed
        self.bytes_sent = 0  # frames and payload that the kernel has taken, and what the peer has read by windows
        self._sock = sock
        self._stream: ByteStream = PlainStream(sock)
        self._cut_reason = ""
        self._send_lock = threading.Lock()
        self._end_lock = threading.Lock()
        self._deadline_s = deadline_s
        self._silent = f"silent for {deadline_s:g} s"
        # A fraction of the deadline, because the kernel may wait several timeouts in a call that has moved some bytes.
        _prepare(sock, deadline_s / 4)

    # --- frames

    def send(self, kind: Kind, body: list[Any]) -> None:
        with self._send_lock, self._errors():
            self._send_bytes(self._pack(kind, body))

    def send_list(self, kind: Kind, body: list[Any], payload: bytes) -> None:
        """Sends a frame with a payload that lies in this process's memory."""
        with self._send_lock, self._errors():
            self._send_bytes(self._pack(kind, body, len(payload)) + payload)

    def refuse(self, refusal: Refusal, reason: str = "") -> None:
        """`reason` is for people, where there is more to say."""
        self.send(Kind.REFUSED, pack_refusal(refusal, reason))

    def receive_list(self, frame: Frame, expected_bytes: int) -> bytearray:
        """The payload of a frame that was just received, if it is as long as its body says."""
        if frame.head.payload_bytes != expected_bytes:
            raise WireError(f"{self.peer}: sent {frame.head.payload_bytes} bytes where {expected_bytes} were expected")
        payload = bytearray(expected_bytes)
        self.receive_into(memoryview(payload))
        return payload

    def send_data(self, body: list[Any], fd: int, offset: int, size: int, midway: Midway | None = None) -> None:
        """Sends a DATA frame with bytes of a memfd: the kernel sends its pages without a copy.

        So the pages must not change before the receiver's acknowledgement. `midway` happens when half of them are
        sent.
        """
        head = self._pack(Kind.DATA, body, size)
        with self._send_lock, self._errors():
            self._send_bytes(head, more=True)
            half = size // 2 if midway is not None else 0
            self._send_pages(fd, offset, half)
            if midway is not None:
                midway.act()
                if midway.flips:
                    self._send_flipped(fd, offset + half)
                    half += 1
            self._send_pages(fd, offset + half, size - half)

    def _send_flipped(self, fd: int, offset: int) -> None:
        """Sends one byte as no page has it."""
        (byte,) = os.pread(fd, 1, offset)
        self._send_bytes(bytes((byte ^ 1,)))

    def _send_pages(self, fd: int, offset: int, size: int) -> None:
        end = offset + size
        while offset < end:
            start, left = offset, end - offset
            sent = self._patiently(lambda: self._stream.send_file(fd, start, left))  # noqa: B023
            if sent == 0:
                raise ConnectionLost(f"{self.peer}: the segment ended before the slot did")
            offset += sent
            self.bytes_sent += sent

    def _send_bytes(self, data: bytes, *, more: bool = False) -> None:
        while data:
            rest = data
            sent = self._patiently(lambda: self._stream.send(rest, more))  # noqa: B023
            self.bytes_sent += sent
            data = data[sent:]

    def _pack(self, kind: Kind, body: list[Any], payload_bytes: int = 0) -> bytes:
        assert self.generation is not None
        return pack_frame(kind, self.generation, body, payload_bytes)

    def receive(self) -> Frame:
        """Returns the next frame, within the deadline. The payload of DATA is left for receive_pieces()."""
        frame = self.receive_or_idle()
        if frame is None:
            raise ConnectionLost(f"{self.peer}: {self._silent}")
        return frame

    def receive_or_idle(self) -> Frame | None:
        """The next frame; None where the deadline passed without a first byte of one."""
        buffer, patience = bytearray(HEAD_BYTES), PeerDeadline(self._deadline_s)
        first = self._receive_some(memoryview(buffer), idle=True)
        if first == 0:
            return None
        self.receive_into(memoryview(buffer)[first:], patience)
        head = self._checked(unpack_head(buffer))
        body = bytearray(head.body_bytes)
        self.receive_into(memoryview(body), patience)
        return Frame(head=head, body=unpack_body(body))

    def expect(self, *kinds: Kind) -> Frame:
        """Returns the peer's answer, which must be of one of these kinds. For REFUSED it raises PeerRefused."""
        frame = self.receive()
        if frame.head.kind is Kind.REFUSED:
            raise PeerRefused(self.peer, *unpack_refusal(frame.body))
        if frame.head.kind not in kinds:
            raise WireError(f"{self.peer}: sent {frame.head.kind.name} where {kinds[0].name} was expected")
        return frame

    def _checked(self, head: Head) -> Head:
        if self.generation is not None and head.generation != self.generation:
            raise WireError(
                f"{self.peer}: sent a frame of generation {head.generation} on a stream of {self.generation}"
            )
        return head

    # --- bytes

    def receive_into(self, view: memoryview, patience: PeerDeadline | None = None) -> None:
        """All of it, within the deadline as a whole: a peer that sends byte by byte is as good as silent."""
        patience = patience or PeerDeadline(self._deadline_s)
        done = 0
        while done < len(view):
            if patience.over:
                raise ConnectionLost(f"{self.peer}: too slow: {done} of {len(view)} bytes in {self._deadline_s:g} s")
            began = time.monotonic()
            done += self._receive_some(view[done:])
            patience.waited(time.monotonic() - began)

    def receive_pieces(self, view: memoryview) -> list[int]:
        """Fills `view` and returns the digest of each piece, computed while its bytes are still in the cache."""
        digests = []
        for piece in pieces(view):
            self.receive_into(piece)
            digests.append(checksum(piece))
        return digests

    def _receive_some(self, view: memoryview, *, idle: bool = False) -> int:
        with self._errors():
            try:
                count = self._patiently(lambda: self._stream.receive_into(view))
            except BlockingIOError:
                if idle and not self._cut_reason:
                    return 0
                raise
        # Bytes that the kernel still had after a cut do not count: the writer must end now.
        if count == 0 or self._cut_reason:
            raise ConnectionLost(f"{self.peer}: {self._cut_reason or 'closed the connection'}")
        return count

    def _patiently(self, call: Callable[[], int]) -> int:
        """Repeats a system call until it has moved some bytes or the deadline is over."""
        limit = time.monotonic() + self._deadline_s
        while True:
            try:
                return call()
            except BlockingIOError:
                if time.monotonic() >= limit or self._cut_reason:
                    raise

    def count(self, size: int) -> None:
        """Counts bytes that the peer has read from this node's memory."""
        self.bytes_sent += size

    # --- before the first frame

    def encrypt(self, context: ssl.SSLContext, *, server_side: bool) -> ssl.SSLObject:
        """Everything from here on goes through TLS."""
        stream, patience = TlsStream(self._sock, context, server_side=server_side), PeerDeadline(self._deadline_s)
        with self._errors():
            while not self._agree(stream, patience):
                if patience.over:
                    raise ConnectionLost(f"{self.peer}: {self._silent}")
        self._stream = stream
        return stream.connection

    def _agree(self, stream: TlsStream, patience: PeerDeadline) -> bool:
        began = time.monotonic()
        try:
            return stream.shake_hands()
        except BlockingIOError:
            return False
        finally:
            patience.waited(time.monotonic() - began)

    def send_raw(self, data: bytes) -> None:
        with self._send_lock, self._errors():
            self._send_bytes(data)

    # --- the end

    @property
    def is_cut(self) -> bool:
        return bool(self._cut_reason)

    def cut(self, reason: str) -> None:
        """Ends every wait on this stream at once, in any thread. It does not free the socket: close() does."""
        with self._end_lock:
            self._cut_reason = self._cut_reason or reason
            with contextlib.suppress(OSError):
                self._sock.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        """Frees the socket. The thread that uses the connection calls it at its end."""
        self.cut("closed")
        # Waits for a sender: the kernel may give the descriptor's number to another file at once.
        with self._send_lock, self._end_lock:
            self._sock.close()

    @contextlib.contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except BlockingIOError as error:
            raise ConnectionLost(f"{self.peer}: {self._cut_reason or self._silent}") from error
        except OSError as error:
            raise ConnectionLost(f"{self.peer}: {self._cut_reason or error}") from error


def _prepare(sock: socket.socket, timeout_s: float) -> None:
    # With kernel timeouts instead of settimeout() the socket stays blocking, without a poll() before each call.
    seconds = int(timeout_s)
    timeval = struct.pack("ll", seconds, max(1, int((timeout_s - seconds) * 1e6)))
    sock.settimeout(None)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeval)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
