"""All kinds, in the order in which they are listed and gone through."""

from __future__ import annotations

from deadpool_lab.strangers.kind import Kind
from deadpool_lab.strangers.kinds.assigned_buffers import ASSIGNED_BUFFERS
from deadpool_lab.strangers.kinds.attributes import ATTRIBUTES
from deadpool_lab.strangers.kinds.early_data import EARLY_DATA
from deadpool_lab.strangers.kinds.gradients import GRADIENTS
from deadpool_lab.strangers.kinds.odd_tensors import ODD_TENSORS
from deadpool_lab.strangers.kinds.replaced import REPLACED
from deadpool_lab.strangers.kinds.surroundings import SURROUNDINGS
from deadpool_lab.strangers.kinds.uncounted import UNCOUNTED

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
