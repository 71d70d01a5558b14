from __future__ import annotations

import gc
import json
import subprocess
import sys
from contextlib import ExitStack, closing
from multiprocessing import resource_tracker
from pathlib import Path

import pytest
import torch.utils.data
from snapshot_nodes import DEADLINE_S, MEMBER, WAIT_S, Holder, Owner
from ways import Transports

from deadpool.snapshot.transfer import TransferClient

CLIENT = {"credentials": MEMBER, "deadline_s": DEADLINE_S}


@pytest.fixture(scope="session")
def tracker():
    """The process that watches what spawned processes share lives as long as this one, whichever test begins it."""
    resource_tracker.ensure_running()


@pytest.fixture
def ended_workers(monkeypatch, tracker):
    """Ends the workers of all loaders. A loader and its position hold each other, as a script's generator and its frame
    do: torch would notice only at a garbage collection, where it waits 5 s for each of them."""
    iterators, make = [], torch.utils.data.DataLoader._get_iterator

    def noted(loader):
        iterators.append(make(loader))
        return iterators[-1]

    monkeypatch.setattr(torch.utils.data.DataLoader, "_get_iterator", noted)
    yield
    for each in iterators:
        if hasattr(each, "_shutdown_workers"):
            each._shutdown_workers()
    iterators.clear()
    gc.collect()


@pytest.fixture
def stack():
    with ExitStack() as stack:
        yield stack


@pytest.fixture(scope="session")
def transports():
    """Tests that take other ways too have a fixture of this name of their own."""
    return Transports()


@pytest.fixture
def known(stack, transports):
    """Makes a node's memory known to the transports."""

    def know(node):
        transports.add(node.segment)
        stack.callback(transports.drop, node.segment)
        return node

    return know


@pytest.fixture
def make_owner(stack, known):
    return lambda *args, **kwargs: known(stack.enter_context(closing(Owner(*args, **kwargs))))


@pytest.fixture
def make_holder(stack, known, transports):
    return lambda **kwargs: known(stack.enter_context(closing(Holder(**kwargs, transport=transports.server))))


@pytest.fixture
def make_client(stack, transports):
    more = CLIENT | {"transport": transports.client}
    return lambda **kwargs: stack.enter_context(closing(TransferClient(**(more | kwargs))))


class Peer:
    def __init__(self, *arguments: str) -> None:
        script = Path(__file__).with_name("peer_process.py")
        self.process = subprocess.Popen(
            [sys.executable, str(script), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def read_line(self) -> list:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline())

    def close(self) -> None:
        self.process.kill()
        self.process.communicate(timeout=WAIT_S)


@pytest.fixture
def make_peer(stack):
    return lambda *arguments: stack.enter_context(closing(Peer(*arguments)))
