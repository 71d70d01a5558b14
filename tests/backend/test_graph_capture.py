"""A CUDA graph is refused if a group has counted a collective while it was captured."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from deadpool.backend import nccl_communicators, torch_versions, world
from deadpool.errors import Inexact


class _Backend:
    def __init__(self) -> None:
        self.collectives = 3

    def _get_sequence_number_for_group(self) -> int:
        return self.collectives


class _Graph:
    """As torch's, which cannot be made without a device."""

    def capture_begin(self, *, capture_error_mode: str = "global") -> None:
        pass

    def capture_end(self) -> None:
        pass

    def reset(self) -> None:
        self.was_reset = True


@pytest.fixture
def backend(monkeypatch):
    """One group over NCCL."""
    made = _Backend()
    group = SimpleNamespace(name="default", nccl="nccl", backend=lambda name: made)
    without = SimpleNamespace(name="on hosts", nccl=None)
    monkeypatch.setattr(world, "joined_groups", lambda: [group, without])
    monkeypatch.setattr(torch_versions, "nccl_classes", lambda: [_Backend])
    monkeypatch.setattr(nccl_communicators, "_GRAPH", _Graph)
    capture = nccl_communicators.GraphCapture()
    capture.install()
    yield made
    capture.uninstall()


def test_graph_without_collectives_is_captured(backend):
    backend.collectives += 1  # before it
    graph = _Graph()
    graph.capture_begin(capture_error_mode="global")
    graph.capture_end()


def test_graph_with_a_collective_is_refused_in_words(backend):
    graph = _Graph()
    graph.capture_begin()
    backend.collectives += 1
    with pytest.raises(Inexact, match=r"holds collectives of group 'default'.*Leave collectives outside"):
        graph.capture_end()
    assert graph.was_reset


def test_group_of_a_rehearsal_counts_nothing(backend, monkeypatch):
    monkeypatch.setattr(torch_versions, "nccl_classes", list)
    graph = _Graph()
    graph.capture_begin()
    backend.collectives += 1
    graph.capture_end()
