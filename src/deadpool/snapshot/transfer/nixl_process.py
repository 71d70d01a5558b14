"""The process that calls NIXL for an agent: `python -m deadpool.snapshot.transfer.nixl_process DESCRIPTOR`.

NIXL's calls have no timeout, and its end may crash. So they run in a process of their own, which maps the agent's
segments, does what the agent orders and knows nothing else: it may be killed or stopped at any moment, and what it was
reading comes over a stream instead. It ends with its agent.

NIXL's own thread for progress takes a whole core, also when there is nothing to do. So there is none: this process
looks after its reads, and after those of others since the last window was shown, and sleeps otherwise.

An address is used once: the range of a segment that was dropped stays reserved without memory, so that what another
node still knows of it never leads to something else.
"""

from __future__ import annotations

import ctypes
import importlib
import mmap
import os
import select
import signal
import socket
import sys
import time
import traceback
from dataclasses import dataclass
from typing import Any, assert_never

from deadpool.host.child_processes import be_called, outlive_parent
from deadpool.host.rdma import nixl_build
from deadpool.snapshot.transfer.nixl_messages import (
    LIMIT_BYTES,
    METADATA_LIMIT_BYTES,
    AskAlive,
    Broken,
    FromProcess,
    IsAlive,
    Map,
    Mapped,
    NotMapped,
    Read,
    ReadEnded,
    Ready,
    Serve,
    ToProcess,
    Unmap,
    decode_order,
    encode,
)

_POLL_S = 0.0003  # between two looks at a read: less takes CPU, more takes time of every chunk
_BUSY_S, _SLOW_POLL_S, _AWAKE_S = 1.0, 0.005, 30.0
"""Others read within a second of a window, or slowly, or not any more."""
_HOST_MEMORY = "DRAM"
_MAP_FIXED, _MAP_NORESERVE, _FAILED = 0x10, 0x4000, ctypes.c_void_p(-1).value
_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long)


@dataclass(frozen=True, slots=True)
class Registered:
    address: int
    size: int
    registration: Any


class Reader:
    """NIXL's agent, its registered memory and its reads."""

    def __init__(self, api: Any) -> None:
        self._nixl = api.nixl_agent(f"deadpool-{os.urandom(8).hex()}", _config(api))
        self._memory: dict[int, Registered] = {}
        self._sources: dict[bytes, str] = {}  # by their metadata
        self._running: dict[int, Any] = {}  # by number

    def progress(self) -> None:
        """Does what UCX has to do for reads of this process, and of others over TCP or shared memory."""
        self._nixl.get_new_notifs()

    @property
    def busy(self) -> bool:
        return bool(self._running)

    def map(self, order: Map, fd: int) -> FromProcess:
        try:
            address = _mapped(fd, order.size)
            described = self._nixl.get_reg_descs([(address, order.size, 0, "")], _HOST_MEMORY)
            registration = self._nixl.register_memory(described)
            metadata = self._nixl.get_partial_agent_metadata(registration, True, ["UCX"])
        except Exception as error:
            return NotMapped(segment=order.segment, reason=repr(error))
        if len(metadata) > METADATA_LIMIT_BYTES:
            return NotMapped(segment=order.segment, reason=f"NIXL needs {len(metadata)} bytes to describe it")
        self._memory[order.segment] = Registered(address, order.size, registration)
        return Mapped(segment=order.segment, address=address, metadata=metadata)

    def unmap(self, segment: int) -> None:
        memory = self._memory.pop(segment, None)
        if memory is not None:
            self._nixl.deregister_memory(memory.registration)
            flags = _MAP_FIXED | _MAP_NORESERVE | mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
            _libc.mmap(memory.address, memory.size, 0, flags, -1, 0)

    def begin(self, order: Read) -> ReadEnded | None:
        """Returns how the read has ended where it could not even begin."""
        try:
            self._begin(order)
        except Exception as error:
            begun = self._running.pop(order.number, None) is not None
            return ReadEnded(number=order.number, failure=repr(error), begun=begun)
        return None

    def _begin(self, order: Read) -> None:
        if order.metadata not in self._sources:
            self._sources[order.metadata] = self._nixl.add_remote_agent(order.metadata)
        memory = self._memory[order.segment]
        here = self._nixl.get_xfer_descs([(memory.address + order.offset, order.size, 0)], _HOST_MEMORY)
        there = self._nixl.get_xfer_descs([(order.address, order.size, 0)], _HOST_MEMORY)
        handle = self._nixl.initialize_xfer("READ", here, there, self._sources[order.metadata])
        self._running[order.number] = handle
        self._nixl.transfer(handle)

    def ended(self) -> list[ReadEnded]:
        """The reads that have ended since the last call."""
        found = []
        for number, handle in tuple(self._running.items()):
            state, failure = self._look(handle)
            if state != "PROC":
                del self._running[number]
                failure = failure if state != "DONE" else ""
                found.append(ReadEnded(number=number, failure=failure, begun=True))
        return found

    def _look(self, handle: Any) -> tuple[str, str]:
        try:
            state = self._nixl.check_xfer_state(handle)
            if state == "DONE":
                self._nixl.release_xfer_handle(handle)
        except Exception as error:
            return "ERR", repr(error)
        return state, f"NIXL says {state}"


def _config(api: Any) -> Any:
    return api.nixl_agent_config(enable_prog_thread=False, backends=["UCX"])


def _mapped(fd: int, size: int) -> int:
    address = _libc.mmap(None, size, mmap.PROT_READ | mmap.PROT_WRITE, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        raise OSError(ctypes.get_errno(), "the segment cannot be mapped")
    return int(address)


def serve(sock: socket.socket, reader: Reader) -> None:
    """Returns when the agent has closed its end."""
    shown_at = -_AWAKE_S
    while True:
        pause_s = _POLL_S if reader.busy else _pause_s(time.monotonic() - shown_at)
        readable, _, _ = select.select([sock], [], [], pause_s)
        if readable:
            data, descriptors, _, _ = socket.recv_fds(sock, LIMIT_BYTES, 1)
            if not data:
                return
            order = decode_order(data)
            shown_at = time.monotonic() if isinstance(order, Serve) else shown_at
            _obey(sock, reader, order, descriptors)
        if pause_s is not None:
            reader.progress()
        for answer in reader.ended():
            sock.send(encode(answer))


def _pause_s(since_window_s: float) -> float | None:
    if since_window_s < _BUSY_S:
        return _POLL_S
    return _SLOW_POLL_S if since_window_s < _AWAKE_S else None


def _obey(sock: socket.socket, reader: Reader, order: ToProcess, descriptors: list[int]) -> None:
    match order:
        case Map():
            sock.send(encode(reader.map(order, descriptors[0])))
            os.close(descriptors[0])
        case Unmap(segment=segment):
            reader.unmap(segment)
        case Read():
            ended = reader.begin(order)
            if ended is not None:
                sock.send(encode(ended))
        case Serve():
            pass  # the loop has noted when
        case AskAlive():
            sock.send(encode(IsAlive()))
        case _ as never:
            assert_never(never)


def main() -> None:
    outlive_parent(False, signal.SIGKILL)
    be_called("deadpool-nixl")
    sock = socket.socket(fileno=int(sys.argv[1]))
    try:
        reader = Reader(importlib.import_module(f"{nixl_build()}._api"))
    except Exception as error:
        sock.send(encode(Broken(reason=repr(error))))
        return
    sock.send(encode(Ready()))
    serve(sock, reader)


if __name__ == "__main__":
    try:
        main()
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(0)  # NIXL's own end may crash, or not come
