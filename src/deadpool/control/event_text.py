"""Events in words, for whoever looks at the coordinator's output."""

from __future__ import annotations

from typing import Any

_TOLD = {
    "joined": "node {node} joined",
    "injection_ordered": "waiting: signal {signal} for node {node} {when}",
    "injected": "injected: rank {rank} has reached {at}, signal {signal}",
    "injection_missed": "injected MISSED: {at} did not come to rank {rank} when it was due",
    "took_over": "coordinator of term {term}: nodes {nodes} are here",
    "let_go": "no longer coordinator of term {term}: {reason}",
    "no_majority": "NO MAJORITY: {reason}",
    "isolated": "node {node} ended its trainers: {reason}",
    "fault": "FAULT {reason} (ranks {ranks})",
    "planned": "plan: seats {seats}, resume at step {step}",
    "same_rack": "copies of nodes {nodes} lie in their own rack: no other has room for them",
    "replicas_differ": "REPLICAS DIFFER: at version {step} ranks {ranks} hold what no peer on another node has",
    "interval": "from version {from} on a snapshot every {every} steps: {reason}",
    "waiting": "WAITING: {reason}; add one with: deadpool agent --join",
    "go": "go: generation {generation}",
    "protected": "protected again at version {step}",
    "no_plan": "NO PLAN: {reason}",
    "spare_lost": "spare {node} is lost: {reason}",
    "no_spare": "NO SPARE: {reason}; add one with: deadpool agent --spare --join",
    "drain": "node {node} is drained ({reason}): node {successor} gets ready for ranks {ranks}",
    "handover": "all ranks stand at version {step}: those of node {node} move, and nothing is done again",
    "drain_failed": "node {node} STAYS: {reason}",
    "drain_refused": "node {node} cannot be drained: {reason}",
    "left": "node {node} leaves: {reason}",
    "straggler": "SLOW: node {node} {reason}",
    "straggler_over": "node {node} is as fast as the others again",
    "trainer_lost": "trainer {trainer} ended: {reason}",
    "rehearsed": "spare trainer {trainer} is warm for rank {rank}",
    "slow_start": "no step for {seconds} s: behind are ranks {ranks}; no hang is seen before this job's first step",
    "paused": "rank {rank} pauses: {reason}",
    "hung": "HUNG: rank {rank} on node {node} {found}; a fresh process takes its place",
    "nobody_hung": "{reason}",
    "quarantined": "QUARANTINED: node {node}: {reason}; its ranks go to a spare",
    "not_quarantined": "node {node} should be quarantined ({reason}), but there is no spare: it goes on; add one with: "
    "deadpool agent --join",
    "returned": "node {node} is back and a spare; it had copies {copies}",
    "hoping": "WAITING: {reason}",
    "spoilt": "SPOILT: the copy of rank {rank} at version {step} on node {node} is not as it was sealed",
    "no_progress": "NO PROGRESS at step {step}: {faults}",
    "salvaging": "writing what is left of version {step} to disk on nodes {nodes}",
    "peer_lost": "PEER LOST by rank {rank} in step {step}: {reason}",
    "device_lost": "DEVICE LOST by rank {rank}: {reason}",
    "bandwidth": "copies: {summary}",
    "refused": "REFUSED {count} strangers, the last: {reason}",
    "unprotected": "UNPROTECTED: the script ended without ever calling protect(); a fault would have cost everything",
    "not_protected_yet": "NOT PROTECTED: the script runs for {seconds} s and has not called protect(); a fault would "
    "start it over at its first line",
    "failed": "FAILED: {reason}",
    "completed": "completed: {reason}",
}

_OF_THE_SCRIPT = ("unprotected", "not_protected_yet")
"""The same for all ranks: one of them is enough."""


def told(record: dict[str, Any]) -> str | None:
    """None: it is for the log only."""
    template = _TOLD.get(record["what"])
    if template is None or (record["what"] in _OF_THE_SCRIPT and record.get("rank") != 0):
        return None
    try:
        return template.format(**record)
    except KeyError:
        return str(record["what"])
