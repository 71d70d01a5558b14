"""Faults that a user orders to be injected: which node or rank, with which signal, and at which moment of training.

The words for moments are defined here. An order is checked here wherever it comes from: a command, a setting, a test.
"""

from __future__ import annotations

import signal as signals
from dataclasses import dataclass
from typing import Any

from deadpool.errors import ConfigError

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

_WORDS = ("at", "step", "node", "rank", "signal")
_EXAMPLE = "'at=backward step=0 node=n1'"
ORDER_HELP = f"e.g. {_EXAMPLE}; also rank=N instead of node=, and signal=SIGSTOP. Moments: " + ", ".join(MOMENTS)


@dataclass(frozen=True, slots=True, kw_only=True)
class InjectionOrder:
    """An order to inject a fault. If `at` is None the signal is sent at once. Else the order waits until the node or
    rank reaches this moment of step or version `step`."""

    node: str | None = None
    rank: int | None = None
    signal: int = signals.SIGKILL
    at: str | None = None
    step: int | None = None

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
        if self.at is None and self.step is not None:
            raise ConfigError(
                f"step={self.step} goes with a moment: give --at, or at= in --fault, one of {', '.join(MOMENTS)}"
            )
        if self.at is not None and self.at not in MOMENTS:
            raise ConfigError(f"at={self.at!r} is not a moment: give one of {', '.join(MOMENTS)}")
        self._check_step()
        return self

    def _check_step(self) -> None:
        if self.at == "recovered" and self.step is not None:
            raise ConfigError(
                f"step={self.step} cannot be used: at=recovered is the next recovery, at any step. Leave the step out"
            )
        if self.at not in (None, "recovered") and self.step is None:
            raise ConfigError(
                f"at={self.at} needs a step: give --step N, or step=N in --fault; it is {MOMENTS[self.at or '']}"
            )
        if self.step is not None and self.step < 0:
            raise ConfigError(f"step={self.step} cannot be used: give 0 (the first step ever) or more")

    def place(self) -> str:
        return f"rank {self.rank}" if self.rank is not None else f"node {self.node}"

    def moment(self) -> str:
        """When it will happen, in words."""
        return MOMENTS[self.at].partition(" (")[0].replace("N", str(self.step)) if self.at else "now"


def parse_order(text: str) -> InjectionOrder:
    """Reads words of the form NAME=VALUE, as --fault takes them."""
    words = dict(word.partition("=")[::2] for word in text.split())
    unknown = sorted(set(words) - {*_WORDS})
    if unknown:
        raise ConfigError(
            f"fault {text!r}: {unknown[0]!r} is not one of its words: give {', '.join(_WORDS)}, as in {_EXAMPLE}"
        )
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
