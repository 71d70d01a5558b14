"""The exception tree. Everything a user can see derives from DeadPoolError, except the unwinding signal.

DeadPoolError
  ConfigError        a value the user gave cannot be used: names the field, the value, what would be accepted
  ProtocolError      a peer said something that the protocol does not allow
    WireError        bytes that are not a message, or a peer that is not one of ours
  ArenaError         host memory for snapshots cannot be had or is not what it should be
  TransferError      a copy did not arrive whole
    CopySpoilt       it arrived, and is not what was sealed
  StateError         training state that cannot be captured or restored
    NotInPlace       a fresh process can take it up, this one cannot
  DeviceError        a call of the device's runtime failed
  GroupError         a process group cannot be aborted or rebuilt
    GroupMissing     the job has a group that this process never made
  JobFailed          the job cannot go on; says why and what to do now

Unwind (BaseException)  takes a trainer back to its step boundary; must not be eaten by `except Exception`
"""

from __future__ import annotations


class DeadPoolError(Exception):
    """Root of the errors a user may see."""


class ConfigError(DeadPoolError):
    """A value the user gave cannot be used."""


class ProtocolError(DeadPoolError):
    """A peer said something that the protocol does not allow."""


class WireError(ProtocolError):
    """Bytes that are not a message, or a peer that is not one of ours."""


class ArenaError(DeadPoolError):
    """Host memory for snapshots cannot be had or is not what it should be."""


class TransferError(DeadPoolError):
    """A copy did not arrive whole."""


class CopySpoilt(TransferError):
    """A copy arrived and is not what was sealed."""


class StateError(DeadPoolError):
    """Training state that cannot be captured or restored."""


class NotInPlace(StateError):
    """A fresh process can take up this state, one that has gone on from there cannot."""


class DeviceError(DeadPoolError):
    """A call of the device's runtime failed."""


class GroupError(DeadPoolError):
    """A process group cannot be aborted or rebuilt."""


class GroupMissing(GroupError):
    """The job has a group that this process never made."""


class JobFailed(DeadPoolError):
    """The job cannot go on."""


class Unwind(BaseException):
    """Takes a trainer's main thread back to its step boundary, or a spare back to the top of its script."""
