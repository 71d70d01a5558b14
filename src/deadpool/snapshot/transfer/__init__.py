"""Transfers snapshots between agents over TCP, with blocking sockets in threads, directly from and into slots.

Each agent has a TransferServer, where other agents store and fetch snapshots, and a TransferClient, which stores and
fetches at other agents. No peer is trusted: both sides prove the job's secret, every size is bounded, every frame
carries its generation, and bytes count only once their digest is verified. Streams are encrypted if the job uses TLS.
"""

from __future__ import annotations

from deadpool.snapshot.transfer.callbacks import FoundCopy, JointFrames, TransferRefused
from deadpool.snapshot.transfer.channel import TransferAddress
from deadpool.snapshot.transfer.client import PullRequest, PushRequest, TransferClient
from deadpool.snapshot.transfer.connection import Midway, PeerRefused
from deadpool.snapshot.transfer.server import TransferServer

__all__ = [
    "FoundCopy",
    "JointFrames",
    "Midway",
    "PeerRefused",
    "PullRequest",
    "PushRequest",
    "TransferAddress",
    "TransferClient",
    "TransferRefused",
    "TransferServer",
]
