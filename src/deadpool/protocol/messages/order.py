"""The envelope in which a coordinator sends what it says to agents."""

from __future__ import annotations

from deadpool.protocol.messages.audits import Audit, AuditOver
from deadpool.protocol.messages.checkpoints import AbandonCheckpoint, FinishCheckpoint, WriteCheckpoint
from deadpool.protocol.messages.copies import CopyLost, Permit
from deadpool.protocol.messages.drains import Proceed, Stand
from deadpool.protocol.messages.ending import Release, Salvage, Shutdown
from deadpool.protocol.messages.fences import Fence
from deadpool.protocol.messages.joining import JoinRefused, Welcome
from deadpool.protocol.messages.leases import Needed
from deadpool.protocol.messages.plans import Plan
from deadpool.protocol.messages.progress import Alive
from deadpool.protocol.messages.reachability import Probe
from deadpool.protocol.messages.rehearsals import Recording, Rehearse
from deadpool.protocol.messages.seats import Connect, Go
from deadpool.protocol.structs import Message

OrderMessage = (
    Welcome | JoinRefused | Alive | Recording | Rehearse | Needed | Fence | Plan | Connect | Go | Permit | Release
    | CopyLost | Salvage | Shutdown | Stand | Proceed | Probe | WriteCheckpoint | FinishCheckpoint | AbandonCheckpoint
    | Audit | AuditOver
)  # fmt: skip


class Order(Message, frozen=True, kw_only=True):
    """A message of a coordinator with its term. An agent that has promised a higher term refuses it before reading
    on."""

    term: int
    message: OrderMessage
