"""The bytes that a replica on another node has too, and that they are equal there."""

from __future__ import annotations

import pytest
import torch
from state_job import Job, Snapshot
from torch import nn

from deadpool.snapshot.state.state import ProtectedState


def two_params(replicas, node_of=lambda rank: rank):
    model = nn.ParameterDict({"a": torch.ones(2), "b": torch.ones(4)})
    return ProtectedState(
        {"model": model},
        replicas={id(model[name]): ranks for name, ranks in replicas.items()},
        rank=0,
        node_of=node_of,
    )


@pytest.mark.parametrize(
    ("replicas", "peers", "unique_bytes", "replica_bytes"),
    [
        ({}, (), 24, 0),
        ({"a": (0,), "b": (0,)}, (), 24, 0),
        ({"a": (0, 1), "b": (0, 1)}, (0, 1), 0, 24),
        ({"a": (0, 1, 2), "b": (0, 1, 3)}, (0, 1), 0, 24),
        ({"a": (0, 1), "b": (0, 2)}, (0, 1), 16, 8),
        ({"b": (0, 2)}, (0, 2), 8, 16),
    ],
)
def test_replica_region(replicas, peers, unique_bytes, replica_bytes):
    state = two_params(replicas)
    geometry = state.measure()
    assert (state.peers, geometry.unique_bytes, geometry.replica_bytes) == (peers, unique_bytes, replica_bytes)


def test_replica_on_the_same_node_does_not_count():
    state = two_params({"a": (0, 1), "b": (0, 1, 2)}, node_of=lambda rank: rank // 2)
    assert state.peers == (0, 1, 2) and state.measure().replica_bytes == 16


def test_replicas_have_equal_regions_whatever_lay_in_the_slot():
    job, peer = Job(replicas=(0, 1)), Job(replicas=(0, 1))
    job.train(2)
    Snapshot(job.state).restore(peer.state)
    ours, theirs = Snapshot(job.state), Snapshot(peer.state)
    start, size = ours.geometry.offset("replica"), ours.geometry.replica_bytes
    assert ours.geometry.unique_bytes == 0
    theirs.slot[start : start + size] = b"\x11" * size
    assert peer.state.copy_bulk(theirs.slot, theirs.geometry, cancelled=lambda: False)
    assert ours.slot[start : start + size] == theirs.slot[start : start + size]
    expected = job.train(2)
    ours.restore(peer.state)
    assert peer.train(2) == expected
