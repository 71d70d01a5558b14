"""The end of a generation: every node stops, and says what it holds."""

from __future__ import annotations

from deadpool.protocol.identity import Generation
from deadpool.protocol.inventory_batches import Inventory, Live
from deadpool.protocol.structs import Message


class Fence(Message, frozen=True, kw_only=True):
    """Older generations have ended: stop everything that belongs to them, and answer with the node's inventory."""

    generation: Generation
    cause: str


class Halt(Message, frozen=True, kw_only=True):
    """The fence as the trainer is told of it: abort every group and come to rest at the step boundary."""

    generation: Generation
    cause: str


class Halted(Message, frozen=True, kw_only=True):
    """The trainer is at rest and its capture threads have ended. What slots hold that it never declared captured is
    lost."""

    generation: Generation
    live: Live


class FenceAck(Message, frozen=True, kw_only=True):
    """The node has stopped everything of older generations. Its inventory does not change before the next plan.

    `planned` is the last plan that the node has taken over: the next one need not repeat it.
    """

    generation: Generation
    inventory: Inventory
    hung: tuple[tuple[int, str], ...] = ()  # (rank, how it was found): did not come to rest and was ended
    planned: Generation | None = None
