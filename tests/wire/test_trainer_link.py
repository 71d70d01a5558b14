from __future__ import annotations

import asyncio
import os
import secrets
import sys
import threading
from contextlib import closing
from typing import Any

import pytest
from waiting import LIMIT_S, wait_until_async

from deadpool.protocol.messages import Attach, Final, Parked
from deadpool.protocol.seal import Geometry
from deadpool.wire.trainer_link import AgentEnd, TrainerEnd, TrainerListener

GEOMETRY = Geometry(record_capacity=4096, unique_bytes=4096, replica_bytes=0)
PARKED = Parked(rank=3, geometry=GEOMETRY)
ATTACH = Attach(segment=1, geometry=GEOMETRY, count=2)


class Trainer(threading.Thread):
    """Knocks, says one thing, hears until the agent hangs up, reading each descriptor that comes with an Attach."""

    def __init__(self, door: str) -> None:
        super().__init__()
        self.door = door
        self.heard: list[Any] = []
        self.contents: list[bytes] = []
        self.agent_pid = 0

    def run(self) -> None:
        with closing(TrainerEnd(self.door)) as end:
            self.agent_pid = end.agent_pid
            end.send(PARKED)
            for message, take_descriptor in end.messages():
                self.heard.append(message)
                if isinstance(message, Attach):
                    with open(take_descriptor(), "rb") as file:
                        self.contents.append(os.pread(file.fileno(), 64, 0))


def make_memory(content: bytes) -> int:
    descriptor = os.memfd_create("deadpool-test", os.MFD_CLOEXEC)
    os.write(descriptor, content)
    return descriptor


async def converse(messages: list[tuple[Any, int | None]]) -> tuple[list[Any], Trainer]:
    """What the agent hears from a trainer, to which it says `messages`; then it hangs up."""
    heard: list[Any] = []
    loop = asyncio.get_running_loop()

    def on_message(end: AgentEnd, message: Any) -> None:
        heard.append(message)
        for each, descriptor in messages:
            end.send(each, descriptor)
        loop.call_soon(door.close)

    door = TrainerListener(f"deadpool-test-{secrets.token_hex(8)}", on_message, lambda end: None)
    door.start()
    trainer = Trainer(door.name)
    trainer.start()
    await asyncio.to_thread(trainer.join)
    return heard, trainer


def test_descriptors_arrive_with_their_messages():
    first, second = make_memory(b"first"), make_memory(b"second")
    said = [(Final(number=1), None), (ATTACH, first), (Final(number=2), None), (ATTACH, second)]
    try:
        heard, trainer = asyncio.run(converse(said))
    finally:
        os.close(first)
        os.close(second)
    assert heard == [PARKED]
    assert trainer.heard == [message for message, _ in said]
    assert trainer.contents == [b"first", b"second"]
    assert trainer.agent_pid == os.getpid(), "as the kernel says"


def test_last_words_of_a_trainer_are_heard_before_its_end_is_acted_on():
    """Its exit may be seen before the event loop has come round to its socket."""

    async def scenario() -> list[Any]:
        heard: list[Any] = []
        ends: list[AgentEnd] = []

        def on_message(end: AgentEnd, message: Any) -> None:
            ends.append(end)
            heard.append(message)

        door = TrainerListener(f"deadpool-test-{secrets.token_hex(8)}", on_message, lambda end: heard.append("lost"))
        door.start()
        trainer = await asyncio.to_thread(TrainerEnd, door.name)
        trainer.send(PARKED)
        await wait_until_async(lambda: heard, "its first words")
        trainer.send(Final(number=1))
        trainer.close()
        ends[0].read_remaining()  # the loop has not run since
        door.close()
        return heard

    assert asyncio.run(scenario()) == [PARKED, Final(number=1), "lost"]


def test_agent_is_told_when_a_trainer_hangs_up():
    async def scenario() -> bool:
        lost = asyncio.Event()
        door = TrainerListener(
            f"deadpool-test-{secrets.token_hex(8)}", lambda end, message: None, lambda end: lost.set()
        )
        door.start()
        end = await asyncio.to_thread(TrainerEnd, door.name)
        end.close()
        await asyncio.wait_for(lost.wait(), LIMIT_S)
        door.close()
        return lost.is_set()

    assert asyncio.run(scenario())


def test_agent_takes_nonsense_for_a_hang_up():
    async def scenario() -> bool:
        lost = asyncio.Event()
        door = TrainerListener(
            f"deadpool-test-{secrets.token_hex(8)}", lambda end, message: None, lambda end: lost.set()
        )
        door.start()
        end = await asyncio.to_thread(TrainerEnd, door.name)
        end._sock.sendall((2**31).to_bytes(4, "big"))
        await asyncio.wait_for(lost.wait(), LIMIT_S)
        end.close()
        door.close()
        return lost.is_set()

    assert asyncio.run(scenario())


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
@pytest.mark.parametrize(("user", "let_in"), [(65534, False), (0, True)], ids=["another user", "the same"])
def test_only_the_jobs_own_user_gets_in(user, let_in):
    """Whoever is let in is heard: what it says is nonsense, for which its link is given up."""
    knock = (
        "import contextlib, os, socket, sys; os.setuid(int(sys.argv[2])); s = socket.socket(socket.AF_UNIX)\n"
        "s.connect('\\0' + sys.argv[1])\n"
        "with contextlib.suppress(OSError): s.sendall(b'\\xff' * 4)\n"
        "with contextlib.suppress(ConnectionError): assert s.recv(1) == b''"
    )
    heard: list[AgentEnd] = []

    async def scenario() -> int | None:
        name = f"deadpool-test-{secrets.token_hex(8)}"
        door = TrainerListener(name, lambda end, message: None, heard.append)
        door.start()
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", knock, name, str(user))
        code = await process.wait()
        door.close()
        return code

    assert asyncio.run(scenario()) == 0
    assert bool(heard) == let_in
