"""The coordinator of a large job, with the cost of its work: messages, bytes and CPU seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deadpool.protocol.coordinator.leadership.leadership import Leadership
from deadpool.protocol.effects import ToAgent
from deadpool.protocol.inputs import FromAgent
from deadpool.protocol.messages import Order

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Deliver = Callable[[str, int, Any], None]


@dataclass(slots=True)
class Usage:
    """The cost of one stretch of the run."""

    messages: Counter[str] = field(default_factory=Counter)  # by type, in both directions
    bytes_in: Counter[str] = field(default_factory=Counter)
    bytes_out: Counter[str] = field(default_factory=Counter)
    handling_s: dict[str, float] = field(
        default_factory=dict
    )  # by type of what came in, with all that followed from it
    cpu_s: float = 0.0
    plans_done_s: float = 0.0  # CPU time when the last plan was out
    gos_done_s: float = 0.0  # the same for the last Go

    def report(self) -> dict[str, Any]:
        return {
            "messages": self.messages.total(),
            "bytes_in": self.bytes_in.total(),
            "bytes_out": self.bytes_out.total(),
            "coordinator_cpu_s": round(self.cpu_s, 4),
            "by_type": {name: self._of_type(name) for name, _ in self.messages.most_common()},
        }

    def _of_type(self, name: str) -> dict[str, float]:
        size = self.bytes_in[name] + self.bytes_out[name]
        return {"messages": self.messages[name], "bytes": size, "cpu_s": round(self.handling_s.get(name, 0.0), 4)}

    def spend(self, seconds: float, on: str) -> None:
        self.cpu_s += seconds
        self.handling_s[on] = self.handling_s.get(on, 0.0) + seconds


class MeteredCoordinator:
    """Each message is decoded, handled and answered in bytes; only that time is measured."""

    def __init__(self, leadership: Leadership, *, encode: Encode, decode: Decode, deliver: Deliver) -> None:
        self.leadership, self._encode, self._decode, self._deliver = leadership, encode, decode, deliver
        self._inbox: deque[tuple[str, Any]] = deque()
        self.usage = Usage()
        self.now = 0.0

    def start_stretch(self) -> Usage:
        """Begins to count anew."""
        self.usage = Usage()
        return self.usage

    def send(self, node: str, message: Any) -> None:
        self._inbox.append((node, message))

    def run_until_idle(self) -> None:
        """Handles messages until none is left."""
        while self._inbox:
            node, message = self._inbox.popleft()
            data = self._encode(message)
            self._count_in(message, data)
            began = time.process_time()
            heard = FromAgent(node=node, message=self._decode(data))
            effects = self.leadership.step(heard, now=self.now)
            self.leadership.deadline()
            self._answer(effects, began, type(message).__name__)

    def feed(self, input: Any) -> None:
        began = time.process_time()
        self._answer(self.leadership.step(input, now=self.now), began, type(input).__name__)

    def _answer(self, effects: list[Any], began: float, to: str) -> None:
        orders = [effect for effect in effects if isinstance(effect, ToAgent)]
        last: tuple[Any, bytes] = (None, b"")
        sizes = []
        for order in orders:  # an order to many nodes is encoded once
            if order.message is not last[0]:
                last = (order.message, self._encode(Order(term=order.term, message=order.message)))
            sizes.append(len(last[1]))
        self.usage.spend(time.process_time() - began, to)
        for order, size in zip(orders, sizes, strict=True):
            self._count_out(type(order.message).__name__, size)
            self._deliver(order.node, order.term, order.message)

    def _count_in(self, message: Any, data: bytes) -> None:
        name = type(message).__name__
        self.usage.messages[name] += 1
        self.usage.bytes_in[name] += len(data)

    def _count_out(self, name: str, size: int) -> None:
        usage = self.usage
        usage.messages[name] += 1
        usage.bytes_out[name] += size
        if name == "Plan":
            usage.plans_done_s = usage.cpu_s
        elif name == "Go":
            usage.gos_done_s = usage.cpu_s
