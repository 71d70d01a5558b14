"""The sizes of the model that jobs under test train. A job and the run it is compared with have the same.

`scripts/check --speed fast` sets E2E_SPEED: steps are then as short as they can be, about a quarter of the usual, and
a test that needs a step to last shows itself.
"""

from __future__ import annotations

import os

IS_FAST = os.environ.get("E2E_SPEED") == "fast"


def size(layers: int, width: int, sequence: int, vocabulary: int) -> list[str]:
    """Returns the arguments of the workload."""
    words = {"--layers": layers, "--width": width, "--sequence": sequence, "--vocabulary": vocabulary}
    return [word for name, value in words.items() for word in (name, str(value))]


GATED = size(1, 64, 4, 256) if IS_FAST else size(2, 64, 32, 256)
"""Its tests compare bytes that travel with those that need not, so its tensors keep their width."""
INJECTED = size(4, 8, 8, 16) if IS_FAST else size(4, 32, 16, 128)
"""Its layouts cut the model into up to six pieces, so it keeps its layers; the width is a multiple of the 8 heads."""
