"""What the shells are told of this feature."""

from __future__ import annotations

from deadpool.control.durable.checkpoint_files import DurableFiles
from deadpool.control.durable.checkpoint_search import CheckpointSearch
from deadpool.control.shells import FeatureShell

SHELL = FeatureShell(data=DurableFiles, coordinator=CheckpointSearch)
