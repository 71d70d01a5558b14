"""The doctor and a running job: the agents examine their nodes, and a machine that wants to join is tried against
them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from deadpool.control.agent.coordinator_client import unreachable
from deadpool.doctor.clock import apart, compare, offset_s
from deadpool.doctor.finding import SAME_SECRET, Finding, NodeReport, Result, unknown
from deadpool.errors import VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask, Peer
from deadpool.wire.control_link import connect
from deadpool.wire.credentials import Credentials
from deadpool.wire.listener import AuthenticatedListener

_REACH_S = 3.0
_ANSWER_S = 30.0
_SHARE_OF_USUAL = 0.2
_PORTS = "let nodes of the job reach each other on all TCP ports above 1024, or give another --interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class JoiningMachine:
    """This machine, if it wants to join."""

    report: NodeReport
    host: str


async def check_with_job(
    coordinators: Sequence[Address], credentials: Credentials, joining: JoiningMachine | None
) -> Result:
    """What the nodes of the job, and the joining machine, suffer from."""
    listener = AuthenticatedListener(credentials, "doctor", _say_nothing)
    arguments: dict[str, Any] = {}
    try:
        if joining is not None:
            own = await listener.start(joining.host, 0)
            arguments = {"joining": {"node": joining.report.node, "host": own.host, "port": own.port}}
        asked = await _ask_first(coordinators, credentials, Ask(what="doctor", arguments=arguments))
        if isinstance(asked, Finding):
            reports = [joining.report] if joining is not None else []
            return Result.of(reports, [asked.at(joining.report.node if joining is not None else "")])
        findings = _of_agents(asked["nodes"])
        if joining is not None:
            ahead, error = offset_s(asked["arrived"], asked["sent"], asked["received"], asked["left"])
            findings += apart(joining.report.node, ahead, abs(error), "the coordinator")
            findings += await asyncio.to_thread(_of_joining, joining.report, asked["nodes"])
        reports = [*([joining.report] if joining is not None else []), *_reports(asked["nodes"])]
        return Result.of(reports, [*findings, *compare(reports)])
    finally:
        await listener.close()


async def _say_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Agents only try whether they reach this port."""


async def _ask_first(
    coordinators: Sequence[Address], credentials: Credentials, question: Ask
) -> dict[str, Any] | Finding:
    """Asks the coordinators in turn until the one that leads answers. It returns a Finding if none could be asked."""
    finding: Finding | None = None
    for address in coordinators:
        try:
            async with asyncio.timeout(_ANSWER_S):
                answer = await _ask(address, credentials, question)
        except VersionMismatch as error:
            return Finding(check="versions", what=error.found, do=error.cure)
        except WireError as error:
            return Finding(check="secret", what=str(error), do=SAME_SECRET)
        except (TimeoutError, OSError):
            do = "see that the coordinator runs, and let this node reach its port"
            finding = finding or Finding(check="ports", what=f"no coordinator answers at {address}", do=do)
            continue
        if answer is not None and not answer.error:
            return answer.body
        why = answer.error if answer is not None else "it closed the connection"
        finding = unknown("agents", f"the coordinator at {address} did not examine its nodes: {why}", "ask again")
    assert finding is not None, "there is at least one address"
    return finding


async def _ask(address: Address, credentials: Credentials, question: Ask) -> Answer | None:
    link = await connect(address, credentials, patience_s=_REACH_S)
    try:
        link.send(question)
        sent = time.time()
        async for message in link.messages():
            if isinstance(message, Answer):
                stamps = {"sent": sent, "received": time.time()}
                return Answer(body={**message.body, **stamps}, error=message.error)
        return None
    finally:
        link.abort()


def _reports(nodes: Mapping[str, dict[str, Any]]) -> list[NodeReport]:
    return [
        NodeReport.from_json({**told["report"], "node": node})
        for node, told in sorted(nodes.items())
        if "report" in told
    ]


def _of_agents(nodes: Mapping[str, dict[str, Any]]) -> list[Finding]:
    """What no single report says: ports, clocks, how fast copies went."""
    findings = []
    for node, told in nodes.items():
        if "error" in told:
            what = f"its examination failed: {told['error']}"
            findings.append(unknown("agents", what, "look at this node, and run deadpool doctor there").at(node))
        for other in told.get("unreachable", ()):
            findings.append(Finding(check="ports", node=node, what=f"it does not reach node {other}", do=_PORTS))
        if "sent" in told and "left" in told:
            ahead, error = offset_s(told["sent"], told["arrived"], told["left"], told["received"])
            findings += apart(node, ahead, abs(error), "the coordinator")
    return [*findings, *_slow_copies({node: told.get("push_gbps") for node, told in nodes.items()})]


def _slow_copies(rates: Mapping[str, float | None]) -> list[Finding]:
    """Finds slow copies by what the agents measured at real ones: nothing is sent to find out."""
    known = {node: rate for node, rate in rates.items() if rate}
    usual = statistics.median(known.values()) if known else 0.0
    do = "look at its cable, switch port and limits (ethtool, tc): copies leave it later than they leave others"
    return [
        Finding(
            check="bandwidth",
            node=node,
            what=f"its copies go to their holders at {rate:.3f} GB/s, those of other nodes at {usual:.3f}",
            do=do,
        )
        for node, rate in known.items()
        if len(known) > 2 and rate < _SHARE_OF_USUAL * usual
    ]


def _of_joining(report: NodeReport, nodes: Mapping[str, dict[str, Any]]) -> list[Finding]:
    peers = [Peer(node=node, address=Address(host=told["host"], port=told["port"])) for node, told in nodes.items()]
    findings = [
        Finding(check="ports", node=report.node, what=f"it does not reach node {node}", do=_PORTS)
        for node in unreachable(peers)
    ]
    need = max((int(told["arena_bytes"]) for told in nodes.values()), default=0)
    room = int(report.facts.get("memory_room_bytes", need))
    if need > room:
        what = (
            f"nodes of the job hold {need / 2**30:.2f} GiB in arenas, and this one has room for {room / 2**30:.2f} GiB"
        )
        findings.append(
            Finding(check="memory", node=report.node, what=what, do="give it more memory, or another machine")
        )
    return findings
