"""The coordinator of a large job, with the cost of its work: messages, bytes and CPU seconds."""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from deadpool.protocol.coordinator.leadership import Leadership
from deadpool.protocol.effects import FromAgent, ToAgent
from deadpool.protocol.messages import Order

Encode = Callable[[Any], bytes]
Decode = Callable[[bytes], Any]
Deliver = Callable[[str, int, Any], None]


@dataclass(slots=True)
class Usage:
    """The cost of one stretch of the run."""

    messages: Counter[str] = field(default_factory=Counter)  # by type, in both directions
    wire_bytes: Counter[str] = field(default_factory=Counter)
    cpu_s: float = 0.0
    plans_done_s: float = 0.0  # CPU time when the last plan was out

    def report(self) -> dict[str, Any]:
        return {
            "messages": self.messages.total(),
            "bytes": self.wire_bytes.total(),
            "coordinator_cpu_s": round(self.cpu_s, 4),
            "by_type": {
                name: {"messages": count, "bytes": self.wire_bytes[name]} for name, count in self.messages.most_common()
            },
        }


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
            self._count(message, data)
            began = time.process_time()
            heard = FromAgent(node=node, message=self._decode(data))
            effects = self.leadership.step(heard, now=self.now)
            self.leadership.deadline()
            self._answer(effects, began)

    def feed(self, input: Any) -> None:
        began = time.process_time()
        self._answer(self.leadership.step(input, now=self.now), began)

    def _answer(self, effects: list[Any], began: float) -> None:
        orders = [effect for effect in effects if isinstance(effect, ToAgent)]
        last: tuple[Any, bytes] = (None, b"")
        sizes = []
        for order in orders:  # an order to many nodes is encoded once
            if order.message is not last[0]:
                last = (order.message, self._encode(Order(term=order.term, message=order.message)))
            sizes.append(len(last[1]))
        self.usage.cpu_s += time.process_time() - began
        for order, size in zip(orders, sizes, strict=True):
            name = type(order.message).__name__
            self.usage.messages[name] += 1
            self.usage.wire_bytes[name] += size
            if name == "Plan":
                self.usage.plans_done_s = self.usage.cpu_s
            self._deliver(order.node, order.term, order.message)

    def _count(self, message: Any, data: bytes) -> None:
        name = type(message).__name__
        self.usage.messages[name] += 1
        self.usage.wire_bytes[name] += len(data)
