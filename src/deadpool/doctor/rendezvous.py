"""How the nodes find each other without a job: all of them get the same HOST:PORT, and the one that it belongs to asks.

So the same command works under srun, kubectl and ssh: nothing has to be known of the nodes but one address.
"""

from __future__ import annotations

import asyncio
import errno
import socket

from deadpool.doctor.finding import SAME_SECRET, Finding, Report, Result, unknown
from deadpool.doctor.joint_check import JointCheck
from deadpool.doctor.responder import Responder
from deadpool.errors import ConfigError, VersionMismatch, WireError
from deadpool.protocol.identity import Address
from deadpool.wire.credentials import Credentials

_ELSEWHERE = (errno.EADDRNOTAVAIL, errno.EADDRINUSE)
"""The place is another machine, or another process of this one asks the nodes."""
_HOLD_S = 60.0  # beyond the wait for nodes: far longer than all questions take


async def examine_together(
    report: Report,
    place: Address,
    *,
    count: int,
    host: str,
    credentials: Credentials,
    wait_s: float,
    least_gbps: float,
) -> tuple[Result | None, int]:
    """What was found, and the exit code. None: the place tells what was found."""
    place = _resolved(place)
    check = JointCheck(report.node, count, credentials, wait_s=wait_s, least_gbps=least_gbps)
    asks = await _begin(check, place)
    responder = Responder(report, host, credentials)
    try:
        own = await responder.start()
        responding = asyncio.ensure_future(_respond(responder, place, own, report, wait_s))
        try:
            if not asks:
                return await responding
            result = await check.run()
            return result, int(result.code)
        finally:
            responding.cancel()
            await asyncio.gather(responding, return_exceptions=True)
    finally:
        await responder.close()
        await check.close()


async def _begin(check: JointCheck, place: Address) -> bool:
    try:
        await check.start(place)
    except OSError as error:
        if error.errno in _ELSEWHERE:
            return False
        raise ConfigError(f"rendezvous={place} cannot be used: {error.strerror}; give another port") from error
    return True


async def _respond(
    responder: Responder, place: Address, own: Address, report: Report, wait_s: float
) -> tuple[Result | None, int]:
    try:
        async with asyncio.timeout(2 * wait_s + _HOLD_S):
            code = await responder.respond(place, own, patience_s=wait_s)
    except VersionMismatch as error:
        return _alone(report, Finding(check="versions", what=error.found, do=error.cure))
    except TimeoutError:
        do = f"let this node reach port {place.port} of {place.host}, and see that the doctor runs there"
        return _alone(report, Finding(check="ports", what=f"{place} does not answer", do=do))
    except WireError as error:
        return _alone(report, Finding(check="secret", what=str(error), do=SAME_SECRET))
    if code is None:
        return _alone(report, unknown("ports", f"the examination by {place} broke off", "look at the output there"))
    return None, code


def _alone(report: Report, finding: Finding) -> tuple[Result, int]:
    result = Result.of([report], [finding.at(report.node)])
    return result, int(result.code)


def _resolved(place: Address) -> Address:
    try:
        found = socket.getaddrinfo(place.host, place.port, socket.AF_INET, socket.SOCK_STREAM)
    except OSError as error:
        raise ConfigError(
            f"rendezvous={place} cannot be used: {error.strerror}; give HOST:PORT of one of the nodes"
        ) from error
    return Address(host=str(found[0][4][0]), port=place.port)
