"""The trainer processes of a node: how they start, which there are, and how they end before their rank is done."""

from __future__ import annotations

from deadpool.protocol.causes import FaultKind
from deadpool.protocol.identity import Address, FeatureMessage, Generation, Message, Value, Version


class TrainerHello(Message, frozen=True, kw_only=True):
    """A trainer process has started and names its rendezvous server."""

    trainer: str
    pid: int
    store: Address


class Shares(Value, frozen=True, kw_only=True):
    """How the work of a step is divided among ranks, by a rank whose script asks for its shares of it.

    Ranges as (start, stop, step). Any of `replicas` could do this rank's share, since all hold the same tensors.
    The ranks of `block` need each other within a share, so that they are carried together or not at all.
    """

    replicas: tuple[int, int, int] = (0, 0, 1)
    block: tuple[int, int, int] = (0, 0, 1)
    refused: str = ""  # why no rank of this layout can do the share of another


class UsesShares(FeatureMessage, frozen=True, kw_only=True):
    """The trainer's script asks for its shares of a step, for the first time in this process."""

    shares: Shares


class TrainerInfo(Value, frozen=True, kw_only=True):
    """What the coordinator has to know about a trainer process to judge how soon it could take a rank."""

    trainer: str
    state: str  # starting | idle | rehearsing | parked | seated
    rank: int | None  # held if seated, rehearsed if rehearsing or parked
    shares: Shares | None = None  # None: its script has not asked for its shares of a step


class Trainers(Message, frozen=True, kw_only=True):
    """The state of at least one of the node's trainers has changed; all of them are listed."""

    trainers: tuple[TrainerInfo, ...]


class Failed(Message, frozen=True, kw_only=True):
    """The user's script raised. The process ends after this."""

    error: str
    inexact: bool = False  # no process could do better: the script was found not to be exact, and is to stop by that
    unfit: bool = False  # nothing raised: no process of this node can take part in this job


class DeviceLost(Message, frozen=True, kw_only=True):
    """Nothing can run on this process's device any more. The process ends after this."""

    error: str


class Hung(Message, frozen=True, kw_only=True):
    """The main thread does not come back from an abort. The watchdog thread says it, and the process ends after
    this."""

    found: str


class TrainerLost(Message, frozen=True, kw_only=True):
    """A trainer ended that should not have. One that held no rank is of no generation: a spare that joined in the
    middle of one has not heard of it."""

    generation: Generation | None
    trainer: str
    rank: int | None
    reason: str
    kind: FaultKind = FaultKind.TRAINER
    unread: Version | None = None  # no source gave this snapshot of the rank
    fallback: str = ""  # the name of the kept version that could not be read, where the snapshot was to come from it


class End(Message, frozen=True, kw_only=True):
    """The trainer is no longer needed: end the process."""

    reason: str
