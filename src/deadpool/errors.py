"""The exception tree. Every error that a user can see derives from DeadPoolError, except Unwind.

DeadPoolError
  ConfigError        a value the user gave cannot be used: names the field, the value, what would be accepted
  ProtocolError      a peer sent what the protocol does not allow
    WireError        bytes that are not a message, or a peer that is not of this job
      WrongSecret      a peer without the job's secret
      VersionMismatch  a peer of this job that runs another version of DeadPool
  ArenaError         host memory for snapshots cannot be allocated, or is damaged
  TransferError      a copy did not arrive whole
    CopyDamaged      it arrived, and does not match its checksum
  StateError         training state that cannot be captured or restored
    NotInPlace       a fresh process can load it, this one cannot
    OtherStructure   it is of parameters with other names or shapes than those here
  DeviceError        a call of the device's runtime failed
  GroupError         a process group cannot be aborted or rebuilt
    GroupMissing     the job has a group that this process never made
  Inexact            the script does what no recovery can make good, and --on-inexact stop was given
  JobFailed          the job cannot go on; says why and what to do now

Unwind (BaseException)  takes a trainer back to its step boundary; no `except Exception` may catch it
"""

from __future__ import annotations


class DeadPoolError(Exception):
    """Root of the errors a user may see."""


class ConfigError(DeadPoolError):
    """A value the user gave cannot be used."""


class ProtocolError(DeadPoolError):
    """A peer sent what the protocol does not allow."""


class WireError(ProtocolError):
    """Bytes that are not a message, or a peer that is not of this job."""


class WrongSecret(WireError):
    """A peer does not know the job's secret."""


class VersionMismatch(WireError):
    """A peer of this job runs another version of DeadPool."""

    cure = "install the same version on every node"

    def __init__(self, found: str, last_words: bytes = b"") -> None:
        super().__init__(f"{found}: {self.cure}")
        self.found = found
        self.last_words = last_words  # what the peer has to be sent still, so that it knows as well


class ArenaError(DeadPoolError):
    """Host memory for snapshots cannot be allocated, or is damaged."""


class TransferError(DeadPoolError):
    """A copy did not arrive whole."""


class CopyDamaged(TransferError):
    """A copy arrived, and does not match its checksum."""


class StateError(DeadPoolError):
    """Training state that cannot be captured or restored."""


class NotInPlace(StateError):
    """A fresh process can load this state; a process that has gone on from there cannot."""


class OtherStructure(StateError):
    """The state is of parameters with other names or shapes than those of the objects here."""


class DeviceError(DeadPoolError):
    """A call of the device's runtime failed."""


class GroupError(DeadPoolError):
    """A process group cannot be aborted or rebuilt."""


class GroupMissing(GroupError):
    """The job has a group that this process never made."""


class Inexact(DeadPoolError):
    """The script does what no recovery can make good; the text says what, and what to do instead."""


class JobFailed(DeadPoolError):
    """The job cannot go on."""


class Unwind(BaseException):
    """Takes a trainer's main thread back to its step boundary, or a spare back to the top of its script."""


class Unsuitable(DeadPoolError):
    """Something of torch that is relied on is missing or behaves differently; the text says what."""
