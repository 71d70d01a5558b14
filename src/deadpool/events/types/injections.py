"""Events of faults that a user injects."""

from __future__ import annotations

from deadpool.events.types.event_type import EventType

_WHERE = {"rank": "the rank that is hit", "at": "the moment of training", "signal": "the signal's number"}
_STEP = {"step": "the step or version of that moment"}

EVENTS = (
    EventType(
        name="signal_sent",
        meaning="A signal was sent to a node or to one trainer, by `deadpool node kill`.",
        action="Nothing: a `fault` follows.",
        fields={"node": "the node", "rank": "the rank; empty: the whole node", "signal": "the signal's number"},
    ),
    EventType(
        name="injection_ordered",
        meaning="A fault is to be injected when a node or a rank reaches a moment of training.",
        action="Nothing: `injected` or `injection_missed` follows.",
        fields={
            "node": "the node",
            "rank": "the rank; empty: the first rank of the node that comes to the moment",
            "at": "the moment of training",
            **_STEP,
            "signal": "the signal's number",
            "when": "the moment in words",
        },
        console="fault ordered: signal {signal} for node {node}, {when}",
    ),
    EventType(
        name="injection_set",
        meaning="The trainer, or the agent, that the fault waits in has the order.",
        action="Nothing.",
        fields={**_WHERE, **_STEP, "trainer": "the trainer; empty: the agent injects it"},
    ),
    EventType(
        name="injected",
        meaning="The moment has come, and the signal is sent.",
        action="Nothing: a `fault` follows.",
        fields={**_WHERE, **_STEP, "trainer": "the trainer; empty: the agent injects it"},
        console="fault injected: rank {rank} has reached {at}, signal {signal}",
    ),
    EventType(
        name="injection_missed",
        meaning="The moment did not come in its step, and the fault is not injected.",
        action="Order it again for a later step.",
        fields={**_WHERE, **_STEP, "trainer": "the trainer; empty: the agent was to inject it"},
        console="fault NOT injected: {at} of step {step} did not come to rank {rank}",
    ),
)
