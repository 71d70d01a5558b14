"""What a user orders for later: faults, and calls at events.

An `InjectionOrder` says which node or rank a fault hits, with which signal, and at which moment of training. The words
for moments are defined here. An order is checked here wherever it comes from: a command, a setting, a test.

A `HookRule` says which events call which command or webhook, as `--on-event` and `--webhook` give it:
EVENT,EVENT=TARGET.
"""

from __future__ import annotations

import signal as signals
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from deadpool.errors import ConfigError
from deadpool.events.types import BY_NAME

MOMENTS: dict[str, str] = {
    "forward": "in the forward pass of step N",
    "backward": "in the backward pass of step N",
    "reduce": "when a reduction of step N's gradients has been launched",
    "clip": "while step N's gradients are clipped",
    "optimizer": "in the middle of step N's optimizer",
    "between": "after the boundary of step N, before the next step",
    "capture": "while version N, the state after N steps, is copied into the arena",
    "wire": "while version N is on its way to a holder",
    "recovered": "right after a recovery, before the step is computed again (takes no step)",
}

ACTIVATION, GRADIENT, RECEIVED = "activation", "gradient", "received"
ARENA, WIRE = "arena", "wire"
FLIPS: dict[str, str] = {
    "parameter": "one bit of a parameter flips",
    "moment": "one bit of a moment of the optimizer flips",
    ACTIVATION: "one bit of what a module gives on in the forward pass flips",
    GRADIENT: "one bit of a gradient flips before it is reduced",
    RECEIVED: "one bit of a gradient flips after it was reduced",
    ARENA: "one bit of a sealed snapshot flips in the memory of its node",
    WIRE: "one bit of a snapshot flips on its way to a holder",
}
IN_STEP = (ACTIVATION, GRADIENT, RECEIVED)
"""What flips inside of a step; a parameter or a moment flips when its optimizer has stepped."""
IN_COPIES = (ARENA, WIRE)
"""What flips in no device: in the first snapshot that is sent after the step."""
UPDATED, AUDITED = "updated", "audited"
"""The moments of what flips: in a step that is named, and in the next one that is audited, whichever it is."""
LASTS = ("once", "always")

_WORDS = ("at", "step", "node", "rank", "signal", "flip", "lasts")
_EXAMPLE = "'at=backward step=0 node=n1'"
ORDER_HELP = (
    f"e.g. {_EXAMPLE}; also rank=N instead of node=, and signal=SIGSTOP. Moments: "
    + ", ".join(MOMENTS)
    + ". With --drills also 'flip=parameter rank=0 step=20 lasts=always', see deadpool node flip"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionOrder:
    """An order to inject a fault. If `at` is None the signal is sent at once. Else the order waits until the node or
    rank reaches this moment of step or version `step`."""

    node: str | None = None
    rank: int | None = None
    signal: int = signals.SIGKILL
    at: str | None = None
    step: int | None = None
    flip: str | None = None  # no signal is sent: this kind of state is changed
    lasts: bool = False  # in each step from there on

    def checked(self) -> InjectionOrder:
        """Raises ConfigError for an order that can never be carried out."""
        if (self.node is None) == (self.rank is None):
            raise ConfigError(
                "a fault needs one target: give either a node or a rank, as in --rank 0 (in --fault the word rank)"
            )
        if self.node == "":
            raise ConfigError("node='' cannot be used: give the name of a node, as `deadpool status` does")
        if self.rank is not None and self.rank < 0:
            raise ConfigError(f"rank={self.rank} cannot be used: give 0 or more")
        if self.flip is not None:
            self._check_flip()
        elif self.lasts:
            raise ConfigError("lasts goes with flip=, one of " + ", ".join(FLIPS))
        elif self.at is None and self.step is not None:
            raise ConfigError(
                f"step={self.step} goes with a moment: give --at, or at= in --fault, one of {', '.join(MOMENTS)}"
            )
        if self.at is not None and self.at not in MOMENTS and self.flip is None:
            raise ConfigError(f"at={self.at!r} is not a moment: give one of {', '.join(MOMENTS)}")
        self._check_step()
        return self

    def _check_flip(self) -> None:
        if self.flip not in FLIPS:
            raise ConfigError(f"flip={self.flip!r} cannot be used: give one of {', '.join(FLIPS)}")
        if self.rank is None:
            raise ConfigError("flip= needs a rank: one bit flips on its device, as in rank=1")
        if (self.at, self.step is None) not in ((UPDATED, False), (AUDITED, True)):
            raise ConfigError("flip= needs a step, as in step=20, or at=audited: the next step that is computed twice")
        if self.flip in IN_COPIES and self.at == AUDITED:
            raise ConfigError(f"flip={self.flip} needs a step, as in step=20: no audit computes a copy again")

    def _check_step(self) -> None:
        if self.at == "recovered" and self.step is not None:
            raise ConfigError(
                f"step={self.step} cannot be used: at=recovered is the next recovery, at any step. Leave the step out"
            )
        if self.at not in (None, UPDATED, AUDITED, "recovered") and self.step is None:
            raise ConfigError(
                f"at={self.at} needs a step: give --step N, or step=N in --fault; it is {MOMENTS[self.at or '']}"
            )
        if self.step is not None and self.step < 0:
            raise ConfigError(f"step={self.step} cannot be used: give 0 (the first step ever) or more")

    def place(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"node {self.node}"

    def moment(self) -> str:
        """When it will happen, in words."""
        if self.flip is not None:
            device = "node" if self.flip in IN_COPIES else "device"
            lasts = f"and of each later one on the {device} of rank {self.rank}" if self.lasts else "and no other"
            when = "in" if self.flip in IN_STEP else "after" if self.flip in IN_COPIES else "after the optimizer of"
            step = f"step {self.step}" if self.step is not None else "the next step that is audited"
            return f"{FLIPS[self.flip]} {when} {step}, {lasts}"
        return MOMENTS[self.at].partition(" (")[0].replace("N", str(self.step)) if self.at else "now"


def parse_order(text: str) -> InjectionOrder:
    """Reads words of the form NAME=VALUE, as --fault takes them."""
    words = dict(word.partition("=")[::2] for word in text.split())
    unknown = sorted(set(words) - {*_WORDS})
    if unknown:
        raise ConfigError(
            f"fault {text!r}: {unknown[0]!r} is not one of its words: give {', '.join(_WORDS)}, as in {_EXAMPLE}"
        )
    if "flip" in words:
        return _flip_order(text, words)
    if "at" not in words:
        raise ConfigError(f"fault {text!r} names no moment: give at=, one of {', '.join(MOMENTS)}")
    try:
        return InjectionOrder(
            node=words.get("node"),
            rank=_number("rank", words),
            signal=signal_number(words.get("signal", "SIGKILL")),
            at=words["at"],
            step=_number("step", words),
        ).checked()
    except ConfigError as error:
        raise ConfigError(f"fault {text!r}: {error}") from None


def flip_order(rank: int | None, flip: str, step: int | None, *, lasts: bool) -> InjectionOrder:
    """Without a step, it flips in the next one that is audited."""
    at = AUDITED if step is None else UPDATED
    return InjectionOrder(rank=rank, at=at, step=step, flip=flip, lasts=lasts, signal=0).checked()


def _flip_order(text: str, words: dict[str, Any]) -> InjectionOrder:
    lasts = words.get("lasts", LASTS[0])
    try:
        if lasts not in LASTS:
            raise ConfigError(f"lasts={lasts!r} cannot be used: give one of {', '.join(LASTS)}")
        if unknown := sorted(
            set(words) - {"flip", "rank", "step", "lasts"} - ({"at"} if _is_audited(words) else set())
        ):
            raise ConfigError(f"{unknown[0]!r} does not go with flip=")
        if "step" not in words and not _is_audited(words):
            raise ConfigError("flip= needs a step, as in step=20, or at=audited: the next step that is computed twice")
        return flip_order(_number("rank", words), words["flip"], _number("step", words), lasts=lasts == LASTS[1])
    except ConfigError as error:
        raise ConfigError(f"fault {text!r}: {error}") from None


def _is_audited(words: Mapping[str, str]) -> bool:
    return words.get("at") == AUDITED and "step" not in words


def _number(name: str, words: dict[str, Any]) -> int | None:
    try:
        return int(words[name]) if name in words else None
    except ValueError:
        raise ConfigError(f"{name}={words[name]!r} is not a number: give a whole number") from None


def signal_number(name: str) -> int:
    full = name.upper() if name.upper().startswith("SIG") else f"SIG{name.upper()}"
    if full not in signals.Signals.__members__:
        raise ConfigError(f"signal={name!r} is not a signal: give e.g. SIGKILL, SIGSTOP, SIGTERM")
    return int(signals.Signals[full])


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
