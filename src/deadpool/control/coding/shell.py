"""What the shells are told of this feature."""

from __future__ import annotations

from deadpool.control.coding.coded_copies import CodedCopies
from deadpool.control.shells import FeatureShell

SHELL = FeatureShell(joint=CodedCopies)
