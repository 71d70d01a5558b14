"""How fast copies went to their holders, by the figures that the nodes report. It is logged when a job ends."""

from __future__ import annotations

from typing import Any

from deadpool.events.event import Event


def bandwidth(facts: dict[str, dict[str, Any]]) -> Event | None:
    """None where nothing was sent. A rate is that of one transfer: several may run side by side."""
    sent = {node: fact for node, fact in sorted(facts.items()) if fact.get("push_gbps")}
    if not sent:
        return None
    rates = {node: fact["push_gbps"] for node, fact in sent.items()}
    total = sum(fact["bytes_pushed"] for fact in sent.values())
    slowest = min(rates, key=lambda node: rates[node])
    summary = (
        f"{total / 1e9:.3g} GB to holders by {len(sent)} nodes, a transfer at {_mean(rates):.2f} GB/s, "
        f"slowest {slowest} at {rates[slowest]:.2f} GB/s"
    )
    return Event(what="bandwidth", detail={"bytes_pushed": total, "push_gbps": rates, "summary": summary})


def _mean(rates: dict[str, float]) -> float:
    return sum(rates.values()) / len(rates)
