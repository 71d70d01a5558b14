"""Snapshots between nodes: agent to agent over TCP, blocking sockets in threads, straight from and into slots.

The agent uses TransferServer (what others store here or fetch from here) and TransferClient (what it stores at others
or fetches from them). Transport trusts nobody: both sides prove the job's secret, every size is bounded, every frame
carries its generation, and bytes count only once their digest is right. It encrypts where the job wants TLS.
"""

from __future__ import annotations

from deadpool.snapshot.transfer.callbacks import Found, Refused
from deadpool.snapshot.transfer.channel import TransferAddress
from deadpool.snapshot.transfer.client import TransferClient
from deadpool.snapshot.transfer.requests import PullRequest, PushRequest
from deadpool.snapshot.transfer.server import TransferServer

__all__ = ["Found", "PullRequest", "PushRequest", "Refused", "TransferAddress", "TransferClient", "TransferServer"]
