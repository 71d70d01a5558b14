"""What light nodes answer to the coordinator's orders, and when."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from deadpool.protocol.identity import Address, Generation, Version
from deadpool.protocol.messages import (
    Connect,
    Fence,
    FenceAck,
    Go,
    NodeConnected,
    NodePrepared,
    Plan,
    Proceed,
    Rehearse,
    Sealed,
    Shutdown,
    Stand,
    Standing,
)
from deadpool_lab.sim.endurance.light_node import LightNode, copy_of

if TYPE_CHECKING:
    from deadpool_lab.sim.endurance.long_run import LongRun


class Answers:
    def __init__(self, run: LongRun) -> None:
        self._run, self._clock, self._durations = run, run.clock, run.setup.durations
        self._together: dict[tuple[str, float], list[tuple[LightNode, Any]]] = {}

    def on_message(self, node: LightNode, message: Any) -> None:
        match message:
            case Fence(generation=generation):
                rest_s = self._durations.unwind_s if node.ranks and node.went is not None else 0.0
                self._after(rest_s, "rest", node, generation)
            case Plan():
                self._take_plan(node, message)
            case Connect(generation=generation):
                self._after(self._durations.connect_s, "connected", node, generation)
            case Go(generation=generation):
                node.went = generation
                if node.plan is not None and any(order.pushes for order in node.plan.orders):
                    self._after(self._durations.reprotect_s, "pushed", node, generation)
            case Rehearse(trainer=trainer, rank=rank):
                node.rehearsed[trainer] = ("rehearsing", rank)
                self._after(self._durations.build_s, "parked", node, (trainer, rank))
            case Stand():
                self._stand(node, message)
            case Proceed():
                self._run.training.proceed()
            case Shutdown(failed=False):
                self._after(0.0, "left", node, None)
            case _:
                pass  # nothing that takes time follows from it

    def _after(self, seconds: float, what: str, node: LightNode, about: Any) -> None:
        """Answers of many nodes that come at the same time are one event of the clock."""
        key = (what, self._clock.now + seconds)
        if key not in self._together:
            self._together[key] = []
            self._clock.after(seconds, lambda: self._give(key))
        self._together[key].append((node, about))

    def _give(self, key: tuple[str, float]) -> None:
        answer = getattr(self, f"_{key[0]}")
        for node, about in self._together.pop(key):
            if self._run.nodes.get(node.name) is node:
                answer(node, about)

    # --- fence and plan -----------------------------------------------------------------------------------------------

    def _rest(self, node: LightNode, generation: Generation) -> None:
        self._run.say(
            node,
            FenceAck(
                generation=generation, inventory=node.inventory(), planned=node.plan.generation if node.plan else None
            ),
        )

    def _take_plan(self, node: LightNode, plan: Plan) -> None:
        had = node.ranks
        plan = node.adopt(plan)
        if not had and node.ranks:
            self._seat(node)
        self._after(0.0, "planned", node, (plan, bool(had)))
        if node.ranks:
            self._after(self._prepare_s(node, plan), "prepared", node, plan)

    def _seat(self, node: LightNode) -> None:
        """Seats a node: its parked trainers take its ranks, if they have rehearsed them."""
        rehearsed = node.parked_for(node.ranks)
        self._run.lived.rehearsed += rehearsed
        node.lost = set() if rehearsed else set(node.ranks)
        node.rehearsed = {f"{node.name}.{i}": ("seated", rank) for i, rank in enumerate(node.ranks)}

    def _prepare_s(self, node: LightNode, plan: Plan) -> float:
        """A process that is gone is built first. State comes from the device, this node, others, or the store."""
        lasts, build_s = self._durations, self._durations.build_s if node.lost else 0.0
        if plan.resume is None:
            return 0.0
        fetches = [fetch for order in plan.orders for fetch in order.fetch]
        if any(fetch.fallback for fetch in fetches):
            return build_s + lasts.durable_read_s
        if fetches:
            return build_s + lasts.load_s
        return build_s + (lasts.own_load_s if node.lost or not all(order.keep for order in plan.orders) else 0.0)

    def _planned(self, node: LightNode, about: tuple[Plan, bool]) -> None:
        """A spare keeps what it has rehearsed; a node that has lost its seat starts fresh trainers."""
        _, had_seat = about
        if had_seat and not node.ranks:
            self._run.say(node, node.park())

    def _prepared(self, node: LightNode, plan: Plan) -> None:
        if node.plan is not plan or plan.generation != self._run.core.coordinator.generation:
            return  # another plan has come since
        store = Address(host=node.name, port=1)
        for copy in node.restore(plan):
            self._run.say(node, Sealed(generation=plan.generation, copy=copy))
        if node.rehearsed and node.went is None:
            self._run.say(node, node.trainers())  # they are seated now
        here = store if plan.store_rank in node.ranks else None
        self._run.say(node, NodePrepared(generation=plan.generation, ranks=tuple(node.ranks), store=here))

    def _connected(self, node: LightNode, generation: Generation) -> None:
        self._run.say(node, NodeConnected(generation=generation, ranks=tuple(node.ranks)))

    # --- afterwards ---------------------------------------------------------------------------------------------------

    def _pushed(self, node: LightNode, generation: Generation) -> None:
        if node.plan is None or generation != self._run.core.coordinator.generation:
            return
        for order in node.plan.orders:
            for name, version in order.pushes:
                holder = self._run.nodes.get(name)
                said = holder.store(order.rank, version, generation) if holder is not None else None
                if holder is not None and said is not None:
                    self._run.say(holder, said)

    def _parked(self, node: LightNode, about: tuple[str, int]) -> None:
        trainer, rank = about
        if node.rehearsed.get(trainer) == ("rehearsing", rank):
            node.rehearsed[trainer] = ("parked", rank)
            self._run.say(node, node.trainers())

    def _left(self, node: LightNode, about: None) -> None:
        self._run.on_shutdown(node)

    # --- a drain ------------------------------------------------------------------------------------------------------

    def _stand(self, node: LightNode, order: Stand) -> None:
        """Every rank stops at the version that is asked for, or at the next one that it comes to."""
        training = self._run.training
        number = order.number or training.reached() + 1
        at = max(0.0, training.stand_at(number) - self._clock.now)
        self._after(at, "standing", node, (order.generation, number, order.number == 0))

    def _standing(self, node: LightNode, about: tuple[Generation, int, bool]) -> None:
        generation, number, is_first = about
        run = self._run
        if generation != run.core.coordinator.generation or not run.training.is_running:
            return
        version = Version(generation, number)
        if not is_first:
            run.training.stopped_for_drain(number)
            node.own.add(version)
        for rank in node.ranks:
            run.say(node, Standing(generation=generation, rank=rank, number=number))
            if not is_first:
                run.say(node, Sealed(generation=generation, copy=copy_of(rank, version)))
