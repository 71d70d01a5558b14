"""A real HTTP server on loopback that keeps what is posted to it."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class Receiver:
    def __init__(self) -> None:
        self.posted: list[Any] = []
        self.codes: list[int] = []  # what it answers next; then 200

    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/services/T0/SECRET"

    @contextlib.contextmanager
    def running(self) -> Iterator[Receiver]:
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                code = receiver.codes.pop(0) if receiver.codes else 200
                if code == 200:
                    receiver.posted.append(json.loads(body))
                self.send_response(code)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                return

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as self._server:
            thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.05})
            thread.start()
            try:
                yield self
            finally:
                self._server.shutdown()
                thread.join()
