"""The data plane's part in coded memory, without a data plane: nothing is offered to it, and no core is asked."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from deadpool.control.coding.coded_copies import CodedCopies
from deadpool.control.shells import JointAccess
from deadpool.events.event import Event
from deadpool.protocol.agent.copies.copies import Copies
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Refusal
from deadpool.snapshot.arena.arena import Segment
from deadpool.snapshot.transfer import TransferClient, TransferRefused


def coded_copies_for(
    client: TransferClient, segment: Segment, hashers: ThreadPoolExecutor, note: Callable[[Event], None]
) -> CodedCopies:
    return CodedCopies(
        JointAccess(
            client=client,
            segment=lambda number: segment,
            deliver=print,
            hashers=hashers,
            note=note,
            offer=lambda copy, generation, group: TransferRefused(refusal=Refusal.UNANSWERED),
            copies=Copies(GenerationState(), []),
            on_loop=lambda question: question(),
        )
    )
