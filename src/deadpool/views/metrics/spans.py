"""Recoveries as spans of OpenTelemetry: one trace per recovery, with its phases and each rank's part.

All times and ids follow from the events: whoever exports a run twice, or from two machines, sends the same spans.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from deadpool.errors import ConfigError
from deadpool.events.story import Recovery
from deadpool.views.metrics.folds import kind_of

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import ReadableSpan

_NS = 1_000_000_000
_PATH = "/v1/traces"
_TIMEOUT_S = 10.0
_NO_PACKAGE = "deadpool show trace needs OpenTelemetry: pip install 'torch-deadpool[trace]'"


def spans(recovery: Recovery, run: str) -> list[ReadableSpan]:
    """`run` names the job: it tells its fault-1 from that of another job."""
    builder = _Builder(recovery, run)
    return [builder.root(), *builder.phases(), *builder.ranks()]


def export(found: list[ReadableSpan], endpoint: str | None) -> None:
    """Raises ConfigError if the receiver does not take them. Headers and certificates are those of the variables
    OTEL_EXPORTER_OTLP_*."""
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace.export import SpanExportResult
    except ImportError:
        raise ConfigError(_NO_PACKAGE) from None
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)  # what went wrong is said below, once
    exporter: Any = OTLPSpanExporter(endpoint=_with_path(endpoint) if endpoint else None, timeout=_TIMEOUT_S)
    try:
        if exporter.export(found) is not SpanExportResult.SUCCESS:
            raise ConfigError(
                f"the spans were not taken at {endpoint or 'the default endpoint'}: is an OTLP receiver there?"
            )
    finally:
        exporter.shutdown()


def _with_path(endpoint: str) -> str:
    parts = urlsplit(endpoint)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(f"otlp={endpoint!r} cannot be used: give http://HOST:4318, where OTLP over HTTP is received")
    return endpoint if parts.path.strip("/") else endpoint.rstrip("/") + _PATH


class _Builder:
    def __init__(self, recovery: Recovery, run: str) -> None:
        self._recovery, self._run = recovery, run
        self._trace_id = int.from_bytes(hashlib.sha256(f"{run} {recovery.cause}".encode()).digest()[:16])
        self._end = recovery.began + sum(recovery.phases_s.values())

    def root(self) -> ReadableSpan:
        recovery = self._recovery
        attributes = {
            "deadpool.cause": recovery.cause,
            "deadpool.kind": kind_of(recovery.fault),
            "deadpool.reason": str(recovery.fault["reason"]),
            "deadpool.ranks": list(recovery.fault.get("ranks") or ()),
            "deadpool.resume_step": recovery.resume_step,
            "deadpool.lost_steps": recovery.lost_steps,
        }
        own = [record for record in recovery.records if record.get("rank") is None or record["what"] == "fault"]
        return self._span(f"recovery {recovery.cause}", recovery.began, self._end, attributes, own, is_root=True)

    def phases(self) -> Iterator[ReadableSpan]:
        at = self._recovery.began
        for name, seconds in self._recovery.phases_s.items():
            yield self._span(name, at, at + max(0.0, seconds), {"deadpool.phase": name}, [])
            at += seconds

    def ranks(self) -> Iterator[ReadableSpan]:
        """Yields a span for each rank, from the first that was heard of it until its first step."""
        by_rank: dict[int, list[dict[str, Any]]] = {}
        for record in self._recovery.records:
            if record.get("rank") is not None and record["what"] not in ("fault", "injected", "signal_sent"):
                by_rank.setdefault(record["rank"], []).append(record)
        for rank, records in sorted(by_rank.items()):
            times = [float(record["t"]) for record in records if float(record["t"]) <= self._end]
            if times:
                names = [str(record["trainer"]) for record in records if record.get("trainer")]
                about = {"deadpool.rank": rank, "deadpool.trainer": names[-1] if names else ""}
                yield self._span(f"rank {rank}", min(times), max(times), about, records)

    def _span(
        self,
        name: str,
        begin: float,
        end: float,
        attributes: dict[str, Any],
        records: list[dict[str, Any]],
        *,
        is_root: bool = False,
    ) -> ReadableSpan:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import Event, ReadableSpan
        except ImportError:
            raise ConfigError(_NO_PACKAGE) from None
        return ReadableSpan(
            name=name,
            context=self._context(name),
            parent=None if is_root else self._context(f"recovery {self._recovery.cause}"),
            resource=Resource({"service.name": "deadpool", "service.instance.id": self._run}),
            attributes=attributes,
            events=[Event(str(r["what"]), _plain(r), timestamp=round(float(r["t"]) * _NS)) for r in records],
            start_time=round(begin * _NS),
            end_time=round(end * _NS),
        )

    def _context(self, name: str) -> Any:
        from opentelemetry.trace import SpanContext, TraceFlags

        span_id = int.from_bytes(hashlib.sha256(f"{self._trace_id} {name}".encode()).digest()[:8])
        return SpanContext(self._trace_id, span_id, is_remote=False, trace_flags=TraceFlags(TraceFlags.SAMPLED))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Attributes are plain values, or lists of one kind."""
    named = {name: value for name, value in record.items() if name not in ("t", "what") and value is not None}
    return {f"deadpool.{n}": v if isinstance(v, str | bool | int | float) else str(v) for n, v in named.items()}
