"""Which nodes have which compiled code, and which spares were told of it.

Nothing is kept here but the newest offer of each node: a coordinator that takes over is told them again. Chunks pass
through. Nodes whose ranks do the same offer the same, so a spare is told of each list once.
"""

from __future__ import annotations

from msgspec.structs import replace

from deadpool.protocol.coordinator.membership.members import Member
from deadpool.protocol.coordinator.seams import CoordinatorCore, CoordinatorPart
from deadpool.protocol.identity import FeatureMessage
from deadpool.protocol.messages import AskCode, CodeChunk, CodeList, CodeOffered

LOOK_EVERY_S = 5.0
"""How soon a spare that has joined meanwhile is told."""


class CodeOffers(CoordinatorPart):
    def __init__(self, core: CoordinatorCore) -> None:
        self._job = core.job
        self._of_node: dict[str, CodeOffered] = {}
        self._told: set[tuple[str, str, bytes]] = set()  # node, incarnation, digest
        self._looked_at = 0.0

    def on_message(self, member: Member, message: FeatureMessage, now: float) -> None:
        match message:
            case CodeOffered():
                self._of_node[member.node] = replace(message, node=member.node)
                self._tell_spares()
            case AskCode():
                self._pass_on(replace(message, asker=member.node))
            case CodeList(asker=asker) | CodeChunk(asker=asker):
                if asker in self._job.members:
                    self._job.out.send(asker, message)
            case _:
                pass  # another feature's

    def look(self, now: float) -> None:
        if self._of_node and now >= self._looked_at + LOOK_EVERY_S:
            self._looked_at = now
            self._tell_spares()

    def _tell_spares(self) -> None:
        members = self._job.members
        self._of_node = {node: offer for node, offer in self._of_node.items() if node in members}
        offers = {offer.digest: offer for offer in self._of_node.values()}
        self._told = {each for each in self._told if each[2] in offers}
        for member in members.values():
            if not member.is_spare:
                continue
            for digest, offer in offers.items():
                key = (member.node, member.incarnation, digest)
                if key not in self._told and offer.node != member.node:
                    self._told.add(key)
                    self._job.out.send(member.node, offer)

    def _pass_on(self, ask: AskCode) -> None:
        """To the node that offered it, or to another one that offers the same by now."""
        nodes = [ask.node, *(node for node, offer in self._of_node.items() if offer.digest == ask.digest)]
        source = next((node for node in nodes if node in self._job.members and self._offers(node, ask.digest)), None)
        if source is None:
            gone = CodeList(asker=ask.asker, digest=ask.digest, files=())
            self._job.out.send(ask.asker, gone)
        else:
            self._job.out.send(source, ask)

    def _offers(self, node: str, digest: bytes) -> bool:
        return node in self._of_node and self._of_node[node].digest == digest
