"""The format of the pipe from a fork server to the owner of a forked process: a process id, then an exit code."""

from __future__ import annotations

import struct

NUMBER = struct.Struct("q")
