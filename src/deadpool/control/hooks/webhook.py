"""Posts an event as JSON: `text` is a sentence, as Slack and its like show it; `event` is all that is known."""

from __future__ import annotations

import http.client
import json
import threading
import urllib.error
import urllib.request
from typing import Any

from deadpool.config.hook_rules import HookRule
from deadpool.errors import ConfigError

TIMEOUT_S = 10.0
PAUSES_S = (1.0, 4.0)
"""The pauses between attempts: a server may be busy for a moment."""


class Webhook:
    def __init__(self, rule: HookRule, *, timeout_s: float = TIMEOUT_S, pauses_s: tuple[float, ...] = PAUSES_S) -> None:
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
