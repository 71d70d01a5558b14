"""What is known of a job on Kubernetes, from inside and from outside.

`RecordedJobState` and `JobStateStore`: what coordinators tell the API server: that the job has begun, how it ended,
and that its agents can go.

It lies in a ConfigMap, which outlives pods: a coordinator's pod that is replaced has an empty folder, and must
neither begin the job a second time nor wait for a job that is over. While the job runs nothing here is needed: the
API server may be away.

`ask_one` and `ask_leader` ask the coordinators of a job, wherever they are, whether one answers, and what the one that
leads says.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from deadpool.clusters.kubernetes.spec import coordinator_name, state_name
from deadpool.errors import ConfigError, WireError
from deadpool.protocol.identity import Address
from deadpool.protocol.messages import Answer, Ask
from deadpool.wire.control_link import connect
from deadpool.wire.credentials import Credentials

if TYPE_CHECKING:
    from lightkube import Client


MADE_FROM = "deadpool.dev/made-from"
"""Annotation of the ConfigMap: the spec of the DeadPoolJob that the job's objects were made from."""
BEGUN, OUTCOME, REASON = "begun", "outcome", "reason"
COMPLETED, FAILED = "completed", "failed"
_PAUSE_S, _REQUEST_S = 2.0, 10.0
_START_S = 120.0
_END_S = 24 * 3600.0
"""How long the end of a job waits for the API server: GPUs are held until it is told."""

Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class RecordedJobState:
    begun: bool
    outcome: str
    reason: str

    @property
    def exit_code(self) -> int:
        return 0 if self.outcome == COMPLETED else 1


class JobStateStore:
    """Reads and writes what outlives the pods of one job, in the namespace of this pod."""

    def __init__(self, job: str, client: Client | None = None) -> None:
        self._job, self._client = job, client or in_cluster_client()

    def read(self) -> RecordedJobState:
        from lightkube.resources.core_v1 import ConfigMap

        found = self._patiently(lambda: self._client.get(ConfigMap, state_name(self._job)), _START_S)
        data = found.data or {}
        return RecordedJobState(BEGUN in data, data.get(OUTCOME, ""), data.get(REASON, ""))

    def await_end(self) -> RecordedJobState:
        """Waits until the end of the job is noted. A coordinator that stood by and was dismissed needs that: the one
        that led notes the end after the dismissal.
        """
        deadline = time.monotonic() + _END_S
        while not (state := self.read()).outcome:
            if time.monotonic() > deadline:
                raise ConfigError(f"job {self._job}: no coordinator has noted how it ended: look at their logs")
            time.sleep(_PAUSE_S)
        return state

    def note_begun(self, by: str) -> None:
        self._patiently(lambda: self._write({BEGUN: by}), _START_S)

    def note_end(self, *, failed: bool, reason: str, coordinators: int) -> None:
        """The outcome first: pods that are started again in between end by themselves."""
        outcome = {OUTCOME: FAILED if failed else COMPLETED, REASON: reason}
        self._patiently(lambda: self._write(outcome), _END_S)
        self._patiently(self._dismiss_agents, _END_S)
        for index in range(coordinators if failed else 0):
            self._patiently(partial(self._forbid_retries, index), _END_S)

    def _write(self, data: dict[str, str]) -> None:
        from lightkube.resources.core_v1 import ConfigMap

        self._client.patch(ConfigMap, state_name(self._job), {"data": data})

    def _dismiss_agents(self) -> None:
        from lightkube.resources.apps_v1 import Deployment

        self._client.patch(Deployment.Scale, f"{self._job}-agents", {"spec": {"replicas": 0}}, patch_type=_merge())

    def _forbid_retries(self, index: int) -> None:
        """Sets the Job of a coordinator so that it fails with its pod and is not tried again for days."""
        from lightkube.resources.batch_v1 import Job

        change = {"spec": {"backoffLimit": 0}}
        self._client.patch(Job, coordinator_name(self._job, index), change, patch_type=_merge())

    def _patiently(self, request: Callable[[], Result], limit_s: float) -> Result:
        """Repeats a request until the API server answers. What the server refuses, it would refuse again."""
        from httpx2 import TransportError
        from lightkube.core.exceptions import ApiError

        deadline = time.monotonic() + limit_s
        while True:
            try:
                return request()
            except (TransportError, ApiError) as error:
                refused = isinstance(error, ApiError) and error.status.code in (401, 403, 404)
                if refused or time.monotonic() > deadline:
                    raise ConfigError(f"job {self._job}: the API server does not do what is needed: {error}") from error
            time.sleep(_PAUSE_S)


def in_cluster_client(namespace: str | None = None) -> Client:
    """With the rights of this pod's service account, or as the user's kubeconfig says."""
    try:
        from httpx2 import Timeout
        from lightkube import Client
    except ImportError as error:
        raise ConfigError(f"{error.name} is missing: pip install 'torch-deadpool[kubernetes]'") from error
    return Client(namespace=namespace, timeout=Timeout(_REQUEST_S))


def _merge() -> Any:
    from lightkube.types import PatchType

    return PatchType.MERGE


_PATIENCE_S = 3.0


async def ask_one(address: Address, credentials: Credentials, question: Ask) -> Answer | None:
    """None: no answer. A coordinator that stands by answers with an error."""
    try:
        async with asyncio.timeout(2 * _PATIENCE_S):
            link = await connect(address, credentials, patience_s=_PATIENCE_S)
            try:
                link.send(question)
                async for message in link.messages():
                    if isinstance(message, Answer):
                        return message
            finally:
                link.abort()
    except (TimeoutError, OSError, WireError):
        return None
    return None


async def ask_leader(addresses: Iterable[Address], credentials: Credentials, what: str, **arguments: Any) -> Any:
    """The answer of the coordinator that leads. Raises ConfigError with what the last one said if none does."""
    error = "no coordinator answers"
    for address in addresses:
        answer = await ask_one(address, credentials, Ask(what=what, arguments=arguments))
        if answer is not None and not answer.error:
            return answer.body
        error = (answer.error if answer is not None else None) or error
    raise ConfigError(error)
