"""Which events call which command or webhook, as `--on-event` and `--webhook` give it: EVENT,EVENT=TARGET."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deadpool.errors import ConfigError
from deadpool.events.types import BY_NAME

RECOVERED = "recovered"
"""No event of its own: `go` after a fault or a drain."""
ON_EVENT, WEBHOOK = "on_event", "webhook"
HOOKS = (ON_EVENT, WEBHOOK)
"""Names of the settings."""
ON_EVENT_HELP = (
    "a command for events (repeatable), as in 'recovered,no_spare,failed=logger \"$DEADPOOL_EVENT_TEXT\"'; "
    "it gets the event as JSON on its standard input"
)
WEBHOOK_HELP = (
    "a URL that events are posted to as JSON (repeatable), as in 'recovered,failed=https://HOST/PATH', or failed=@FILE "
    "where the URL is a secret"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HookRule:
    kind: str
    events: frozenset[str]
    target: str  # a command, a URL, or @FILE with a URL

    def name_for(self, record: Mapping[str, Any]) -> str | None:
        """Returns the name of the event by which the rule wants this record, or None if it does not."""
        what = record["what"]
        if what == "go" and RECOVERED in self.events and is_recovery(record):
            return RECOVERED
        return what if what in self.events else None

    @property
    def label(self) -> str:
        """Names the rule for people to read. A URL may be a secret, so only its host is named."""
        if self.kind == ON_EVENT:
            return f"command {self.target.split()[0]}"
        return f"webhook {self.target if self.target.startswith('@') else urlsplit(self.target).hostname}"

    def url(self) -> str:
        """Raises ConfigError where the file does not hold one."""
        if not self.target.startswith("@"):
            return self.target
        try:
            text = Path(self.target[1:]).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ConfigError(
                f"{self.target[1:]}, the file of a --webhook, cannot be read: {error.strerror}. Give EVENT=@FILE with "
                "a file that this user can read, and a URL in it"
            ) from None
        return _checked_url(text, f"what the file {self.target[1:]} of a --webhook holds")


def is_recovery(record: Mapping[str, Any]) -> bool:
    return str(record.get("cause", "")).startswith(("fault-", "drain-", "protection-"))


def parse_rule(kind: str, text: str) -> HookRule:
    names, sign, target = text.partition("=")
    events = frozenset(name.strip() for name in names.split(",") if name.strip())
    if not sign or not events or not target.strip():
        what = "URL" if kind == WEBHOOK else "COMMAND"
        raise ConfigError(f"{kind}={text!r} cannot be used: give EVENT={what}, or EVENT,EVENT={what}")
    unknown = sorted(events - BY_NAME.keys() - {RECOVERED})
    if unknown:
        raise ConfigError(
            f"{kind}={text!r} cannot be used, {unknown[0]!r} is no event: give names of docs/events.md, or "
            f"{RECOVERED}, e.g. {RECOVERED},no_spare,failed"
        )
    rule = HookRule(kind=kind, events=events, target=target.strip())
    if kind == WEBHOOK and not rule.target.startswith("@"):
        _checked_url(rule.target, "the target of a --webhook")
    return rule


def _checked_url(text: str, where: str) -> str:
    """The text itself is not repeated: it may be a secret."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname)
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{where} is no URL that can be posted to: give http://HOST/PATH or https://HOST/PATH")
    return text
