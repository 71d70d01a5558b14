"""Joint copies: what a node keeps for groups of ranks, each of the others' snapshots together. Here it keeps none; a
feature that protects ranks in groups derives its own.

They lie in slots as other copies do (`slots.py`), and pushes bring them what they are made of (`pushes.py`).
"""

from __future__ import annotations

from deadpool.protocol.agent.copies.slots import Slots
from deadpool.protocol.agent.phase import GenerationState
from deadpool.protocol.causes import Refusal
from deadpool.protocol.effects import AgentEffect, RefuseOffer
from deadpool.protocol.identity import Layout, Version
from deadpool.protocol.inputs import Offered
from deadpool.protocol.messages import Copy, Plan, SlotRef
from deadpool.protocol.schemes import RankGroup
from deadpool.protocol.seal import Digest


class JointCopies:
    def __init__(self, current: GenerationState, slots: Slots, out: list[AgentEffect]) -> None:
        self._current, self._slots, self._out = current, slots, out

    # --- plan, fence, permit ------------------------------------------------------------------------------------------

    def adopt(self, plan: Plan, layout: Layout, node: str) -> None:
        """The plan is carried out on this node: it names the group, if there is one."""

    def fence(self) -> None:
        """Nothing is accepted from here on, and nothing becomes whole."""

    def on_streams_cut(self) -> None:
        """Nothing is written to any more."""

    def on_permit(self) -> None:
        """Some versions may not be needed any more."""

    # --- what other members bring -------------------------------------------------------------------------------------

    def on_offered(self, offer: Offered) -> None:
        """A member of a group offers what this node is to keep for it. The answer is an effect."""
        self._refuse(offer, Refusal.OTHER_GROUP)

    def _refuse(self, offer: Offered, refusal: Refusal, reason: str = "") -> None:
        self._out.append(RefuseOffer(offer=offer.offer, refusal=refusal, reason=reason))

    def serve_waiting(self) -> None:
        """There are free slots."""

    def refuse_waiting(self, keeper: int, reason: str) -> None:
        """The segment that offers to the joint copies of this own rank have waited for could not be allocated."""

    # --- slots --------------------------------------------------------------------------------------------------------

    def knows(self, ref: SlotRef) -> bool:
        """The slot has a joint copy that is not whole yet: what follows is for this part."""
        return False

    def on_received(self, ref: SlotRef, copy: Copy, bytes_received: int) -> None:
        """What a member has offered is in."""

    def on_failed(self, ref: SlotRef, rank: int) -> None:
        """What this rank's node has offered has ended early."""

    def on_hashed(self, ref: SlotRef, digest: Digest) -> None:
        """The slot was hashed, as this part has asked."""

    def drop_damaged(self, group: RankGroup, keeper: int, version: Version) -> None:
        """The joint copy that this node keeps under its rank `keeper` is damaged."""
