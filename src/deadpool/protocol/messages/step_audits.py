"""Audits of steps: one step is computed twice, and each rank compares what it computed.

No process ends for it. The end of such an audit is an `AuditOver`, like that of an audit of exactness.
"""

from __future__ import annotations

from deadpool.protocol.identity import FeatureMessage, Generation, Message


class StepAudit(Message, frozen=True, kw_only=True):
    """Every rank tells `StepDigests` of the step that ends in version `number`, in this generation and in each later
    one in which it is computed again. In this one it captures nothing from that version on."""

    generation: Generation
    number: int


class StepDigests(FeatureMessage, frozen=True, kw_only=True):
    """What a rank has computed in the step that ends in version `number`. Rule 35, an audited step is computed
    twice."""

    generation: Generation
    rank: int
    number: int
    before: int = 0  # of its state, when the step began
    gradients: int = 0  # of its own, before they are reduced
    reduced: int = 0  # of the gradients that its optimizers took
    after: int = 0  # of what it has logged, and of its state
    differs: str = ""  # the first part that this process has computed otherwise the first time, for people
    apart: bool = True  # until gradients are reduced, ranks exchange nothing but parameters, as far as is known
    late: bool = False  # the order came when the step had begun: nothing is known of it
