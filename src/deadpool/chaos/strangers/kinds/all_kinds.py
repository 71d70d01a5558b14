"""All kinds, in the order in which they are listed and gone through."""

from __future__ import annotations

from deadpool.chaos.strangers.kind import Kind
from deadpool.chaos.strangers.kinds.assigned_buffers import ASSIGNED_BUFFERS
from deadpool.chaos.strangers.kinds.attributes import ATTRIBUTES
from deadpool.chaos.strangers.kinds.early_data import EARLY_DATA
from deadpool.chaos.strangers.kinds.gradients import GRADIENTS
from deadpool.chaos.strangers.kinds.odd_tensors import ODD_TENSORS
from deadpool.chaos.strangers.kinds.replaced import REPLACED
from deadpool.chaos.strangers.kinds.surroundings import SURROUNDINGS
from deadpool.chaos.strangers.kinds.uncounted import UNCOUNTED

KINDS: tuple[Kind, ...] = (
    *GRADIENTS,
    *UNCOUNTED,
    *REPLACED,
    *ATTRIBUTES,
    *ASSIGNED_BUFFERS,
    *EARLY_DATA,
    *SURROUNDINGS,
    *ODD_TENSORS,
)
