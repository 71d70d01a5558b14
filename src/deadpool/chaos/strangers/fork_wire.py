"""What goes through the pipe of a forked process: its id, then its exit code."""

from __future__ import annotations

import struct

NUMBER = struct.Struct("q")
