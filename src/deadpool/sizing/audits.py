"""How often a step is to be audited (`--audit-every`), where devices compute something wrong without saying so.

An audit stands in the way of training for C seconds: the step is computed again, after a recovery without a loss. A
device that has begun to err goes on to, and the audit finds it that comes next: with one in every N steps of T seconds
that is N T / 2 later, as a mean, and what was computed meanwhile is worth nothing. With r such devices per second, all
devices together, that is a share of the time of

    C / (N T) + r N T / 2,    least at    N T = sqrt(2 C / r),    where it is sqrt(2 C r)

An error that comes once is found only if it comes in the audited step, one in N. No N changes much in that, so that
these have no part in the choice: they are counted and told.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from deadpool.sizing.inputs import Inputs, Phases

_DAY_S = 86400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditInterval:
    """`every` is 0 where no audit is worth its cost in the days of the job."""

    every: int  # steps, N
    audit_s: float  # C
    cost_share: float  # of the time, C / (N T)
    lost_share: float  # of the time, r N T / 2
    expected: float  # silent errors in the days of the job: those that come once, and devices that begin to err
    repeating: float  # of these, devices that err again and again
    not_found: float  # of these, errors that come once and in no audited step


def audit_seconds(inputs: Inputs, phases: Phases, load_s: float) -> float:
    """The time of one audit, C. Every rank loads its own copy, and nothing has to be noticed or built. Digests are not
    in it: a device that reads a TB/s takes a hundredth of a second for each 10 GB."""
    recovery_s = phases.unwind_s + phases.plan_s + phases.prepare_s + phases.connect_s + load_s
    return inputs.step_s + (inputs.audit_s or recovery_s)


def audit_interval(inputs: Inputs, phases: Phases, *, load_s: float, capture_every: int) -> AuditInterval:
    """An audited step follows a captured version, so that N is a multiple of the capture interval."""
    cost_s = audit_seconds(inputs, phases, load_s)
    expected = inputs.silent_errors / 1000 / _DAY_S * inputs.nodes * inputs.ranks_per_node * inputs.seconds
    repeating = expected * inputs.silent_repeats
    every = _best(cost_s, repeating / inputs.seconds, inputs.step_s, capture_every)
    if every * inputs.step_s > inputs.seconds:
        every = 0
    apart_s = every * inputs.step_s
    return AuditInterval(
        every=every,
        audit_s=cost_s,
        cost_share=cost_s / apart_s if every else 0.0,
        lost_share=repeating / inputs.seconds * apart_s / 2 if every else repeating / 2,
        expected=expected,
        repeating=repeating,
        not_found=(expected - repeating) * (1 - 1 / every) if every else expected,
    )


def _best(cost_s: float, repeating_per_s: float, step_s: float, capture_every: int) -> int:
    """Returns 0 where nothing is to be found."""
    if repeating_per_s <= 0:
        return 0
    steps = math.sqrt(2 * cost_s / repeating_per_s) / step_s
    return max(1, round(steps / capture_every)) * capture_every
