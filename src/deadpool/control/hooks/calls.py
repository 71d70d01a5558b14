"""What a hook calls: a command, or a webhook.

`Command` runs an operator's command for an event: JSON on its standard input, the main fields in its environment.

`Webhook` posts an event as JSON: `text` is a sentence, as Slack and its like show it; `event` is all that is known.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import signal
import subprocess
import tempfile
import threading
import urllib.error
import urllib.request
from typing import IO, Any

from deadpool.config.environment import PREFIX, SECRET_VARIABLE
from deadpool.config.orders import HookRule
from deadpool.errors import ConfigError

COMMAND_TIMEOUT_S = 30.0
_TOLD_BYTES = 300
"""The bytes of a failed command's output that are told."""
_FIELDS = ("cause", "node", "rank", "step", "reason")


class Command:
    def __init__(self, command: str, *, timeout_s: float = COMMAND_TIMEOUT_S) -> None:
        self._command, self._timeout_s = command, timeout_s
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False

    def call(self, record: dict[str, Any]) -> str | None:
        """Returns why it failed; None: it did not. Files, not pipes: a command that reads nothing, or writes much,
        holds nobody up."""
        with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as output:
            given.write(json.dumps(record).encode())
            given.seek(0)
            with self._lock:
                if self._is_closed:
                    return "the job has ended"
                self._process = process = subprocess.Popen(
                    ["/bin/sh", "-c", self._command],
                    stdin=given,
                    stdout=output,
                    stderr=output,
                    env=_environment(record),
                    start_new_session=True,
                )
            try:
                code = process.wait(self._timeout_s)
            except subprocess.TimeoutExpired:
                self._kill(process)
                return f"it had not ended after {self._timeout_s:g} s, and was killed"
            finally:
                self._process = None
            return None if code == 0 else f"it ended with code {code}{_last_words(output)}"

    def close(self) -> None:
        """A command that still runs is killed."""
        with self._lock:
            self._is_closed = True
        if (process := self._process) is not None:
            self._kill(process)

    def _kill(self, process: subprocess.Popen[bytes]) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _environment(record: dict[str, Any]) -> dict[str, str]:
    """A command has no use for the job's secret."""
    variables = {name: value for name, value in os.environ.items() if name != SECRET_VARIABLE}
    variables[f"{PREFIX}EVENT"] = str(record["event"])
    variables[f"{PREFIX}EVENT_TEXT"] = str(record["text"])
    variables[f"{PREFIX}RUN_DIR"] = str(record["run_dir"])
    given = {name: record.get(name) for name in _FIELDS}
    variables |= {f"{PREFIX}EVENT_{name.upper()}": str(value) for name, value in given.items() if value is not None}
    return variables


def _last_words(output: IO[bytes]) -> str:
    size = output.seek(0, os.SEEK_END)
    output.seek(max(0, size - _TOLD_BYTES))
    text = output.read().decode(errors="replace").strip()
    return f": {text}" if text else ""


WEBHOOK_TIMEOUT_S = 10.0
PAUSES_S = (1.0, 4.0)
"""The pauses between attempts: a server may be busy for a moment."""


class Webhook:
    def __init__(
        self, rule: HookRule, *, timeout_s: float = WEBHOOK_TIMEOUT_S, pauses_s: tuple[float, ...] = PAUSES_S
    ) -> None:
        self._rule, self._timeout_s, self._pauses_s = rule, timeout_s, pauses_s
        self._closed = threading.Event()

    def call(self, record: dict[str, Any]) -> str | None:
        """Returns why it failed; None: it did not."""
        body = json.dumps({"text": f"DeadPool: {record['text']}", "event": record}).encode()
        failure = self._post(body)
        for pause_s in self._pauses_s:
            if failure is None or self._closed.wait(pause_s):
                break
            failure = self._post(body)
        return failure

    def close(self) -> None:
        self._closed.set()

    def _post(self, body: bytes) -> str | None:
        """Errors are told without the URL, which may be a secret."""
        try:
            request = urllib.request.Request(
                self._rule.url(), data=body, headers={"Content-Type": "application/json", "User-Agent": "deadpool"}
            )
            with urllib.request.urlopen(request, timeout=self._timeout_s):
                return None
        except urllib.error.HTTPError as error:
            error.close()
            return f"the server answered {error.code} {error.reason}"
        except ConfigError as error:
            return str(error)
        except urllib.error.URLError as error:
            return f"the server cannot be reached: {error.reason}"
        except (OSError, http.client.HTTPException) as error:
            return f"the server does not answer: {type(error).__name__}"
