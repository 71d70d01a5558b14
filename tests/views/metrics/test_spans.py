"""Recoveries as spans, sent by the real exporter to a real receiver of OTLP over HTTP."""

from __future__ import annotations

import contextlib
import gzip
import json
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from records import recovery, start

from deadpool.errors import ConfigError
from deadpool.events.story import recoveries

service = pytest.importorskip(
    "opentelemetry.proto.collector.trace.v1.trace_service_pb2", reason="the extra `trace` is not installed"
)
pytest.importorskip("opentelemetry.exporter.otlp.proto.http", reason="the extra `trace` is not installed")

from deadpool.views.metrics.spans import export, spans  # noqa: E402

RECORDS = [*start(), *recovery(200.0, number=1, lost_steps=2), *recovery(300.0, number=2)]


class OtlpReceiver:
    """Takes what OpenTelemetry's own message types can read, and answers as a collector does."""

    def __init__(self) -> None:
        self.spans: list = []
        self.paths: list[str] = []

    @contextlib.contextmanager
    def running(self) -> Iterator[str]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if self.headers.get("Content-Encoding") == "gzip":
                    body = gzip.decompress(body)
                request = service.ExportTraceServiceRequest.FromString(body)
                receiver.paths.append(self.path)
                receiver.spans += [
                    span for each in request.resource_spans for scope in each.scope_spans for span in scope.spans
                ]
                answer = service.ExportTraceServiceResponse().SerializeToString()
                self.send_response(200)
                self.send_header("Content-Type", "application/x-protobuf")
                self.send_header("Content-Length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *_: object) -> None:
                return

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()


def test_command_sends_each_recovery_as_one_trace(tmp_path):
    (tmp_path / "events.jsonl").write_text("".join(json.dumps(record) + "\n" for record in RECORDS))
    receiver = OtlpReceiver()
    with receiver.running() as endpoint:
        command = [sys.executable, "-m", "deadpool.cli.main", "show", "trace", str(tmp_path), "--otlp", endpoint]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "of 2 recoveries" in done.stdout and set(receiver.paths) == {"/v1/traces"}
    assert len({span.trace_id for span in receiver.spans}) == 2

    roots = [span for span in receiver.spans if not span.parent_span_id]
    assert [root.name for root in roots] == ["recovery fault-1", "recovery fault-2"]
    first = {span.name: span for span in receiver.spans if span.trace_id == roots[0].trace_id}
    assert list(first) == [
        "recovery fault-1",
        *("detect", "unwind", "plan", "prepare", "connect", "redo"),
        "rank 0",
        "rank 1",
    ]
    assert all(span.parent_span_id == roots[0].span_id for name, span in first.items() if name != roots[0].name)
    seconds = {name: (span.end_time_unix_nano - span.start_time_unix_nano) / 1e9 for name, span in first.items()}
    (told, _) = recoveries(RECORDS)
    assert {name: seconds[name] for name in told.phases_s} == pytest.approx(told.phases_s)
    assert seconds["recovery fault-1"] == pytest.approx(9.0)
    attributes = {each.key: each.value for each in roots[0].attributes}
    assert attributes["deadpool.lost_steps"].int_value == 2
    assert attributes["deadpool.reason"].string_value == "link to node n1 lost"
    assert [event.name for event in first["rank 1"].events] == ["rebuilt", "resumed"]


def test_ids_follow_from_the_events():
    (one, other) = recoveries(RECORDS)
    contexts = [span.context for span in spans(one, "run a")]
    assert contexts == [span.context for span in spans(one, "run a")]
    assert len({each.span_id for each in contexts}) == len(contexts)
    assert {each.trace_id for each in contexts} != {span.context.trace_id for span in spans(one, "run b")}
    assert contexts[0].trace_id != spans(other, "run a")[0].context.trace_id


@pytest.mark.parametrize("endpoint", ["localhost:4318", "grpc://h:4317", "http://"])
def test_endpoint_that_cannot_be_one_is_refused(endpoint):
    with pytest.raises(ConfigError, match="4318"):
        export([], endpoint)


@pytest.mark.thorough
def test_receiver_that_is_not_there_is_said():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    with pytest.raises(ConfigError, match="not taken"):
        export(spans(recoveries(RECORDS)[0], "run"), f"http://127.0.0.1:{port}")
